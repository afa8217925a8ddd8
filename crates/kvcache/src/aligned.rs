//! Zeroed bytes that start at a multiple of 64.
#![expect(unsafe_code, reason = "the standard collections cannot be aligned to a cache line")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Owned bytes, 64-byte aligned; zero when made.
#[derive(Debug)]
pub(crate) struct AlignedBytes {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory is owned by this value alone, like a `Box<[u8]>`.
unsafe impl Send for AlignedBytes {}
// SAFETY: shared references only read.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// `None` if the system has no such memory.
    pub(crate) fn zeroed(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes, 64).ok()?;
        if bytes == 0 {
            return None;
        }
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, layout })
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout, freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `layout.size()` initialized bytes from `start` on are owned by this value.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `deref`, and this reference is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}
