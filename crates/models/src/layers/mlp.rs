//! Gated feed-forward block: `down(act(gate(x)) * up(x))`.

use plimsoll_program::{Activation, ProgramBuilder, Slot};

/// A linear weight with its optional bias.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinearWeights {
    /// `[out_features, in_features]`.
    pub(crate) weight: Slot,
    /// `[out_features]`.
    pub(crate) bias: Option<Slot>,
}

impl LinearWeights {
    /// Records `x W^T + bias`; `x`: `[rows, in_features]`, result `[rows, out_features]`.
    pub(crate) fn apply(&self, b: &mut ProgramBuilder, x: Slot) -> Slot {
        match self.bias {
            Some(bias) => b.linear_bias(x, self.weight, bias),
            None => b.linear(x, self.weight),
        }
    }
}

/// Weights of one gated feed-forward block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MlpWeights {
    pub(crate) gate: LinearWeights,
    pub(crate) up: LinearWeights,
    pub(crate) down: LinearWeights,
}

/// Records the block; `x`: `[rows, hidden_size]`, same shape out. Gate and up share one pass over `x`.
pub(crate) fn gated_mlp(b: &mut ProgramBuilder, x: Slot, w: &MlpWeights, activation: Activation) -> Slot {
    let gate_up = b.linear_many(x, &[(w.gate.weight, w.gate.bias), (w.up.weight, w.up.bias)]);
    let h = b.glu_assign(gate_up[0], gate_up[1], activation); // [rows, intermediate_size]
    w.down.apply(b, h)
}
