//! Gated feed-forward block: `down(act(gate(x)) * up(x))`.

use crate::checkpoint::weights::{Bias, Weights};
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

impl MlpWeights {
    /// Declares `blk.<layer>.ffn_gate`, `ffn_up` and `ffn_down`.
    pub(crate) fn declare(
        b: &mut ProgramBuilder,
        w: &mut Weights<'_>,
        layer: usize,
        [hidden_size, intermediate_size]: [usize; 2],
        bias: Bias,
    ) -> Self {
        let wide = [intermediate_size, hidden_size];
        let gate = w.linear(b, &format!("blk.{layer}.ffn_gate"), wide, bias);
        let up = w.linear(b, &format!("blk.{layer}.ffn_up"), wide, bias);
        let down = w.linear(b, &format!("blk.{layer}.ffn_down"), [hidden_size, intermediate_size], bias);
        Self { gate, up, down }
    }
}

/// Records the block; `x`: `[rows, hidden_size]`, same shape out. Gate and up share one pass over `x`.
pub(crate) fn gated_mlp(b: &mut ProgramBuilder, x: Slot, w: &MlpWeights, activation: Activation) -> Slot {
    let gate_up = b.linear_many(x, &[(w.gate.weight, w.gate.bias), (w.up.weight, w.up.bias)]);
    let h = b.glu_assign(gate_up[0], gate_up[1], activation); // [rows, intermediate_size]
    w.down.apply(b, h)
}
