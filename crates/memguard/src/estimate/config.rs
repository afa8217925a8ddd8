//! A `config.json`, read with errors that name the field.

use serde_json::Value;

use super::EstimateError;

/// No dimension of a real model comes near this; a larger one is a broken file.
const MAX_DIMENSION: u64 = 1 << 32;

/// Layers are listed one by one, so their number is held far lower.
const MAX_LAYERS: usize = 1 << 14;

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

    /// A dimension, if it is there.
    ///
    /// # Errors
    /// [`EstimateError::BadField`] if it is no whole number from 0 to 2^32.
    pub fn optional(&self, field: &'static str) -> Result<Option<usize>, EstimateError> {
        let Some(value) = self.value(field) else {
            return Ok(None);
        };
        let number = value.as_u64().filter(|number| *number <= MAX_DIMENSION);
        let number = number.and_then(|number| usize::try_from(number).ok());
        number.map(Some).ok_or_else(|| EstimateError::BadField { field, value: value.to_string() })
    }

    /// A dimension that must be there.
    ///
    /// # Errors
    /// [`EstimateError::MissingField`], or as [`Config::optional`].
    pub fn required(&self, field: &'static str) -> Result<usize, EstimateError> {
        self.optional(field)?.ok_or(EstimateError::MissingField { field })
    }

    /// A dimension with a default.
    ///
    /// # Errors
    /// As [`Config::optional`].
    pub fn or(&self, field: &'static str, default: usize) -> Result<usize, EstimateError> {
        Ok(self.optional(field)?.unwrap_or(default))
    }

    /// A dimension of at least one: a divisor, an interval, a ratio.
    pub(super) fn positive_or(&self, field: &'static str, default: usize) -> Result<usize, EstimateError> {
        match self.or(field, default)? {
            0 => Err(EstimateError::BadField { field, value: "0".to_owned() }),
            number => Ok(number),
        }
    }

    /// A switch; absent: `false`.
    #[must_use]
    pub fn flag(&self, field: &str) -> bool {
        self.value(field).and_then(Value::as_bool).unwrap_or(false)
    }

    /// A list of words, such as `layer_types`.
    #[must_use]
    pub fn words(&self, field: &str) -> Option<Vec<&'a str>> {
        self.value(field)?.as_array()?.iter().map(Value::as_str).collect()
    }

    /// A list of whole numbers.
    #[must_use]
    pub fn numbers(&self, field: &str) -> Option<Vec<u64>> {
        self.value(field)?.as_array()?.iter().map(Value::as_u64).collect()
    }

    /// `num_hidden_layers`.
    ///
    /// # Errors
    /// As [`Config::required`]; also if it is over 16,384.
    pub fn layers(&self) -> Result<usize, EstimateError> {
        let layers = self.required("num_hidden_layers")?;
        if layers > MAX_LAYERS {
            return Err(EstimateError::BadField { field: "num_hidden_layers", value: layers.to_string() });
        }
        Ok(layers)
    }

    /// The kind of every layer: `layer_types` where the config has them, else what `default` says of each index.
    ///
    /// # Errors
    /// [`EstimateError::LayerCount`] if the list is shorter than the model.
    pub fn layer_types(&self, default: impl Fn(usize) -> &'a str) -> Result<Vec<&'a str>, EstimateError> {
        let layers = self.layers()?;
        match self.words("layer_types") {
            None => Ok((0..layers).map(default).collect()),
            Some(types) if types.len() < layers => Err(EstimateError::LayerCount { layers, listed: types.len() }),
            Some(types) => Ok(types.into_iter().take(layers).collect()),
        }
    }

    /// `head_dim`, or `hidden_size` over the heads.
    ///
    /// # Errors
    /// As [`Config::required`].
    pub fn head_dim(&self) -> Result<usize, EstimateError> {
        match self.optional("head_dim")? {
            Some(head_dim) => Ok(head_dim),
            None => Ok(self.required("hidden_size")? / self.positive_or("num_attention_heads", 0)?),
        }
    }
}
