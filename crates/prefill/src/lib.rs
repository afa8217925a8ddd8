#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod cancel;
pub mod conformance;
mod driver;
mod error;
mod report;
mod size;
mod target;

pub use {
    cancel::CancelToken,
    driver::{Drain, Driver, DriverOptions},
    error::{PrefillError, StepError},
    report::{ChunkReport, Outcome, PrefillReport, Progress},
    size::{ChunkSize, DEFAULT_MAX_ROWS, GRANULE_ROWS},
    target::{Chunk, ChunkTarget},
};
