//! Properties of random programs with views, in-place operations, branches and recurrences, nested in each other.

use std::collections::BTreeSet;

use plimsoll_program::{
    Access, ArenaLayout, ChainId, CostModel, Dims, MemoryPlan, NoScratch, Op, Planner, Program, Slot, SlotKind, Step,
};
use proptest::prelude::*;

use crate::interpret::{InArena, KeepAll, Memory, run};
use crate::random::{Recorded, Recorder, evaluate};

/// Scratch memory of odd sizes, for some operations, nested chains included.
#[derive(Debug)]
struct OddScratch;

impl CostModel for OddScratch {
    fn scratch_bytes(&self, _program: &Program, op: &Op, dims: &Dims) -> u64 {
        match op {
            Op::Linear { .. } => 52 * dims.rows as u64,
            Op::RmsNorm { .. } => 20,
            Op::If { .. } => 132,
            Op::Scan { .. } => 68 + dims.kv_len as u64,
            _ => 0,
        }
    }
}

/// Values given to a program: small, all different, `logit_rows` in range.
fn given_values(recorded: &Recorded, program: &Program, dims: &Dims) -> Vec<Vec<f32>> {
    let mut values = vec![Vec::new(); recorded.value_count];
    for &(slot, value) in &recorded.given {
        let info = program.slot(slot);
        let count = info.extent.elements(dims);
        values[value] = if info.name == "logit_rows" {
            (0..count).map(|i| (i * 7 % dims.rows.max(1)) as f32).collect()
        } else {
            (0..count).map(|i| ((i * 37 + value * 11) % 101) as f32 / 64.0 - 0.7).collect()
        };
    }
    values
}

fn give(recorded: &Recorded, values: &[Vec<f32>], memory: &mut dyn Memory) {
    for &(slot, value) in &recorded.given {
        memory.save(slot, &values[value]);
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn dims() -> impl Strategy<Value = Dims> {
    (0..6usize, 0..4usize, 0..200usize).prop_map(|(rows, logit_rows, kv_len)| Dims {
        rows,
        logit_rows: if rows == 0 { 0 } else { logit_rows },
        kv_len,
    })
}

fn choices() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..250)
}

/// Roots that a step names, itself or through the chains it runs.
fn named_in(program: &Program, step: &Step) -> BTreeSet<Slot> {
    let mut named = BTreeSet::new();
    step.op.visit(|slot, _| {
        named.insert(program.root(slot).0);
    });
    for chain in step.op.chains() {
        for step in program.chain(chain).steps() {
            named.extend(named_in(program, step));
        }
    }
    named
}

/// The chain and step after which a root has to go, from first principles: the last step of the owning chain that names
/// it at any depth, or, if the scan still reads it after the body, the scan.
fn last_use(program: &Program, root: Slot) -> Option<(ChainId, usize)> {
    let owner = program.owner(root);
    let by_scan = program.parent(owner).map(|parent| program.step(parent));
    let mut read_after_body = false;
    if let Some(scan) = by_scan {
        scan.op.visit(|slot, access| {
            read_after_body |= access == Access::BodyEnd && program.root(slot).0 == root;
        });
    }
    let steps = program.chain(owner).steps();
    let last = steps.iter().rposition(|step| named_in(program, step).contains(&root));
    match (last, by_scan) {
        (Some(last), _) if !read_after_body => Some((owner, last)),
        (_, Some(scan)) if named_in(program, scan).contains(&root) => Some(program.position(scan.id)),
        _ => None,
    }
}

/// Memory in use while a program runs, as `(start, end)`, checked against overlap at every change.
#[derive(Debug)]
struct Occupied<'a> {
    program: &'a Program,
    layout: &'a ArenaLayout,
    dims: Dims,
    live: Vec<(Slot, u64, u64)>,
    reached_bytes: u64,
}

impl Occupied<'_> {
    fn disjoint(&mut self, name: &str, start: u64, end: u64) {
        self.reached_bytes = self.reached_bytes.max(end);
        if start == end {
            return;
        }
        for &(other, other_start, other_end) in &self.live {
            let other = &self.program.slot(other).name;
            assert!(end <= other_start || other_end <= start, "{name} overlaps {other}");
        }
    }

    fn appear(&mut self, slot: Slot) {
        let (root, _) = self.program.root(slot);
        if !self.program.slot(root).kind.in_arena() || self.live.iter().any(|live| live.0 == root) {
            return;
        }
        let start = self.layout.offset(root).expect("a named slot has an offset");
        let end = start + self.program.bytes(root, &self.dims);
        self.disjoint(&self.program.slot(root).name, start, end);
        self.live.push((root, start, end));
    }

    /// Both branches of an `if`, and a scan body twice, whatever the dimensions.
    fn walk(&mut self, chain: ChainId) {
        for (index, step) in self.program.chain(chain).steps().iter().enumerate() {
            let scratch = self.layout.scratch(step.id);
            // What nested chains name of the chains around them is live during the whole step.
            for root in named_in(self.program, step) {
                if !step.op.chains().any(|nested| self.inside(self.program.owner(root), nested)) {
                    self.appear(root);
                }
            }
            self.disjoint("scratch memory", scratch.start, scratch.end);
            // Its name matters only in messages.
            self.live.push((self.program.inputs()[0], scratch.start, scratch.end));
            for nested in step.op.chains() {
                let times = if matches!(step.op, Op::Scan { .. }) { 2 } else { 1 };
                for _ in 0..times {
                    // What the iteration before has left is taken over by now.
                    let left: Vec<_> = std::mem::take(&mut self.live);
                    let kept = left.into_iter().filter(|live| !self.inside(self.program.owner(live.0), nested));
                    self.live = kept.collect();
                    step.op.visit(|slot, access| {
                        if access == Access::BodyStart {
                            self.appear(slot);
                        }
                    });
                    self.walk(nested);
                }
            }
            let scratch = (self.program.inputs()[0], scratch.start, scratch.end);
            if let Some(position) = self.live.iter().rposition(|live| *live == scratch) {
                self.live.remove(position);
            }
            for root in self.program.release(chain, index) {
                self.live.retain(|live| live.0 != *root);
            }
        }
    }

    fn inside(&self, mut chain: ChainId, outer: ChainId) -> bool {
        loop {
            if chain == outer {
                return true;
            }
            match self.program.parent(chain) {
                Some(parent) => chain = self.program.position(parent).0,
                None => return false,
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn the_arena_and_a_memory_that_keeps_everything_compute_the_eager_values((choices, dims) in (choices(), dims())) {
        let recorded = Recorder::record(&choices);
        let program = recorded.program.as_ref().unwrap();
        let mut values = given_values(&recorded, program, &dims);
        let mut kept = KeepAll::new(program, dims);
        give(&recorded, &values, &mut kept);
        run(program, ChainId::MAIN, &dims, &mut kept);
        let layout = program.layout(&dims, &OddScratch);
        let mut arena = InArena::new(program, &layout, dims);
        give(&recorded, &values, &mut arena);
        run(program, ChainId::MAIN, &dims, &mut arena);
        evaluate(&recorded.acts, &mut values, &dims);
        for &(slot, value) in &recorded.expected {
            let name = &program.slot(slot).name;
            prop_assert_eq!(bits(&kept.load(slot)), bits(&values[value]), "kept, {}", name);
            prop_assert_eq!(bits(&arena.load(slot)), bits(&values[value]), "arena, {}", name);
        }
        prop_assert!(arena.reached_bytes <= layout.size_bytes());
    }

    #[test]
    fn every_temporary_is_released_once_and_at_its_last_use(choices in choices()) {
        let program = Recorder::record(&choices).program.unwrap();
        let mut found = Vec::new();
        for (chain, steps) in program.chains().iter().enumerate() {
            for step in steps.steps() {
                let (chain_id, index) = program.position(step.id);
                prop_assert_eq!(chain_id.index(), chain);
                found.extend(program.release(chain_id, index).iter().map(|&root| (root, chain_id, index)));
            }
        }
        let mut wanted = Vec::new();
        for root in program.slot_ids() {
            if program.slot(root).kind == SlotKind::Temporary
                && let Some((chain, step)) = last_use(&program, root)
            {
                wanted.push((root, chain, step));
            }
        }
        found.sort_unstable();
        wanted.sort_unstable();
        prop_assert_eq!(found, wanted);
    }

    #[test]
    fn live_ranges_are_disjoint_and_the_planned_peak_is_their_highest_end((choices, dims) in (choices(), dims())) {
        let program = Recorder::record(&choices).program.unwrap();
        let layout = program.layout(&dims, &OddScratch);
        let (live, reached_bytes) = (Vec::new(), 0);
        let mut occupied = Occupied { program: &program, layout: &layout, dims, live, reached_bytes };
        for &input in program.inputs() {
            occupied.appear(input);
        }
        occupied.walk(ChainId::MAIN);
        let plan = program.plan(&dims, &OddScratch);
        prop_assert_eq!(plan.peak_bytes, layout.size_bytes());
        prop_assert_eq!(plan.peak_bytes, occupied.reached_bytes.next_multiple_of(64));
        let still_live: BTreeSet<Slot> = occupied.live.iter().map(|live| live.0).collect();
        let to_the_end = program.outputs().iter().map(|&slot| program.root(slot).0);
        let to_the_end: BTreeSet<Slot> = to_the_end.chain(program.inputs().iter().copied()).collect();
        prop_assert_eq!(still_live, to_the_end);
    }

    #[test]
    fn a_plan_is_consistent_and_the_same_with_used_buffers((choices, dims) in (choices(), dims())) {
        let program = Recorder::record(&choices).program.unwrap();
        let plan = program.plan(&dims, &OddScratch);
        prop_assert_eq!(plan.timeline.len(), program.step_count());
        if let Some(at_peak) = plan.timeline.iter().find(|entry| entry.step == plan.peak_step) {
            prop_assert_eq!(at_peak.high_water_bytes, plan.peak_bytes);
            let live: u64 = plan.live_set.iter().map(|live| live.1).sum();
            prop_assert_eq!(live, at_peak.live_bytes);
        }
        prop_assert!(plan.timeline.is_sorted_by_key(|entry| entry.high_water_bytes));
        for entry in &plan.timeline {
            prop_assert!(entry.live_bytes + entry.scratch_bytes <= entry.high_water_bytes);
            prop_assert_eq!(entry.label, program.step(entry.step).label);
        }
        let mut planner = Planner::new();
        let (mut again, mut layout) = (MemoryPlan::default(), ArenaLayout::default());
        let larger = Dims { rows: dims.rows + 3, ..dims };
        planner.plan_into(&program, &larger, &NoScratch, &mut again);
        planner.layout_into(&program, &larger, &NoScratch, &mut layout);
        planner.plan_into(&program, &dims, &OddScratch, &mut again);
        planner.layout_into(&program, &dims, &OddScratch, &mut layout);
        prop_assert_eq!(planner.peak_bytes(&program, &dims, &OddScratch), plan.peak_bytes);
        prop_assert_eq!(again, plan);
        prop_assert_eq!(layout, program.layout(&dims, &OddScratch));
    }
}

#[test]
fn random_programs_have_steps_of_every_kind_that_the_interpreter_knows() {
    let mut seen = BTreeSet::new();
    let mut state = 1u64;
    for _ in 0..300 {
        let bytes: Vec<u8> = (0..200)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        let program = Recorder::record(&bytes).program.unwrap();
        seen.extend(program.chains().iter().flat_map(|chain| chain.steps()).map(|step| step.op.name()));
    }
    let wanted = [
        "add",
        "causal_conv",
        "combine_experts",
        "copy",
        "expert_linear",
        "fill",
        "gated_delta",
        "glu",
        "if",
        "linear",
        "mul",
        "rms_norm",
        "scale",
        "scale_rows",
        "scan",
        "select_columns",
        "select_rows",
        "softcap",
        "sum",
        "top_k",
        "unary",
    ];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), wanted);
}
