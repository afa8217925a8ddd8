//! One pass: the rows that go through the model together, whose they are, and which logits are wanted.

use plimsoll_kvcache::Sequence;
use plimsoll_program::Dims;

/// One sequence's part of a pass: `tokens` at positions `start..start + tokens.len()`.
#[derive(Debug)]
pub struct Segment<'a, S = Sequence> {
    /// Whose KV the rows read and extend.
    pub sequence: &'a mut S,
    /// Token ids of the rows.
    pub tokens: &'a [u32],
    /// Absolute position of the first row; what the sequence holds so far.
    pub start: usize,
}

/// The rows of a pass whose logits are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogitRows {
    /// None: a prefill chunk that is not the last.
    None,
    /// The last row of each segment.
    Last,
    /// Every row.
    All,
}

impl LogitRows {
    /// Indices within the pass of the wanted rows, ascending; `segment_rows`: rows of each segment.
    pub(crate) fn indices(self, segment_rows: impl Iterator<Item = usize>) -> impl Iterator<Item = usize> {
        let mut next = 0;
        segment_rows.flat_map(move |rows| {
            let start = next;
            next += rows;
            match self {
                Self::None => 0..0,
                Self::Last => next.saturating_sub(1).max(start)..next,
                Self::All => start..next,
            }
        })
    }
}

/// Sizes of the pass over `segments`; refuses what no pass can hold.
pub(crate) fn dims<S>(
    segments: &[Segment<'_, S>],
    logit_rows: LogitRows,
    vocab_size: usize,
) -> Result<Dims, ExecError> {
    let mut dims = Dims { rows: 0, logit_rows: 0, kv_len: 0 };
    for (index, segment) in segments.iter().enumerate() {
        if segment.tokens.is_empty() {
            return Err(ExecError::EmptySegment { segment: index });
        }
        let first_row = dims.rows;
        dims.rows += segment.tokens.len();
        dims.kv_len = dims.kv_len.max(segment.start + segment.tokens.len());
        if let Some(at) = segment.tokens.iter().position(|&id| id as usize >= vocab_size) {
            return Err(ExecError::TokenOutsideVocab { id: segment.tokens[at], row: first_row + at, vocab_size });
        }
    }
    if dims.rows == 0 {
        return Err(ExecError::EmptyPass);
    }
    if u32::try_from(dims.kv_len.max(dims.rows)).is_err() {
        return Err(ExecError::PositionsPast32Bits { kv_len: dims.kv_len });
    }
    dims.logit_rows = logit_rows.indices(segments.iter().map(|s| s.tokens.len())).count();
    Ok(dims)
}

/// Why a pass did not run, or stopped. The KV that earlier passes wrote stays usable.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "field names say what they hold")]
#[non_exhaustive]
pub enum ExecError {
    /// Nothing to do is a fault of the caller.
    #[error("the pass has no rows")]
    EmptyPass,
    /// A segment without tokens.
    #[error("segment {segment} of the pass has no tokens")]
    EmptySegment { segment: usize },
    /// An id that the embedding table does not have.
    #[error("token id {id} in row {row} is outside of the vocabulary of {vocab_size}")]
    TokenOutsideVocab { id: u32, row: usize, vocab_size: usize },
    /// Positions are 32-bit numbers.
    #[error("{kv_len} positions do not fit in 32 bits")]
    PositionsPast32Bits { kv_len: usize },
    /// The sequence could not take the rows.
    #[error("layer {layer}: {source}")]
    Kv {
        layer: usize,
        #[source]
        source: plimsoll_kvcache::Error,
    },
    /// The prefix cache is of another model or another budget, or the sequence could not take what it found.
    #[error("prefix cache: {0}")]
    PrefixCache(#[source] plimsoll_kvcache::Error),
    /// The attention kernels refused a shape.
    #[error("layer {layer}: {source}")]
    Attention {
        layer: usize,
        #[source]
        source: plimsoll_attention::Error,
    },
    /// The arena could not be had from the system.
    #[error("the arena of {bytes} bytes could not be allocated: {source}")]
    Arena {
        bytes: u64,
        #[source]
        source: std::io::Error,
    },
    /// The cancel flag was set. The sequences are cut back to where their segments start.
    #[error("cancelled")]
    Cancelled,
    /// Threads could not be started.
    #[error("{threads} threads could not be started: {source}")]
    Threads {
        threads: usize,
        #[source]
        source: rayon::ThreadPoolBuildError,
    },
    /// The program has a step that this executor does not run.
    #[error("step {step} ({op}): {reason}")]
    Step { step: usize, op: &'static str, reason: &'static str },
    /// A candle operation failed (candle executor only).
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indices(wanted: LogitRows) -> Vec<usize> {
        wanted.indices([3, 1, 2].into_iter()).collect()
    }

    #[test]
    fn wanted_rows_are_counted_across_segments() {
        assert_eq!(indices(LogitRows::None), [0usize; 0]);
        assert_eq!(indices(LogitRows::Last), [2, 3, 5]);
        assert_eq!(indices(LogitRows::All), [0, 1, 2, 3, 4, 5]);
    }
}
