//! Steps with a state of constant size. A pass reads the state as it was and writes the next; the sequences take it over when the pass is done.

use super::Running;
use crate::{
    executor::{
        cost::{CpuSettings, delta_shape},
        observer::StepObserver,
        pass::ExecError,
    },
    kernels::{
        conv::{self, Taps},
        delta::{self, DeltaRows},
    },
};
use bytemuck::{cast_slice, cast_slice_mut};
use plimsoll_kvcache::StateStep;
use plimsoll_program::{DeltaOperands, Slot, Step};
use std::ops::Range;

/// Multiply-adds of a recurrence between two looks at the cancel flag: some hundredths of a second, whatever the instruction set.
pub(in crate::executor::cpu) fn part_work(settings: &CpuSettings) -> u64 {
    let work = if settings.attention_isa == plimsoll_attention::Isa::Scalar { 1 << 21 } else { 1 << 26 };
    work * settings.threads.max(1) as u64
}

impl<O: StepObserver> Running<'_, '_, O> {
    /// Where a step's part lies in the state of its layer.
    fn state_part(&self, state: Slot) -> Range<usize> {
        let (_, start) = self.program.root(state);
        start..start + self.program.elements(state, &self.dims)
    }

    pub(super) fn causal_conv(
        &mut self,
        layer: usize,
        x: Slot,
        (weight, bias): (Slot, Option<Slot>),
        state: Slot,
        out: Slot,
    ) -> Result<(), ExecError> {
        let (channels, part) = (self.program.slot(x).extent.width(), self.state_part(state));
        let weight = Self::vector(self.model, weight);
        let bias = bias.map(|bias| Self::vector(self.model, bias));
        let taps = Taps { weight, bias, channels };
        let ([x], [out]) = self.arena.borrow([self.range(x)], [self.range(out)]);
        let (x, out) = (cast_slice::<u8, f32>(x), cast_slice_mut::<u8, f32>(out));
        let mut row = 0;
        for segment in self.segments.iter_mut() {
            let rows = segment.tokens.len();
            let run = |StateStep { rows, before, after }: StateStep<'_>| {
                let of = (row + rows.start) * channels..(row + rows.end) * channels;
                let (before, after) = (&before[part.clone()], &mut after[part.clone()]);
                let (x, out) = (&x[of.clone()], &mut out[of]);
                conv::causal_conv(x, &taps, before, after, out, self.settings.threads);
            };
            let fault = |source| ExecError::Kv { layer, source };
            segment.sequence.advance(layer, segment.start, rows, run).map_err(fault)?;
            row += rows;
        }
        Ok(())
    }

    pub(super) fn gated_delta(
        &mut self,
        step: &Step,
        layer: usize,
        operands: DeltaOperands,
        state: Slot,
        out: Slot,
    ) -> Result<(), ExecError> {
        let DeltaOperands { q, k, v, decay, beta, order } = operands;
        let (shape, part) = (delta_shape(self.program, q, v, order), self.state_part(state));
        let (isa, threads) = (self.settings.attention_isa, self.settings.threads);
        let reads = [q, k, v, decay, beta].map(|slot| self.range(slot));
        let writes = [self.range(out), self.scratch(step)];
        let (values, [out, scratch]) = self.arena.borrow(reads, writes);
        let [q, k, v, decay, beta] = values.map(cast_slice::<u8, f32>);
        let (out, scratch) = (cast_slice_mut::<u8, f32>(out), cast_slice_mut(scratch));
        let (keys, width) = (shape.key_heads * shape.head_dim, shape.value_heads * shape.v_head_dim);
        // What a column knows, its change, its sum.
        let row_work = 3 * (width * shape.head_dim) as u64;
        let part_rows = usize::try_from(self.part_work / row_work.max(1)).unwrap_or(usize::MAX).max(1);
        let cancel = self.cancel;
        let (mut row, mut is_cancelled) = (0, false);
        for segment in self.segments.iter_mut() {
            let rows = segment.tokens.len();
            let run = |StateStep { rows: all, before, after }: StateStep<'_>| {
                debug_assert!(!all.is_empty(), "the state after it is written by its rows");
                let mut before = Some(&before[part.clone()]);
                for start in all.clone().step_by(part_rows) {
                    is_cancelled |= cancel.is_cancelled();
                    if is_cancelled {
                        return;
                    }
                    let end = start.saturating_add(part_rows).min(all.end);
                    let of = |width: usize| (row + start) * width..(row + end) * width;
                    let values = DeltaRows {
                        q: &q[of(keys)],
                        k: &k[of(keys)],
                        v: &v[of(width)],
                        decay: &decay[of(shape.value_heads)],
                        beta: &beta[of(shape.value_heads)],
                    };
                    let states = (before.take(), &mut after[part.clone()]);
                    let out = &mut out[of(width)];
                    delta::gated_delta(&shape, values, states, out, scratch, isa, threads);
                }
            };
            let fault = |source| ExecError::Kv { layer, source };
            segment.sequence.advance(layer, segment.start, rows, run).map_err(fault)?;
            if is_cancelled {
                return Err(ExecError::Cancelled);
            }
            row += rows;
        }
        Ok(())
    }
}
