//! What is read of the process's memory: the system's footprint, and the counts of the program's own allocator.

use crate::{ALLOCATOR, alloc};
use plimsoll_memguard::{MemorySample, Probe, ProcessMemory, system_probe};
use std::{fs, num::NonZeroUsize, sync::Arc, thread};

/// Up to this many processors the counters of `/proc/self/status` are near enough: Linux before 6.16 keeps some pages of them apart on each, and
/// they lag by at most 1 MiB then.
const FEW_PROCESSORS: usize = 8;

/// Footprint by the system, live bytes by the counting allocator, retained ones by the system's allocator. There is no device on the CPU.
///
/// The exact reading walks all pages of the process, 15 ms for each GiB: three of them would be a fifth of a small chunk. The counters take none.
pub(super) struct ProcessProbe {
    system: Option<Arc<dyn Probe>>,
    reads_status: bool,
}

impl ProcessProbe {
    pub(super) fn new() -> Self {
        let processors = thread::available_parallelism().map_or(usize::MAX, NonZeroUsize::get);
        Self { system: system_probe(), reads_status: processors <= FEW_PROCESSORS }
    }

    fn footprint(&self) -> Option<u64> {
        let status = || fs::read_to_string("/proc/self/status").ok();
        let counted = || ProcessMemory::from_status(&status()?).footprint_bytes();
        let exact = || self.system.as_ref()?.sample().footprint;
        if self.reads_status { counted().or_else(exact) } else { exact() }
    }
}

impl Probe for ProcessProbe {
    fn sample(&self) -> MemorySample {
        MemorySample {
            live: Some(ALLOCATOR.live_bytes()),
            retained: alloc::retained_bytes(),
            device: None,
            footprint: self.footprint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn both_readings_see_touched_memory() {
        for reads_status in [false, true] {
            let probe = ProcessProbe { system: system_probe(), reads_status };
            let before = probe.sample();
            let touched = vec![1_u8; 64 << 20];
            let after = probe.sample();
            let grown = |bytes: fn(&MemorySample) -> Option<u64>| {
                bytes(&after).unwrap().saturating_sub(bytes(&before).unwrap())
            };
            // Other tests allocate and free meanwhile.
            assert!(grown(|sample| sample.footprint) > 32 << 20, "{reads_status}: {before:?} {after:?}");
            assert!(grown(|sample| sample.live) > 32 << 20, "{before:?} {after:?}");
            assert_eq!(touched.len(), 64 << 20);
        }
    }
}
