//! macOS: the physical footprint, the number by which the system itself judges a process, and its regions.
#![expect(unsafe_code, reason = "footprint and regions are only to be had through system calls")]

use std::mem::MaybeUninit;

use super::regions::{MacRegion, Regions};
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
    let mut usage = MaybeUninit::<libc::rusage_info_v2>::zeroed();
    // SAFETY: the flavor names the struct that `usage` has room for, and the call writes no further than that.
    let status = unsafe {
        libc::proc_pid_rusage(libc::getpid(), libc::RUSAGE_INFO_V2, usage.as_mut_ptr().cast::<libc::rusage_info_t>())
    };
    // SAFETY: every field is an integer, for which zeroed memory is already a valid value.
    (status == 0).then(|| unsafe { usage.assume_init() }.ri_phys_footprint)
}

/// `vm_region_submap_info_64` of `mach/vm_region.h`, which packs to four bytes.
#[repr(C, packed(4))]
#[derive(Clone, Copy)]
struct SubmapInfo {
    protection: i32,
    max_protection: i32,
    inheritance: u32,
    offset: u64,
    user_tag: u32,
    pages_resident: u32,
    pages_shared_now_private: u32,
    pages_swapped_out: u32,
    pages_dirtied: u32,
    ref_count: u32,
    shadow_depth: u16,
    external_pager: u8,
    share_mode: u8,
    is_submap: i32,
    behavior: i32,
    object_id: u32,
    user_wired_count: u16,
    pages_reusable: u32,
    object_id_full: u64,
}

/// The size of the struct in natural words, by which the kernel knows its version.
const INFO_COUNT: u32 = (size_of::<SubmapInfo>() / size_of::<u32>()) as u32;

unsafe extern "C" {
    static mach_task_self_: u32;
    fn mach_vm_region_recurse(
        task: u32,
        address: *mut u64,
        size: *mut u64,
        depth: *mut u32,
        info: *mut SubmapInfo,
        count: *mut u32,
    ) -> i32;
}

/// More regions than any process has: the walk ends even if the kernel gives no larger address.
const MAX_REGIONS: usize = 1 << 20;

/// Every region of this process, sorted by its tag; `None` if the kernel refuses the first one.
pub(super) fn regions() -> Option<Regions> {
    // SAFETY: no arguments; a constant of the system.
    let page_bytes = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    let mut regions = Regions::default();
    let (mut address, mut depth) = (0u64, 0u32);
    for index in 0..MAX_REGIONS {
        let (mut size, mut count) = (0u64, INFO_COUNT);
        let mut info = MaybeUninit::<SubmapInfo>::zeroed();
        // SAFETY: all pointers are to locals, and `count` says how many words `info` has room for.
        let status = unsafe {
            mach_vm_region_recurse(
                mach_task_self_,
                &raw mut address,
                &raw mut size,
                &raw mut depth,
                info.as_mut_ptr(),
                &raw mut count,
            )
        };
        if status != 0 {
            return (index > 0).then_some(regions);
        }
        // SAFETY: every field is an integer, for which zeroed memory is already a valid value.
        let info = unsafe { info.assume_init() };
        if info.is_submap != 0 {
            // The same address again, one level deeper.
            depth += 1;
            continue;
        }
        let region = MacRegion {
            tag: info.user_tag,
            is_file: info.external_pager != 0,
            resident_pages: info.pages_resident,
            dirtied_pages: info.pages_dirtied,
            swapped_pages: info.pages_swapped_out,
            reusable_pages: info.pages_reusable,
        };
        regions.add_macos(&region, page_bytes);
        address = address.checked_add(size)?;
    }
    Some(regions)
}
