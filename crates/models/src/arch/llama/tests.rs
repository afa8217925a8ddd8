use super::*;
use crate::{
    gguf::GgufError,
    layers::rope::RopeScaling,
    testing::{
        Setting::{Bool, F32, Text, U32},
        TinyLlama,
    },
};

fn config(file: &TinyLlama) -> Result<Config, ModelError> {
    Config::from_gguf(&file.gguf())
}

/// Key, found and supported of a refusal.
#[track_caller]
fn refused(file: &TinyLlama) -> (String, String, String) {
    match config(file) {
        Err(ModelError::Unsupported { key, found, supported }) => {
            assert!(!supported.is_empty(), "{key}");
            (key, found, supported)
        }
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn the_least_file_has_the_usual_defaults() {
    let cfg = config(&TinyLlama::new()).unwrap();
    assert_eq!((cfg.sizes.head_dim, cfg.rope.rotary_dim, cfg.rope.theta), (4, 4, 10_000.0));
    assert_eq!((cfg.rope.scaling, cfg.sliding_window, cfg.sizes.tie_word_embeddings), (RopeScaling::None, None, true));
    let alone = TinyLlama::new().without("attention.head_count_kv");
    assert_eq!(config(&alone).unwrap().sizes.num_key_value_heads, 4);
}

#[test]
fn keys_that_would_change_the_arithmetic_are_refused_with_found_and_supported() {
    let cases = [
        ("attention.causal", Bool(false), "false", "1"),
        ("attention.clamp_kqv", F32(8.0), "8", "0"),
        ("attention.max_alibi_bias", F32(8.0), "8", "0"),
        ("attention.scale", F32(0.25), "0.25", "0.5, 1 / sqrt(head dimension)"),
        ("attention.value_length", U32(8), "8", "4, the key length"),
        ("attn_logit_softcapping", F32(50.0), "50", "0"),
        ("embedding_scale", F32(12.0), "12", "0 or 1"),
        ("expert_count", U32(8), "8", "0"),
        ("expert_used_count", U32(2), "2", "0"),
        ("final_logit_softcapping", F32(30.0), "30", "0"),
        ("logit_scale", F32(0.0625), "0.0625", "0 or 1"),
        ("pooling_type", U32(1), "1", "0"),
        ("residual_scale", F32(0.25), "0.25", "0 or 1"),
        ("rope.dimension_count", U32(3), "3", "an even number up to the head dimension, 4"),
        ("rope.dimension_count", U32(6), "6", "an even number up to the head dimension, 4"),
        ("rope.freq_base", F32(1.0), "1", "a finite number above 1"),
        ("rope.freq_base", F32(f32::NAN), "NaN", "a finite number above 1"),
        ("rope.scale_linear", F32(-2.0), "-2", "a positive number from 1/1024 to 1048576"),
        ("rope.scaling.attn_factor", F32(2.0), "2", "1"),
        ("rope.scaling.factor", F32(f32::INFINITY), "inf", "a positive number from 1/1024 to 1048576"),
        (
            "rope.scaling.factor",
            F32(1e-45),
            "0.000000000000000000000000000000000000000000001401298464324817",
            "a positive number from 1/1024 to 1048576",
        ),
        ("attention.scale", F32(f32::NAN), "NaN", "0.5, 1 / sqrt(head dimension)"),
        ("rope.scaling.type", Text("longrope"), "longrope", "none, linear, yarn"),
        ("rope.scaling.yarn_attn_factor", F32(1.5), "1.5", "1"),
        ("rope.scaling.yarn_ext_factor", F32(1.0), "1", "0"),
        ("swin_norm", Bool(true), "true", "0"),
        ("use_parallel_residual", Bool(true), "true", "0"),
        ("attention.layer_norm_rms_epsilon", F32(-1.0), "-1", "a number from 0 to 1"),
    ];
    for (key, value, found, supported) in cases {
        let want = (format!("llama.{key}"), found.to_owned(), supported.to_owned());
        assert_eq!(refused(&TinyLlama::new().with(key, value)), want);
    }
}

#[test]
fn the_same_keys_with_values_that_do_nothing_are_taken() {
    let plain = config(&TinyLlama::new()).unwrap();
    for (key, value) in [
        ("attention.causal", Bool(true)),
        ("attention.scale", F32(0.5)),
        ("attention.scale", F32(0.0)),
        ("attention.sliding_window", U32(0)),
        ("attention.value_length", U32(4)),
        ("expert_count", U32(0)),
        ("logit_scale", F32(1.0)),
        ("pooling_type", U32(0)),
        ("rope.scaling.attn_factor", F32(1.0)),
        ("rope.scaling.factor", F32(0.0)),
        ("rope.scaling.factor", F32(1.0)),
        ("rope.scaling.finetuned", Bool(true)),
        ("rope.scaling.type", Text("none")),
        ("rope.scaling.yarn_ext_factor", F32(-1.0)),
        ("vocab_size", U32(32)),
        ("a_key_of_tomorrow", U32(1)),
    ] {
        assert_eq!(config(&TinyLlama::new().with(key, value)).unwrap(), plain, "{key}");
    }
}

#[test]
fn unknown_keys_of_rope_and_attention_are_refused() {
    for key in ["rope.freq_base_swa", "rope.scaling.yarn_new", "attention.sliding_window_pattern", "attention.indexer"]
    {
        let (refused, found, _) = refused(&TinyLlama::new().with(key, U32(3)));
        assert_eq!((refused, found), (format!("llama.{key}"), "3".to_owned()));
    }
}

#[test]
fn sizes_out_of_range_are_named_before_anything_is_built_of_them() {
    let out_of_range = |key: &str, value: u32| match config(&TinyLlama::new().with(key, U32(value))) {
        Err(ModelError::OutOfRange { key, found, maximum, .. }) => (key, found, maximum),
        other => panic!("expected a size out of range, got {other:?}"),
    };
    for key in ["embedding_length", "block_count", "attention.head_count", "feed_forward_length", "context_length"] {
        assert_eq!(out_of_range(key, 0), (format!("llama.{key}"), 0, 1 << 31));
    }
    assert_eq!(out_of_range("block_count", 1 << 30), ("llama.block_count".to_owned(), 1 << 30, 20));
    let key_length = "llama.attention.key_length".to_owned();
    assert_eq!(out_of_range("attention.key_length", 1 << 30), (key_length, 1 << 30, 1 << 16));
}

#[test]
fn heads_that_do_not_divide_are_named_with_both_keys() {
    let fault = |file: TinyLlama| match config(&file) {
        Err(error @ ModelError::NotDivisible { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        fault(TinyLlama::new().with("attention.head_count_kv", U32(3))),
        "llama.attention.head_count = 4 is not divisible by llama.attention.head_count_kv = 3"
    );
    assert_eq!(
        fault(TinyLlama::new().with("embedding_length", U32(18))),
        "llama.embedding_length = 18 is not divisible by llama.attention.head_count = 4"
    );
}

#[test]
fn missing_and_mistyped_keys_are_named() {
    for key in ["context_length", "embedding_length", "attention.layer_norm_rms_epsilon"] {
        let error = config(&TinyLlama::new().without(key)).unwrap_err();
        assert!(matches!(&error, ModelError::Gguf(GgufError::MissingKey { key: k }) if k.ends_with(key)), "{error}");
    }
    let error = config(&TinyLlama::new().with("block_count", Text("two"))).unwrap_err();
    assert!(matches!(error, ModelError::Gguf(GgufError::WrongMetadataType { .. })), "{error}");
}

#[test]
fn linear_scaling_comes_from_either_key() {
    for key in ["rope.scaling.factor", "rope.scale_linear"] {
        let cfg = config(&TinyLlama::new().with(key, F32(4.0))).unwrap();
        assert_eq!(cfg.rope.scaling, RopeScaling::Linear { factor: 4.0 }, "{key}");
    }
}

fn yarn_file() -> TinyLlama {
    TinyLlama::new().with("rope.scaling.type", Text("yarn")).with("rope.scaling.factor", F32(6.0))
}

#[test]
fn yarn_temperature_is_divided_by_that_of_the_log_multiplier() {
    let factor = |file: TinyLlama| match config(&file).unwrap().rope.scaling {
        RopeScaling::Yarn { attention_factor, .. } => attention_factor,
        other => panic!("{other:?}"),
    };
    let m = |x: f64| 0.1 * x * 6f64.ln() + 1.0;
    assert!((factor(yarn_file()) - m(1.0)).abs() < 1e-12);
    for multiplier in [0.5f32, 1.0] {
        let got = factor(yarn_file().with("rope.scaling.yarn_log_multiplier", F32(multiplier)));
        assert!((got - m(1.0) / m(multiplier.into())).abs() < 1e-12, "{multiplier}: {got}");
    }
}

#[test]
fn yarn_reads_its_ramp_and_refuses_another_extrapolation() {
    let file = yarn_file()
        .with("rope.scaling.original_context_length", U32(128))
        .with("rope.scaling.yarn_beta_fast", F32(12.0))
        .with("rope.scaling.yarn_beta_slow", F32(2.0))
        .with("rope.scaling.yarn_ext_factor", F32(1.0));
    let RopeScaling::Yarn { original_context, beta_fast, beta_slow, .. } = config(&file).unwrap().rope.scaling else {
        panic!("not yarn")
    };
    assert_eq!((original_context, beta_fast, beta_slow), (128, 12.0, 2.0));
    let (key, found, supported) = refused(&file.clone().with("rope.scaling.yarn_ext_factor", F32(0.5)));
    assert_eq!((&*key, &*found, &*supported), ("llama.rope.scaling.yarn_ext_factor", "0.5", "1"));
    for key in ["rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"] {
        assert_eq!(refused(&file.clone().with(key, F32(0.0))).0, format!("llama.{key}"));
    }
    assert_eq!(refused(&file.with("rope.scaling.yarn_log_multiplier", F32(f32::NAN))).1, "NaN");
}

#[test]
fn stored_frequency_factors_go_with_no_other_scaling() {
    let file = TinyLlama::new().tensor("rope_freqs.weight", &[2]);
    assert!(matches!(config(&file).unwrap().rope.scaling, RopeScaling::Factors(factors) if factors.len() == 2));
    assert_eq!(refused(&file.clone().with("rope.scaling.type", Text("linear"))).0, "llama.rope.scaling.type");
    assert_eq!(refused(&file.clone().with("rope.scaling.factor", F32(8.0))).0, "llama.rope.scaling.factor");
    let error = config(&file.tensor("rope_freqs.weight", &[3])).unwrap_err();
    assert!(matches!(error, ModelError::WrongShape { .. }), "{error}");
}
