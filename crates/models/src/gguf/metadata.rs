//! Typed access to metadata: `get_*` for keys that must be there, `find_*` for keys that may be missing.
//!
//! Converters differ in the integer type they pick, so that any integer type is accepted as long as the value fits.

use super::error::shown;
use super::{Array, Gguf, GgufError, Strings, Value};

/// Writes the pair of getters of a scalar: what is missing is an error for the first, `None` for the second.
macro_rules! getters {
    ($get:ident, $find:ident, $type:ty, $what:literal, $read:expr) => {
        #[doc = concat!("The ", $what, " of a key.")]
        ///
        /// # Errors
        /// [`GgufError::MissingKey`], [`GgufError::WrongMetadataType`], [`GgufError::OutOfRange`].
        pub fn $get(&self, key: &str) -> Result<$type, GgufError> {
            self.$find(key)?.ok_or_else(|| GgufError::MissingKey { key: shown(key) })
        }

        #[doc = concat!("The ", $what, " of a key; `None` if there is no such key.")]
        ///
        /// # Errors
        /// [`GgufError::WrongMetadataType`], [`GgufError::OutOfRange`].
        pub fn $find(&self, key: &str) -> Result<Option<$type>, GgufError> {
            self.value(key).map(|value| $read(key, value)).transpose()
        }
    };
}

/// Writes the pair of getters of an array of numbers.
macro_rules! array_getters {
    ($get:ident, $find:ident, $type:ty, $what:literal, $read:expr) => {
        #[doc = concat!("The ", $what, " of a key, read from the file while iterating; every element is checked first.")]
        ///
        /// # Errors
        /// [`GgufError::MissingKey`], [`GgufError::WrongMetadataType`], [`GgufError::OutOfRange`].
        pub fn $get(&self, key: &str) -> Result<impl ExactSizeIterator<Item = $type> + Clone + use<'_>, GgufError> {
            self.$find(key)?.ok_or_else(|| GgufError::MissingKey { key: shown(key) })
        }

        #[doc = concat!("The ", $what, " of a key, as an iterator; `None` if there is no such key.")]
        ///
        /// # Errors
        /// [`GgufError::WrongMetadataType`], [`GgufError::OutOfRange`].
        pub fn $find(
            &self,
            key: &str,
        ) -> Result<Option<impl ExactSizeIterator<Item = $type> + Clone + use<'_>>, GgufError> {
            self.value(key)
                .map(|value| elements(key, value, concat!("an array of ", stringify!($type)), $read))
                .transpose()
        }
    };
}

impl Gguf {
    getters!(get_u32, find_u32, u32, "unsigned 32-bit number", |key, value| integer(key, value, "u32"));
    getters!(get_u64, find_u64, u64, "unsigned 64-bit number", |key, value| integer(key, value, "u64"));
    getters!(get_usize, find_usize, usize, "size or count", |key, value| integer(key, value, "usize"));
    getters!(get_i32, find_i32, i32, "signed 32-bit number", |key, value| integer(key, value, "i32"));
    getters!(get_f32, find_f32, f32, "floating-point number (an f64 is rounded)", |key, value| float(
        key, value, "f32"
    ));
    getters!(get_bool, find_bool, bool, "boolean", boolean);

    /// The text of a key, as a slice of the file.
    ///
    /// # Errors
    /// [`GgufError::MissingKey`], [`GgufError::WrongMetadataType`].
    pub fn get_str(&self, key: &str) -> Result<&str, GgufError> {
        self.find_str(key)?.ok_or_else(|| GgufError::MissingKey { key: shown(key) })
    }

    /// The text of a key, as a slice of the file; `None` if there is no such key.
    ///
    /// # Errors
    /// [`GgufError::WrongMetadataType`].
    pub fn find_str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(key, "string", &other)),
        }
    }

    /// The strings of a key, as slices of the file: a list of 256 thousand tokens is iterated without a copy.
    ///
    /// # Errors
    /// [`GgufError::MissingKey`], [`GgufError::WrongMetadataType`].
    pub fn get_str_array(&self, key: &str) -> Result<Strings<'_>, GgufError> {
        self.find_str_array(key)?.ok_or_else(|| GgufError::MissingKey { key: shown(key) })
    }

    /// The strings of a key, as slices of the file; `None` if there is no such key.
    ///
    /// # Errors
    /// [`GgufError::WrongMetadataType`].
    pub fn find_str_array(&self, key: &str) -> Result<Option<Strings<'_>>, GgufError> {
        let expected = "an array of string";
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let strings = match &value {
            Value::Array(array) => array.strings(),
            _ => None,
        };
        strings.map(Some).ok_or_else(|| wrong_type(key, expected, &value))
    }

    array_getters!(get_f32_array, find_f32_array, f32, "floating-point numbers", float);
    array_getters!(get_i32_array, find_i32_array, i32, "signed 32-bit numbers", integer);
    array_getters!(get_u32_array, find_u32_array, u32, "unsigned 32-bit numbers", integer);
    array_getters!(get_bool_array, find_bool_array, bool, "booleans", |key, value, _| boolean(key, value));
}

fn wrong_type(key: &str, expected: &'static str, found: &Value<'_>) -> GgufError {
    GgufError::WrongMetadataType { key: shown(key), expected, found: found.described() }
}

fn integer<T: TryFrom<i128>>(key: &str, value: Value<'_>, expected: &'static str) -> Result<T, GgufError> {
    let found = value.as_integer().ok_or_else(|| wrong_type(key, expected, &value))?;
    T::try_from(found).map_err(|_| GgufError::OutOfRange { key: shown(key), expected, found: found.to_string() })
}

fn float(key: &str, value: Value<'_>, expected: &'static str) -> Result<f32, GgufError> {
    match value {
        Value::F32(number) => Ok(number),
        Value::F64(number) => {
            #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is what the getter promises")]
            let rounded = number as f32;
            if number.is_finite() && !rounded.is_finite() {
                return Err(GgufError::OutOfRange { key: shown(key), expected, found: number.to_string() });
            }
            Ok(rounded)
        }
        other => Err(wrong_type(key, expected, &other)),
    }
}

fn boolean(key: &str, value: Value<'_>) -> Result<bool, GgufError> {
    match value {
        Value::Bool(flag) => Ok(flag),
        other => Err(wrong_type(key, "bool", &other)),
    }
}

/// The elements of an array, each through `read`. All are tried before the first is given out, so that the iterator
/// cannot fail.
fn elements<'a, T, R>(
    key: &str,
    value: Value<'a>,
    expected: &'static str,
    read: R,
) -> Result<impl ExactSizeIterator<Item = T> + Clone + use<'a, T, R>, GgufError>
where
    R: Fn(&str, Value<'a>, &'static str) -> Result<T, GgufError> + Clone,
{
    let array: Array<'a> = match value {
        Value::Array(array) => array,
        other => return Err(wrong_type(key, expected, &other)),
    };
    for element in &array {
        read(key, element, expected).map_err(|error| match error {
            // The array is at fault, not one of its elements.
            GgufError::WrongMetadataType { .. } => wrong_type(key, expected, &value),
            other => other,
        })?;
    }
    Ok(array.iter().map(move |element| {
        read("", element, expected).expect("each element was read once before, and an open file must not change")
    }))
}
