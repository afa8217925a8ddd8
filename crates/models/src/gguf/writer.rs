//! Writing GGUF files: small models for tests, converted or repacked ones for users.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::cursor::{MAX_NAME_BYTES, What, check_name};
use super::error::shown;
use super::parse::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC};
use super::split::{COUNT_KEY, NO_KEY, TENSORS_KEY, part_name};
use super::tensor::check_size;
use super::value::ValueType;
use super::{GgmlType, GgufError};

/// Builds a GGUF file. Entries and tensors are written in the order in which they were added.
///
/// Tensor data may be borrowed for `'a`; it is not copied before [`GgufWriter::write_to`].
#[derive(Debug)]
pub struct GgufWriter<'a> {
    version: u32,
    alignment: u64,
    /// Encoded metadata entries.
    entries: Vec<u8>,
    keys: HashSet<String>,
    tensors: Vec<TensorToWrite<'a>>,
    names: HashSet<String>,
}

#[derive(Debug)]
struct TensorToWrite<'a> {
    name: String,
    /// Innermost first, as files have them.
    dims: Vec<u64>,
    ggml_type: GgmlType,
    data: Cow<'a, [u8]>,
}

impl Default for GgufWriter<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> GgufWriter<'a> {
    /// An empty file of version 3 with the usual alignment of 32 bytes.
    pub fn new() -> Self {
        Self {
            version: 3,
            alignment: DEFAULT_ALIGNMENT,
            entries: Vec::new(),
            keys: HashSet::new(),
            tensors: Vec::new(),
            names: HashSet::new(),
        }
    }

    /// Writes version 2 instead of 3; the two differ in nothing but the number for little-endian files.
    ///
    /// # Errors
    /// [`GgufError::UnsupportedVersion`] for any other version.
    pub fn version(&mut self, version: u32) -> Result<&mut Self, GgufError> {
        if !(2..=3).contains(&version) {
            return Err(GgufError::UnsupportedVersion { found: version });
        }
        self.version = version;
        Ok(self)
    }

    /// Aligns tensor data to `alignment` bytes, and says so in `general.alignment`. Once at most.
    ///
    /// # Errors
    /// [`GgufError::InvalidAlignment`] if it is not a power of two; [`GgufError::DuplicateKey`] the second time.
    pub fn alignment(&mut self, alignment: u32) -> Result<&mut Self, GgufError> {
        if !alignment.is_power_of_two() {
            return Err(GgufError::InvalidAlignment { found: alignment.into() });
        }
        self.put_encoded(ALIGNMENT_KEY, &alignment)?;
        self.alignment = alignment.into();
        Ok(self)
    }

    /// Adds a metadata entry. The Rust type picks the stored type, so write numbers with a suffix: `2_u32`.
    ///
    /// # Errors
    /// [`GgufError::NameLength`] or [`GgufError::DuplicateKey`] for the key. `general.alignment` counts as taken: it is
    /// set by [`GgufWriter::alignment`].
    pub fn put<T: Encode>(&mut self, key: &str, value: T) -> Result<&mut Self, GgufError> {
        if key == ALIGNMENT_KEY {
            return Err(GgufError::DuplicateKey { key: key.to_owned() });
        }
        self.put_encoded(key, &value)
    }

    fn put_encoded<T: Encode>(&mut self, key: &str, value: &T) -> Result<&mut Self, GgufError> {
        check_name(key, MAX_NAME_BYTES, What::Key(self.keys.len() as u64))?;
        if !self.keys.insert(key.to_owned()) {
            return Err(GgufError::DuplicateKey { key: shown(key) });
        }
        key.encode(&mut self.entries);
        self.entries.extend(T::TYPE.id().to_le_bytes());
        value.encode(&mut self.entries);
        Ok(self)
    }

    /// Adds a tensor. `shape`: 1 to 4 sizes, outermost first, `[out_features, in_features]`; `data`: row-major, in whole
    /// quant blocks, little-endian.
    ///
    /// # Errors
    /// [`GgufError::DataLength`] if shape and type need another number of bytes; [`GgufError::DimensionCount`],
    /// [`GgufError::EmptyDimension`], [`GgufError::PartialBlock`], [`GgufError::TensorTooLarge`] for the shape;
    /// [`GgufError::NameLength`], [`GgufError::DuplicateTensor`] for the name.
    pub fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        ggml_type: GgmlType,
        data: impl Into<Cow<'a, [u8]>>,
    ) -> Result<&mut Self, GgufError> {
        let data = data.into();
        check_name(name, MAX_NAME_BYTES, What::TensorName(self.tensors.len() as u64))?;
        let dims: Vec<u64> = shape.iter().rev().map(|&dim| dim as u64).collect();
        let (_, expected_bytes) = check_size(name, ggml_type, &dims)?;
        let found_bytes = data.len() as u64;
        if found_bytes != expected_bytes {
            return Err(GgufError::DataLength { name: shown(name), expected_bytes, found_bytes });
        }
        if !self.names.insert(name.to_owned()) {
            return Err(GgufError::DuplicateTensor { name: shown(name) });
        }
        self.tensors.push(TensorToWrite { name: name.to_owned(), dims, ggml_type, data });
        Ok(self)
    }

    /// Writes the file.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_to(&self, out: impl Write) -> io::Result<()> {
        self.write_part(out, &self.entries, self.keys.len(), &self.tensors)
    }

    /// Writes the model as a split one, `tensors_per_part` (0 counts as 1) tensors to a file: `name-00001-of-0000N.gguf` and so
    /// on in `folder`. The metadata is in the first file. Returns the paths.
    ///
    /// # Errors
    /// Those of the files; [`io::ErrorKind::InvalidInput`] if the model needs more than 65,535 parts or one of the keys
    /// `split.no`, `split.count` and `split.tensors.count` was added to it.
    pub fn write_split(&self, folder: &Path, name: &str, tensors_per_part: usize) -> io::Result<Vec<PathBuf>> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let pieces: Vec<&[TensorToWrite<'_>]> = self.tensors.chunks(tensors_per_part.max(1)).collect();
        // A model without tensors is one part.
        let count = u16::try_from(pieces.len().max(1))
            .map_err(|_| invalid(format!("{} parts, at most 65535 are possible", pieces.len())))?;
        let tensor_count = i32::try_from(self.tensors.len()).map_err(|error| invalid(error.to_string()))?;
        let mut paths = Vec::new();
        for no in 0..count {
            let mut head = Self::new();
            head.version = self.version;
            if no == 0 {
                (head.entries, head.keys) = (self.entries.clone(), self.keys.clone());
            } else if let Ok(alignment) = u32::try_from(self.alignment)
                && self.keys.contains(ALIGNMENT_KEY)
            {
                head.alignment(alignment).map_err(|error| invalid(error.to_string()))?;
            }
            head.put_split(no, count, tensor_count).map_err(|error| invalid(error.to_string()))?;
            let path = folder.join(part_name(name, u64::from(no) + 1, count.into()));
            let file = BufWriter::new(File::create(&path)?);
            let tensors = pieces.get(usize::from(no)).copied().unwrap_or_default();
            self.write_part(file, &head.entries, head.keys.len(), tensors)?;
            paths.push(path);
        }
        Ok(paths)
    }

    fn put_split(&mut self, no: u16, count: u16, tensor_count: i32) -> Result<&mut Self, GgufError> {
        self.put(NO_KEY, no)?.put(COUNT_KEY, count)?.put(TENSORS_KEY, tensor_count)
    }

    fn write_part(
        &self,
        mut out: impl Write,
        entries: &[u8],
        entry_count: usize,
        tensors: &[TensorToWrite<'_>],
    ) -> io::Result<()> {
        let header = self.header(entries, entry_count, tensors);
        out.write_all(&header)?;
        // Every tensor is padded, also the last one, as llama.cpp does.
        let mut written = header.len() as u64;
        written = self.pad(&mut out, written)?;
        for tensor in tensors {
            out.write_all(&tensor.data)?;
            written = self.pad(&mut out, written + tensor.data.len() as u64)?;
        }
        out.flush()
    }

    /// The file as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes).expect("writing to a Vec does not fail");
        bytes
    }

    fn header(&self, entries: &[u8], entry_count: usize, tensors: &[TensorToWrite<'_>]) -> Vec<u8> {
        let mut header = Vec::new();
        header.extend(MAGIC);
        header.extend(self.version.to_le_bytes());
        header.extend((tensors.len() as u64).to_le_bytes());
        header.extend((entry_count as u64).to_le_bytes());
        header.extend(entries);
        let mut offset = 0_u64;
        for tensor in tensors {
            tensor.name.encode(&mut header);
            let dimensions = u32::try_from(tensor.dims.len()).expect("a tensor has at most 4 dimensions");
            header.extend(dimensions.to_le_bytes());
            for dim in &tensor.dims {
                header.extend(dim.to_le_bytes());
            }
            header.extend(tensor.ggml_type.id().to_le_bytes());
            header.extend(offset.to_le_bytes());
            offset = (offset + tensor.data.len() as u64).next_multiple_of(self.alignment);
        }
        header
    }

    /// Writes zeros up to the alignment and returns the new length.
    fn pad(&self, out: &mut impl Write, written: u64) -> io::Result<u64> {
        let end = written.next_multiple_of(self.alignment);
        io::copy(&mut io::Read::take(io::repeat(0), end - written), out)?;
        Ok(end)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that is stored as metadata: numbers, `bool`, text, and slices, arrays and `Vec`s of these.
pub trait Encode: sealed::Sealed {
    /// The stored type.
    const TYPE: ValueType;

    /// Appends the value as the format stores it.
    fn encode(&self, out: &mut Vec<u8>);
}

macro_rules! encode_numbers {
    ($($number:ty => $variant:ident,)*) => {$(
        impl sealed::Sealed for $number {}
        impl Encode for $number {
            const TYPE: ValueType = ValueType::$variant;

            fn encode(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }
        }
    )*};
}

encode_numbers! {
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64, f32 => F32, f64 => F64,
}

impl sealed::Sealed for bool {}
impl Encode for bool {
    const TYPE: ValueType = ValueType::Bool;

    fn encode(&self, out: &mut Vec<u8>) {
        out.push((*self).into());
    }
}

impl sealed::Sealed for str {}
impl Encode for str {
    const TYPE: ValueType = ValueType::String;

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend((self.len() as u64).to_le_bytes());
        out.extend(self.as_bytes());
    }
}

impl sealed::Sealed for String {}
impl Encode for String {
    const TYPE: ValueType = ValueType::String;

    fn encode(&self, out: &mut Vec<u8>) {
        self.as_str().encode(out);
    }
}

impl<T: Encode> sealed::Sealed for [T] {}
impl<T: Encode> Encode for [T] {
    const TYPE: ValueType = ValueType::Array;

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(T::TYPE.id().to_le_bytes());
        out.extend((self.len() as u64).to_le_bytes());
        for element in self {
            element.encode(out);
        }
    }
}

impl<T: Encode, const N: usize> sealed::Sealed for [T; N] {}
impl<T: Encode, const N: usize> Encode for [T; N] {
    const TYPE: ValueType = ValueType::Array;

    fn encode(&self, out: &mut Vec<u8>) {
        self.as_slice().encode(out);
    }
}

impl<T: Encode> sealed::Sealed for Vec<T> {}
impl<T: Encode> Encode for Vec<T> {
    const TYPE: ValueType = ValueType::Array;

    fn encode(&self, out: &mut Vec<u8>) {
        self.as_slice().encode(out);
    }
}

impl<T: Encode + ?Sized> sealed::Sealed for &T {}
impl<T: Encode + ?Sized> Encode for &T {
    const TYPE: ValueType = T::TYPE;

    fn encode(&self, out: &mut Vec<u8>) {
        (**self).encode(out);
    }
}
