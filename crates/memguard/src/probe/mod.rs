//! What the process really uses, sampled.

mod linux;
#[cfg(target_os = "macos")]
mod macos;
mod regions;

use std::sync::{Arc, Mutex, PoisonError};

pub(crate) use linux::field_bytes;
use linux::field_kib;
pub use linux::{LinuxProbe, ProcessMemory};
#[cfg(target_os = "macos")]
pub use macos::MacProbe;
pub use regions::Regions;

/// One reading of the process's memory. A number the platform cannot tell is `None`, never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemorySample {
    /// Bytes in live allocations, as counted by an allocator or device.
    pub live: Option<u64>,
    /// Bytes an allocator holds without a live allocation in them (its pool).
    pub retained: Option<u64>,
    /// Bytes the device driver counts for this process.
    pub device: Option<u64>,
    /// Bytes the operating system charges to this process; file pages it could drop are not in it.
    pub footprint: Option<u64>,
}

/// Reads memory at the moment it is asked. A reading may take a millisecond: sample per chunk, not per step.
pub trait Probe: Send + Sync {
    /// The state now; what cannot be read is `None`.
    fn sample(&self) -> MemorySample;
}

impl<P: Probe + ?Sized> Probe for &P {
    fn sample(&self) -> MemorySample {
        (**self).sample()
    }
}

impl<P: Probe + ?Sized> Probe for Box<P> {
    fn sample(&self) -> MemorySample {
        (**self).sample()
    }
}

impl<P: Probe + ?Sized> Probe for Arc<P> {
    fn sample(&self) -> MemorySample {
        (**self).sample()
    }
}

/// The probe of this platform; `None` where none is known, as outside Linux and macOS.
#[must_use]
pub fn system_probe() -> Option<Arc<dyn Probe>> {
    #[cfg(target_os = "linux")]
    return Some(Arc::new(LinuxProbe::new()));
    #[cfg(target_os = "macos")]
    return Some(Arc::new(MacProbe::new()));
    #[cfg(not(any(target_os = "linux", target_os = "macos")))]
    None
}

/// Gives samples written beforehand, in turn, and the last one for ever after: memory as a test wants it.
#[derive(Debug)]
pub struct FixedProbe {
    /// The samples to come, reversed; never empty.
    rest: Mutex<Vec<MemorySample>>,
}

impl FixedProbe {
    /// Gives `samples` in turn, then the last of them for ever.
    ///
    /// # Panics
    /// If `samples` is empty.
    #[must_use]
    pub fn new(samples: impl IntoIterator<Item = MemorySample>) -> Self {
        let mut rest: Vec<_> = samples.into_iter().collect();
        assert!(!rest.is_empty(), "a fixed probe needs at least one sample");
        rest.reverse();
        Self { rest: Mutex::new(rest) }
    }

    /// Samples in which only the footprint is known.
    ///
    /// # Panics
    /// If `footprints` is empty.
    #[must_use]
    pub fn footprints(footprints: impl IntoIterator<Item = u64>) -> Self {
        Self::new(
            footprints.into_iter().map(|bytes| MemorySample { footprint: Some(bytes), ..MemorySample::default() }),
        )
    }
}

impl Probe for FixedProbe {
    fn sample(&self) -> MemorySample {
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        if rest.len() > 1 { rest.pop().unwrap_or_default() } else { rest[0] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_probe_stays_at_its_last_sample() {
        let probe = FixedProbe::footprints([1, 2, 3]);
        let seen: Vec<_> = (0..5).map(|_| probe.sample().footprint.unwrap()).collect();
        assert_eq!(seen, [1, 2, 3, 3, 3]);
    }

    #[cfg(any(target_os = "linux", target_os = "macos"))]
    #[test]
    fn the_system_probe_sees_touched_memory_come_and_go() {
        const BYTES: u64 = 64 << 20;
        // Other tests of this binary use memory at the same time, so the bounds are wide.
        const SLACK: u64 = BYTES / 2;
        let probe = system_probe().unwrap();
        let before = probe.sample().footprint.unwrap();
        let memory = vec![1u8; usize::try_from(BYTES).unwrap()];
        let during = probe.sample().footprint.unwrap();
        assert!(std::hint::black_box(&memory).iter().all(|byte| *byte == 1));
        drop(memory);
        let after = probe.sample().footprint.unwrap();
        assert!(during > before + SLACK, "{before} -> {during}");
        assert!(after < during - SLACK, "{during} -> {after}");
    }
}
