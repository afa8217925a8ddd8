//! `-m FOLDER`: a folder with `config.json` and safetensors is run by token ids like the GGUF file of the same model.

use crate::{Folder, golden, run_ids};
use std::fs;

#[test]
fn a_folder_answers_as_the_reference_does() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let folder = Folder::new();
    let model = golden.model.parent().unwrap();
    let json = run_ids(&folder, model, &golden.ids, &["--json", "--max-tokens", "9", "--kv-dtype", "f32"]).json();
    let tokens: Vec<u64> = json["tokens"].as_array().unwrap().iter().map(|token| token.as_u64().unwrap()).collect();
    assert_eq!(tokens, golden.greedy[..9].iter().map(|&id| id.into()).collect::<Vec<u64>>());
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
