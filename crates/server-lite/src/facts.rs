//! What is known of the packaged models before they are fetched: their dimensions, and the bytes of their weights once loaded.

use serde_json::{Map, Value};

struct Facts {
    /// The short name.
    name: &'static str,
    /// As a config.json, dimensions alone.
    config: &'static str,
    weights_bytes: u64,
}

const FACTS: [Facts; 2] = [
    Facts { name: "smollm2-135m", config: include_str!("facts/smollm2-135m.json"), weights_bytes: 96_576_896 },
    Facts { name: "gemma3-270m", config: include_str!("facts/gemma3-270m.json"), weights_bytes: 246_957_568 },
];

/// The settings of a packaged model, and the bytes of its weights.
pub(crate) fn of(name: &str) -> Option<(Map<String, Value>, u64)> {
    let facts = FACTS.iter().find(|facts| facts.name == name)?;
    Some((serde_json::from_str(facts.config).ok()?, facts.weights_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch::MODELS;

    #[test]
    fn every_packaged_model_is_known_beforehand() {
        for model in MODELS {
            let (config, weights_bytes) = of(model.name).unwrap();
            assert_eq!(config["max_position_embeddings"], model.context_tokens, "{}", model.name);
            assert!(weights_bytes < model.bytes, "{}", model.name);
        }
        assert!(of("another").is_none());
    }
}
