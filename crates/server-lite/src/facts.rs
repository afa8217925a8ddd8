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
    use std::{fs, path::Path};

    #[test]
    fn every_packaged_model_is_known_beforehand() {
        for model in MODELS {
            let (config, weights_bytes) = of(model.name).unwrap();
            assert_eq!(config["max_position_embeddings"], model.context_tokens, "{}", model.name);
            assert!(weights_bytes < model.bytes, "{}", model.name);
        }
        assert!(of("another").is_none());
    }

    /// What the peers of `benches/peers` are built from has the same dimensions.
    #[test]
    fn the_models_of_the_benchmarks_are_those_that_are_known() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/peers");
        if !folder.is_dir() {
            println!("NOT RUN: {} is missing (a packaged crate has no benchmarks)", folder.display());
            return;
        }
        for facts in FACTS {
            let (known, _) = of(facts.name).unwrap();
            let path = folder.join(format!("{}.json", facts.name));
            let peer: Map<String, Value> = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
            for (field, value) in known {
                let found = &peer[&field];
                let same = found == &value || found.is_f64() && found.as_f64() == value.as_f64();
                assert!(same, "{}: {field} is {found}, known as {value}", facts.name);
            }
        }
    }
}
