//! From what the user gave to token ids.

use crate::{cli::RunArgs, error::AppError};
use plimsoll_models::{
    chat::{ChatTemplate, Message},
    tokenizer::{AddSpecial, ParseSpecial, Tokenizer},
};
use std::{
    fs,
    io::{self, Read as _},
    path::Path,
};

/// What the user gave, before any model is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Given {
    Text(String),
    Ids(Vec<u32>),
}

/// Reads the prompt that the arguments name.
pub(super) fn read(args: &RunArgs) -> Result<Given, AppError> {
    let given = match (&args.prompt, &args.prompt_file, &args.token_ids) {
        (Some(text), _, _) => Given::Text(text.clone()),
        (None, Some(path), _) => Given::Text(read_text(path)?),
        (None, None, Some(path)) => Given::Ids(parse_ids(path, &read_text(path)?)?),
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

/// What `path` is called in messages.
fn shown(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}

fn read_text(path: &Path) -> Result<String, AppError> {
    let fault = |source| AppError::File { doing: "read", path: shown(path).into(), source };
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes).map_err(fault)?;
        bytes
    } else {
        fs::read(path).map_err(fault)?
    };
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
    text.split_whitespace().enumerate().map(parse).collect()
}

/// Token ids of the prompt, checked against the vocabulary. Text goes through the model's chat template unless `raw`, or unless the model has none.
pub(super) fn encode(
    given: Given,
    raw: bool,
    text: Option<&(Tokenizer, Option<ChatTemplate>)>,
    vocab_size: usize,
) -> Result<Vec<u32>, AppError> {
    let ids = match (given, text) {
        (Given::Ids(ids), _) => ids,
        (Given::Text(prompt), Some((tokenizer, Some(template)))) if !raw => {
            let text = template.render(&[Message::new("user", prompt)], true)?;
            // The template writes the special tokens itself.
            tokenizer.encode(&text, AddSpecial::No, ParseSpecial::Yes)?
        }
        (Given::Text(prompt), Some((tokenizer, _))) => {
            if !raw {
                tracing::warn!("the model has no chat template: the prompt is taken as it is");
            }
            tokenizer.encode(&prompt, AddSpecial::Yes, ParseSpecial::Yes)?
        }
        (Given::Text(_), None) => unreachable!("a missing tokenizer is an error unless ids are given"),
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
    fn ids_are_separated_by_any_white_space() {
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
