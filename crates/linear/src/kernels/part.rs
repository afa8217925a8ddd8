//! One weight of a product, and the output that several tasks write.

use std::marker::PhantomData;

use crate::PackedWeight;

/// Operands of `x`, ready to multiply: row `r` begins at `data[r * stride]`, padded with a zero if `k` is odd.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) stride: usize,
}

/// One weight of the product and its output, `[rows, out_features]`.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    pub(super) weight: &'a PackedWeight,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) x: Operand<'a>,
    pub(super) rows: usize,
    pub(super) out: SharedOut<'a>,
}

impl<'a> Part<'a> {
    pub(crate) fn new(weight: &'a PackedWeight, bias: Option<&'a [f32]>, x: Operand<'a>, out: &'a mut [f32]) -> Self {
        Self { weight, bias, x, rows: out.len() / weight.out_features(), out: SharedOut::new(out) }
    }
}

/// An output that several tasks write, each its own tiles.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedOut<'a> {
    start: *mut f32,
    len: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: it stands for a `&mut [f32]`, and `run` (unsafe) asks that no two tasks touch the same elements.
unsafe impl Send for SharedOut<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedOut<'_> {}

impl<'a> SharedOut<'a> {
    fn new(out: &'a mut [f32]) -> Self {
        Self { start: out.as_mut_ptr(), len: out.len(), borrow: PhantomData }
    }

    /// The element at `start`, of which `len` follow.
    pub(super) fn row(&self, start: usize, len: usize) -> *mut f32 {
        assert!(start + len <= self.len, "a tile leaves the output");
        self.start.wrapping_add(start)
    }

    /// # Safety
    /// While the result lives, no other reference to these elements may exist, in any thread.
    #[expect(clippy::mut_from_ref, reason = "the caller vouches that tiles are disjoint")]
    pub(super) unsafe fn slice(&self, start: usize, len: usize) -> &mut [f32] {
        // SAFETY: in bounds of the borrowed slice, as `row` checks, and exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.row(start, len), len) }
    }
}

/// The part that the `panel`th panel of a product belongs to, and its index there. `parts` are all present up to the first `None`.
pub(super) fn find<'p, 'a>(parts: &'p [Option<Part<'a>>], mut panel: usize) -> (&'p Part<'a>, usize) {
    for part in parts.iter().flatten() {
        if panel < part.weight.panels() {
            return (part, panel);
        }
        panel -= part.weight.panels();
    }
    unreachable!("a panel past the last part")
}

/// Panels of all parts together.
pub(super) fn panels(parts: &[Option<Part<'_>>]) -> usize {
    parts.iter().flatten().map(|part| part.weight.panels()).sum()
}
