use super::*;
use serde_json::{Value, json};

/// A config with the fields of `more` besides the sizes.
fn config(more: Value) -> Result<Config, ModelError> {
    let mut fields = json!({
        "model_type": "gemma3_text", "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 7, "vocab_size": 131,
        "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 14, "sliding_window": 37,
    });
    fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Config::from_fields(&Fields::new(fields.as_object().unwrap()))
}

fn sliding(config: &Config) -> Vec<bool> {
    config.windows.iter().map(Option::is_some).collect()
}

#[test]
fn five_of_six_layers_slide_unless_the_file_says_otherwise() {
    let plain = config(json!({})).unwrap();
    assert_eq!(sliding(&plain), [true, true, true, true, true, false, true]);
    assert_eq!(plain.windows[0], Some(37));
    let third = config(json!({"sliding_window_pattern": 3})).unwrap();
    assert_eq!(sliding(&third), [true, true, false, true, true, false, true]);
    let types: Vec<&str> =
        (0..7).map(|layer| if layer == 1 { "sliding_attention" } else { "full_attention" }).collect();
    let listed = config(json!({"layer_types": types})).unwrap();
    assert_eq!(sliding(&listed), [false, true, false, false, false, false, false]);
    assert_eq!(sliding(&config(json!({"sliding_window": null})).unwrap()), [false; 7]);
    for types in [json!(["full_attention"]), json!(vec!["chunked_attention"; 7])] {
        assert!(matches!(config(json!({"layer_types": types})), Err(ModelError::Unsupported { .. })), "{types}");
    }
}

#[test]
fn the_two_rotations_come_from_either_dialect() {
    let plain = config(json!({})).unwrap();
    assert_eq!((plain.rope.theta, plain.local_rope.theta), (1e6, 1e4));
    let old =
        json!({"rope_theta": 2e5, "rope_local_base_freq": 3e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}});
    let new = json!({"rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
    }});
    let (old, new) = (config(old).unwrap(), config(new).unwrap());
    assert_eq!(old, new);
    assert_eq!(
        (&old.rope.scaling, &old.local_rope.scaling),
        (&RopeScaling::Linear { factor: 8.0 }, &RopeScaling::None)
    );
    assert_eq!((old.rope.theta, old.local_rope.theta), (2e5, 3e4));
    let flat = config(json!({"rope_parameters": {"rope_theta": 1e4}})).unwrap_err().to_string();
    assert!(flat.contains("an object for each kind of layer"), "{flat}");
}

#[test]
fn a_multimodal_folder_takes_the_defaults_of_its_class() {
    let fields = json!({
        "model_type": "gemma3", "mm_tokens_per_image": 256, "boi_token_index": 255_999, "vision_config": {"hidden_size": 4},
        "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "sliding_window": 1024, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    });
    let config = Config::from_fields(&Fields::new(fields.as_object().unwrap())).unwrap();
    let sizes = &config.sizes;
    assert_eq!((sizes.num_attention_heads, sizes.num_key_value_heads, sizes.head_dim), (8, 4, 256));
    assert_eq!((sizes.vocab_size, sizes.max_position_embeddings, sizes.tie_word_embeddings), (262_208, 131_072, true));
    assert_eq!(config.query_pre_attn_scalar, 256.0);
    let mut bare = fields.clone();
    bare.as_object_mut().unwrap().remove("text_config");
    let error = Config::from_fields(&Fields::new(bare.as_object().unwrap())).unwrap_err();
    assert!(matches!(error, ModelError::MissingField { .. }), "{error}");
}

#[test]
fn what_would_be_computed_otherwise_is_refused() {
    for (field, value) in [
        ("hidden_activation", json!("gelu")),
        ("use_bidirectional_attention", json!(true)),
        ("final_logit_softcapping", json!(0.0)),
        ("query_pre_attn_scalar", json!(0)),
        ("a_new_attention_kind", json!(1)),
    ] {
        let error = config(json!({(field): value})).unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
}
