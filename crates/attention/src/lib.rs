#![doc = include_str!("../README.md")]

#[cfg(feature = "candle")]
mod candle;
mod error;
mod isa;
mod kernels;
mod keys;
mod layout;
pub mod math;
mod plain;
mod plan;
pub mod reference;
mod route;
mod split;
mod tile;
mod transpose;
mod view;

#[cfg(feature = "candle")]
pub use candle::{CausalAttention, TensorRoute};
pub use error::Error;
pub use isa::Isa;
pub use layout::{KV_BLOCK_TOKENS, KvDtype, KvLayout, KvValues};
pub use route::{AttnParams, AttnShape, Route, RouteKind, Settings};
pub use view::{KvBlock, KvView};
