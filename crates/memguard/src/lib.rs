#![doc = include_str!("../README.md")]
#![cfg_attr(not(target_os = "macos"), forbid(unsafe_code))]

mod byte_size;
mod ceiling;
mod error;
mod ledger;
mod probe;
mod profile;
mod tracker;

#[cfg(target_os = "macos")]
pub use probe::MacProbe;
pub use {
    byte_size::{ByteSize, ByteSizeError},
    ceiling::{Ceiling, CeilingSource, Ceilings},
    error::ReserveError,
    ledger::{Budget, Kind, Ledger, Reservation, Usage},
    probe::{FixedProbe, LinuxProbe, MemorySample, Probe, ProcessMemory, system_probe},
    profile::{Pass, Profile},
    tracker::{Sample, TrackerConfig, TransientTracker},
};
