//! From the bytes of one file to an index of what is where, with everything checked.
//!
//! The index keeps places in the file instead of copies. It grows entry by entry, each of which has taken its bytes of
//! the file, so that a lying count cannot make it allocate.

use std::ops::Range;

use super::cursor::{Cursor, MAX_NAME_BYTES, What};
use super::error::shown;
use super::tensor::{MAX_DIMENSIONS, Shape, check_size};
use super::value::{Array, Value, ValueType};
use super::{GgmlType, GgufError};

pub(super) const MAGIC: [u8; 4] = *b"GGUF";
pub(super) const ALIGNMENT_KEY: &str = "general.alignment";
pub(super) const DEFAULT_ALIGNMENT: u64 = 32;

/// Key length, one byte of key, type, one byte of value.
const MIN_ENTRY_BYTES: u64 = 8 + 1 + 4 + 1;
/// Name length, one byte of name, dimension count, one dimension, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// What a checked file holds and where.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) version: u32,
    pub(super) alignment: u64,
    /// In file order.
    pub(super) entries: Vec<Entry>,
    /// Places in `entries`, by ascending key.
    pub(super) entries_by_key: Vec<usize>,
    /// In file order.
    pub(super) tensors: Vec<Tensor>,
    /// Places in `tensors`, by ascending name.
    pub(super) tensors_by_name: Vec<usize>,
}

#[derive(Debug)]
pub(super) struct Entry {
    key: Range<usize>,
    value: StoredValue,
}

/// A value without borrows: scalars as they are, the rest by their place.
#[derive(Debug)]
enum StoredValue {
    Scalar(Value<'static>),
    String(Range<usize>),
    Array { element_type: ValueType, len: usize, bytes: Range<usize> },
}

impl Entry {
    pub(super) fn key<'a>(&self, file: &'a [u8]) -> &'a str {
        text(file, &self.key)
    }

    pub(super) fn value<'a>(&self, file: &'a [u8]) -> Value<'a> {
        match &self.value {
            StoredValue::Scalar(value) => *value,
            StoredValue::String(place) => Value::String(text(file, place)),
            StoredValue::Array { element_type, len, bytes } => {
                Value::Array(Array::from_checked(*element_type, *len, &file[bytes.clone()]))
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Tensor {
    name: Range<usize>,
    pub(super) shape: Shape,
    pub(super) ggml_type: GgmlType,
    /// Place of its file among the parts of the model; the places of name and data are in that file.
    pub(super) part: u16,
    pub(super) data: Range<usize>,
}

impl Tensor {
    /// The tensor of another part than the first.
    pub(super) fn in_part(self, part: u16) -> Self {
        Self { part, ..self }
    }

    pub(super) fn name<'a>(&self, file: &'a [u8]) -> &'a str {
        text(file, &self.name)
    }
}

/// Text that was found to be UTF-8 when the file was opened.
fn text<'a>(file: &'a [u8], place: &Range<usize>) -> &'a str {
    std::str::from_utf8(&file[place.clone()])
        .expect("the text was checked when the file was opened, and an open file must not change")
}

impl Index {
    /// Reads and checks the whole header.
    pub(super) fn parse(file: &[u8]) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(file, What::Header);
        let version = read_version(&mut cursor)?;
        let tensor_count = cursor.u64()?;
        let entry_count = cursor.u64()?;
        cursor.about(What::TensorList);
        cursor.check_count(tensor_count, MIN_TENSOR_BYTES)?;
        cursor.about(What::Metadata);
        cursor.check_count(entry_count, MIN_ENTRY_BYTES)?;

        let mut entries = Vec::new();
        for index in 0..entry_count {
            entries.push(read_entry(&mut cursor, index)?);
        }
        let entries_by_key = sorted_by_name(&entries, |entry: &Entry| entry.key(file))
            .map_err(|key| GgufError::DuplicateKey { key: shown(key) })?;
        let find = |key: &str| {
            let place = entries_by_key.binary_search_by(|&at| entries[at].key(file).cmp(key)).ok()?;
            Some(entries[entries_by_key[place]].value(file))
        };
        let alignment = check_alignment(find(ALIGNMENT_KEY))?;

        let mut described = Vec::new();
        for index in 0..tensor_count {
            described.push(read_tensor(&mut cursor, index)?);
        }
        let tensors = place_tensors(file, described, cursor.position() as u64, alignment)?;
        let tensors_by_name = sorted_by_name(&tensors, |tensor: &Tensor| tensor.name(file))
            .map_err(|name| GgufError::DuplicateTensor { name: shown(name) })?;
        Ok(Self { version, alignment, entries, entries_by_key, tensors, tensors_by_name })
    }

    /// The value of a key of `file`, the file that was parsed.
    pub(super) fn value<'a>(&self, file: &'a [u8], key: &str) -> Option<Value<'a>> {
        let place = self.entries_by_key.binary_search_by(|&at| self.entries[at].key(file).cmp(key)).ok()?;
        Some(self.entries[self.entries_by_key[place]].value(file))
    }
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    let magic: [u8; 4] = cursor.array()?;
    let reversed = [MAGIC[3], MAGIC[2], MAGIC[1], MAGIC[0]];
    if magic == reversed {
        return Err(GgufError::BigEndian);
    }
    if magic != MAGIC {
        return Err(GgufError::WrongMagic { found: magic });
    }
    match cursor.u32()? {
        version @ (2 | 3) => Ok(version),
        // Writers keep the magic and swap the rest, so that a small version number lands in the upper half.
        version if version != 0 && version & 0xffff == 0 => Err(GgufError::BigEndian),
        found => Err(GgufError::UnsupportedVersion { found }),
    }
}

/// Reads a name and gives it with its place in the file.
fn read_name<'a>(cursor: &mut Cursor<'a>) -> Result<(&'a str, Range<usize>), GgufError> {
    let name = cursor.name(MAX_NAME_BYTES)?;
    let end = cursor.position();
    Ok((name, end - name.len()..end))
}

fn read_entry(cursor: &mut Cursor<'_>, index: u64) -> Result<Entry, GgufError> {
    cursor.about(What::Key(index));
    let (key, key_place) = read_name(cursor)?;
    cursor.about(What::Value(key));
    let id = cursor.u32()?;
    let ty = ValueType::from_id(id).ok_or_else(|| GgufError::UnknownValueType { key: shown(key), id })?;
    let value = Value::read(cursor, ty, key, 0)?;
    let end = cursor.position();
    let value = match value {
        Value::U8(v) => StoredValue::Scalar(Value::U8(v)),
        Value::I8(v) => StoredValue::Scalar(Value::I8(v)),
        Value::U16(v) => StoredValue::Scalar(Value::U16(v)),
        Value::I16(v) => StoredValue::Scalar(Value::I16(v)),
        Value::U32(v) => StoredValue::Scalar(Value::U32(v)),
        Value::I32(v) => StoredValue::Scalar(Value::I32(v)),
        Value::U64(v) => StoredValue::Scalar(Value::U64(v)),
        Value::I64(v) => StoredValue::Scalar(Value::I64(v)),
        Value::F32(v) => StoredValue::Scalar(Value::F32(v)),
        Value::F64(v) => StoredValue::Scalar(Value::F64(v)),
        Value::Bool(v) => StoredValue::Scalar(Value::Bool(v)),
        Value::String(text) => StoredValue::String(end - text.len()..end),
        Value::Array(array) => StoredValue::Array {
            element_type: array.element_type(),
            len: array.len(),
            bytes: end - array.bytes().len()..end,
        },
    };
    Ok(Entry { key: key_place, value })
}

fn check_alignment(value: Option<Value<'_>>) -> Result<u64, GgufError> {
    let Some(value) = value else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    let found = value.as_integer().ok_or_else(|| GgufError::WrongMetadataType {
        key: ALIGNMENT_KEY.to_owned(),
        expected: "an integer",
        found: value.described(),
    })?;
    match u64::try_from(found) {
        Ok(alignment) if alignment.is_power_of_two() => Ok(alignment),
        _ => Err(GgufError::InvalidAlignment { found }),
    }
}

/// A tensor before its data is placed.
struct Described<'a> {
    name: &'a str,
    name_place: Range<usize>,
    shape: Shape,
    ggml_type: GgmlType,
    /// From the start of the tensor data.
    offset: u64,
    size_bytes: u64,
}

fn read_tensor<'a>(cursor: &mut Cursor<'a>, index: u64) -> Result<Described<'a>, GgufError> {
    cursor.about(What::TensorName(index));
    let (name, name_place) = read_name(cursor)?;
    cursor.about(What::Tensor(name));
    let found = cursor.u32()?;
    let dimensions = match usize::try_from(found) {
        Ok(dimensions @ 1..=MAX_DIMENSIONS) => dimensions,
        _ => {
            return Err(GgufError::DimensionCount { name: shown(name), found, max: MAX_DIMENSIONS });
        }
    };
    let mut dims = [0_u64; MAX_DIMENSIONS];
    for dim in &mut dims[..dimensions] {
        *dim = cursor.u64()?;
    }
    let id = cursor.u32()?;
    let ggml_type = GgmlType::from_id(id).ok_or_else(|| GgufError::UnknownGgmlType { name: shown(name), id })?;
    let offset = cursor.u64()?;
    let (shape, size_bytes) = check_size(name, ggml_type, &dims[..dimensions])?;
    Ok(Described { name, name_place, shape, ggml_type, offset, size_bytes })
}

/// Finds the bytes of each tensor. `header_bytes`: where the tensor list ends.
fn place_tensors(
    file: &[u8],
    described: Vec<Described<'_>>,
    header_bytes: u64,
    alignment: u64,
) -> Result<Vec<Tensor>, GgufError> {
    let file_bytes = file.len() as u64;
    // Without tensors the padding before the data may be missing, and the alignment may be larger than any file.
    let data_start = header_bytes.checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
    let data_bytes = file_bytes.saturating_sub(data_start);

    let mut tensors = Vec::new();
    for tensor in &described {
        let (offset, needed_bytes) = (tensor.offset, tensor.size_bytes);
        if !offset.is_multiple_of(alignment) {
            return Err(GgufError::Misaligned { name: shown(tensor.name), offset, alignment });
        }
        let data = || {
            let start = data_start.checked_add(offset)?;
            let end = start.checked_add(needed_bytes).filter(|&end| end <= file_bytes)?;
            Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
        };
        let data = data().ok_or_else(|| GgufError::OutsideFile {
            name: shown(tensor.name),
            offset,
            needed_bytes,
            have_bytes: data_bytes,
        })?;
        let (shape, ggml_type) = (tensor.shape, tensor.ggml_type);
        tensors.push(Tensor { name: tensor.name_place.clone(), shape, ggml_type, part: 0, data });
    }

    // No tensor is empty, so that two overlap exactly if two neighbours by start do.
    let mut by_start: Vec<usize> = (0..tensors.len()).collect();
    by_start.sort_unstable_by_key(|&at| tensors[at].data.start);
    for pair in by_start.windows(2) {
        if tensors[pair[0]].data.end > tensors[pair[1]].data.start {
            let (first, second) = (described[pair[0]].name, described[pair[1]].name);
            return Err(GgufError::Overlap { first: shown(first), second: shown(second) });
        }
    }
    Ok(tensors)
}

/// The places in `items` by ascending name, or a name that two of them have.
pub(super) fn sorted_by_name<'a, T>(items: &[T], name: impl Fn(&T) -> &'a str) -> Result<Vec<usize>, &'a str> {
    let mut places: Vec<usize> = (0..items.len()).collect();
    places.sort_unstable_by_key(|&at| name(&items[at]));
    match places.windows(2).find(|pair| name(&items[pair[0]]) == name(&items[pair[1]])) {
        Some(pair) => Err(name(&items[pair[0]])),
        None => Ok(places),
    }
}
