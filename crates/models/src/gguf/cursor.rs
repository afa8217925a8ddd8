//! Checked reading of the little-endian header fields.

use std::fmt;

use super::GgufError;
use super::error::shown;

/// What is being read, for messages.
#[derive(Debug, Clone, Copy)]
pub(super) enum What<'a> {
    Header,
    Metadata,
    TensorList,
    Key(u64),
    Value(&'a str),
    TensorName(u64),
    Tensor(&'a str),
}

impl fmt::Display for What<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => f.write_str("the header"),
            Self::Metadata => f.write_str("the metadata"),
            Self::TensorList => f.write_str("the tensor list"),
            Self::Key(index) => write!(f, "metadata key {index}"),
            Self::Value(key) => write!(f, "the value of key '{}'", shown(key)),
            Self::TensorName(index) => write!(f, "the name of tensor {index}"),
            Self::Tensor(name) => write!(f, "the description of tensor '{}'", shown(name)),
        }
    }
}

/// A place in a byte slice. No read goes past the end, whatever the bytes say.
#[derive(Debug, Clone)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    what: What<'a>,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], what: What<'a>) -> Self {
        Self { bytes, at: 0, what }
    }

    /// Sets what the next reads are about.
    pub(super) fn about(&mut self, what: What<'a>) {
        self.what = what;
    }

    /// Offset of the next byte.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `needed` bytes; `u64`, since the number may come from the file.
    pub(super) fn take(&mut self, needed: u64) -> Result<&'a [u8], GgufError> {
        let rest = &self.bytes[self.at..];
        match usize::try_from(needed).ok().and_then(|needed| rest.get(..needed)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => Err(GgufError::Truncated {
                what: self.what.to_string(),
                offset: self.at as u64,
                needed_bytes: needed,
                have_bytes: rest.len() as u64,
            }),
        }
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self) -> Result<u32, GgufError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, GgufError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Accepts a count of elements only if the remaining bytes can hold them.
    pub(super) fn check_count(&self, count: u64, element_bytes: u64) -> Result<usize, GgufError> {
        let have_bytes = self.remaining() as u64;
        match usize::try_from(count) {
            Ok(small) if count <= have_bytes / element_bytes => Ok(small),
            _ => Err(GgufError::OversizedCount { what: self.what.to_string(), count, element_bytes, have_bytes }),
        }
    }

    /// A string: its length as 8 bytes, then UTF-8.
    pub(super) fn string(&mut self) -> Result<&'a str, GgufError> {
        let len = self.u64()?;
        let offset = self.at as u64;
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes).map_err(|error| GgufError::NotUtf8 {
            what: self.what.to_string(),
            offset: offset + error.valid_up_to() as u64,
        })
    }

    /// A string of 1 to `max_bytes` bytes.
    pub(super) fn name(&mut self, max_bytes: u64) -> Result<&'a str, GgufError> {
        let name = self.string()?;
        check_name(name, max_bytes, self.what)?;
        Ok(name)
    }
}

/// Longest metadata key, as the format has it. Tensor names get the same limit: 64 bytes in the format, but some
/// converters go past it and nothing here depends on it.
pub(super) const MAX_NAME_BYTES: u64 = 65_535;

/// Accepts a name of 1 to `max_bytes` bytes.
pub(super) fn check_name(name: &str, max_bytes: u64, what: What<'_>) -> Result<(), GgufError> {
    let found_bytes = name.len() as u64;
    if found_bytes == 0 || found_bytes > max_bytes {
        return Err(GgufError::NameLength { what: what.to_string(), found_bytes, max_bytes });
    }
    Ok(())
}
