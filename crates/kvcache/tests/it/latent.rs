//! Layers of latents, whose values are in their keys: what they cost, and that they are shared, cut and found like any others.

use super::plain_model::{FULL, IDENTITY, cold, content, empty, hybrid, ids, prefill, run, window};
use plimsoll_attention::{KvDtype, KvLayout, KvValues, KvView};
use plimsoll_kvcache::{BlockTable, DiskOptions, Error, KvLayerSpec, KvSpec, LayerSpec, PrefixCache, Sequence};
use plimsoll_memguard::{Budget, EstimateSettings, Kind, Ledger, Profile, Registry};
use serde_json::json;

const LATENT: KvLayerSpec = KvLayerSpec { layout: KvLayout::latent(24, 8, KvDtype::F16), window: None };
const ODD: KvLayerSpec = KvLayerSpec { layout: KvLayout::latent(7, 4, KvDtype::Bf16), window: None };
const MAX_TOKENS: usize = 600;

/// Latents alone, beside full layers, and beside a window and recurrent state.
fn specs() -> [KvSpec; 3] {
    let mixed = hybrid(1);
    let layers = [mixed.layers.clone(), vec![ODD.into(), window(100), LATENT.into()]].concat();
    [
        KvSpec::new(vec![LATENT.into(), ODD.into()]),
        KvSpec::new(vec![LATENT.into(), FULL.into(), ODD.into()]),
        KvSpec { layers, ..mixed }.with_max_chunk_rows(Some(64)),
    ]
}

/// The same layers with values of their own.
fn stored_twice(spec: &KvSpec) -> KvSpec {
    let layers = spec.layers.iter().map(|&layer| match layer {
        LayerSpec::Kv(kv) => KvLayerSpec { layout: KvLayout { values: KvValues::Own, ..kv.layout }, ..kv }.into(),
        other => other,
    });
    KvSpec { layers: layers.collect(), ..*spec }
}

#[test]
fn a_latent_costs_its_keys_alone_and_lies_in_the_slab_of_the_full_layers() {
    assert_eq!(LATENT.block_bytes(), 64 * (24 + 8) * 2);
    // An odd key is padded to a pair.
    assert_eq!(ODD.block_bytes(), 64 * (7 + 4 + 1) * 2);
    let [latents, mixed, _] = specs();
    assert_eq!(latents.block_bytes(), LATENT.block_bytes() + ODD.block_bytes());
    assert_eq!(mixed.block_bytes(), latents.block_bytes() + FULL.block_bytes());
    for tokens in [0, 1, 64, 65, 300] {
        assert_eq!(mixed.bytes(tokens), tokens.div_ceil(64) as u64 * mixed.block_bytes());
        assert_eq!(mixed.held_bytes(tokens), mixed.bytes(tokens), "no window lets go of a latent");
    }
}

#[test]
fn latents_come_with_tokens_and_go_with_truncation() {
    let (spec, tokens) = (&specs()[1], ids(300, 0));
    let ledger = Ledger::new(Budget::Bytes(spec.bytes(300)));
    let mut sequence = empty(&ledger, spec, 300);
    for rows in [64, 1, 100, 135] {
        run(&mut sequence, &tokens, rows);
        assert_eq!(sequence.bytes(), spec.bytes(sequence.len()));
        assert!(content(&mut sequence) == cold(spec, &tokens[..sequence.len()]));
    }
    for left in [500, 165, 129, 128, 64, 1, 0] {
        sequence.truncate(left).unwrap();
        assert_eq!(sequence.bytes(), spec.bytes(left.min(300)));
        assert!(content(&mut sequence) == cold(spec, &tokens[..left.min(300)]), "{left} tokens");
    }
    run(&mut sequence, &ids(70, 1), 70);
    assert!(content(&mut sequence) == cold(spec, &ids(70, 1)), "what was forgotten is written over");
    drop(sequence);
    assert_eq!(ledger.usage().reserved_bytes(), 0);
}

#[test]
fn latents_take_no_values_and_keep_those_of_the_keys() {
    let (spec, ledger) = (KvSpec::new(vec![LATENT.into()]), Ledger::new(Budget::Unlimited));
    let (mut once, mut twice) = (empty(&ledger, &spec, 100), empty(&ledger, &stored_twice(&spec), 100));
    let k: Vec<f32> = (0..90u16 * 32).map(|i| f32::from(i % 251)).collect();
    let v: Vec<f32> = k.chunks_exact(32).flat_map(|key| &key[..24]).copied().collect();
    assert_eq!(
        once.append(0, 0, &k, &v, 90),
        Err(Error::SliceLength { slice: "v", rows: 90, expected: 0, actual: 90 * 24 })
    );
    once.append(0, 0, &k, &[], 90).unwrap();
    twice.append(0, 0, &k, &v, 90).unwrap();
    let values_bytes = 2 * 64 * 24 * 2;
    assert_eq!(once.bytes() + values_bytes, twice.bytes());
    assert!(content(&mut once) == content(&mut twice));
    let read = |view: &KvView<'_>| (view.kv_len(), view.layout().values);
    assert_eq!(once.with_view(0, 90, &mut BlockTable::new(), read), Ok((90, KvValues::InKeys)));
}

#[test]
fn forks_share_latents_until_they_write() {
    for spec in specs() {
        let ledger = Ledger::new(Budget::Unlimited);
        let mut parent = empty(&ledger, &spec, MAX_TOKENS);
        let tokens = ids(200, 0);
        while parent.len() < 150 {
            run(&mut parent, &tokens, 50);
        }
        let reservation = ledger.reserve(Kind::Kv, parent.fork_bytes(MAX_TOKENS)).unwrap();
        let mut fork: Sequence = parent.fork(MAX_TOKENS, reservation).unwrap();
        assert!(ledger.usage().reserved_bytes() < 2 * spec.bytes(MAX_TOKENS), "whole blocks are paid once");
        let other = [&tokens[..150], &ids(30, 5)].concat();
        run(&mut fork, &other, 30);
        run(&mut parent, &tokens, 50);
        assert!(content(&mut parent) == cold(&spec, &tokens), "{spec:?}");
        assert!(content(&mut fork) == cold(&spec, &other), "{spec:?}");
        drop(parent);
        assert!(content(&mut fork) == cold(&spec, &other), "{spec:?}");
        drop(fork);
        assert_eq!(ledger.usage().reserved_bytes(), 0);
    }
}

#[test]
fn a_hit_on_latents_in_memory_or_on_disk_equals_a_miss() {
    for spec in specs() {
        let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir().unwrap());
        let disk = DiskOptions { folder: folder.path().to_owned(), limit_bytes: 1 << 30 };
        let open = |spec: &KvSpec| PrefixCache::with_disk(&ledger, spec, &IDENTITY, u64::MAX, &disk).unwrap();
        let cache = open(&spec);
        let tokens = ids(310, 0);
        assert_eq!(prefill(&cache, &mut empty(&ledger, &spec, MAX_TOKENS), &tokens), 0, "cold");
        let check = |cache: &PrefixCache| {
            let mut sequence = empty(&ledger, &spec, MAX_TOKENS);
            assert_eq!(prefill(cache, &mut sequence, &tokens), 256, "{spec:?}");
            assert!(content(&mut sequence) == cold(&spec, &tokens), "{spec:?}");
        };
        check(&cache);
        cache.finish(|| false);
        cache.clear();
        drop(cache);
        check(&open(&spec));
        // Layers with the same axes whose blocks hold values, too, are others.
        assert_eq!(open(&stored_twice(&spec)).lookup(&tokens).tokens(), 0, "{spec:?}");
        assert_eq!(ledger.usage().kv_bytes, 0);
    }
}

/// The closed form counts elements, a sequence whole slabs: per 64 tokens one mapping of all layers, rounded up to 16 KiB.
#[test]
fn the_closed_form_prices_latents_as_a_sequence_holds_them() {
    // DeepSeek V2 Lite and V3: what decides on the KV is theirs, the experts are left out.
    for (model_type, layers, hidden_size, heads) in [("deepseek_v2", 27, 2048, 16), ("deepseek_v3", 61, 7168, 128)] {
        let config = json!({
            "model_type": model_type,
            "num_hidden_layers": layers,
            "hidden_size": hidden_size,
            "intermediate_size": 10_944,
            "first_k_dense_replace": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "vocab_size": 102_400,
            "tie_word_embeddings": false,
            "torch_dtype": "bfloat16",
        });
        let settings = EstimateSettings { kv_block_tokens: 64, ..EstimateSettings::default() };
        let estimate = Registry::builtin().from_config(&config, &settings).unwrap();
        let layer = KvLayerSpec { layout: KvLayout::latent(512, 64, KvDtype::Bf16), window: None };
        assert_eq!(layer.block_bytes(), 64 * (512 + 64) * 2);
        let (spec, block_bytes) = (KvSpec::new(vec![layer.into(); layers]), layers as u64 * layer.block_bytes());
        for blocks in [0, 1, 64, 2048] {
            let tokens = 64 * usize::try_from(blocks).unwrap();
            assert_eq!(estimate.kv_bytes(tokens), blocks * block_bytes, "{model_type}, {tokens} tokens");
            assert_eq!(spec.bytes(tokens), blocks * block_bytes.next_multiple_of(16 << 10), "{model_type}");
        }
        assert_eq!(estimate.kv_bytes(65), estimate.kv_bytes(128), "{model_type}: whole blocks");
    }
}
