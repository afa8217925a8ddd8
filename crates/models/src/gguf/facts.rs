//! What an estimate asks of a GGUF file.

use plimsoll_memguard::Metadata;

use super::{Gguf, Value, error::shown};

/// Flags count as 0 and 1, as llama.cpp writes either.
fn number(value: &Value<'_>) -> Option<u64> {
    match value {
        Value::Bool(flag) => Some(u64::from(*flag)),
        other => other.as_integer().and_then(|number| u64::try_from(number).ok()),
    }
}

impl Metadata for Gguf {
    fn number(&self, key: &str) -> Option<u64> {
        number(&self.value(key)?)
    }

    fn numbers(&self, key: &str) -> Option<Vec<u64>> {
        match self.value(key)? {
            Value::Array(array) => array.iter().map(|value| number(&value)).collect(),
            _ => None,
        }
    }

    fn text(&self, key: &str) -> Option<&str> {
        match self.value(key)? {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    fn array_len(&self, key: &str) -> Option<usize> {
        match self.value(key)? {
            Value::Array(array) => Some(array.len()),
            _ => None,
        }
    }

    fn shown(&self, key: &str) -> Option<String> {
        Some(match self.value(key)? {
            Value::String(text) => format!("\"{}\"", shown(text)),
            Value::F32(number) => number.to_string(),
            Value::F64(number) => number.to_string(),
            Value::Bool(flag) => flag.to_string(),
            Value::Array(array) => format!("a list of {}", array.len()),
            other => other.as_integer().map_or_else(|| other.described(), |number| number.to_string()),
        })
    }

    fn has_tensor(&self, name: &str) -> bool {
        self.find_tensor(name).is_some()
    }

    fn tensor_bytes(&self) -> u64 {
        self.tensors().map(|tensor| tensor.data().len() as u64).sum()
    }
}
