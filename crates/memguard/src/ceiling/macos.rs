//! macOS: RAM, what of it could be had now, and the wired limit of the GPU. The Metal working set belongs to the device,
//! which this crate does not know.
#![cfg_attr(target_os = "macos", expect(unsafe_code, reason = "these numbers are only to be had through system calls"))]

use super::{Ceiling, CeilingSource};

/// What the system says about memory; what it does not say is `None`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Facts {
    /// `hw.memsize`.
    pub(super) ram_bytes: Option<u64>,
    /// `iogpu.wired_limit_mb`, in MiB whatever its name says; 0 stands for "not set".
    pub(super) wired_limit_mib: Option<u64>,
    pub(super) pages: Option<Pages>,
}

/// Pages by state, of `host_statistics64`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pages {
    pub(super) page_bytes: u64,
    /// Speculative ones included.
    pub(super) free: u64,
    /// Not used for a while: taken before anything is compressed.
    pub(super) inactive: u64,
    /// Emptied by their owners on request.
    pub(super) purgeable: u64,
}

impl Facts {
    pub(super) fn ceilings(&self) -> Vec<Ceiling> {
        let ceiling = |source, bytes| Ceiling { source, bytes, used_bytes: None };
        let available = self.pages.map(|pages| {
            let count = pages.free.saturating_add(pages.inactive).saturating_add(pages.purgeable);
            let bytes = count.saturating_mul(pages.page_bytes);
            // Some inactive pages are purgeable too: never more than there is.
            bytes.min(self.ram_bytes.unwrap_or(u64::MAX))
        });
        let wired = self.wired_limit_mib.filter(|mib| *mib > 0).map(|mib| mib.saturating_mul(1 << 20));
        [
            self.ram_bytes.map(|bytes| ceiling(CeilingSource::Ram, bytes)),
            available.map(|bytes| ceiling(CeilingSource::RamAvailable, bytes)),
            wired.map(|bytes| ceiling(CeilingSource::WiredLimit, bytes)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Asks the system.
#[cfg(target_os = "macos")]
pub(super) fn read() -> Facts {
    Facts { ram_bytes: sysctl_u64(c"hw.memsize"), wired_limit_mib: wired_limit_mib(), pages: pages() }
}

#[cfg(target_os = "macos")]
fn sysctl_u64(name: &std::ffi::CStr) -> Option<u64> {
    let mut value = 0u64;
    let mut len = size_of::<u64>();
    // SAFETY: `len` says that `value` has room for eight bytes, and the name ends in NUL.
    let status =
        unsafe { libc::sysctlbyname(name.as_ptr(), (&raw mut value).cast(), &raw mut len, std::ptr::null_mut(), 0) };
    (status == 0 && len == size_of::<u64>()).then_some(value)
}

/// The limit is a 32-bit number, and signed.
#[cfg(target_os = "macos")]
fn wired_limit_mib() -> Option<u64> {
    let mut value = 0i32;
    let mut len = size_of::<i32>();
    // SAFETY: `len` says that `value` has room for four bytes, and the name ends in NUL.
    let status = unsafe {
        libc::sysctlbyname(
            c"iogpu.wired_limit_mb".as_ptr(),
            (&raw mut value).cast(),
            &raw mut len,
            std::ptr::null_mut(),
            0,
        )
    };
    (status == 0 && len == size_of::<i32>()).then(|| u64::try_from(value).ok()).flatten()
}

#[cfg(target_os = "macos")]
fn pages() -> Option<Pages> {
    unsafe extern "C" {
        fn mach_host_self() -> u32;
    }
    let mut statistics = std::mem::MaybeUninit::<libc::vm_statistics64>::zeroed();
    let mut count = libc::HOST_VM_INFO64_COUNT;
    // SAFETY: the flavor names the struct that `statistics` has room for, and `count` says how many words that is.
    let status = unsafe {
        libc::host_statistics64(
            mach_host_self(),
            libc::HOST_VM_INFO64,
            statistics.as_mut_ptr().cast::<libc::integer_t>(),
            &raw mut count,
        )
    };
    // SAFETY: no arguments; a constant of the system.
    let page_bytes = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    if status != 0 {
        return None;
    }
    // SAFETY: every field is an integer, for which zeroed memory is already a valid value.
    let statistics = unsafe { statistics.assume_init() };
    Some(Pages {
        page_bytes,
        free: u64::from(statistics.free_count),
        inactive: u64::from(statistics.inactive_count),
        purgeable: u64::from(statistics.purgeable_count),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn found(facts: Facts) -> Vec<(CeilingSource, u64)> {
        facts.ceilings().into_iter().map(|ceiling| (ceiling.source, ceiling.bytes)).collect()
    }

    #[test]
    fn a_mac_has_ram_what_is_available_and_a_wired_limit_if_it_was_set() {
        let pages = Pages { page_bytes: 16_384, free: 65_536, inactive: 131_072, purgeable: 65_536 };
        let facts = Facts { ram_bytes: Some(36 * GIB), wired_limit_mib: Some(28 << 10), pages: Some(pages) };
        let want = [
            (CeilingSource::Ram, 36 * GIB),
            (CeilingSource::RamAvailable, 4 * GIB),
            (CeilingSource::WiredLimit, 28 * GIB),
        ];
        assert_eq!(found(facts), want);
        assert_eq!(found(Facts { wired_limit_mib: Some(0), ..facts }), want[..2], "0: not set");
    }

    #[test]
    fn a_mac_that_says_nothing_has_no_ceilings() {
        assert_eq!(found(Facts::default()), []);
        let odd = Pages { page_bytes: 16_384, free: u64::MAX, inactive: 7, purgeable: 0 };
        let facts = Facts { ram_bytes: Some(8 * GIB), wired_limit_mib: None, pages: Some(odd) };
        assert_eq!(found(facts)[1], (CeilingSource::RamAvailable, 8 * GIB));
    }
}
