#![doc = include_str!("../README.md")]

mod error;
mod isa;
mod kernels;
mod layout;
pub mod math;
mod plain;
pub mod reference;
mod route;
mod tile;
mod view;

pub use error::Error;
pub use isa::Isa;
pub use layout::{KV_BLOCK_TOKENS, KvDtype, KvLayout};
pub use route::{AttnParams, AttnShape, Route, RouteKind, Settings};
pub use view::{KvBlock, KvView};
