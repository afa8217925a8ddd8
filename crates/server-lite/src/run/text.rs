//! The model's text side: tokenizer and chat template.

use super::budget::Budget;
use crate::{cli::RunArgs, error::AppError, interrupt::interruptible};
use plimsoll_memguard::{Kind, Metadata as _};
use plimsoll_models::{Checkpoint, TextError, TextModel, chat::ChatTemplate, tokenizer::Tokenizer};
use plimsoll_prefill::CancelToken;
use std::{fs, path::Path};

/// Tokenizer, and the chat template if there is one that is to be used.
pub(crate) type Text = (Tokenizer, Option<ChatTemplate>);

/// The files of a folder that are read for it.
const FILES: [&str; 5] =
    ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "chat_template.json"];

/// Heap at the worst moment per byte of [`FILES`]: twice the mean of what the allocator counted for real ones, since a file without white space
/// has more tokens in a byte. Llama 3 took 4.84, DeepSeek 3 3.76, Qwen 3 3.29 and Gemma 3 2.57; the test below measures it again.
const LOADING_BYTES_PER_BYTE: u64 = 8;

/// The same per token and per merge of a GGUF file's vocabulary, whose lists are mapped: Gemma 3, which has no merges, took 33.2 a token, and SmolLM2,
/// with a merge for each, 64.1.
const LOADING_BYTES_PER_ENTRY: u64 = 48;

/// What is read of a folder before its weights are looked at.
const SETTINGS: [&str; 3] = ["config.json", "generation_config.json", "model.safetensors.index.json"];

/// Tokenizer and chat template of the checkpoint, which comes back. Token ids need neither, so a model without them is then no fault.
///
/// Ctrl-C ends it. What it takes while it runs is reserved; what is left in the end is measured with everything else that is resident after load.
pub(super) fn load(
    checkpoint: Checkpoint,
    args: &RunArgs,
    path: &Path,
    vocab_size: usize,
    budget: &Budget,
    cancel: &CancelToken,
) -> Result<(Checkpoint, Option<Text>), AppError> {
    const DOING: &str = "reading the tokenizer";
    let _loading = budget.borrow(Kind::Overhead, loading_bytes(&checkpoint), DOING)?;
    let is_plain = args.raw || args.token_ids.is_some();
    let (checkpoint, loaded) = interruptible(cancel, DOING, move || {
        let loaded = read_text(&checkpoint, vocab_size, is_plain);
        (checkpoint, loaded)
    })?;
    match loaded {
        Ok(text) => Ok((checkpoint, Some(text))),
        Err(error) if args.token_ids.is_some() => {
            tracing::debug!(%error, "no tokenizer: token ids in, token ids out");
            Ok((checkpoint, None))
        }
        Err(source) => Err(AppError::Text { path: path.to_owned(), source: Box::new(source) }),
    }
}

/// Reads tokenizer and chat template of a checkpoint; `is_plain`: no template is wanted.
pub(crate) fn read_text(checkpoint: &Checkpoint, vocab_size: usize, is_plain: bool) -> Result<Text, TextError> {
    match checkpoint {
        Checkpoint::Gguf(gguf) => Tokenizer::from_gguf(gguf).and_then(|tokenizer| {
            let template = if is_plain { None } else { ChatTemplate::from_gguf(gguf, &tokenizer)? };
            Ok((tokenizer, template))
        }),
        Checkpoint::Folder(folder) => {
            let ends = &folder.generation().eos_token_ids;
            let text = TextModel::from_folder(folder.path(), ends, Some(vocab_size));
            text.map(|TextModel { tokenizer, template }| (tokenizer, template.filter(|_| !is_plain)))
        }
    }
}

/// What reading the text side takes at most: of a folder, whose files are parsed as a whole, or of a GGUF file, whose lists are mapped.
pub(crate) fn loading_bytes(checkpoint: &Checkpoint) -> u64 {
    match checkpoint {
        Checkpoint::Gguf(gguf) => {
            let entries = |key| gguf.array_len(key).unwrap_or(0) as u64;
            let entries = entries("tokenizer.ggml.tokens").saturating_add(entries("tokenizer.ggml.merges"));
            LOADING_BYTES_PER_ENTRY.saturating_mul(entries)
        }
        Checkpoint::Folder(folder) => parsing_bytes(folder.path(), &FILES),
    }
}

/// What reading the settings of a folder takes at most; a GGUF file's are mapped.
pub(super) fn settings_bytes(path: &Path) -> u64 {
    if path.is_dir() { parsing_bytes(path, &SETTINGS) } else { 0 }
}

/// What parsing these files of a folder takes.
fn parsing_bytes(folder: &Path, files: &[&str]) -> u64 {
    // A file that is not there takes nothing; one that cannot be read is told of by who reads it.
    let bytes = files.iter().filter_map(|name| fs::metadata(folder.join(name)).ok()).map(|metadata| metadata.len());
    bytes.fold(0, u64::saturating_add).saturating_mul(LOADING_BYTES_PER_BYTE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ALLOCATOR;

    #[test]
    #[ignore = "slow: some seconds, needs folders with tokenizer.json and GGUF files, and no test beside it: the allocator counts them all"]
    fn reading_takes_no_more_than_is_reserved() {
        let Some(paths) = std::env::var_os("PLIMSOLL_TEST_TOKENIZERS") else {
            println!("NOT RUN: PLIMSOLL_TEST_TOKENIZERS lists no folders with tokenizer.json or GGUF files");
            return;
        };
        for path in std::env::split_paths(&paths) {
            let gguf = path.is_file().then(|| Checkpoint::open(&path).unwrap());
            let before = ALLOCATOR.live_bytes();
            ALLOCATOR.restart_peak();
            let text = match &gguf {
                Some(gguf) => read_text(gguf, 0, false).unwrap(),
                None => TextModel::from_folder(&path, &[], None).map(|text| (text.tokenizer, text.template)).unwrap(),
            };
            let (peak, kept) = (ALLOCATOR.peak_bytes() - before, ALLOCATOR.live_bytes() - before);
            let (reserved, unit) = match &gguf {
                Some(gguf) => (loading_bytes(gguf), LOADING_BYTES_PER_ENTRY),
                None => (parsing_bytes(&path, &FILES), LOADING_BYTES_PER_BYTE),
            };
            let per_unit = |bytes: u64| bytes as f64 / (reserved / unit) as f64;
            println!("{}: {:.2} at most, {:.2} kept, for each", path.display(), per_unit(peak), per_unit(kept));
            assert!(peak <= reserved, "{}: {peak} bytes, reserved {reserved}", path.display());
            drop(text);
        }
    }
}
