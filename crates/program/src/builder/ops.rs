//! One method per operation. Each checks its operands, makes the result slot, then appends the step.

use super::ProgramBuilder;
use super::check::Reject;
use crate::{
    Activation, AttendSpec, BuildError, DType, Extent, LinearPart, Op, RopeLayout, Slot, SlotInfo, SlotKind, Unary,
};

/// Where a result goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dest {
    /// A fresh temporary.
    Fresh,
    /// The memory of the first operand.
    InPlace,
}

impl ProgramBuilder {
    /// Rows of `table` (`[vocabulary, width]`) for `ids` (U32, `[.., 1]`); result F32 `[.., width]`.
    pub fn embed(&mut self, ids: Slot, table: Slot) -> Slot {
        let made = self.try_embed(ids, table);
        self.settle(made)
    }

    /// `x weight^T`: `x` `[.., in_features]`, `weight` `[out_features, in_features]`; result F32 `[.., out_features]`.
    pub fn linear(&mut self, x: Slot, weight: Slot) -> Slot {
        self.linear_many(x, &[(weight, None)])[0]
    }

    /// As [`linear`](Self::linear), plus `bias` (`[out_features]`) on every row.
    pub fn linear_bias(&mut self, x: Slot, weight: Slot, bias: Slot) -> Slot {
        self.linear_many(x, &[(weight, Some(bias))])[0]
    }

    /// Several weights, each with a bias or none, that share one pass over `x` (q, k and v; gate and up). One result
    /// per weight, in order; no step is recorded for no weights.
    pub fn linear_many(&mut self, x: Slot, weights: &[(Slot, Option<Slot>)]) -> Vec<Slot> {
        match self.try_linear(x, weights) {
            Ok(outs) => outs,
            Err(reject) => {
                let broken = self.broken(reject);
                vec![broken; weights.len()]
            }
        }
    }

    /// Root mean square norm over each group of a row; `weight` is `[width / groups]`.
    pub fn rms_norm(&mut self, x: Slot, weight: Slot, eps: f32) -> Slot {
        self.rms_norm_to(Dest::Fresh, x, weight, eps)
    }

    /// Cosines and sines for `positions` (U32, `[.., 1]`) and `inv_freq` (constant F32 `[rotated / 2]`), times `scale`;
    /// result F32 `[.., rotated]`. One table serves all layers.
    pub fn rope_table(&mut self, positions: Slot, inv_freq: Slot, scale: f32) -> Slot {
        let made = self.try_rope_table(positions, inv_freq, scale);
        self.settle(made)
    }

    /// Rotates the first elements of each head, as many as the table is wide.
    pub fn rope(&mut self, x: Slot, table: Slot, layout: RopeLayout) -> Slot {
        self.rope_to(Dest::Fresh, x, table, layout)
    }

    /// Appends `k` and `v` to the KV in `state` and attends: `q` `[rows, heads * head_dim]` in `heads` groups, `k` and
    /// `v` in `kv_heads` groups; result F32 `[rows, heads * v_head_dim]` in `heads` groups.
    pub fn attend(&mut self, layer: usize, q: Slot, k: Slot, v: Slot, state: Slot, spec: AttendSpec) -> Slot {
        let made = self.try_attend(layer, [q, k, v], state, spec);
        self.settle(made)
    }

    /// `silu(gate) * up`.
    pub fn swiglu(&mut self, gate: Slot, up: Slot) -> Slot {
        self.glu(gate, up, Activation::Silu)
    }

    /// `activation(gate) * up`.
    pub fn glu(&mut self, gate: Slot, up: Slot, activation: Activation) -> Slot {
        self.glu_to(Dest::Fresh, gate, up, activation)
    }

    /// `function(x)`, element by element.
    pub fn unary(&mut self, x: Slot, function: Unary) -> Slot {
        self.map_to(Dest::Fresh, "unary", x, |x, out| Op::Unary { x, function, out })
    }

    /// `a + b`; `b` has the extent of `a`, or is one `Fixed` row added to every row.
    pub fn add(&mut self, a: Slot, b: Slot) -> Slot {
        self.binary_to(Dest::Fresh, "add", a, b, |a, b, out| Op::Add { a, b, out })
    }

    /// `a * b`; `b` has the extent of `a`, or is one `Fixed` row that multiplies every row.
    pub fn mul(&mut self, a: Slot, b: Slot) -> Slot {
        self.binary_to(Dest::Fresh, "mul", a, b, |a, b, out| Op::Mul { a, b, out })
    }

    /// `x * factor`.
    pub fn scale(&mut self, x: Slot, factor: f32) -> Slot {
        self.map_to(Dest::Fresh, "scale", x, |x, out| Op::Scale { x, factor, out })
    }

    /// `cap * tanh(x / cap)`.
    pub fn softcap(&mut self, x: Slot, cap: f32) -> Slot {
        self.map_to(Dest::Fresh, "softcap", x, |x, out| Op::Softcap { x, cap, out })
    }

    /// The rows whose logits are asked for: `x` `[rows, width]`, `rows` U32 `[logit_rows, 1]`; result
    /// `[logit_rows, width]`.
    pub fn select_rows(&mut self, x: Slot, rows: Slot) -> Slot {
        let made = self.try_select_rows(x, rows);
        self.settle(made)
    }

    /// A copy of `x` in memory of its own.
    pub fn copy(&mut self, x: Slot) -> Slot {
        let made = self.operand("copy", x).map(|value| {
            let out = self.temporary("copy", self.chain(), value.extent, value.dtype, value.groups);
            self.push(Op::Copy { x, out });
            out
        });
        self.settle(made)
    }

    /// Copies `x` to state of the same extent and type; views of the state's older contents become stale. Not in the
    /// body of a scan, which carries the state instead.
    pub fn store(&mut self, x: Slot, state: Slot) {
        if let Err(reject) = self.try_store(x, state) {
            self.broken(reject);
        }
    }

    /// F32 of any extent, every element `value`.
    pub fn fill(&mut self, value: f32, extent: Extent) -> Slot {
        let out = self.temporary("fill", self.chain(), extent, DType::F32, 1);
        self.push(Op::Fill { value, out });
        out
    }

    /// The sum of all elements; result F32 `[1]`.
    pub fn sum(&mut self, x: Slot) -> Slot {
        let made = self.float("sum", x).map(|_| {
            let out = self.temporary("sum", self.chain(), Extent::Fixed(1), DType::F32, 1);
            self.push(Op::Sum { x, out });
            out
        });
        self.settle(made)
    }

    /// A view of `x` whose rows are split into `heads` groups. Records no step.
    pub fn split_heads(&mut self, x: Slot, heads: usize) -> Slot {
        let made = self.operand("split_heads", x).and_then(|value| {
            if heads == 0 || value.width() % heads != 0 {
                let (slot, width) = (self.name_of(x), value.width());
                return Err(BuildError::Groups { at: self.at("split_heads"), slot, width, groups: heads }.into());
            }
            Ok(self.alias(value, heads, self.chain()))
        });
        self.settle(made)
    }

    /// A view of `x` whose rows are not split. Records no step.
    pub fn merge_heads(&mut self, x: Slot) -> Slot {
        let made = self.operand("merge_heads", x).map(|value| self.alias(value, 1, self.chain()));
        self.settle(made)
    }

    /// A view of elements `offset..offset + len` of a `Fixed` slot. Records no step.
    pub fn view(&mut self, x: Slot, offset: usize, len: usize) -> Slot {
        let made = self.try_view(x, offset, len);
        self.settle(made)
    }

    fn try_embed(&mut self, ids: Slot, table: Slot) -> Result<Slot, Reject> {
        let op = "embed";
        let id = self.of_dtype(op, ids, DType::U32)?;
        self.has_width(op, id, 1)?;
        let width = self.weight(op, table, 2, "[vocabulary, width]")?.shape[1];
        let out = self.temporary(op, self.chain(), id.extent.with_width(width), DType::F32, 1);
        self.push(Op::Embed { ids, table, out });
        Ok(out)
    }

    fn try_linear(&mut self, x: Slot, weights: &[(Slot, Option<Slot>)]) -> Result<Vec<Slot>, Reject> {
        let op = "linear";
        let value = self.float(op, x)?;
        let mut widths = Vec::with_capacity(weights.len());
        for &(weight, bias) in weights {
            let info = self.weight(op, weight, 2, "[out_features, in_features]")?;
            let (out_features, in_features) = (info.shape[0], info.shape[1]);
            if in_features != value.width() {
                return Err(self.wrong_shape(op, info, format!("[out_features, {}]", value.width())));
            }
            if let Some(bias) = bias {
                self.vector(op, bias, out_features)?;
            }
            widths.push(out_features);
        }
        let chain = self.chain();
        let parts: Vec<LinearPart> = weights
            .iter()
            .zip(widths)
            .map(|(&(weight, bias), width)| {
                let out = self.temporary(op, chain, value.extent.with_width(width), DType::F32, 1);
                LinearPart { weight, bias, out }
            })
            .collect();
        let outs = parts.iter().map(|part| part.out).collect();
        if !parts.is_empty() {
            self.push(Op::Linear { x, parts });
        }
        Ok(outs)
    }

    fn try_rope_table(&mut self, positions: Slot, inv_freq: Slot, scale: f32) -> Result<Slot, Reject> {
        let op = "rope_table";
        let position = self.of_dtype(op, positions, DType::U32)?;
        self.has_width(op, position, 1)?;
        let pairs = self.weight(op, inv_freq, 1, "[rotated / 2]")?.shape[0];
        self.of_dtype(op, inv_freq, DType::F32)?;
        let out = self.temporary(op, self.chain(), position.extent.with_width(2 * pairs), DType::F32, 1);
        self.push(Op::RopeTable { positions, inv_freq, scale, out });
        Ok(out)
    }

    fn try_attend(&mut self, layer: usize, qkv: [Slot; 3], state: Slot, spec: AttendSpec) -> Result<Slot, Reject> {
        let op = "attend";
        let [q, k, v] = [self.float(op, qkv[0])?, self.float(op, qkv[1])?, self.float(op, qkv[2])?];
        for value in [q, k, v] {
            if !matches!(value.extent, Extent::PerRow(_)) {
                return Err(self.wrong_rows(op, value, "one row per token of the pass"));
            }
        }
        let (heads, kv_heads, v_heads) = (q.groups, k.groups, v.groups);
        if kv_heads != v_heads || heads % kv_heads != 0 {
            return Err(BuildError::HeadGroups { at: self.at(op), heads, kv_heads, v_heads }.into());
        }
        let (q_head_dim, k_head_dim) = (q.head_dim(), k.head_dim());
        if q_head_dim != k_head_dim {
            return Err(BuildError::HeadDim { at: self.at(op), q_head_dim, k_head_dim }.into());
        }
        self.operand(op, state)?;
        let SlotInfo { kind, .. } = self.slots[state.index()];
        if kind != SlotKind::State {
            let (slot, expected, found) = (self.name_of(state), "state", kind.name());
            return Err(BuildError::Kind { at: self.at(op), slot, expected, found }.into());
        }
        if let Some(sinks) = spec.sinks {
            self.vector(op, sinks, heads)?;
        }
        if spec.window == Some(0) {
            return Err(BuildError::EmptyWindow { at: self.at(op) }.into());
        }
        let out = self.temporary(op, self.chain(), Extent::PerRow(heads * v.head_dim()), DType::F32, heads);
        self.push(Op::Attend { layer, q: q.slot, k: k.slot, v: v.slot, state, spec, out });
        Ok(out)
    }

    fn try_select_rows(&mut self, x: Slot, rows: Slot) -> Result<Slot, Reject> {
        let op = "select_rows";
        let value = self.operand(op, x)?;
        let Extent::PerRow(width) = value.extent else {
            return Err(self.wrong_rows(op, value, "one row per token of the pass"));
        };
        let selected = self.of_dtype(op, rows, DType::U32)?;
        self.has_extent(op, selected, Extent::PerLogitRow(1))?;
        let out = self.temporary(op, self.chain(), Extent::PerLogitRow(width), value.dtype, value.groups);
        self.push(Op::SelectRows { x, rows, out });
        Ok(out)
    }

    fn try_store(&mut self, x: Slot, state: Slot) -> Result<(), Reject> {
        let op = "store";
        let (value, target) = (self.operand(op, x)?, self.operand(op, state)?);
        let kind = self.slots[state.index()].kind;
        if kind != SlotKind::State {
            let (slot, expected, found) = (self.name_of(state), "state", kind.name());
            return Err(BuildError::Kind { at: self.at(op), slot, expected, found }.into());
        }
        if value.root == state {
            return Err(BuildError::AliasedOperand { at: self.at(op), slot: self.name_of(x) }.into());
        }
        self.like(op, value, target)?;
        if self.stack.iter().any(|chain| self.chains[chain.index()].is_body) {
            return Err(self.not_overwritable(op, target));
        }
        self.overwrite(state, op);
        self.push(Op::Copy { x, out: state });
        Ok(())
    }

    fn try_view(&mut self, x: Slot, offset: usize, len: usize) -> Result<Slot, Reject> {
        let op = "view";
        let value = self.operand(op, x)?;
        let Extent::Fixed(elements) = value.extent else {
            return Err(self.wrong_rows(op, value, "a fixed number of elements"));
        };
        if offset.checked_add(len).is_none_or(|end| end > elements) {
            let slot = self.name_of(x);
            return Err(BuildError::ViewRange { at: self.at(op), slot, offset, len, elements }.into());
        }
        let slot = self.alias(value, 1, self.chain());
        let info = &mut self.slots[slot.index()];
        info.extent = Extent::Fixed(len);
        info.offset += offset;
        Ok(slot)
    }
}
