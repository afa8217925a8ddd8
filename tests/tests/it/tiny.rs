//! Tiny random llamas of odd shapes against `transformers`, and the two executors against each other.

use anyhow::{Context, Result, ensure};
use plimsoll_attention::KvDtype;
use plimsoll_models::{Constant, Model, Session};
use plimsoll_tests::{
    compare::max_abs_diff,
    golden::{Form, Tiny},
    model::{RandomLlama, load},
    pass::{candle_session, chunks, cpu_session, extend_all, greedy},
    random::Random,
};
use std::sync::Arc;

/// Prefill in chunks of 48 rows.
const CHUNK: usize = 48;

/// Largest difference of the kept rows, relative to the reference's range; and the greedy tokens that count.
fn measure(case: &Tiny, session: &mut impl Session) -> Result<(f32, Vec<u32>)> {
    let logits = extend_all(session, &case.ids, &chunks(case.ids.len(), CHUNK))?;
    let width = logits.len() / case.ids.len();
    let row = |row: usize| &logits[row * width..][..width];
    let kept: Vec<f32> = case.rows.iter().flat_map(|&index| row(index)).copied().collect();
    ensure!(kept.len() == case.logits.len(), "{}: {} logits, {} kept", case.name, kept.len(), case.logits.len());
    let tokens = greedy(session, row(case.ids.len() - 1), case.checks.greedy_steps)?;
    Ok((max_abs_diff(&kept, &case.logits) / case.checks.logits_range, tokens))
}

/// Whether all products of the model are in f32. A case of a block format has a folder with the same weights as f32.
fn multiplies_in_f32(model: &Model) -> bool {
    let program = &model.architecture().program;
    program.constants().iter().all(|&slot| !model.weight_types().of(slot).multiplies_in_bf16())
}

#[test]
fn every_tiny_model_gives_the_logits_and_greedy_tokens_of_the_reference() -> Result<()> {
    let mut faults = Vec::new();
    let cases: Vec<Tiny> = Tiny::every()?.into_iter().filter(Tiny::is_supported).collect();
    let forms = cases.iter().flat_map(|case| case.forms().into_iter().map(move |form| (case, form)));
    for (case, form) in forms {
        let dialect = if form == Form::Folder { "folder" } else { "gguf" };
        let model = match load(&case.path(form)) {
            Ok(model) => model,
            Err(error) => {
                faults.push(format!("{} {dialect}: {error:#}", case.name));
                continue;
            }
        };
        let is_f32 = multiplies_in_f32(&model);
        let dtypes: &[KvDtype] = if is_f32 { &[KvDtype::F32] } else { &[KvDtype::Bf16, KvDtype::F32] };
        let checks = &case.checks;
        let bound = match checks.max_diff_of_range_f32 {
            Some(bound) if is_f32 => bound,
            _ => checks.max_diff_of_range,
        };
        for &dtype in dtypes {
            let mut session = cpu_session(&model, 2, dtype, case.ids.len() + case.greedy.len())?;
            let (diff, tokens) = measure(case, &mut session)?;
            let steps = checks.greedy_steps;
            let same = tokens.iter().zip(&case.greedy[..steps]).take_while(|(ours, theirs)| ours == theirs).count();
            println!(
                "{:26} {dialect:6} products {} KV {dtype:?}: {diff:.2e} of the range, bound {bound:.1e}; greedy {same} of {steps}",
                case.name,
                if is_f32 { "f32 " } else { "bf16" }
            );
            if diff > bound || same < steps {
                faults.push(format!(
                    "{} {dialect} KV {dtype:?}: {diff:.2e} of {bound:.1e}, greedy {same} of {steps}",
                    case.name
                ));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    Ok(())
}

fn inverse_frequencies(model: &Model) -> Result<&[f32]> {
    let program = &model.architecture().program;
    let slot = program.constants().iter().find(|&&slot| program.slot(slot).name == "rope.inv_freq");
    match model.constant(*slot.context("no rope.inv_freq")?) {
        Some(Constant::Vector(values)) => Ok(values),
        other => anyhow::bail!("rope.inv_freq is {other:?}"),
    }
}

#[test]
fn inverse_frequencies_are_those_of_the_reference() -> Result<()> {
    for case in Tiny::all()? {
        let model = case.model()?;
        let ours = inverse_frequencies(&model)?;
        assert_eq!(ours.len(), case.inv_freq.len(), "{}", case.name);
        for (index, (a, b)) in ours.iter().zip(&case.inv_freq).enumerate() {
            assert!((a - b).abs() <= 1e-6 * b.abs(), "{} frequency {index}: {a}, reference {b}", case.name);
        }
    }
    Ok(())
}

#[test]
fn the_candle_executor_and_the_cpu_executor_agree_in_any_chunks() -> Result<()> {
    let mut compared = 0;
    for case in Tiny::all()?.iter().filter(|case| case.checks.products == "f32") {
        let diff = executors_apart(&case.model()?, &case.ids)?;
        println!("{:22} {diff:.2e} of the range apart at most", case.name);
        assert!(diff <= 1e-4, "{}: {diff:.2e} of the range", case.name);
        compared += 1;
    }
    assert!(compared >= 9, "{compared} f32 cases");
    Ok(())
}

#[test]
fn the_executors_agree_on_a_sliding_window() -> Result<()> {
    for window in [1, 5, 64, 70] {
        let sizes = RandomLlama { sliding_window: Some(window), ..RandomLlama::small(2) };
        let diff = executors_apart(&sizes.model(1)?, &Random::new(2).tokens(200, sizes.vocab_size))?;
        println!("window of {window}: {diff:.2e} of the range apart at most");
        assert!(diff <= 1e-4, "window of {window}: {diff:.2e} of the range");
    }
    Ok(())
}

/// Largest difference between the two executors' logits of any row, relative to their range, in whole and in chunks.
fn executors_apart(model: &Arc<Model>, ids: &[u32]) -> Result<f32> {
    let rows = ids.len();
    let mut session = cpu_session(model, 2, KvDtype::F32, rows)?;
    let ours = extend_all(&mut session, ids, &[rows])?;
    let live = session.executor().stats().live_temporaries;
    ensure!(live <= 4, "{live} temporaries outlive a pass");
    let range = ours.iter().copied().fold(f32::MIN, f32::max) - ours.iter().copied().fold(f32::MAX, f32::min);
    let mut apart = 0.0_f32;
    for chunk in [rows, 50, 7] {
        let mut candle = candle_session(model)?;
        let theirs = extend_all(&mut candle, ids, &chunks(rows, chunk))?;
        apart = apart.max(max_abs_diff(&ours, &theirs) / range);
        let theirs = candle.executor().live_temporaries();
        ensure!(theirs == live, "live temporaries: {live}, {theirs} in chunks of {chunk}");
    }
    Ok(apart)
}
