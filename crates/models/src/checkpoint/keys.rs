//! Reading the metadata of one architecture from a GGUF file so that nothing that changes the arithmetic is overlooked: every key under
//! the architecture's name must have been read, or hold a value with which it does nothing.

use super::{fields::MAX_SIZE, fields::hints_at_arithmetic, one_line};
use crate::{
    error::ModelError,
    gguf::{Gguf, Value},
};
use std::{cell::RefCell, collections::HashSet, ops::RangeInclusive};

/// Most unknown keys that are warned of one by one.
const MAX_WARNINGS: usize = 8;

/// The keys `<architecture>.*` of a file, asked for without that prefix; remembers what was asked for.
#[derive(Debug)]
pub(crate) struct Keys<'a> {
    gguf: &'a Gguf,
    prefix: String,
    read: RefCell<HashSet<String>>,
}

impl<'a> Keys<'a> {
    /// `architecture`: value of `general.architecture`.
    pub(crate) fn new(gguf: &'a Gguf, architecture: &str) -> Self {
        Self { gguf, prefix: format!("{architecture}."), read: RefCell::default() }
    }

    pub(crate) fn gguf(&self) -> &'a Gguf {
        self.gguf
    }

    /// The whole key, which counts as read then.
    pub(crate) fn name(&self, key: &str) -> String {
        self.read.borrow_mut().insert(key.to_owned());
        format!("{}{key}", self.prefix)
    }

    pub(crate) fn value(&self, key: &str) -> Option<Value<'a>> {
        self.gguf.value(&self.name(key))
    }

    /// A size: a whole number from 1 to 2^31.
    pub(crate) fn find_size(&self, key: &str) -> Result<Option<usize>, ModelError> {
        let key = self.name(key);
        self.gguf.find_u64(&key)?.map(|value| positive(&key, value)).transpose()
    }

    /// A size that must be there.
    pub(crate) fn size(&self, key: &str) -> Result<usize, ModelError> {
        let key = self.name(key);
        positive(&key, self.gguf.get_u64(&key)?)
    }

    /// A size that may be 0, llama.cpp's "not set".
    pub(crate) fn find_size_or_zero(&self, key: &str) -> Result<Option<usize>, ModelError> {
        let key = self.name(key);
        self.gguf.find_u64(&key)?.filter(|&value| value > 0).map(|value| positive(&key, value)).transpose()
    }

    pub(crate) fn find_f32(&self, key: &str) -> Result<Option<f32>, ModelError> {
        Ok(self.gguf.find_f32(&self.name(key))?)
    }

    /// A number inside `range`.
    pub(crate) fn find_number(&self, key: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ModelError> {
        match self.find_f32(key)? {
            None => Ok(None),
            Some(found) if range.contains(&f64::from(found)) => Ok(Some(f64::from(found))),
            Some(found) => {
                let supported = format!("a number from {} to {}", range.start(), range.end());
                Err(self.unsupported(key, found, supported))
            }
        }
    }

    pub(crate) fn find_text(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        Ok(self.gguf.find_str(&self.name(key))?)
    }

    /// Refuses keys that change the arithmetic unless they have one of these values, with which they do nothing. Flags count as 0 and 1.
    pub(crate) fn neutral(&self, table: &[(&str, &[f64])]) -> Result<(), ModelError> {
        for (key, neutral) in table {
            let Some(value) = self.value(key) else { continue };
            if !number(&value).is_some_and(|number| neutral.contains(&number)) {
                let values: Vec<String> = neutral.iter().map(f64::to_string).collect();
                return Err(self.unsupported(key, shown(&value), values.join(" or ")));
            }
        }
        Ok(())
    }

    /// Counts keys as read whose values say nothing here.
    pub(crate) fn skip(&self, keys: &[&str]) {
        for key in keys {
            self.name(key);
        }
    }

    pub(crate) fn unsupported(&self, key: &str, found: impl ToString, supported: impl Into<String>) -> ModelError {
        ModelError::Unsupported { key: self.name(key), found: found.to_string(), supported: supported.into() }
    }

    /// Refuses every key of the architecture that was not read and may change the arithmetic, and warns of the others.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] naming the key.
    pub(crate) fn finish(&self) -> Result<(), ModelError> {
        let mut warned = 0;
        for (key, value) in self.gguf.metadata() {
            let Some(name) = key.strip_prefix(&self.prefix) else { continue };
            if self.read.borrow().contains(name) {
                continue;
            }
            if name.starts_with("attention.") || name.starts_with("rope.") || hints_at_arithmetic(name) {
                return Err(ModelError::Unsupported {
                    key: one_line(key),
                    found: shown(&value),
                    supported: "a file without this key, whose meaning is not known here".to_owned(),
                });
            }
            warned += 1;
            if warned <= MAX_WARNINGS {
                tracing::warn!("the metadata key {} is not known and ignored", one_line(key));
            }
        }
        if warned > MAX_WARNINGS {
            tracing::warn!("{} more unknown metadata keys are ignored", warned - MAX_WARNINGS);
        }
        Ok(())
    }
}

fn positive(key: &str, found: u64) -> Result<usize, ModelError> {
    match usize::try_from(found) {
        Ok(size) if size > 0 && found <= MAX_SIZE => Ok(size),
        _ => Err(ModelError::OutOfRange { key: key.to_owned(), found, minimum: 1, maximum: MAX_SIZE }),
    }
}

/// The number that a scalar stands for.
fn number(value: &Value<'_>) -> Option<f64> {
    match *value {
        Value::F32(number) => Some(f64::from(number)),
        Value::F64(number) => Some(number),
        Value::Bool(flag) => Some(f64::from(u8::from(flag))),
        // Exact for all numbers that are compared with.
        ref other => other.as_integer().map(|number| number as f64),
    }
}

fn shown(value: &Value<'_>) -> String {
    match value {
        Value::String(text) => format!("\"{}\"", one_line(text)),
        Value::Bool(flag) => flag.to_string(),
        Value::Array(array) => format!("{array:?}"),
        other => number(other).map_or_else(String::new, |number| number.to_string()),
    }
}
