//! What the planner says of a model and what closed forms say of it: the same weights and KV, and transients that bound each other.

#![expect(clippy::unwrap_used, reason = "a test may end at the first thing that is not there")]

use plimsoll_attention::KvDtype;
use plimsoll_memguard::{
    EstimateError, EstimateSettings, Pass, Profile, Registry, StorageFormat, TransientSource, WeightFormats,
};
use plimsoll_models::{CpuSettings, Outline, OutlineTypes, arch::known_model_types, register_programs};
use serde_json::{Value, json};

/// A config, and what its loaded weights take beyond the closed form: matrices of fewer than 16 rows are padded to a panel.
struct Case {
    name: &'static str,
    config: Value,
    padding_bytes: u64,
}

/// The fields that every decoder has, at the sizes of Qwen3 0.6B, and those of `more`.
fn config(model_type: &str, more: Value) -> Value {
    let mut config = json!({
        "model_type": model_type, "vocab_size": 151_936, "hidden_size": 1_024, "intermediate_size": 3_072,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 40_960, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
    });
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn hybrid(model_type: &str, more: Value) -> Value {
    let mut base = json!({
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4, "full_attention_interval": 4, "head_dim": 256, "num_key_value_heads": 2,
    });
    for (key, value) in more.as_object().unwrap() {
        base[key] = value.clone();
    }
    config(model_type, base)
}

/// Every architecture that has a program, and every way in which its closed form may differ.
fn cases() -> Vec<Case> {
    let experts = json!({"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 768});
    let shared = json!({
        "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    });
    // The gate of a shared expert is one row in a panel of 16.
    let gates = 28 * 15 * 1_024 * 2;
    let plain = [
        ("llama", config("llama", json!({}))),
        ("llama with biases", config("llama", json!({"attention_bias": true}))),
        ("mistral", config("mistral", json!({"sliding_window": 4_096}))),
        ("olmo2", config("olmo2", json!({}))),
        ("phi3", config("phi3", json!({"head_dim": null, "num_attention_heads": 8}))),
        ("qwen2", config("qwen2", json!({}))),
        ("qwen3", config("qwen3", json!({"tie_word_embeddings": true}))),
        ("qwen3_moe", config("qwen3_moe", experts)),
        ("gemma3_text", config("gemma3_text", json!({"sliding_window": 1_024, "head_dim": 256}))),
        ("qwen3_5_text", hybrid("qwen3_5_text", json!({}))),
    ];
    let gated = [
        ("qwen3_next", hybrid("qwen3_next", shared.clone())),
        ("qwen3_5_moe_text", hybrid("qwen3_5_moe_text", shared)),
    ];
    let case = |padding_bytes| move |(name, config)| Case { name, config, padding_bytes };
    plain.into_iter().map(case(0)).chain(gated.into_iter().map(case(gates))).collect()
}

fn settings() -> CpuSettings {
    CpuSettings::detect(8, KvDtype::Bf16)
}

fn programs() -> Registry {
    let mut registry = Registry::builtin();
    register_programs(&mut registry, settings());
    registry
}

/// As the CPU executor holds things: matrices in bf16, vectors in f32, two buffers of recurrent state, windows not cut off.
fn as_loaded() -> EstimateSettings {
    let weights = WeightFormats { vectors: StorageFormat::F32, ..WeightFormats::all(StorageFormat::BF16) };
    EstimateSettings {
        weights: Some(weights),
        state_buffers: 2,
        chunk_rows: usize::MAX / 2,
        ..EstimateSettings::default()
    }
}

#[test]
fn weights_and_kv_of_program_and_closed_form_are_equal() {
    for Case { name, config, padding_bytes } in cases() {
        let planned = programs().from_config(&config, &as_loaded()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let closed = Registry::builtin().from_config(&config, &as_loaded()).unwrap();
        assert_eq!(planned.transient_source(), TransientSource::Plan, "{name}");
        assert_eq!(closed.transient_source(), TransientSource::ClosedForm, "{name}");
        // Frequencies and the like are computed when the model is loaded.
        let outline = Outline::from_config(config.as_object().unwrap(), OutlineTypes::default()).unwrap();
        let computed = outline.architecture().computed.iter().map(|(_, values)| 4 * values.len() as u64).sum::<u64>();
        assert_eq!(planned.weights_bytes(), closed.weights_bytes() + computed + padding_bytes, "{name}");
        for context in [0, 1, 64, 65, 1_000, 40_960] {
            assert_eq!(planned.kv_bytes(context), closed.kv_bytes(context), "{name}, {context} tokens");
        }
    }
}

/// The program fuses, works in place and shares scratch; the closed form knows nothing of it, and kernels nothing of its tiles.
#[test]
fn transients_of_program_and_closed_form_bound_each_other() {
    let (mut least, mut most) = (f64::MAX, 0.0f64);
    for Case { name, config, .. } in cases() {
        let planned = programs().from_config(&config, &as_loaded()).unwrap();
        let closed = Registry::builtin().from_config(&config, &as_loaded()).unwrap();
        for (rows, start) in [(64, 0), (64, 30_000), (512, 0), (512, 30_000), (2_048, 30_000)] {
            for logit_rows in [0, 1, rows] {
                let pass = Pass { rows, start, logit_rows };
                let ratio = closed.transient_bytes(&pass) as f64 / planned.transient_bytes(&pass) as f64;
                assert!((LEAST..MOST).contains(&ratio), "{name}, {pass:?}: {ratio}");
                (least, most) = (least.min(ratio), most.max(ratio));
            }
        }
    }
    println!("closed form / plan: {least:.2} to {most:.2}");
}

/// Closed form over plan, for all architectures and passes above.
const LEAST: f64 = 0.7;
const MOST: f64 = 2.5;

#[test]
fn every_architecture_with_a_program_is_priced_by_it() {
    let registry = programs();
    for model_type in known_model_types() {
        let found = registry.names().any(|name| name == model_type);
        assert!(found, "{model_type}");
        let priced = cases()
            .iter()
            .any(|case| model_type.starts_with(case.config["model_type"].as_str().unwrap().trim_end_matches("_text")));
        assert!(priced, "{model_type} has no case here");
    }
}

#[test]
fn the_outline_of_a_config_has_the_figures_of_the_folder() {
    for name in ["tiny-qwen3", "tiny-gemma3", "tiny-qwen3_5_moe-fused", "tiny-qwen3_next", "tiny-phi3"] {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name);
        if !folder.is_dir() {
            println!("NOT RUN: {} is missing (a packaged crate has no golden data)", folder.display());
            return;
        }
        let folder = plimsoll_models::Folder::open(folder).unwrap();
        let plan = plimsoll_models::LoadPlan::new(&folder).unwrap();
        let outline = Outline::from_config(folder.config(), OutlineTypes::default()).unwrap();
        assert_eq!(outline.weights_bytes(), plan.weights_bytes(), "{name}");
        let (of_plan, of_outline) = (
            plimsoll_models::CpuProfile::of_plan(&plan, settings()),
            plimsoll_models::CpuProfile::of_outline(&outline, settings()),
        );
        for rows in [1, 7, 64] {
            let pass = Pass { rows, start: 100, logit_rows: 1 };
            assert_eq!(of_outline.transient_bytes(&pass), of_plan.transient_bytes(&pass), "{name}");
        }
        assert_eq!(of_outline.kv_bytes(1_000), of_plan.kv_bytes(1_000), "{name}");
    }
}

#[test]
fn formats_of_the_caller_are_those_of_the_weights() {
    let case = config("qwen3", json!({}));
    let weigh = |format| {
        let settings = EstimateSettings { weights: Some(WeightFormats::all(format)), ..EstimateSettings::default() };
        programs().from_config(&case, &settings).map(|estimate| estimate.weights_bytes())
    };
    let [bf16, q8, q4] =
        [StorageFormat::BF16, StorageFormat::Q8_0, StorageFormat::Q4_K].map(|format| weigh(format).unwrap());
    assert!(q4 < q8 && q8 < bf16, "{q4} {q8} {bf16}");
    let odd = StorageFormat { elements: 7, bytes: 3 };
    assert!(matches!(weigh(odd), Err(EstimateError::Refused { .. })));
    let given = EstimateSettings { weights_bytes: Some(77), ..EstimateSettings::default() };
    assert_eq!(programs().from_config(&case, &given).unwrap().weights_bytes(), 77);
}

#[test]
fn what_no_program_can_run_is_refused_with_the_reason() {
    let refused = |config: Value| match programs().from_config(&config, &EstimateSettings::default()) {
        Err(error @ EstimateError::Refused { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let error = refused(config("llama", json!({"quantization_config": {"quant_method": "fp8"}})));
    assert!(error.contains("`llama`") && error.contains("fp8"), "{error}");
    let error = refused(config("qwen3", json!({"hidden_size": null})));
    assert!(error.contains("hidden_size"), "{error}");
    // A closed form is still to be had where the sizes are all there.
    let fp8 = config("llama", json!({"quantization_config": {"quant_method": "fp8"}}));
    assert!(Registry::builtin().from_config(&fp8, &EstimateSettings::default()).is_ok());
}

/// Sizes without sense end in an error or in numbers that saturate, never in a panic.
#[test]
fn absurd_configs_do_not_panic() {
    let fields = [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "sliding_window",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "shared_expert_intermediate_size",
        "num_hidden_layers",
    ];
    let absurd =
        [json!(0), json!(1), json!(3), json!(1u64 << 31), json!(u64::MAX), json!(-1), json!("many"), json!([1])];
    let pass = Pass { rows: 512, start: 1 << 20, logit_rows: 512 };
    let price = |config: &Value| {
        if let Ok(estimate) = programs().from_config(config, &EstimateSettings::default()) {
            let _ = (estimate.weights_bytes(), estimate.kv_bytes(1 << 32), estimate.transient_bytes(&pass));
        }
    };
    for case in cases() {
        for field in fields {
            for value in &absurd {
                let mut config = case.config.clone();
                config["num_hidden_layers"] = json!(2);
                config[field] = value.clone();
                price(&config);
            }
        }
        let mut all = case.config.clone();
        for field in &fields[..fields.len() - 1] {
            all[*field] = json!(1u64 << 31);
        }
        all["num_hidden_layers"] = json!(2);
        price(&all);
        for dim in ["head_dim", "linear_key_head_dim", "linear_value_head_dim"] {
            all[dim] = json!(1 << 16);
        }
        price(&all);
    }
}
