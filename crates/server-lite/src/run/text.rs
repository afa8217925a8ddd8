//! The model's text side: tokenizer and chat template.

use super::budget::Budget;
use crate::{cli::RunArgs, error::AppError, interrupt::interruptible};
use plimsoll_memguard::Kind;
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

/// Tokenizer and chat template of the checkpoint, which comes back. Token ids need neither, so a model without them is then no fault.
///
/// Ctrl-C ends it. What it takes while it runs is reserved for a folder, whose files are parsed as a whole; the metadata of a GGUF file
/// are mapped and read one by one, and what is left in the end is measured with everything else that is resident after load.
pub(super) fn load(
    checkpoint: Checkpoint,
    args: &RunArgs,
    path: &Path,
    vocab_size: usize,
    budget: &Budget,
    cancel: &CancelToken,
) -> Result<(Checkpoint, Option<Text>), AppError> {
    const DOING: &str = "reading the tokenizer";
    let bytes = match &checkpoint {
        Checkpoint::Gguf(_) => 0,
        Checkpoint::Folder(folder) => loading_bytes(folder.path()),
    };
    let _loading = budget.borrow(Kind::Overhead, bytes, DOING)?;
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

/// What reading the text side of a folder takes at most.
pub(crate) fn loading_bytes(folder: &Path) -> u64 {
    // A file that is not there takes nothing; one that cannot be read is told of by who reads it.
    let bytes = FILES.iter().filter_map(|name| fs::metadata(folder.join(name)).ok()).map(|metadata| metadata.len());
    bytes.fold(0, u64::saturating_add).saturating_mul(LOADING_BYTES_PER_BYTE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ALLOCATOR;

    #[test]
    #[ignore = "slow: some seconds, needs folders with tokenizer.json, and no test beside it: the allocator counts them all"]
    fn reading_a_folder_takes_no_more_than_is_reserved() {
        let Some(folders) = std::env::var_os("PLIMSOLL_TEST_TOKENIZERS") else {
            println!("NOT RUN: PLIMSOLL_TEST_TOKENIZERS lists no folders with tokenizer.json");
            return;
        };
        for folder in std::env::split_paths(&folders) {
            let before = ALLOCATOR.live_bytes();
            ALLOCATOR.restart_peak();
            let text = TextModel::from_folder(&folder, &[], None).unwrap();
            let (peak, kept) = (ALLOCATOR.peak_bytes() - before, ALLOCATOR.live_bytes() - before);
            let reserved = loading_bytes(&folder);
            let per_byte = |bytes: u64| bytes as f64 / (reserved / LOADING_BYTES_PER_BYTE) as f64;
            println!("{}: {:.2} at most, {:.2} kept, for a byte", folder.display(), per_byte(peak), per_byte(kept));
            assert!(peak <= reserved, "{}: {peak} bytes, reserved {reserved}", folder.display());
            drop(text);
        }
    }
}
