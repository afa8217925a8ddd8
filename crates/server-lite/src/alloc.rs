//! The process's allocator: the system's, with a count of live bytes and their peak, and what glibc tells and gives back.
//!
//! Two relaxed atomics per call; the peak is what `measured_peak_bytes` reports, beside the arena, which is mapped and not allocated.
#![expect(unsafe_code, reason = "a global allocator is unsafe to implement; this one only counts and forwards")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Counts and forwards to [`System`].
#[derive(Debug)]
pub(crate) struct CountingAllocator {
    live: AtomicUsize,
    peak: AtomicUsize,
}

impl CountingAllocator {
    pub(crate) const fn new() -> Self {
        Self { live: AtomicUsize::new(0), peak: AtomicUsize::new(0) }
    }

    /// Bytes allocated and not freed.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live.load(Relaxed) as u64
    }

    /// Most bytes that were live at once since the last call of [`CountingAllocator::restart_peak`].
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.peak.load(Relaxed) as u64
    }

    /// Starts a new peak from the bytes live now.
    pub(crate) fn restart_peak(&self) {
        self.peak.store(self.live.load(Relaxed), Relaxed);
    }

    fn grew(&self, bytes: usize) {
        let live = self.live.fetch_add(bytes, Relaxed) + bytes;
        // A plain load first: the maximum rarely moves, and a load shares the cache line.
        if live > self.peak.load(Relaxed) {
            self.peak.fetch_max(live, Relaxed);
        }
    }
}

/// Gives what the allocator keeps of freed memory back to the system, where it has a call for that (glibc).
pub(crate) fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call takes no memory of ours, and locks what it works on.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Bytes that the allocator has from the system with no live allocation in them; `None` where it does not tell.
pub(crate) fn retained_bytes() -> Option<u64> {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        type MallInfo2 = unsafe extern "C" fn() -> libc::mallinfo2;
        // Looked up and not linked: glibc has it from 2.33 on.
        // SAFETY: the name ends with a zero byte.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"mallinfo2".as_ptr()) };
        if address.is_null() {
            return None;
        }
        // SAFETY: this is the type of the function that glibc has by this name, and it may be called at any time.
        let info = unsafe { std::mem::transmute::<*mut libc::c_void, MallInfo2>(address)() };
        Some(info.fordblks as u64)
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    None
}

// SAFETY: every call is forwarded to `System` with the caller's own arguments; counting allocates nothing and cannot unwind.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps `alloc`'s contract.
        let pointer = unsafe { System.alloc(layout) };
        if !pointer.is_null() {
            self.grew(layout.size());
        }
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps `alloc_zeroed`'s contract.
        let pointer = unsafe { System.alloc_zeroed(layout) };
        if !pointer.is_null() {
            self.grew(layout.size());
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(pointer, layout) };
        self.live.fetch_sub(layout.size(), Relaxed);
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller keeps `realloc`'s contract.
        let new = unsafe { System.realloc(pointer, layout, new_size) };
        if !new.is_null() {
            if new_size >= layout.size() {
                self.grew(new_size - layout.size());
            } else {
                self.live.fetch_sub(layout.size() - new_size, Relaxed);
            }
        }
        new
    }
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn freed_memory_is_retained_until_it_is_trimmed() {
        let blocks: Vec<Vec<u8>> = (0..4_000).map(|_| vec![1; 8_000]).collect();
        // One that stays holds the end of the heap, so that the allocator does not shrink it by itself.
        let last = vec![1_u8; 8_000];
        drop(blocks);
        let before = super::retained_bytes().expect("glibc tells");
        super::trim();
        assert!(before > 16 << 20, "{before} bytes were retained");
        assert_eq!(last.len(), 8_000);
    }
}
