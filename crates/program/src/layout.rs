//! Arena offsets: best fit over live ranges, in step order.

use std::ops::Range;

use crate::liveness::Event;
use crate::{Dims, Op, Program, Slot, SlotKind, StepId};

/// Every offset and size in the arena is a multiple of this many bytes: a cache line, and one AVX-512 register.
pub const ARENA_ALIGNMENT: u64 = 64;

/// Scratch memory that kernels need while a step runs. Implemented by the executor, which asks its kernels.
pub trait CostModel {
    /// Bytes of scratch memory for one step; a pure function of the arguments.
    fn scratch_bytes(&self, program: &Program, op: &Op, dims: &Dims) -> u64;
}

/// No step needs scratch memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NoScratch;

impl CostModel for NoScratch {
    fn scratch_bytes(&self, _program: &Program, _op: &Op, _dims: &Dims) -> u64 {
        0
    }
}

/// Where everything lies in the arena during a pass of given dimensions.
///
/// Inputs lie there from the start and outputs to the end; constants and state do not lie there. The slots of the two
/// branches of an `if` may share memory with each other, those of a scan body are the same in each iteration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ArenaLayout {
    size_bytes: u64,
    /// By slot; `NOWHERE` for slots outside the arena.
    offsets: Vec<u64>,
    /// By step.
    scratch: Vec<Range<u64>>,
}

/// No offset: all real ones are multiples of [`ARENA_ALIGNMENT`].
const NOWHERE: u64 = u64::MAX;

impl ArenaLayout {
    /// Bytes the arena must have: the highest end of anything in it, a multiple of [`ARENA_ALIGNMENT`]. Saturates, so
    /// dimensions without sense give a size that no allocation can meet, not a wrong one.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Byte offset of a slot, or of a view's first element; `None` for constants, state and what no step names.
    ///
    /// # Panics
    /// If the slot is of a larger program.
    pub fn offset(&self, slot: Slot) -> Option<u64> {
        Some(self.offsets[slot.index()]).filter(|&offset| offset != NOWHERE)
    }

    /// Bytes of a step's scratch memory, as long as the cost model asked, aligned at the start.
    ///
    /// # Panics
    /// If the step is of a larger program.
    pub fn scratch(&self, step: StepId) -> Range<u64> {
        self.scratch[step.index()].clone()
    }
}

impl Program {
    /// Arena offsets for a pass. To make many, use a [`Planner`], which keeps its buffers.
    pub fn layout(&self, dims: &Dims, cost: &dyn CostModel) -> ArenaLayout {
        let mut layout = ArenaLayout::default();
        Planner::new().layout_into(self, dims, cost, &mut layout);
        layout
    }
}

/// Places programs; keeps its buffers, so that planning one program again allocates nothing.
#[derive(Debug, Clone, Default)]
pub struct Planner {
    pub(crate) arena: Arena,
    /// For plans, whose offsets nobody asks for.
    pub(crate) layout: ArenaLayout,
}

/// What lies in the arena while a step runs, as the planner sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    /// Index of the step's `Enter` event.
    pub(crate) event: usize,
    pub(crate) step: StepId,
    pub(crate) live_bytes: u64,
    pub(crate) scratch_bytes: u64,
    pub(crate) high_water_bytes: u64,
}

impl Planner {
    /// A planner with empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Arena offsets for a pass, written over `layout`.
    pub fn layout_into(&mut self, program: &Program, dims: &Dims, cost: &dyn CostModel, layout: &mut ArenaLayout) {
        self.arena.place(program, dims, cost, layout, |_| {});
        for (index, info) in program.slots.iter().enumerate() {
            if let SlotKind::View { of } = info.kind
                && layout.offsets[of.index()] != NOWHERE
            {
                let shift = (info.offset as u64).saturating_mul(info.dtype.bytes());
                layout.offsets[index] = layout.offsets[of.index()].saturating_add(shift);
            }
        }
    }
}

/// Rounds up to the arena's alignment.
pub(crate) fn aligned(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(ARENA_ALIGNMENT).unwrap_or(NOWHERE - ARENA_ALIGNMENT + 1)
}

/// Free memory between two live ranges.
#[derive(Debug, Clone, Copy)]
struct Gap {
    start: u64,
    end: u64,
}

/// The arena while it is laid out.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arena {
    /// Ascending, neither touching nor empty, all below `end`.
    gaps: Vec<Gap>,
    /// Highest end so far.
    end: u64,
}

impl Arena {
    /// Runs through the events of a pass. Offsets of views are left out.
    pub(crate) fn place(
        &mut self,
        program: &Program,
        dims: &Dims,
        cost: &dyn CostModel,
        layout: &mut ArenaLayout,
        mut observe: impl FnMut(Moment),
    ) {
        self.gaps.clear();
        self.end = 0;
        layout.offsets.clear();
        layout.offsets.resize(program.slots.len(), NOWHERE);
        layout.scratch.clear();
        layout.scratch.resize(program.step_count(), 0..0);
        let mut live_bytes = 0u64;
        for (event, happens) in program.schedule.events.iter().enumerate() {
            match *happens {
                Event::Place(slot) => {
                    let size = aligned(program.bytes(slot, dims));
                    layout.offsets[slot.index()] = self.take(size);
                    live_bytes = live_bytes.saturating_add(size);
                }
                Event::Enter(step) => {
                    let bytes = cost.scratch_bytes(program, &program.step(step).op, dims);
                    let scratch_bytes = aligned(bytes);
                    let start = self.take(scratch_bytes);
                    layout.scratch[step.index()] = start..start.saturating_add(bytes);
                    observe(Moment { event, step, live_bytes, scratch_bytes, high_water_bytes: self.end });
                }
                Event::Leave(step) => {
                    let range = &layout.scratch[step.index()];
                    self.give(range.start, aligned(range.end - range.start));
                }
                Event::Free(slot) => {
                    let size = aligned(program.bytes(slot, dims));
                    self.give(layout.offsets[slot.index()], size);
                    live_bytes = live_bytes.saturating_sub(size);
                }
            }
        }
        layout.size_bytes = self.end;
    }

    /// The start of `size` free bytes: the smallest gap they fit in, the lowest of equals, else the end.
    fn take(&mut self, size: u64) -> u64 {
        if size == 0 {
            return 0;
        }
        let mut best: Option<usize> = None;
        let mut best_size = u64::MAX;
        for (index, gap) in self.gaps.iter().enumerate() {
            let room = gap.end - gap.start;
            if room >= size && room < best_size {
                (best, best_size) = (Some(index), room);
            }
        }
        if let Some(index) = best {
            let gap = &mut self.gaps[index];
            let start = gap.start;
            gap.start += size;
            if gap.start == gap.end {
                self.gaps.remove(index);
            }
            return start;
        }
        let start = match self.gaps.last() {
            Some(gap) if gap.end == self.end => {
                let start = gap.start;
                self.gaps.pop();
                start
            }
            _ => self.end,
        };
        self.end = start.saturating_add(size);
        start
    }

    fn give(&mut self, start: u64, size: u64) {
        if size == 0 {
            return;
        }
        let end = start.saturating_add(size);
        let next = self.gaps.partition_point(|gap| gap.start < start);
        let joins_before = next > 0 && self.gaps[next - 1].end == start;
        let joins_after = next < self.gaps.len() && self.gaps[next].start == end;
        match (joins_before, joins_after) {
            (true, true) => {
                self.gaps[next - 1].end = self.gaps[next].end;
                self.gaps.remove(next);
            }
            (true, false) => self.gaps[next - 1].end = end,
            (false, true) => self.gaps[next].start = start,
            (false, false) => self.gaps.insert(next, Gap { start, end }),
        }
    }
}
