//! What a prefill did, chunk by chunk.

use std::ops::Range;

use plimsoll_memguard::MemorySample;

/// One finished chunk.
#[derive(Debug, Clone, PartialEq)]
pub struct ChunkReport {
    /// Absolute position of the first row.
    pub start: usize,
    /// Tokens in the chunk.
    pub rows: usize,
    /// Transient bytes the target asked for beforehand, all of them reserved while the chunk ran.
    pub planned_bytes: u64,
    /// What was seen of them: the target's own count if it keeps one; otherwise by how much the probe's footprint grew while
    /// the chunk ran (zero if it shrank); `None` without either.
    pub measured_bytes: Option<u64>,
    /// The probe's reading before the chunk.
    pub before: Option<MemorySample>,
    /// The probe's reading after the chunk, before the drain.
    pub after: Option<MemorySample>,
    /// Time the target took, in seconds.
    pub seconds: f64,
}

/// How a prefill ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// All tokens are done.
    Completed,
    /// The token was cancelled; what was done stays usable.
    Cancelled,
}

/// All that a prefill did.
#[derive(Debug, Clone, PartialEq)]
pub struct PrefillReport {
    /// The positions that were asked for.
    pub tokens: Range<usize>,
    /// Every finished chunk, in order, without gaps, from `tokens.start` on.
    pub chunks: Vec<ChunkReport>,
    /// How it ended. After an error there is a report as well (in the error); it says `Cancelled` only if it was.
    pub outcome: Outcome,
    /// Time from start to end in seconds, drains and measurements included.
    pub seconds: f64,
}

impl PrefillReport {
    /// Finished tokens: the keys and values of `tokens.start..tokens.start + done_tokens()` are there.
    #[must_use]
    pub fn done_tokens(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.rows).sum()
    }

    /// Tokens that were asked for.
    #[must_use]
    pub fn total_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Finished tokens per second; `None` before any time has passed.
    #[must_use]
    pub fn tokens_per_second(&self) -> Option<f64> {
        rate(self.done_tokens(), self.seconds)
    }
}

/// Where a prefill stands, told after every chunk.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// The chunk that has just ended.
    pub chunk: &'a ChunkReport,
    /// Tokens done so far, this chunk included.
    pub done_tokens: usize,
    /// Tokens of the whole prefill.
    pub total_tokens: usize,
    /// Time since the start, in seconds.
    pub seconds: f64,
}

impl Progress<'_> {
    /// Tokens per second so far; `None` before any time has passed.
    #[must_use]
    pub fn tokens_per_second(&self) -> Option<f64> {
        rate(self.done_tokens, self.seconds)
    }

    /// Seconds left at the speed of the last chunk. Later chunks see more keys, so this errs on the low side.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "token counts stay far below 2^53")]
    pub fn seconds_left(&self) -> f64 {
        (self.total_tokens - self.done_tokens) as f64 * self.chunk.seconds / self.chunk.rows as f64
    }
}

#[expect(clippy::cast_precision_loss, reason = "token counts stay far below 2^53")]
fn rate(tokens: usize, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| tokens as f64 / seconds)
}
