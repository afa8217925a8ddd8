//! What the CPU kernels of a step need beside its slots: the planner asks here, and so does the executor.

use crate::{
    arch::Architecture,
    kernels::arena::OPERANDS,
    kernels::{
        delta::DeltaShape,
        experts::{self, ExpertShape},
    },
    model::WeightTypes,
};
use plimsoll_attention::{AttnShape, KvDtype, KvValues, Route};
use plimsoll_kvcache::{KvSpec, Snapshots};
use plimsoll_linear::WeightType;
use plimsoll_program::{CostModel, Dims, HeadOrder, Op, Program, Slot};
use smallvec::SmallVec;

/// Start-up settings of a CPU executor. Everything that decides a route is here or in a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuSettings {
    /// Threads, the caller's included; at least 1.
    pub threads: usize,
    /// Instruction set of the products.
    pub linear_isa: plimsoll_linear::Isa,
    /// Instruction set of attention and activations.
    pub attention_isa: plimsoll_attention::Isa,
    /// Attention route to force; `None` takes the route of the shape.
    pub attention_route: Option<plimsoll_attention::RouteKind>,
    /// Type in which keys and values are kept.
    pub kv_dtype: KvDtype,
    /// Most rows of a sequence in one pass, which layers with a sliding window are priced for; `None` sets no limit, and they are priced at
    /// the whole context.
    pub max_chunk_rows: Option<usize>,
    /// Recurrent states of the past that a sequence keeps, to go back to and for a prefix cache.
    pub snapshots: Option<Snapshots>,
}

impl CpuSettings {
    /// The best instruction sets that this machine has.
    #[must_use]
    pub fn detect(threads: usize, kv_dtype: KvDtype) -> Self {
        Self {
            threads: threads.max(1),
            linear_isa: plimsoll_linear::Isa::detect(),
            attention_isa: plimsoll_attention::Isa::detect(),
            attention_route: None,
            kv_dtype,
            max_chunk_rows: None,
            snapshots: None,
        }
    }

    /// The same on an instruction set of one's own choice: attention and activations take the one of the same name, or the best that there is
    /// where their kernels are written for fewer.
    #[must_use]
    pub fn with_isa(self, isa: plimsoll_linear::Isa) -> Self {
        let named = plimsoll_attention::Isa::available().find(|available| available.name() == isa.name());
        let attention_isa = named.unwrap_or_else(plimsoll_attention::Isa::detect);
        Self { linear_isa: isa, attention_isa, ..self }
    }

    /// What a sequence of this model holds and costs with these settings.
    #[must_use]
    pub fn kv_spec(&self, architecture: &Architecture) -> KvSpec {
        let spec = architecture.kv_spec(self.kv_dtype);
        spec.with_max_chunk_rows(self.max_chunk_rows).with_snapshots(self.snapshots)
    }

    pub(crate) fn linear(&self) -> plimsoll_linear::Settings {
        plimsoll_linear::Settings { isa: self.linear_isa, threads: self.threads }
    }

    pub(crate) fn attention(&self) -> plimsoll_attention::Settings {
        plimsoll_attention::Settings { route: self.attention_route, isa: self.attention_isa, threads: self.threads }
    }
}

/// Prices kernel scratch for the CPU executor.
#[derive(Debug, Clone, Copy)]
pub struct CpuCost<'a> {
    /// How each constant is stored.
    pub weight_types: &'a WeightTypes,
    /// The settings that the executor will run with.
    pub settings: CpuSettings,
}

impl CostModel for CpuCost<'_> {
    fn scratch_bytes(&self, program: &Program, op: &Op, dims: &Dims) -> u64 {
        match op {
            Op::Linear { x, parts } => {
                let rows = program.slot(*x).extent.rows(dims);
                let in_features = program.slot(*x).extent.width();
                let shapes = parts
                    .iter()
                    .map(|part| (self.weight_types.of(part.weight), program.slot(part.out).extent.width()))
                    .collect::<SmallVec<[_; OPERANDS]>>();
                plimsoll_linear::scratch_bytes(rows, in_features, &shapes, self.settings.linear())
            }
            Op::Attend { q, k, v, spec, .. } => {
                let shape =
                    attn_shape(program, [*q, *k, *v], spec.window, self.settings.kv_dtype, dims.rows, dims.kv_len);
                Route::for_shape(&shape, &self.settings.attention()).workspace_bytes(&shape)
            }
            Op::TopK { logits, .. } => {
                experts::top_k_scratch_bytes(program.slot(*logits).extent.width(), self.settings.threads)
            }
            // What the worst routing needs, so that shapes alone decide it.
            Op::ExpertLinear { ids, weight, .. } => {
                expert_shape(program, *ids, *weight, self.weight_types.of(*weight), dims)
                    .scratch_bytes(self.settings.linear())
            }
            Op::GatedDelta { q, v, order, .. } => {
                delta_shape(program, *q, *v, *order).scratch_bytes(self.settings.threads)
            }
            Op::Embed { .. }
            | Op::RmsNorm { .. }
            | Op::RopeTable { .. }
            | Op::Rope { .. }
            | Op::Glu { .. }
            | Op::Unary { .. }
            | Op::Add { .. }
            | Op::Mul { .. }
            | Op::Scale { .. }
            | Op::Softcap { .. }
            | Op::SelectRows { .. }
            | Op::Copy { .. }
            | Op::Fill { .. }
            | Op::Sum { .. }
            | Op::CombineExperts { .. }
            | Op::ScaleRows { .. }
            | Op::SelectColumns { .. }
            | Op::CausalConv { .. }
            | Op::If { .. }
            | Op::Scan { .. } => 0,
        }
    }
}

/// The shape of an `Attend` step over slots `[q, k, v]` for `rows` rows that see `kv_len` keys.
pub(crate) fn attn_shape(
    program: &Program,
    [q, k, v]: [Slot; 3],
    window: Option<usize>,
    kv_dtype: KvDtype,
    rows: usize,
    kv_len: usize,
) -> AttnShape {
    let (q, k, v) = (program.slot(q), program.slot(k), program.slot(v));
    AttnShape {
        rows,
        kv_len,
        heads: q.groups,
        kv_heads: k.groups,
        head_dim: q.head_dim(),
        v_head_dim: v.head_dim(),
        kv_dtype,
        kv_values: KvValues::Own,
        window,
    }
}

/// The shape of an `ExpertLinear` step whose weights are stored as `weight_type`.
pub(crate) fn expert_shape(
    program: &Program,
    ids: Slot,
    weight: Slot,
    weight_type: WeightType,
    dims: &Dims,
) -> ExpertShape {
    let (chosen, stack) = (program.slot(ids).extent, &program.slot(weight).shape);
    ExpertShape {
        rows: chosen.rows(dims),
        k: chosen.width(),
        experts: stack[0],
        in_features: stack[2],
        out_features: stack[1],
        weight_type,
    }
}

/// The shape of a `GatedDelta` step over slots `q` and `v`.
pub(crate) fn delta_shape(program: &Program, q: Slot, v: Slot, order: HeadOrder) -> DeltaShape {
    let (q, v) = (program.slot(q), program.slot(v));
    DeltaShape { key_heads: q.groups, head_dim: q.head_dim(), value_heads: v.groups, v_head_dim: v.head_dim(), order }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_follows_the_instruction_set_that_was_asked_for() {
        let detected = CpuSettings::detect(1, KvDtype::F32);
        for isa in plimsoll_linear::Isa::available() {
            let settings = detected.with_isa(isa);
            assert_eq!(settings.linear_isa, isa);
            let mut available = plimsoll_attention::Isa::available();
            match available.find(|attention| attention.name() == isa.name()) {
                Some(same) => assert_eq!(settings.attention_isa, same),
                None => assert_eq!(settings.attention_isa, detected.attention_isa, "{isa}"),
            }
        }
        assert_eq!(detected.with_isa(plimsoll_linear::Isa::Scalar).attention_isa, plimsoll_attention::Isa::Scalar);
    }
}
