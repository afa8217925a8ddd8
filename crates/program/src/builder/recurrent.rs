//! Operations with a state of constant size: the short convolution and the gated delta rule.

use super::ProgramBuilder;
use super::check::{Reject, Value};
use crate::{BuildError, DType, Extent, HeadOrder, Op, Slot, SlotKind};

/// Operands of [`ProgramBuilder::gated_delta`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaOperands {
    /// `[rows, key_heads * head_dim]`, in `key_heads` groups.
    pub q: Slot,
    /// As `q`.
    pub k: Slot,
    /// `[rows, value_heads * v_head_dim]`, in `value_heads` groups.
    pub v: Slot,
    /// `[rows, value_heads]`: logarithm of the decay.
    pub decay: Slot,
    /// `[rows, value_heads]`.
    pub beta: Slot,
    /// Which key head a value head works with.
    pub order: HeadOrder,
}

impl ProgramBuilder {
    /// Depthwise causal convolution of `x` (`[rows, channels]`); `weight` is a constant `[channels * kernel]`, `state` F32 state (or a
    /// view of some) of `(kernel - 1) * channels` elements, whose older views become stale. Result F32 `[rows, channels]`.
    ///
    /// Not in the body of a scan.
    pub fn causal_conv(&mut self, layer: usize, x: Slot, weight: Slot, bias: Option<Slot>, state: Slot) -> Slot {
        let made = self.try_causal_conv(layer, x, weight, bias, state);
        self.settle(made)
    }

    /// The gated delta rule, see [`Op::GatedDelta`]; `state` is F32 state (or a view of some) of
    /// `value_heads * head_dim * v_head_dim` elements, whose older views become stale. Result as `v`.
    ///
    /// Not in the body of a scan.
    pub fn gated_delta(&mut self, layer: usize, operands: DeltaOperands, state: Slot) -> Slot {
        let made = self.try_gated_delta(layer, operands, state);
        self.settle(made)
    }

    fn try_causal_conv(
        &mut self,
        layer: usize,
        x: Slot,
        weight: Slot,
        bias: Option<Slot>,
        state: Slot,
    ) -> Result<Slot, Reject> {
        let op = "causal_conv";
        let value = self.row_per_token(op, x)?;
        let channels = value.width();
        let info = self.weight(op, weight, 1, "[channels * kernel]")?;
        let taps = info.shape[0];
        if channels == 0 || taps == 0 || !taps.is_multiple_of(channels) {
            return Err(self.wrong_shape(op, info, format!("[{channels} * kernel]")));
        }
        if let Some(bias) = bias {
            self.vector(op, bias, channels)?;
        }
        self.update_state(op, state, taps - channels)?;
        let out = self.temporary(op, self.chain(), value.extent, DType::F32, value.groups);
        self.push(Op::CausalConv { layer, x, weight, bias, state, out });
        Ok(out)
    }

    fn try_gated_delta(&mut self, layer: usize, operands: DeltaOperands, state: Slot) -> Result<Slot, Reject> {
        let op = "gated_delta";
        let DeltaOperands { q, k, v, decay, beta, order } = operands;
        let [query, key, value] = [self.row_per_token(op, q)?, self.row_per_token(op, k)?, self.row_per_token(op, v)?];
        let (key_heads, k_heads, value_heads) = (query.groups, key.groups, value.groups);
        if key_heads != k_heads || !value_heads.is_multiple_of(key_heads) {
            return Err(BuildError::DeltaHeads { at: self.at(op), key_heads, k_heads, value_heads }.into());
        }
        self.has_extent(op, key, query.extent)?;
        for slot in [decay, beta] {
            let factors = self.row_per_token(op, slot)?;
            self.has_width(op, factors, value_heads)?;
        }
        self.update_state(op, state, query.head_dim().saturating_mul(value.width()))?;
        let out = self.temporary(op, self.chain(), value.extent, DType::F32, value_heads);
        self.push(Op::GatedDelta { layer, q, k, v, decay, beta, order, state, out });
        Ok(out)
    }

    /// An F32 operand with one row per token of the pass.
    fn row_per_token(&self, op: &'static str, slot: Slot) -> Result<Value, Reject> {
        let value = self.of_dtype(op, slot, DType::F32)?;
        match value.extent {
            Extent::PerRow(_) => Ok(value),
            Extent::Fixed(_) | Extent::PerLogitRow(_) => {
                Err(self.wrong_rows(op, value, "one row per token of the pass"))
            }
        }
    }

    /// Checks state that a step updates, and declares what was read of it so far stale.
    fn update_state(&mut self, op: &'static str, state: Slot, elements: usize) -> Result<(), Reject> {
        let value = self.of_dtype(op, state, DType::F32)?;
        let kind = self.slots[value.root.index()].kind;
        if kind != SlotKind::State {
            let (slot, expected, found) = (self.name_of(state), "state", kind.name());
            return Err(BuildError::Kind { at: self.at(op), slot, expected, found }.into());
        }
        self.has_extent(op, value, Extent::Fixed(elements))?;
        if self.stack.iter().any(|chain| self.chains[chain.index()].is_body) {
            return Err(self.not_overwritable(op, value));
        }
        self.overwrite(value.root, op);
        Ok(())
    }
}
