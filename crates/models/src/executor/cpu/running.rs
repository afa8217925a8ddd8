//! One pass under way: its steps, on the kernels.

mod recurrent;
mod routed;

use super::LiveTemporaries;
use crate::{
    executor::{
        cost::{CpuSettings, attn_shape},
        observer::{StepEvent, StepObserver},
        pass::{ExecError, LogitRows, Segment},
    },
    kernels::{
        arena::{Arena, OPERANDS},
        elementwise, for_rows, norm, rope,
    },
    model::{Constant, Model},
};
use bytemuck::{cast_slice, cast_slice_mut};
use plimsoll_attention::{AttnParams, Route};
use plimsoll_kvcache::BlockTable;
use plimsoll_linear::PackedWeight;
use plimsoll_prefill::CancelToken;
use plimsoll_program::{
    Activation, ArenaLayout, ChainId, Condition, DType, DeltaOperands, Dims, LinearPart, Op, Program, Slot, SlotKind,
    Step,
};
use smallvec::SmallVec;
use std::ops::Range;

pub(super) use recurrent::part_work;

/// The bytes of a slot in the arena.
pub(super) fn byte_range(program: &Program, layout: &ArenaLayout, slot: Slot, dims: &Dims) -> Range<usize> {
    let start = layout.offset(slot).expect("only slots in the arena are asked for by range");
    as_usize(start)..as_usize(start + program.bytes(slot, dims))
}

fn as_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("the arena fits the address space")
}

/// A product with two weights, and the gated unit that is made of its outputs.
struct Gated<'p> {
    x: Slot,
    parts: [&'p LinearPart; 2],
    activation: Activation,
}

/// One pass under way.
pub(super) struct Running<'p, 's, O> {
    pub(super) program: &'p Program,
    pub(super) model: &'p Model,
    pub(super) settings: CpuSettings,
    pub(super) layout: &'p ArenaLayout,
    pub(super) arena: &'p mut Arena,
    pub(super) live: &'p mut LiveTemporaries,
    pub(super) blocks: &'p mut BlockTable,
    pub(super) cancel: &'p CancelToken,
    pub(super) part_work: u64,
    pub(super) dims: Dims,
    pub(super) segments: &'p mut [Segment<'s>],
    pub(super) observer: &'p mut O,
}

impl<'p, O: StepObserver> Running<'p, '_, O> {
    pub(super) fn write_inputs(&mut self, wanted: LogitRows) {
        let ports = self.model.architecture().ports;
        let ranges = [ports.ids, ports.positions, ports.logit_rows].map(|slot| self.range(slot));
        let ([], [ids, positions, logit_rows]) = self.arena.borrow([], ranges);
        let (ids, positions) = (cast_slice_mut::<u8, u32>(ids), cast_slice_mut::<u8, u32>(positions));
        let mut row = 0;
        for segment in self.segments.iter() {
            for (index, &token) in segment.tokens.iter().enumerate() {
                ids[row] = token;
                positions[row] = as_u32(segment.start + index);
                row += 1;
            }
        }
        let indices = wanted.indices(self.segments.iter().map(|segment| segment.tokens.len()));
        for (out, index) in cast_slice_mut::<u8, u32>(logit_rows).iter_mut().zip(indices) {
            *out = as_u32(index);
        }
    }

    pub(super) fn chain(&mut self, chain: ChainId, depth: usize) -> Result<(), ExecError> {
        let program = self.program;
        // Whether the present step was done with the one before it.
        let mut done = false;
        for (index, step) in program.chain(chain).steps().iter().enumerate() {
            if self.cancel.is_cancelled() {
                return Err(ExecError::Cancelled);
            }
            let span = tracing::trace_span!("step", step = index, op = step.op.name(), rows = self.dims.rows);
            let _entered = span.enter();
            self.live.written(program, step);
            if done {
                done = false;
            } else if let Some(gated) = self.gated_with_next(chain, index) {
                self.linear_gated(step, &gated)?;
                done = true;
            } else {
                self.step(step, depth)?;
            }
            if O::ENABLED {
                self.observe(step, index, depth);
            }
            self.live.released(program.release(chain, index));
        }
        Ok(())
    }

    /// The gated unit that the next step makes of both outputs of this one, in place of the first, if nothing else reads them: one call can do
    /// both steps then, and the second output need not go to memory. Who watches each step sees each step.
    fn gated_with_next(&self, chain: ChainId, index: usize) -> Option<Gated<'p>> {
        let steps = self.program.chain(chain).steps();
        let (Op::Linear { x, parts }, Some(next)) = (&steps[index].op, steps.get(index + 1)) else { return None };
        let ([a, b], &Op::Glu { gate, up, activation, out }) = (&parts[..], &next.op) else { return None };
        let is_one = !O::ENABLED
            && (a.out, b.out) == (gate, up)
            && self.range(gate) == self.range(out)
            && self.program.release(chain, index + 1).contains(&up);
        is_one.then_some(Gated { x: *x, parts: [a, b], activation })
    }

    fn observe(&mut self, step: &Step, index: usize, depth: usize) {
        let program = self.program;
        let mut outputs: SmallVec<[&[u8]; OPERANDS]> = SmallVec::new();
        step.op.visit(|slot, access| {
            if access == plimsoll_program::Access::Write && program.slot(program.root(slot).0).kind.in_arena() {
                outputs.push(self.arena.read(byte_range(program, self.layout, slot, &self.dims)));
            }
        });
        let (op, label) = (step.op.name(), program.label(step.label));
        self.observer.step(&StepEvent { step: index, depth, label, op, dims: self.dims, outputs: &outputs });
    }

    fn range(&self, slot: Slot) -> Range<usize> {
        byte_range(self.program, self.layout, slot, &self.dims)
    }

    fn scratch(&self, step: &Step) -> Range<usize> {
        let range = self.layout.scratch(step.id);
        as_usize(range.start)..as_usize(range.end)
    }

    fn matrix(model: &Model, slot: Slot) -> &PackedWeight {
        match model.constant(slot) {
            Some(Constant::Matrix(weight)) => weight,
            _ => unreachable!("the builder takes only constants of two axes as matrices"),
        }
    }

    fn vector(model: &Model, slot: Slot) -> &[f32] {
        match model.constant(slot) {
            Some(Constant::Vector(values)) => values,
            _ => unreachable!("the builder takes only constants of one axis as vectors"),
        }
    }

    /// One weight of a product, and where its output goes.
    fn output<'a>(model: &'a Model, part: &LinearPart, out: &'a mut [u8]) -> plimsoll_linear::Output<'a> {
        plimsoll_linear::Output {
            weight: Self::matrix(model, part.weight),
            bias: part.bias.map(|bias| Self::vector(model, bias)),
            out: cast_slice_mut(out),
        }
    }

    /// `out` as the operand `x` of an in-place kernel: `x` is copied there first unless it is there already.
    fn in_place(&mut self, x: Slot, out: Slot) -> &mut [f32] {
        self.copy(x, out);
        let ([], [out]) = self.arena.borrow([], [self.range(out)]);
        cast_slice_mut(out)
    }

    fn copy(&mut self, x: Slot, out: Slot) {
        let (from, to) = (self.range(x), self.range(out));
        if from != to {
            let ([from], [to]) = self.arena.borrow([from], [to]);
            to.copy_from_slice(from);
        }
    }

    /// An in-place kernel with a second operand, which may be a constant.
    fn binary(&mut self, a: Slot, b: Slot, out: Slot, kernel: impl Fn(&mut [f32], &[f32])) {
        self.copy(a, out);
        let to = self.range(out);
        if self.program.slot(b).kind == SlotKind::Constant {
            let ([], [out]) = self.arena.borrow([], [to]);
            kernel(cast_slice_mut(out), Self::vector(self.model, b));
        } else {
            let ([b], [out]) = self.arena.borrow([self.range(b)], [to]);
            kernel(cast_slice_mut(out), cast_slice(b));
        }
    }

    fn step(&mut self, step: &Step, depth: usize) -> Result<(), ExecError> {
        let (isa, threads) = (self.settings.attention_isa, self.settings.threads);
        match &step.op {
            Op::Embed { ids, table, out } => {
                let ranges = ([self.range(*ids)], [self.range(*out)]);
                let width = self.program.slot(*out).extent.width();
                let ([ids], [out]) = self.arena.borrow(ranges.0, ranges.1);
                let (table, ids) = (Self::matrix(self.model, *table), cast_slice::<u8, u32>(ids));
                for_rows(cast_slice_mut(out), width, threads, |first, out| {
                    for (row, &id) in out.chunks_exact_mut(width).zip(&ids[first..]) {
                        table.dequantize_row(id as usize, row);
                    }
                });
            }
            Op::Linear { x, parts } => self.linear(step, *x, parts)?,
            Op::RmsNorm { x, weight, eps, out } => {
                let (from, to) = (self.range(*x), self.range(*out));
                let weight = Self::vector(self.model, *weight);
                if from == to {
                    let ([], [x]) = self.arena.borrow([], [to]);
                    norm::rms_norm_in_place(cast_slice_mut(x), weight, *eps, threads);
                } else {
                    let ([x], [out]) = self.arena.borrow([from], [to]);
                    norm::rms_norm(cast_slice(x), weight, *eps, cast_slice_mut(out), threads);
                }
            }
            Op::RopeTable { positions, inv_freq, scale, out } => {
                let ranges = ([self.range(*positions)], [self.range(*out)]);
                let ([positions], [out]) = self.arena.borrow(ranges.0, ranges.1);
                let inv_freq = Self::vector(self.model, *inv_freq);
                rope::rope_table(cast_slice(positions), inv_freq, *scale, cast_slice_mut(out));
            }
            Op::Rope { x, table, layout, out } => {
                self.copy(*x, *out);
                let (heads, rotary_dim) = (self.program.slot(*x).groups, self.program.slot(*table).extent.width());
                let ranges = ([self.range(*table)], [self.range(*out)]);
                let ([table], [out]) = self.arena.borrow(ranges.0, ranges.1);
                rope::rotate(cast_slice_mut(out), cast_slice(table), heads, rotary_dim, *layout, threads);
            }
            Op::Attend { .. } => self.attend(step)?,
            Op::Glu { gate, up, activation, out } => {
                self.binary(*gate, *up, *out, |gate, up| elementwise::glu(gate, up, *activation, isa, threads));
            }
            Op::Unary { x, function, out } => elementwise::unary(self.in_place(*x, *out), *function, isa, threads),
            Op::Add { a, b, out } => self.binary(*a, *b, *out, |a, b| elementwise::add(a, b, threads)),
            Op::Mul { a, b, out } => self.binary(*a, *b, *out, |a, b| elementwise::mul(a, b, threads)),
            Op::Scale { x, factor, out } => elementwise::scale(self.in_place(*x, *out), *factor, threads),
            Op::Softcap { x, cap, out } => elementwise::softcap(self.in_place(*x, *out), *cap, threads),
            Op::SelectRows { x, rows, out } => {
                let ranges = ([self.range(*x), self.range(*rows)], [self.range(*out)]);
                let row_bytes = as_usize(self.program.slot(*x).dtype.bytes()) * self.program.slot(*x).extent.width();
                let ([x, rows], [out]) = self.arena.borrow(ranges.0, ranges.1);
                for (out, &row) in out.chunks_exact_mut(row_bytes).zip(cast_slice::<u8, u32>(rows)) {
                    out.copy_from_slice(&x[row as usize * row_bytes..][..row_bytes]);
                }
            }
            Op::Copy { x, out } => self.copy(*x, *out),
            Op::Fill { value, out } => {
                let ([], [out]) = self.arena.borrow([], [self.range(*out)]);
                cast_slice_mut::<u8, f32>(out).fill(*value);
            }
            Op::Sum { x, out } => {
                let ranges = ([self.range(*x)], [self.range(*out)]);
                let ([x], [out]) = self.arena.borrow(ranges.0, ranges.1);
                cast_slice_mut::<u8, f32>(out)[0] = elementwise::sum(cast_slice(x));
            }
            Op::TopK { logits, spec, ids, weights } => self.top_k(step, *logits, spec, [*ids, *weights]),
            Op::ExpertLinear { x, ids, weight, out } => self.expert_linear(step, *x, *ids, *weight, *out)?,
            Op::CombineExperts { x, weights, out } => self.combine_experts(*x, *weights, *out),
            Op::ScaleRows { x, factor, out } => self.scale_rows(*x, *factor, *out),
            Op::SelectColumns { x, offset, out } => self.select_columns(*x, *offset, *out),
            Op::CausalConv { layer, x, weight, bias, state, out } => {
                self.causal_conv(*layer, *x, (*weight, *bias), *state, *out)?;
            }
            Op::GatedDelta { layer, q, k, v, decay, beta, order, state, out } => {
                let operands = DeltaOperands { q: *q, k: *k, v: *v, decay: *decay, beta: *beta, order: *order };
                self.gated_delta(step, *layer, operands, *state, *out)?;
            }
            Op::If { condition, then_chain, else_chain } => {
                let holds = match condition {
                    Condition::RowsAtMost(rows) => self.dims.rows <= *rows,
                    Condition::Nonzero(slot) => {
                        let bytes = self.arena.read(self.range(*slot));
                        match self.program.slot(*slot).dtype {
                            // -0.0 is zero, though its bytes are not.
                            DType::F32 => cast_slice::<u8, f32>(bytes).iter().any(|&value| value != 0.0),
                            DType::F16 | DType::Bf16 => {
                                cast_slice::<u8, u16>(bytes).iter().any(|&bits| bits & 0x7fff != 0)
                            }
                            DType::U32 | DType::U8 => bytes.iter().any(|&byte| byte != 0),
                        }
                    }
                };
                self.chain(if holds { *then_chain } else { *else_chain }, depth + 1)?;
            }
            Op::Scan { body, inputs, carries, outputs } => {
                for row in 0..self.dims.rows {
                    for input in inputs {
                        self.copy_row(input.source, row, input.row, false);
                    }
                    self.chain(*body, depth + 1)?;
                    for output in outputs {
                        self.copy_row(output.stacked, row, output.row, true);
                    }
                    for carry in carries {
                        self.copy(carry.next, carry.carry);
                    }
                }
            }
        }
        Ok(())
    }

    /// Copies row `row` of `stacked` to `single`, or back.
    fn copy_row(&mut self, stacked: Slot, row: usize, single: Slot, into_stacked: bool) {
        let (stacked, single) = (self.range(stacked), self.range(single));
        let row = stacked.start + row * single.len()..stacked.start + (row + 1) * single.len();
        let (from, to) = if into_stacked { (single, row) } else { (row, single) };
        let ([from], [to]) = self.arena.borrow([from], [to]);
        to.copy_from_slice(from);
    }

    /// A product with two weights and the gated unit that the next step makes of it.
    fn linear_gated(&mut self, step: &Step, gated: &Gated<'_>) -> Result<(), ExecError> {
        let &Gated { x, parts, activation } = gated;
        let (rows, isa) = (self.program.slot(x).extent.rows(&self.dims), self.settings.attention_isa);
        let writes = [self.range(parts[0].out), self.range(parts[1].out), self.scratch(step)];
        let ([x], [gate, up, scratch]) = self.arena.borrow([self.range(x)], writes);
        let is_whole = plimsoll_linear::linear_gated_until(
            cast_slice(x),
            rows,
            [Self::output(self.model, parts[0], gate), Self::output(self.model, parts[1], up)],
            &|gate, up| elementwise::glu(gate, up, activation, isa, 1),
            scratch,
            self.settings.linear(),
            self.cancel.flag(),
        );
        if is_whole { Ok(()) } else { Err(ExecError::Cancelled) }
    }

    fn linear(&mut self, step: &Step, x: Slot, parts: &[LinearPart]) -> Result<(), ExecError> {
        let info = self.program.slot(x);
        let (rows, x) = (info.extent.rows(&self.dims), self.range(x));
        let mut writes: SmallVec<[Range<usize>; OPERANDS]> = parts.iter().map(|part| self.range(part.out)).collect();
        writes.push(self.scratch(step));
        let ([x], mut writes) = self.arena.borrow_list([x], &writes);
        let scratch = writes.pop().expect("scratch was pushed above");
        let model = self.model;
        let mut outputs: SmallVec<[plimsoll_linear::Output<'_>; OPERANDS]> =
            parts.iter().zip(writes).map(|(part, out)| Self::output(model, part, out)).collect();
        let stop = self.cancel.flag();
        let is_whole =
            plimsoll_linear::linear_until(cast_slice(x), rows, &mut outputs, scratch, self.settings.linear(), stop);
        if is_whole { Ok(()) } else { Err(ExecError::Cancelled) }
    }

    fn attend(&mut self, step: &Step) -> Result<(), ExecError> {
        let Op::Attend { layer, q, k, v, spec, out, state: _ } = &step.op else {
            unreachable!("called for attention steps only")
        };
        let params = AttnParams {
            scale: spec.scale,
            window: spec.window,
            softcap: spec.softcap,
            sinks: spec.sinks.map(|sinks| Self::vector(self.model, sinks)),
        };
        let slots = [*q, *k, *v];
        let widths = [*q, *k, *v, *out].map(|slot| self.program.slot(slot).extent.width());
        let reads = slots.map(|slot| self.range(slot));
        let writes = [self.range(*out), self.scratch(step)];
        let ([q_all, k_all, v_all], [out_all, scratch]) = self.arena.borrow(reads, writes);
        let (q_all, k_all, v_all) = (cast_slice(q_all), cast_slice(k_all), cast_slice(v_all));
        let out_all = cast_slice_mut::<u8, f32>(out_all);
        let mut row = 0;
        for segment in self.segments.iter_mut() {
            let rows = segment.tokens.len();
            let of = |width: usize| row * width..(row + rows) * width;
            let fault = |source| ExecError::Kv { layer: *layer, source };
            let (k, v) = (&k_all[of(widths[1])], &v_all[of(widths[2])]);
            segment.sequence.append(*layer, segment.start, k, v, rows).map_err(fault)?;
            let kv_len = segment.start + rows;
            let shape = attn_shape(self.program, slots, spec.window, self.settings.kv_dtype, rows, kv_len);
            let route = Route::for_shape(&shape, &self.settings.attention());
            let (q, out) = (&q_all[of(widths[0])], &mut out_all[of(widths[3])]);
            let (start, stop) = (segment.start, self.cancel.flag());
            segment
                .sequence
                .with_view(*layer, kv_len, self.blocks, |view| {
                    route.run_until(q, view, start, &params, out, scratch, stop)
                })
                .map_err(fault)?
                .map_err(|source| match source {
                    plimsoll_attention::Error::Stopped => ExecError::Cancelled,
                    source => ExecError::Attention { layer: *layer, source },
                })?;
            row += rows;
        }
        Ok(())
    }
}

fn as_u32(index: usize) -> u32 {
    u32::try_from(index).expect("checked when the pass was sized")
}
