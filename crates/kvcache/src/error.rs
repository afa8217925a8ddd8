//! Why a cache refused, with the numbers that show it.

/// A refusal; the cache is unchanged, but that an append which found no memory has already forgotten the tokens at and past its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "field names say what they hold and in which unit")]
#[non_exhaustive]
pub enum Error {
    /// The reservation does not cover the sequence at its longest.
    #[error("{max_tokens} tokens need {needed_bytes} bytes of KV, {reserved_bytes} are reserved")]
    Reservation { max_tokens: usize, needed_bytes: u64, reserved_bytes: u64 },
    /// Rows past the end the sequence was made for.
    #[error("layer {layer}: rows end at token {end_tokens}, the sequence holds at most {max_tokens}")]
    Capacity { layer: usize, end_tokens: usize, max_tokens: usize },
    /// Rows that start past the last stored token.
    #[error("layer {layer}: rows start at token {start}, {len_tokens} are stored")]
    Gap { layer: usize, start: usize, len_tokens: usize },
    /// A view of more tokens than are stored.
    #[error("layer {layer}: a view of {kv_len} tokens, {len_tokens} are stored")]
    PastEnd { layer: usize, kv_len: usize, len_tokens: usize },
    /// A layer the specification does not have.
    #[error("layer {layer} of {layers}")]
    NoSuchLayer { layer: usize, layers: usize },
    /// A layer that holds something else.
    #[error("layer {layer} holds {found}, not {expected}")]
    LayerKind { layer: usize, expected: &'static str, found: &'static str },
    /// A recurrent state of that length is gone: the tokens from `from` on must go through the model again.
    #[error(
        "layer {layer}: its state after {len_tokens} tokens cannot be taken back to {tokens}; prefill again from token {from}"
    )]
    NeedsPrefill { layer: usize, tokens: usize, len_tokens: usize, from: usize },
    /// `k` or `v` is not `rows` tokens long.
    #[error("{slice} has {actual} elements, {rows} rows need {expected}")]
    SliceLength { slice: &'static str, rows: usize, expected: usize, actual: usize },
    /// The system refused memory that was reserved.
    #[error("the system has no {bytes} bytes for a sequence's state")]
    OutOfMemory { bytes: usize },
    /// The blocks do not make a view.
    #[error(transparent)]
    View(#[from] plimsoll_attention::Error),
}
