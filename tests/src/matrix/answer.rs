//! What a request gave, as hashes that can be compared over processes.

use crate::compare::{argmax, hash_row, hex};
use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Greedy tokens that each request asks for.
pub const GREEDY_TOKENS: usize = 32;

/// What a request gave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// SHA-256 of the logits of the prompt's last row.
    pub logits: String,
    /// The greedy tokens.
    pub tokens: Vec<u32>,
    /// SHA-256 of all logits that the tokens were taken from; `None` from a program that does not tell.
    pub steps: Option<String>,
    /// Whether the tokens ended early, at one that ends an answer.
    pub ended: bool,
}

impl Answer {
    /// SHA-256 of the tokens, as 32-bit little-endian numbers.
    #[must_use]
    pub fn tokens_sha256(&self) -> String {
        let mut hash = Sha256::new();
        for token in &self.tokens {
            hash.update(token.to_le_bytes());
        }
        hex(&hash.finalize())
    }

    /// Whether all that both tell is equal. An answer that ended early is compared up to there.
    #[must_use]
    pub fn agrees(&self, base: &Self) -> bool {
        let count = self.tokens.len();
        let whole = count == base.tokens.len() || (self.ended && count < base.tokens.len());
        let steps = match (&self.steps, &base.steps) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => true,
        };
        whole && steps && self.logits == base.logits && self.tokens[..] == base.tokens[..count]
    }
}

/// An answer in the making.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    logits: Option<String>,
    tokens: Vec<u32>,
    steps: Sha256,
}

impl Recorder {
    /// Takes the next token from a row of logits, that of the prompt's last row first.
    pub(super) fn take(&mut self, logits: &[f32]) -> u32 {
        let token = argmax(logits);
        let row = hash_row(logits);
        self.logits.get_or_insert_with(|| hex(&row));
        self.steps.update(row);
        self.tokens.push(token);
        token
    }

    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub(super) fn is_full(&self) -> bool {
        self.tokens.len() == GREEDY_TOKENS
    }

    pub(super) fn answer(self) -> Result<Answer> {
        ensure!(self.is_full(), "{} tokens instead of {GREEDY_TOKENS}", self.tokens.len());
        let steps = Some(hex(&self.steps.finalize()));
        Ok(Answer { logits: self.logits.unwrap_or_default(), tokens: self.tokens, steps, ended: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(logits: &str, tokens: &[u32], steps: Option<&str>, ended: bool) -> Answer {
        Answer { logits: logits.to_owned(), tokens: tokens.to_vec(), steps: steps.map(str::to_owned), ended }
    }

    #[test]
    fn answers_agree_in_all_that_both_tell() {
        let base = answer("a", &[1, 2, 3], Some("s"), false);
        for (other, agrees) in [
            (answer("a", &[1, 2, 3], Some("s"), false), true),
            (answer("a", &[1, 2, 3], None, false), true),
            (answer("a", &[1, 2], None, true), true),
            (answer("a", &[1, 2], None, false), false),
            (answer("a", &[1, 3], None, true), false),
            (answer("a", &[1, 2, 4], Some("s"), false), false),
            (answer("a", &[1, 2, 3, 4], Some("s"), true), false),
            (answer("b", &[1, 2, 3], Some("s"), false), false),
            (answer("a", &[1, 2, 3], Some("t"), false), false),
        ] {
            assert_eq!(other.agrees(&base), agrees, "{other:?}");
        }
    }
}
