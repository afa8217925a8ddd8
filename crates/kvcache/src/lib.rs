#![doc = include_str!("../README.md")]

mod aligned;
mod error;
mod group;
mod prefix;
mod recurrent;
mod sequence;
mod slab;
mod spec;
mod table;

pub use error::Error;
pub use prefix::{CacheIdentity, DiskOptions, DiskStats, Hit, PrefixCache};
pub use recurrent::StateStep;
pub use sequence::Sequence;
pub use spec::{KvLayerSpec, KvSpec, LayerSpec, RecurrentSpec, Snapshots};
pub use table::BlockTable;
