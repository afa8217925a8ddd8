//! Behaviour of the public API, on every instruction set this machine has.
#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod bits;
#[cfg(feature = "candle")]
mod candle;
mod cases;
mod errors;
mod golden;
mod numbers;
mod packing;
mod quantize;
mod splits;
