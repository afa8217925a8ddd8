//! From what the user gave to token ids.

use super::{budget::Budget, text::Text};
use crate::{
    ALLOCATOR,
    cli::RunArgs,
    error::{AppError, Longest},
    interrupt::interruptible,
};
use plimsoll_memguard::Kind;
use plimsoll_models::{
    chat::Message,
    tokenizer::{AddSpecial, ParseSpecial, Tokenizer},
};
use plimsoll_prefill::CancelToken;
use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

/// Bytes of a prompt that are not priced: the program itself takes many times that, and a budget too small for it has better words for that.
const UNPRICED_BYTES: u64 = 1 << 16;

/// Heap per byte of a text while it becomes ids, at most: the text, an id per byte in a vector that doubles, and what the tokenizer needs for
/// the longest piece, which may be all of it.
const ENCODING_BYTES_PER_BYTE: u64 = 64;

/// Heap per byte of a prompt's text that any chat template takes: the text, its copy as a value of the template, a copy trimmed, the output in
/// a buffer that doubles, and the output again as text.
const RENDERING_BYTES_PER_BYTE: u64 = 8;

/// Heap that a chat template may take before the library stops it: values of this much for each byte of the messages and this much beside,
/// and an output of up to 16 bytes for each, in a buffer that doubles and is copied once.
const TEMPLATE_BYTES_PER_BYTE: u64 = 64 + 4 * 16;
const TEMPLATE_BYTES: u64 = (128 + 4) << 20;

/// The same for a text of ids: at least two bytes for each id of four, in a vector that doubles.
const PARSING_BYTES_PER_BYTE: u64 = 8;

/// The same for a file that is read: a vector that doubles has its old and its new copy at once.
const READING_BYTES_PER_BYTE: u64 = 3;

/// What the user gave, before any model is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Given {
    Text(String),
    Ids(Vec<u32>),
}

impl Given {
    /// Bytes of the text; `None` for ids.
    pub(super) fn text_bytes(&self) -> Option<u64> {
        match self {
            Self::Text(text) => Some(text.len() as u64),
            Self::Ids(_) => None,
        }
    }
}

/// Reads the prompt that the arguments name, if the budget can hold it; Ctrl-C ends the wait for a pipe.
pub(super) fn read(args: &RunArgs, budget: &Budget, cancel: &CancelToken) -> Result<Given, AppError> {
    let given = match (&args.prompt, &args.prompt_file, &args.token_ids) {
        (Some(text), _, _) => Given::Text(text.clone()),
        (None, Some(path), _) => Given::Text(read_text(path, budget, cancel)?),
        (None, None, Some(path)) => {
            let text = read_text(path, budget, cancel)?;
            let bytes = priced(text.len() as u64, PARSING_BYTES_PER_BYTE);
            let _parsing = budget.borrow(Kind::Overhead, bytes, "reading the ids")?;
            Given::Ids(parse_ids(path, &text)?)
        }
        (None, None, None) => {
            return Err(AppError::Usage("no prompt: give --prompt, --prompt-file or --token-ids".to_owned()));
        }
    };
    let is_empty = match &given {
        Given::Text(text) => text.is_empty(),
        Given::Ids(ids) => ids.is_empty(),
    };
    match is_empty {
        true => Err(AppError::Usage("the prompt is empty: no token to start from".to_owned())),
        false => Ok(given),
    }
}

/// A prompt whose text is final.
enum Rendered {
    Text(String, AddSpecial),
    Ids(Vec<u32>),
}

/// Token ids of the prompt, checked against the vocabulary, within the budget; the text side comes back. Ctrl-C ends it.
///
/// A chat template runs first, and the ids are paid for by the length of what it made. For the template itself, what the library lets any
/// template take is reserved, or all that is left if that is less, but never less than every template needs. Real templates take a small part
/// of it; one that took more than was reserved, as the allocator counted, is refused once it has ended: what it had is freed by then.
pub(super) fn to_ids(
    given: Given,
    text: Option<Text>,
    raw: bool,
    vocab_size: usize,
    budget: &Budget,
    cancel: &CancelToken,
) -> Result<(Vec<u32>, Option<Text>), AppError> {
    const RENDERING: &str = "rendering the chat template";
    const ENCODING: &str = "tokenizing the prompt";
    let is_rendered = !raw && matches!((&given, &text), (Given::Text(_), Some((_, Some(_)))));
    let bytes = match given.text_bytes() {
        Some(bytes) if is_rendered => rendering_bytes(bytes, budget.free_bytes()),
        _ => 0,
    };
    let rendering = budget.borrow(Kind::Overhead, bytes, RENDERING)?;
    let before = ALLOCATOR.live_bytes();
    ALLOCATOR.restart_peak();
    let (rendered, text) =
        interruptible(cancel, RENDERING, move || render(given, raw, text.as_ref()).map(|rendered| (rendered, text)))??;
    drop(rendering);
    let taken = ALLOCATOR.peak_bytes().saturating_sub(before);
    if is_rendered && taken > bytes.saturating_add(UNPRICED_BYTES) {
        return Err(budget.shortfall(RENDERING, taken, Longest::Unknown));
    }
    let bytes = match &rendered {
        Rendered::Text(text, _) => priced(text.len() as u64, ENCODING_BYTES_PER_BYTE),
        Rendered::Ids(_) => 0,
    };
    let _encoding = budget.borrow(Kind::Overhead, bytes, ENCODING)?;
    interruptible(cancel, ENCODING, move || encode(rendered, text.as_ref(), vocab_size).map(|ids| (ids, text)))?
}

/// What is reserved while a chat template runs on a text of `text_bytes`.
fn rendering_bytes(text_bytes: u64, free_bytes: Option<u64>) -> u64 {
    let allowed = text_bytes.saturating_mul(TEMPLATE_BYTES_PER_BYTE).saturating_add(TEMPLATE_BYTES);
    allowed.min(free_bytes.unwrap_or(u64::MAX)).max(priced(text_bytes, RENDERING_BYTES_PER_BYTE))
}

fn priced(text_bytes: u64, bytes_per_byte: u64) -> u64 {
    text_bytes.saturating_sub(UNPRICED_BYTES).saturating_mul(bytes_per_byte)
}

/// What `path` is called in messages.
fn shown(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}

fn read_text(path: &Path, budget: &Budget, cancel: &CancelToken) -> Result<String, AppError> {
    let limit = (budget.free_bytes().unwrap_or(u64::MAX) / READING_BYTES_PER_BYTE).max(UNPRICED_BYTES);
    let owned = path.to_owned();
    let read = interruptible(cancel, format!("reading {}", shown(path)), move || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        // A pipe or a device may never end: one byte past the limit tells that it is too long.
        let limit = limit.saturating_add(1);
        match owned == Path::new("-") {
            true => io::stdin().lock().take(limit).read_to_end(&mut bytes)?,
            false => File::open(&owned)?.take(limit).read_to_end(&mut bytes)?,
        };
        Ok(bytes)
    })?;
    let bytes = read.map_err(|source| AppError::File { doing: "read", path: shown(path).into(), source })?;
    if bytes.len() as u64 > limit {
        let needed = READING_BYTES_PER_BYTE.saturating_mul(bytes.len() as u64);
        return Err(budget.shortfall("reading the prompt", needed, Longest::Unknown));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        AppError::Usage(format!("{} is not UTF-8 text: byte {at} starts no character", shown(path)))
    })
}

fn parse_ids(path: &Path, text: &str) -> Result<Vec<u32>, AppError> {
    let parse = |(index, word): (usize, &str)| {
        word.parse().map_err(|_| {
            let word: String = word.chars().take(40).collect();
            AppError::Usage(format!("{}: word {} is \"{word}\", no token id", shown(path), index + 1))
        })
    };
    // Some editors put the mark of UTF-8 before the text.
    text.strip_prefix('\u{feff}').unwrap_or(text).split_whitespace().enumerate().map(parse).collect()
}

/// Fewest tokens that `text_bytes` bytes can become: as many as there were if each were the vocabulary's longest token.
pub(super) fn least_tokens(text_bytes: u64, tokenizer: &Tokenizer) -> usize {
    let ids = 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
    let longest = ids.filter_map(|id| tokenizer.token_bytes(id).ok().map(<[u8]>::len)).max().unwrap_or(1);
    usize::try_from(text_bytes.div_ceil(longest.max(1) as u64)).unwrap_or(usize::MAX)
}

/// Text goes through the model's chat template unless `raw`, or unless the model has none.
fn render(given: Given, raw: bool, text: Option<&Text>) -> Result<Rendered, AppError> {
    Ok(match (given, text) {
        (Given::Ids(ids), _) => Rendered::Ids(ids),
        (Given::Text(prompt), Some((_, Some(template)))) if !raw => {
            // The template writes the special tokens itself.
            Rendered::Text(template.render(&[Message::new("user", prompt)], true)?, AddSpecial::No)
        }
        (Given::Text(prompt), _) => {
            if !raw {
                tracing::warn!("the model has no chat template: the prompt is taken as it is");
            }
            Rendered::Text(prompt, AddSpecial::Yes)
        }
    })
}

fn encode(rendered: Rendered, text: Option<&Text>, vocab_size: usize) -> Result<Vec<u32>, AppError> {
    let ids = match (rendered, text) {
        (Rendered::Ids(ids), _) => ids,
        (Rendered::Text(text, special), Some((tokenizer, _))) => tokenizer.encode(&text, special, ParseSpecial::Yes)?,
        (Rendered::Text(..), None) => unreachable!("a missing tokenizer is an error unless ids are given"),
    };
    if ids.is_empty() {
        return Err(AppError::Usage("the prompt is empty: no token to start from".to_owned()));
    }
    match ids.iter().position(|&id| id as usize >= vocab_size) {
        Some(at) => Err(AppError::Usage(format!(
            "token id {} at place {} is outside of the vocabulary: the model has ids 0 to {}",
            ids[at],
            at + 1,
            vocab_size - 1
        ))),
        None => Ok(ids),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_gets_what_it_may_take_or_what_is_left_but_no_less_than_it_needs() {
        const MIB: u64 = 1 << 20;
        assert_eq!(rendering_bytes(MIB, None), (128 + 132) * MIB);
        assert_eq!(rendering_bytes(MIB, Some(1 << 40)), (128 + 132) * MIB);
        assert_eq!(rendering_bytes(MIB, Some(100 * MIB)), 100 * MIB);
        // More than is left: refused.
        assert_eq!(rendering_bytes(MIB, Some(MIB)), 8 * (MIB - UNPRICED_BYTES));
        assert_eq!(rendering_bytes(10, Some(0)), 0);
    }

    #[test]
    fn ids_are_separated_by_any_white_space() {
        assert_eq!(parse_ids(Path::new("f"), "\u{feff}5 6").unwrap(), [5, 6]);
        assert_eq!(parse_ids(Path::new("f"), " 1\n22\t3 \r\n").unwrap(), [1, 22, 3]);
    }

    #[test]
    fn a_word_that_is_no_id_is_named_with_its_place() {
        let message = |text: &str| parse_ids(Path::new("ids.txt"), text).unwrap_err().to_string();
        assert_eq!(message("1 2 x3"), "ids.txt: word 3 is \"x3\", no token id");
        assert_eq!(message("-1"), "ids.txt: word 1 is \"-1\", no token id");
        assert_eq!(message("4294967296"), "ids.txt: word 1 is \"4294967296\", no token id");
    }
}
