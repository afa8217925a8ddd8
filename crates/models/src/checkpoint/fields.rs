//! Reading `config.json` so that nothing that changes the arithmetic is overlooked: every field must have been read, be known to say
//! nothing about the arithmetic, or hold a value with which it does nothing.

use crate::error::ModelError;
use serde_json::{Map, Value};
use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
    ops::RangeInclusive,
};

use super::one_line;

/// Largest size that is taken for one. It keeps every product of two sizes inside 64 bits.
pub(crate) const MAX_SIZE: u64 = 1 << 31;

/// Most unknown fields that are warned of one by one.
const MAX_WARNINGS: usize = 8;

/// The fields of one JSON object of a `config.json`, which remembers what was asked for.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    /// What stands before a field's name in messages: `text_config.` in a nested object.
    path: String,
    map: &'a Map<String, Value>,
    read: RefCell<HashSet<&'a str>>,
    warned: Cell<usize>,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(map: &'a Map<String, Value>) -> Self {
        Self { path: String::new(), map, read: RefCell::default(), warned: Cell::new(0) }
    }

    /// The field's name in messages.
    pub(crate) fn name(&self, key: &str) -> String {
        format!("{}{key}", self.path)
    }

    /// The value of a field, which counts as read then; `None` if it is missing or null.
    pub(crate) fn value(&self, key: &str) -> Option<&'a Value> {
        let (key, value) = self.map.get_key_value(key)?;
        self.read.borrow_mut().insert(key);
        (!value.is_null()).then_some(value)
    }

    /// Whether the field is there, null or not; it does not count as read.
    pub(crate) fn contains(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// Refuses a config without the field: where an architecture's class takes a value that its relatives do not.
    ///
    /// # Errors
    /// [`ModelError::MissingField`].
    pub(crate) fn require(&self, key: &str) -> Result<(), ModelError> {
        if self.contains(key) { Ok(()) } else { Err(ModelError::MissingField { field: self.name(key) }) }
    }

    /// Names of all fields.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.map.keys().map(String::as_str)
    }

    /// The object in a field.
    pub(crate) fn object(&self, key: &str) -> Result<Option<Self>, ModelError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Self {
                path: format!("{}{}.", self.path, one_line(key)),
                map,
                read: RefCell::default(),
                warned: Cell::new(0),
            })),
            Some(other) => Err(self.wrong(key, other, "an object")),
        }
    }

    /// A size: a whole number from 1 to 2^31.
    pub(crate) fn find_size(&self, key: &str) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let found = value.as_u64().ok_or_else(|| self.wrong(key, value, "a whole number"))?;
        match usize::try_from(found) {
            Ok(size) if size > 0 && found <= MAX_SIZE => Ok(Some(size)),
            _ => Err(ModelError::OutOfRange { key: self.name(key), found, minimum: 1, maximum: MAX_SIZE }),
        }
    }

    /// A size that must be there.
    pub(crate) fn size(&self, key: &str) -> Result<usize, ModelError> {
        self.find_size(key)?.ok_or_else(|| ModelError::MissingField { field: self.name(key) })
    }

    /// A number inside `range`.
    pub(crate) fn find_number(&self, key: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let found = value.as_f64().ok_or_else(|| self.wrong(key, value, "a number"))?;
        if range.contains(&found) {
            return Ok(Some(found));
        }
        let supported = format!("a number from {} to {}", range.start(), range.end());
        Err(ModelError::Unsupported { key: self.name(key), found: shown(value), supported })
    }

    pub(crate) fn find_flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(key, value, "true or false"))
    }

    pub(crate) fn find_text(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(key, value, "text"))
    }

    pub(crate) fn find_texts(&self, key: &str) -> Result<Option<Vec<&'a str>>, ModelError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let texts = value.as_array().and_then(|values| values.iter().map(Value::as_str).collect());
        texts.map(Some).ok_or_else(|| self.wrong(key, value, "a list of texts"))
    }

    /// One of `supported`; missing or null is `None`.
    pub(crate) fn find_choice(&self, key: &str, supported: &[&str]) -> Result<Option<&'a str>, ModelError> {
        let Some(found) = self.find_text(key)? else { return Ok(None) };
        match supported.contains(&found) {
            true => Ok(Some(found)),
            false => Err(self.unsupported(key, &supported.join(", "))),
        }
    }

    /// Refuses fields that change the arithmetic, unless they hold one of the values with which they do nothing. Flags count as 0 and 1,
    /// null and missing fields are fine.
    pub(crate) fn neutral(&self, table: &[(&str, &[f64])]) -> Result<(), ModelError> {
        for (key, neutral) in table {
            let Some(value) = self.value(key) else { continue };
            let number = value.as_f64().or_else(|| value.as_bool().map(|flag| f64::from(u8::from(flag))));
            if !number.is_some_and(|number| neutral.contains(&number)) {
                let values: Vec<String> = neutral
                    .iter()
                    .map(|number| match value {
                        Value::Bool(_) => (*number != 0.0).to_string(),
                        _ => number.to_string(),
                    })
                    .collect();
                let supported = if values.is_empty() { "no such field".to_owned() } else { values.join(" or ") };
                return Err(self.unsupported(key, &supported));
            }
        }
        Ok(())
    }

    /// Counts fields as read whose values say nothing here.
    pub(crate) fn skip(&self, keys: &[&str]) {
        for key in keys {
            self.value(key);
        }
    }

    /// The refusal of a field's value.
    pub(crate) fn unsupported(&self, key: &str, supported: &str) -> ModelError {
        let found = self.map.get(key).map_or_else(|| "missing".to_owned(), shown);
        ModelError::Unsupported { key: self.name(key), found, supported: supported.to_owned() }
    }

    fn wrong(&self, key: &str, found: &Value, expected: &'static str) -> ModelError {
        ModelError::WrongField { field: self.name(key), found: shown(found), expected }
    }

    /// Refuses every field that was not read and may change the arithmetic, and warns of the others.
    ///
    /// # Errors
    /// [`ModelError::UnknownField`].
    pub(crate) fn finish(&self) -> Result<(), ModelError> {
        let read = self.read.borrow();
        for (key, value) in self.map {
            if is_unset(value) || read.contains(key.as_str()) || says_nothing(key) {
                continue;
            }
            if hints_at_arithmetic(key) {
                return Err(ModelError::UnknownField { field: self.name(&one_line(key)), found: shown(value) });
            }
            let warned = self.warned.get();
            self.warned.set(warned + 1);
            if warned < MAX_WARNINGS {
                tracing::warn!("the field {}{} is not known and ignored", self.path, one_line(key));
            }
        }
        if let Some(more) = self.warned.get().checked_sub(MAX_WARNINGS).filter(|more| *more > 0) {
            tracing::warn!("{more} more unknown fields are ignored");
        }
        Ok(())
    }
}

/// Fields that say nothing about the arithmetic of a forward pass: training, generation defaults, bookkeeping of the library.
const NOTHING: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "dtype",
    "embd_pdrop",
    "eos_token_id",
    "experts_implementation",
    "gradient_checkpointing",
    "hidden_dropout",
    "hidden_dropout_prob",
    "id2label",
    "initializer_factor",
    "initializer_range",
    "is_llama_config",
    "label2id",
    "max_length",
    "min_length",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "problem_type",
    "resid_pdrop",
    "return_dict",
    "router_aux_loss_coef",
    "sep_token_id",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
];

/// Parts of names of fields that change the arithmetic. An unknown field with one of them is refused.
const HINTS: &[&str] = &[
    "act",
    "attn",
    "attention",
    "bias",
    "bottleneck",
    "cap",
    "clip",
    "compress",
    "conv",
    "delta",
    "dim",
    "embed",
    "eps",
    "expert",
    "factor",
    "ffn",
    "gate",
    "head",
    "hidden",
    "index",
    "inter",
    "kv",
    "latent",
    "layer",
    "linear",
    "logit",
    "lora",
    "mamba",
    "mask",
    "mlp",
    "moe",
    "mul",
    "norm",
    "parallel",
    "pattern",
    "pos",
    "qk",
    "quant",
    "rank",
    "recurrent",
    "residual",
    "rope",
    "rotary",
    "router",
    "scal",
    "scor",
    "shar",
    "sink",
    "size",
    "skip",
    "softmax",
    "sparse",
    "ssm",
    "state",
    "theta",
    "tie",
    "topk",
    "top_k",
    "window",
    "yarn",
];

fn says_nothing(key: &str) -> bool {
    NOTHING.contains(&key) || ["_token_id", "_token_ids", "_token_index"].iter().any(|end| key.ends_with(end))
}

/// Null, and lists and objects of nothing.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// Whether the name of an unknown field or key sounds like arithmetic.
pub(super) fn hints_at_arithmetic(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    HINTS.iter().any(|hint| name.contains(hint))
}

/// A JSON value as it may stand in a message.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Object(fields) => format!("an object of {} fields", fields.len()),
        Value::Array(values) if values.len() > 8 => format!("a list of {}", values.len()),
        other => one_line(&other.to_string()),
    }
}
