//! Exit code 4: model files that are damaged, incomplete, or ask for what is not implemented.

use crate::{
    Folder, golden,
    model_file::{
        ModelFile,
        Setting::{Bool, F32, I32, Numbers, Text, Texts, U32},
    },
    run,
};
use plimsoll_models::gguf::GgmlType;
use std::fs;

/// The message for a model file of these bytes, which must be refused with code 4.
#[track_caller]
fn refused(bytes: &[u8]) -> String {
    let folder = Folder::new();
    let (model, ids) = (folder.file("bad model.gguf", bytes), folder.ids(&[1, 2]));
    let error = run(["run", "-m", &model, "--token-ids", &ids]).fails(4);
    assert!(error.starts_with(&format!("error: {model}: ")), "the file is not named: {error}");
    error
}

/// The message for the golden file after `change`, which must be refused with code 4.
#[track_caller]
fn broken(file: &ModelFile, change: impl FnOnce(&mut ModelFile)) -> String {
    let mut file = file.clone();
    change(&mut file);
    refused(&file.bytes())
}

#[test]
fn damaged_files_are_refused() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let whole = fs::read(&golden.model).unwrap();
    for cut in [0, 3, 4, 7, 23, 24, 100, 1000, 5000, whole.len() - 100] {
        refused(&whole[..cut]);
    }
    assert!(refused(b"PK\x03\x04 this is a zip, and no model file").contains("GGUF"));
    let mut bytes = whole.clone();
    bytes[4] = 9;
    assert!(refused(&bytes).contains("version 9"));
    bytes[4] = 3;
    bytes[8..16].fill(0xff);
    refused(&bytes);
}

#[test]
fn two_tensors_of_one_name_are_refused() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let mut bytes = fs::read(&golden.model).unwrap();
    let name = b"blk.0.attn_k.weight";
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap();
    bytes[at + 11] = b'q';
    let error = refused(&bytes);
    assert!(error.contains("blk.0.attn_q.weight") && error.contains("twice"), "{error}");
}

#[test]
fn an_unknown_architecture_names_those_known() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let file = ModelFile::read(&golden.model);
    let error = broken(&file, |file| file.set("general.architecture", Text("mamba\n\u{1b}[31m".to_owned())));
    assert!(error.contains("mamba\\n") && error.contains("known: llama") && !error.contains('\u{1b}'), "{error}");
    let error = broken(&file, |file| file.remove("general.architecture"));
    assert!(error.contains("general.architecture"), "{error}");
}

#[test]
fn tensors_that_do_not_fit_the_program_are_named() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let file = ModelFile::read(&golden.model);
    let missing = |name: &str| broken(&file, |file| file.tensors.retain(|tensor| tensor.name != name));
    for name in ["token_embd.weight", "output_norm.weight", "blk.0.attn_norm.weight", "blk.1.ffn_down.weight"] {
        assert!(missing(name).contains(&format!("'{name}' is not in the file")), "{name}");
    }
    let error = broken(&file, |file| {
        let tensor = file.tensor("blk.0.ffn_up.weight");
        tensor.shape.reverse();
    });
    assert!(error.contains("blk.0.ffn_up.weight") && error.contains("[6, 10], expected [10, 6]"), "{error}");
    let error = broken(&file, |file| {
        let tensor = file.tensor("blk.1.attn_v.weight");
        tensor.kind = GgmlType::F64;
        tensor.data = vec![0; 8 * 36];
    });
    assert!(error.contains("blk.1.attn_v.weight") && error.contains("F64") && error.contains("Q4_1"), "{error}");
    for name in
        ["blk.0.attn_q_norm.weight", "blk.0.ffn_gate_exps.weight", "blk.7.attn_q.weight", "rope_factors_long.weight"]
    {
        let error = broken(&file, |file| file.add(name, &[6]));
        assert!(error.contains(&format!("\"{name}\" is not part of architecture \"llama\"")), "{error}");
    }
}

#[test]
fn settings_that_are_not_implemented_are_named_with_what_is() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let file = ModelFile::read(&golden.model);
    for (key, value, found) in [
        ("llama.expert_count", U32(8), "llama.expert_count = 8"),
        ("llama.expert_used_count", U32(2), "llama.expert_used_count = 2"),
        ("llama.rope.scaling.type", Text("longrope".to_owned()), "longrope"),
        ("llama.rope.scaling.factor", F32(-4.0), "-4"),
        ("llama.rope.scaling.attn_factor", F32(1.5), "1.5"),
        ("llama.rope.dimension_sections", Numbers(vec![1, 1, 1, 0]), "llama.rope.dimension_sections"),
        ("llama.rope.dimension_count", U32(5), "an even number up to the head dimension, 6"),
        ("llama.attention.causal", Bool(false), "llama.attention.causal = false"),
        ("llama.attention.scale", F32(2.0), "llama.attention.scale = 2"),
        ("llama.logit_scale", F32(0.5), "0.5"),
    ] {
        let error = broken(&file, |file| file.set(key, value));
        assert!(error.contains(found) && error.contains("supported: "), "{key}: {error}");
    }
    for (key, value) in [
        ("llama.block_count", U32(u32::MAX)),
        ("llama.block_count", U32(0)),
        ("llama.block_count", I32(-1)),
        ("llama.block_count", Text("2".to_owned())),
        ("llama.attention.head_count", U32(0)),
        ("llama.attention.head_count", U32(4)),
        ("llama.attention.key_length", U32(1 << 30)),
        ("llama.embedding_length", U32(u32::MAX)),
        ("llama.feed_forward_length", U32(1 << 30)),
    ] {
        let error = broken(&file, |file| file.set(key, value));
        assert!(error.contains("llama.") || error.contains("tensor"), "{key}: {error}");
    }
    let error = broken(&file, |file| file.remove("llama.embedding_length"));
    assert!(error.contains("'llama.embedding_length' is not in the metadata"), "{error}");
}

#[test]
fn faults_of_the_tokenizer_count_for_text_and_not_for_token_ids() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let file = ModelFile::read(&golden.model);
    let folder = Folder::new();
    let ids = folder.ids(&[1, 2]);
    let text = |text: &str| Text(text.to_owned());
    for (key, value, part) in [
        ("tokenizer.ggml.model", Some(text("bert")), "gpt2"),
        ("tokenizer.ggml.model", Some(text("llama")), "0 token scores for 97 tokens"),
        ("tokenizer.ggml.model", None, "tokenizer.ggml.model"),
        ("tokenizer.ggml.pre", Some(text("of tomorrow")), "smollm"),
        ("tokenizer.ggml.tokens", None, "tokenizer.ggml.tokens"),
        ("tokenizer.ggml.tokens", Some(Texts(vec!["a".to_owned(), "b".to_owned()])), "2 tokens"),
        ("tokenizer.ggml.tokens", Some(U32(3)), "tokenizer.ggml.tokens"),
        ("tokenizer.ggml.token_type", Some(Numbers(vec![1, 1])), "2 token types"),
        ("tokenizer.ggml.merges", Some(Texts(vec!["nospace".to_owned()])), "nospace"),
        ("tokenizer.ggml.eos_token_id", Some(U32(97)), "97"),
    ] {
        let mut file = file.clone();
        match value {
            Some(value) => file.set(key, value),
            None => file.remove(key),
        }
        let model = folder.file("model.gguf", file.bytes());
        let error = run(["run", "-m", &model, "--prompt", "the"]).fails(4);
        assert!(error.contains(part) && error.contains(&model), "{key}: {error}");
        let by_ids = run(["run", "-m", &model, "--token-ids", &ids, "-n", "3"]).ok();
        assert_eq!(by_ids.split_whitespace().count(), 3, "ids in, ids out: {by_ids}");
    }
}

#[test]
fn a_vocabulary_of_another_size_than_the_embeddings_is_refused() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let mut file = ModelFile::read(&golden.model);
    for key in ["tokenizer.ggml.tokens", "tokenizer.ggml.token_type"] {
        match &mut file.keys.iter_mut().find(|(name, _)| name == key).unwrap().1 {
            Texts(texts) => texts.push("<more>".to_owned()),
            Numbers(numbers) => numbers.push(1),
            other => panic!("{other:?}"),
        }
    }
    let folder = Folder::new();
    let model = folder.file("model.gguf", file.bytes());
    let error = run(["run", "-m", &model, "--prompt", "the"]).fails(4);
    assert!(error.contains("98 tokens") && error.contains("97 rows"), "{error}");
}

#[test]
fn faults_of_the_chat_template_are_named_with_their_line() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let mut file = ModelFile::read(&golden.model);
    let folder = Folder::new();
    let mut with = |template: &str, more: &[&str]| {
        file.set("tokenizer.chat_template", Text(template.to_owned()));
        let model = folder.file("model.gguf", file.bytes());
        run(["run", "-m", &model, "--prompt", "the", "-n", "1"].iter().chain(more))
    };
    assert!(with("line\n{% if %}", &[]).fails(4).contains("line 2"));
    assert!(with("{{ raise_exception('no\nuser') }}", &[]).fails(4).contains("no user"));
    with("line\n{% if %}", &["--raw"]).ok();
    with("{{ messages[0].content }}", &[]).ok();
}
