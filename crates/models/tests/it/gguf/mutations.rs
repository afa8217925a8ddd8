//! Damaged and random files: whatever the bytes, opening gives a file or an error, and nothing reads outside the file or
//! allocates out of proportion to it.

use plimsoll_models::gguf::{GgmlType, Gguf, GgufError, GgufWriter, Value};
use proptest::prelude::*;

/// A change to the bytes of a file, at a place given as a share of its length.
#[derive(Debug, Clone)]
enum Change {
    Flip {
        at: f64,
        bit: u8,
    },
    Set {
        at: f64,
        to: u8,
    },
    Insert {
        at: f64,
        bytes: Vec<u8>,
    },
    Remove {
        at: f64,
        len: usize,
    },
    Cut {
        at: f64,
    },
    /// Eight bytes that a count, length or offset might be.
    Number {
        at: f64,
        to: u64,
    },
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a small length")]
        let place = |at: f64| (at * bytes.len() as f64) as usize;
        match self {
            Self::Flip { at, bit } => {
                let at = place(*at);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << bit;
                }
            }
            Self::Set { at, to } => {
                let at = place(*at);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = *to;
                }
            }
            Self::Insert { at, bytes: new } => {
                let at = place(*at);
                bytes.splice(at..at, new.iter().copied());
            }
            Self::Remove { at, len } => {
                let at = place(*at);
                bytes.drain(at..bytes.len().min(at + len));
            }
            Self::Cut { at } => bytes.truncate(place(*at)),
            Self::Number { at, to } => {
                let at = place(*at);
                if let Some(bytes) = bytes.get_mut(at..at + 8) {
                    bytes.copy_from_slice(&to.to_le_bytes());
                }
            }
        }
    }
}

fn change() -> impl Strategy<Value = Change> {
    let at = 0.0..1.0;
    let number = prop_oneof![
        any::<u64>(),
        (0_u32..64).prop_map(|power| 1 << power),
        (0_u64..64).prop_map(|less| u64::MAX - less),
        0_u64..300,
    ];
    prop_oneof![
        (at.clone(), 0_u8..8).prop_map(|(at, bit)| Change::Flip { at, bit }),
        (at.clone(), any::<u8>()).prop_map(|(at, to)| Change::Set { at, to }),
        (at.clone(), prop::collection::vec(any::<u8>(), 1..9)).prop_map(|(at, bytes)| Change::Insert { at, bytes }),
        (at.clone(), 1_usize..9).prop_map(|(at, len)| Change::Remove { at, len }),
        at.clone().prop_map(|at| Change::Cut { at }),
        (at, number).prop_map(|(at, to)| Change::Number { at, to }),
    ]
}

fn valid_file() -> Vec<u8> {
    let mut writer = GgufWriter::new();
    writer.alignment(32).unwrap();
    writer.put("general.architecture", "llama").unwrap();
    writer.put("llama.block_count", 1_u32).unwrap();
    writer.put("flag", true).unwrap();
    writer.put("tokens", ["<s>", "hello", "é"]).unwrap();
    writer.put("types", [1_i32, 2, 3]).unwrap();
    writer.put("flags", [true, false]).unwrap();
    writer.put("nested", vec![vec![1.0_f32], vec![]]).unwrap();
    writer.tensor("token_embd.weight", &[2, 32], GgmlType::Q8_0, vec![1; 68]).unwrap();
    writer.tensor("blk.0.attn_q.weight", &[1, 256], GgmlType::Q4K, vec![2; 144]).unwrap();
    writer.tensor("output_norm.weight", &[4], GgmlType::F32, vec![3; 16]).unwrap();
    writer.to_bytes()
}

/// Walks a value to its last element; gives the number of elements.
fn walk(value: Value<'_>) -> usize {
    match value {
        Value::Array(array) => array.iter().map(walk).sum::<usize>() + 1,
        Value::String(text) => text.chars().count() + 1,
        _ => 1,
    }
}

/// Opens `bytes` and, if that works, asks for all that is in them.
fn open_and_use(bytes: &[u8]) -> Result<Gguf, GgufError> {
    let file = Gguf::from_bytes(bytes).inspect_err(|error| {
        let message = error.to_string();
        assert!(message.lines().count() == 1 && message.len() < 1000, "{message}");
    })?;
    let elements: usize = file.metadata().map(|(_, value)| walk(value)).sum();
    assert!(elements <= 2 * bytes.len(), "{elements} metadata elements in {} bytes", bytes.len());
    for (key, value) in file.metadata() {
        assert_eq!(file.value(key).map(walk), Some(walk(value)), "{key}");
        let _ = (file.get_u32(key), file.get_f32(key), file.get_str(key), file.get_bool(key));
        let _ = file.get_str_array(key).map(|texts| texts.map(str::len).sum::<usize>());
        let _ = file.get_i32_array(key).map(|numbers| numbers.count());
        let _ = file.get_f32_array(key).map(|numbers| numbers.count());
    }
    let mut data_bytes = 0;
    for tensor in file.tensors() {
        assert_eq!(file.tensor(tensor.name())?.data().as_ptr(), tensor.data().as_ptr());
        assert_eq!(tensor.ggml_type().size_bytes(tensor.elements() as u64), Some(tensor.data().len() as u64));
        file.advise_done(&tensor)?;
        data_bytes += tensor.data().len();
    }
    assert!(data_bytes <= bytes.len(), "tensors share bytes");
    assert!(file.index_bytes() <= 1024 + 16 * bytes.len() as u64, "{} bytes of index", file.index_bytes());
    Ok(file)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_file_is_read_or_refused(changes in prop::collection::vec(change(), 1..5)) {
        let mut bytes = valid_file();
        changes.iter().for_each(|change| change.apply(&mut bytes));
        let _ = open_and_use(&bytes);
    }

    #[test]
    fn random_bytes_after_the_magic_are_read_or_refused(
        counts in (0_u64..4, 0_u64..4),
        body in prop::collection::vec(prop_oneof![3 => 0_u8..12, 1 => any::<u8>()], 0..200),
    ) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(counts.0.to_le_bytes());
        bytes.extend(counts.1.to_le_bytes());
        bytes.extend(body);
        let _ = open_and_use(&bytes);
    }

    #[test]
    fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        prop_assume!(!bytes.starts_with(b"GGUF"));
        prop_assert!(Gguf::from_bytes(bytes).is_err());
    }
}

#[test]
fn every_flipped_bit_of_the_header_is_read_or_refused() {
    let whole = valid_file();
    open_and_use(&whole).unwrap();
    let mut refused = 0;
    for at in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[at / 8] ^= 1 << (at % 8);
        refused += usize::from(open_and_use(&bytes).is_err());
    }
    // Counts, lengths, types, offsets: a good part of the header cannot be changed unseen.
    assert!(refused > whole.len(), "{refused} of {} flips refused", whole.len() * 8);
}

#[test]
fn every_cut_is_refused() {
    // The data of the last tensor ends before its padding.
    let whole = valid_file();
    let data_end = whole.len() - 16;
    open_and_use(&whole[..data_end]).unwrap();
    for len in 0..data_end {
        assert!(open_and_use(&whole[..len]).is_err(), "cut at {len} was accepted");
    }
}
