//! Plans of arena and pool, timelines, labels.

use plimsoll_program::{
    ArenaLayout, DType, Dims, Extent, MemoryPlan, NoScratch, Planner, PoolModel, Program, ProgramBuilder, Rounding,
    Slot, Unary,
};

use crate::llama::{Config, KernelScratch, decoder};

const DIMS: Dims = Dims { rows: 512, logit_rows: 1, kv_len: 8192 };

/// 96 bytes, three times over, one after the other.
fn three_steps() -> (Program, [Slot; 3]) {
    let mut b = ProgramBuilder::new();
    let x = b.fill(1.0, Extent::Fixed(24));
    let y = b.scope("first", |b| b.scope("inner", |b| b.unary(x, Unary::Tanh)));
    b.set_layer(Some(7));
    let z = b.unary(y, Unary::Tanh);
    b.mark_output(z);
    (b.build().unwrap(), [x, y, z])
}

#[test]
fn a_timeline_names_each_step_its_scope_and_its_bytes() {
    let (program, [x, y, _]) = three_steps();
    let plan = program.plan(&DIMS, &NoScratch);
    let bytes: Vec<(u64, u64)> = plan.timeline.iter().map(|e| (e.live_bytes, e.high_water_bytes)).collect();
    assert_eq!(bytes, [(128, 128), (256, 256), (256, 256)]);
    let labels: Vec<&str> = plan.timeline.iter().map(|entry| program.label(entry.label)).collect();
    assert_eq!(labels, ["", "first/inner", "layer 7"]);
    assert_eq!((plan.peak_bytes, plan.peak_step), (256, program.main().steps()[1].id));
    assert_eq!(plan.live_set, [(x, 128), (y, 128)]);
}

#[test]
fn a_program_without_steps_has_an_empty_plan() {
    let mut b = ProgramBuilder::new();
    b.input("x", Extent::PerRow(1), DType::F32);
    let program = b.build().unwrap();
    let plan = program.plan(&DIMS, &NoScratch);
    assert_eq!((plan.peak_bytes, plan.timeline.len()), (2048, 0));
}

#[test]
fn a_decoder_peaks_at_the_feed_forward_without_fragmentation() {
    let config = Config::with_layers(64);
    let program = decoder(&config);
    assert_eq!(program.step_count(), 64 * 15 + 5);
    let plan = program.plan(&DIMS, &KernelScratch);
    let peak = plan.timeline.iter().find(|entry| entry.step == plan.peak_step).unwrap();
    assert_eq!(program.label(peak.label), "layer 0/mlp");
    assert_eq!(plan.peak_bytes, peak.live_bytes + peak.scratch_bytes, "nothing is lost to gaps");
    let of_two = decoder(&Config { layers: 2, ..config }).plan(&DIMS, &KernelScratch).peak_bytes;
    assert_eq!(plan.peak_bytes, of_two, "the number of layers does not count");
    assert_eq!(plan.live_set.iter().map(|live| live.1).sum::<u64>(), peak.live_bytes);
}

#[test]
fn logits_cost_only_the_rows_that_are_asked_for() {
    let program = decoder(&Config::with_layers(2));
    let peak = |logit_rows| program.plan(&Dims { logit_rows, ..DIMS }, &KernelScratch).peak_bytes;
    assert_eq!(peak(1) - peak(0), 64, "the row number, aligned");
    assert!(peak(512) > 512 * 128_256 * 4);
}

#[test]
fn a_planner_can_go_from_one_program_to_another() {
    let (small, _) = three_steps();
    let large = decoder(&Config::with_layers(2));
    let mut planner = Planner::new();
    let (mut plan, mut layout) = (MemoryPlan::default(), ArenaLayout::default());
    for program in [&large, &small, &large] {
        planner.plan_into(program, &DIMS, &KernelScratch, &mut plan);
        planner.layout_into(program, &DIMS, &KernelScratch, &mut layout);
        assert_eq!(plan, program.plan(&DIMS, &KernelScratch));
        assert_eq!(layout, program.layout(&DIMS, &KernelScratch));
        assert_eq!(layout.size_bytes(), plan.peak_bytes);
    }
}

#[test]
fn sizes_round_to_powers_of_two_or_to_multiples() {
    assert_eq!([0, 1, 96, 128].map(|bytes| Rounding::PowerOfTwo.round(bytes)), [0, 1, 128, 128]);
    assert_eq!([0, 1, 96, 128].map(|bytes| Rounding::Multiple(64).round(bytes)), [0, 64, 128, 128]);
    assert_eq!([0, 96].map(|bytes| Rounding::Multiple(0).round(bytes)), [0, 96]);
    assert_eq!(Rounding::PowerOfTwo.round(u64::MAX), u64::MAX);
}

#[test]
fn a_pool_reuses_what_is_released_and_holds_it_until_a_flush() {
    let mut b = ProgramBuilder::new();
    let large = b.fill(1.0, Extent::Fixed(1000)); // 4,000 bytes in 4,096
    let sum = b.sum(large); // 4 bytes in 4
    let small = b.fill(1.0, Extent::Fixed(24)); // 96 bytes: takes the free 4,096
    let larger = b.fill(1.0, Extent::Fixed(1100)); // 4,400 bytes in 8,192
    let outs = [b.sum(small), b.sum(larger), sum];
    for out in outs {
        b.mark_output(out);
    }
    let program = b.build().unwrap();
    let plan = |flush_threshold_bytes| {
        let model = PoolModel { rounding: Rounding::PowerOfTwo, flush_threshold_bytes };
        program.pool_plan(&DIMS, &NoScratch, &model)
    };
    let held = plan(None);
    let bytes: Vec<(u64, u64)> = held.timeline.iter().map(|e| (e.live_bytes, e.high_water_bytes)).collect();
    // The last sum takes the 4,096 that `small` had.
    let wanted = [4_096, 4_100, 4_100, 12_292, 12_296, 12_296];
    assert_eq!(bytes, wanted.map(|bytes| (bytes, bytes)));
    assert_eq!(held.peak_bytes, 12_296);
    // Flushed after the first sum: the 4,096 go back, and `small` gets 128.
    let flushed = plan(Some(8_000));
    assert_eq!(flushed.peak_bytes, 4 + 128 + 8_192 + 4);
    assert!(flushed.timeline[2].live_bytes < held.timeline[2].live_bytes);
}

#[test]
fn a_pool_that_does_not_round_needs_at_least_the_live_bytes() {
    let program = decoder(&Config::with_layers(3));
    let model = PoolModel { rounding: Rounding::Multiple(64), flush_threshold_bytes: None };
    let (pool, arena) = (program.pool_plan(&DIMS, &KernelScratch, &model), program.plan(&DIMS, &KernelScratch));
    let live = arena.timeline.iter().map(|entry| entry.live_bytes + entry.scratch_bytes).max().unwrap();
    assert!(pool.peak_bytes >= live, "{} < {live}", pool.peak_bytes);
    let powers = PoolModel { rounding: Rounding::PowerOfTwo, ..model };
    assert!(program.pool_plan(&DIMS, &KernelScratch, &powers).peak_bytes >= live);
    let flushing = PoolModel { flush_threshold_bytes: Some(0), ..powers };
    let flushing = program.pool_plan(&DIMS, &KernelScratch, &flushing).peak_bytes;
    assert!(flushing <= program.pool_plan(&DIMS, &KernelScratch, &powers).peak_bytes);
}
