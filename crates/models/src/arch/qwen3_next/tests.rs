use super::*;
use serde_json::{Map, Value, json};

/// A valid `config.json` of four layers; `changes` replace fields, null removes them.
fn read(changes: Value) -> Result<(Config, Option<MoeConfig>, SparseLayers), String> {
    let mut fields = json!({
        "model_type": "qwen3_next",
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 20,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 10,
        "hidden_act": "silu",
    });
    for (key, value) in changes.as_object().unwrap() {
        fields[key] = value.clone();
    }
    let map: Map<String, Value> = fields.as_object().unwrap().clone();
    let fields = Fields::new(&map);
    let read = || -> Result<_, ModelError> {
        fields.find_text("model_type")?;
        let config = Config::from_fields(&fields, 2, Projections::ByKeyHead)?;
        let moe = MoeConfig::from_fields(&fields, true, true)?;
        let sparse = SparseLayers::from_fields(&fields)?;
        fields.finish()?;
        Ok((config, moe, sparse))
    };
    read().map_err(|error| error.to_string())
}

fn refusal(changes: Value) -> String {
    let Err(error) = read(changes) else { panic!("taken") };
    assert!(!error.contains('\n'), "{error}");
    error
}

#[test]
fn a_config_that_says_little_has_the_defaults_of_the_class() {
    let (config, moe, _) = read(json!({})).unwrap();
    assert_eq!(config.attends, [false, false, false, true]);
    assert_eq!((config.delta.kernel, config.rope.rotary_dim, config.delta.order), (4, 4, HeadOrder::Grouped));
    let moe = moe.unwrap();
    assert!(moe.norm_topk_prob);
    assert_eq!(moe.shared_expert_intermediate_size, Some(20));
    let (config, moe, _) = read(json!({"full_attention_interval": 2, "num_experts": 0})).unwrap();
    assert_eq!((config.attends, moe), (vec![false, true, false, true], None));
    let types = json!({"layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"]});
    assert_eq!(read(types).unwrap().0.attends, [true, false, false, true]);
}

#[test]
fn settings_that_do_not_go_together_are_refused_by_name() {
    for (changes, words) in [
        (json!({"layer_types": ["full_attention"]}), ["layer_types", "4 layers"]),
        (json!({"layer_types": ["a", "b", "c", "d"]}), ["layer_types", "linear_attention"]),
        (json!({"linear_num_value_heads": 5}), ["linear_num_value_heads", "linear_num_key_heads"]),
        (json!({"linear_key_head_dim": 100_000}), ["linear_key_head_dim", "65536"]),
        (json!({"linear_num_key_heads": 0}), ["linear_num_key_heads", "1"]),
        (json!({"linear_conv_kernel_dim": 5000}), ["linear_conv_kernel_dim", "1024"]),
        (json!({"num_experts_per_tok": 9}), ["num_experts_per_tok", "8"]),
        (json!({"moe_intermediate_size": null}), ["moe_intermediate_size", ""]),
        (json!({"mlp_only_layers": ["x"]}), ["mlp_only_layers", "layer numbers"]),
        (json!({"attn_output_gate": false}), ["attn_output_gate", "true"]),
        (json!({"output_gate_type": "sigmoid"}), ["output_gate_type", "silu"]),
        (json!({"mamba_ssm_dtype": "bfloat16"}), ["mamba_ssm_dtype", "float32"]),
        (json!({"linear_decay_rank": 3}), ["linear_decay_rank", ""]),
    ] {
        let error = refusal(changes.clone());
        assert!(words.iter().all(|word| error.contains(word)), "{changes}: {error}");
    }
}
