//! Steps with a state of constant size, token by token from the formulas.

use super::{Result, Running};
use candle_core::{DType, Tensor};
use plimsoll_program::{DeltaOperands, HeadOrder, Slot};

impl Running<'_> {
    /// The part of a sequence's state that a slot names; zeros at the start of a sequence.
    fn state(&self, segment: usize, start: usize, slot: Slot) -> Result<Tensor> {
        match self.kv[segment].states.get(slot.index()) {
            Some(Some(state)) if start > 0 => Ok(state.clone()),
            _ => Ok(Tensor::zeros(self.shape(slot).1, DType::F32, self.device)?),
        }
    }

    fn set_state(&mut self, segment: usize, slot: Slot, value: Tensor) {
        let states = &mut self.kv[segment].states;
        if states.len() <= slot.index() {
            states.resize(slot.index() + 1, None);
        }
        states[slot.index()] = Some(value);
    }

    pub(super) fn causal_conv(
        &mut self,
        x: Slot,
        weight: Slot,
        bias: Option<Slot>,
        state: Slot,
        out: Slot,
    ) -> Result<()> {
        let x = self.get(x)?;
        let channels = x.dim(1)?;
        let weight = self.get(weight)?.reshape(((), channels))?;
        // `[channels * kernel]` is `[channels, kernel]`; rows of taps are wanted.
        let kernel = weight.dim(0)?;
        let weight = weight.reshape((channels, kernel))?.t()?.contiguous()?;
        let bias = bias.map(|bias| self.get(bias)).transpose()?;
        let mut results = Vec::with_capacity(self.spans.len());
        let mut first = 0;
        for (segment, (start, rows)) in self.spans.clone().into_iter().enumerate() {
            let before = self.state(segment, start, state)?.reshape((kernel - 1, channels))?;
            let all = Tensor::cat(&[before, x.narrow(0, first, rows)?], 0)?;
            first += rows;
            let mut sum = Tensor::zeros((rows, channels), DType::F32, self.device)?;
            for tap in 0..kernel {
                sum = (sum + all.narrow(0, tap, rows)?.broadcast_mul(&weight.narrow(0, tap, 1)?)?)?;
            }
            if let Some(bias) = &bias {
                sum = sum.broadcast_add(bias)?;
            }
            results.push(sum);
            self.set_state(segment, state, all.narrow(0, rows, kernel - 1)?.flatten_all()?);
        }
        self.set(out, Tensor::cat(&results, 0)?)
    }

    pub(super) fn gated_delta(&mut self, operands: DeltaOperands, state: Slot, out: Slot) -> Result<()> {
        let DeltaOperands { q, k, v, decay, beta, order } = operands;
        let [q, k, v] = [self.heads(q)?, self.heads(k)?, self.heads(v)?];
        let [decay, beta] = [self.get(decay)?, self.get(beta)?];
        let ((_, key_heads, head_dim), (_, value_heads, v_head_dim)) = (q.dims3()?, v.dims3()?);
        let group = value_heads / key_heads;
        let mut results = Vec::new();
        let mut first = 0;
        for (segment, (start, rows)) in self.spans.clone().into_iter().enumerate() {
            let before = self.state(segment, start, state)?;
            let mut matrices = before.reshape((value_heads, head_dim, v_head_dim))?;
            for row in first..first + rows {
                let keys = |x: &Tensor| {
                    let x = x.narrow(0, row, 1)?;
                    let repeated = match order {
                        HeadOrder::Grouped => {
                            x.reshape((key_heads, 1, head_dim))?.expand((key_heads, group, head_dim))?
                        }
                        HeadOrder::Tiled => {
                            x.reshape((1, key_heads, head_dim))?.expand((group, key_heads, head_dim))?
                        }
                    };
                    repeated.reshape((value_heads, head_dim, 1))
                };
                let factor = |x: &Tensor| x.narrow(0, row, 1)?.reshape((value_heads, 1, 1));
                let (k, q) = (keys(&k)?, keys(&q)?);
                let v = v.narrow(0, row, 1)?.reshape((value_heads, 1, v_head_dim))?;
                matrices = matrices.broadcast_mul(&factor(&decay)?.exp()?)?;
                let known = matrices.broadcast_mul(&k)?.sum_keepdim(1)?;
                let delta = (v - known)?.broadcast_mul(&factor(&beta)?)?;
                matrices = (matrices + k.broadcast_mul(&delta)?)?;
                results.push(matrices.broadcast_mul(&q)?.sum_keepdim(1)?.reshape((1, value_heads * v_head_dim))?);
            }
            first += rows;
            self.set_state(segment, state, matrices.flatten_all()?);
        }
        self.set(out, Tensor::cat(&results, 0)?)
    }
}
