//! What a prefill did, chunk by chunk.

use std::ops::Range;

use plimsoll_memguard::{MemorySample, Pressure};

use crate::{ChunkSize, Held};

/// One finished chunk.
#[derive(Debug, Clone, PartialEq)]
pub struct ChunkReport {
    /// Absolute position of the first row.
    pub start: usize,
    /// Tokens in the chunk.
    pub rows: usize,
    /// Rows it would have had with memory to spare.
    pub requested_rows: usize,
    /// Transient bytes the target asked for beforehand, all of them reserved while the chunk ran.
    pub planned_bytes: u64,
    /// Bytes beyond the plan that the tracker expected and the ledger gave: pools that take back what they handed out.
    pub charged_bytes: u64,
    /// What was left of the guard's slack: reserved elsewhere, and not grown into yet.
    pub slack_bytes: u64,
    /// What was seen of them: the target's own count if it keeps one; otherwise by how much the probe's footprint grew while
    /// the chunk ran (zero if it shrank); `None` without either.
    pub measured_bytes: Option<u64>,
    /// Growth of the footprint, keys and values apart; at most [`ChunkReport::predicted_bytes`] if the tracker knows its pools.
    pub growth_bytes: Option<i64>,
    /// What of it neither keys and values nor the target's own count explains.
    pub unexplained_bytes: Option<i64>,
    /// The probe's reading before the chunk.
    pub before: Option<MemorySample>,
    /// The probe's reading after the chunk, before the drain.
    pub after: Option<MemorySample>,
    /// The probe's reading after the drain; `None` without one.
    pub drained: Option<MemorySample>,
    /// What the target held before the chunk.
    pub held_before: Held,
    /// What the target held after the chunk, before the drain.
    pub held_after: Held,
    /// How close the machine was to its limit when the chunk was sized.
    pub pressure: Pressure,
    /// Time the target took, in seconds.
    pub seconds: f64,
}

impl ChunkReport {
    /// Bytes by which the chunk was expected to grow the footprint at most, keys and values apart; all reserved while it ran.
    #[must_use]
    pub fn predicted_bytes(&self) -> u64 {
        self.planned_bytes.saturating_add(self.charged_bytes).saturating_add(self.slack_bytes)
    }
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
    /// Most bytes that the reports of all chunks take: what a run of so many tokens keeps on the heap until its end.
    #[must_use]
    pub fn most_bytes(tokens: usize, chunk: ChunkSize) -> u64 {
        (chunk.most_chunks(tokens) as u64).saturating_mul(size_of::<ChunkReport>() as u64)
    }

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
    /// Tokens before the prefill's first, which were there already: from a prefix cache, or an earlier run.
    pub cached_tokens: usize,
    /// Bytes reserved now, for all kinds: the chunk's own transients are given back already.
    pub reserved_bytes: u64,
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

    /// Bytes that the system charges to the process, by the last reading of the chunk.
    #[must_use]
    pub fn footprint_bytes(&self) -> Option<u64> {
        self.chunk.drained.or(self.chunk.after).and_then(|sample| sample.footprint)
    }
}

#[expect(clippy::cast_precision_loss, reason = "token counts stay far below 2^53")]
fn rate(tokens: usize, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| tokens as f64 / seconds)
}
