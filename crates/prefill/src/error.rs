//! Why a prefill ended early.

use plimsoll_memguard::{ReserveError, Room, Usage};

use crate::PrefillReport;

/// A prefill that could not go on. The tokens done before stay usable: go on from there, or drop them.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("prefill ended after {done_tokens} of {total_tokens} tokens")]
#[non_exhaustive]
pub struct PrefillError<E> {
    /// Tokens finished, counted from the start of the range.
    pub done_tokens: usize,
    /// Tokens that were asked for.
    pub total_tokens: usize,
    /// What was done before.
    pub report: Box<PrefillReport>,
    /// What happened.
    #[source]
    pub source: StepError<E>,
}

/// The machine is full, whatever the budget says: some bytes more do not fit what is left, and several readings in a row said so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the machine is full: {needed_bytes} bytes are needed, {} are left of {}",
    .room.left_bytes(), .room.ceiling_bytes
)]
pub struct MachineFull {
    /// Bytes that were to be added, with what is always left free.
    pub needed_bytes: u64,
    /// What the machine leaves, by the last reading.
    pub room: Box<Room>,
    /// What holds the rest, by the books.
    pub usage: Box<Usage>,
}

/// A chunk that did not run, or failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StepError<E> {
    /// The ledger had no room even for the smallest chunk allowed. Nothing ran.
    #[error("no memory for a chunk of {rows} tokens at position {start} ({planned_bytes} bytes)")]
    #[expect(missing_docs, reason = "field names say what they hold and in which unit")]
    Reserve { start: usize, rows: usize, planned_bytes: u64, source: ReserveError },
    /// The machine ran out, whatever the budget says: not even the smallest chunk's growth fits what is left, and several readings in a
    /// row said so. Nothing ran.
    #[error(
        "the machine has no memory for a chunk of {rows} tokens at position {start}: it adds {needed_bytes} bytes, {} are left of {}",
        .room.left_bytes(), .room.ceiling_bytes
    )]
    Pressure {
        /// Position of the first row.
        start: usize,
        /// Tokens of the smallest chunk.
        rows: usize,
        /// Bytes that it would add to the process, with what is always left free.
        needed_bytes: u64,
        /// What the machine leaves, by the last reading.
        room: Box<Room>,
        /// What holds the rest, by the books.
        usage: Box<Usage>,
    },
    /// The target failed; its transients were drained and given back.
    #[error("chunk of {rows} tokens at position {start} failed")]
    #[expect(missing_docs, reason = "field names say what they hold and in which unit")]
    Target { start: usize, rows: usize, source: E },
}
