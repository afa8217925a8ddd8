//! Mixture of experts: a router chooses gated units for each row (Shazeer et al. 2017, arXiv:1701.06538), perhaps beside one that all rows share.

pub(crate) mod config;

use self::config::MoeConfig;
use super::mlp::{MlpWeights, gated_mlp};
use crate::checkpoint::{
    source::{Part, Rows, Source},
    weights::{Bias, Dialect, Weights},
};
use plimsoll_program::{Activation, ProgramBuilder, RouteSpec, Slot, Unary};

/// Weights of one block of experts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MoeWeights {
    /// `[experts, hidden_size]`.
    pub(crate) router: Slot,
    /// `[experts, intermediate_size, hidden_size]`.
    pub(crate) gate: Slot,
    /// As `gate`.
    pub(crate) up: Slot,
    /// `[experts, hidden_size, intermediate_size]`.
    pub(crate) down: Slot,
    /// What every row goes through as well.
    pub(crate) shared: Option<SharedExpert>,
}

/// A unit that all rows go through.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SharedExpert {
    pub(crate) mlp: MlpWeights,
    /// `[1, hidden_size]`: its result is multiplied by the sigmoid of this product.
    pub(crate) gate: Option<Slot>,
}

impl MoeWeights {
    /// Declares the block of `layer` under GGUF's names.
    pub(crate) fn declare(
        b: &mut ProgramBuilder,
        w: &mut Weights<'_>,
        layer: usize,
        hidden_size: usize,
        cfg: &MoeConfig,
    ) -> Self {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (experts, width) = (cfg.num_experts, cfg.moe_intermediate_size);
        let router = w.kept_matrix(b, &name("ffn_gate_inp.weight"), [experts, hidden_size]);
        let gate = w.experts(b, &name("ffn_gate_exps.weight"), [experts, width, hidden_size]);
        let up = w.experts(b, &name("ffn_up_exps.weight"), [experts, width, hidden_size]);
        let down = w.experts(b, &name("ffn_down_exps.weight"), [experts, hidden_size, width]);
        let shared = cfg.shared_expert_intermediate_size.map(|width| {
            let mut linear = |part: &str, shape| w.linear(b, &name(part), shape, Bias::No);
            let mlp = MlpWeights {
                gate: linear("ffn_gate_shexp", [width, hidden_size]),
                up: linear("ffn_up_shexp", [width, hidden_size]),
                down: linear("ffn_down_shexp", [hidden_size, width]),
            };
            // One row; GGUF files have it as a vector.
            let canonical = name("ffn_gate_inp_shexp.weight");
            let shape = match w.dialect() {
                Dialect::Gguf => vec![hidden_size],
                Dialect::HuggingFace => vec![1, hidden_size],
            };
            let part = Part { tensor: w.stored_name(&canonical), shape, rows: Rows::All };
            let gate = w.declare(b, &canonical, &[1, hidden_size], Source::of(vec![part]).kept());
            SharedExpert { mlp, gate: Some(gate) }
        });
        Self { router, gate, up, down, shared }
    }
}

/// Records the block; `x`: `[rows, hidden_size]`, same shape out.
pub(crate) fn moe(b: &mut ProgramBuilder, x: Slot, w: &MoeWeights, spec: RouteSpec, activation: Activation) -> Slot {
    let logits = b.linear(x, w.router); // [rows, experts]
    let (ids, weights) = b.top_k(logits, spec); // [rows, k]
    let gate = b.expert_linear(x, ids, w.gate); // [rows, k, intermediate_size]
    let up = b.expert_linear(x, ids, w.up);
    let h = b.glu_assign(gate, up, activation);
    let y = b.expert_linear(h, ids, w.down); // [rows, k, hidden_size]
    let sum = b.combine_experts(y, weights); // [rows, hidden_size]
    let Some(shared) = &w.shared else { return sum };
    let y = gated_mlp(b, x, &shared.mlp, activation);
    let y = match shared.gate {
        Some(gate) => {
            let gate = b.linear(x, gate); // [rows, 1]
            let gate = b.unary_assign(gate, Unary::Sigmoid);
            b.scale_rows_assign(y, gate)
        }
        None => y,
    };
    b.add_assign(sum, y)
}
