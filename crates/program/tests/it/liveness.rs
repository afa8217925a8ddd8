//! Release lists: what goes when, in chains and nested chains.

use plimsoll_program::{
    ChainId, Condition, DType, Dims, Extent, FlushMeter, NoScratch, Op, Program, ProgramBuilder, ScanValues, Slot,
    SlotKind, Unary,
};

use crate::interpret::{KeepAll, Memory, run};
use crate::llama::{Config, decoder};

const DIMS: Dims = Dims { rows: 3, logit_rows: 1, kv_len: 3 };

/// The chain that was opened as number `index`; the main chain is 0.
fn nested(program: &Program, index: usize) -> ChainId {
    program.chain_ids().nth(index).unwrap()
}

fn releases(program: &Program, chain: ChainId) -> Vec<Vec<&str>> {
    let name = |slot: &Slot| program.slot(*slot).name.as_str();
    let steps = 0..program.chain(chain).steps().len();
    steps.map(|step| program.release(chain, step).iter().map(name).collect()).collect()
}

/// The most temporaries alive at once in the main chain, and how many are left at its end.
fn live_temporaries(program: &Program) -> (usize, usize) {
    let (mut live, mut most) = (std::collections::BTreeSet::new(), 0);
    for (index, step) in program.main().steps().iter().enumerate() {
        step.op.visit(|slot, _| {
            let (root, _) = program.root(slot);
            if program.slot(root).kind == SlotKind::Temporary {
                live.insert(root);
            }
        });
        most = most.max(live.len());
        for root in program.release(ChainId::MAIN, index) {
            assert!(live.remove(root), "'{}' is released twice or never lived", program.slot(*root).name);
        }
    }
    (most, live.len())
}

#[test]
fn a_program_of_3243_steps_never_holds_more_than_a_handful() {
    let mut b = ProgramBuilder::new();
    let mut x = b.input("x", Extent::PerRow(8), DType::F32);
    // Three temporaries per four steps; the fourth works in place.
    for _ in 0..810 {
        let half = b.scale(x, 0.5);
        let tanh = b.unary(half, Unary::Tanh);
        let sum = b.add(half, tanh);
        x = b.scale_assign(sum, 0.9);
    }
    for _ in 0..3 {
        x = b.unary(x, Unary::Tanh);
    }
    b.mark_output(x);
    let program = b.build().unwrap();
    assert_eq!(program.step_count(), 3243);
    let temporaries = program.slots().iter().filter(|info| info.kind == SlotKind::Temporary).count();
    assert!(temporaries > 1_918, "{temporaries} temporaries would be left without release lists");
    assert_eq!(live_temporaries(&program), (3, 0));
    // The input and the output, and at most three temporaries of 96 bytes, each in 128.
    assert_eq!(program.plan(&DIMS, &NoScratch).peak_bytes, 4 * 128);
}

#[test]
fn a_decoder_holds_as_many_temporaries_with_60_layers_as_with_2() {
    let (few, many) = (decoder(&Config::with_layers(2)), decoder(&Config::with_layers(60)));
    assert_eq!(live_temporaries(&few), live_temporaries(&many));
    let (most, at_end) = live_temporaries(&many);
    assert!(most <= 6, "{most}");
    assert_eq!(at_end, 0);
}

#[test]
fn constants_inputs_outputs_and_state_are_never_released() {
    let mut b = ProgramBuilder::new();
    let x = b.input("x", Extent::PerRow(2), DType::F32);
    let w = b.constant("w", &[2], DType::F32);
    let s = b.state("s", Extent::Fixed(2), DType::F32);
    let shifted = b.add(x, s);
    let shifted = b.named(shifted, "shifted");
    let out = b.mul(shifted, w);
    b.mark_output(out);
    let one = b.fill(1.0, Extent::Fixed(2));
    b.named(one, "one");
    b.store(one, s);
    let program = b.build().unwrap();
    assert_eq!(releases(&program, ChainId::MAIN), [vec![], vec!["shifted"], vec![], vec!["one"]]);
}

#[test]
fn a_temporary_nobody_reads_is_released_by_the_step_that_makes_it() {
    let mut b = ProgramBuilder::new();
    let unread = b.fill(0.0, Extent::PerRow(1));
    b.named(unread, "unread");
    assert_eq!(releases(&b.build().unwrap(), ChainId::MAIN), [vec!["unread"]]);
}

#[test]
fn using_a_view_keeps_its_root() {
    let mut b = ProgramBuilder::new();
    let root = b.fill(1.0, Extent::Fixed(6));
    b.named(root, "root");
    let first = b.view(root, 0, 2);
    let last = b.view(root, 4, 2);
    let sum = b.add(first, first);
    b.mark_output(sum);
    let sum = b.add(last, last);
    b.mark_output(sum);
    let program = b.build().unwrap();
    assert_eq!(releases(&program, ChainId::MAIN), [vec![], vec![], vec!["root"]]);
    assert_eq!(program.root(last), (root, 4));
}

#[test]
fn what_a_branch_reads_is_released_by_the_chain_around_it() {
    let mut b = ProgramBuilder::new();
    let x = b.fill(1.0, Extent::PerRow(2));
    b.named(x, "x");
    let then_branch = |b: &mut ProgramBuilder| {
        let own = b.scale(x, 2.0);
        let own = b.named(own, "own");
        vec![b.add(own, x)]
    };
    let outs = b.if_(Condition::RowsAtMost(1), then_branch, |b| vec![b.unary(x, Unary::Neg)]);
    b.mark_output(outs[0]);
    let program = b.build().unwrap();
    assert_eq!(releases(&program, ChainId::MAIN), [vec![], vec!["x"]]);
    assert_eq!(releases(&program, nested(&program, 1)), [vec![], vec!["own"]]);
    assert_eq!(releases(&program, nested(&program, 2)), [Vec::<&str>::new()]);
}

#[test]
fn a_carry_survives_all_iterations_and_a_body_releases_only_its_own() {
    let mut b = ProgramBuilder::new();
    let x = b.input("x", Extent::PerRow(2), DType::F32);
    let decay = b.fill(0.5, Extent::Fixed(2));
    b.named(decay, "decay");
    let start = b.fill(0.0, Extent::Fixed(2));
    b.named(start, "carry");
    let done = b.scan(&[x], &[start], |b, rows, carries| {
        b.named(rows[0], "row");
        let kept = b.mul(carries[0], decay);
        let kept = b.named(kept, "kept");
        let next = b.add(kept, rows[0]);
        let next = b.named(next, "next");
        ScanValues { carries: vec![next], outputs: vec![] }
    });
    let last = b.sum(done.carries[0]);
    b.mark_output(last);
    let program = b.build().unwrap();
    // `next` is read once more after the body's last step, so it goes with the scan.
    assert_eq!(releases(&program, ChainId::MAIN), [vec![], vec![], vec!["decay", "next"], vec!["carry"]]);
    assert_eq!(releases(&program, nested(&program, 1)), [vec![], vec!["row", "kept"]]);
}

#[test]
fn a_slot_of_a_body_that_a_branch_inside_reads_last_goes_with_the_branch() {
    let mut b = ProgramBuilder::new();
    let x = b.input("x", Extent::PerRow(2), DType::F32);
    let done = b.scan(&[x], &[], |b, rows, _| {
        let twice = b.scale(rows[0], 2.0);
        b.named(twice, "twice");
        let outs = b.if_(
            Condition::RowsAtMost(1),
            |b| vec![b.unary(twice, Unary::Neg)],
            |b| vec![b.unary(twice, Unary::Tanh)],
        );
        let out = b.scale(outs[0], 3.0);
        ScanValues { carries: vec![], outputs: vec![out] }
    });
    b.mark_output(done.outputs[0]);
    let program = b.build().unwrap();
    let body = releases(&program, nested(&program, 1));
    assert_eq!(body[1], ["twice"]);
    assert_eq!(program.chains().len(), 4);
    assert_eq!(program.parent(nested(&program, 2)), Some(program.chain(nested(&program, 1)).steps()[1].id));
}

#[test]
fn the_flush_triggers_at_the_sum_and_the_full_tensor_is_gone_by_then() {
    /// Runs, accounts, releases, then flushes, as an executor does.
    struct Queue<'a> {
        kept: KeepAll<'a>,
        meter: FlushMeter,
        flushed_at: Vec<&'static str>,
        live_at_flush: Vec<Slot>,
        live: Vec<Slot>,
    }
    impl Memory for Queue<'_> {
        fn load(&self, slot: Slot) -> Vec<f32> {
            assert!(self.live.contains(&slot), "read after release");
            self.kept.load(slot)
        }
        fn save(&mut self, slot: Slot, values: &[f32]) {
            self.live.push(slot);
            self.kept.save(slot, values);
        }
        fn leave(&mut self, step: &plimsoll_program::Step, released: &[Slot]) {
            let flush = self.meter.account(self.kept.program, step.id, &DIMS);
            self.live.retain(|slot| !released.contains(slot));
            if flush {
                self.flushed_at.push(step.op.name());
                self.live_at_flush.clone_from(&self.live);
            }
        }
    }
    let mut b = ProgramBuilder::new();
    let full = b.fill(2.0, Extent::Fixed(4096));
    let sum = b.sum(full);
    b.mark_output(sum);
    let program = b.build().unwrap();
    let mut queue = Queue {
        kept: KeepAll::new(&program, DIMS),
        meter: FlushMeter::new(24_576),
        flushed_at: Vec::new(),
        live_at_flush: Vec::new(),
        live: Vec::new(),
    };
    run(&program, ChainId::MAIN, &DIMS, &mut queue);
    assert_eq!(queue.flushed_at, ["sum"]);
    assert_eq!(queue.live_at_flush, [sum]);
    assert_eq!(queue.load(sum), [8192.0]);
    assert_eq!(queue.meter.pending_bytes(), 0);
    assert!(matches!(program.main().steps()[1].op, Op::Sum { .. }));
}
