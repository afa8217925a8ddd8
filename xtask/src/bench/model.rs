//! The models that are measured: their files, and how much there is to multiply.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{models, shell};

#[derive(Debug)]
pub(super) struct Model {
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// Its `config.json`, where one is known: for peers that build the model's shape, and for counting.
    pub(super) config: Option<PathBuf>,
    pub(super) shape: Option<Shape>,
}

impl Model {
    /// A file, a folder, or a short name that the release binary fetches.
    ///
    /// # Errors
    /// If it is none of them, or cannot be fetched.
    pub(super) fn resolve(name: &str) -> Result<Self> {
        let given = Path::new(name);
        let (path, config) = if given.exists() {
            (given.to_owned(), given.join("config.json"))
        } else {
            (models::fetch_by_release_binary(name)?, shell::root().join(format!("benches/peers/{name}.json")))
        };
        let config = config.is_file().then_some(config);
        let shape = match &config {
            Some(file) => Shape::of_config(&fs::read_to_string(file)?)
                .with_context(|| format!("cannot count by {}", file.display()))?,
            None => None,
        };
        let stem = given.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name: stem, path, config, shape })
    }

    /// Reads the files, so that they are in the page cache.
    pub(super) fn warm(&self) -> Result<()> {
        let files = if self.path.is_dir() {
            fs::read_dir(&self.path)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?
        } else {
            vec![self.path.clone()]
        };
        for file in files.iter().filter(|file| file.is_file()) {
            std::io::copy(&mut fs::File::open(file)?, &mut std::io::sink())?;
        }
        Ok(())
    }
}

/// What a dense decoder multiplies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shape {
    /// Elements of all matrices a token meets, the output head apart.
    per_token: usize,
    /// Elements of the output head, met by rows whose logits are asked for.
    head: usize,
    /// `2 * heads * head_dim`: multiply-adds of one query against one key and its value, in all heads.
    per_pair: usize,
    /// Keys that each layer's queries see, at most; one number per layer.
    windows: Vec<usize>,
}

impl Shape {
    /// `None` for a model whose products are not these alone: experts, recurrences.
    ///
    /// # Errors
    /// If the text is no JSON, or lacks a dimension.
    fn of_config(text: &str) -> Result<Option<Self>> {
        let config: Value = serde_json::from_str(text)?;
        let number =
            |name: &str| config.get(name).and_then(Value::as_u64).and_then(|number| usize::try_from(number).ok());
        let kinds = config["layer_types"].as_array();
        let known = |kind: &Value| kind == "full_attention" || kind == "sliding_attention";
        if number("num_experts").is_some()
            || number("num_local_experts").is_some()
            || kinds.is_some_and(|kinds| !kinds.iter().all(known))
        {
            return Ok(None);
        }
        let needed = |name: &str| number(name).with_context(|| format!("no `{name}`"));
        let (hidden, layers, heads) =
            (needed("hidden_size")?, needed("num_hidden_layers")?, needed("num_attention_heads")?);
        let kv_heads = number("num_key_value_heads").unwrap_or(heads);
        let head_dim = number("head_dim").unwrap_or(hidden / heads.max(1));
        let attention = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim;
        let mlp = 3 * hidden * needed("intermediate_size")?;
        let window = |layer: usize| match kinds.and_then(|kinds| kinds.get(layer)) {
            Some(kind) if kind == "sliding_attention" => number("sliding_window").unwrap_or(usize::MAX),
            _ => usize::MAX,
        };
        Ok(Some(Self {
            per_token: layers * (attention + mlp),
            head: hidden * needed("vocab_size")?,
            per_pair: 2 * heads * head_dim,
            windows: (0..layers).map(window).collect(),
        }))
    }

    /// Multiply-adds of `rows` tokens at positions from `start` on, `logit_rows` of them through the output head.
    #[expect(clippy::cast_precision_loss, reason = "a count of work, for rates")]
    pub(super) fn macs(&self, start: usize, rows: usize, logit_rows: usize) -> f64 {
        let pairs: f64 = self.windows.iter().map(|&window| pairs(start, rows, window) as f64).sum();
        (rows * self.per_token + logit_rows * self.head) as f64 + self.per_pair as f64 * pairs
    }
}

/// Query and key pairs of causal attention; a query sees itself.
fn pairs(start: usize, rows: usize, window: usize) -> usize {
    (start..start + rows).map(|position| (position + 1).min(window)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packaged(name: &str) -> Shape {
        let file = shell::root().join(format!("benches/peers/{name}.json"));
        Shape::of_config(&fs::read_to_string(file).unwrap()).unwrap().unwrap()
    }

    #[test]
    fn work_is_counted_by_the_shape() {
        let smollm2 = packaged("smollm2-135m");
        // Counted by hand: 30 layers of 576 x (2 x 576 + 2 x 192) + 3 x 576 x 1,536.
        assert_eq!(smollm2.per_token, 106_168_320);
        let attention = 30.0 * 2.0 * 576.0 * (512.0 * 513.0 / 2.0);
        assert_eq!(smollm2.macs(0, 512, 1), 512.0 * 106_168_320.0 + 576.0 * 49_152.0 + attention);
        let gemma = packaged("gemma3-270m");
        assert_eq!(gemma.per_token, 100_270_080);
        // 3 layers see all 1,001 keys, 15 their window.
        assert_eq!(gemma.macs(1000, 1, 0), 100_270_080.0 + 2_048.0 * (3.0 * 1001.0 + 15.0 * 512.0));
    }

    #[test]
    fn a_model_of_experts_is_not_counted() {
        assert_eq!(Shape::of_config(r#"{"num_experts": 8}"#).unwrap(), None);
        assert_eq!(Shape::of_config(r#"{"layer_types": ["linear_attention"]}"#).unwrap(), None);
        assert!(Shape::of_config(r#"{"hidden_size": 8}"#).unwrap_err().to_string().contains("num_hidden_layers"));
    }

    #[test]
    fn a_window_bounds_the_pairs() {
        assert_eq!(pairs(0, 4, usize::MAX), 10);
        assert_eq!(pairs(0, 4, 2), 1 + 2 + 2 + 2);
        assert_eq!(pairs(7, 1, 3), 3);
    }
}
