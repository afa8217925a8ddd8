//! Logits and greedy tokens have the same bits however a prompt is cut, with any threads, instruction set and route.

use anyhow::{Context, Result, ensure};
use plimsoll_attention::KvDtype;
use plimsoll_models::{CpuExecutor, CpuSettings, HashSteps, LogitRows};
use plimsoll_tests::{
    compare::{RowHash, argmax, hash_rows},
    cpu_path::CpuPath,
    pass::{chunks, feed, new_sequence},
    random::Random,
    row_trace::RowTrace,
    subject::Subject,
};
use std::sync::Arc;

pub(crate) const KV_DTYPES: [KvDtype; 3] = [KvDtype::F32, KvDtype::F16, KvDtype::Bf16];
/// Greedy steps after each prompt.
const STEPS: usize = 6;

/// A hash of each prompt row's and each greedy step's logits, and the greedy tokens.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) rows: Vec<RowHash>,
    pub(crate) greedy: Vec<u32>,
}

pub(crate) fn outcome(executor: &mut CpuExecutor, subject: &Subject, parts: &[usize]) -> Result<Outcome> {
    let dtype = executor.settings().kv_dtype;
    let mut sequence = new_sequence(&subject.model, dtype, subject.prompt.len() + STEPS)?;
    let (mut rows, mut token) = (Vec::new(), 0);
    let mut keep = |logits: &[f32]| {
        rows.extend(hash_rows(logits, subject.vocab_size()));
        argmax(&logits[logits.len() - subject.vocab_size()..])
    };
    feed(executor, &mut sequence, &subject.prompt, parts, LogitRows::All, &mut (), |_, logits| token = keep(logits))?;
    let mut greedy = vec![token];
    while greedy.len() < STEPS {
        feed(executor, &mut sequence, &[token], &[1], LogitRows::Last, &mut (), |_, logits| token = keep(logits))?;
        greedy.push(token);
    }
    Ok(Outcome { rows, greedy })
}

/// What each step wrote for each prompt row.
fn trace(executor: &mut CpuExecutor, subject: &Subject, parts: &[usize]) -> Result<RowTrace> {
    let mut sequence = new_sequence(&subject.model, executor.settings().kv_dtype, subject.prompt.len())?;
    let mut trace = RowTrace::new(&subject.model);
    feed(executor, &mut sequence, &subject.prompt, parts, LogitRows::All, &mut trace, |_, _| {})?;
    Ok(trace)
}

/// Runs the prompt in these parts; where the outcome is not `want`, that of the whole prompt on one thread, names the first step at fault.
fn expect_same(want: &Outcome, executor: &mut CpuExecutor, subject: &Subject, parts: &[usize]) -> Result<()> {
    let got = outcome(executor, subject, parts)?;
    if got == *want {
        return Ok(());
    }
    let whole = [subject.prompt.len()];
    let mut plain = subject.executor(1, executor.settings().kv_dtype)?;
    let step = trace(&mut plain, subject, &whole)?.first_difference(&trace(executor, subject, parts)?);
    let row = got.rows.iter().zip(&want.rows).position(|(got, want)| got != want);
    anyhow::bail!(
        "{} in parts {parts:?}, {:?}: row {row:?} has other bits, greedy {:?} and {:?}; first step that parts: {step:?}",
        subject.name,
        executor.settings(),
        got.greedy,
        want.greedy
    );
}

#[test]
fn bits_do_not_depend_on_chunk_size_and_threads() -> Result<()> {
    for subject in Subject::all(700)? {
        let rows = subject.prompt.len();
        for dtype in KV_DTYPES {
            let want = outcome(&mut subject.executor(1, dtype)?, &subject, &[rows])?;
            for threads in [1, 2, 4] {
                let mut executor = subject.executor(threads, dtype)?;
                for chunk in [1, 7, 64, 256, rows] {
                    // Rows one by one on several threads: a part of the prompts is enough.
                    if chunk > 1 || threads == 1 || rows <= 65 {
                        expect_same(&want, &mut executor, &subject, &chunks(rows, chunk))?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// A recurrence carries its state, and a short convolution its last rows, over every border.
#[test]
fn a_hybrid_cut_at_any_border_has_the_same_bits() -> Result<()> {
    for name in ["tiny-qwen3_next", "tiny-qwen3_5", "tiny-qwen3_5_moe"] {
        let subject = Subject::golden(name, 140)?;
        let rows = subject.prompt.len();
        ensure!(rows > 64, "{name}: {rows} rows have no border between KV blocks");
        let want = outcome(&mut subject.executor(1, KvDtype::F32)?, &subject, &[rows])?;
        let mut executor = subject.executor(2, KvDtype::F32)?;
        for cut in 1..rows {
            expect_same(&want, &mut executor, &subject, &[cut, rows - cut])?;
        }
    }
    Ok(())
}

#[test]
fn bits_do_not_depend_on_how_a_prompt_is_cut() -> Result<()> {
    let mut random = Random::new(1);
    for subject in Subject::all(200)? {
        let rows = subject.prompt.len();
        for dtype in KV_DTYPES {
            let want = outcome(&mut subject.executor(1, dtype)?, &subject, &[rows])?;
            let mut executors =
                [1, 2, 4].map(|threads| subject.executor(threads, dtype)).into_iter().collect::<Result<Vec<_>>>()?;
            for partition in 0..50 {
                let executor = &mut executors[partition % 3];
                expect_same(&want, executor, &subject, &random.partition(rows))?;
            }
        }
    }
    Ok(())
}

/// Settings that must change no bit: every path of the CPU on each number of threads.
fn all_settings(dtype: KvDtype) -> Vec<CpuSettings> {
    let on = |threads| CpuPath::all(CpuSettings::detect(threads, dtype)).into_iter().map(|path| path.settings);
    [1, 2, 4].into_iter().flat_map(on).collect()
}

#[test]
fn every_step_writes_the_same_bytes_on_every_instruction_set_route_and_thread_count() -> Result<()> {
    for subject in Subject::all(70)? {
        // A chunk inside of a KV block, one across its end, and one row.
        let rows = subject.prompt.len();
        let parts = [rows / 2, rows - rows / 2 - 1, 1];
        for dtype in KV_DTYPES {
            let mut want: Option<HashSteps> = None;
            for settings in all_settings(dtype) {
                let mut executor = CpuExecutor::new(Arc::clone(&subject.model), settings)?;
                let mut sequence = new_sequence(&subject.model, dtype, rows)?;
                let mut got = HashSteps::default();
                feed(&mut executor, &mut sequence, &subject.prompt, &parts, LogitRows::All, &mut got, |_, _| {})?;
                let want = want.get_or_insert_with(|| HashSteps { hashes: got.hashes.clone() });
                ensure!(
                    got.hashes.len() == want.hashes.len() && !got.hashes.is_empty(),
                    "{}: step counts",
                    subject.name
                );
                if let Some((got, want)) = got.hashes.iter().zip(&want.hashes).find(|(got, want)| got != want) {
                    anyhow::bail!("{} with {settings:?}: {got:?} instead of {want:?}", subject.name);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn the_step_at_which_two_runs_part_is_named() -> Result<()> {
    let subject = Subject::golden("tiny-gqa-6x2", 65)?;
    let run = |dtype, parts: &[usize]| trace(&mut subject.executor(1, dtype)?, &subject, parts);
    let f32_kv = run(KvDtype::F32, &[65])?;
    assert_eq!(f32_kv.first_difference(&run(KvDtype::F32, &[20, 45])?), None);
    // Keys and values enter at the first layer's attention, so that is where another KV type shows.
    let found = f32_kv.first_difference(&run(KvDtype::Bf16, &[65])?).context("f32 and bf16 KV gave the same bits")?;
    assert!(found.label.starts_with("layer 0") && found.op.to_lowercase().contains("attend"), "{found}");
    assert_eq!(found.position, 0, "{found}");
    Ok(())
}
