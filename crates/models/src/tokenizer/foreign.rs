//! Tokenizers of kinds that are not ours, by Hugging Face's `tokenizers`: correct for all of them, but several times the memory.

use std::{fmt, sync::Mutex};

use super::{
    ParseSpecial, TokenizerError,
    json::MAX_GAPS,
    vocab::{Alphabet, Literal, TokenKind, Vocabulary, VocabularyBuilder},
};

/// A tokenizer made by the `tokenizers` crate. Only encoding is left to it.
pub(super) struct Foreign {
    /// Whether special tokens are read is a setting of the whole tokenizer.
    inner: Mutex<tokenizers::Tokenizer>,
}

impl fmt::Debug for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Foreign").finish_non_exhaustive()
    }
}

impl Foreign {
    /// Reads a whole `tokenizer.json`.
    pub(super) fn new(json: &[u8]) -> Result<Self, TokenizerError> {
        let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(|error| json_error(&error.to_string()))?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| json_error(&error.to_string()))?;
        Ok(Self { inner: Mutex::new(inner) })
    }

    pub(super) fn encode(&self, text: &str, parse: ParseSpecial) -> Result<Vec<u32>, TokenizerError> {
        // A panic of another thread inside of it leaves nothing half done but this setting.
        let mut inner = self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        inner.set_encode_special_tokens(parse == ParseSpecial::No);
        let encoding = inner.encode_fast(text, false);
        let encoding = encoding.map_err(|error| TokenizerError::Foreign { detail: one_line(&error.to_string()) })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Its vocabulary, cut or filled up to `vocab_size`.
    pub(super) fn vocabulary(
        &mut self,
        alphabet: Alphabet,
        vocab_size: Option<usize>,
    ) -> Result<(Vocabulary, Vec<Literal>), TokenizerError> {
        let inner = self.inner.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let added = inner.get_added_tokens_decoder();
        let ids = inner.get_vocab(true);
        let tokens = ids.values().max().map_or(0, |&id| id as usize + 1);
        if tokens > ids.len() + MAX_GAPS {
            let text_bytes = ids.keys().map(String::len).sum();
            return Err(TokenizerError::VocabularyTooLarge { tokens, text_bytes });
        }
        drop(ids);
        let mut builder = VocabularyBuilder::new(alphabet);
        for id in 0..vocab_size.unwrap_or(tokens) {
            let id = u32::try_from(id).map_err(|_| TokenizerError::VocabularyTooLarge { tokens, text_bytes: 0 })?;
            match (added.get(&id), inner.id_to_token(id)) {
                (Some(token), _) if token.special => builder.push(&token.content, TokenKind::Special, false)?,
                (Some(token), _) => builder.push(&token.content, TokenKind::UserDefined, false)?,
                (None, Some(token)) => {
                    let is_byte = super::byte_of_literal(&token).is_some();
                    builder.push(&token, if is_byte { TokenKind::Byte } else { TokenKind::Text }, false)?;
                }
                (None, None) => builder.push("", TokenKind::Special, false)?,
            }
        }
        builder.finish()
    }
}

pub(super) fn json_error(detail: &str) -> TokenizerError {
    TokenizerError::Json { detail: one_line(detail) }
}

/// What a file says may be long and have line breaks.
fn one_line(text: &str) -> String {
    let mut line: String = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(300).collect();
    if line.is_empty() {
        line.push_str("no reason given");
    }
    line
}
