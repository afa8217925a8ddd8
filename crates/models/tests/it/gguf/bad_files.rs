//! One test for each way a file can be bad: it is refused with the error made for it.

use plimsoll_models::gguf::{Gguf, GgufError};

use super::raw::{Raw, array, string};

const U8: u32 = 0;
const U16: u32 = 2;
const U32: u32 = 4;
const I32: u32 = 5;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const F32_TENSOR: u32 = 0;
const Q8_0_TENSOR: u32 = 8;
const Q3_K_TENSOR: u32 = 11;
const IQ4_NL_TENSOR: u32 = 20;
const MXFP4_TENSOR: u32 = 39;

/// The error for `bytes`, whose message is one line and contains each of `parts`.
#[track_caller]
fn refused(bytes: impl Into<Vec<u8>>, parts: &[&str]) -> GgufError {
    let error = Gguf::from_bytes(bytes).expect_err("the file was accepted");
    let message = error.to_string();
    assert_eq!(message.lines().count(), 1, "{message}");
    for part in parts {
        assert!(message.contains(part), "'{part}' is not in: {message}");
    }
    error
}

/// Asserts that the raw file is refused with a variant, and that the message names things.
macro_rules! assert_refused {
    ($bytes:expr, $variant:pat, $($part:expr),* $(,)?) => {
        let error = refused($bytes, &[$($part),*]);
        assert!(matches!(error, $variant), "{error:?}");
    };
}

#[test]
fn empty_file() {
    assert_refused!(Vec::new(), GgufError::Truncated { offset: 0, needed_bytes: 4, have_bytes: 0, .. }, "the header");
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(matches!(Gguf::open(file.path()), Err(GgufError::Truncated { .. })));
}

#[test]
fn header_cut_at_any_byte() {
    let raw = Raw::new()
        .entry("a.number", U32, 7_u32.to_le_bytes())
        .entry("a.text", STRING, string("text"))
        .entry("a.list", ARRAY, array(STRING, 2, [string("x"), string("yz")].concat()))
        .tensor("t", &[2], F32_TENSOR, 0)
        .data([0; 8]);
    let whole = raw.bytes();
    Gguf::from_bytes(whole.clone()).unwrap();
    for len in 0..raw.header().len() {
        let error = refused(&whole[..len], &[]);
        // A count can turn out too large for what is left before the cut itself is met.
        assert!(
            matches!(error, GgufError::Truncated { .. } | GgufError::OversizedCount { .. }),
            "cut at {len}: {error:?}"
        );
    }
}

#[test]
fn wrong_magic() {
    let raw = Raw { magic: *b"GGML", ..Raw::new() };
    assert_refused!(raw.bytes(), GgufError::WrongMagic { found: [b'G', b'G', b'M', b'L'] }, "\"GGML\"", "not a GGUF");
    assert_refused!(b"\x80\x02ab\n".to_vec(), GgufError::WrongMagic { .. }, "\\x80\\x02ab");
}

#[test]
fn big_endian_file() {
    let raw = Raw { version: 3_u32.to_be_bytes(), ..Raw::new() };
    assert_refused!(raw.bytes(), GgufError::BigEndian, "big-endian", "convert");
    let raw = Raw { magic: *b"FUGG", ..Raw::new() };
    assert_refused!(raw.bytes(), GgufError::BigEndian, "big-endian");
}

#[test]
fn version_1_and_versions_to_come() {
    for version in [0_u32, 1, 4, 70_000] {
        let raw = Raw { version: version.to_le_bytes(), ..Raw::new() };
        let text = version.to_string();
        assert_refused!(raw.bytes(), GgufError::UnsupportedVersion { .. }, &text, "2 or 3");
    }
}

#[test]
fn metadata_count_past_the_file() {
    for count in [2, 1 << 40, u64::MAX] {
        let raw = Raw { entry_count: Some(count), ..Raw::new().entry("k", U32, [0; 4]) };
        assert_refused!(raw.bytes(), GgufError::OversizedCount { .. }, "the metadata", &count.to_string());
    }
}

#[test]
fn tensor_count_past_the_file() {
    for count in [2, 1 << 40, u64::MAX] {
        let raw = Raw { tensor_count: Some(count), ..Raw::new().tensor("t", &[1], F32_TENSOR, 0).data([0; 4]) };
        assert_refused!(raw.bytes(), GgufError::OversizedCount { .. }, "the tensor list", &count.to_string());
    }
}

#[test]
fn array_count_past_the_file() {
    for (type_id, element_bytes) in [(U8, 1), (I32, 4), (STRING, 8), (ARRAY, 12), (BOOL, 1)] {
        for count in [40, 1 << 40, u64::MAX] {
            let raw = Raw::new().entry("k", ARRAY, array(type_id, count, [0; 12]));
            let error = refused(raw.bytes(), &["'k'", &count.to_string()]);
            assert!(
                matches!(error, GgufError::OversizedCount { element_bytes: found, .. } if found == element_bytes),
                "{error:?}"
            );
        }
    }
}

#[test]
fn string_longer_than_the_file() {
    for len in [1, 1 << 40, u64::MAX] {
        let raw = Raw::new().entry("k", STRING, len.to_le_bytes());
        assert_refused!(raw.bytes(), GgufError::Truncated { have_bytes: 0, .. }, "'k'", &len.to_string());
    }
}

#[test]
fn key_longer_than_the_file() {
    let mut bytes = Raw { entry_count: Some(1), ..Raw::new() }.header();
    bytes.extend(u64::MAX.to_le_bytes());
    bytes.extend([b'k'; 32]);
    assert_refused!(bytes, GgufError::Truncated { needed_bytes: u64::MAX, have_bytes: 32, .. }, "metadata key 0");
}

#[test]
fn key_that_is_empty_or_too_long() {
    for key in ["".to_owned(), "k".repeat(65_536)] {
        let raw = Raw::new().entry(&key, U32, [0; 4]).entry("x", U32, [0; 4]);
        assert_refused!(raw.bytes(), GgufError::NameLength { .. }, "metadata key 0", &key.len().to_string());
    }
    Gguf::from_bytes(Raw::new().entry("k".repeat(65_535), U32, [0; 4]).bytes()).unwrap();
}

#[test]
fn key_that_is_not_utf8() {
    let raw = Raw::new().entry(b"ab\xff", U32, [0; 4]);
    assert_refused!(raw.bytes(), GgufError::NotUtf8 { offset: 34, .. }, "metadata key 0", "34");
}

#[test]
fn text_that_is_not_utf8() {
    let raw = Raw::new().entry("k", STRING, string(b"\xc3\x28"));
    assert_refused!(raw.bytes(), GgufError::NotUtf8 { .. }, "'k'");
    let raw = Raw::new().entry("k", ARRAY, array(STRING, 2, [string("ok"), string(b"\xff")].concat()));
    assert_refused!(raw.bytes(), GgufError::NotUtf8 { .. }, "'k'");
}

#[test]
fn unknown_value_type() {
    for id in [13, u32::MAX] {
        let raw = Raw::new().entry("k", id, [0; 16]);
        assert_refused!(raw.bytes(), GgufError::UnknownValueType { .. }, "'k'", &id.to_string());
        let raw = Raw::new().entry("k", ARRAY, array(id, 1, [0; 16]));
        assert_refused!(raw.bytes(), GgufError::UnknownValueType { .. }, "'k'", &id.to_string());
    }
}

#[test]
fn arrays_nested_too_deep() {
    let nested = |depth: usize| [array(ARRAY, 1, []).repeat(depth - 1), array(U8, 1, [9])].concat();
    Gguf::from_bytes(Raw::new().entry("k", ARRAY, nested(4)).bytes()).unwrap();
    // The deep one would end the stack of a reader that follows it.
    for depth in [5, 100_000] {
        let raw = Raw::new().entry("k", ARRAY, nested(depth));
        assert_refused!(raw.bytes(), GgufError::NestedTooDeep { max_depth: 4, .. }, "'k'", "4 levels");
    }
}

#[test]
fn boolean_that_is_neither_0_nor_1() {
    let raw = Raw::new().entry("k", BOOL, [2]);
    assert_refused!(raw.bytes(), GgufError::InvalidBool { found: 2, .. }, "'k'");
    let raw = Raw::new().entry("k", ARRAY, array(BOOL, 3, [0, 1, 255]));
    assert_refused!(raw.bytes(), GgufError::InvalidBool { found: 255, .. }, "'k'");
}

#[test]
fn key_that_appears_twice() {
    let raw = Raw::new().entry("a", U32, [0; 4]).entry("b", U32, [0; 4]).entry("a", U8, [0]);
    assert_refused!(raw.bytes(), GgufError::DuplicateKey { .. }, "'a'", "twice");
}

#[test]
fn alignment_that_is_no_power_of_two() {
    for alignment in [0_i32, 3, 48, -8] {
        let raw = Raw::new().entry("general.alignment", I32, alignment.to_le_bytes());
        assert_refused!(raw.bytes(), GgufError::InvalidAlignment { .. }, "general.alignment", &alignment.to_string());
    }
}

#[test]
fn alignment_that_is_no_integer() {
    let raw = Raw::new().entry("general.alignment", STRING, string("32"));
    assert_refused!(raw.bytes(), GgufError::WrongMetadataType { .. }, "general.alignment", "string", "integer");
}

#[test]
fn alignment_larger_than_the_file() {
    let raw = Raw::new()
        .entry("general.alignment", 10, (1_u64 << 63).to_le_bytes())
        .tensor("t", &[1], F32_TENSOR, 0)
        .data([0; 4]);
    assert_refused!(raw.bytes(), GgufError::OutsideFile { have_bytes: 0, .. }, "'t'");
}

#[test]
fn part_of_a_split_model_in_memory() {
    let raw = Raw::new().entry("split.count", U16, 3_u16.to_le_bytes());
    assert_refused!(raw.bytes(), GgufError::SplitFile { parts: 3 }, "3 parts", "by its path", "--merge");
    for parts in [0_u16, 1] {
        Gguf::from_bytes(Raw::new().entry("split.count", U16, parts.to_le_bytes()).bytes()).unwrap();
    }
}

#[test]
fn split_count_that_is_no_count() {
    let raw = Raw::new().entry("split.count", STRING, string("3"));
    assert_refused!(raw.bytes(), GgufError::WrongMetadataType { .. }, "'split.count'", "string", "u16");
    for count in [-1_i32, 65_536] {
        let raw = Raw::new().entry("split.count", I32, count.to_le_bytes());
        assert_refused!(raw.bytes(), GgufError::OutOfRange { .. }, "'split.count'", &count.to_string(), "u16");
    }
}

#[test]
fn tensor_without_dimensions_or_with_too_many() {
    for dims in [&[][..], &[1; 5]] {
        let raw = Raw::new().tensor("t", dims, F32_TENSOR, 0).data([0; 64]);
        assert_refused!(raw.bytes(), GgufError::DimensionCount { max: 4, .. }, "'t'", &dims.len().to_string());
    }
}

#[test]
fn tensor_with_an_empty_dimension() {
    let raw = Raw::new().tensor("t", &[32, 0], F32_TENSOR, 0).data([0; 64]);
    assert_refused!(raw.bytes(), GgufError::EmptyDimension { .. }, "'t'", "[32, 0]");
}

#[test]
fn tensor_whose_size_overflows() {
    for dims in [&[u64::MAX, 2][..], &[1 << 32, 1 << 32], &[1 << 62], &[1 << 16; 4], &[u64::MAX]] {
        let raw = Raw::new().tensor("t", dims, F32_TENSOR, 0).data([0; 64]);
        assert_refused!(raw.bytes(), GgufError::TensorTooLarge { .. }, "'t'", &format!("{dims:?}"));
    }
}

#[test]
fn unknown_or_removed_tensor_type() {
    for id in [4, 31, 36, 999, u32::MAX] {
        let raw = Raw::new().tensor("t", &[32], id, 0).data([0; 64]);
        assert_refused!(raw.bytes(), GgufError::UnknownGgmlType { .. }, "'t'", &id.to_string());
    }
}

#[test]
fn row_that_ends_inside_a_quant_block() {
    // Two rows would be whole blocks together, but one is half of a block.
    for (type_id, name, row, block) in [
        (Q8_0_TENSOR, "Q8_0", 16, 32),
        (IQ4_NL_TENSOR, "IQ4_NL", 48, 32),
        (MXFP4_TENSOR, "MXFP4", 16, 32),
        (Q3_K_TENSOR, "Q3_K", 128, 256),
    ] {
        let raw = Raw::new().tensor("t", &[row, 2], type_id, 0).data([0; 256]);
        let error = refused(raw.bytes(), &["'t'", &row.to_string(), name, &block.to_string()]);
        assert!(
            matches!(error, GgufError::PartialBlock { ggml_type, row_elements, block_elements, .. }
                if (ggml_type.name(), row_elements, block_elements) == (name, row, block)),
            "{error:?}"
        );
    }
}

#[test]
fn block_data_past_the_end_of_the_file() {
    for (type_id, elements, bytes) in [(IQ4_NL_TENSOR, 32, 18), (MXFP4_TENSOR, 32, 17), (Q3_K_TENSOR, 256, 110)] {
        let raw = Raw::new().tensor("t", &[elements, 3], type_id, 0);
        Gguf::from_bytes(raw.clone().data(vec![0; 3 * bytes]).bytes()).unwrap();
        let error = refused(raw.data(vec![0; 3 * bytes - 1]).bytes(), &["'t'", &(3 * bytes).to_string()]);
        assert!(matches!(error, GgufError::OutsideFile { .. }), "{error:?}");
    }
}

#[test]
fn tensor_data_off_the_alignment() {
    let raw = Raw::new().tensor("t", &[1], F32_TENSOR, 4).data([0; 64]);
    assert_refused!(raw.bytes(), GgufError::Misaligned { offset: 4, alignment: 32, .. }, "'t'", "4", "32");
}

#[test]
fn tensor_data_past_the_end_of_the_file() {
    let raw = Raw::new().tensor("t", &[16], F32_TENSOR, 0);
    Gguf::from_bytes(raw.clone().data([0; 64]).bytes()).unwrap();
    assert_refused!(
        raw.data([0; 63]).bytes(),
        GgufError::OutsideFile { needed_bytes: 64, have_bytes: 63, .. },
        "'t'",
        "64",
        "63"
    );
}

#[test]
fn tensor_data_missing_altogether() {
    let raw = Raw::new().tensor("t", &[16], F32_TENSOR, 0);
    assert_refused!(raw.bytes(), GgufError::OutsideFile { have_bytes: 0, .. }, "'t'", "cut short");
}

#[test]
fn tensor_offset_that_overflows() {
    for offset in [u64::MAX - 31, 1 << 63, 1 << 40] {
        let raw = Raw::new().tensor("t", &[1], F32_TENSOR, offset).data([0; 64]);
        assert_refused!(raw.bytes(), GgufError::OutsideFile { .. }, "'t'", &offset.to_string());
    }
}

#[test]
fn tensors_that_overlap() {
    let raw = Raw::new()
        .tensor("late", &[8], F32_TENSOR, 64)
        .tensor("long", &[9], F32_TENSOR, 32)
        .tensor("early", &[8], F32_TENSOR, 0)
        .data([0; 96]);
    assert_refused!(raw.bytes(), GgufError::Overlap { .. }, "'late'", "'long'");
    let raw = Raw::new().tensor("a", &[8], F32_TENSOR, 0).tensor("b", &[8], F32_TENSOR, 0).data([0; 96]);
    assert_refused!(raw.bytes(), GgufError::Overlap { .. }, "'a'", "'b'");
}

#[test]
fn tensor_that_appears_twice() {
    let raw = Raw::new().tensor("t", &[8], F32_TENSOR, 0).tensor("t", &[8], F32_TENSOR, 32).data([0; 64]);
    assert_refused!(raw.bytes(), GgufError::DuplicateTensor { .. }, "'t'", "twice");
}

#[test]
fn tensor_name_that_is_empty_or_not_utf8() {
    let raw = Raw::new().tensor("", &[8], F32_TENSOR, 0).data([0; 32]);
    assert_refused!(raw.bytes(), GgufError::NameLength { found_bytes: 0, .. }, "name of tensor 0");
    let raw = Raw::new().tensor(b"\xf0", &[8], F32_TENSOR, 0).data([0; 32]);
    assert_refused!(raw.bytes(), GgufError::NotUtf8 { .. }, "name of tensor 0");
}

#[test]
fn hostile_names_stay_on_one_short_line() {
    let name = "new\nline\x1b[31m".repeat(1000);
    let raw = Raw::new().tensor(&name, &[8], 999, 0).data([0; 32]);
    let message = refused(raw.bytes(), &["new\\nline\\u{1b}[31m", "…"]).to_string();
    assert!(message.len() < 300, "{message}");
}

#[test]
fn path_that_is_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let error = Gguf::open(folder.path()).unwrap_err();
    assert!(matches!(error, GgufError::NotAFile { .. }), "{error:?}");
    let error = Gguf::open(folder.path().join("absent.gguf")).unwrap_err();
    assert!(matches!(error, GgufError::Open { .. }), "{error:?}");
    assert!(error.to_string().contains("absent.gguf"), "{error}");
}
