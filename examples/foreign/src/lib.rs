#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod glue;
mod llama;

pub use glue::{Prefill, causal_attention, prefill};
pub use llama::{KvCache, Llama, MakeLinear};
