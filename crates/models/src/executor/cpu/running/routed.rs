//! Steps of mixtures of experts.

use super::Running;
use crate::{
    executor::{cost::expert_shape, observer::StepObserver, pass::ExecError},
    kernels::{columns, experts},
    model::{Constant, Model},
};
use bytemuck::{cast_slice, cast_slice_mut};
use plimsoll_linear::PackedWeight;
use plimsoll_program::{RouteSpec, Slot, Step};

impl<O: StepObserver> Running<'_, '_, O> {
    fn stack(model: &Model, slot: Slot) -> &[PackedWeight] {
        match model.constant(slot) {
            Some(Constant::Experts(weights)) => weights,
            _ => unreachable!("the builder takes only constants of three axes as stacks"),
        }
    }

    pub(super) fn top_k(&mut self, step: &Step, logits: Slot, spec: &RouteSpec, [ids, weights]: [Slot; 2]) {
        let experts = self.program.slot(logits).extent.width();
        let writes = [self.range(ids), self.range(weights), self.scratch(step)];
        let (isa, threads) = (self.settings.attention_isa, self.settings.threads);
        let ([logits], [ids, weights, scratch]) = self.arena.borrow([self.range(logits)], writes);
        let (logits, scratch) = (cast_slice(logits), cast_slice_mut(scratch));
        let chosen = (cast_slice_mut(ids), cast_slice_mut(weights));
        experts::top_k(logits, experts, spec, chosen, scratch, isa, threads);
    }

    pub(super) fn expert_linear(
        &mut self,
        step: &Step,
        x: Slot,
        ids: Slot,
        weight: Slot,
        out: Slot,
    ) -> Result<(), ExecError> {
        let weight_type = self.model.weight_types().of(weight);
        let shape = expert_shape(self.program, ids, weight, weight_type, &self.dims);
        let (reads, writes) = ([self.range(x), self.range(ids)], [self.range(out), self.scratch(step)]);
        let weights = Self::stack(self.model, weight);
        let ([x, ids], [out, scratch]) = self.arena.borrow(reads, writes);
        let out = cast_slice_mut(out);
        let (settings, cancel) = (self.settings.linear(), self.cancel);
        let (x, ids) = (cast_slice(x), cast_slice(ids));
        let is_whole =
            experts::expert_linear(&shape, x, ids, weights, out, scratch, settings, || cancel.is_cancelled());
        if is_whole { Ok(()) } else { Err(ExecError::Cancelled) }
    }

    pub(super) fn combine_experts(&mut self, x: Slot, weights: Slot, out: Slot) {
        let (k, width) = (self.program.slot(weights).extent.width(), self.program.slot(out).extent.width());
        let (reads, writes) = ([self.range(x), self.range(weights)], [self.range(out)]);
        let ([x, weights], [out]) = self.arena.borrow(reads, writes);
        experts::combine(cast_slice(x), cast_slice(weights), k, width, cast_slice_mut(out), self.settings.threads);
    }

    pub(super) fn scale_rows(&mut self, x: Slot, factor: Slot, out: Slot) {
        let (width, threads) = (self.program.slot(out).extent.width(), self.settings.threads);
        self.copy(x, out);
        let ([factor], [out]) = self.arena.borrow([self.range(factor)], [self.range(out)]);
        experts::scale_rows(cast_slice_mut(out), cast_slice(factor), width, threads);
    }

    pub(super) fn select_columns(&mut self, x: Slot, offset: usize, out: Slot) {
        let (info, picked) = (self.program.slot(x), self.program.slot(out));
        // Elements may be of any size: they move as bytes where they are not f32.
        let size = usize::try_from(info.dtype.bytes()).expect("a few bytes");
        let (head_dim, len) = (info.head_dim() * size, picked.head_dim() * size);
        let ([x], [out]) = self.arena.borrow([self.range(x)], [self.range(out)]);
        columns::select_columns(x, head_dim, offset * size, len, out, self.settings.threads);
    }
}
