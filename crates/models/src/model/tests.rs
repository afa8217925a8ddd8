use super::*;
use crate::checkpoint::StoredType;
use crate::{
    gguf::{GgmlType, GgufError},
    testing::{
        Setting::{Bool, Text},
        TinyLlama, VOCAB,
    },
};

#[track_caller]
fn fault(file: &TinyLlama) -> ModelError {
    LoadPlan::new(&file.gguf()).expect_err("the file is faulty")
}

#[test]
fn planned_weights_bytes_are_those_of_the_loaded_model() {
    let untied = TinyLlama::new().tensor("output.weight", &[VOCAB, 16]);
    let biased = TinyLlama::new().tensor("blk.1.attn_q.bias", &[16]).tensor("blk.0.ffn_down.bias", &[16]);
    let halves = TinyLlama::new()
        .typed("token_embd.weight", &[VOCAB, 16], GgmlType::F16)
        .typed("blk.0.ffn_up.weight", &[24, 16], GgmlType::Bf16)
        .typed("blk.0.attn_norm.weight", &[16], GgmlType::F16);
    let odd_rows = TinyLlama::new().tensor("token_embd.weight", &[VOCAB + 1, 16]);
    let factors = TinyLlama::new().tensor("rope_freqs.weight", &[2]);
    for (name, file) in [
        ("plain", TinyLlama::new()),
        ("untied", untied),
        ("biased", biased),
        ("halves", halves),
        ("odd rows", odd_rows),
        ("factors", factors),
    ] {
        let gguf = file.gguf();
        let plan = LoadPlan::new(&gguf).unwrap();
        let planned_bytes = plan.weights_bytes();
        for threads in [1, 3] {
            let model = Model::from_gguf(&gguf, threads).unwrap();
            assert_eq!(model.weights_bytes(), planned_bytes, "{name}, {threads} threads");
        }
    }
}

/// The types of files that the kernels multiply with.
fn matrix_types() -> Vec<GgmlType> {
    WeightType::ALL.iter().map(|kind| GgmlType::from_id(kind.ggml_id()).unwrap()).collect()
}

#[test]
fn files_and_kernels_call_and_measure_types_alike() {
    for (kind, stored) in WeightType::ALL.iter().zip(matrix_types()) {
        assert_eq!(kind.name(), stored.name());
        assert_eq!(
            (kind.block_elements(), kind.block_bytes()),
            (stored.block_elements(), stored.block_bytes()),
            "{kind}"
        );
    }
}

#[test]
fn block_formats_are_priced_as_they_are_packed() {
    for kind in matrix_types().into_iter().filter(|kind| kind.block_elements() == 32) {
        let file = TinyLlama::new().with("embedding_length", crate::testing::Setting::U32(32));
        let mut file = file.typed("token_embd.weight", &[VOCAB, 32], kind).tensor("output_norm.weight", &[32]);
        for layer in 0..2 {
            for (name, shape) in [("attn_norm", &[32][..]), ("ffn_norm", &[32])] {
                file = file.tensor(&format!("blk.{layer}.{name}.weight"), shape);
            }
            for (name, shape) in [
                ("attn_q", [32, 32]),
                ("attn_k", [16, 32]),
                ("attn_v", [16, 32]),
                ("attn_output", [32, 32]),
                ("ffn_gate", [24, 32]),
                ("ffn_up", [24, 32]),
            ] {
                file = file.typed(&format!("blk.{layer}.{name}.weight"), &shape, kind);
            }
            file = file.tensor(&format!("blk.{layer}.ffn_down.weight"), &[32, 24]);
        }
        let gguf = file.gguf();
        let planned_bytes = LoadPlan::new(&gguf).unwrap().weights_bytes();
        assert_eq!(Model::from_gguf(&gguf, 2).unwrap().weights_bytes(), planned_bytes, "{kind}");
    }
}

#[test]
fn a_tensor_that_the_program_would_ignore_is_named() {
    for name in ["blk.0.attn_q_norm.weight", "blk.2.attn_q.weight", "blk.0.ffn_gate_inp.weight", "output_norm.bias"] {
        match fault(&TinyLlama::new().tensor(name, &[16])) {
            ModelError::UnusedTensor { tensor, architecture } => {
                assert_eq!((&*tensor, &*architecture), (name, "llama"))
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_missing_tensor_is_named_with_its_neighbours() {
    match fault(&TinyLlama::new().without_tensor("blk.1.ffn_up.weight")) {
        ModelError::MissingTensor { tensor: name, similar } => {
            assert_eq!((&*name, &*similar[0]), ("blk.1.ffn_up.weight", "blk.0.ffn_up.weight"));
        }
        other => panic!("{other}"),
    }
    assert!(matches!(fault(&TinyLlama::new().without_tensor("token_embd.weight")), ModelError::MissingTensor { .. }));
}

#[test]
fn a_wrong_shape_is_named_with_expected_and_found() {
    for (name, found, expected) in [
        ("blk.0.attn_k.weight", &[16, 16][..], &[8, 16][..]),
        ("blk.1.ffn_norm.weight", &[15], &[16]),
        ("output_norm.weight", &[1, 16], &[16]),
        ("token_embd.weight", &[VOCAB], &[VOCAB, 16]),
    ] {
        match fault(&TinyLlama::new().tensor(name, found)) {
            ModelError::WrongShape { tensor: n, expected: e, found: f } => {
                assert_eq!((&*n, &e[..], &f[..]), (name, expected, found));
            }
            other => panic!("{name}: {other}"),
        }
    }
}

#[test]
fn formats_without_a_kernel_are_named_with_those_that_have_one() {
    let file = TinyLlama::new().with("embedding_length", crate::testing::Setting::U32(256));
    for kind in GgmlType::ALL.iter().filter(|kind| !matrix_types().contains(kind)) {
        let error = fault(&file.clone().typed("token_embd.weight", &[VOCAB, 256], *kind)).to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
        for part in ["'token_embd.weight'", kind.name(), "supported: F32, F16, BF16, Q4_0", "IQ4_XS, MXFP4"] {
            assert!(error.contains(part), "'{part}' is not in: {error}");
        }
    }
}

#[test]
fn a_type_that_no_kernel_runs_is_named_with_those_that_are() {
    match fault(&TinyLlama::new().typed("blk.0.attn_q.weight", &[16, 16], GgmlType::F64)) {
        ModelError::TensorType { tensor, found, supported } => {
            assert_eq!((&*tensor, found), ("blk.0.attn_q.weight", StoredType::Ggml(GgmlType::F64)));
            assert!(supported.contains("Q4_1"), "{supported}");
        }
        other => panic!("{other}"),
    }
    // A norm weight is a vector: no block format.
    let error = fault(&TinyLlama::new().typed("blk.0.attn_norm.weight", &[16], GgmlType::I32));
    assert!(matches!(error, ModelError::TensorType { .. }), "{error}");
}

#[test]
fn an_unknown_architecture_names_those_known() {
    let error = fault(&TinyLlama::new().with_full("general.architecture", Text("mamba")));
    let known = arch::known_architectures().collect::<Vec<_>>();
    assert!(known.len() >= 9 && known.contains(&"llama"), "{known:?}");
    let known = known.join(", ");
    assert_eq!(error.to_string(), format!("architecture \"mamba\" is not known; known: {known}"));
    let error = fault(&TinyLlama::new().with_full("general.architecture", Bool(true)));
    assert!(matches!(error, ModelError::Gguf(GgufError::WrongMetadataType { .. })), "{error}");
}

#[test]
fn a_model_is_named_by_its_file_or_its_architecture() {
    let name = |file: TinyLlama| Model::from_gguf(&file.gguf(), 1).unwrap().name().to_owned();
    assert_eq!(name(TinyLlama::new()), "llama");
    assert_eq!(name(TinyLlama::new().with_full("general.name", Text("Tiny"))), "Tiny");
}
