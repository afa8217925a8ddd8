//! What a pass will take, step by step.

use crate::layout::{Moment, Planner, aligned};
use crate::{CostModel, Dims, Label, Program, Slot, StepId};

/// Arena memory while one step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepBytes {
    /// The step. One that runs nested chains comes before their steps.
    pub step: StepId,
    /// Its scope: see [`Program::label`].
    pub label: Label,
    /// Slots in the arena, each rounded up to its alignment; without scratch memory.
    pub live_bytes: u64,
    /// The step's own scratch memory, rounded up.
    pub scratch_bytes: u64,
    /// How far the arena had to reach up to here; never falls.
    pub high_water_bytes: u64,
}

/// Memory of one pass. The peak is the size of the arena, fragmentation counted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemoryPlan {
    /// Equal to [`ArenaLayout::size_bytes`](crate::ArenaLayout::size_bytes) for the same pass.
    pub peak_bytes: u64,
    /// The first step during which the arena reaches that far; step 0 for a program without steps.
    pub peak_step: StepId,
    /// One entry per step in the order they run, both branches of an `if` one after the other, a scan body once.
    pub timeline: Vec<StepBytes>,
    /// Slots live during the peak step with their bytes, rounded up; their sum is the step's `live_bytes`.
    pub live_set: Vec<(Slot, u64)>,
}

impl Program {
    /// The memory of a pass, without running it. To plan often, use a [`Planner`], which keeps its buffers.
    pub fn plan(&self, dims: &Dims, cost: &dyn CostModel) -> MemoryPlan {
        let mut plan = MemoryPlan::default();
        Planner::new().plan_into(self, dims, cost, &mut plan);
        plan
    }
}

impl Planner {
    /// The memory of a pass, written over `plan`.
    pub fn plan_into(&mut self, program: &Program, dims: &Dims, cost: &dyn CostModel, plan: &mut MemoryPlan) {
        let mut recorder = Recorder::new(program, plan);
        self.arena.place(program, dims, cost, &mut self.layout, |moment| recorder.observe(moment));
        let peak_bytes = self.layout.size_bytes();
        recorder.finish(peak_bytes, |slot| aligned(program.bytes(slot, dims)));
    }

    /// Only the peak of a pass, in bytes: equal to [`MemoryPlan::peak_bytes`].
    pub fn peak_bytes(&mut self, program: &Program, dims: &Dims, cost: &dyn CostModel) -> u64 {
        self.arena.place(program, dims, cost, &mut self.layout, |_| {});
        self.layout.size_bytes()
    }
}

/// Writes a plan while a pass is walked.
#[derive(Debug)]
pub(crate) struct Recorder<'a> {
    program: &'a Program,
    plan: &'a mut MemoryPlan,
    peak_event: usize,
    reached_bytes: Option<u64>,
}

impl<'a> Recorder<'a> {
    pub(crate) fn new(program: &'a Program, plan: &'a mut MemoryPlan) -> Self {
        plan.timeline.clear();
        plan.timeline.reserve(program.step_count());
        plan.live_set.clear();
        plan.peak_step = StepId::default();
        Self { program, plan, peak_event: 0, reached_bytes: None }
    }

    pub(crate) fn observe(&mut self, moment: Moment) {
        let Moment { event, step, live_bytes, scratch_bytes, high_water_bytes } = moment;
        if self.reached_bytes.is_none_or(|reached| high_water_bytes > reached) {
            self.reached_bytes = Some(high_water_bytes);
            self.plan.peak_step = step;
            self.peak_event = event;
        }
        let label = self.program.step(step).label;
        self.plan.timeline.push(StepBytes { step, label, live_bytes, scratch_bytes, high_water_bytes });
    }

    pub(crate) fn finish(self, peak_bytes: u64, slot_bytes: impl Fn(Slot) -> u64) {
        self.plan.peak_bytes = peak_bytes;
        if self.reached_bytes.is_none() {
            return;
        }
        for (index, live) in self.program.schedule.lives.iter().enumerate() {
            if let Some((placed, freed)) = *live
                && (placed as usize) < self.peak_event
                && self.peak_event < freed as usize
            {
                let slot = Slot::from_index(index);
                self.plan.live_set.push((slot, slot_bytes(slot)));
            }
        }
    }
}
