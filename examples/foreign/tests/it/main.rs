//! The host with plimsoll's parts against candle-transformers' own Llama, on random tiny models.
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::collections::HashMap;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Module, VarBuilder};
use candle_transformers::models::llama::{self, Cache, Config};
use plimsoll_foreign::{KvCache, Llama, Prefill, causal_attention, prefill};
use plimsoll_linear::{PackedLinear, Settings};
use plimsoll_prefill::conformance;

/// Largest difference of a logit from candle-transformers', whose logits are below 10 in magnitude.
const BOUND: f32 = 1e-4;

/// Grouped heads, a hidden size that is no multiple of 64.
fn config(tie_word_embeddings: bool) -> Config {
    Config {
        hidden_size: 96,
        intermediate_size: 160,
        vocab_size: 256,
        num_hidden_layers: 3,
        num_attention_heads: 6,
        num_key_value_heads: 2,
        max_position_embeddings: 512,
        tie_word_embeddings,
        ..Config::config_7b_v2(false)
    }
}

fn numbers(seed: u64, shape: &[usize], bound: f32) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bound * ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
    };
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// Random weights under the names of a checkpoint.
fn weights(config: &Config) -> VarBuilder<'static> {
    let (hidden, ffn, vocab) = (config.hidden_size, config.intermediate_size, config.vocab_size);
    let kv = hidden / config.num_attention_heads * config.num_key_value_heads;
    let mut tensors = HashMap::new();
    let mut add = |name: String, shape: &[usize], bound: f32| {
        let tensor = numbers(tensors.len() as u64 + 1, shape, bound);
        tensors.insert(name, tensor);
    };
    add("model.embed_tokens.weight".to_owned(), &[vocab, hidden], 1.0);
    add("model.norm.weight".to_owned(), &[hidden], 1.0);
    add("lm_head.weight".to_owned(), &[vocab, hidden], 0.3);
    for layer in 0..config.num_hidden_layers {
        for (name, shape) in [
            ("input_layernorm", &[hidden][..]),
            ("post_attention_layernorm", &[hidden]),
            ("self_attn.q_proj", &[hidden, hidden]),
            ("self_attn.k_proj", &[kv, hidden]),
            ("self_attn.v_proj", &[kv, hidden]),
            ("self_attn.o_proj", &[hidden, hidden]),
            ("mlp.gate_proj", &[ffn, hidden]),
            ("mlp.up_proj", &[ffn, hidden]),
            ("mlp.down_proj", &[hidden, ffn]),
        ] {
            add(format!("model.layers.{layer}.{name}.weight"), shape, if shape.len() == 1 { 1.0 } else { 0.2 });
        }
    }
    VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu)
}

fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|i| i * 37 % 256).collect()
}

fn logits(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn theirs(config: &Config, tokens: &[u32]) -> Vec<f32> {
    let mut cache = Cache::new(true, DType::F32, config, &Device::Cpu).unwrap();
    let model = llama::Llama::load(weights(config), config).unwrap();
    let ids = Tensor::new(tokens, &Device::Cpu).unwrap().unsqueeze(0).unwrap();
    logits(&model.forward(&ids, 0, &mut cache).unwrap())
}

fn assert_near(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let worst = got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0.0, f32::max);
    assert!(worst <= BOUND, "{what}: off by {worst}");
    assert!(want.iter().any(|w| w.abs() > 0.5), "{what}: logits too small to compare");
}

#[test]
fn logits_agree_with_candle_transformers_in_every_chunking() {
    for tied in [false, true] {
        let config = config(tied);
        let tokens = prompt(200);
        let want = theirs(&config, &tokens);
        let model = Llama::load(weights(&config), &config, causal_attention(&config, 2)).unwrap();
        for chunk in [1, 7, 64, 200] {
            let cache = KvCache::new(&config, tokens.len(), &Device::Cpu).unwrap();
            let mut last = None;
            for (i, part) in tokens.chunks(chunk).enumerate() {
                last = Some(model.forward(part, i * chunk, &cache).unwrap());
            }
            assert_near(&logits(&last.unwrap()), &want, &format!("tied {tied}, chunks of {chunk}"));
        }
    }
}

#[test]
fn the_budget_decides_the_chunks_and_refuses_what_does_not_fit() {
    let config = config(false);
    let tokens = prompt(300);
    let want = theirs(&config, &tokens);
    let model = Llama::load(weights(&config), &config, causal_attention(&config, 1)).unwrap();
    let run = |budget_bytes| prefill(&model, &tokens, budget_bytes, &Device::Cpu);
    let (got, roomy) = run(1 << 30).unwrap();
    assert_near(&logits(&got), &want, "a roomy budget");
    assert_eq!(roomy.chunks.iter().map(|chunk| chunk.rows).collect::<Vec<_>>(), [300]);
    let kv_bytes = 300 * 8 * 3 * 2 * 16;
    let whole = kv_bytes + roomy.chunks[0].planned_bytes;
    let (got, tight) = run(whole - 1).unwrap();
    assert_near(&logits(&got), &want, "a tight budget");
    assert!(tight.chunks.len() > 1, "{:?}", tight.chunks);
    assert!(tight.chunks.iter().all(|chunk| chunk.planned_bytes + kv_bytes < whole), "{:?}", tight.chunks);
    for budget_bytes in [0, kv_bytes - 1, kv_bytes] {
        let refusal = run(budget_bytes).unwrap_err();
        let causes = std::iter::successors(Some(&*refusal as &dyn std::error::Error), |error| error.source());
        let text = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
        assert!(text.contains(&format!("{budget_bytes}")) && text.contains("bytes"), "{text}");
    }
}

/// Linear layers whose rows have bits of their own.
fn packed(from: usize, to: usize, vb: VarBuilder<'_>) -> Result<Box<dyn Module>> {
    let weight = vb.get((to, from), "weight")?;
    Ok(Box::new(PackedLinear::from_tensors(&weight, None, Settings::default())?))
}

#[test]
fn with_row_invariant_products_the_bits_are_the_same_in_every_chunking() {
    let config = config(false);
    let tokens = prompt(150);
    let want = theirs(&config, &tokens);
    let model = Llama::load_with(weights(&config), &config, causal_attention(&config, 2), &packed).unwrap();
    let start = || {
        let cache = KvCache::new(&config, tokens.len(), &Device::Cpu).unwrap();
        Prefill { model: &model, tokens: &tokens, cache, logits: None }
    };
    let bits = |target: &Prefill<'_>| -> Option<Vec<u32>> {
        target.logits.as_ref().map(|tensor| logits(tensor).iter().map(|x| x.to_bits()).collect())
    };
    conformance::check(tokens.len(), start, bits);
    let (got, _) = prefill(&model, &tokens, 1 << 30, &Device::Cpu).unwrap();
    assert_near(&logits(&got), &want, "plimsoll's products");
}

#[test]
fn the_glue_is_at_most_80_lines() {
    let lines = include_str!("../../src/glue.rs").lines().count();
    assert!(lines <= 80, "{lines} lines");
}
