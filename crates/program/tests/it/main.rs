//! The crate through its public API.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]
#![expect(clippy::cast_possible_truncation, reason = "sizes here are small")]

mod builder;
mod experts_and_recurrence;
mod interpret;
mod layout;
mod liveness;
mod llama;
mod memory_plan;
mod random;
mod random_programs;
