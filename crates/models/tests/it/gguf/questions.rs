//! Questions to a good file: what is answered, and how a wrong question is refused.

use plimsoll_models::gguf::{GgmlType, Gguf, GgufError, GgufWriter, Value, ValueType};

fn file() -> Gguf {
    let mut writer = GgufWriter::new();
    writer.put("general.architecture", "llama").unwrap();
    writer.put("small", 7_u8).unwrap();
    writer.put("negative", -1_i64).unwrap();
    writer.put("large", 1_u64 << 40).unwrap();
    writer.put("eps", 1e-5_f32).unwrap();
    writer.put("theta", 1e6_f64).unwrap();
    writer.put("huge", 1e300_f64).unwrap();
    writer.put("flag", true).unwrap();
    writer.put("tokens", ["<s>", "", "é"]).unwrap();
    writer.put("scores", [0.5_f32, -2.0]).unwrap();
    writer.put("types", [1_i32, 3, -6]).unwrap();
    writer.put("wide", vec![1_u64, 1 << 40]).unwrap();
    writer.put("flags", [true, false]).unwrap();
    writer.put("nested", vec![vec![1_u16], vec![], vec![2, 3]]).unwrap();
    writer.tensor("blk.0.attn_q.weight", &[2, 32], GgmlType::Q8_0, vec![1; 68]).unwrap();
    writer.tensor("blk.0.attn_k.weight", &[1, 32], GgmlType::Q5_0, vec![2; 22]).unwrap();
    writer.tensor("output_norm.weight", &[3], GgmlType::F32, vec![3; 12]).unwrap();
    Gguf::from_bytes(writer.to_bytes()).unwrap()
}

/// The message of an error, which is one line and contains each of `parts`.
#[track_caller]
fn message<T>(result: Result<T, GgufError>, parts: &[&str]) {
    let text = result.err().expect("the question was answered").to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    for part in parts {
        assert!(text.contains(part), "'{part}' is not in: {text}");
    }
}

#[test]
fn integers_of_any_stored_width_are_read_if_they_fit() {
    let file = file();
    assert_eq!(file.get_u32("small").unwrap(), 7);
    assert_eq!(file.get_u64("small").unwrap(), 7);
    assert_eq!(file.get_usize("large").unwrap(), 1 << 40);
    assert_eq!(file.get_i32("negative").unwrap(), -1);
    message(file.get_u32("large"), &["'large'", "1099511627776", "u32"]);
    message(file.get_u64("negative"), &["'negative'", "-1", "u64"]);
    message(file.get_u32("eps"), &["'eps'", "f32", "u32"]);
    message(file.get_u32("flag"), &["'flag'", "bool"]);
}

#[test]
fn floats_are_read_from_both_widths() {
    let file = file();
    assert_eq!(file.get_f32("eps").unwrap(), 1e-5);
    assert_eq!(file.get_f32("theta").unwrap(), 1e6);
    message(file.get_f32("huge"), &["'huge'", "f32"]);
    message(file.get_f32("small"), &["'small'", "u8", "f32"]);
}

#[test]
fn a_missing_key_is_none_or_an_error_as_asked() {
    let file = file();
    assert_eq!(file.find_u32("absent").unwrap(), None);
    assert_eq!(file.find_str("absent").unwrap(), None);
    assert_eq!(file.find_bool("flag").unwrap(), Some(true));
    assert!(file.find_i32_array("absent").unwrap().is_none());
    assert!(matches!(file.find_u32("eps"), Err(GgufError::WrongMetadataType { .. })));
    message(file.get_u32("absent"), &["'absent'", "not in the metadata"]);
    message(file.get_str_array("absent"), &["'absent'"]);
}

#[test]
fn strings_are_slices_of_the_file() {
    let file = file();
    assert_eq!(file.get_str("general.architecture").unwrap(), "llama");
    let tokens = file.get_str_array("tokens").unwrap();
    assert_eq!(tokens.len(), 3);
    assert_eq!(tokens.clone().collect::<Vec<_>>(), ["<s>", "", "é"]);
    // The same bytes both times: nothing was copied.
    assert!(tokens.clone().zip(file.get_str_array("tokens").unwrap()).all(|(a, b)| a.as_ptr() == b.as_ptr()));
    message(file.get_str("small"), &["'small'", "u8", "string"]);
    message(file.get_str_array("scores"), &["'scores'", "an array of f32", "an array of string"]);
    message(file.get_str_array("small"), &["'small'", "u8"]);
}

#[test]
fn arrays_of_numbers_are_checked_before_they_are_iterated() {
    let file = file();
    assert_eq!(file.get_f32_array("scores").unwrap().collect::<Vec<_>>(), [0.5, -2.0]);
    assert_eq!(file.get_i32_array("types").unwrap().collect::<Vec<_>>(), [1, 3, -6]);
    assert_eq!(file.get_bool_array("flags").unwrap().collect::<Vec<_>>(), [true, false]);
    assert_eq!(file.get_i32_array("types").unwrap().len(), 3);
    message(file.get_u32_array("types"), &["'types'", "-6", "u32"]);
    message(file.get_i32_array("wide"), &["'wide'", "1099511627776"]);
    message(file.get_f32_array("types"), &["'types'", "an array of i32", "an array of f32"]);
    message(file.get_bool_array("flag"), &["'flag'", "an array of bool"]);
}

#[test]
fn metadata_keeps_its_order_and_nested_arrays_can_be_walked() {
    let file = file();
    let keys: Vec<&str> = file.metadata().map(|(key, _)| key).collect();
    assert_eq!(keys[..3], ["general.architecture", "small", "negative"]);
    let Some(Value::Array(rows)) = file.value("nested") else { panic!("'nested' is no array") };
    assert_eq!(rows.element_type(), ValueType::Array);
    let sums: Vec<i128> = rows
        .iter()
        .map(|row| match row {
            Value::Array(row) => row.iter().filter_map(|v| v.as_integer()).sum(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(sums, [1, 0, 5]);
}

#[test]
fn tensors_have_their_outermost_dimension_first() {
    let file = file();
    let q = file.tensor("blk.0.attn_q.weight").unwrap();
    assert_eq!((q.shape(), q.ggml_type(), q.elements()), (&[2, 32][..], GgmlType::Q8_0, 64));
    assert_eq!(q.data(), [1; 68]);
    let names: Vec<&str> = file.tensors().map(|t| t.name()).collect();
    assert_eq!(names, ["blk.0.attn_q.weight", "blk.0.attn_k.weight", "output_norm.weight"]);
    assert!(file.find_tensor("absent").is_none());
}

#[test]
fn a_missing_tensor_comes_with_near_names() {
    let file = file();
    message(
        file.tensor("blk.0.attn_v.weight"),
        &["'blk.0.attn_v.weight'", "similar: blk.0.attn_k.weight, blk.0.attn_q.weight"],
    );
    let Err(GgufError::MissingTensor { similar, .. }) = file.tensor("token_embd.weight") else { panic!("found") };
    assert!(similar.is_empty(), "{similar:?}");
}

#[test]
fn a_wrong_shape_names_both_shapes() {
    let file = file();
    let q = file.tensor("blk.0.attn_q.weight").unwrap();
    q.expect_shape(&[2, 32]).unwrap();
    message(q.expect_shape(&[32, 2]), &["'blk.0.attn_q.weight'", "[2, 32]", "expected [32, 2]"]);
    message(q.expect_shape(&[64]), &["expected [64]"]);
}

#[test]
fn an_unsupported_type_lists_the_supported_ones() {
    let file = file();
    let supported = [GgmlType::F32, GgmlType::Q8_0, GgmlType::Q4K];
    file.tensor("blk.0.attn_q.weight").unwrap().expect_type(&supported).unwrap();
    message(
        file.tensor("blk.0.attn_k.weight").unwrap().expect_type(&supported),
        &["'blk.0.attn_k.weight'", "Q5_0", "supported: F32, Q8_0, Q4_K"],
    );
}

#[test]
fn advice_on_a_tensor_of_another_file_is_refused() {
    let (file, mut writer) = (file(), GgufWriter::new());
    writer.tensor("other", &[1], GgmlType::F32, vec![0; 4]).unwrap();
    let other = Gguf::from_bytes(writer.to_bytes()).unwrap();
    message(file.advise_done(&other.tensor("other").unwrap()), &["'other'"]);
}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let mut writer = GgufWriter::new();
    writer.put("k", 1_u32).unwrap();
    message(writer.put("k", "again"), &["'k'", "twice"]);
    message(writer.put("", 1_u32), &["0 bytes"]);
    message(writer.put("general.alignment", 64_u32), &["general.alignment"]);
    message(writer.alignment(48), &["48"]);
    message(writer.version(1), &["version 1"]);
    writer.tensor("t", &[2, 32], GgmlType::Q4_1, vec![0; 40]).unwrap();
    message(writer.tensor("t", &[1], GgmlType::F32, vec![0; 4]), &["'t'", "twice"]);
    message(writer.tensor("u", &[2, 32], GgmlType::Q4_1, vec![0; 41]), &["'u'", "41", "40"]);
    message(writer.tensor("u", &[32, 2], GgmlType::Q4_1, vec![0; 40]), &["'u'", "Q4_1"]);
    message(writer.tensor("u", &[], GgmlType::F32, vec![]), &["'u'", "0 dimensions"]);
    message(writer.tensor("u", &[0], GgmlType::F32, vec![]), &["'u'", "[0]"]);
    message(writer.tensor("u", &[usize::MAX, 2], GgmlType::F32, vec![]), &["'u'", "too large"]);
}
