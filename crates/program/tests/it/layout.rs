//! Arena offsets of small programs, worked out by hand.

use plimsoll_program::{
    ARENA_ALIGNMENT, Condition, CostModel, DType, Dims, Extent, NoScratch, Op, Program, ProgramBuilder, ScanValues,
    Unary,
};

const DIMS: Dims = Dims { rows: 4, logit_rows: 2, kv_len: 100 };

/// 100 bytes for `scale`, nothing for the rest.
#[derive(Debug)]
struct ScaleScratch;

impl CostModel for ScaleScratch {
    fn scratch_bytes(&self, _program: &Program, op: &Op, _dims: &Dims) -> u64 {
        if matches!(op, Op::Scale { .. }) { 100 } else { 0 }
    }
}

#[test]
fn a_chain_of_steps_needs_two_of_its_values_at_a_time() {
    let mut b = ProgramBuilder::new();
    let a = b.fill(1.0, Extent::PerRow(32)); // 512 bytes
    let c = b.unary(a, Unary::Tanh);
    let d = b.unary(c, Unary::Tanh);
    let e = b.unary(d, Unary::Tanh);
    b.mark_output(e);
    let layout = b.build().unwrap().layout(&DIMS, &NoScratch);
    assert_eq!([a, c, d, e].map(|slot| layout.offset(slot)), [Some(0), Some(512), Some(0), Some(512)]);
    assert_eq!(layout.size_bytes(), 1024);
}

#[test]
fn scratch_memory_takes_room_at_its_step_only() {
    let mut b = ProgramBuilder::new();
    let x = b.fill(1.0, Extent::Fixed(16)); // 64 bytes
    let y = b.scale(x, 2.0);
    let z = b.unary(y, Unary::Neg);
    b.mark_output(z);
    let program = b.build().unwrap();
    let layout = program.layout(&DIMS, &ScaleScratch);
    let steps = program.main().steps();
    assert_eq!(layout.scratch(steps[1].id), 128..228);
    assert_eq!(layout.scratch(steps[2].id), 0..0);
    // `x` and the scratch memory are gone: `z` takes the smaller gap.
    assert_eq!(layout.offset(z), Some(0));
    assert_eq!(layout.size_bytes(), 256);
}

#[test]
fn best_fit_takes_the_smallest_gap_that_holds_the_slot() {
    let mut b = ProgramBuilder::new();
    let large = b.fill(0.0, Extent::Fixed(64)); // 256 bytes at 0
    let wall = b.fill(0.0, Extent::Fixed(16)); // 64 bytes at 256
    let small = b.fill(0.0, Extent::Fixed(32)); // 128 bytes at 320
    let end = b.fill(0.0, Extent::Fixed(16)); // 64 bytes at 448
    let (l, s) = (b.sum(large), b.sum(small));
    let fits = b.fill(0.0, Extent::Fixed(20)); // 128 bytes with padding
    for slot in [wall, end, l, s, fits] {
        b.mark_output(slot);
    }
    let layout = b.build().unwrap().layout(&DIMS, &NoScratch);
    assert_eq!(layout.offset(fits), Some(320));
}

#[test]
fn constants_and_state_have_no_offset_and_views_start_inside_their_root() {
    let mut b = ProgramBuilder::new();
    let w = b.constant("w", &[4], DType::F32);
    let s = b.state("s", Extent::Fixed(4), DType::F32);
    let pad = b.input("pad", Extent::Fixed(1), DType::U32);
    let x = b.fill(1.0, Extent::Fixed(40));
    let view = b.view(x, 36, 4);
    let sum = b.add(view, w);
    let sum = b.add(sum, s);
    b.mark_output(sum);
    let layout = b.build().unwrap().layout(&DIMS, &NoScratch);
    assert_eq!((layout.offset(w), layout.offset(s)), (None, None));
    assert_eq!(layout.offset(pad), Some(0));
    assert_eq!(layout.offset(x), Some(ARENA_ALIGNMENT));
    assert_eq!(layout.offset(view), Some(ARENA_ALIGNMENT + 4 * 36));
}

#[test]
fn inputs_lie_in_the_arena_from_the_start_to_the_end() {
    let mut b = ProgramBuilder::new();
    let early = b.fill(0.0, Extent::Fixed(16));
    let early = b.sum(early);
    let x = b.input("x", Extent::Fixed(16), DType::F32);
    let y = b.scale(x, 1.0);
    b.mark_output(early);
    b.mark_output(y);
    let program = b.build().unwrap();
    let layout = program.layout(&DIMS, &NoScratch);
    assert_eq!(layout.offset(x), Some(0));
    assert_ne!(layout.offset(early), Some(0));
    assert_ne!(layout.offset(y), Some(0));
}

#[test]
fn the_two_branches_of_an_if_share_memory() {
    let mut b = ProgramBuilder::new();
    let x = b.input("x", Extent::Fixed(1), DType::F32);
    let (mut own, mut second) = (Vec::new(), Vec::new());
    let outs = b.if_(
        Condition::Nonzero(x),
        |b| {
            own.push(b.fill(1.0, Extent::Fixed(160)));
            vec![b.sum(own[0])]
        },
        |b| {
            second.push(b.fill(2.0, Extent::Fixed(160)));
            vec![b.sum(second[0])]
        },
    );
    b.mark_output(outs[0]);
    let layout = b.build().unwrap().layout(&DIMS, &NoScratch);
    assert_eq!(layout.offset(own[0]), layout.offset(second[0]));
    // Input, result, one branch.
    assert_eq!(layout.size_bytes(), 64 + 64 + 640);
}

#[test]
fn the_result_of_a_branch_is_made_where_the_chain_around_holds_it() {
    let mut b = ProgramBuilder::new();
    let x = b.input("x", Extent::PerRow(16), DType::F32);
    let mut inner = None;
    let outs = b.if_(
        Condition::RowsAtMost(1),
        |b| {
            inner = Some(b.scale(x, 2.0));
            vec![inner.unwrap()]
        },
        |b| vec![b.unary(x, Unary::Tanh)],
    );
    b.mark_output(outs[0]);
    let program = b.build().unwrap();
    assert_eq!(program.root(inner.unwrap()), (outs[0], 0));
    assert_eq!(program.step_count(), 3, "no copies");
    assert_eq!(program.layout(&DIMS, &NoScratch).size_bytes(), 2 * 256);
}

#[test]
fn a_body_reuses_its_own_memory_and_spares_what_lives_across_the_scan() {
    let mut b = ProgramBuilder::new();
    let x = b.input("x", Extent::PerRow(16), DType::F32); // 256 bytes
    let after = b.fill(1.0, Extent::Fixed(16)); // 64 bytes
    let mut own = Vec::new();
    let done = b.scan(&[x], &[], |b, rows, _| {
        own.push(b.scale(rows[0], 2.0));
        own.push(b.scale(own[0], 2.0));
        own.push(b.scale(own[1], 2.0));
        ScanValues { carries: vec![], outputs: vec![own[2]] }
    });
    let out = b.add(done.outputs[0], after);
    b.mark_output(out);
    let program = b.build().unwrap();
    let layout = program.layout(&DIMS, &NoScratch);
    assert_ne!(layout.offset(own[0]), layout.offset(own[1]));
    let held = [layout.offset(x), layout.offset(after), layout.offset(done.outputs[0])];
    assert!(own.iter().all(|&slot| !held.contains(&layout.offset(slot))));
    // x, after, stacked, out, and the two values of the body that live at once lie inside what `out` takes later.
    assert_eq!(layout.size_bytes(), 256 + 64 + 256 + 256);
}

#[test]
fn a_pass_without_rows_has_a_layout() {
    let mut b = ProgramBuilder::new();
    let x = b.input("x", Extent::PerRow(16), DType::F32);
    let y = b.scale(x, 2.0);
    b.mark_output(y);
    let program = b.build().unwrap();
    let layout = program.layout(&Dims { rows: 0, logit_rows: 0, kv_len: 0 }, &NoScratch);
    assert_eq!((layout.offset(y), layout.size_bytes()), (Some(0), 0));
}

#[test]
fn dimensions_without_sense_saturate() {
    let mut b = ProgramBuilder::new();
    let x = b.input("x", Extent::PerRow(16), DType::F32);
    let y = b.scale(x, 2.0);
    let z = b.scale(y, 2.0);
    b.mark_output(z);
    let program = b.build().unwrap();
    let dims = Dims { rows: usize::MAX, logit_rows: 0, kv_len: 0 };
    assert!(program.plan(&dims, &NoScratch).peak_bytes >= u64::MAX - ARENA_ALIGNMENT);
    assert_eq!(program.bytes(y, &dims), u64::MAX);
}
