//! The longest context of known models in machines of common sizes.

use std::fmt::Write as _;

use plimsoll_memguard::{
    Config, EstimateError, EstimateSettings, Registry, StorageFormat, WeightFormats, longest_context,
};
use serde_json::Value;

const MODELS: [(&str, &str); 10] = [
    ("Llama 3.1 8B", include_str!("../../tests/configs/llama-3.1-8b.json")),
    ("Llama 3.1 70B", include_str!("../../tests/configs/llama-3.1-70b.json")),
    ("Qwen3 0.6B", include_str!("../../tests/configs/qwen3-0.6b.json")),
    ("Qwen3 32B", include_str!("../../tests/configs/qwen3-32b.json")),
    ("Qwen3 30B-A3B", include_str!("../../tests/configs/qwen3-30b-a3b.json")),
    ("Qwen3.6 27B", include_str!("../../tests/configs/qwen3.6-27b.json")),
    ("Gemma 3 27B", include_str!("../../tests/configs/gemma-3-27b.json")),
    ("DeepSeek V3", include_str!("../../tests/configs/deepseek-v3.json")),
    ("DeepSeek V4 Flash", include_str!("../../tests/configs/deepseek-v4-flash.json")),
    ("gpt-oss 20B", include_str!("../../tests/configs/gpt-oss-20b.json")),
];

const BUDGETS_GIB: [u64; 4] = [16, 36, 64, 128];

const CHUNK_ROWS: usize = 2048;

/// A Markdown table: weights as the checkpoint stores them, then all matrices as `Q4_K`.
///
/// # Errors
/// Those of the registry.
pub(crate) fn markdown() -> Result<String, EstimateError> {
    let mut table =
        String::from("| model | weights | 16 GiB | 36 GiB | 64 GiB | 128 GiB |\n|---|---|---|---|---|---|\n");
    let q4 = WeightFormats { vectors: StorageFormat::F32, ..WeightFormats::all(StorageFormat::Q4_K) };
    for (name, text) in MODELS {
        let config: Value = serde_json::from_str(text).unwrap_or(Value::Null);
        let trained = Config::new(&config).required("max_position_embeddings")?;
        for (format, weights) in [("as stored", None), ("Q4_K", Some(q4))] {
            let settings = EstimateSettings { weights, ..EstimateSettings::default() };
            let estimate = Registry::builtin().from_config(&config, &settings)?;
            let cells = BUDGETS_GIB.map(|gib| match longest_context(&estimate, gib << 30, CHUNK_ROWS, trained) {
                None => "-".to_owned(),
                Some(tokens) if tokens == trained => format!("{tokens} (all)"),
                Some(tokens) => tokens.to_string(),
            });
            // Writing to a string cannot fail.
            let _ = writeln!(table, "| {name} | {format} | {} |", cells.join(" | "));
        }
    }
    Ok(table)
}
