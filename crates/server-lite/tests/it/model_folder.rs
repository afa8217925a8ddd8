//! `-m FOLDER`: a folder with `config.json` and safetensors is run by token ids like the GGUF file of the same model; and what is done while loading.

use crate::{
    Folder, golden,
    model_file::{ModelFile, Setting::U32},
    plimsoll, run, run_ids,
};
use std::fs;

#[test]
fn a_folder_answers_with_the_tokens_of_the_reference() {
    for name in ["tiny-gqa-6x2", "tiny-qwen3", "tiny-gemma3"] {
        let Some(golden) = golden(name) else { return };
        let more = ["--json", "--kv-dtype", "f32", "-n", &golden.greedy_steps.to_string()];
        let folder = golden.model.parent().unwrap();
        let json = run_ids(&Folder::new(), folder, &golden.ids, &more).json();
        let tokens: Vec<_> = json["tokens"].as_array().unwrap().iter().map(|token| token.as_u64().unwrap()).collect();
        let want: Vec<u64> = golden.greedy[..golden.greedy_steps].iter().map(|&id| id.into()).collect();
        assert_eq!(tokens, want, "{name}");
    }
}

/// Some editors put one before every text that they save.
#[test]
fn a_mark_of_utf_8_before_settings_and_ids_is_no_part_of_them() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let (folder, source) = (Folder::new(), golden.model.parent().unwrap());
    let marked = |text: &str| format!("\u{feff}{text}");
    folder.file("config.json", marked(&fs::read_to_string(source.join("config.json")).unwrap()));
    folder.file("generation_config.json", marked("{\"eos_token_id\": 3}"));
    fs::copy(source.join("model.safetensors"), folder.path("model.safetensors")).unwrap();
    let ids: Vec<String> = golden.ids.iter().map(u32::to_string).collect();
    let ids = folder.file("ids.txt", marked(&ids.join(" ")));
    let args = ["-n", "1", "--json", "--token-ids", &ids];
    let sum = |model: &str| run(["run", "-m", model].iter().chain(&args)).json()["first_logits_sha256"].clone();
    assert_eq!(sum(&folder.arg("")), sum(source.to_str().unwrap()));
}

#[test]
fn weights_are_quantized_while_they_are_read() {
    let folder = Folder::new();
    // Rows of 256 in one matrix; the rows of 4 of the others are no whole blocks and stay as they are.
    let model = folder.file("wide.gguf", ModelFile::wide(4).bytes());
    let weights = |more: &[&str]| {
        let json = run_ids(&folder, model.as_ref(), &[1, 2, 3], &[&["--json", "-n", "1"], more].concat()).json();
        (json["memory"]["weights_bytes"].as_u64().unwrap(), json["first_logits_sha256"].clone())
    };
    let (f32, q8_0, q4_k) = (weights(&[]), weights(&["--quantize", "q8_0"]), weights(&["--quantize", "q4_k"]));
    // A panel of 16 rows of 256: 4 bytes each, 34 bytes for 32, 144 bytes for 256.
    assert!(f32.0 - q8_0.0 > 11_000 && q8_0.0 - q4_k.0 > 1_500, "{} {} {}", f32.0, q8_0.0, q4_k.0);
    assert!(f32.1 != q8_0.1 && q8_0.1 != q4_k.1, "fewer bits give other logits");
    let error = run_ids(&folder, model.as_ref(), &[1], &["--quantize", "q3_k"]).fails(2);
    assert!(error.contains("q3_k") && error.contains("q8_0"), "{error}");
}

#[test]
fn thousands_of_unknown_settings_are_warned_of_in_a_few_lines() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let mut file = ModelFile::read(&golden.model);
    for i in 0..2000 {
        file.set(&format!("llama.colour{i}"), U32(1));
    }
    let folder = Folder::new();
    let (model, ids) = (folder.file("keys.gguf", file.bytes()), folder.ids(&[1, 2]));
    let mut command = plimsoll(["run", "-m", &model, "--token-ids", &ids, "-n", "1"]);
    command.env("PLIMSOLL_LOG", "warn");
    let ran = crate::finish(command);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let lines = ran.stderr.lines().count();
    assert!((2..=20).contains(&lines) && ran.stderr.contains("more"), "{lines} lines: {}", ran.stderr);
}

#[test]
fn a_folder_that_is_no_model_or_a_faulty_one_is_refused_by_the_name_of_its_file() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let folder = Folder::new();
    let home = tempfile::TempDir::new().unwrap();
    let error = run_ids(&folder, home.path(), &golden.ids, &[]).fails(2);
    assert!(error.contains("config.json"), "{error}");
    let from = golden.model.parent().unwrap();
    fs::copy(from.join("config.json"), home.path().join("config.json")).unwrap();
    let error = run_ids(&folder, home.path(), &golden.ids, &[]).fails(4);
    assert!(error.contains("model.safetensors"), "{error}");
    let bytes = fs::read(from.join("model.safetensors")).unwrap();
    fs::write(home.path().join("model.safetensors"), &bytes[..bytes.len() - 8]).unwrap();
    let error = run_ids(&folder, home.path(), &golden.ids, &[]).fails(4);
    assert!(error.contains("model.safetensors") && error.contains("fetch it again"), "{error}");
    fs::write(home.path().join("model.safetensors"), &bytes).unwrap();
    fs::write(home.path().join("config.json"), r#"{"model_type": "mamba"}"#).unwrap();
    let error = run_ids(&folder, home.path(), &golden.ids, &[]).fails(4);
    assert!(error.contains("mamba") && error.contains("known: llama"), "{error}");
}

#[test]
fn text_goes_through_the_tokenizer_of_the_folder() {
    let Some(golden) = golden("tiny-qwen3") else { return };
    let (folder, from) = (Folder::new(), golden.model.parent().unwrap());
    fs::create_dir(folder.path("model")).unwrap();
    for name in ["config.json", "generation_config.json", "model.safetensors"] {
        fs::copy(from.join(name), folder.path("model").join(name)).unwrap();
    }
    let model = folder.arg("model");
    let run = |more: &[&str]| run(["run", "-m", &model, "--prompt", "the thin", "-n", "3"].iter().chain(more));
    let error = run(&[]).fails(2);
    assert!(error.contains("tokenizer.json") && error.contains("token ids"), "{error}");
    let letters: serde_json::Map<String, serde_json::Value> =
        "abcdefghijklmnopqrstuvwxyz\u{120}".chars().zip(0..).map(|(c, id)| (c.to_string(), id.into())).collect();
    let tokenizer = serde_json::json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "model": { "type": "BPE", "vocab": letters, "merges": [] },
    });
    folder.file("model/tokenizer.json", tokenizer.to_string());
    let json = run(&["--raw", "--json"]).json();
    assert_eq!(json["prompt_tokens"], 8, "a letter, a token");
    // t h e and so on, by their places in the alphabet; the space comes after them.
    let ids = [19, 7, 4, 26, 19, 7, 8, 13];
    let by_ids = run_ids(&folder, model.as_ref(), &ids, &["-n", "3", "--json"]).json();
    assert_eq!((&json["tokens"], &json["text"]), (&by_ids["tokens"], &by_ids["text"]));
    folder.file("model/tokenizer.json", "{");
    let error = run(&[]).fails(4);
    assert!(error.contains("tokenizer.json"), "{error}");
}

#[test]
fn an_output_never_writes_over_a_file_of_the_model() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let folder = Folder::new();
    let model = folder.path("model");
    fs::create_dir(&model).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(golden.model.with_file_name(name), model.join(name)).unwrap();
    }
    for name in ["a.gguf", "b.gguf"] {
        fs::copy(&golden.model, folder.path(name)).unwrap();
    }
    for (given, output) in [
        ("model", "model/model.safetensors"),
        ("model", "model/config.json"),
        ("a.gguf", "b.gguf"),
        ("a.gguf", "a.gguf"),
    ] {
        let output = folder.path(output);
        let before = fs::read(&output).unwrap();
        let more = ["-n", "0", "--logits-out", output.to_str().unwrap()];
        let error = run_ids(&folder, &folder.path(given), &[1, 2], &more).fails(2);
        assert!(error.contains("--logits-out"), "{error}");
        assert!(fs::read(&output).unwrap() == before, "{} was written over", output.display());
    }
}
