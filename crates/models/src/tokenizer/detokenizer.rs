//! Ids to text as a stream: never half of a UTF-8 character.

use super::{Tokenizer, TokenizerError};

/// Whether special tokens leave their literal text in decoded text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkipSpecial {
    /// Leave them out.
    Yes,
    /// Write them, such as `<|im_end|>`.
    No,
}

/// Decodes token by token and gives out whole characters only.
///
/// Bytes of a character that later tokens may complete are held back. Bytes that no continuation can make valid become
/// U+FFFD as soon as that is certain, one for each maximal invalid run as in [`String::from_utf8_lossy`]. What all pushes and
/// the [`flush`](Self::flush) return, joined, is what [`Tokenizer::decode`] returns for all tokens. Allocates nothing once
/// its buffers have the size of the longest token.
#[derive(Debug)]
pub struct Detokenizer {
    skip_special: SkipSpecial,
    /// Whether no token has given bytes yet.
    at_start: bool,
    /// The start of a character, at most 3 bytes between pushes.
    pending: Vec<u8>,
    text: String,
}

impl Detokenizer {
    /// A decoder at the start of a text: of the answer in a chat, where a space that only the tokenizer put in front is left out.
    pub const fn new(skip_special: SkipSpecial) -> Self {
        Self { skip_special, at_start: true, pending: Vec::new(), text: String::new() }
    }

    /// A decoder in the middle of a text, for what continues a prompt: the space before its first word belongs to it.
    pub const fn continuing(skip_special: SkipSpecial) -> Self {
        Self { skip_special, at_start: false, pending: Vec::new(), text: String::new() }
    }

    /// Takes the next token and returns the text that has become certain, often empty.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`] if `id` is past the vocabulary; the state is then unchanged.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<&str, TokenizerError> {
        let mut bytes = tokenizer.token_bytes(id)?;
        self.text.clear();
        if self.skip_special == SkipSpecial::No || !tokenizer.is_special(id) {
            if self.at_start && !bytes.is_empty() {
                self.at_start = false;
                bytes = tokenizer.without_added_space(bytes);
            }
            self.pending.extend_from_slice(bytes);
            let rest = move_certain(&self.pending, &mut self.text);
            self.pending.drain(..self.pending.len() - rest);
        }
        Ok(&self.text)
    }

    /// Ends the text: an unfinished character becomes U+FFFD. The decoder is then at the start of a text.
    pub fn flush(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.text.push(char::REPLACEMENT_CHARACTER);
            self.pending.clear();
        }
        self.at_start = true;
        &self.text
    }
}

/// Appends the characters of `bytes`; returns how many bytes at the end are an unfinished character.
fn move_certain(bytes: &[u8], text: &mut String) -> usize {
    let mut rest = bytes;
    loop {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                return 0;
            }
            Err(error) => {
                let (valid, after) = rest.split_at(error.valid_up_to());
                text.push_str(std::str::from_utf8(valid).expect("valid up to here"));
                let Some(invalid) = error.error_len() else { return after.len() };
                text.push(char::REPLACEMENT_CHARACTER);
                rest = &after[invalid..];
            }
        }
    }
}
