#![doc = include_str!("../README.md")]

mod aligned;
mod error;
mod sequence;
mod spec;
mod table;

pub use error::Error;
pub use sequence::Sequence;
pub use spec::{KvLayerSpec, KvSpec};
pub use table::BlockTable;
