//! The prefix cache in memory: what is found, what it holds, and who pays.

use super::plain_model::{FULL, IDENTITY, WINDOWED, cold, content, empty, hybrid, ids, prefill, run, windowed};
use plimsoll_attention::KvLayout;
use plimsoll_kvcache::{CacheIdentity, Error, KvLayerSpec, KvSpec, PrefixCache};
use plimsoll_memguard::{Budget, Kind, Ledger};

const MAX_TOKENS: usize = 600;

#[test]
fn a_hit_is_the_longest_border_and_holds_what_a_computation_writes() {
    for (spec, half) in [(super::spec(), 192), (windowed(), 192), (hybrid(1), 192), (hybrid(2), 128)] {
        let ledger = Ledger::new(Budget::Unlimited);
        let cache = PrefixCache::new(&ledger, &spec, &IDENTITY, u64::MAX);
        let first = ids(333, 0);
        let mut sequence = empty(&ledger, &spec, MAX_TOKENS);
        assert_eq!(prefill(&cache, &mut sequence, &first), 0, "cold");
        drop(sequence);
        let full = if half == 128 { 256 } else { 320 };
        let mixed = [&first[..200], &ids(100, 3)].concat();
        for (tokens, want) in
            [(&first, full), (&mixed, half), (&first[..65].to_vec(), if half == 128 { 0 } else { 64 })]
        {
            let mut sequence = empty(&ledger, &spec, MAX_TOKENS);
            assert_eq!(prefill(&cache, &mut sequence, tokens), want, "{} tokens of {spec:?}", tokens.len());
            assert!(content(&mut sequence) == cold(&spec, tokens), "{} tokens of {spec:?}", tokens.len());
        }
        for none in [&first[..64], &first[1..], &[]] {
            assert_eq!(cache.lookup(none).tokens(), 0, "one token is left to compute, and a chain starts at the start");
        }
        cache.clear();
        assert_eq!((cache.bytes(), ledger.usage().reserved_bytes()), (0, 0));
    }
}

#[test]
fn other_models_types_and_contracts_find_nothing() {
    let (spec, ledger) = (super::spec(), Ledger::new(Budget::Unlimited));
    let folder = tempfile::tempdir().unwrap();
    let disk = plimsoll_kvcache::DiskOptions { folder: folder.path().to_owned(), limit_bytes: 1 << 20 };
    let open = |spec: &KvSpec, identity| PrefixCache::with_disk(&ledger, spec, &identity, u64::MAX, &disk).unwrap();
    let cache = open(&spec, IDENTITY);
    let tokens = ids(200, 0);
    prefill(&cache, &mut empty(&ledger, &spec, 200), &tokens);
    cache.finish(|| false);
    assert_eq!(open(&spec, IDENTITY).lookup(&tokens).tokens(), 192);
    assert_eq!(open(&spec, CacheIdentity { contract: 2, ..IDENTITY }).lookup(&tokens).tokens(), 0);
    assert_eq!(open(&spec, CacheIdentity { model: [8; 32], ..IDENTITY }).lookup(&tokens).tokens(), 0);
    let f16 = KvLayerSpec { layout: KvLayout { dtype: plimsoll_attention::KvDtype::F16, ..FULL.layout }, ..FULL };
    assert_eq!(open(&KvSpec::new(vec![f16.into(), WINDOWED.into()]), IDENTITY).lookup(&tokens).tokens(), 0);
    let mut other = empty(&ledger, &KvSpec::new(vec![FULL.into()]), 200);
    assert_eq!(cache.restore(&mut other, &tokens), Err(Error::OtherSpec));
    assert_eq!(cache.publish(&other, &tokens), Err(Error::OtherSpec));
    let mut foreign = empty(&Ledger::new(Budget::Unlimited), &spec, 200);
    assert_eq!(cache.restore(&mut foreign, &tokens), Err(Error::OtherLedger));
    let mut begun = empty(&ledger, &spec, 200);
    run(&mut begun, &tokens, 10);
    assert_eq!(cache.restore(&mut begun, &tokens), Err(Error::NotEmpty { len_tokens: 10 }));
}

#[test]
fn shared_blocks_are_paid_once_and_become_the_caches_when_sequences_end() {
    let spec = super::spec();
    let ledger = Ledger::new(Budget::Bytes(10 * spec.bytes(MAX_TOKENS)));
    let cache = PrefixCache::new(&ledger, &spec, &IDENTITY, u64::MAX);
    let tokens = ids(300, 0);
    let mut first = empty(&ledger, &spec, MAX_TOKENS);
    prefill(&cache, &mut first, &tokens);
    // Four whole blocks; the window of 16 is published chunk by chunk, and the cache pays for its hold of those that the sequence needs.
    let usage = ledger.usage();
    assert_eq!((usage.kv_bytes, usage.prefix_cache_bytes), (spec.bytes(MAX_TOKENS), 4 * WINDOWED.block_bytes()));
    drop(first);
    let usage = ledger.usage();
    assert_eq!((usage.kv_bytes, usage.prefix_cache_bytes), (0, 4 * spec.block_bytes()));
    assert_eq!(cache.bytes(), 4 * spec.block_bytes());

    let mut second = empty(&ledger, &spec, MAX_TOKENS);
    assert_eq!(cache.restore(&mut second, &tokens), Ok(256));
    let usage = ledger.usage();
    // The shared blocks of the full layer are the second's now, and what it had reserved for them went back.
    // Of the window's blocks one is in use, and the second has paid for its own hold of it.
    assert_eq!(usage.kv_bytes, spec.bytes(MAX_TOKENS) + WINDOWED.block_bytes());
    assert_eq!(usage.prefix_cache_bytes, 3 * WINDOWED.block_bytes());
    cache.clear();
    assert_eq!(ledger.usage().reserved_bytes(), spec.bytes(MAX_TOKENS));
    while second.len() < MAX_TOKENS {
        let rows = (MAX_TOKENS - second.len()).min(50);
        run(&mut second, &ids(MAX_TOKENS, 0), rows);
    }
    assert_eq!(ledger.usage().reserved_bytes(), spec.bytes(MAX_TOKENS), "the length fits into what was reserved");
    drop(second);
    assert_eq!(ledger.usage().reserved_bytes(), 0);
}

#[test]
fn a_request_takes_what_the_cache_holds_and_leaves_what_it_is_about_to_hit() {
    let spec = KvSpec::new(vec![FULL.into()]);
    let block = FULL.block_bytes();
    let ledger = Ledger::new(Budget::Bytes(12 * block));
    let cache = PrefixCache::new(&ledger, &spec, &IDENTITY, u64::MAX);
    for version in 0..2 {
        let tokens = ids(5 * 64, version);
        prefill(&cache, &mut empty(&ledger, &spec, 5 * 64), &tokens);
    }
    assert_eq!(ledger.usage().prefix_cache_bytes, 10 * block);
    // 320 tokens more than the five blocks of the first prompt: five new blocks, of which two are free.
    let hit = cache.lookup(&[ids(5 * 64, 0), ids(320, 9)].concat());
    assert_eq!((hit.tokens(), hit.shared_bytes()), (320, 5 * block));
    let reservation = ledger.reserve(Kind::Kv, spec.bytes(640) - hit.shared_bytes()).unwrap();
    let tokens = [ids(5 * 64, 0), ids(320, 9)].concat();
    let mut sequence = hit.into_sequence(&spec, 640, reservation, &tokens).unwrap();
    assert_eq!(
        (sequence.len(), ledger.usage().kv_bytes, ledger.usage().prefix_cache_bytes),
        (320, 10 * block, 2 * block)
    );
    run(&mut sequence, &tokens, 320);
    assert!(ledger.reserve(Kind::Kv, 3 * block).is_err(), "what a sequence uses is not for others");
    drop(ledger.reserve(Kind::Kv, 2 * block).unwrap());
    drop(sequence);
    assert_eq!(ledger.usage().reserved_bytes(), 5 * block, "the first prompt is still there");
    drop(ledger.reserve(Kind::Kv, 12 * block).unwrap());
    assert_eq!((cache.blocks(), ledger.usage().reserved_bytes()), (0, 0));
}

#[test]
fn what_was_used_longest_ago_goes_first_and_chains_stay_whole() {
    let spec = KvSpec::new(vec![FULL.into()]);
    let ledger = Ledger::new(Budget::Unlimited);
    let cache = PrefixCache::new(&ledger, &spec, &IDENTITY, 6 * FULL.block_bytes());
    let publish = |version| prefill(&cache, &mut empty(&ledger, &spec, 200), &ids(200, version));
    let found = |version| cache.lookup(&ids(200, version)).tokens();
    publish(0);
    publish(1);
    assert_eq!((found(1), found(0)), (192, 192));
    publish(2);
    assert_eq!((found(0), found(1), found(2), cache.blocks()), (192, 0, 192, 6));
    let mut longer = ids(200, 2);
    longer.extend(ids(60, 5));
    prefill(&cache, &mut empty(&ledger, &spec, 260), &longer);
    assert_eq!(
        (found(0), cache.lookup(&[&longer[..], &[1]].concat()).tokens()),
        (128, 256),
        "the last block went, not the first"
    );
}
