//! Folders that are taken: shards, settings, quantizing at load.

use super::build::{Build, HIDDEN, VOCAB};
use plimsoll_linear::WeightType;
use plimsoll_models::{Checkpoint, Constant, Folder, LoadOptions, LoadPlan, Model};
use safetensors::Dtype;
use serde_json::json;

/// The constant of this name.
fn constant<'a>(model: &'a Model, name: &str) -> &'a Constant {
    let program = &model.architecture().program;
    let slot = program.constants().iter().find(|&&slot| program.slot(slot).name == name).unwrap();
    model.constant(*slot).unwrap()
}

fn rows(model: &Model, name: &str) -> Vec<f32> {
    match constant(model, name) {
        Constant::Matrix(weight) => {
            let mut values = vec![0.0; weight.out_features() * weight.in_features()];
            for (row, out) in values.chunks_exact_mut(weight.in_features()).enumerate() {
                weight.dequantize_row(row, out);
            }
            values
        }
        Constant::Vector(values) => values.clone(),
        other => panic!("{other:?}"),
    }
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

#[test]
fn weights_are_those_of_the_file_whether_it_is_one_or_several() {
    let mut build = Build::llama();
    let one = build.write();
    build.shards = (1..=3).map(|part| format!("model-0000{part}-of-00003.safetensors")).collect();
    let several = build.write();
    for folder in [&one, &several] {
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let plan = LoadPlan::new(&checkpoint).unwrap();
        let planned_bytes = plan.weights_bytes();
        let model = plan.load(&checkpoint, 2).unwrap();
        assert_eq!(model.weights_bytes(), planned_bytes);
        for (ours, theirs) in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("blk.1.attn_k.weight", "model.layers.1.self_attn.k_proj.weight"),
            ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
        ] {
            assert_eq!(rows(&model, ours), f32s(&build.tensors[theirs].2), "{ours}");
        }
    }
}

#[test]
fn a_folder_names_its_end_tokens_and_what_its_makers_suggest() {
    let mut build = Build::llama();
    let eos = |build: &Build| Checkpoint::open(build.write().path()).unwrap().eos_token_ids().unwrap();
    assert_eq!(eos(&build), [2]);
    build.file(
        "generation_config.json",
        r#"{"eos_token_id": [7, 5, 7], "temperature": 0.6, "top_k": 20, "do_sample": true}"#,
    );
    assert_eq!(eos(&build), [5, 7]);
    let folder = build.write();
    let generation = Folder::open(folder.path()).unwrap().generation().clone();
    assert_eq!((generation.temperature, generation.top_k, generation.do_sample), (Some(0.6), Some(20), Some(true)));
    assert_eq!(generation.top_p, None);
    build.set("eos_token_id", json!(null)).file("generation_config.json", "{}");
    assert_eq!(eos(&build), [0_u32; 0]);
}

#[test]
fn a_file_of_the_folder_is_found_by_name() {
    let folder = Build::llama().file("tokenizer.json", "{}").write();
    let opened = Folder::open(folder.path()).unwrap();
    assert_eq!(opened.file("tokenizer.json"), Some(folder.path().join("tokenizer.json")));
    assert_eq!(opened.file("chat_template.jinja"), None);
}

#[test]
fn settings_that_do_nothing_are_taken() {
    let plain = Build::llama().write();
    let bytes = LoadPlan::new(&Checkpoint::open(plain.path()).unwrap()).unwrap().weights_bytes();
    for (field, value) in [
        ("attention_bias", json!(false)),
        ("mlp_bias", json!(false)),
        ("pretraining_tp", json!(1)),
        ("rope_scaling", json!(null)),
        ("rope_scaling", json!({"rope_type": "default"})),
        ("rope_interleaved", json!(false)),
        ("quantization_config", json!(null)),
        ("attention_dropout", json!(0.1)),
        ("head_dim", json!(4)),
        ("hidden_act", json!("silu")),
        ("some_unknown_training_note", json!("fine")),
        ("an_attention_thing", json!(null)),
        ("tokens_seen", json!(1e13)),
    ] {
        let folder = Build::llama().set(field, value.clone()).write();
        let plan = LoadPlan::new(&Checkpoint::open(folder.path()).unwrap());
        assert_eq!(plan.unwrap_or_else(|error| panic!("{field} = {value}: {error}")).weights_bytes(), bytes);
    }
}

#[test]
fn buffers_of_older_checkpoints_and_a_copy_of_a_tied_table_are_left_alone() {
    let mut build = Build::llama();
    build.tensor("model.layers.0.self_attn.rotary_emb.inv_freq", &[2]);
    let table = build.tensors["model.embed_tokens.weight"].clone();
    build.tensors.insert("lm_head.weight".to_owned(), table);
    let folder = build.write();
    Model::load(&Checkpoint::open(folder.path()).unwrap(), 1).unwrap();
}

#[test]
fn quantizing_at_load_costs_what_the_plan_says_and_leaves_small_parts_alone() {
    let mut build = Build::llama();
    // Rows of 64 elements are whole blocks of Q8_0, those of 24 and 16 are not.
    build.set("hidden_size", json!(64)).set("num_attention_heads", json!(16)).set("num_key_value_heads", json!(2));
    build.tensor("model.embed_tokens.weight", &[VOCAB, 64]).tensor("model.norm.weight", &[64]);
    for layer in 0..2 {
        for (name, shape) in [
            ("input_layernorm", &[64][..]),
            ("post_attention_layernorm", &[64]),
            ("self_attn.q_proj", &[64, 64]),
            ("self_attn.k_proj", &[8, 64]),
            ("self_attn.v_proj", &[8, 64]),
            ("self_attn.o_proj", &[64, 64]),
            ("mlp.gate_proj", &[24, 64]),
            ("mlp.up_proj", &[24, 64]),
            ("mlp.down_proj", &[64, 24]),
        ] {
            build.tensor(&format!("model.layers.{layer}.{name}.weight"), shape);
        }
    }
    let folder = build.write();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let plain = LoadPlan::new(&checkpoint).unwrap().weights_bytes();
    let plan = LoadPlan::with_options(&checkpoint, &LoadOptions::quantized(Some(WeightType::Q8_0))).unwrap();
    let planned_bytes = plan.weights_bytes();
    assert!(planned_bytes < plain / 2, "{planned_bytes} of {plain}");
    let model = plan.load(&checkpoint, 2).unwrap();
    assert_eq!(model.weights_bytes(), planned_bytes);
    let kind = |name: &str| match constant(&model, name) {
        Constant::Matrix(weight) => weight.weight_type(),
        other => panic!("{other:?}"),
    };
    assert_eq!((kind("blk.0.attn_q.weight"), kind("blk.0.ffn_down.weight")), (WeightType::Q8_0, WeightType::F32));
    let (ours, theirs) =
        (rows(&model, "blk.0.attn_q.weight"), f32s(&build.tensors["model.layers.0.self_attn.q_proj.weight"].2));
    // Half a step of the largest value, and the rounding of the scale to f16.
    let largest = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(largest > 0.0 && largest <= 0.5 * (0.5 / 127.0 + 0.5 / 127.0 / 8.0), "{largest}");
}

#[test]
fn sixteen_bit_norms_are_widened_and_sixteen_bit_matrices_stay() {
    let mut build = Build::llama();
    for (shape, dtype, bytes) in build.tensors.values_mut() {
        let halves: Vec<u8> = f32s(bytes).iter().flat_map(|&value| half::bf16::from_f32(value).to_le_bytes()).collect();
        (*dtype, *bytes) = (Dtype::BF16, halves);
        assert!(!shape.is_empty());
    }
    let folder = build.write();
    let model = Model::load(&Checkpoint::open(folder.path()).unwrap(), 1).unwrap();
    let Constant::Matrix(weight) = constant(&model, "blk.0.attn_q.weight") else { panic!("no matrix") };
    assert_eq!((weight.weight_type(), weight.in_features()), (WeightType::Bf16, HIDDEN));
    let stored = &build.tensors["model.norm.weight"].2;
    let first = half::bf16::from_le_bytes([stored[0], stored[1]]).to_f32();
    assert_eq!(rows(&model, "output_norm.weight")[0], first);
}
