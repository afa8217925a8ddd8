//! The right-hand operands as the inner loops read them: a pair of rows of 8 columns at a time.

use super::lanes::Lanes;

/// Where the pairs of a right-hand operand come from.
pub(super) trait Source: Copy {
    /// Whether its elements are what [`super::bf16_operand`] gives, and not any f32.
    const IS_BF16: bool;
    /// Whether both elements of a pair come out of one word.
    const IS_PAIRS: bool;

    /// Elements `(k, k + 1)` of 8 columns; `k` is even.
    ///
    /// # Safety
    /// Both rows and the 8 columns are inside the operand.
    unsafe fn pair<L: Lanes>(self, k: usize, column: usize) -> (L, L);
    /// Element `k` of 8 columns; `k` is even and `k + 1` may lie outside.
    ///
    /// # Safety
    /// Row `k` and the 8 columns are inside the operand.
    unsafe fn even<L: Lanes>(self, k: usize, column: usize) -> L;
    /// One element.
    ///
    /// # Safety
    /// It is inside the operand.
    unsafe fn element(self, k: usize, column: usize) -> f32;
}

/// f32 rows, of bf16 operands or of any numbers.
#[derive(Clone, Copy)]
pub(super) struct Plain<const IS_BF16: bool>(pub(super) *const f32, pub(super) usize);
#[derive(Clone, Copy)]
pub(super) struct Bf16Pairs(pub(super) *const u32, pub(super) usize);
#[derive(Clone, Copy)]
pub(super) struct F16Pairs(pub(super) *const u32, pub(super) usize);

impl<const IS_BF16: bool> Source for Plain<IS_BF16> {
    const IS_BF16: bool = IS_BF16;
    const IS_PAIRS: bool = false;

    #[inline(always)]
    unsafe fn pair<L: Lanes>(self, k: usize, column: usize) -> (L, L) {
        // SAFETY: the caller keeps both rows inside.
        unsafe {
            let at = self.0.add(k * self.1 + column);
            (L::load(at), L::load(at.add(self.1)))
        }
    }
    #[inline(always)]
    unsafe fn even<L: Lanes>(self, k: usize, column: usize) -> L {
        // SAFETY: the caller keeps the row inside.
        unsafe { L::load(self.0.add(k * self.1 + column)) }
    }
    #[inline(always)]
    unsafe fn element(self, k: usize, column: usize) -> f32 {
        // SAFETY: the caller keeps the element inside.
        unsafe { *self.0.add(k * self.1 + column) }
    }
}

impl Source for Bf16Pairs {
    const IS_BF16: bool = true;
    const IS_PAIRS: bool = true;

    #[inline(always)]
    unsafe fn pair<L: Lanes>(self, k: usize, column: usize) -> (L, L) {
        // SAFETY: the caller keeps the pair inside.
        unsafe { L::load_bf16_pairs(self.0.add(k / 2 * self.1 + column)) }
    }
    #[inline(always)]
    unsafe fn even<L: Lanes>(self, k: usize, column: usize) -> L {
        // SAFETY: as `pair`; the odd half is stored, whatever it holds.
        unsafe { self.pair::<L>(k, column).0 }
    }
    #[inline(always)]
    unsafe fn element(self, k: usize, column: usize) -> f32 {
        // SAFETY: the caller keeps the element inside.
        let pair = unsafe { *self.0.add(k / 2 * self.1 + column) };
        f32::from_bits(if k.is_multiple_of(2) { pair << 16 } else { pair & 0xffff_0000 })
    }
}

impl Source for F16Pairs {
    const IS_BF16: bool = true;
    const IS_PAIRS: bool = true;

    #[inline(always)]
    unsafe fn pair<L: Lanes>(self, k: usize, column: usize) -> (L, L) {
        // SAFETY: the caller keeps the pair inside.
        let (even, odd) = unsafe { L::load_f16_pairs(self.0.add(k / 2 * self.1 + column)) };
        (even.bf16_operand(), odd.bf16_operand())
    }
    #[inline(always)]
    unsafe fn even<L: Lanes>(self, k: usize, column: usize) -> L {
        // SAFETY: as `pair`; the odd half is stored, whatever it holds.
        unsafe { self.pair::<L>(k, column).0 }
    }
    #[inline(always)]
    unsafe fn element(self, k: usize, column: usize) -> f32 {
        // SAFETY: the caller keeps the element inside; a `[f16; 2]` has the size and layout of its pair.
        let pair = unsafe { *self.0.add(k / 2 * self.1 + column).cast::<[half::f16; 2]>() };
        super::bf16_operand(pair[k % 2].to_f32())
    }
}
