//! What no model can be, and how it is said.

use super::*;

#[test]
fn broken_configs_are_refused_by_the_field_that_is_wrong() {
    let error = |config: Value| Registry::builtin().from_config(&config, &by_token()).unwrap_err();
    assert_eq!(error(json!({})), EstimateError::NoArchitecture);
    assert_eq!(error(json!([1])), EstimateError::NoArchitecture);
    assert_eq!(error(json!({"model_type": "mamba"})).to_string(), "architecture `mamba` is not registered");
    let strange = config_with("gemma-3-27b", "layer_types", json!(vec!["ring"; 62]));
    assert_eq!(error(strange), EstimateError::LayerType { layer: 0, name: "ring".to_owned() });
}

/// Every field that a closed form reads, with what it cannot hold.
#[test]
fn what_no_model_can_be_is_refused_with_field_value_and_what_is_expected() {
    let sizes = |most: u64| format!("expected a whole number from 1 to {most}");
    let counts = |most: u64| format!("expected a whole number from 0 to {most}");
    // Sizes of every architecture that must be there, and those of its own.
    let everywhere: &[(&str, u64)] = &[
        ("hidden_size", 1 << 20),
        ("num_hidden_layers", 1 << 14),
        ("num_attention_heads", 1 << 16),
        ("vocab_size", 1 << 26),
    ];
    let (most, experts) = (1 << 31, 1 << 20);
    let heads: &[(&str, u64)] = &[("num_key_value_heads", 1 << 16), ("head_dim", 1 << 16)];
    let own: [(&str, &[(&str, u64)]); 10] = [
        ("llama-3.1-8b", &[("intermediate_size", 1 << 26)]),
        ("qwen3-0.6b", &[("intermediate_size", 1 << 26)]),
        ("gemma-3-27b", &[("sliding_window", most), ("sliding_window_pattern", most), ("intermediate_size", 1 << 26)]),
        (
            "gemma-4-experts",
            &[("global_head_dim", most), ("num_global_key_value_heads", most), ("top_k_experts", most)],
        ),
        (
            "qwen3-30b-a3b",
            &[("num_experts_per_tok", experts), ("moe_intermediate_size", 1 << 26), ("decoder_sparse_step", most)],
        ),
        (
            "qwen3-next-80b-a3b",
            &[
                ("linear_num_key_heads", most),
                ("linear_num_value_heads", most),
                ("linear_key_head_dim", most),
                ("linear_value_head_dim", most),
                ("linear_conv_kernel_dim", most),
                ("full_attention_interval", most),
            ],
        ),
        (
            "deepseek-v3",
            &[
                ("q_lora_rank", most),
                ("kv_lora_rank", most),
                ("qk_nope_head_dim", most),
                ("qk_rope_head_dim", most),
                ("v_head_dim", most),
                ("n_routed_experts", experts),
                ("num_experts_per_tok", experts),
                ("moe_layer_freq", most),
            ],
        ),
        (
            "deepseek-v4-flash",
            &[
                ("o_groups", most),
                ("o_lora_rank", most),
                ("index_n_heads", most),
                ("index_head_dim", most),
                ("index_topk", most),
                ("hc_mult", most),
                ("sliding_window", most),
            ],
        ),
        ("gpt-oss-20b", &[("num_local_experts", experts), ("num_experts_per_tok", experts), ("sliding_window", most)]),
        (
            "llama-4-scout",
            &[
                ("attention_chunk_size", most),
                ("num_local_experts", experts),
                ("intermediate_size_mlp", most),
                ("no_rope_layer_interval", most),
                ("interleave_moe_layer_step", most),
            ],
        ),
    ];
    let mut cases: Vec<(&str, &str, Value, String)> = Vec::new();
    for (name, own) in own {
        let shared = if name.starts_with("deepseek") { &[][..] } else { heads };
        for &(field, most) in everywhere.iter().chain(shared).chain(own) {
            for value in [
                json!(0),
                json!(-1),
                json!("64"),
                json!(64.0),
                json!(true),
                json!([64]),
                json!(u64::MAX),
                json!(most + 1),
            ] {
                cases.push((name, field, value, sizes(most)));
            }
        }
    }
    for (name, field) in [
        ("qwen3-next-80b-a3b", "shared_expert_intermediate_size"),
        ("deepseek-v3", "n_shared_experts"),
        ("deepseek-v3", "first_k_dense_replace"),
        ("gemma-4-small", "hidden_size_per_layer_input"),
        ("gemma-4-small", "num_kv_shared_layers"),
        ("qwen3-0.6b", "max_window_layers"),
    ] {
        cases.extend([json!(-1), json!("1"), json!(0.5)].map(|value| (name, field, value, counts(most))));
    }
    let (switch, words) = ("expected true or false".to_owned(), "expected a list of words".to_owned());
    let numbers = "expected a list of whole numbers".to_owned();
    for (name, field, value, expected) in [
        ("llama-3.1-8b", "attention_bias", json!("no"), &switch),
        ("llama-3.1-8b", "tie_word_embeddings", json!(0), &switch),
        ("qwen3-0.6b", "use_sliding_window", json!(1), &switch),
        ("gemma-4-experts", "attention_k_eq_v", json!("true"), &switch),
        ("gemma-3-27b", "layer_types", json!("full_attention"), &words),
        ("gemma-3-27b", "layer_types", json!([1, 2]), &words),
        ("qwen3-30b-a3b", "mlp_only_layers", json!([-1]), &numbers),
        ("llama-4-scout", "moe_layers", json!("all"), &numbers),
        ("deepseek-v4-flash", "compress_ratios", json!(4), &numbers),
    ] {
        cases.push((name, field, value, expected.clone()));
    }
    for (name, field, value, expected) in cases {
        let case = format!("{name}: {field} = {value}");
        let config = config_with(name, field, value.clone());
        let error = Registry::builtin().from_config(&config, &by_token()).expect_err(&case);
        assert!(matches!(&error, EstimateError::BadField { field: found, .. } if found == field), "{case}: {error}");
        let message = error.to_string();
        assert!(
            message.starts_with(&format!("`{field}` cannot be {value}: ")) && message.ends_with(&expected),
            "{case}: {message}"
        );
    }
}

#[test]
fn sizes_that_do_not_go_together_are_refused_with_both() {
    for (name, field, value, message) in [
        (
            "llama-3.1-8b",
            "num_key_value_heads",
            json!(5),
            "`num_attention_heads` = 32 is not divisible by `num_key_value_heads` = 5",
        ),
        (
            "gemma-4-experts",
            "num_global_key_value_heads",
            json!(3),
            "`num_attention_heads` = 16 is not divisible by `num_global_key_value_heads` = 3",
        ),
        (
            "qwen3.6-27b",
            "linear_num_value_heads",
            json!(24),
            "`linear_num_value_heads` = 24 is not divisible by `linear_num_key_heads` = 16",
        ),
        ("deepseek-v4-flash", "o_groups", json!(7), "`num_attention_heads` = 64 is not divisible by `o_groups` = 7"),
        (
            "qwen3-30b-a3b",
            "num_experts_per_tok",
            json!(129),
            "`num_experts_per_tok` = 129 is more than `num_experts` = 128",
        ),
        (
            "deepseek-v3",
            "num_experts_per_tok",
            json!(257),
            "`num_experts_per_tok` = 257 is more than `n_routed_experts` = 256",
        ),
        (
            "gpt-oss-20b",
            "num_local_experts",
            json!(3),
            "`num_experts_per_tok` = 4 is more than `num_local_experts` = 3",
        ),
        ("gemma-4-experts", "top_k_experts", json!(200), "`top_k_experts` = 200 is more than `num_experts` = 128"),
        (
            "gemma-4-small",
            "num_kv_shared_layers",
            json!(31),
            "`num_kv_shared_layers` = 31 is more than `num_hidden_layers` = 30",
        ),
        ("gemma-3-27b", "layer_types", json!(["full_attention"]), "62 layers, but `layer_types` lists 1"),
        ("gemma-3-27b", "layer_types", json!(vec!["full_attention"; 63]), "62 layers, but `layer_types` lists 63"),
        ("deepseek-v4-flash", "compress_ratios", json!([0, 4]), "43 layers, but `compress_ratios` lists 2"),
        (
            "deepseek-v4-flash",
            "compress_rates",
            json!({"compressed_sparse_attention": 0}),
            "`compress_rates.compressed_sparse_attention` cannot be 0: expected a whole number from 1 to 2147483648",
        ),
        (
            "deepseek-v4-flash",
            "compress_rates",
            json!(4),
            "`compress_rates` cannot be 4: expected an object with a ratio for each kind of layer",
        ),
        ("gemma-4-experts", "num_experts", Value::Null, "the config has no `num_experts`"),
        ("qwen3-30b-a3b", "num_experts", Value::Null, "the config has no `num_experts`"),
        ("llama-3.1-8b", "hidden_size", Value::Null, "the config has no `hidden_size`"),
        (
            "deepseek-v3",
            "quantization_config",
            json!("fp8"),
            "`quantization_config` cannot be \"fp8\": expected an object",
        ),
        (
            "llama-3.1-8b",
            "quantization_config",
            json!({"quant_method": "gptq", "bits": 0}),
            "`quantization_config.bits` cannot be 0: expected a whole number from 1 to 8",
        ),
        (
            "llama-3.1-8b",
            "torch_dtype",
            json!("banana"),
            "`torch_dtype` cannot be \"banana\": expected bfloat16, float16, float32, float64, or an 8-bit type",
        ),
        ("llama-3.1-8b", "torch_dtype", json!(16), "`torch_dtype` cannot be 16: expected text"),
    ] {
        let error = Registry::builtin().from_config(&config_with(name, field, value), &by_token()).unwrap_err();
        assert_eq!(error.to_string(), message, "{name}");
    }
    let mut uneven = config_with("llama-3.1-8b", "head_dim", Value::Null);
    uneven["num_attention_heads"] = json!(24);
    let error = Registry::builtin().from_config(&uneven, &by_token()).unwrap_err();
    assert_eq!(error.to_string(), "`hidden_size` = 4096 is not divisible by `num_attention_heads` = 24");
    // Windowed layers that are listed need a window.
    let mut windowless = config_with("gemma-3-27b", "layer_types", json!(vec!["sliding_attention"; 62]));
    windowless["text_config"]["sliding_window"] = Value::Null;
    let error = Registry::builtin().from_config(&windowless, &by_token()).unwrap_err();
    assert_eq!(error, EstimateError::MissingField { field: "sliding_window".to_owned() });
}

#[test]
fn what_a_gguf_file_cannot_state_is_refused_by_its_own_key() {
    let sound = [
        ("general.architecture", json!("deepseek2")),
        ("deepseek2.block_count", json!(61)),
        ("deepseek2.embedding_length", json!(7_168)),
        ("deepseek2.feed_forward_length", json!(18_432)),
        ("deepseek2.attention.head_count", json!(128)),
        ("deepseek2.attention.kv_lora_rank", json!(512)),
        ("deepseek2.attention.key_length", json!(192)),
        ("deepseek2.attention.value_length", json!(128)),
        ("deepseek2.rope.dimension_count", json!(64)),
        ("deepseek2.expert_count", json!(256)),
        ("deepseek2.expert_used_count", json!(8)),
        ("deepseek2.expert_feed_forward_length", json!(2_048)),
        ("deepseek2.vocab_size", json!(129_280)),
    ];
    let error = |key: &str, value: Option<Value>| {
        let mut pairs = sound.to_vec();
        pairs.retain(|(known, _)| *known != key);
        let key = sound.iter().map(|(known, _)| *known).find(|known| *known == key).unwrap();
        pairs.extend(value.map(|value| (key, value)));
        Registry::builtin().from_metadata(&Pairs(pairs), &by_token()).map(|estimate| estimate.weights_bytes())
    };
    assert_eq!(error("deepseek2.expert_count", Some(json!(256))), Ok(12_345));
    for (key, value, message) in [
        (
            "deepseek2.embedding_length",
            Some(json!("7168")),
            "cannot be \"7168\": expected a whole number, or one for each layer",
        ),
        (
            "deepseek2.embedding_length",
            Some(json!(-7_168)),
            "cannot be -7168: expected a whole number, or one for each layer",
        ),
        ("deepseek2.embedding_length", Some(json!(0)), "cannot be 0: expected a whole number from 1 to 1048576"),
        ("deepseek2.embedding_length", None, ""),
        (
            "deepseek2.attention.kv_lora_rank",
            Some(json!(0)),
            "cannot be 0: expected a whole number from 1 to 2147483648",
        ),
        ("deepseek2.rope.dimension_count", Some(json!(0)), "cannot be 0: expected a whole number from 1 to 2147483648"),
        ("deepseek2.expert_used_count", Some(json!(300)), "= 300 is more than `deepseek2.expert_count` = 256"),
        // 0 is llama.cpp's "not set".
        ("deepseek2.expert_count", Some(json!(0)), ""),
        ("deepseek2.vocab_size", None, ""),
    ] {
        let message = match message {
            "" => format!("the config has no `{key}`"),
            end => format!("`{key}` {end}"),
        };
        assert_eq!(error(key, value).unwrap_err().to_string(), message);
    }
}
