#![doc = include_str!("../README.md")]

mod aligned;
mod error;
mod recurrent;
mod sequence;
mod spec;
mod table;

pub use error::Error;
pub use recurrent::StateStep;
pub use sequence::Sequence;
pub use spec::{KvLayerSpec, KvSpec, LayerSpec, RecurrentSpec};
pub use table::BlockTable;
