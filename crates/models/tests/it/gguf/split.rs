//! Models split over several files: read like one file through any part, and refused when a part is wrong.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_models::gguf::{GgmlType, Gguf, GgufError, GgufWriter};
use proptest::prelude::*;
use tempfile::TempDir;

use super::raw::Raw;

const U16: u32 = 2;
const I32: u32 = 5;
const F32_TENSOR: u32 = 0;

/// A model of five tensors, each filled with its place times `step`.
fn model(architecture: &str, step: u8) -> GgufWriter<'static> {
    let mut writer = GgufWriter::new();
    writer.put("general.architecture", architecture).unwrap();
    writer.put("tokens", ["a", "b"]).unwrap();
    for place in 0..5_u8 {
        writer.tensor(&format!("t{place}"), &[2, 32], GgmlType::Q5_0, vec![place * step; 44]).unwrap();
    }
    writer
}

/// The model in three parts of two, two and one tensors.
fn split(name: &str, writer: &GgufWriter<'_>) -> (TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let paths = writer.write_split(folder.path(), name, 2).unwrap();
    (folder, paths)
}

/// The error of opening `path`, whose message is one line and contains each of `parts`.
#[track_caller]
fn refused(path: &Path, parts: &[&str]) -> GgufError {
    let error = Gguf::open(path).expect_err("the model was opened");
    let message = error.to_string();
    assert_eq!(message.lines().count(), 1, "{message}");
    for part in parts {
        assert!(message.contains(part), "'{part}' is not in: {message}");
    }
    error
}

/// A part as bytes, with tensors `names` of one f32 each.
fn raw_part(no: u16, count: u16, tensor_count: i32, names: &[&str]) -> Raw {
    let raw = Raw::new().entry("split.no", U16, no.to_le_bytes()).entry("split.count", U16, count.to_le_bytes()).entry(
        "split.tensors.count",
        I32,
        tensor_count.to_le_bytes(),
    );
    let raw = names.iter().zip(0..).fold(raw, |raw, (name, place)| raw.tensor(name, &[1], F32_TENSOR, place * 32));
    raw.data(vec![0; 32 * names.len()])
}

/// Writes parts under their right names; gives the path of the first.
fn write_parts(folder: &Path, parts: &[Raw]) -> PathBuf {
    let path = |part: usize| folder.join(format!("m-{:05}-of-{:05}.gguf", part + 1, parts.len()));
    for (part, raw) in parts.iter().enumerate() {
        fs::write(path(part), raw.bytes()).unwrap();
    }
    path(0)
}

#[test]
fn any_part_opens_the_whole_model() {
    let writer = model("llama", 1);
    let whole = Gguf::from_bytes(writer.to_bytes()).unwrap();
    assert_eq!(whole.parts(), 1);
    let (_folder, paths) = split("a model-00009-of-00010", &writer);
    let names: Vec<_> = paths.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names[2], "a model-00009-of-00010-00003-of-00003.gguf");
    for path in &paths {
        let file = Gguf::open(path).unwrap();
        assert_eq!(file.parts(), 3);
        assert_eq!(file.get_str("general.architecture").unwrap(), "llama");
        assert_eq!(file.get_str_array("tokens").unwrap().len(), 2);
        assert_eq!(file.get_u32("split.no").unwrap(), 0);
        assert_eq!(file.file_bytes(), paths.iter().map(|path| fs::metadata(path).unwrap().len()).sum::<u64>());
        assert!(file.tensors().map(|t| t.name()).eq(["t0", "t1", "t2", "t3", "t4"]));
        file.advise_sequential().unwrap();
        for tensor in file.tensors() {
            assert_eq!(tensor.data(), whole.tensor(tensor.name()).unwrap().data());
            assert_eq!(file.tensor(tensor.name()).unwrap().data(), tensor.data());
            file.advise_done(&tensor).unwrap();
            assert_eq!(tensor.data(), whole.tensor(tensor.name()).unwrap().data());
        }
        let Err(GgufError::MissingTensor { similar, .. }) = file.tensor("t5") else { panic!("found") };
        assert_eq!(similar.len(), 3);
    }
}

#[test]
fn a_first_part_without_tensors_and_one_part_of_one_are_fine() {
    let folder = tempfile::tempdir().unwrap();
    let parts = [raw_part(0, 3, 3, &[]), raw_part(1, 3, 3, &["b", "a"]), raw_part(2, 3, 3, &["c"])];
    let file = Gguf::open(write_parts(folder.path(), &parts)).unwrap();
    assert!(file.tensors().map(|t| t.name()).eq(["b", "a", "c"]));
    let path = folder.path().join("any name.gguf");
    fs::write(&path, raw_part(0, 1, 1, &["x"]).bytes()).unwrap();
    assert_eq!(Gguf::open(&path).unwrap().parts(), 1);
}

#[test]
fn a_missing_part_is_named() {
    for missing in 0..3 {
        let (_folder, paths) = split("m", &model("llama", 1));
        fs::remove_file(&paths[missing]).unwrap();
        let name = format!("m-{:05}-of-00003.gguf", missing + 1);
        for (part, path) in paths.iter().enumerate() {
            if part != missing {
                let error = refused(path, &[&format!("part {} of 3", missing + 1), "missing", &name]);
                assert!(matches!(error, GgufError::MissingPart { parts: 3, .. }), "{error:?}");
            }
        }
    }
}

#[test]
fn a_part_under_another_name_is_refused() {
    let (folder, paths) = split("m", &model("llama", 1));
    for name in ["model.gguf", "m-00001-of-00003.bin", "m-00002-of-00003-.gguf", "m-00001-of-00004.gguf"] {
        let path = folder.path().join(name);
        fs::copy(&paths[1], &path).unwrap();
        let error = refused(&path, &["part 2 of 3", "-00002-of-00003.gguf", name]);
        assert!(matches!(error, GgufError::SplitName { part: 2, parts: 3, .. }), "{error:?}");
    }
}

#[test]
fn parts_in_the_wrong_order_are_refused() {
    let (folder, paths) = split("m", &model("llama", 1));
    let aside = folder.path().join("aside");
    fs::rename(&paths[1], &aside).unwrap();
    fs::rename(&paths[2], &paths[1]).unwrap();
    fs::rename(&aside, &paths[2]).unwrap();
    let error = refused(&paths[0], &["m-00002-of-00003.gguf", "should be part 2 of 3", "says it is part 3 of 3"]);
    assert!(matches!(error, GgufError::WrongPart { part: 2, found: 3, .. }), "{error:?}");
    let error = refused(&paths[1], &["part 3 of 3"]);
    assert!(matches!(error, GgufError::SplitName { part: 3, .. }), "{error:?}");
}

#[test]
fn a_whole_model_in_place_of_a_part_is_refused() {
    let (_folder, paths) = split("m", &model("llama", 1));
    fs::write(&paths[2], model("llama", 1).to_bytes()).unwrap();
    let error = refused(&paths[0], &["m-00003-of-00003.gguf", "part 1 of 1"]);
    assert!(matches!(error, GgufError::WrongPart { found_parts: 1, .. }), "{error:?}");
}

#[test]
fn a_part_of_another_model_is_refused() {
    // Another number of tensors.
    let (_folder, paths) = split("m", &model("llama", 1));
    let mut larger = model("llama", 1);
    larger.tensor("more", &[1], GgmlType::F32, vec![0; 4]).unwrap();
    let (_other_folder, others) = split("m", &larger);
    fs::copy(&others[1], &paths[1]).unwrap();
    let error = refused(&paths[0], &["m-00002-of-00003.gguf", "part 2 of another model", "'split.tensors.count'"]);
    assert!(matches!(error, GgufError::ForeignPart { part: 2, .. }), "{error:?}");

    // As many tensors, and another architecture: seen from part 2, whose first part is the foreign one.
    let folder = tempfile::tempdir().unwrap();
    let architecture = |text: &str| super::raw::string(text);
    let parts = [
        raw_part(0, 2, 2, &["a"]).entry("general.architecture", 8, architecture("llama")),
        raw_part(1, 2, 2, &["b"]).entry("general.architecture", 8, architecture("qwen3")),
    ];
    write_parts(folder.path(), &parts);
    let error = refused(&folder.path().join("m-00002-of-00002.gguf"), &["'general.architecture'", "another model"]);
    assert!(matches!(error, GgufError::ForeignPart { part: 2, .. }), "{error:?}");
}

#[test]
fn metadata_repeated_in_every_part_is_fine() {
    let folder = tempfile::tempdir().unwrap();
    let repeated = |raw: Raw| {
        raw.entry("general.architecture", 8, super::raw::string("llama")).entry("nan", 6, f32::NAN.to_le_bytes())
    };
    // The count of tensors in another width.
    let second = Raw::new()
        .entry("split.no", 4, 1_u32.to_le_bytes())
        .entry("split.count", 4, 2_u32.to_le_bytes())
        .entry("split.tensors.count", 10, 1_u64.to_le_bytes());
    let path = write_parts(folder.path(), &[repeated(raw_part(0, 2, 1, &["a"])), repeated(second)]);
    assert_eq!(Gguf::open(path).unwrap().tensors().len(), 1);
}

#[test]
fn a_tensor_in_two_parts_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let parts = [raw_part(0, 3, 4, &["a", "b"]), raw_part(1, 3, 4, &["c"]), raw_part(2, 3, 4, &["b"])];
    let error = refused(&write_parts(folder.path(), &parts), &["'b'", "part 1", "part 3"]);
    assert!(matches!(error, GgufError::TensorInTwoParts { first: 1, second: 3, .. }), "{error:?}");
}

#[test]
fn a_wrong_total_of_tensors_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let parts = [raw_part(0, 2, 4, &["a", "b"]), raw_part(1, 2, 4, &["c"])];
    let error = refused(&write_parts(folder.path(), &parts), &["2 parts", "3 tensors", "says 4"]);
    assert!(matches!(error, GgufError::SplitTensorCount { found: 3, expected: 4, .. }), "{error:?}");
}

#[test]
fn a_damaged_part_is_named_with_its_own_fault() {
    let (_folder, paths) = split("m", &model("llama", 1));
    let bytes = fs::read(&paths[2]).unwrap();
    for (bytes, fault) in [
        (&bytes[..bytes.len() - 30], "'t4'"),
        (&bytes[..40], "the tensor list claims 1 element"),
        (b"PK\x03\x04", "GGUF"),
    ] {
        fs::write(&paths[2], bytes).unwrap();
        let error = refused(&paths[0], &["m-00003-of-00003.gguf", fault]);
        assert!(matches!(error, GgufError::InPart { .. }), "{error:?}");
        let error = refused(&paths[2], &[fault]);
        assert!(!matches!(error, GgufError::InPart { .. }), "the caller knows the file that it named: {error:?}");
    }
    fs::remove_file(&paths[2]).unwrap();
    fs::create_dir(&paths[2]).unwrap();
    let error = refused(&paths[0], &["m-00003-of-00003.gguf"]);
    assert!(matches!(error, GgufError::NotAFile { .. }), "{error:?}");
}

#[test]
fn split_keys_that_are_missing_or_wrong_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let no = |raw: Raw, no: u16| raw.entry("split.no", U16, no.to_le_bytes());
    let count = |raw: Raw| raw.entry("split.count", U16, 2_u16.to_le_bytes());
    let tensors = |raw: Raw, count: i32| raw.entry("split.tensors.count", I32, count.to_le_bytes());
    let whole = raw_part(1, 2, 0, &[]);
    for (first, second, parts) in [
        (tensors(count(Raw::new()), 0), whole.clone(), &["'split.no' is not in the metadata"][..]),
        (no(count(Raw::new()), 0), whole.clone(), &["'split.tensors.count' is not in the metadata"]),
        (tensors(no(count(Raw::new()), 0), -1), whole.clone(), &["'split.tensors.count' holds -1"]),
        (raw_part(2, 2, 0, &[]), whole, &["part 3 of 2"]),
        (raw_part(0, 2, 0, &[]), no(count(Raw::new()), 1), &["m-00002-of-00002.gguf", "'split.tensors.count'"]),
        (raw_part(0, 2, 0, &[]), tensors(count(Raw::new()), 0), &["m-00002-of-00002.gguf", "part 1 of 2"]),
    ] {
        refused(&write_parts(folder.path(), &[first, second]), parts);
    }
}

#[test]
fn a_claim_of_many_parts_ends_at_the_first_that_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m-00001-of-65535.gguf");
    fs::write(&path, raw_part(0, 65_535, 1, &["a"]).bytes()).unwrap();
    refused(&path, &["part 2 of 65535"]);
}

#[test]
fn the_writer_refuses_to_split_what_is_split() {
    let folder = tempfile::tempdir().unwrap();
    for key in ["split.no", "split.count", "split.tensors.count"] {
        let mut writer = GgufWriter::new();
        writer.put(key, 1_u16).unwrap();
        let error = writer.write_split(folder.path(), "m", 1).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains(key), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_split_model_reads_like_the_whole_one(
        tensors in prop::collection::btree_map("[a-z0-9_.]{1,12}", (1_usize..5, any::<u8>()), 0..12),
        tensors_per_part in 0_usize..6, alignment in prop::option::of(0_u32..10), opened: prop::sample::Index,
    ) {
        let mut writer = GgufWriter::new();
        if let Some(power) = alignment {
            writer.alignment(1 << power).unwrap();
        }
        writer.put("general.architecture", "llama").unwrap();
        for (name, (rows, fill)) in &tensors {
            writer.tensor(name, &[*rows, 32], GgmlType::Mxfp4, vec![*fill; 17 * rows]).unwrap();
        }
        let whole = Gguf::from_bytes(writer.to_bytes()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let paths = writer.write_split(folder.path(), "m", tensors_per_part).unwrap();
        prop_assert_eq!(paths.len(), tensors.len().div_ceil(tensors_per_part.max(1)).max(1));
        let file = Gguf::open(opened.get(&paths)).unwrap();
        prop_assert_eq!((file.parts(), file.alignment()), (paths.len(), whole.alignment()));
        prop_assert_eq!(file.metadata().len(), whole.metadata().len() + 3);
        prop_assert!(file.tensors().map(|t| t.name()).eq(whole.tensors().map(|t| t.name())));
        for (got, want) in file.tensors().zip(whole.tensors()) {
            prop_assert_eq!((got.shape(), got.ggml_type(), got.data()), (want.shape(), want.ggml_type(), want.data()));
            prop_assert_eq!(file.tensor(got.name()).unwrap().data().as_ptr(), got.data().as_ptr());
        }
    }
}
