#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod cancel;
pub mod conformance;
mod driver;
mod error;
mod guard;
mod report;
mod size;
mod target;

pub use {
    cancel::CancelToken,
    driver::{Drain, Driver, DriverOptions},
    error::{MachineFull, PrefillError, StepError},
    guard::{Guard, LAST_RESERVE_BYTES, last_reserve_bytes, usable_bytes},
    report::{ChunkReport, Outcome, PrefillReport, Progress},
    size::{ChunkSize, DEFAULT_MAX_ROWS, GRANULE_ROWS},
    target::{Chunk, ChunkTarget, Held},
};
