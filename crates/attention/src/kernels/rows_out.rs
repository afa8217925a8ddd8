//! The output of a pass, shared by threads that write disjoint parts.

use std::marker::PhantomData;

/// An output slice that several tasks write at once, each its own ranges.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowsOut<'a> {
    start: *mut f32,
    len: usize,
    owner: PhantomData<&'a mut [f32]>,
}

// SAFETY: a `RowsOut` is a borrowed slice of f32; who writes where is the contract of `range`.
unsafe impl Send for RowsOut<'_> {}
// SAFETY: as above.
unsafe impl Sync for RowsOut<'_> {}

impl<'a> RowsOut<'a> {
    pub(crate) fn new(out: &'a mut [f32]) -> Self {
        Self { start: out.as_mut_ptr(), len: out.len(), owner: PhantomData }
    }

    /// Elements `at .. at + len`.
    ///
    /// # Safety
    /// No two ranges alive at the same time overlap.
    #[expect(clippy::mut_from_ref, reason = "the safety contract keeps ranges disjoint")]
    pub(crate) unsafe fn range(&self, at: usize, len: usize) -> &mut [f32] {
        assert!(at + len <= self.len, "range {at}..{at}+{len} of {}", self.len);
        // SAFETY: inside the slice by the assertion, alone by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}
