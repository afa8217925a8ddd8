//! macOS: the physical footprint, the number by which the system itself judges a process.
#![expect(unsafe_code, reason = "the footprint is only to be had through a system call")]

use super::{MemorySample, Probe};

/// Samples `ri_phys_footprint` of `proc_pid_rusage`, the same ledger entry as `phys_footprint` of `task_info`.
/// Metal buffers and compressed pages are in it.
#[derive(Debug, Clone, Copy, Default)]
pub struct MacProbe(());

impl MacProbe {
    /// A probe of this process.
    #[must_use]
    pub fn new() -> Self {
        Self(())
    }
}

impl Probe for MacProbe {
    fn sample(&self) -> MemorySample {
        MemorySample { footprint: footprint_bytes(), ..MemorySample::default() }
    }
}

fn footprint_bytes() -> Option<u64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage_info_v2>::zeroed();
    // SAFETY: the flavor names the struct that `usage` has room for, and the call writes no further than that.
    let status = unsafe {
        libc::proc_pid_rusage(libc::getpid(), libc::RUSAGE_INFO_V2, usage.as_mut_ptr().cast::<libc::rusage_info_t>())
    };
    // SAFETY: every field is an integer, for which zeroed memory is already a valid value.
    (status == 0).then(|| unsafe { usage.assume_init() }.ri_phys_footprint)
}
