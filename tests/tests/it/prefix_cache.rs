//! A prompt whose beginning comes from a cache, from memory or from disk, has the bits of one that was computed whole; a fork's rows too.

use anyhow::{Context, Result, ensure};
use plimsoll_attention::KvDtype;
use plimsoll_kvcache::{DiskOptions, PrefixCache, Sequence, Snapshots};
use plimsoll_memguard::{Budget, Kind, Ledger};
use plimsoll_models::{CpuExecutor, CpuSession, CpuSettings, LogitRows, Model, PromptTarget, Segment, Session};
use plimsoll_prefill::{Chunk, ChunkTarget};
use plimsoll_tests::{
    compare::{RowHash, hash_rows},
    golden::Tiny,
    model::RandomLlama,
    pass::greedy,
    random::Random,
};
use std::{num::NonZeroUsize, ops::Range, path::Path, sync::Arc};

const STEPS: usize = 5;
const MAX_TOKENS: usize = 320;

struct Subject {
    name: String,
    model: Arc<Model>,
    dtype: KvDtype,
}

impl Subject {
    /// Every layer sees all; windows of several widths; recurrent layers, with and without experts.
    fn all() -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for (name, dtype) in [
            ("tiny-gqa-6x2", KvDtype::Bf16),
            ("tiny-gqa-6x2", KvDtype::F32),
            ("tiny-gemma3", KvDtype::F32),
            ("tiny-gemma3", KvDtype::F16),
            ("tiny-qwen3_next", KvDtype::F32),
            ("tiny-qwen3_5_moe", KvDtype::Bf16),
        ] {
            all.push(Self { name: name.to_owned(), model: Tiny::load(name)?.model()?, dtype });
        }
        for window in [5, 100] {
            let sizes = RandomLlama { sliding_window: Some(window), ..RandomLlama::small(2) };
            all.push(Self { name: format!("window of {window}"), model: sizes.model(10)?, dtype: KvDtype::Bf16 });
        }
        Ok(all)
    }

    fn settings(&self) -> CpuSettings {
        let count = |count| NonZeroUsize::new(count).expect("not zero");
        CpuSettings {
            max_chunk_rows: Some(64),
            snapshots: Some(Snapshots { every_blocks: count(1), keep: count(8) }),
            ..CpuSettings::detect(2, self.dtype)
        }
    }

    fn vocab_size(&self) -> usize {
        self.model.architecture().dimensions.vocab_size
    }

    fn session(&self, ledger: &Ledger) -> Result<CpuSession> {
        let settings = self.settings();
        let spec = settings.kv_spec(self.model.architecture());
        let reservation = ledger.reserve(Kind::Kv, spec.bytes(MAX_TOKENS))?;
        let executor = CpuExecutor::new(Arc::clone(&self.model), settings)?;
        Ok(CpuSession::new(executor, Sequence::new(&spec, MAX_TOKENS, reservation)?, ()))
    }

    fn cache(&self, ledger: &Ledger, folder: &Path) -> Result<PrefixCache> {
        let settings = self.settings();
        let spec = settings.kv_spec(self.model.architecture());
        let disk = DiskOptions { folder: folder.to_owned(), limit_bytes: 1 << 30 };
        let identity = self.model.cache_identity(&settings);
        Ok(PrefixCache::with_disk(ledger, &spec, &identity, u64::MAX, &disk)?)
    }

    /// Tokens that came from the cache, the logits of the rows after them, and greedy tokens.
    fn answer(&self, ledger: &Ledger, cache: Option<&PrefixCache>, prompt: &[u32]) -> Result<Answer> {
        let mut session = self.session(ledger)?;
        let cached = cache.map_or(Ok(0), |cache| session.restore(cache, prompt))?;
        ensure!(cached == session.len() && cached < prompt.len(), "{}: {cached} cached tokens", self.name);
        let (mut rows, mut last) = (Vec::new(), Vec::new());
        let mut sink = |_: Range<usize>, logits: &[f32]| {
            rows.extend(hash_rows(logits, self.vocab_size()));
            last = logits[logits.len() - self.vocab_size()..].to_vec();
        };
        let mut target = PromptTarget::new(&mut session, prompt, LogitRows::All, &mut sink);
        if let Some(cache) = cache {
            target = target.publishing_to(cache);
        }
        for start in (cached..prompt.len()).step_by(64) {
            let rows = (prompt.len() - start).min(64);
            target.run(&Chunk { start, rows, last: start + rows == prompt.len() })?;
        }
        let greedy = greedy(&mut session, &last, STEPS)?;
        Ok(Answer { cached, rows, greedy })
    }
}

struct Answer {
    cached: usize,
    rows: Vec<RowHash>,
    greedy: Vec<u32>,
}

#[test]
fn a_hit_has_the_bits_of_a_miss() -> Result<()> {
    for subject in Subject::all()? {
        let (name, dtype) = (&subject.name, subject.dtype);
        let mut random = Random::new(3);
        let first = random.tokens(300, subject.vocab_size());
        let half = [&first[..150], &random.tokens(140, subject.vocab_size())].concat();
        let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir()?);
        let [want_first, want_half] =
            [&first, &half].map(|prompt| subject.answer(&ledger, None, prompt).context("without a cache"));
        let (want_first, want_half) = (want_first?, want_half?);
        let cache = subject.cache(&ledger, folder.path())?;
        let restarted = subject.cache(&ledger, folder.path())?;
        for (what, cache, prompt, want, cached) in [
            ("cold", &cache, &first, &want_first, 0),
            ("half hit", &cache, &half, &want_half, 128),
            ("full hit", &cache, &first, &want_first, 256),
            ("full hit on disk", &restarted, &first, &want_first, 256),
            ("memory and disk", &restarted, &half, &want_half, 256),
        ] {
            let got = subject.answer(&ledger, Some(cache), prompt)?;
            cache.finish(|| false);
            ensure!(got.cached == cached, "{name} KV {dtype:?}, {what}: {} cached tokens", got.cached);
            ensure!(got.rows == want.rows[cached..], "{name} KV {dtype:?}, {what}: other bits");
            ensure!(got.greedy == want.greedy, "{name} KV {dtype:?}, {what}: other greedy tokens");
        }
        drop(restarted);
        cache.clear();
        ensure!(ledger.usage().reserved_bytes() == 0, "{name}: {:?}", ledger.usage());
    }
    Ok(())
}

#[test]
fn a_recurrent_prompt_is_found_at_the_same_border_however_it_was_cut() -> Result<()> {
    const EVERY: usize = 192;
    const TOKENS: usize = 700;
    for name in ["tiny-qwen3_next", "tiny-qwen3_5"] {
        let model = Tiny::load(name)?.model()?;
        let vocab_size = model.architecture().dimensions.vocab_size;
        let mut random = Random::new(8);
        let prompt = random.tokens(TOKENS, vocab_size);
        let other = [&prompt[..450], &random.tokens(250, vocab_size)].concat();
        let ledger = Ledger::new(Budget::Unlimited);
        // The tokens found, and the logits of all rows after them.
        let run = |tokens: &[u32], cache: Option<&PrefixCache>, chunk: usize| -> Result<(usize, Vec<RowHash>)> {
            let settings = cut(chunk, EVERY);
            let spec = settings.kv_spec(model.architecture());
            let sequence = Sequence::new(&spec, TOKENS, ledger.reserve(Kind::Kv, spec.bytes(TOKENS))?)?;
            let mut session = CpuSession::new(CpuExecutor::new(Arc::clone(&model), settings)?, sequence, ());
            let cached = cache.map_or(Ok(0), |cache| session.restore(cache, tokens))?;
            let mut rows = Vec::new();
            let mut sink = |_: Range<usize>, logits: &[f32]| rows.extend(hash_rows(logits, vocab_size));
            let mut target = PromptTarget::new(&mut session, tokens, LogitRows::All, &mut sink);
            if let Some(cache) = cache {
                target = target.publishing_to(cache);
            }
            for start in (cached..TOKENS).step_by(chunk) {
                let rows = (TOKENS - start).min(chunk);
                target.run(&Chunk { start, rows, last: start + rows == TOKENS })?;
            }
            Ok((cached, rows))
        };
        let (_, want_prompt) = run(&prompt, None, 64)?;
        let (_, want_other) = run(&other, None, 64)?;
        for chunk in [1, 7, 64, 100, 512, TOKENS] {
            let folder = tempfile::tempdir()?;
            let open = || -> Result<PrefixCache> {
                let (settings, folder) = (cut(chunk, EVERY), folder.path().to_owned());
                let (spec, disk) =
                    (settings.kv_spec(model.architecture()), DiskOptions { folder, limit_bytes: 1 << 30 });
                Ok(PrefixCache::with_disk(&ledger, &spec, &model.cache_identity(&settings), 0, &disk)?)
            };
            let (cached, rows) = run(&prompt, Some(&open()?), chunk)?;
            ensure!((cached, &rows) == (0, &want_prompt), "{name}, chunks of {chunk}: other bits");
            for (tokens, want, border) in [(&other, &want_other, 384), (&prompt, &want_prompt, 576)] {
                let (cached, rows) = run(tokens, Some(&open()?), 100)?;
                ensure!(cached == border, "{name}, chunks of {chunk}: {cached} tokens found, not {border}");
                ensure!(rows == want[border..], "{name}, chunks of {chunk}: other bits after {border} tokens");
            }
        }
    }
    Ok(())
}

/// Settings for chunks of so many rows and a state every so many tokens.
fn cut(chunk: usize, every_tokens: usize) -> CpuSettings {
    let count = |count| NonZeroUsize::new(count).expect("not zero");
    let snapshots = Snapshots { every_blocks: count(every_tokens / 64), keep: count(chunk.div_ceil(every_tokens)) };
    CpuSettings { max_chunk_rows: Some(chunk), snapshots: Some(snapshots), ..CpuSettings::detect(2, KvDtype::Bf16) }
}

#[test]
fn a_fork_decodes_as_the_sequence_that_it_was_taken_from() -> Result<()> {
    for subject in Subject::all()? {
        let mut random = Random::new(5);
        let prompt = random.tokens(130, subject.vocab_size());
        let tails = [0, 1].map(|_| random.tokens(70, subject.vocab_size()));
        let settings = subject.settings();
        let spec = settings.kv_spec(subject.model.architecture());
        let ledger = Ledger::new(Budget::Unlimited);
        let mut executor = CpuExecutor::new(Arc::clone(&subject.model), settings)?;
        let mut feed = |sequence: &mut Sequence, tokens: &[u32], most_rows: usize| -> Result<Vec<RowHash>> {
            let mut rows = Vec::new();
            for tokens in tokens.chunks(most_rows) {
                let start = sequence.len();
                let logits = executor.run(&mut [Segment { sequence, tokens, start }], LogitRows::All, &mut ())?;
                rows.extend(hash_rows(logits.values, logits.vocab_size));
            }
            Ok(rows)
        };
        let empty = || -> Result<Sequence> {
            Ok(Sequence::new(&spec, MAX_TOKENS, ledger.reserve(Kind::Kv, spec.bytes(MAX_TOKENS))?)?)
        };
        let mut parent = empty()?;
        feed(&mut parent, &prompt, 64)?;
        let mut fork = parent.fork(MAX_TOKENS, ledger.reserve(Kind::Kv, parent.fork_bytes(MAX_TOKENS))?)?;
        // In turns, so that each writes while the other still holds the shared block.
        let mut got = [Vec::new(), Vec::new()];
        for (first, second) in tails[0].chunks(7).zip(tails[1].chunks(7)) {
            got[0].extend(feed(&mut parent, first, 1)?);
            got[1].extend(feed(&mut fork, second, 7)?);
        }
        for (got, tail) in got.iter().zip(&tails) {
            let mut alone = empty()?;
            feed(&mut alone, &prompt, 64)?;
            ensure!(*got == feed(&mut alone, tail, 64)?, "{} KV {:?}: other bits", subject.name, subject.dtype);
        }
    }
    Ok(())
}

#[test]
fn a_recurrent_sequence_goes_back_to_its_snapshots() -> Result<()> {
    for name in ["tiny-qwen3_next", "tiny-qwen3_5"] {
        let subject = Subject { name: name.to_owned(), model: Tiny::load(name)?.model()?, dtype: KvDtype::F32 };
        let prompt = Random::new(6).tokens(200, subject.vocab_size());
        let ledger = Ledger::new(Budget::Unlimited);
        let want = subject.answer(&ledger, None, &prompt)?.rows;
        let mut executor = CpuExecutor::new(Arc::clone(&subject.model), subject.settings())?;
        let spec = subject.settings().kv_spec(subject.model.architecture());
        let mut sequence = Sequence::new(&spec, 200, ledger.reserve(Kind::Kv, spec.bytes(200))?)?;
        for tokens in prompt.chunks(64) {
            let start = sequence.len();
            executor.run(&mut [Segment { sequence: &mut sequence, tokens, start }], LogitRows::None, &mut ())?;
        }
        for start in [192, 64, 128] {
            let refused = sequence.truncate(start + 3);
            let from = match refused {
                Err(plimsoll_kvcache::Error::NeedsPrefill { from, .. }) => from,
                other => anyhow::bail!("{name}: {other:?}"),
            };
            ensure!(from == start, "{name}: back to {from}, not {start}");
            for tokens in prompt[start..].chunks(64) {
                let start = if sequence.len() == 200 { start } else { sequence.len() };
                let logits =
                    executor.run(&mut [Segment { sequence: &mut sequence, tokens, start }], LogitRows::All, &mut ())?;
                ensure!(hash_rows(logits.values, logits.vocab_size) == want[start..start + tokens.len()], "{name}");
            }
        }
    }
    Ok(())
}

#[test]
fn windows_are_priced_at_the_window_and_one_chunk() -> Result<()> {
    let model = Tiny::load("tiny-gemma3")?.model()?;
    let settings = CpuSettings { max_chunk_rows: Some(64), ..CpuSettings::detect(1, KvDtype::F32) };
    // One KV head of 14; a window of 37 with a chunk of 64 straddles three blocks at the most; one of seven layers sees everything.
    let block = 64 * 2 * 14 * 4;
    let spec = settings.kv_spec(model.architecture());
    assert_eq!(spec.bytes(6400), (100 + 6 * 3) * block);
    let whole = CpuSettings { max_chunk_rows: None, ..settings }.kv_spec(model.architecture());
    assert_eq!(whole.bytes(6400), 7 * 100 * block);
    Ok(())
}

#[test]
fn a_models_name_in_a_cache_follows_its_weights_program_and_route() -> Result<()> {
    let settings = CpuSettings::detect(1, KvDtype::F32);
    let load = |name: &str| -> Result<_> { Ok(Tiny::load(name)?.model()?.cache_identity(&settings)) };
    let first = load("tiny-gqa-6x2")?;
    assert_eq!(first, load("tiny-gqa-6x2")?, "loaded twice");
    assert_ne!(first, load("tiny-gqa-3x1")?);
    let model = |seed| RandomLlama::small(2).model(seed);
    assert_ne!(model(1)?.cache_identity(&settings), model(2)?.cache_identity(&settings), "other weights");
    let windowed = RandomLlama { sliding_window: Some(9), ..RandomLlama::small(2) }.model(1)?;
    assert_ne!(model(1)?.cache_identity(&settings), windowed.cache_identity(&settings), "another program");
    let threads = CpuSettings { threads: 3, max_chunk_rows: Some(7), ..settings };
    assert_eq!(model(1)?.cache_identity(&settings), model(1)?.cache_identity(&threads), "what changes no bit");
    let route = Some(plimsoll_attention::RouteKind::Reference);
    let routed = CpuSettings { attention_route: route, ..settings };
    assert_ne!(model(1)?.cache_identity(&settings), model(1)?.cache_identity(&routed));
    Ok(())
}
