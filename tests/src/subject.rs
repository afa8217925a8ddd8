//! Models that have to keep their bits, each with a prompt.

use crate::{
    golden::{Form, Tiny},
    model::{self, RandomLlama},
    random::Random,
};
use anyhow::{Context, Result, ensure};
use plimsoll_attention::KvDtype;
use plimsoll_models::{
    Checkpoint, CpuExecutor, CpuSettings, Model, TextModel,
    tokenizer::{AddSpecial, ParseSpecial},
};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

/// All number formats of weights, biases, odd head sizes, one KV head and several.
const CASES: [&str; 10] = [
    "tiny-gqa-6x2",
    "tiny-mha-5",
    "tiny-biases",
    "tiny-q4_1",
    "tiny-k-quants",
    "tiny-f16",
    "tiny-qwen3_moe-q8_0",
    "tiny-qwen3_next",
    "tiny-qwen3_5",
    "tiny-qwen3_5_moe",
];

/// Golden cases of the determinism matrix: every architecture, and weights in each kind of format.
pub const MATRIX_CASES: [&str; 15] = [
    "tiny-llama",
    "tiny-k-quants",
    "tiny-q4_1",
    "tiny-f16",
    "tiny-gemma3",
    "tiny-gemma3-softcap",
    "tiny-olmo2",
    "tiny-phi3",
    "tiny-qwen2",
    "tiny-qwen3",
    "tiny-qwen3_moe",
    "tiny-qwen3_moe-q8_0",
    "tiny-qwen3_next",
    "tiny-qwen3_5",
    "tiny-qwen3_5_moe",
];

/// A model and a prompt for it.
#[derive(Debug)]
pub struct Subject {
    /// For messages.
    pub name: String,
    /// The model.
    pub model: Arc<Model>,
    /// Where other processes find the model; `None` if it is in memory alone.
    pub path: Option<PathBuf>,
    /// Token ids.
    pub prompt: Vec<u32>,
    /// Whether the model is a tiny one, with which much can be tried.
    pub tiny: bool,
}

impl Subject {
    /// A golden case with its own prompt, cut to `most_rows`.
    ///
    /// # Errors
    /// If a file is missing or faulty.
    pub fn golden(name: &str, most_rows: usize) -> Result<Self> {
        let case = Tiny::load(name)?;
        let prompt = case.ids[..case.ids.len().min(most_rows)].to_vec();
        Ok(Self { prompt, ..Self::tiny(name, 0)? })
    }

    /// A golden case with a random prompt of `rows` tokens.
    ///
    /// # Errors
    /// If a file is missing or faulty.
    pub fn tiny(name: &str, rows: usize) -> Result<Self> {
        let case = Tiny::load(name)?;
        let form = if case.forms().contains(&Form::Gguf) { Form::Gguf } else { Form::Folder };
        let path = case.path(form);
        let model = model::load(&path)?;
        let prompt = Random::new(11).tokens(rows, model.architecture().dimensions.vocab_size);
        Ok(Self { name: name.to_owned(), model, path: Some(path), prompt, tiny: true })
    }

    /// A random llama whose rows see `window` keys.
    fn windowed(window: usize, rows: usize) -> Result<Self> {
        let sizes = RandomLlama { sliding_window: Some(window), ..RandomLlama::small(2) };
        Self::random(&format!("window of {window}"), sizes.model(10)?, rows.min(300))
    }

    /// A model in memory with a random prompt of `rows` tokens.
    ///
    /// # Errors
    /// None in practice.
    pub fn random(name: &str, model: Arc<Model>, rows: usize) -> Result<Self> {
        let prompt = Random::new(9).tokens(rows, model.architecture().dimensions.vocab_size);
        Ok(Self { name: name.to_owned(), model, path: None, prompt, tiny: true })
    }

    /// Subjects whose every row is compared, with prompts of at most `most_rows` tokens.
    ///
    /// # Errors
    /// If a golden case is missing or faulty.
    pub fn all(most_rows: usize) -> Result<Vec<Self>> {
        let tiny = CASES.iter().map(|name| Self::golden(name, most_rows));
        tiny.chain([5, 70].into_iter().map(|window| Self::windowed(window, most_rows))).collect()
    }

    /// A trained model in `path` with a prompt of `rows` tokens of English text.
    ///
    /// # Errors
    /// If a file is missing or faulty, or the model has no tokenizer.
    pub fn trained(name: &str, path: &Path, rows: usize) -> Result<Self> {
        let checkpoint = Checkpoint::open(path).with_context(|| path.display().to_string())?;
        let text = match &checkpoint {
            Checkpoint::Gguf(gguf) => TextModel::from_gguf(gguf)?,
            Checkpoint::Folder(folder) => TextModel::from_folder(folder.path(), &[], None)?,
        };
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/kl_long_text.txt");
        let english = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let ids = text.tokenizer.encode(&english, AddSpecial::Yes, ParseSpecial::No)?;
        ensure!(!ids.is_empty(), "{name}: the text has no tokens");
        let prompt = ids.iter().copied().cycle().take(rows).collect();
        Ok(Self { name: name.to_owned(), model: model::load(path)?, path: Some(path.to_owned()), prompt, tiny: false })
    }

    /// An executor with the best instruction sets.
    ///
    /// # Errors
    /// If it cannot start.
    pub fn executor(&self, threads: usize, dtype: KvDtype) -> Result<CpuExecutor> {
        Ok(CpuExecutor::new(Arc::clone(&self.model), CpuSettings::detect(threads, dtype))?)
    }

    /// Width of a row of logits.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.model.architecture().dimensions.vocab_size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::SUPPORTED;

    #[test]
    fn the_matrix_has_every_architecture() -> Result<()> {
        let there = MATRIX_CASES.iter().map(|name| Ok(Tiny::load(name)?.architecture)).collect::<Result<Vec<_>>>()?;
        for architecture in SUPPORTED {
            assert!(there.iter().any(|name| name == architecture), "no case of {architecture}");
        }
        Ok(())
    }
}
