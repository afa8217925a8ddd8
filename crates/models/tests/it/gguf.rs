//! GGUF files: what is read, what is written, and what is refused.

#![expect(clippy::unwrap_used, reason = "a test may end at the first thing that is not there")]

mod bad_files;
mod mutations;
mod questions;
mod raw;
mod round_trip;
mod split;

#[cfg(target_os = "linux")]
mod pages;
