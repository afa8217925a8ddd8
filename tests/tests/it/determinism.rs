//! Logits and greedy tokens have the same bits however a prompt is cut, with any threads, instruction set and route.

use anyhow::{Context, Result, ensure};
use plimsoll_attention::{Isa, KvDtype, RouteKind};
use plimsoll_models::{CpuExecutor, CpuSettings, HashSteps, LogitRows, Model};
use plimsoll_tests::{
    compare::{RowHash, argmax, hash_rows},
    golden::Tiny,
    model::RandomLlama,
    pass::{chunks, feed, new_sequence},
    random::Random,
    row_trace::RowTrace,
};
use std::sync::Arc;

/// All number formats of weights, biases, odd head sizes, one KV head and several.
const CASES: [&str; 10] = [
    "tiny-gqa-6x2",
    "tiny-mha-5",
    "tiny-biases",
    "tiny-q4_1",
    "tiny-k-quants",
    "tiny-f16",
    "tiny-qwen3_moe-q8_0",
    "tiny-qwen3_next",
    "tiny-qwen3_5",
    "tiny-qwen3_5_moe",
];
pub(crate) const KV_DTYPES: [KvDtype; 3] = [KvDtype::F32, KvDtype::F16, KvDtype::Bf16];
/// Greedy steps after each prompt.
const STEPS: usize = 6;

/// A model and a prompt for it.
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) model: Arc<Model>,
    pub(crate) prompt: Vec<u32>,
}

impl Subject {
    pub(crate) fn load(name: &str, most_rows: usize) -> Result<Self> {
        let case = Tiny::load(name)?;
        let prompt = case.ids[..case.ids.len().min(most_rows)].to_vec();
        Ok(Self { name: name.to_owned(), model: case.model()?, prompt })
    }

    /// A random llama whose rows see `window` keys.
    fn windowed(window: usize, most_rows: usize) -> Result<Self> {
        let sizes = RandomLlama { sliding_window: Some(window), ..RandomLlama::small(2) };
        let prompt = Random::new(9).tokens(most_rows.min(300), sizes.vocab_size);
        Ok(Self { name: format!("window of {window}"), model: sizes.model(10)?, prompt })
    }

    pub(crate) fn all(most_rows: usize) -> Result<Vec<Self>> {
        let tiny = CASES.iter().map(|name| Self::load(name, most_rows));
        tiny.chain([5, 70].into_iter().map(|window| Self::windowed(window, most_rows))).collect()
    }

    pub(crate) fn executor(&self, threads: usize, dtype: KvDtype) -> Result<CpuExecutor> {
        Ok(CpuExecutor::new(Arc::clone(&self.model), CpuSettings::detect(threads, dtype))?)
    }

    pub(crate) fn vocab_size(&self) -> usize {
        self.model.architecture().dimensions.vocab_size
    }
}

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
    let mut trace = RowTrace::default();
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
        let subject = Subject::load(name, 140)?;
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

/// Settings that must change no bit: those of the products on each number of threads, those of attention, and the slowest of all.
fn all_settings(dtype: KvDtype) -> Vec<CpuSettings> {
    let mut all = Vec::new();
    for threads in [1, 2, 4] {
        let detected = CpuSettings::detect(threads, dtype);
        let products = plimsoll_linear::Isa::available();
        all.extend(products.map(|linear_isa| CpuSettings { linear_isa, ..detected }));
        for attention_isa in Isa::available() {
            let routes = [None, Some(RouteKind::Tiled), Some(RouteKind::Reference)].into_iter();
            all.extend(routes.map(|attention_route| CpuSettings { attention_isa, attention_route, ..detected }));
        }
    }
    let scalar = CpuSettings { linear_isa: plimsoll_linear::Isa::Scalar, attention_isa: Isa::Scalar, ..all[0] };
    all.push(CpuSettings { attention_route: Some(RouteKind::Reference), ..scalar });
    all
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
    let subject = Subject::load("tiny-gqa-6x2", 65)?;
    let run = |dtype, parts: &[usize]| trace(&mut subject.executor(1, dtype)?, &subject, parts);
    let f32_kv = run(KvDtype::F32, &[65])?;
    assert_eq!(f32_kv.first_difference(&run(KvDtype::F32, &[20, 45])?), None);
    // Keys and values enter at the first layer's attention, so that is where another KV type shows.
    let step = f32_kv.first_difference(&run(KvDtype::Bf16, &[65])?).context("f32 and bf16 KV gave the same bits")?;
    assert!(step.contains("\"layer 0") && step.to_lowercase().contains("attend"), "{step}");
    Ok(())
}
