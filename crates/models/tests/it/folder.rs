//! Model folders: what is read of them, and the line that each faulty or unsupported one is refused with.

#![expect(clippy::unwrap_used, reason = "a test may end at the first thing that is not there")]

mod build;
mod reading;
mod refusals;
