//! Metadata values, as views of the file's bytes.

use std::fmt;
use std::iter::FusedIterator;

use super::GgufError;
use super::cursor::{Cursor, What};
use super::error::shown;

/// Arrays in arrays deeper than this are refused. Known files use one level.
pub(super) const MAX_ARRAY_DEPTH: usize = 4;

/// Type of a metadata value; the discriminants are the ids of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are the Rust types")]
#[non_exhaustive]
#[repr(u32)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type of an id; `None` for ids outside the format.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// The id that files store.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// The name in messages, such as `u32` or `string`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// Bytes of one stored value; for strings and arrays, of an empty one.
    const fn min_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 4 + 8,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A metadata value. Strings and arrays are slices of the file.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(missing_docs, reason = "the names are the Rust types")]
#[non_exhaustive]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(&'a str),
    Array(Array<'a>),
}

impl<'a> Value<'a> {
    /// Reads and checks one value of type `ty` of the entry `key`. `depth`: arrays around it.
    pub(super) fn read(cursor: &mut Cursor<'a>, ty: ValueType, key: &str, depth: usize) -> Result<Self, GgufError> {
        Ok(match ty {
            ValueType::U8 => Self::U8(u8::from_le_bytes(cursor.array()?)),
            ValueType::I8 => Self::I8(i8::from_le_bytes(cursor.array()?)),
            ValueType::U16 => Self::U16(u16::from_le_bytes(cursor.array()?)),
            ValueType::I16 => Self::I16(i16::from_le_bytes(cursor.array()?)),
            ValueType::U32 => Self::U32(cursor.u32()?),
            ValueType::I32 => Self::I32(i32::from_le_bytes(cursor.array()?)),
            ValueType::U64 => Self::U64(cursor.u64()?),
            ValueType::I64 => Self::I64(i64::from_le_bytes(cursor.array()?)),
            ValueType::F32 => Self::F32(f32::from_le_bytes(cursor.array()?)),
            ValueType::F64 => Self::F64(f64::from_le_bytes(cursor.array()?)),
            ValueType::Bool => match cursor.array()? {
                [0] => Self::Bool(false),
                [1] => Self::Bool(true),
                [found] => {
                    return Err(GgufError::InvalidBool { key: shown(key), found });
                }
            },
            ValueType::String => Self::String(cursor.string()?),
            ValueType::Array => Self::Array(Array::read(cursor, key, depth)?),
        })
    }

    /// Type of the value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F32(_) => ValueType::F32,
            Self::F64(_) => ValueType::F64,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
        }
    }

    /// The value of any integer type; `None` for other types.
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// Type in messages: `u32`, or `an array of string`.
    pub(super) fn described(&self) -> String {
        match self {
            Self::Array(array) => format!("an array of {}", array.element_type),
            other => other.value_type().name().to_owned(),
        }
    }
}

/// An array of metadata values of one type, still encoded as in the file.
#[derive(Clone, Copy, PartialEq)]
pub struct Array<'a> {
    element_type: ValueType,
    len: usize,
    /// The elements, checked by [`Array::read`].
    bytes: &'a [u8],
    depth: usize,
}

impl<'a> Array<'a> {
    /// Reads an array and checks each of its elements, without keeping any.
    fn read(cursor: &mut Cursor<'a>, key: &str, depth: usize) -> Result<Self, GgufError> {
        if depth >= MAX_ARRAY_DEPTH {
            return Err(GgufError::NestedTooDeep { key: shown(key), max_depth: MAX_ARRAY_DEPTH });
        }
        let id = cursor.u32()?;
        let element_type = ValueType::from_id(id).ok_or_else(|| GgufError::UnknownValueType { key: shown(key), id })?;
        let count = cursor.u64()?;
        let len = cursor.check_count(count, element_type.min_bytes())?;
        let mut elements = cursor.clone();
        match element_type {
            ValueType::Bool | ValueType::String | ValueType::Array => {
                for _ in 0..len {
                    Value::read(&mut elements, element_type, key, depth + 1)?;
                }
            }
            // Every bit pattern is a number, and the count was checked: no need to look at each.
            _ => {
                elements.take(element_type.min_bytes() * count)?;
            }
        }
        let bytes = cursor.take((elements.position() - cursor.position()) as u64)?;
        Ok(Self { element_type, len, bytes, depth })
    }

    /// An array again from its checked parts.
    pub(super) fn from_checked(element_type: ValueType, len: usize, bytes: &'a [u8]) -> Self {
        Self { element_type, len, bytes, depth: 0 }
    }

    /// Type of the elements.
    pub fn element_type(&self) -> ValueType {
        self.element_type
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The encoded elements.
    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The elements, decoded one by one.
    pub fn iter(&self) -> Values<'a> {
        Values {
            cursor: Cursor::new(self.bytes, What::Value("array")),
            element_type: self.element_type,
            left: self.len,
            depth: self.depth + 1,
        }
    }

    /// The strings of an array of strings; `None` for other arrays.
    pub fn strings(&self) -> Option<Strings<'a>> {
        (self.element_type == ValueType::String).then(|| Strings(self.iter()))
    }
}

impl<'a> IntoIterator for &Array<'a> {
    type Item = Value<'a>;
    type IntoIter = Values<'a>;

    fn into_iter(self) -> Values<'a> {
        self.iter()
    }
}

impl fmt::Debug for Array<'_> {
    /// Without the elements: there may be 256 thousand.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}; {}]", self.element_type, self.len)
    }
}

/// Iterator over the elements of an [`Array`].
#[derive(Debug, Clone)]
pub struct Values<'a> {
    cursor: Cursor<'a>,
    element_type: ValueType,
    left: usize,
    depth: usize,
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        let value = Value::read(&mut self.cursor, self.element_type, "array", self.depth);
        Some(value.expect("the array was checked when the file was opened, and an open file must not change"))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Values<'_> {}
impl FusedIterator for Values<'_> {}

/// Iterator over the strings of an [`Array`]: slices of the file, nothing is copied.
#[derive(Debug, Clone)]
pub struct Strings<'a>(Values<'a>);

impl<'a> Iterator for Strings<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        match self.0.next()? {
            Value::String(text) => Some(text),
            other => unreachable!("an array of strings gave {}", other.value_type()),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Strings<'_> {}
impl FusedIterator for Strings<'_> {}
