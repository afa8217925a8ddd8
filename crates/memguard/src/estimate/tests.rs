use proptest::prelude::*;
use serde_json::json;

use super::*;

mod refusals;

const GIB: u64 = 1 << 30;

/// Dimensions of released models; Gemma 4 in two sizes made up to have every kind of layer.
const CONFIGS: [(&str, &str); 15] = [
    ("llama-3.1-8b", include_str!("../../tests/configs/llama-3.1-8b.json")),
    ("llama-3.1-70b", include_str!("../../tests/configs/llama-3.1-70b.json")),
    ("qwen3-0.6b", include_str!("../../tests/configs/qwen3-0.6b.json")),
    ("qwen3-32b", include_str!("../../tests/configs/qwen3-32b.json")),
    ("qwen3-30b-a3b", include_str!("../../tests/configs/qwen3-30b-a3b.json")),
    ("qwen3.6-27b", include_str!("../../tests/configs/qwen3.6-27b.json")),
    ("qwen3-next-80b-a3b", include_str!("../../tests/configs/qwen3-next-80b-a3b.json")),
    ("gemma-3-27b", include_str!("../../tests/configs/gemma-3-27b.json")),
    ("gemma-4-small", include_str!("../../tests/configs/gemma-4-small.json")),
    ("gemma-4-experts", include_str!("../../tests/configs/gemma-4-experts.json")),
    ("deepseek-v2-lite", include_str!("../../tests/configs/deepseek-v2-lite.json")),
    ("deepseek-v3", include_str!("../../tests/configs/deepseek-v3.json")),
    ("deepseek-v4-flash", include_str!("../../tests/configs/deepseek-v4-flash.json")),
    ("gpt-oss-20b", include_str!("../../tests/configs/gpt-oss-20b.json")),
    ("llama-4-scout", include_str!("../../tests/configs/llama-4-scout.json")),
];

fn config(name: &str) -> Value {
    let text = CONFIGS.into_iter().find(|(known, _)| *known == name).unwrap().1;
    serde_json::from_str(text).unwrap()
}

/// Single tokens, so that expected figures are plain products.
fn by_token() -> EstimateSettings {
    EstimateSettings { kv_block_tokens: 1, ..EstimateSettings::default() }
}

fn estimate(name: &str, settings: EstimateSettings) -> Estimate {
    Registry::builtin().from_config(&config(name), &settings).unwrap()
}

fn all_bf16() -> EstimateSettings {
    EstimateSettings { weights: Some(WeightFormats::all(StorageFormat::BF16)), ..by_token() }
}

/// Parameters as counted in the models that `transformers` 5.24 builds from the same dimensions.
#[test]
fn parameters_are_those_of_the_real_models() {
    for (name, parameters) in [
        ("llama-3.1-8b", 8_030_261_248u64),
        ("llama-3.1-70b", 70_553_706_496),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-32b", 32_762_123_264),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3.6-27b", 26_895_998_464),
        ("qwen3-next-80b-a3b", 79_674_391_296),
        ("gemma-3-27b", 27_009_346_304),
        ("gemma-4-small", 5_657_561_600),
        ("gemma-4-experts", 25_233_141_760),
        ("deepseek-v2-lite", 15_706_484_224),
        ("deepseek-v3", 671_026_404_352),
        ("deepseek-v4-flash", 284_325_869_015),
        ("gpt-oss-20b", 20_914_757_184),
        ("llama-4-scout", 107_769_861_120),
    ] {
        assert_eq!(estimate(name, all_bf16()).weights_bytes(), 2 * parameters, "{name}");
    }
}

/// `kv_layers * kv_heads * head_dim * 2 * 2` bytes per token where every layer sees all.
#[test]
fn kv_per_token_is_the_product_of_the_dimensions() {
    for (name, per_token) in [
        ("llama-3.1-8b", 32 * 8 * 128 * 4),
        ("llama-3.1-70b", 80 * 8 * 128 * 4),
        ("qwen3-0.6b", 28 * 8 * 128 * 4),
        ("qwen3-32b", 64 * 8 * 128 * 4),
        ("qwen3-30b-a3b", 48 * 4 * 128 * 4),
        // One latent of 512 and one rotated key of 64, for all heads together.
        ("deepseek-v3", 61 * (512 + 64) * 2),
        ("deepseek-v2-lite", 27 * (512 + 64) * 2),
    ] {
        let estimate = estimate(name, by_token());
        assert_eq!(estimate.kv_bytes(1_000), 1_000 * per_token, "{name}");
        assert_eq!(estimate.kv_bytes(0), 0, "{name}");
    }
    assert_eq!(estimate("llama-3.1-8b", by_token()).kv_bytes(131_072), 16 * GIB);
    assert_eq!(estimate("llama-3.1-70b", by_token()).kv_bytes(131_072), 40 * GIB);
}

/// 64 layers of which 16 hold KV: counting all of them charges exactly four times the bytes that grow with the context.
#[test]
fn a_hybrid_is_not_over_counted_four_times() {
    let estimate = estimate("qwen3.6-27b", by_token());
    let state = 48 * (48 * 128 * 128 + (2 * 16 * 128 + 48 * 128) * 3) * 4;
    assert_eq!(estimate.kv_bytes(0), state);
    let grown = estimate.kv_bytes(10_000) - state;
    assert_eq!(grown, 10_000 * 65_536);
    let counted_by_layers = 10_000 * 64 * 4 * 256 * 2 * 2;
    assert_eq!(counted_by_layers, 4 * grown);
}

#[test]
fn a_state_that_is_written_beside_the_old_one_counts_twice() {
    let once = estimate("qwen3.6-27b", by_token());
    let twice = estimate("qwen3.6-27b", EstimateSettings { state_buffers: 2, ..by_token() });
    assert_eq!(twice.kv_bytes(0), 2 * once.kv_bytes(0));
    assert_eq!(twice.kv_bytes(10_000) - twice.kv_bytes(0), once.kv_bytes(10_000) - once.kv_bytes(0));
}

/// Parameters of Phi-3 mini and OLMo 2 1B as their makers' checkpoints count them.
#[test]
fn fused_projections_and_whole_norms_change_no_sum() {
    let parameters = |config: Value| {
        let settings = EstimateSettings { weights: Some(WeightFormats::all(StorageFormat::BF16)), ..by_token() };
        Registry::builtin().from_config(&config, &settings).unwrap().weights_bytes() / 2
    };
    let phi3 = json!({"model_type": "phi3", "hidden_size": 3_072, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "intermediate_size": 8_192, "vocab_size": 32_064, "sliding_window": 2_047});
    assert_eq!(parameters(phi3), 3_821_079_552);
    let olmo2 = json!({"model_type": "olmo2", "hidden_size": 2_048, "num_hidden_layers": 16, "num_attention_heads": 16,
        "intermediate_size": 8_192, "vocab_size": 100_352, "tie_word_embeddings": false});
    assert_eq!(parameters(olmo2), 1_484_916_736);
}

#[test]
fn window_layers_hold_their_window_and_the_rest_of_a_chunk() {
    let gemma = estimate("gemma-3-27b", by_token());
    // 10 full layers, 52 with a window of 1,024; 8,192 bytes per layer and token; chunks of 2,048.
    assert_eq!(gemma.kv_bytes(32_768), (10 * 32_768 + 52 * (1_024 + 2_047)) * 8_192);
    assert_eq!(gemma.kv_bytes(500), 62 * 500 * 8_192);
    let gpt = estimate("gpt-oss-20b", by_token());
    assert_eq!(gpt.kv_bytes(131_072), (12 * 131_072 + 12 * (128 + 2_047)) * 2_048);
    // Layers with rotary positions attend within chunks of 8,192.
    let llama = estimate("llama-4-scout", by_token());
    assert_eq!(llama.kv_bytes(131_072), (12 * 131_072 + 36 * (8_192 + 2_047)) * 4_096);
}

/// Layers 20 to 29 read the KV of earlier ones; of the first 20, three are full (4 heads of 512) and 17 have a window (of 256).
#[test]
fn layers_that_share_kv_hold_none() {
    let small = estimate("gemma-4-small", by_token());
    assert_eq!(small.kv_bytes(10_000), 3 * 10_000 * 8_192 + 17 * (512 + 2_047) * 4_096);
    // Keys serve as values, and are stored as both: 2 heads of 512 in 5 full layers, 8 of 256 in 25.
    let large = estimate("gemma-4-experts", by_token());
    assert_eq!(large.kv_bytes(10_000), 5 * 10_000 * 4_096 + 25 * (1_024 + 2_047) * 8_192);
}

#[test]
fn deepseek_v4_holds_a_window_and_two_kinds_of_pools() {
    let window = 43 * (128 + 2_047) * 512 * 2;
    let sparse = 20 * (262_144 + 24) * (512 + 128) * 2;
    let heavy = 23 * (8_192 + 256) * 512 * 2;
    assert_eq!(estimate("deepseek-v4-flash", by_token()).kv_bytes(1_048_576), window + sparse + heavy);
    assert_eq!(window + sparse + heavy, 7_006_237_696);
}

#[test]
fn layer_kinds_are_read_from_older_configs_too() {
    let mut old = config("deepseek-v4-flash");
    let ratios: Vec<u64> = (0..43).map(|layer| if layer < 2 { 0 } else { 4 }).collect();
    old["compress_ratios"] = json!(ratios);
    let estimate = Registry::builtin().from_config(&old, &by_token()).unwrap();
    let window = 43 * (128 + 2_047) * 512 * 2;
    assert_eq!(estimate.kv_bytes(1_048_576), window + 41 * (262_144 + 24) * (512 + 128) * 2);
}

#[test]
fn only_whole_kv_blocks_are_counted() {
    let llama = estimate("llama-3.1-8b", EstimateSettings::default());
    assert_eq!(llama.kv_bytes(1), 64 * 131_072);
    assert_eq!(llama.kv_bytes(65), 128 * 131_072);
    // 3,071 tokens straddle at most 49 blocks.
    let gemma = estimate("gemma-3-27b", EstimateSettings::default());
    assert_eq!(gemma.kv_bytes(64_000), (10 * 64_000 + 52 * 49 * 64) * 8_192);
}

#[test]
fn weights_are_priced_as_the_checkpoint_stores_them() {
    let gpt = estimate("gpt-oss-20b", by_token()).weights_bytes();
    let experts = 24 * 32 * 3 * 2_880 * 2_880u64;
    // Norms, biases of q, k, v, output and experts, and sinks: held in f32.
    let vectors = 24 * (2 * 2_880 + 5_120 + 2_880 + 64 + 32 * (3 * 2_880 + 1)) + 2_880;
    assert_eq!(gpt, experts / 32 * 17 + 2 * (20_914_757_184 - experts - vectors) + 4 * vectors);
    let q4 = EstimateSettings { weights: Some(WeightFormats::all(StorageFormat::Q4_K)), ..by_token() };
    let bits = estimate("llama-3.1-8b", q4).weights_bytes() as f64 * 8.0 / 8_030_261_248.0;
    assert!((bits - 4.5).abs() < 1e-6, "{bits} bits");
    assert_eq!(estimate("llama-3.1-8b", EstimateSettings { weights_bytes: Some(77), ..q4 }).weights_bytes(), 77);
}

/// 24 heads of 256, 68,034 tokens, chunks of 2,048: all scores are 12.46 GiB in f32, a tile of 512 keys 0.09.
#[test]
fn the_price_of_attention_follows_the_kernel() {
    let pass = Pass { rows: 2_048, start: 68_034 - 2_048, logit_rows: 1 };
    let price =
        |attention| estimate("qwen3.6-27b", EstimateSettings { attention, ..by_token() }).transient_bytes(&pass);
    let fused = price(AttentionPrice::Fused);
    let unfused = price(AttentionPrice::Unfused { score_bytes: 4 });
    let bounded = price(AttentionPrice::Bounded { tile_tokens: 512, score_bytes: 4 });
    // The attention layer alone is dearest once it holds all scores: q, gate and result, k and v, accumulators.
    let stream = 2_048 * 2 * 5_120 * 4;
    let attention = 2_048 * (3 * 24 * 256 + 2 * 4 * 256) * 4 + 4 * 24 * 2_048 * 256;
    assert_eq!(unfused, stream + attention + 24 * 2_048 * 68_034 * 4);
    assert!(fused <= bounded && bounded < unfused / 20, "{fused} {bounded} {unfused}");
    // Bounded: the same at any context.
    let early = Pass { start: 2_048, ..pass };
    let settings =
        EstimateSettings { attention: AttentionPrice::Bounded { tile_tokens: 512, score_bytes: 4 }, ..by_token() };
    assert_eq!(estimate("qwen3.6-27b", settings).transient_bytes(&early), bounded);
}

#[test]
fn wanted_logits_are_charged_when_they_are_dearest() {
    let llama = estimate("llama-3.1-8b", by_token());
    let all = Pass { rows: 512, start: 0, logit_rows: 512 };
    assert_eq!(llama.transient_bytes(&all), 512 * 2 * 4_096 * 4 + 512 * 128_256 * 4);
}

#[test]
fn closed_forms_say_that_they_are_estimates() {
    let llama = estimate("llama-3.1-8b", by_token());
    assert_eq!(llama.transient_source(), TransientSource::ClosedForm);
    assert_eq!(llama.transient_source().to_string(), "closed form (estimate)");
}

/// 36 GiB less 15 of weights leave room for about 21 GiB of KV at 128 KiB a token.
#[test]
fn the_longest_context_fills_the_budget() {
    let llama = estimate("llama-3.1-8b", EstimateSettings::default());
    let longest = longest_context(&llama, 36 * GIB, 2_048, 1 << 24).unwrap();
    assert!((160_000..176_000).contains(&longest), "{longest}");
    assert!(peak_bytes(&llama, longest, 2_048) <= 36 * GIB);
    assert!(peak_bytes(&llama, longest + 1, 2_048) > 36 * GIB);
    assert_eq!(longest_context(&llama, 36 * GIB, 2_048, 131_072), Some(131_072));
    assert_eq!(longest_context(&llama, GIB, 2_048, 131_072), None);
}

#[test]
fn a_registered_rule_replaces_the_closed_form() {
    struct Planned;
    impl Profile for Planned {
        fn weights_bytes(&self) -> u64 {
            1
        }
        fn kv_bytes(&self, context_tokens: usize) -> u64 {
            context_tokens as u64
        }
        fn transient_bytes(&self, pass: &Pass) -> u64 {
            pass.rows as u64
        }
    }
    let mut registry = Registry::builtin();
    registry.register("llama", |config: &Config<'_>, _: &EstimateSettings| {
        assert_eq!(config.required("num_hidden_layers"), Ok(32));
        Ok(Estimate::new(Planned, TransientSource::Plan))
    });
    let estimate = registry.from_config(&config("llama-3.1-8b"), &by_token()).unwrap();
    assert_eq!((estimate.weights_bytes(), estimate.transient_source()), (1, TransientSource::Plan));
    // The whole config is there for rules that read more of it.
    registry.register("whole", |config: &Config<'_>, _: &EstimateSettings| {
        let reason = config.root()["note"].to_string();
        Err(EstimateError::Refused { name: "whole".to_owned(), reason })
    });
    let refused = registry.from_config(&json!({"model_type": "whole", "note": 7}), &by_token()).unwrap_err();
    assert_eq!(refused.to_string(), "`whole`: 7");
    // `architectures` is looked up after `model_type`.
    registry.register("MyModelForCausalLM", |_: &Config<'_>, _: &EstimateSettings| {
        Ok(Estimate::new(Planned, TransientSource::ClosedForm))
    });
    let mine = json!({"architectures": ["MyModelForCausalLM"], "model_type": "mine"});
    assert_eq!(registry.from_config(&mine, &by_token()).unwrap().kv_bytes(7), 7);
}

/// The config `name` with `value` in the place of `field`; a nested one where it is nested.
fn config_with(name: &str, field: &str, value: Value) -> Value {
    let mut config = config(name);
    let text = match config.get("text_config") {
        Some(_) => &mut config["text_config"],
        None => &mut config,
    };
    text[field] = value;
    config
}

#[test]
fn a_count_of_0_experts_is_a_dense_model_where_the_class_takes_it_so() {
    let dense = config_with("qwen3-30b-a3b", "num_experts", json!(0));
    let dense = Registry::builtin().from_config(&dense, &all_bf16()).unwrap();
    assert!(dense.weights_bytes() < estimate("qwen3-30b-a3b", all_bf16()).weights_bytes() / 5);
    // transformers 5 writes the other name.
    let mut renamed = config_with("qwen3-30b-a3b", "num_local_experts", json!(128));
    renamed["num_experts"] = Value::Null;
    let renamed = Registry::builtin().from_config(&renamed, &all_bf16()).unwrap();
    assert_eq!(renamed.weights_bytes(), estimate("qwen3-30b-a3b", all_bf16()).weights_bytes());
}

#[test]
fn the_largest_sizes_that_are_believed_saturate() {
    let mut config = config("llama-3.1-8b");
    for (field, most) in [
        ("hidden_size", 1u64 << 20),
        ("intermediate_size", 1 << 26),
        ("num_attention_heads", 1 << 16),
        ("num_key_value_heads", 1 << 16),
        ("head_dim", 1 << 16),
        ("vocab_size", 1 << 26),
    ] {
        config[field] = json!(most);
    }
    let estimate = Registry::builtin().from_config(&config, &by_token()).unwrap();
    assert_eq!(estimate.kv_bytes(usize::MAX), u64::MAX);
    assert_eq!(peak_bytes(&estimate, usize::MAX, usize::MAX), u64::MAX);
}

/// GGUF metadata as pairs.
struct Pairs(Vec<(&'static str, Value)>);

impl Pairs {
    fn find(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| *known == key).map(|(_, value)| value)
    }
}

impl Metadata for Pairs {
    fn number(&self, key: &str) -> Option<u64> {
        self.find(key)?.as_u64()
    }
    fn numbers(&self, key: &str) -> Option<Vec<u64>> {
        self.find(key)?.as_array()?.iter().map(Value::as_u64).collect()
    }
    fn text(&self, key: &str) -> Option<&str> {
        self.find(key)?.as_str()
    }
    fn array_len(&self, key: &str) -> Option<usize> {
        self.find(key)?.as_array().map(Vec::len)
    }
    fn shown(&self, key: &str) -> Option<String> {
        self.find(key).map(Value::to_string)
    }
    fn has_tensor(&self, name: &str) -> bool {
        self.find(name).is_some()
    }
    fn tensor_bytes(&self) -> u64 {
        12_345
    }
}

#[test]
fn gguf_metadata_gives_the_same_figures_as_the_config() {
    let qwen = Pairs(vec![
        ("general.architecture", json!("qwen3moe")),
        ("qwen3moe.block_count", json!(48)),
        ("qwen3moe.embedding_length", json!(2_048)),
        ("qwen3moe.feed_forward_length", json!(6_144)),
        ("qwen3moe.attention.head_count", json!(32)),
        ("qwen3moe.attention.head_count_kv", json!(4)),
        ("qwen3moe.attention.key_length", json!(128)),
        ("qwen3moe.expert_count", json!(128)),
        ("qwen3moe.expert_used_count", json!(8)),
        ("qwen3moe.expert_feed_forward_length", json!(768)),
        ("qwen3moe.vocab_size", json!(151_936)),
        ("output.weight", json!(true)),
    ]);
    let latent = Pairs(vec![
        ("general.architecture", json!("deepseek2")),
        ("deepseek2.block_count", json!(61)),
        ("deepseek2.embedding_length", json!(7_168)),
        ("deepseek2.feed_forward_length", json!(18_432)),
        ("deepseek2.attention.head_count", json!(128)),
        ("deepseek2.attention.head_count_kv", json!(1)),
        ("deepseek2.attention.q_lora_rank", json!(1_536)),
        ("deepseek2.attention.kv_lora_rank", json!(512)),
        ("deepseek2.attention.key_length", json!(576)),
        ("deepseek2.attention.value_length", json!(512)),
        ("deepseek2.attention.key_length_mla", json!(192)),
        ("deepseek2.attention.value_length_mla", json!(128)),
        ("deepseek2.rope.dimension_count", json!(64)),
        ("deepseek2.leading_dense_block_count", json!(3)),
        ("deepseek2.expert_count", json!(256)),
        ("deepseek2.expert_used_count", json!(8)),
        ("deepseek2.expert_shared_count", json!(1)),
        ("deepseek2.expert_feed_forward_length", json!(2_048)),
        ("deepseek2.vocab_size", json!(129_280)),
        ("output.weight", json!(true)),
    ]);
    let hybrid = Pairs(vec![
        ("general.architecture", json!("qwen35")),
        ("qwen35.block_count", json!(64)),
        ("qwen35.embedding_length", json!(5_120)),
        ("qwen35.feed_forward_length", json!(17_408)),
        ("qwen35.attention.head_count", json!(24)),
        ("qwen35.attention.head_count_kv", json!(4)),
        ("qwen35.attention.key_length", json!(256)),
        ("qwen35.full_attention_interval", json!(4)),
        ("qwen35.ssm.conv_kernel", json!(4)),
        ("qwen35.ssm.state_size", json!(128)),
        ("qwen35.ssm.group_count", json!(16)),
        ("qwen35.ssm.time_step_rank", json!(48)),
        ("qwen35.ssm.inner_size", json!(48 * 128)),
        ("qwen35.vocab_size", json!(248_320)),
        ("output.weight", json!(true)),
    ]);
    let pass = Pass { rows: 512, start: 9_000, logit_rows: 1 };
    for (name, metadata) in [("qwen3-30b-a3b", qwen), ("deepseek-v3", latent), ("qwen3.6-27b", hybrid)] {
        let from_file = Registry::builtin().from_metadata(&metadata, &by_token()).unwrap();
        let from_config = estimate(name, by_token());
        assert_eq!(from_file.weights_bytes(), 12_345, "{name}");
        assert_eq!(from_file.kv_bytes(9_512), from_config.kv_bytes(9_512), "{name}");
        assert_eq!(from_file.transient_bytes(&pass), from_config.transient_bytes(&pass), "{name}");
        let translated = Translation::of(&metadata).unwrap().config;
        let weighed = Registry::builtin().from_config(&translated, &all_bf16()).unwrap();
        assert_eq!(weighed.weights_bytes(), estimate(name, all_bf16()).weights_bytes(), "{name}");
    }
}

#[test]
fn an_error_names_the_expanded_latent_key_where_that_is_what_was_read() {
    let pairs = |mla: &[(&'static str, u64)]| {
        let plain = [
            ("deepseek2.attention.kv_lora_rank", 512),
            ("deepseek2.attention.key_length", 576),
            ("deepseek2.attention.value_length", 512),
            ("deepseek2.rope.dimension_count", 64),
        ];
        let numbers = plain.iter().chain(mla).map(|&(key, value)| (key, json!(value)));
        Pairs([("general.architecture", json!("deepseek2"))].into_iter().chain(numbers).collect())
    };
    let keys = |mla: &[(&'static str, u64)]| {
        let translation = Translation::of(&pairs(mla)).unwrap();
        ["qk_nope_head_dim", "v_head_dim"].map(|field| translation.keys[field].clone())
    };
    assert_eq!(keys(&[]), ["deepseek2.attention.key_length", "deepseek2.attention.value_length"]);
    let mla = [("deepseek2.attention.key_length_mla", 192), ("deepseek2.attention.value_length_mla", 0)];
    assert_eq!(keys(&mla), mla.map(|(key, _)| key));
}

#[test]
fn a_gguf_file_tells_ties_and_windows_in_its_own_way() {
    let windows: Vec<bool> = (0..62).map(|layer| (layer + 1) % 6 != 0).collect();
    let windows: Vec<u64> = windows.into_iter().map(u64::from).collect();
    let gemma = Pairs(vec![
        ("general.architecture", json!("gemma3")),
        ("gemma3.block_count", json!(62)),
        ("gemma3.embedding_length", json!(5_376)),
        ("gemma3.feed_forward_length", json!(21_504)),
        ("gemma3.attention.head_count", json!(32)),
        ("gemma3.attention.head_count_kv", json!(vec![16; 62])),
        ("gemma3.attention.key_length", json!(128)),
        ("gemma3.attention.sliding_window", json!(1_024)),
        ("gemma3.attention.sliding_window_pattern", json!(windows)),
        ("tokenizer.ggml.tokens", json!(vec![0; 262_208])),
    ]);
    let translated = Translation::of(&gemma).unwrap().config;
    assert_eq!(translated["tie_word_embeddings"], json!(true));
    let weighed = Registry::builtin().from_config(&translated, &all_bf16()).unwrap();
    assert_eq!(weighed.weights_bytes(), 2 * 27_009_346_304);
    let estimate_of_file = Registry::builtin().from_metadata(&gemma, &by_token()).unwrap();
    assert_eq!(estimate_of_file.kv_bytes(32_768), estimate("gemma-3-27b", by_token()).kv_bytes(32_768));
    let nameless = Registry::builtin().from_metadata(&Pairs(vec![]), &by_token()).unwrap_err();
    assert_eq!(nameless, EstimateError::NoArchitecture);
}

#[test]
fn weights_of_quantization_libraries_are_priced_where_their_layout_is_known() {
    let bits = |config: Value| {
        let estimate = Registry::builtin().from_config(&config, &by_token()).unwrap();
        estimate.weights_bytes() as f64 * 8.0 / 8_030_261_248.0
    };
    let plain = bits(config("llama-3.1-8b"));
    for (quantization, least, most) in [
        (json!({"quant_method": "gptq", "bits": 4, "group_size": 128}), 5.5, 6.5),
        (json!({"quant_method": "gptq", "bits": 8, "group_size": -1}), 8.9, 9.6),
        (json!({"quant_method": "awq", "w_bit": 4, "q_group_size": 128}), 5.5, 6.5),
        (json!({"quant_method": "fp8"}), 8.9, 9.6),
        (json!({"quant_method": "another"}), plain, plain),
    ] {
        let found = bits(config_with("llama-3.1-8b", "quantization_config", quantization.clone()));
        assert!((least..=most).contains(&found), "{quantization}: {found}");
    }
    let eight = bits(config_with("llama-3.1-8b", "torch_dtype", json!("float8_e4m3fn")));
    assert!((8.0..8.1).contains(&eight), "{eight}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_form_is_monotone(tokens in 0..300_000usize, rows in 1..4_096usize, logits in 0..64usize, more in 0..5_000usize, unfused in any::<bool>()) {
        let attention = if unfused { AttentionPrice::Unfused { score_bytes: 2 } } else { EstimateSettings::default().attention };
        for (name, _) in CONFIGS {
            let form = estimate(name, EstimateSettings { attention, ..EstimateSettings::default() });
            prop_assert!(form.kv_bytes(tokens) <= form.kv_bytes(tokens + more), "{}", name);
            let pass = Pass { rows, start: tokens, logit_rows: logits };
            let bytes = form.transient_bytes(&pass);
            for dearer in [Pass { rows: rows + more, ..pass }, Pass { start: tokens + more, ..pass }, Pass { logit_rows: logits + more, ..pass }] {
                prop_assert!(bytes <= form.transient_bytes(&dearer), "{}", name);
            }
            // If a prompt fits, every shorter one does.
            prop_assert!(peak_bytes(&form, tokens, 2_048) <= peak_bytes(&form, tokens + more, 2_048), "{}", name);
        }
    }
}
