#![doc = include_str!("../README.md")]
#![cfg_attr(not(target_os = "macos"), forbid(unsafe_code))]

mod byte_size;
mod ceiling;
mod error;
mod estimate;
mod ledger;
mod mounts;
mod pressure;
mod probe;
mod profile;
mod sizing;
mod sync;
mod tracker;

#[cfg(target_os = "macos")]
pub use probe::MacProbe;
pub use {
    byte_size::{ByteSize, ByteSizeError},
    ceiling::{Ceiling, CeilingSource, Ceilings, Policy, PolicyBudget, RunsOn, UnknownPolicy},
    error::ReserveError,
    estimate::{
        AttentionPrice, AttentionShape, ClosedForm, CompressedShape, Config, Estimate, EstimateError, EstimateSettings,
        ExpertsShape, FeedForward, IndexerShape, LatentShape, LayerShape, Metadata, Mixer, ModelShape, Parameters,
        PoolShape, RecurrentShape, Registry, StorageFormat, TransientSource, WeightFormats, longest_context,
        peak_bytes,
    },
    ledger::{Budget, Canceller, Evict, Kind, Ledger, Reservation, Ticket, Usage},
    mounts::is_in_memory,
    pressure::{FixedMachine, Machine, Pressure, PressureGauge, Room, SystemMachine, Watermarks},
    probe::{FixedProbe, LinuxProbe, MemorySample, Probe, ProcessMemory, Regions, system_probe},
    profile::{Pass, Profile},
    sizing::{ChunkChoice, ChunkLimits},
    tracker::{Sample, TrackerConfig, TransientTracker},
};
