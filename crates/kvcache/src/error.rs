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
    /// More rows since the last commit than a layer with a window was priced for.
    #[error("layer {layer}: {rows} rows since the last commit, its window is priced for chunks of {max_chunk_rows}")]
    ChunkRows { layer: usize, rows: usize, max_chunk_rows: usize },
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
    /// What the layer held at that length is gone: the tokens from `from` on must go through the model again.
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
    /// Blocks that were cut off while a fork or a cache held them took their price along, and the ledger has no other bytes.
    #[error("{missing_bytes} bytes for blocks that replace shared ones could not be reserved")]
    Unpaid { missing_bytes: u64 },
    /// A pass is under way: some layers hold more tokens than others.
    #[error("layer {layer} holds {layer_tokens} tokens, the sequence {len_tokens}: commit or truncate first")]
    Uncommitted { layer: usize, layer_tokens: usize, len_tokens: usize },
    /// A hit is put only into a sequence that holds nothing.
    #[error("the sequence holds {len_tokens} tokens already, a prefix needs an empty one")]
    NotEmpty { len_tokens: usize },
    /// Bytes of one ledger cannot pay for those of another.
    #[error("the reservation is of another ledger")]
    OtherLedger,
    /// Layers, windows or KV type are not those that the cache was made for.
    #[error("the sequence's layers are not those of the prefix cache")]
    OtherSpec,
    /// The blocks do not make a view.
    #[error(transparent)]
    View(#[from] plimsoll_attention::Error),
}
