//! Why a reservation was refused.

/// Why the ledger refused. Callers map each variant to an answer (wait, refuse); nobody matches on the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "field names say what they hold and in which unit")]
#[non_exhaustive]
pub enum ReserveError {
    /// Fits once other reservations are given back.
    #[error("{needed_bytes} bytes needed, {free_bytes} of the {budget_bytes}-byte budget are free")]
    Later { needed_bytes: u64, free_bytes: u64, budget_bytes: u64 },
    /// Fits never, whatever else ends: it is larger than the budget without the resident kinds (weights and overhead).
    ///
    /// The ledger knows bytes, not tokens: it leaves `max_context_tokens` empty, and the caller that knows the model
    /// fills it by [`ReserveError::with_max_context`].
    #[error(
        "{needed_bytes} bytes needed, the budget is {budget_bytes}, {resident_bytes} of it held by weights and overhead{}",
        longest(.max_context_tokens)
    )]
    Never { needed_bytes: u64, budget_bytes: u64, resident_bytes: u64, max_context_tokens: Option<usize> },
    /// Others wait for memory and go first, even if this would fit now.
    #[error("{needed_bytes} bytes needed, {free_bytes} are free, and {waiting} earlier requests wait for memory")]
    Behind { needed_bytes: u64, free_bytes: u64, waiting: usize },
    /// Waited for its turn and its bytes, in vain.
    #[error(
        "{needed_bytes} bytes needed, {free_bytes} of the {budget_bytes}-byte budget are free after a wait of {waited_ms} ms"
    )]
    TimedOut { needed_bytes: u64, free_bytes: u64, budget_bytes: u64, waited_ms: u64 },
    /// The wait was cancelled.
    #[error("the wait for {needed_bytes} bytes was cancelled")]
    Cancelled { needed_bytes: u64 },
    /// The sum of all reservations would pass 2^64 - 1 bytes; only an unlimited budget gets here.
    #[error("{needed_bytes} bytes on top of {reserved_bytes} reserved ones cannot be counted in 64 bits")]
    Uncountable { needed_bytes: u64, reserved_bytes: u64 },
}

impl ReserveError {
    /// The same error, saying how many tokens of context would fit. Changes [`ReserveError::Never`] only.
    #[must_use]
    pub fn with_max_context(mut self, tokens: usize) -> Self {
        if let Self::Never { max_context_tokens, .. } = &mut self {
            *max_context_tokens = Some(tokens);
        }
        self
    }

    /// Bytes that were asked for and not given.
    #[must_use]
    pub fn needed_bytes(&self) -> u64 {
        match *self {
            Self::Later { needed_bytes, .. }
            | Self::Behind { needed_bytes, .. }
            | Self::TimedOut { needed_bytes, .. }
            | Self::Cancelled { needed_bytes }
            | Self::Never { needed_bytes, .. }
            | Self::Uncountable { needed_bytes, .. } => needed_bytes,
        }
    }
}

fn longest(max_context_tokens: &Option<usize>) -> String {
    match max_context_tokens {
        Some(tokens) => format!("; {tokens} tokens of context would fit"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_context_is_named_only_when_known() {
        let never =
            ReserveError::Never { needed_bytes: 9, budget_bytes: 8, resident_bytes: 1, max_context_tokens: None };
        assert_eq!(never.to_string(), "9 bytes needed, the budget is 8, 1 of it held by weights and overhead");
        assert_eq!(
            never.with_max_context(77).to_string(),
            "9 bytes needed, the budget is 8, 1 of it held by weights and overhead; 77 tokens of context would fit"
        );
    }

    #[test]
    fn a_refusal_for_now_gets_no_longest_context() {
        let later = ReserveError::Later { needed_bytes: 9, free_bytes: 1, budget_bytes: 10 };
        assert_eq!(later.clone().with_max_context(77), later);
    }
}
