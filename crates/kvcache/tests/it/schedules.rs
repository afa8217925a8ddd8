//! Random schedules of everything that sequences and caches do, against plain lists of tokens.

use super::plain_model::{IDENTITY, cold, content, empty, hybrid, try_run, windowed};
use plimsoll_kvcache::{DiskOptions, Error, KvSpec, PrefixCache, Sequence};
use plimsoll_memguard::{Budget, Kind, Ledger};
use proptest::prelude::*;
use std::path::Path;
use std::thread;
use std::time::Duration;

const MAX_TOKENS: usize = 400;

#[derive(Debug, Clone)]
enum Step {
    /// A new request: a prompt of some version, as long as said, restored as far as the cache goes.
    Start {
        version: u32,
        tokens: usize,
    },
    Append {
        of: usize,
        rows: usize,
    },
    Truncate {
        of: usize,
        back: usize,
    },
    Fork {
        of: usize,
    },
    Publish {
        of: usize,
    },
    Drop {
        of: usize,
    },
    /// Someone else takes memory for a moment.
    Pressure {
        blocks: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let of = || 0..8usize;
    let step = prop_oneof![
        2 => (0..3u32, 1..300usize).prop_map(|(version, tokens)| Step::Start { version, tokens }),
        4 => (of(), 1..150usize).prop_map(|(of, rows)| Step::Append { of, rows }),
        2 => (of(), 0..200usize).prop_map(|(of, back)| Step::Truncate { of, back }),
        1 => of().prop_map(|of| Step::Fork { of }),
        3 => of().prop_map(|of| Step::Publish { of }),
        2 => of().prop_map(|of| Step::Drop { of }),
        1 => (0..20u64).prop_map(|blocks| Step::Pressure { blocks }),
    ];
    prop::collection::vec(step, 1..40)
}

/// Prompts of one version begin alike for 150 tokens with those of the next.
fn token(version: u32, at: usize) -> u32 {
    u32::try_from(at).unwrap() * 13 + if at < 150 { version / 2 } else { version }
}

/// The sequence goes on to `tokens`, in chunks that every layer was priced for.
fn extend(sequence: &mut Sequence, tokens: &[u32]) -> Result<(), Error> {
    while sequence.len() < tokens.len() {
        let rows = (tokens.len() - sequence.len()).min(64);
        try_run(sequence, tokens, rows)?;
    }
    Ok(())
}

fn expect(sequence: &mut Sequence, tokens: &[u32]) {
    assert_eq!(sequence.len(), tokens.len());
    assert!(content(sequence) == cold(sequence.spec(), tokens), "{} tokens", tokens.len());
}

/// A cache of up to `bytes` in memory, or on disk alone.
fn cache_of(ledger: &Ledger, spec: &KvSpec, bytes: u64, folder: Option<&Path>) -> PrefixCache {
    let Some(folder) = folder else { return PrefixCache::new(ledger, spec, &IDENTITY, bytes) };
    let disk = DiskOptions { folder: folder.to_owned(), limit_bytes: 8 * bytes };
    PrefixCache::with_disk(ledger, spec, &IDENTITY, 0, &disk).unwrap()
}

fn play(spec: &KvSpec, steps: &[Step], folder: Option<&Path>) {
    let ledger = Ledger::new(Budget::Bytes(4 * spec.bytes(MAX_TOKENS)));
    let cache = cache_of(&ledger, spec, 12 * spec.block_bytes(), folder);
    // Sequence, its tokens, and whether it was cut back.
    let mut live: Vec<(Sequence, Vec<u32>, bool)> = Vec::new();
    for step in steps {
        let pick = |of: usize| (!live.is_empty()).then(|| of % live.len());
        match *step {
            Step::Start { version, tokens } => {
                let Ok(reservation) = ledger.reserve(Kind::Kv, spec.bytes(MAX_TOKENS)) else { continue };
                let tokens: Vec<u32> = (0..tokens).map(|at| token(version, at)).collect();
                let mut sequence = Sequence::new(spec, MAX_TOKENS, reservation).unwrap();
                let cached = cache.restore(&mut sequence, &tokens).unwrap();
                assert!(cached < tokens.len() && cached == sequence.len());
                extend(&mut sequence, &tokens).unwrap();
                live.push((sequence, tokens, false));
            }
            Step::Append { of, rows } => {
                let Some(at) = pick(of) else { continue };
                let (sequence, tokens, was_cut) = &mut live[at];
                for _ in 0..rows.min(MAX_TOKENS - tokens.len()) {
                    tokens.push(token(u32::try_from(at).unwrap(), tokens.len()));
                }
                match extend(sequence, tokens) {
                    Ok(()) => {}
                    // It was cut back while others held its blocks, and the ledger has no more.
                    Err(Error::Unpaid { .. }) if *was_cut => {
                        let kept = sequence.len();
                        sequence.truncate(kept).unwrap();
                        tokens.truncate(kept);
                    }
                    Err(error) => panic!("an append within the reservation failed: {error}"),
                }
            }
            Step::Truncate { of, back } => {
                let Some(at) = pick(of) else { continue };
                let (sequence, tokens, was_cut) = &mut live[at];
                *was_cut = true;
                let wanted = tokens.len().saturating_sub(back);
                let kept = match sequence.truncate(wanted) {
                    Ok(()) => wanted,
                    Err(Error::NeedsPrefill { from, .. }) => {
                        assert!(from < wanted);
                        sequence.truncate(from).unwrap();
                        from
                    }
                    Err(error) => panic!("{error}"),
                };
                tokens.truncate(kept);
            }
            Step::Fork { of } => {
                let Some(at) = pick(of) else { continue };
                let bytes = live[at].0.fork_bytes(MAX_TOKENS);
                let Ok(reservation) = ledger.reserve(Kind::Kv, bytes) else { continue };
                let fork = live[at].0.fork(MAX_TOKENS, reservation).unwrap();
                let tokens = live[at].1.clone();
                live.push((fork, tokens, false));
            }
            Step::Publish { of } => {
                let Some(at) = pick(of) else { continue };
                cache.publish(&live[at].0, &live[at].1).unwrap();
            }
            Step::Drop { of } => {
                let Some(at) = pick(of) else { continue };
                let (mut sequence, tokens, _) = live.swap_remove(at);
                expect(&mut sequence, &tokens);
            }
            Step::Pressure { blocks } => {
                drop(ledger.reserve(Kind::Transient, blocks * spec.block_bytes()));
            }
        }
        let held: u64 = live.iter().map(|(sequence, ..)| sequence.reserved_bytes()).sum();
        let waits = folder.is_some() && matches!(step, Step::Publish { .. });
        if !waits {
            // Else the writer goes on beside the next step.
            cache.finish(|| false);
        }
        let usage = ledger.usage();
        let waiting_bytes = if waits { 24 * spec.block_bytes() + 8 * spec.snapshot_bytes() } else { 0 };
        assert!(usage.kv_bytes <= held + cache.bytes() + waiting_bytes, "{usage:?}, {held} held by sequences");
    }
    for (mut sequence, tokens, _) in live {
        expect(&mut sequence, &tokens);
    }
    cache.finish(|| false);
    let usage = ledger.usage();
    assert_eq!((usage.kv_bytes, usage.prefix_cache_bytes), (0, cache.bytes()), "sequences are gone, the cache pays");
    cache.clear();
    assert_eq!((ledger.usage().reserved_bytes(), cache.blocks()), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_schedule_keeps_tokens_and_books(steps in steps(), kind in 0..4usize, is_on_disk in any::<bool>()) {
        let spec = [super::spec().with_max_chunk_rows(Some(64)), windowed(), hybrid(1), hybrid(2)][kind].clone();
        let folder = tempfile::tempdir().unwrap();
        play(&spec, &steps, Some(folder.path()).filter(|_| is_on_disk));
    }
}

#[test]
fn threads_that_share_a_cache_and_a_tight_budget_all_finish_with_their_bits() {
    let folder = tempfile::tempdir().unwrap();
    for (spec, folder) in
        [windowed(), hybrid(1)].into_iter().flat_map(|spec| [(spec.clone(), None), (spec, Some(folder.path()))])
    {
        let bytes = spec.bytes(MAX_TOKENS);
        let ledger = Ledger::new(Budget::Bytes(3 * bytes));
        let cache = cache_of(&ledger, &spec, 2 * bytes, folder);
        let serve = |thread: usize| {
            for request in 0..30 {
                let version = u32::try_from((thread + request) % 5).unwrap();
                let tokens: Vec<u32> =
                    (0..100 + (thread * 37 + request * 53) % 290).map(|at| token(version, at)).collect();
                let reservation = ledger.reserve_within(Kind::Kv, bytes, Duration::from_secs(120)).unwrap();
                let mut sequence = Sequence::new(&spec, MAX_TOKENS, reservation).unwrap();
                let mut done = cache.restore(&mut sequence, &tokens).unwrap();
                while done < tokens.len() {
                    done = (done + 64).min(tokens.len());
                    extend(&mut sequence, &tokens[..done]).unwrap();
                    cache.publish(&sequence, &tokens[..done]).unwrap();
                }
                expect(&mut sequence, &tokens);
            }
        };
        thread::scope(|scope| {
            (0..4).for_each(|thread| {
                drop(scope.spawn({
                    let serve = &serve;
                    move || serve(thread)
                }))
            })
        });
        cache.finish(|| false);
        let usage = ledger.usage();
        assert_eq!((usage.kv_bytes, usage.prefix_cache_bytes, ledger.waiting()), (0, cache.bytes(), 0));
        cache.clear();
        assert_eq!(ledger.usage().reserved_bytes(), 0);
    }
}

#[test]
fn a_thousand_cancelled_or_failed_requests_give_everything_back() {
    for spec in [windowed(), hybrid(1)] {
        let ledger = Ledger::new(Budget::Bytes(2 * spec.bytes(MAX_TOKENS)));
        let cache = PrefixCache::new(&ledger, &spec, &IDENTITY, u64::MAX);
        for request in 0..1000usize {
            let version = u32::try_from(request % 5).unwrap();
            let tokens: Vec<u32> = (0..100 + request % 290).map(|at| token(version, at)).collect();
            let mut sequence = empty(&ledger, &spec, MAX_TOKENS);
            let cached = cache.restore(&mut sequence, &tokens).unwrap();
            match request % 4 {
                // Dropped before its first pass, after some, in the middle of one, after a pass that was taken back.
                0 => {}
                1 => extend(&mut sequence, &tokens[..cached + (tokens.len() - cached) / 2]).unwrap(),
                2 => {
                    let (layer, width) = (1, if spec == windowed() { (5, 3) } else { (12, 8) });
                    let (k, v) = (vec![0.5; width.0], vec![0.5; width.1]);
                    sequence.append(layer, cached, &k, &v, 1).unwrap();
                }
                _ => {
                    extend(&mut sequence, &tokens).unwrap();
                    cache.publish(&sequence, &tokens).unwrap();
                    let (len, past) = (sequence.len(), MAX_TOKENS + 1);
                    let (k, v) = (vec![0.5; 12 * past], vec![0.5; 8 * past]);
                    sequence.append(if spec == windowed() { 0 } else { 1 }, len, &k, &v, past).unwrap_err();
                    sequence.truncate(len).unwrap();
                }
            }
            drop(sequence);
            let usage = ledger.usage();
            assert_eq!((usage.kv_bytes, usage.prefix_cache_bytes), (0, cache.bytes()), "request {request}");
        }
        assert!(cache.blocks() > 0);
        cache.clear();
        assert_eq!(ledger.usage().reserved_bytes(), 0);
    }
}
