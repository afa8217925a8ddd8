//! Executors: what runs a program. The CPU executor is the fast one; the candle executor runs the same steps on any candle device, plainly.

mod awake;
pub(crate) mod candle;
mod check;
pub(crate) mod cost;
pub(crate) mod cpu;
pub(crate) mod observer;
pub(crate) mod pass;

#[cfg(test)]
mod hybrid_tests;
#[cfg(test)]
mod tests;
