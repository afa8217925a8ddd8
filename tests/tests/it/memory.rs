//! A pass takes what was planned, to the byte, and leaves nothing behind.

use anyhow::Result;
use plimsoll_attention::KvDtype;
use plimsoll_models::{CpuExecutor, CpuSettings, LogitRows, Model, PassStats, Segment};
use plimsoll_program::Dims;
use plimsoll_tests::{
    golden::Tiny,
    model::RandomLlama,
    pass::{candle_session, extend_all, new_sequence},
    random::Random,
};
use std::sync::Arc;

/// Runs `rows` rows after `start` others in each of `segments` sequences. Returns the sizes of that pass and what it used.
fn pass(
    executor: &mut CpuExecutor,
    segments: usize,
    rows: usize,
    start: usize,
    wanted: LogitRows,
) -> Result<(Dims, PassStats)> {
    let model = Arc::clone(executor.model());
    let tokens = Random::new(4).tokens(start + rows, model.architecture().dimensions.vocab_size);
    let dtype = executor.settings().kv_dtype;
    let mut sequences = (0..segments).map(|_| new_sequence(&model, dtype, start + rows)).collect::<Result<Vec<_>>>()?;
    if start > 0 {
        for sequence in &mut sequences {
            let mut before = [Segment { sequence, tokens: &tokens[..start], start: 0 }];
            executor.run(&mut before, LogitRows::None, &mut ())?;
        }
    }
    let mut segments: Vec<_> =
        sequences.iter_mut().map(|sequence| Segment { sequence, tokens: &tokens[start..], start }).collect();
    let logits = executor.run(&mut segments, wanted, &mut ())?;
    let dims = Dims { rows: rows * segments.len(), logit_rows: logits.rows, kv_len: start + rows };
    Ok((dims, executor.stats()))
}

/// Arena, high water and plan are one number.
fn expect_planned(name: &str, model: &Arc<Model>, settings: CpuSettings) -> Result<()> {
    let mut executor = CpuExecutor::new(Arc::clone(model), settings)?;
    for (segments, rows, start) in
        [(1, 1, 0), (1, 1, 200), (1, 7, 64), (1, 64, 0), (1, 129, 65), (3, 1, 70), (2, 33, 5)]
    {
        for wanted in [LogitRows::None, LogitRows::Last, LogitRows::All] {
            let (dims, stats) = pass(&mut executor, segments, rows, start, wanted)?;
            let plan = executor.plan(&dims);
            let what = format!("{name}, {segments} segments, {dims:?}, {settings:?}");
            assert_eq!(stats.arena_bytes, plan.peak_bytes, "arena and plan: {what}");
            assert_eq!(stats.high_water_bytes, plan.peak_bytes, "high water and plan: {what}");
            assert_eq!(executor.planned_bytes(&dims), plan.peak_bytes, "the plan without a timeline: {what}");
            assert!(stats.arena_bytes > 0, "{what}");
        }
    }
    Ok(())
}

#[test]
fn high_water_arena_and_plan_are_equal_on_every_tiny_model() -> Result<()> {
    for case in Tiny::all()? {
        let model = case.model()?;
        for (threads, dtype) in [(1, KvDtype::F32), (2, KvDtype::Bf16), (4, KvDtype::F16)] {
            expect_planned(&case.name, &model, CpuSettings::detect(threads, dtype))?;
        }
    }
    Ok(())
}

#[test]
fn the_arena_does_not_grow_with_depth_or_context() -> Result<()> {
    let peak = |layers, start| -> Result<u64> {
        let settings = CpuSettings::detect(2, KvDtype::F16);
        let mut executor = CpuExecutor::new(RandomLlama::small(layers).model(5)?, settings)?;
        Ok(pass(&mut executor, 1, 64, start, LogitRows::Last)?.1.arena_bytes)
    };
    let shallow = peak(2, 0)?;
    assert_eq!(peak(60, 0)?, shallow, "60 layers");
    assert_eq!(peak(2, 900)?, shallow, "900 tokens of context");
    Ok(())
}

#[test]
fn live_temporaries_are_the_same_handful_at_2_and_at_60_layers() -> Result<()> {
    let mut counts = Vec::new();
    for layers in [2, 60] {
        let model = RandomLlama::small(layers).model(5)?;
        let mut executor = CpuExecutor::new(Arc::clone(&model), CpuSettings::detect(2, KvDtype::F32))?;
        for (rows, wanted) in [(64, LogitRows::None), (64, LogitRows::Last), (1, LogitRows::Last), (5, LogitRows::All)]
        {
            counts.push(pass(&mut executor, 1, rows, 0, wanted)?.1.live_temporaries);
        }
        let mut candle = candle_session(&model)?;
        extend_all(&mut candle, &Random::new(6).tokens(64, 101), &[64])?;
        counts.push(candle.executor().live_temporaries());
    }
    println!("live temporaries after a pass: {counts:?}");
    assert!(counts.iter().all(|&count| count == counts[0] && count <= 4), "{counts:?}");
    Ok(())
}
