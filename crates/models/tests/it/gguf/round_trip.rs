//! What is written is read back.

use std::collections::BTreeMap;

use plimsoll_models::gguf::{GgmlType, Gguf, GgufWriter, Value};
use proptest::prelude::*;

/// A metadata value of some stored type.
#[derive(Debug, Clone)]
enum Item {
    U8(u8),
    I64(i64),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    Numbers(Vec<i32>),
    Nested(Vec<Vec<u16>>),
}

impl Item {
    fn put(&self, writer: &mut GgufWriter<'_>, key: &str) {
        match self {
            Self::U8(v) => writer.put(key, *v),
            Self::I64(v) => writer.put(key, *v),
            Self::F32(v) => writer.put(key, *v),
            Self::Bool(v) => writer.put(key, *v),
            Self::Text(v) => writer.put(key, v),
            Self::Texts(v) => writer.put(key, v),
            Self::Numbers(v) => writer.put(key, v),
            Self::Nested(v) => writer.put(key, v),
        }
        .map(drop)
        .unwrap();
    }

    fn equals(&self, value: Value<'_>) -> bool {
        match (self, value) {
            (Self::U8(a), Value::U8(b)) => *a == b,
            (Self::I64(a), Value::I64(b)) => *a == b,
            (Self::F32(a), Value::F32(b)) => a.to_bits() == b.to_bits(),
            (Self::Bool(a), Value::Bool(b)) => *a == b,
            (Self::Text(a), Value::String(b)) => a == b,
            (Self::Texts(a), Value::Array(b)) => b.strings().is_some_and(|b| a.iter().eq(b)),
            (Self::Numbers(a), Value::Array(b)) => a.iter().map(|&v| Value::I32(v)).eq(b.iter()),
            (Self::Nested(a), Value::Array(b)) => {
                a.len() == b.len()
                    && a.iter().zip(&b).all(|(row, value)| match value {
                        Value::Array(b) => row.iter().map(|&v| Value::U16(v)).eq(b.iter()),
                        _ => false,
                    })
            }
            _ => false,
        }
    }
}

fn item() -> impl Strategy<Value = Item> {
    prop_oneof![
        any::<u8>().prop_map(Item::U8),
        any::<i64>().prop_map(Item::I64),
        any::<u32>().prop_map(|bits| Item::F32(f32::from_bits(bits))),
        any::<bool>().prop_map(Item::Bool),
        ".{0,12}".prop_map(Item::Text),
        prop::collection::vec(".{0,4}", 0..6).prop_map(Item::Texts),
        prop::collection::vec(any::<i32>(), 0..6).prop_map(Item::Numbers),
        prop::collection::vec(prop::collection::vec(any::<u16>(), 0..4), 0..4).prop_map(Item::Nested),
    ]
}

/// Any type, and a shape of at most 4 blocks a row and 1 to 4 dimensions.
fn tensor() -> impl Strategy<Value = (GgmlType, Vec<usize>, u8)> {
    let shape = (prop::collection::vec(1_usize..4, 0..4), 1_usize..=4);
    (prop::sample::select(GgmlType::ALL), shape, any::<u8>()).prop_map(|(ty, (mut shape, blocks), fill)| {
        shape.push(blocks * ty.block_elements());
        (ty, shape, fill)
    })
}

proptest! {
    #[test]
    fn files_read_back_as_written(
        version in 2_u32..=3,
        alignment in prop::option::of(0_u32..8),
        items in prop::collection::btree_map("[a-z_.]{1,20}", item(), 0..8),
        tensors in prop::collection::btree_map("[a-z0-9_.]{1,20}", tensor(), 0..6),
    ) {
        let mut writer = GgufWriter::new();
        writer.version(version).unwrap();
        if let Some(power) = alignment {
            writer.alignment(1 << power).unwrap();
        }
        for (key, item) in &items {
            item.put(&mut writer, key);
        }
        let data: BTreeMap<&str, Vec<u8>> = tensors
            .iter()
            .map(|(name, (ty, shape, fill))| {
                let elements = shape.iter().product::<usize>() as u64;
                (name.as_str(), vec![*fill; usize::try_from(ty.size_bytes(elements).unwrap()).unwrap()])
            })
            .collect();
        for (name, (ty, shape, _)) in &tensors {
            writer.tensor(name, shape, *ty, &data[name.as_str()]).unwrap();
        }

        let file = Gguf::from_bytes(writer.to_bytes()).unwrap();
        prop_assert_eq!(file.version(), version);
        prop_assert_eq!(file.alignment(), alignment.map_or(32, |power| 1 << power));
        prop_assert_eq!(file.metadata().len(), items.len() + usize::from(alignment.is_some()));
        for (key, item) in &items {
            let value = file.value(key).unwrap();
            prop_assert!(item.equals(value), "{}: wrote {:?}, read {:?}", key, item, value);
        }
        prop_assert!(file.tensors().map(|t| t.name()).eq(tensors.keys()));
        for (name, (ty, shape, _)) in &tensors {
            let tensor = file.tensor(name).unwrap().expect_shape(shape).unwrap().expect_type(&[*ty]).unwrap();
            prop_assert_eq!(tensor.data(), &data[name.as_str()]);
        }
    }
}

#[test]
fn a_mapped_file_reads_like_its_bytes() {
    let mut writer = GgufWriter::new();
    writer.alignment(4096).unwrap();
    writer.put("tokens", ["a", "b"]).unwrap();
    writer.tensor("t", &[3, 64], GgmlType::Q4_1, (0..120).collect::<Vec<u8>>()).unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writer.write_to(&mut file).unwrap();

    let mapped = Gguf::open(file.path()).unwrap();
    mapped.advise_sequential().unwrap();
    let bytes = std::fs::read(file.path()).unwrap();
    assert_eq!(bytes, writer.to_bytes());
    assert_eq!(mapped.file_bytes(), bytes.len() as u64);
    let tensor = mapped.tensor("t").unwrap();
    assert_eq!(tensor.data().as_ptr().addr() % 4096, 0);
    assert!(tensor.data().iter().copied().eq(0..120));
    // Given back, the pages come again from the file.
    mapped.advise_done(&tensor).unwrap();
    assert!(tensor.data().iter().copied().eq(0..120));
}

#[test]
fn an_empty_model_is_a_file() {
    let file = Gguf::from_bytes(GgufWriter::new().to_bytes()).unwrap();
    assert_eq!((file.metadata().len(), file.tensors().len()), (0, 0));
}
