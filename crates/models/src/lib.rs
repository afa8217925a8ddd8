#![doc = include_str!("../README.md")]

pub mod arch;
pub mod chat;
mod checkpoint;
mod error;
mod executor;
pub mod gguf;
mod kernels;
mod layers;
mod model;
mod prefix;
mod profile;
pub mod sampler;
mod session;
#[cfg(test)]
mod testing;
mod text;
pub mod tokenizer;

pub use checkpoint::{Checkpoint, CheckpointRef, Folder, FolderError, GenerationConfig, SafetensorsType, StoredType};
pub use error::ModelError;
pub use executor::{
    candle::{CandleExecutor, CandleSequence},
    cost::{CpuCost, CpuSettings},
    cpu::{CpuExecutor, Logits, PassStats},
    observer::{HashSteps, StepEvent, StepHash, StepObserver},
    pass::{ExecError, LogitRows, Segment},
};
pub use layers::rope::{Rope, RopeScaling};
pub use model::{Constant, LoadOptions, LoadPlan, Model, Outline, OutlineTypes, WeightTypes};
pub use prefix::CONTRACT_VERSION;
pub use profile::{CpuProfile, register_programs};
pub use session::{CandleSession, CpuSession, PromptTarget, Session};
pub use text::{TextError, TextModel};
