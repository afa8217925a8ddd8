#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod builder;
mod error;
mod flush;
mod layout;
mod liveness;
mod op;
mod plan;
mod pool;
mod program;
mod slot;

pub use builder::{DeltaOperands, ProgramBuilder, ScanValues};
pub use error::{At, BuildError};
pub use flush::FlushMeter;
pub use layout::{ARENA_ALIGNMENT, ArenaLayout, CostModel, NoScratch, Planner};
pub use op::{
    Access, Activation, AttendSpec, Carry, Condition, HeadOrder, LinearPart, Op, RopeLayout, RouteSpec, ScanInput,
    ScanOutput, Scoring, Unary,
};
pub use plan::{MemoryPlan, StepBytes};
pub use pool::{PoolModel, Rounding};
pub use program::{Chain, ChainId, Label, Program, Step, StepId};
pub use slot::{DType, Dims, Extent, Slot, SlotInfo, SlotKind};
