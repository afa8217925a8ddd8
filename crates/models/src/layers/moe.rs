//! Mixture of experts: a router chooses gated units for each row (Shazeer et al. 2017, arXiv:1701.06538), perhaps beside one that all rows share.

use super::mlp::{MlpWeights, gated_mlp};
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
