//! GGUF metadata under the names of `config.json`, so that one rule prices both.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::EstimateError;

/// What a GGUF file states about itself. The caller implements it over the reader it has.
pub trait Metadata {
    /// A whole number (a bool as 0 or 1); `None` if absent or of another type.
    fn number(&self, key: &str) -> Option<u64>;

    /// An array of whole numbers (bools as 0 or 1).
    fn numbers(&self, key: &str) -> Option<Vec<u64>>;

    /// A string.
    fn text(&self, key: &str) -> Option<&str>;

    /// The length of an array of any type.
    fn array_len(&self, key: &str) -> Option<usize>;

    /// The value of a key, whatever it is, as it may stand in a message: one line, and short. `None` if there is no such key.
    fn shown(&self, key: &str) -> Option<String>;

    /// Whether the file has a tensor of that name.
    fn has_tensor(&self, name: &str) -> bool;

    /// Bytes of all tensors together, as stored.
    fn tensor_bytes(&self) -> u64;
}

/// `general.architecture` and the `model_type` it stands for.
const ARCHITECTURES: [(&str, &str); 16] = [
    ("llama", "llama"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("qwen3moe", "qwen3_moe"),
    ("qwen3next", "qwen3_next"),
    ("qwen35", "qwen3_5_text"),
    ("qwen35moe", "qwen3_5_moe_text"),
    ("gemma3", "gemma3_text"),
    ("gemma4", "gemma4_text"),
    ("deepseek2", "deepseek_v3"),
    ("deepseek32", "deepseek_v32"),
    ("gpt-oss", "gpt_oss"),
    ("llama4", "llama4_text"),
    ("mistral", "mistral"),
    ("olmo2", "olmo2"),
    ("phi3", "phi3"),
];

/// Keys without their architecture prefix, and the fields they become.
const FIELDS: [(&str, &str); 27] = [
    ("block_count", "num_hidden_layers"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("context_length", "max_position_embeddings"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.sliding_window", "sliding_window"),
    ("attention.shared_kv_layers", "num_kv_shared_layers"),
    ("attention.q_lora_rank", "q_lora_rank"),
    ("attention.kv_lora_rank", "kv_lora_rank"),
    ("attention.indexer.head_count", "index_n_heads"),
    ("attention.indexer.key_length", "index_head_dim"),
    ("attention.indexer.top_k", "index_topk"),
    ("attention.chunk_size", "attention_chunk_size"),
    ("expert_count", "num_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("expert_shared_count", "n_shared_experts"),
    ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ("leading_dense_block_count", "first_k_dense_replace"),
    ("interleave_moe_layer_step", "interleave_moe_layer_step"),
    ("embedding_length_per_layer_input", "hidden_size_per_layer_input"),
    ("full_attention_interval", "full_attention_interval"),
    ("ssm.conv_kernel", "linear_conv_kernel_dim"),
    ("ssm.group_count", "linear_num_key_heads"),
    ("ssm.time_step_rank", "linear_num_value_heads"),
];

/// Keys in which 0 says "not set", as llama.cpp writes them.
const UNSET_BY_ZERO: [&str; 5] =
    ["attention.sliding_window", "attention.q_lora_rank", "attention.chunk_size", "expert_count", "expert_used_count"];

/// A GGUF file in the words of `config.json`.
pub(super) struct Translation {
    pub(super) config: Value,
    /// The file's key for each field.
    pub(super) keys: BTreeMap<String, String>,
}

impl Translation {
    /// The config that `metadata` amounts to.
    pub(super) fn of(metadata: &dyn Metadata) -> Result<Self, EstimateError> {
        let architecture = metadata.text("general.architecture").ok_or(EstimateError::NoArchitecture)?;
        let model_type = ARCHITECTURES.into_iter().find(|(name, _)| *name == architecture);
        let model_type = model_type.map_or(architecture, |(_, model_type)| model_type);
        let mut translator = Translator { metadata, architecture, config: Map::new(), keys: BTreeMap::new() };
        translator.config.insert("model_type".to_owned(), json!(model_type));
        for (key, field) in FIELDS {
            let value = translator.number(key)?.filter(|value| *value > 0 || !UNSET_BY_ZERO.contains(&key));
            translator.set(field, key, value);
        }
        let vocab_size = translator.number("vocab_size")?;
        let tokens = metadata.array_len("tokenizer.ggml.tokens").map(|len| len as u64);
        translator.set("vocab_size", "vocab_size", vocab_size.or(tokens));
        let tied = !metadata.has_tensor("output.weight");
        translator.config.insert("tie_word_embeddings".to_owned(), json!(tied));
        translator.windows()?;
        translator.recurrence()?;
        translator.latent()?;
        translator.settle(model_type)?;
        Ok(Self { config: Value::Object(translator.config), keys: translator.keys })
    }

    /// The error in the words of the file.
    pub(super) fn in_keys(&self, error: EstimateError) -> EstimateError {
        error.with_fields(|field| self.keys.get(field).map_or(field, String::as_str).to_owned())
    }
}

struct Translator<'a> {
    metadata: &'a dyn Metadata,
    architecture: &'a str,
    config: Map<String, Value>,
    keys: BTreeMap<String, String>,
}

impl Translator<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// A number. Some files list one for each layer: the rules want the largest, and read the list where layers differ in kind.
    fn number(&self, key: &str) -> Result<Option<u64>, EstimateError> {
        let key = self.key(key);
        let found = self.metadata.number(&key).or_else(|| self.metadata.numbers(&key)?.into_iter().max());
        match (found, self.metadata.shown(&key)) {
            (None, Some(value)) => {
                let expected = "a whole number, or one for each layer".to_owned();
                Err(EstimateError::BadField { field: key, value, expected })
            }
            (found, _) => Ok(found),
        }
    }

    /// Puts `value` under `field`; the key is remembered for messages even where there is no value.
    fn set(&mut self, field: &str, key: &str, value: Option<u64>) {
        self.keys.insert(field.to_owned(), self.key(key));
        self.config.extend(value.map(|value| (field.to_owned(), json!(value))));
    }

    fn rename(&mut self, from: &str, to: &str) {
        if let Some(value) = self.config.remove(from) {
            self.config.insert(to.to_owned(), value);
        }
        if let Some(key) = self.keys.remove(from) {
            self.keys.insert(to.to_owned(), key);
        }
    }

    /// Which layers have a window: one flag for each, or a period.
    fn windows(&mut self) -> Result<(), EstimateError> {
        let key = "attention.sliding_window_pattern";
        // A file without a window has none in any layer, whatever the pattern.
        let has_window = self.config.contains_key("sliding_window");
        let Some(windowed) = self.metadata.numbers(&self.key(key)) else {
            let pattern = self.number(key)?;
            self.set("sliding_window_pattern", key, pattern);
            return Ok(());
        };
        self.keys.insert("layer_types".to_owned(), self.key(key));
        let name = |windowed| if windowed != 0 && has_window { "sliding_attention" } else { "full_attention" };
        self.config.insert("layer_types".to_owned(), json!(windowed.into_iter().map(name).collect::<Vec<_>>()));
        Ok(())
    }

    fn recurrence(&mut self) -> Result<(), EstimateError> {
        let (state, heads) = (self.number("ssm.state_size")?, self.number("ssm.time_step_rank")?);
        self.set("linear_key_head_dim", "ssm.state_size", state);
        let inner = self.number("ssm.inner_size")?;
        let value_head_dim = state.and(inner).zip(heads.filter(|heads| *heads > 0)).map(|(inner, heads)| inner / heads);
        self.set("linear_value_head_dim", "ssm.inner_size", value_head_dim);
        Ok(())
    }

    /// Here `key_length` counts the latent form (one head); the `_mla` keys, where present, the expanded one.
    fn latent(&mut self) -> Result<(), EstimateError> {
        if self.number("attention.kv_lora_rank")?.is_none() {
            return Ok(());
        }
        let rope = self.number("rope.dimension_count")?;
        let (key_name, key) = self.expanded("attention.key_length_mla", "attention.key_length")?;
        let (value_name, value) = self.expanded("attention.value_length_mla", "attention.value_length")?;
        self.set("qk_rope_head_dim", "rope.dimension_count", rope);
        self.set("v_head_dim", value_name, value);
        let nope = key.zip(rope).map(|(key, rope)| key.saturating_sub(rope));
        self.set("qk_nope_head_dim", key_name, nope);
        Ok(())
    }

    /// The number under the first of two keys, or under the second where the first is not there, with the key that was read.
    fn expanded(
        &self,
        expanded: &'static str,
        plain: &'static str,
    ) -> Result<(&'static str, Option<u64>), EstimateError> {
        Ok(match self.number(expanded)? {
            None => (plain, self.number(plain)?),
            found => (expanded, found),
        })
    }

    /// What an architecture calls otherwise.
    fn settle(&mut self, model_type: &str) -> Result<(), EstimateError> {
        match model_type {
            "deepseek_v3" | "deepseek_v32" => self.rename("num_experts", "n_routed_experts"),
            "gpt_oss" => {
                self.rename("num_experts", "num_local_experts");
                self.rename("moe_intermediate_size", "intermediate_size");
            }
            "llama4_text" => {
                self.rename("num_experts", "num_local_experts");
                self.rename("intermediate_size", "intermediate_size_mlp");
                self.rename("moe_intermediate_size", "intermediate_size");
            }
            "gemma4_text" => {
                // `key_length` is that of full layers; window layers have their own.
                self.rename("head_dim", "global_head_dim");
                let windowed = self.number("attention.key_length_swa")?;
                self.set("head_dim", "attention.key_length_swa", windowed);
            }
            _ => {}
        }
        Ok(())
    }
}
