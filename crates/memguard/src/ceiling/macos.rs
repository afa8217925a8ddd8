//! macOS: the size of RAM. The Metal working set belongs to the device, which this crate does not know.
#![expect(unsafe_code, reason = "the size of RAM is only to be had through a system call")]

use super::{Ceiling, CeilingSource};

pub(super) fn ceilings() -> Vec<Ceiling> {
    ram_bytes().map(|bytes| Ceiling { source: CeilingSource::Ram, bytes, used_bytes: None }).into_iter().collect()
}

fn ram_bytes() -> Option<u64> {
    let mut bytes = 0u64;
    let mut len = size_of::<u64>();
    // SAFETY: `hw.memsize` is a 64-bit integer, `len` says that `bytes` has room for one, and the name ends in NUL.
    let status = unsafe {
        libc::sysctlbyname(c"hw.memsize".as_ptr(), (&raw mut bytes).cast(), &raw mut len, std::ptr::null_mut(), 0)
    };
    (status == 0 && len == size_of::<u64>() && bytes > 0).then_some(bytes)
}
