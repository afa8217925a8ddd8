//! GGUF metadata under the names of `config.json`, so that one rule prices both.

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

/// The config that `metadata` amounts to.
pub(super) fn to_config(metadata: &dyn Metadata) -> Result<Value, EstimateError> {
    let architecture = metadata.text("general.architecture").ok_or(EstimateError::NoArchitecture)?;
    let model_type = ARCHITECTURES.into_iter().find(|(name, _)| *name == architecture);
    let model_type = model_type.map_or(architecture, |(_, model_type)| model_type);
    let number = |key: &str| metadata.number(&format!("{architecture}.{key}"));
    let numbers = |key: &str| metadata.numbers(&format!("{architecture}.{key}"));

    let mut config = Map::new();
    config.insert("model_type".to_owned(), json!(model_type));
    for (key, field) in FIELDS {
        // Some files list a value per layer; the rules want the largest, and read the list where layers differ in kind.
        let value = number(key).or_else(|| numbers(key)?.into_iter().max());
        config.extend(value.map(|value| (field.to_owned(), json!(value))));
    }
    let vocab_size = number("vocab_size").or_else(|| metadata.array_len("tokenizer.ggml.tokens").map(|len| len as u64));
    config.extend(vocab_size.map(|size| ("vocab_size".to_owned(), json!(size))));
    config.insert("tie_word_embeddings".to_owned(), json!(!metadata.has_tensor("output.weight")));
    if let Some(windowed) = numbers("attention.sliding_window_pattern") {
        let name = |windowed| if windowed != 0 { "sliding_attention" } else { "full_attention" };
        config.insert("layer_types".to_owned(), json!(windowed.into_iter().map(name).collect::<Vec<_>>()));
    } else if let Some(pattern) = number("attention.sliding_window_pattern") {
        config.insert("sliding_window_pattern".to_owned(), json!(pattern));
    }
    if let Some(state) = number("ssm.state_size") {
        config.insert("linear_key_head_dim".to_owned(), json!(state));
        if let (Some(inner), Some(heads @ 1..)) = (number("ssm.inner_size"), number("ssm.time_step_rank")) {
            config.insert("linear_value_head_dim".to_owned(), json!(inner / heads));
        }
    }
    if number("attention.kv_lora_rank").is_some() {
        // Here `key_length` counts the latent form (one head); the `_mla` keys, where present, the expanded one.
        let rope = number("rope.dimension_count");
        let key = number("attention.key_length_mla").or_else(|| number("attention.key_length"));
        let value = number("attention.value_length_mla").or_else(|| number("attention.value_length"));
        config.extend(rope.map(|rope| ("qk_rope_head_dim".to_owned(), json!(rope))));
        config.extend(value.map(|value| ("v_head_dim".to_owned(), json!(value))));
        if let (Some(key), Some(rope)) = (key, rope) {
            config.insert("qk_nope_head_dim".to_owned(), json!(key.saturating_sub(rope)));
        }
    }
    match model_type {
        "deepseek_v3" | "deepseek_v32" => rename(&mut config, "num_experts", "n_routed_experts"),
        "gpt_oss" => {
            rename(&mut config, "num_experts", "num_local_experts");
            rename(&mut config, "moe_intermediate_size", "intermediate_size");
        }
        "llama4_text" => {
            rename(&mut config, "num_experts", "num_local_experts");
            rename(&mut config, "intermediate_size", "intermediate_size_mlp");
            rename(&mut config, "moe_intermediate_size", "intermediate_size");
        }
        "gemma4_text" => {
            // `key_length` is that of full layers; window layers have their own.
            rename(&mut config, "head_dim", "global_head_dim");
            let windowed = number("attention.key_length_swa");
            config.extend(windowed.map(|dim| ("head_dim".to_owned(), json!(dim))));
        }
        _ => {}
    }
    Ok(Value::Object(config))
}

fn rename(config: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = config.remove(from) {
        config.insert(to.to_owned(), value);
    }
}
