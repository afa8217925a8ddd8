//! The public API: bits, accuracy, routes and errors.
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod bits;
mod latent;
mod oracle;
mod routes;
mod support;
#[cfg(feature = "candle")]
mod tensors;
mod views;
