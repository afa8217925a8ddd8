//! The CPU executor: slice kernels over one arena.

mod recurrent;
mod routed;

use super::{
    awake::{is_affordable, keep_awake},
    check::check_steps,
    cost::{CpuCost, CpuSettings, attn_shape},
    observer::{StepEvent, StepObserver},
    pass::{ExecError, LogitRows, Segment, dims},
};
use crate::{
    kernels::{
        arena::{Arena, OPERANDS},
        elementwise, norm, rope,
    },
    model::{Constant, Model},
};
use bytemuck::{cast_slice, cast_slice_mut};
use plimsoll_attention::{AttnParams, Route};
use plimsoll_kvcache::BlockTable;
use plimsoll_linear::PackedWeight;
use plimsoll_prefill::CancelToken;
use plimsoll_program::{
    ArenaLayout, ChainId, Condition, DType, DeltaOperands, Dims, LinearPart, MemoryPlan, Op, Planner, Program, Slot,
    SlotKind, Step,
};
use smallvec::SmallVec;
use std::{ops::Range, sync::Arc};

/// Runs a model's program pass by pass, in an arena of exactly the planned size.
#[derive(Debug)]
pub struct CpuExecutor {
    model: Arc<Model>,
    settings: CpuSettings,
    pool: rayon::ThreadPool,
    /// Whether a pass keeps the pool's threads awake.
    keeps_awake: bool,
    planner: Planner,
    layout: ArenaLayout,
    /// What `layout` was made for.
    planned: Option<Dims>,
    arena: Arena,
    live: LiveTemporaries,
    blocks: BlockTable,
    cancel: CancelToken,
    /// Multiply-adds of a recurrence between two looks at `cancel`; kernels that take it look by themselves.
    part_work: u64,
}

/// The logits of a pass, in the executor's arena until the next pass.
#[derive(Debug, Clone, Copy)]
pub struct Logits<'a> {
    /// `[rows, vocab_size]`.
    pub values: &'a [f32],
    /// Rows that were asked for.
    pub rows: usize,
    /// Width of a row.
    pub vocab_size: usize,
}

impl<'a> Logits<'a> {
    /// The last row, if any was asked for.
    #[must_use]
    pub fn last(&self) -> Option<&'a [f32]> {
        self.values.chunks_exact(self.vocab_size).next_back()
    }
}

/// What a pass used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassStats {
    /// Size of the arena: the planned peak.
    pub arena_bytes: u64,
    /// End of the highest range that a step used.
    pub high_water_bytes: u64,
    /// Temporaries that no release list had freed when the pass ended.
    pub live_temporaries: usize,
}

impl CpuExecutor {
    /// An executor with its own threads.
    ///
    /// # Errors
    /// [`ExecError::Threads`] if the threads cannot be started, [`ExecError::Step`] if the program has a step that cannot run here.
    pub fn new(model: Arc<Model>, settings: CpuSettings) -> Result<Self, ExecError> {
        check_steps(model.architecture())?;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(settings.threads)
            .thread_name(|index| format!("plimsoll-{index}"))
            .build()
            .map_err(|source| ExecError::Threads { threads: settings.threads, source })?;
        // Each thread has run once: what a thread takes is taken before anybody measures the process.
        pool.broadcast(|_| ());
        let live = LiveTemporaries::new(&model.architecture().program);
        Ok(Self {
            model,
            settings,
            pool,
            keeps_awake: is_affordable(settings.threads),
            planner: Planner::default(),
            layout: ArenaLayout::default(),
            planned: None,
            arena: Arena::default(),
            live,
            blocks: BlockTable::new(),
            cancel: CancelToken::default(),
            part_work: recurrent::part_work(&settings),
        })
    }

    /// The model it runs.
    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The settings it runs with.
    #[must_use]
    pub fn settings(&self) -> CpuSettings {
        self.settings
    }

    /// The same executor, which gives up a running pass once `cancel` is set: at its next step, or in the middle of a product, of attention or of a
    /// recurrence, after the blocks that its threads have in hand.
    #[must_use]
    pub fn with_cancel(mut self, cancel: CancelToken) -> Self {
        self.cancel = cancel;
        self
    }

    /// The same executor, whose threads sleep whenever a pass has nothing for them: for a process with other work on the same processors. Otherwise
    /// they look for work until the pass ends, if there are as many processors, and decoding is faster.
    #[must_use]
    pub fn with_sleeping_threads(mut self) -> Self {
        self.keeps_awake = false;
        self
    }

    /// The memory plan of a pass of these sizes: its peak is the arena that [`CpuExecutor::run`] will make.
    #[must_use]
    pub fn plan(&self, dims: &Dims) -> MemoryPlan {
        self.model.architecture().program.plan(dims, &self.cost())
    }

    /// Names of the kernels that a prompt of `rows` tokens takes, attention first: what the shapes and settings decide.
    #[must_use]
    pub fn routes(&self, rows: usize) -> Vec<String> {
        let program = &self.model.architecture().program;
        let mut routes = Vec::new();
        for step in program.chains().iter().flat_map(|chain| chain.steps()) {
            let Op::Attend { q, k, v, spec, .. } = &step.op else { continue };
            for rows in [rows, 1] {
                let shape = attn_shape(program, [*q, *k, *v], spec.window, self.settings.kv_dtype, rows, rows);
                let name = format!("attention:{}", Route::for_shape(&shape, &self.settings.attention()).name());
                if !routes.contains(&name) {
                    routes.push(name);
                }
            }
        }
        routes.push(format!("linear:{}", self.settings.linear_isa.name()));
        routes
    }

    /// The planned peak alone, without the timeline.
    pub fn planned_bytes(&mut self, dims: &Dims) -> u64 {
        self.make_layout(dims);
        self.layout.size_bytes()
    }

    fn cost(&self) -> CpuCost<'_> {
        CpuCost { weight_types: self.model.weight_types(), settings: self.settings }
    }

    fn make_layout(&mut self, dims: &Dims) {
        if self.planned == Some(*dims) {
            return;
        }
        let cost = CpuCost { weight_types: self.model.weight_types(), settings: self.settings };
        self.planner.layout_into(&self.model.architecture().program, dims, &cost, &mut self.layout);
        self.planned = Some(*dims);
    }

    /// Runs one pass: writes the rows' keys and values to their sequences and computes the logits asked for.
    ///
    /// A row's logits have the same bits however the rows are spread over passes and segments, with any number of threads. The threads look for work
    /// until the pass ends, which shows as load (see [`CpuExecutor::with_sleeping_threads`]).
    ///
    /// # Errors
    /// [`ExecError`]; sequences that took rows before the fault are cut back to where their segment starts.
    pub fn run<O: StepObserver>(
        &mut self,
        segments: &mut [Segment<'_>],
        logit_rows: LogitRows,
        observer: &mut O,
    ) -> Result<Logits<'_>, ExecError> {
        let model = Arc::clone(&self.model);
        let architecture = model.architecture();
        let vocab_size = architecture.dimensions.vocab_size;
        let dims = dims(segments, logit_rows, vocab_size)?;
        for segment in segments.iter_mut() {
            // Before any row is written, so that a state which cannot go back costs no key or value.
            let layer_fault = |source| ExecError::Kv { layer: fault_layer(&source), source };
            segment.sequence.truncate(segment.start).map_err(layer_fault)?;
        }
        self.make_layout(&dims);
        self.arena
            .resize(self.layout.size_bytes())
            .map_err(|source| ExecError::Arena { bytes: self.layout.size_bytes(), source })?;
        self.live.clear();

        let mut pass = Running {
            program: &architecture.program,
            model: &model,
            settings: self.settings,
            layout: &self.layout,
            arena: &mut self.arena,
            live: &mut self.live,
            blocks: &mut self.blocks,
            cancel: &self.cancel,
            part_work: self.part_work,
            dims,
            segments,
            observer,
        };
        pass.write_inputs(logit_rows);
        let keeps_awake = self.keeps_awake;
        let result = self.pool.install(|| {
            let mut work = || pass.chain(ChainId::MAIN, 0);
            if keeps_awake { keep_awake(work) } else { work() }
        });
        if let Err(error) = result {
            for segment in segments {
                undo(segment);
            }
            return Err(error);
        }
        for segment in segments {
            segment.sequence.commit();
        }
        let program = &architecture.program;
        let range = byte_range(program, &self.layout, architecture.ports.logits, &dims);
        Ok(Logits { values: cast_slice(self.arena.read(range)), rows: dims.logit_rows, vocab_size })
    }

    /// What the last pass used.
    #[must_use]
    pub fn stats(&self) -> PassStats {
        PassStats {
            arena_bytes: self.arena.size() as u64,
            high_water_bytes: self.arena.high_water() as u64,
            live_temporaries: self.live.count(),
        }
    }

    /// The same executor, which looks at its cancel flag after so many multiply-adds of a recurrence.
    #[cfg(test)]
    pub(crate) fn with_part_work(mut self, part_work: u64) -> Self {
        self.part_work = part_work;
        self
    }

    /// Gives the arena's pages back to the system; the next pass maps new ones.
    pub fn release_arena(&mut self) {
        // Shrinking asks the system for nothing and cannot fail.
        let _ = self.arena.resize(0);
    }
}

/// Takes a sequence back to where its segment starts; one that holds no more is as it was.
fn undo(segment: &mut Segment<'_>) {
    if let Err(error) = segment.sequence.truncate(segment.start) {
        // The pass was let in only because this cut is possible, and no state goes ahead without a commit.
        unreachable!("a sequence cannot go back to the start of its segment: {error}");
    }
}

/// The layer at which a sequence refused to go back.
fn fault_layer(error: &plimsoll_kvcache::Error) -> usize {
    match error {
        plimsoll_kvcache::Error::NeedsPrefill { layer, .. } => *layer,
        _ => 0,
    }
}

/// The bytes of a slot in the arena.
fn byte_range(program: &Program, layout: &ArenaLayout, slot: Slot, dims: &Dims) -> Range<usize> {
    let start = layout.offset(slot).expect("only slots in the arena are asked for by range");
    as_usize(start)..as_usize(start + program.bytes(slot, dims))
}

fn as_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("the arena fits the address space")
}

/// One pass under way.
struct Running<'p, 's, O> {
    program: &'p Program,
    model: &'p Model,
    settings: CpuSettings,
    layout: &'p ArenaLayout,
    arena: &'p mut Arena,
    live: &'p mut LiveTemporaries,
    blocks: &'p mut BlockTable,
    cancel: &'p CancelToken,
    part_work: u64,
    dims: Dims,
    segments: &'p mut [Segment<'s>],
    observer: &'p mut O,
}

impl<O: StepObserver> Running<'_, '_, O> {
    fn write_inputs(&mut self, wanted: LogitRows) {
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

    fn chain(&mut self, chain: ChainId, depth: usize) -> Result<(), ExecError> {
        let program = self.program;
        for (index, step) in program.chain(chain).steps().iter().enumerate() {
            if self.cancel.is_cancelled() {
                return Err(ExecError::Cancelled);
            }
            let span = tracing::trace_span!("step", step = index, op = step.op.name(), rows = self.dims.rows);
            let _entered = span.enter();
            self.live.written(program, step);
            self.step(step, depth)?;
            if O::ENABLED {
                self.observe(step, index, depth);
            }
            self.live.released(program.release(chain, index));
        }
        Ok(())
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
                let table = Self::matrix(self.model, *table);
                let rows = cast_slice_mut::<u8, f32>(out).chunks_exact_mut(width);
                for (row, &id) in rows.zip(cast_slice::<u8, u32>(ids)) {
                    table.dequantize_row(id as usize, row);
                }
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

    fn linear(&mut self, step: &Step, x: Slot, parts: &[LinearPart]) -> Result<(), ExecError> {
        let info = self.program.slot(x);
        let (rows, x) = (info.extent.rows(&self.dims), self.range(x));
        let mut writes: SmallVec<[Range<usize>; OPERANDS]> = parts.iter().map(|part| self.range(part.out)).collect();
        writes.push(self.scratch(step));
        let ([x], mut writes) = self.arena.borrow_list([x], &writes);
        let scratch = writes.pop().expect("scratch was pushed above");
        let model = self.model;
        let mut outputs: SmallVec<[plimsoll_linear::Output<'_>; OPERANDS]> = parts
            .iter()
            .zip(writes)
            .map(|(part, out)| plimsoll_linear::Output {
                weight: Self::matrix(model, part.weight),
                bias: part.bias.map(|bias| Self::vector(model, bias)),
                out: cast_slice_mut(out),
            })
            .collect();
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

/// Which temporaries are live, by the release lists: a check on the lists, at the cost of a bit per slot.
#[derive(Debug)]
struct LiveTemporaries {
    live: Vec<bool>,
}

impl LiveTemporaries {
    fn new(program: &Program) -> Self {
        Self { live: vec![false; program.slots().len()] }
    }

    fn clear(&mut self) {
        self.live.fill(false);
    }

    fn written(&mut self, program: &Program, step: &Step) {
        step.op.visit(|slot, access| {
            let (root, _) = program.root(slot);
            if access != plimsoll_program::Access::Read && program.slot(root).kind == SlotKind::Temporary {
                self.live[root.index()] = true;
            }
        });
    }

    fn released(&mut self, roots: &[Slot]) {
        for root in roots {
            self.live[root.index()] = false;
        }
    }

    fn count(&self) -> usize {
        self.live.iter().filter(|&&live| live).count()
    }
}
