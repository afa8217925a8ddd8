//! `generation_config.json`: which tokens end an answer, and how its makers suggest to sample.

use super::FolderError;
use serde_json::{Map, Value};
use std::path::Path;

/// What a folder says about generation. Sampling values are suggestions of the model's makers; nothing here is applied by itself.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct GenerationConfig {
    /// Tokens that end an answer; from `config.json` where `generation_config.json` names none. Ascending, none twice.
    pub eos_token_ids: Vec<u32>,
    /// Token that begins a text.
    pub bos_token_id: Option<u32>,
    /// Whether to sample at all.
    pub do_sample: Option<bool>,
    /// Divides the logits.
    pub temperature: Option<f64>,
    /// Candidates kept, by rank.
    pub top_k: Option<u32>,
    /// Candidates kept, by their share together.
    pub top_p: Option<f64>,
    /// Candidates kept, by their share against the best.
    pub min_p: Option<f64>,
    /// Divides or multiplies logits of tokens that were seen.
    pub repetition_penalty: Option<f64>,
}

impl GenerationConfig {
    /// Reads what `generation_config.json` (`own`, from `path`) says, and takes the special tokens of `config` where it is silent.
    pub(super) fn read(
        path: &Path,
        own: Option<&Map<String, Value>>,
        config_path: &Path,
        config: &Map<String, Value>,
    ) -> Result<Self, FolderError> {
        let empty = Map::new();
        let fields = own.unwrap_or(&empty);
        let text_config = config.get("text_config").and_then(Value::as_object);
        let mut eos_token_ids = ids(path, "eos_token_id", fields.get("eos_token_id"))?;
        for fallback in [Some(config), text_config].into_iter().flatten() {
            if eos_token_ids.is_empty() {
                eos_token_ids = ids(config_path, "eos_token_id", fallback.get("eos_token_id"))?;
            }
        }
        eos_token_ids.sort_unstable();
        eos_token_ids.dedup();
        let number = |key: &str| match fields.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or_else(|| wrong(path, key, value, "a number")),
        };
        let bos_token_id = match fields.get("bos_token_id") {
            None | Some(Value::Null) => ids(config_path, "bos_token_id", config.get("bos_token_id"))?.first().copied(),
            value => ids(path, "bos_token_id", value)?.first().copied(),
        };
        Ok(Self {
            eos_token_ids,
            bos_token_id,
            do_sample: match fields.get("do_sample") {
                None | Some(Value::Null) => None,
                Some(value) => Some(value.as_bool().ok_or_else(|| wrong(path, "do_sample", value, "true or false"))?),
            },
            temperature: number("temperature")?,
            top_k: match fields.get("top_k") {
                None | Some(Value::Null) => None,
                Some(value) => Some(
                    value
                        .as_u64()
                        .and_then(|count| u32::try_from(count).ok())
                        .ok_or_else(|| wrong(path, "top_k", value, "a count"))?,
                ),
            },
            top_p: number("top_p")?,
            min_p: number("min_p")?,
            repetition_penalty: number("repetition_penalty")?,
        })
    }
}

/// One id or a list of ids; none for a missing or null field. An id of -1 is an old way to write "none".
fn ids(path: &Path, key: &str, value: Option<&Value>) -> Result<Vec<u32>, FolderError> {
    let one = |value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| wrong(path, key, value, "a token id or a list of them"))
    };
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(values)) => values.iter().map(one).collect(),
        Some(value) if value.as_i64() == Some(-1) => Ok(Vec::new()),
        Some(value) => Ok(vec![one(value)?]),
    }
}

fn wrong(path: &Path, key: &str, found: &Value, expected: &'static str) -> FolderError {
    FolderError::Shape { path: path.to_owned(), what: key.to_owned(), found: super::fields::shown(found), expected }
}
