//! One table of folders that are refused: each gives one line that says what is at fault and what would be right.

use super::build::{Build, HIDDEN, VOCAB};
use plimsoll_models::{Checkpoint, Model};
use safetensors::Dtype;
use serde_json::{Value, json};
use std::{fs, path::Path};
use tempfile::TempDir;

/// Longest line that a terminal shows without hiding the advice.
const MAX_CHARS: usize = 500;

/// The line that the folder is refused with, when it is opened or its weights are read.
#[track_caller]
fn refusal(name: &str, folder: &Path) -> String {
    let line = match Checkpoint::open(folder) {
        Err(error) => error.to_string(),
        Ok(checkpoint) => match Model::load(&checkpoint, 1) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{name}: the folder was taken"),
        },
    };
    assert!(!line.contains(['\n', '\u{1b}']) && line.chars().count() <= MAX_CHARS, "{name}: {line}");
    line
}

#[track_caller]
fn expect(name: &str, folder: &Path, parts: &[&str]) {
    let line = refusal(name, folder);
    for part in parts {
        assert!(line.contains(part), "{name}: \"{part}\" is not in: {line}");
    }
}

/// Sets one field of `config.json`; what the line must contain beside the field's name.
type FieldCase = (&'static str, Value, &'static [&'static str]);

#[test]
fn settings_that_are_not_implemented_are_refused_by_name() {
    let cases: Vec<FieldCase> = vec![
        ("model_type", json!("mamba2"), &["mamba2", "known: llama"]),
        ("model_type", json!("odd\n\u{1b}[31m"), &["odd\\n", "known: llama"]),
        ("model_type", json!(null), &["no model_type"]),
        ("model_type", json!(7), &["is 7", "expected text"]),
        ("architectures", json!(["LlamaForSequenceClassification"]), &["LlamaForCausalLM"]),
        ("hidden_act", json!("relu2"), &["relu2", "supported: silu"]),
        ("attention_bias", json!("yes"), &["yes", "true or false"]),
        ("quantization_config", json!({"quant_method": "gptq", "bits": 4}), &["gptq", "supported: ", "GGUF"]),
        ("rope_scaling", json!({"rope_type": "dynamic", "factor": 2.0}), &["rope_type", "dynamic", "yarn"]),
        ("rope_scaling", json!({"type": "longrope", "factor": 2.0}), &["longrope", "llama3"]),
        ("rope_scaling", json!({"rope_type": "linear"}), &["no rope_scaling.factor"]),
        ("rope_scaling", json!({"rope_type": "linear", "factor": 1e-45}), &["factor", "1e-45", "supported: "]),
        ("rope_scaling", json!({"rope_type": "linear", "factor": 2.0, "rope_bias": [1]}), &["rope_bias"]),
        (
            "rope_scaling",
            json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0}),
            &["low_freq_factor", "high_freq_factor"],
        ),
        ("rope_parameters", json!({"full_attention": {"rope_theta": 1e4}}), &["one rotation"]),
        ("rope_theta", json!(1.0), &["= 1", "supported: "]),
        ("partial_rotary_factor", json!(0.3), &["0.3", "even number"]),
        ("pretraining_tp", json!(2), &["= 2", "supported: 0 or 1"]),
        ("sliding_window", json!(128), &["128", "null"]),
        ("attn_logit_softcapping", json!(50.0), &["50", "may change the arithmetic"]),
        ("use_qk_norm", json!(true), &["true", "may change the arithmetic"]),
        ("rms_norm_eps", json!(-1e-5), &["-0.00001", "from 0 to 1"]),
        ("rms_norm_eps", json!("1e-5"), &["\"1e-5\"", "expected a number"]),
        ("num_hidden_layers", json!(0), &["0 is out of range 1 to"]),
        ("num_hidden_layers", json!(4_000_000_000_u64), &["4000000000", "out of range"]),
        ("num_hidden_layers", json!(3), &["model.layers.2.", "is not in the file"]),
        ("num_hidden_layers", json!(1), &["model.layers.1.", "not part of"]),
        ("hidden_size", json!(null), &["no hidden_size"]),
        ("hidden_size", json!(18), &["18", "not divisible", "num_attention_heads = 4"]),
        ("hidden_size", json!(-16), &["-16", "whole number"]),
        ("num_key_value_heads", json!(3), &["num_attention_heads = 4 is not divisible"]),
        ("head_dim", json!(1_000_000), &["1000000", "65536"]),
        ("vocab_size", json!(31), &["model.embed_tokens.weight", "[32, 16], expected [31, 16]"]),
        ("tie_word_embeddings", json!(false), &["lm_head.weight", "is not in the file"]),
        ("attention_bias", json!(true), &["model.layers.0.self_attn.q_proj.bias", "is not in the file"]),
        ("is_encoder_decoder", json!(true), &["true", "supported: false"]),
    ];
    for (field, value, parts) in &cases {
        let folder = Build::llama().set(field, value.clone()).write();
        let name = format!("{field} = {value}");
        expect(&name, folder.path(), parts);
        if parts.iter().any(|part| part.contains("supported")) {
            expect(&name, folder.path(), &[field]);
        }
    }
}

#[test]
fn tensors_that_are_missing_odd_or_no_numbers_are_refused_by_name() {
    const Q: &str = "model.layers.0.self_attn.q_proj.weight";
    const NORM: &str = "model.layers.1.input_layernorm.weight";
    type Change = fn(&mut Build);
    let cases: Vec<(&str, Change, &[&str])> = vec![
        ("missing", |b| drop(b.tensors.remove(Q)), &[Q, "is not in the file", "similar: model.layers.0.self_attn."]),
        (
            "reversed",
            |b| {
                b.tensor("model.layers.0.mlp.up_proj.weight", &[HIDDEN, 24]);
            },
            &["up_proj", "[16, 24], expected [24, 16]"],
        ),
        (
            "one axis more",
            |b| {
                b.tensor(NORM, &[1, HIDDEN]);
            },
            &[NORM, "[1, 16], expected [16]"],
        ),
        (
            "unused",
            |b| {
                b.tensor("model.layers.0.self_attn.q_norm.weight", &[4]);
            },
            &["q_norm", "not part of architecture \"llama\""],
        ),
        (
            "another head",
            |b| {
                b.tensor("lm_head.weight", &[VOCAB, HIDDEN]);
            },
            &["tie_word_embeddings", "differ"],
        ),
        ("integers", |b| b.tensors.get_mut(Q).unwrap().1 = Dtype::I32, &[Q, "I32", "supported: F32, F16, BF16"]),
        (
            "doubles",
            |b| drop(b.tensors.insert(NORM.to_owned(), (vec![HIDDEN], Dtype::F64, vec![0; 8 * HIDDEN]))),
            &[NORM, "F64", "F32"],
        ),
        (
            "8-bit floats",
            |b| drop(b.tensors.insert(Q.to_owned(), (vec![16, 16], Dtype::F8_E4M3, vec![0; 256]))),
            &[Q, "F8_E4M3"],
        ),
        ("NaN in a norm", |b| nan(b, NORM, 3), &[NORM, "NaN", "element 3"]),
        ("NaN in a matrix", |b| nan(b, Q, 77), &[Q, "NaN", "element 77"]),
        (
            "an empty dimension",
            |b| drop(b.tensors.insert("more".to_owned(), (vec![0, 4], Dtype::F32, vec![]))),
            &["more", "[0, 4]"],
        ),
        (
            "a name with control characters",
            |b| {
                b.tensor("bad\n\u{1b}[31m", &[1]);
            },
            &["bad\\n"],
        ),
    ];
    for (name, change, parts) in cases {
        let mut build = Build::llama();
        change(&mut build);
        expect(name, build.write().path(), parts);
    }
}

fn nan(build: &mut Build, name: &str, element: usize) {
    build.tensors.get_mut(name).unwrap().2[4 * element..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
}

#[test]
fn files_that_are_missing_or_damaged_are_refused_by_name() {
    type Damage = fn(&Path);
    let cases: Vec<(&str, Damage, &[&str])> = vec![
        ("no config", |f| fs::remove_file(f.join("config.json")).unwrap(), &["no config.json"]),
        (
            "no weights",
            |f| fs::remove_file(f.join("model.safetensors")).unwrap(),
            &["neither model.safetensors nor", "fetch the weights"],
        ),
        (
            "pickled weights",
            |f| fs::rename(f.join("model.safetensors"), f.join("pytorch_model.bin")).unwrap(),
            &["pickled", "convert them to safetensors"],
        ),
        (
            "config is no JSON",
            |f| fs::write(f.join("config.json"), "{\"a\": ").unwrap(),
            &["config.json", "not valid JSON", "line 1"],
        ),
        (
            "config is not UTF-8",
            |f| fs::write(f.join("config.json"), b"{\"a\": \"\xff\"}").unwrap(),
            &["config.json", "not valid JSON"],
        ),
        ("config is a list", |f| fs::write(f.join("config.json"), "[1]").unwrap(), &["config.json", "a JSON object"]),
        (
            "config nests without end",
            |f| fs::write(f.join("config.json"), "[".repeat(100_000)).unwrap(),
            &["config.json", "recursion limit"],
        ),
        (
            "config is a folder",
            |f| {
                fs::remove_file(f.join("config.json")).unwrap();
                fs::create_dir(f.join("config.json")).unwrap()
            },
            &["config.json", "not a regular file"],
        ),
        (
            "weights are a folder",
            |f| {
                fs::remove_file(f.join("model.safetensors")).unwrap();
                fs::create_dir(f.join("model.safetensors")).unwrap()
            },
            &["model.safetensors", "not a regular file"],
        ),
        (
            "generation config",
            |f| fs::write(f.join("generation_config.json"), "{\"eos_token_id\": \"</s>\"}").unwrap(),
            &["generation_config.json", "eos_token_id", "a token id"],
        ),
        (
            "empty weights",
            |f| fs::write(f.join("model.safetensors"), "").unwrap(),
            &["model.safetensors", "not a valid safetensors file", "fetch it again"],
        ),
        ("weights cut short", |f| cut(&f.join("model.safetensors"), 100), &["model.safetensors", "not fully covered"]),
        (
            "header cut short",
            |f| {
                let path = f.join("model.safetensors");
                let bytes = fs::read(&path).unwrap();
                fs::write(&path, &bytes[..40]).unwrap()
            },
            &["model.safetensors", "header"],
        ),
        (
            "header of another length",
            |f| patch(&f.join("model.safetensors"), 0, &u64::MAX.to_le_bytes()),
            &["model.safetensors", "header"],
        ),
        ("header is no JSON", |f| patch(&f.join("model.safetensors"), 8, b"hello"), &["model.safetensors", "JSON"]),
        ("offsets that overlap", |f| overlap(&f.join("model.safetensors")), &["model.safetensors", "offset"]),
        (
            "weights are a page of text",
            |f| fs::write(f.join("model.safetensors"), "<html>".repeat(100)).unwrap(),
            &["model.safetensors", "header"],
        ),
    ];
    for (name, damage, parts) in cases {
        let folder = Build::llama().write();
        damage(folder.path());
        expect(name, folder.path(), parts);
    }
}

fn cut(path: &Path, bytes: u64) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() - bytes).unwrap();
}

fn patch(path: &Path, at: usize, with: &[u8]) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at..at + with.len()].copy_from_slice(with);
    fs::write(path, bytes).unwrap();
}

/// Moves the end of the first tensor one element back, in the header alone.
fn overlap(path: &Path) {
    let bytes = fs::read(path).unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let at = text.find("\"data_offsets\":[0,").unwrap() + "\"data_offsets\":[0,".len();
    let end = bytes[at..].iter().position(|&byte| byte == b']').unwrap() + at;
    let number: usize = std::str::from_utf8(&bytes[at..end]).unwrap().parse().unwrap();
    let new = format!("{:>width$}", number - 4, width = end - at);
    patch(path, at, new.as_bytes());
}

#[test]
fn indexes_that_do_not_fit_their_files_are_refused() {
    let parts = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let sharded = || {
        let mut build = Build::llama();
        build.shards = parts.map(str::to_owned).to_vec();
        build
    };
    let index_path = |folder: &TempDir| folder.path().join("model.safetensors.index.json");
    let with_index = |change: &dyn Fn(&mut Value)| {
        let build = sharded();
        let folder = build.write();
        let mut index = build.index();
        change(&mut index);
        fs::write(index_path(&folder), index.to_string()).unwrap();
        folder
    };
    const EMBED: &str = "model.embed_tokens.weight";
    for (bad, said) in [
        ("../outside.safetensors", "../outside.safetensors"),
        ("/etc/passwd", "/etc/passwd"),
        ("sub/model.safetensors", "sub/model.safetensors"),
        ("..\\\\up.safetensors", "up.safetensors"),
        ("", "\"\""),
        ("config.json", "config.json"),
    ] {
        let folder = with_index(&|index| index["weight_map"][EMBED] = json!(bad));
        expect(bad, folder.path(), &["index.json", said, "in the same folder"]);
    }
    let folder = with_index(&|index| index["weight_map"][EMBED] = json!("model-00009-of-00002.safetensors"));
    expect("a part that is not there", folder.path(), &["model-00009-of-00002", "not in the folder", "fetch it"]);
    let folder = with_index(&|index| index["weight_map"]["more"] = json!(parts[0]));
    expect("a tensor that is not there", folder.path(), &["\"more\" is not in", parts[0]]);
    let folder = with_index(&|index| drop(index["weight_map"].as_object_mut().unwrap().remove(EMBED)));
    expect("a tensor that is not indexed", folder.path(), &[EMBED, "index does not say"]);
    for (bad, said) in [(json!({}), "an object of 0 fields"), (json!(null), "null"), (json!([1]), "[1]")] {
        let folder = with_index(&|index| index["weight_map"] = bad.clone());
        expect("weight_map", folder.path(), &["weight_map", said, "tensor names"]);
    }
    let folder = with_index(&|index| index["weight_map"][EMBED] = json!(3));
    expect("a number", folder.path(), &[EMBED, "a file name"]);
    let folder = sharded().write();
    fs::remove_file(folder.path().join(parts[1])).unwrap();
    expect("a part was deleted", folder.path(), &[parts[1], "not in the folder"]);
    let folder = sharded().write();
    fs::copy(folder.path().join(parts[0]), folder.path().join(parts[1])).unwrap();
    expect("a part twice", folder.path(), &["index does not say"]);
}
