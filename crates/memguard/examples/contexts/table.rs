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

/// Two Markdown tables of the same figures. The full one has a line for the weights as the checkpoint stores them, and one for all
/// matrices as `Q4_K`; the short one has a line per model, both in each cell.
///
/// # Errors
/// Those of the registry.
pub(crate) fn markdown() -> Result<[String; 2], EstimateError> {
    let mut full =
        String::from("| model | weights | 16 GiB | 36 GiB | 64 GiB | 128 GiB |\n|---|---|---|---|---|---|\n");
    let mut short = String::from("| model | 16 GiB | 36 GiB | 64 GiB | 128 GiB |\n|---|---|---|---|---|\n");
    let q4 = WeightFormats { vectors: StorageFormat::F32, ..WeightFormats::all(StorageFormat::Q4_K) };
    for (name, text) in MODELS {
        let config: Value = serde_json::from_str(text).unwrap_or(Value::Null);
        let trained = Config::new(&config).required("max_position_embeddings")?;
        let cells = |weights| {
            let settings = EstimateSettings { weights, ..EstimateSettings::default() };
            let estimate = Registry::builtin().from_config(&config, &settings)?;
            let longest = |gib| longest_context(&estimate, gib << 30, CHUNK_ROWS, trained);
            Ok(BUDGETS_GIB.map(|gib: u64| match longest(gib) {
                None => "-".to_owned(),
                Some(tokens) if tokens == trained => format!("{tokens} (all)"),
                Some(tokens) => tokens.to_string(),
            }))
        };
        let (stored, quantized) = (cells(None)?, cells(Some(q4))?);
        // Writing to a string cannot fail.
        for (format, cells) in [("as stored", &stored), ("Q4_K", &quantized)] {
            let _ = writeln!(full, "| {name} | {format} | {} |", cells.join(" | "));
        }
        let both = stored.iter().zip(&quantized).map(|(stored, quantized)| match stored == quantized {
            true => stored.clone(),
            false => format!("{stored} / {quantized}"),
        });
        let _ = writeln!(short, "| {name} | {} |", both.collect::<Vec<_>>().join(" | "));
    }
    Ok([full, short])
}
