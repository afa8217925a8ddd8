//! A `config.json`, read with errors that name the field.

use serde_json::Value;

use super::EstimateError;

/// Most of what a field can state. No real model comes near; a larger one is a broken file.
const LIMITS: [(&str, u64); 12] = [
    ("hidden_size", 1 << 20),
    ("vocab_size", 1 << 26),
    ("intermediate_size", 1 << 26),
    ("moe_intermediate_size", 1 << 26),
    // Layers are listed one by one.
    ("num_hidden_layers", 1 << 14),
    ("num_attention_heads", 1 << 16),
    ("num_key_value_heads", 1 << 16),
    ("head_dim", 1 << 16),
    ("num_experts", 1 << 20),
    ("num_local_experts", 1 << 20),
    ("n_routed_experts", 1 << 20),
    ("num_experts_per_tok", 1 << 20),
];

/// The same of fields that are not listed.
const MAX_SIZE: u64 = 1 << 31;

/// Longest value that is shown in a message.
const MAX_SHOWN_CHARS: usize = 96;

/// The fields of a text decoder: those of `text_config` where there is one, then those around it.
#[derive(Debug, Clone, Copy)]
pub struct Config<'a> {
    inner: &'a Value,
    outer: &'a Value,
}

impl<'a> Config<'a> {
    /// Reads `value`, a parsed `config.json`.
    #[must_use]
    pub fn new(value: &'a Value) -> Self {
        Self { inner: value.get("text_config").filter(|inner| inner.is_object()).unwrap_or(value), outer: value }
    }

    /// The whole of `config.json`, for a rule that reads it by itself.
    #[must_use]
    pub fn root(&self) -> &'a Value {
        self.outer
    }

    /// Names to look the architecture up by, the outer `model_type` first.
    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        let listed = self.outer.get("architectures").and_then(Value::as_array).into_iter().flatten();
        let types = [self.outer, self.inner].into_iter().filter_map(|value| value.get("model_type"));
        types.chain(listed).filter_map(Value::as_str)
    }

    /// A field as it stands; `null` counts as absent.
    #[must_use]
    pub fn value(&self, field: &str) -> Option<&'a Value> {
        [self.inner, self.outer].into_iter().filter_map(|value| value.get(field)).find(|value| !value.is_null())
    }

    /// A count, which may be 0, if it is there.
    ///
    /// # Errors
    /// [`EstimateError::BadField`] if it is no whole number, negative or absurd: a width past a million, a vocabulary past 67 million,
    /// more than 16,384 layers, more than 2^31 of anything.
    pub fn optional(&self, field: &str) -> Result<Option<usize>, EstimateError> {
        self.number(field, 0)
    }

    /// A count with a default.
    ///
    /// # Errors
    /// As [`Config::optional`].
    pub fn or(&self, field: &str, default: usize) -> Result<usize, EstimateError> {
        Ok(self.optional(field)?.unwrap_or(default))
    }

    /// A size, at least 1, if it is there.
    ///
    /// # Errors
    /// As [`Config::optional`]; also if it is 0.
    pub fn optional_size(&self, field: &str) -> Result<Option<usize>, EstimateError> {
        self.number(field, 1)
    }

    /// A size with a default.
    ///
    /// # Errors
    /// As [`Config::optional_size`].
    pub fn size_or(&self, field: &str, default: usize) -> Result<usize, EstimateError> {
        Ok(self.optional_size(field)?.unwrap_or(default))
    }

    /// A size that must be there.
    ///
    /// # Errors
    /// [`EstimateError::MissingField`], or as [`Config::optional_size`].
    pub fn required(&self, field: &str) -> Result<usize, EstimateError> {
        self.optional_size(field)?.ok_or_else(|| missing(field))
    }

    fn number(&self, field: &str, least: u64) -> Result<Option<usize>, EstimateError> {
        let Some(value) = self.value(field) else {
            return Ok(None);
        };
        let most = LIMITS.iter().find(|(known, _)| *known == field).map_or(MAX_SIZE, |&(_, most)| most);
        let number = value.as_u64().filter(|number| (least..=most).contains(number));
        let number = number.and_then(|number| usize::try_from(number).ok());
        number.map(Some).ok_or_else(|| bad(field, value, format!("a whole number from {least} to {most}")))
    }

    /// A switch; absent: `false`.
    ///
    /// # Errors
    /// [`EstimateError::BadField`] if it is neither `true` nor `false`.
    pub fn flag(&self, field: &str) -> Result<bool, EstimateError> {
        let Some(value) = self.value(field) else {
            return Ok(false);
        };
        value.as_bool().ok_or_else(|| bad(field, value, "true or false"))
    }

    /// A word.
    ///
    /// # Errors
    /// [`EstimateError::BadField`] if it is no text.
    pub fn word(&self, field: &str) -> Result<Option<&'a str>, EstimateError> {
        let Some(value) = self.value(field) else {
            return Ok(None);
        };
        value.as_str().map(Some).ok_or_else(|| bad(field, value, "text"))
    }

    /// A list of words, such as `layer_types`.
    ///
    /// # Errors
    /// [`EstimateError::BadField`] if it is anything else.
    pub fn words(&self, field: &str) -> Result<Option<Vec<&'a str>>, EstimateError> {
        self.list(field, Value::as_str, "a list of words")
    }

    /// A list of whole numbers.
    ///
    /// # Errors
    /// [`EstimateError::BadField`] if it is anything else.
    pub fn numbers(&self, field: &str) -> Result<Option<Vec<u64>>, EstimateError> {
        self.list(field, Value::as_u64, "a list of whole numbers")
    }

    fn list<T>(
        &self,
        field: &str,
        read: impl Fn(&'a Value) -> Option<T>,
        expected: &str,
    ) -> Result<Option<Vec<T>>, EstimateError> {
        let Some(value) = self.value(field) else {
            return Ok(None);
        };
        let list = value.as_array().and_then(|values| values.iter().map(read).collect());
        list.map(Some).ok_or_else(|| bad(field, value, expected))
    }

    /// `num_hidden_layers`.
    ///
    /// # Errors
    /// As [`Config::required`].
    pub fn layers(&self) -> Result<usize, EstimateError> {
        self.required("num_hidden_layers")
    }

    /// The kind of every layer: `layer_types` where the config has them, else what `default` says of each index.
    ///
    /// # Errors
    /// [`EstimateError::LayerCount`] if the list is of another length than the model; [`EstimateError::BadField`] if it is no list of
    /// words.
    pub fn layer_types(&self, default: impl Fn(usize) -> &'a str) -> Result<Vec<&'a str>, EstimateError> {
        let (field, layers) = ("layer_types", self.layers()?);
        match self.words(field)? {
            None => Ok((0..layers).map(default).collect()),
            Some(types) if types.len() == layers => Ok(types),
            Some(types) => Err(EstimateError::LayerCount { field: field.to_owned(), layers, listed: types.len() }),
        }
    }

    /// `head_dim`, or `hidden_size` over the heads.
    ///
    /// # Errors
    /// As [`Config::required`]; [`EstimateError::NotDivisible`] if the heads do not divide the width.
    pub fn head_dim(&self) -> Result<usize, EstimateError> {
        if let Some(head_dim) = self.optional_size("head_dim")? {
            return Ok(head_dim);
        }
        let heads = self.required("num_attention_heads")?;
        let hidden_size = divisible(("hidden_size", self.required("hidden_size")?), ("num_attention_heads", heads))?;
        Ok(hidden_size / heads)
    }
}

pub(super) fn missing(field: &str) -> EstimateError {
    EstimateError::MissingField { field: field.to_owned() }
}

pub(super) fn bad(field: &str, value: &Value, expected: impl Into<String>) -> EstimateError {
    EstimateError::BadField { field: field.to_owned(), value: shown(value), expected: expected.into() }
}

/// The value, which must be a multiple of the divisor; both with the names of their fields.
pub(super) fn divisible(
    (field, value): (&str, usize),
    (divisor_field, divisor): (&str, usize),
) -> Result<usize, EstimateError> {
    if value.is_multiple_of(divisor) {
        return Ok(value);
    }
    let (field, divisor_field) = (field.to_owned(), divisor_field.to_owned());
    Err(EstimateError::NotDivisible { field, value, divisor_field, divisor })
}

/// The value, which must not be more than the limit; both with the names of their fields.
pub(super) fn at_most(
    (field, value): (&str, usize),
    (limit_field, limit): (&str, usize),
) -> Result<usize, EstimateError> {
    if value <= limit {
        return Ok(value);
    }
    Err(EstimateError::MoreThan { field: field.to_owned(), value, limit_field: limit_field.to_owned(), limit })
}

/// A value as it may stand in a message.
fn shown(value: &Value) -> String {
    match value {
        Value::Object(fields) => format!("an object of {} fields", fields.len()),
        Value::Array(values) if values.len() > 8 => format!("a list of {}", values.len()),
        other => {
            let text = other.to_string();
            let mut shown: String = text.chars().take(MAX_SHOWN_CHARS).collect();
            if shown.len() < text.len() {
                shown.push('…');
            }
            shown
        }
    }
}
