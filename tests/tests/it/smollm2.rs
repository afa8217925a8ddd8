//! The default model against the f32 reference, and its bits against themselves.

use anyhow::{Context, Result, ensure};
use plimsoll_attention::{Isa, KvDtype};
use plimsoll_models::{CpuExecutor, CpuSettings, HashSteps, LogitRows, Model};
use plimsoll_tests::{
    compare::{RowHash, argmax, hash_rows, kl, ln_softmax, max_abs_diff},
    golden::{Tensors, info},
    kl::KlCase,
    model::default_model,
    pass::{chunks, feed, new_sequence},
};
use serde::Deserialize;
use std::sync::Arc;

const CASE: &str = "smollm2-135m";
const KL_CASE: &str = "smollm2-135m-kl";
/// What the estimate of the mean KL is held to, nats. A simulation of bf16 products gives 0.00015.
const MEAN_KL: f64 = 0.0005;

/// Runs `tokens` in these parts on a fresh sequence; `sink` gets row and logits of each wanted row.
fn run(
    model: &Arc<Model>,
    settings: CpuSettings,
    tokens: &[u32],
    parts: &[usize],
    wanted: LogitRows,
    mut sink: impl FnMut(usize, &[f32]),
) -> Result<()> {
    let mut executor = CpuExecutor::new(Arc::clone(model), settings)?;
    let mut sequence = new_sequence(model, settings.kv_dtype, tokens.len())?;
    let vocab_size = model.architecture().dimensions.vocab_size;
    feed(&mut executor, &mut sequence, tokens, parts, wanted, &mut (), |range, logits| {
        for (row, logits) in range.zip(logits.chunks_exact(vocab_size)) {
            sink(row, logits);
        }
    })
}

/// A hash per row of all rows' logits.
fn hashes(model: &Arc<Model>, settings: CpuSettings, tokens: &[u32], chunk: usize) -> Result<Vec<RowHash>> {
    let mut rows = Vec::new();
    run(model, settings, tokens, &chunks(tokens.len(), chunk), LogitRows::All, |_, logits| {
        rows.extend(hash_rows(logits, logits.len()));
    })?;
    Ok(rows)
}

#[test]
#[ignore = "slow: 3 s, needs the default model"]
fn logits_are_near_those_of_the_f32_reference() -> Result<()> {
    let tensors = Tensors::open(CASE, "logits.safetensors")?;
    let (ids, rows, want) = (tensors.ids("ids")?, tensors.ids("rows")?, tensors.f32s("logits")?);
    let width = want.len() / rows.len();
    // Each kept row ends a part.
    let ends = rows.iter().map(|&row| row as usize + 1);
    let parts: Vec<usize> = ends.scan(0, |last, end| Some(end - std::mem::replace(last, end))).collect();
    let mut kept = want.chunks_exact(width);
    run(&default_model()?, CpuSettings::detect(2, KvDtype::F16), &ids, &parts, LogitRows::Last, |row, logits| {
        let want = kept.next().expect("one row for each part");
        let diff = max_abs_diff(logits, want);
        let nats = kl(&ln_softmax(want), &ln_softmax(logits));
        println!("row {row}: {diff:.4} apart at most, KL {nats:.6} nats");
        assert!(diff <= 1.0 && nats < 0.005, "row {row}: {diff} apart, KL {nats}");
    })?;
    ensure!(kept.next().is_none(), "a row was not compared");
    Ok(())
}

#[test]
#[ignore = "slow: 3 s, needs the default model"]
fn greedy_tokens_are_those_of_the_reference_where_its_margin_is_safe() -> Result<()> {
    #[derive(Deserialize)]
    struct Info {
        safe_margin: f32,
        chats: Vec<serde_json::Value>,
    }
    let (info, tensors, model) = (info::<Info>(CASE)?, Tensors::open(CASE, "logits.safetensors")?, default_model()?);
    ensure!(info.chats.len() == 2, "two chats");
    for chat in 0..info.chats.len() {
        let (prompt, greedy) = (tensors.ids(&format!("prompt{chat}"))?, tensors.ids(&format!("greedy{chat}"))?);
        let margins = tensors.f32s(&format!("margins{chat}"))?;
        let tokens = [&prompt[..], &greedy[..greedy.len() - 1]].concat();
        let first = prompt.len() - 1;
        let (mut safe, mut same) = (0, 0);
        let settings = CpuSettings::detect(2, KvDtype::F16);
        run(&model, settings, &tokens, &chunks(tokens.len(), 32), LogitRows::All, |row, logits| {
            let Some(step) = row.checked_sub(first) else { return };
            let token = argmax(logits);
            same += usize::from(token == greedy[step]);
            if margins[step] >= info.safe_margin {
                safe += 1;
                assert_eq!(token, greedy[step], "chat {chat}, step {step}, margin {}", margins[step]);
            }
        })?;
        println!("chat {chat}: {safe} of {} steps are safe, {same} equal", greedy.len());
        ensure!(safe > greedy.len() / 2, "only {safe} steps of chat {chat} are safe");
    }
    Ok(())
}

#[test]
#[ignore = "slow: 20 s, needs the default model"]
fn mean_kl_from_the_f32_reference_stays_under_its_bound() -> Result<()> {
    let case = KlCase::load(KL_CASE)?;
    let bounds = case.bounds;
    ensure!(MEAN_KL < bounds.mean_kl_aim && bounds.mean_kl_aim < bounds.mean_kl, "bounds are out of order");
    let model = default_model()?;
    for dtype in [KvDtype::F16, KvDtype::Bf16] {
        let found = case.measure(&model, CpuSettings::detect(2, dtype))?;
        println!(
            "KV {dtype:?}: mean KL {:.6} nats over {} rows, worst row {:.4}, same top token {:.4}",
            found.mean_kl, found.rows, found.worst_kl, found.same_top_token
        );
        ensure!(found.rows >= 1000, "{} rows were compared", found.rows);
        ensure!(found.mean_kl <= MEAN_KL, "KV {dtype:?}: mean KL {} over {MEAN_KL}", found.mean_kl);
        ensure!(found.same_top_token >= bounds.same_top_token, "KV {dtype:?}: same top token {}", found.same_top_token);
    }
    Ok(())
}

fn prompt() -> Result<Vec<u32>> {
    Tensors::open(CASE, "logits.safetensors")?.ids("ids")
}

fn expect_same(what: &str, got: &[RowHash], want: &[RowHash]) -> Result<()> {
    let row = got.iter().zip(want).position(|(got, want)| got != want);
    ensure!(row.is_none() && got.len() == want.len(), "{what}: row {row:?} has other bits");
    Ok(())
}

#[test]
#[ignore = "slow: 70 s, needs the default model"]
fn bits_of_every_row_are_the_same_in_all_chunks_and_threads() -> Result<()> {
    let (model, prompt) = (default_model()?, prompt()?);
    for dtype in [KvDtype::F16, KvDtype::Bf16, KvDtype::F32] {
        let want = hashes(&model, CpuSettings::detect(2, dtype), &prompt, prompt.len())?;
        for (chunk, rows, threads) in [(512, 512, 1), (64, 512, 2), (7, 512, 2), (1, 64, 1)] {
            let got = hashes(&model, CpuSettings::detect(threads, dtype), &prompt[..rows], chunk)?;
            let what = format!("KV {dtype:?}, chunks of {chunk}, {threads} threads");
            expect_same(&what, &got, &want[..rows])?;
            println!("{what}: {rows} rows have the same bits");
        }
    }
    Ok(())
}

#[test]
#[ignore = "slow: 60 s, needs the default model"]
fn every_step_writes_the_same_bytes_on_every_instruction_set() -> Result<()> {
    let (model, prompt) = (default_model()?, prompt()?);
    let prompt = &prompt[..24];
    let steps = |settings: CpuSettings| -> Result<HashSteps> {
        let mut executor = CpuExecutor::new(Arc::clone(&model), settings)?;
        let mut sequence = new_sequence(&model, settings.kv_dtype, prompt.len())?;
        let mut steps = HashSteps::default();
        feed(&mut executor, &mut sequence, prompt, &[20, 3, 1], LogitRows::Last, &mut steps, |_, _| {})?;
        Ok(steps)
    };
    for dtype in [KvDtype::F16, KvDtype::Bf16, KvDtype::F32] {
        let fast = CpuSettings::detect(2, dtype);
        let want = steps(fast)?;
        let scalar = CpuSettings { linear_isa: plimsoll_linear::Isa::Scalar, attention_isa: Isa::Scalar, ..fast };
        let got = steps(scalar)?;
        ensure!(got.hashes.len() == want.hashes.len(), "step counts differ");
        let difference = got.hashes.iter().zip(&want.hashes).find(|(got, want)| got != want);
        ensure!(difference.is_none(), "KV {dtype:?}: {difference:?}");
        let last = want.hashes.last().context("no steps")?;
        println!("KV {dtype:?}: {} steps are equal, the last one {}", want.hashes.len(), last.op);
    }
    Ok(())
}
