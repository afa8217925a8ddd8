//! Kernels: one trait, one implementation per instruction set, all with the same bits.
#![expect(unsafe_code, reason = "SIMD loads and stores, and threads that write disjoint tiles of one output")]

mod product;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub(crate) use product::{Operand, Part, Product};
pub(crate) use scalar::Scalar;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::Avx2;

use crate::WeightType;
use crate::layout::PANEL;

/// Rows of `x` in one tile.
pub(crate) const TILE_ROWS: usize = 6;
/// Most rows of `k` that are dequantized at once: 16 KiB as f32, half of a small first-level cache, and one whole super-block.
pub(crate) const K_BLOCK: usize = 256;
/// `k` advances in steps of 16 pairs.
pub(crate) const STEP_PAIRS: usize = 16;

/// Alignment of packed panels and of dequantized weights, for vector loads.
pub(crate) const VECTOR_ALIGN: usize = 32;

/// A tile of the product: `rows` (1..=[`TILE_ROWS`]) rows of `x` times 16 columns, over some of `k`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tile<'a> {
    /// Row `r` begins at `r * x_stride` and has at least `2 * pairs` elements.
    pub(crate) x: &'a [f32],
    pub(crate) x_stride: usize,
    pub(crate) rows: usize,
    /// `[2 * pairs][16]`, 32-byte aligned.
    pub(crate) w: &'a [f32],
    pub(crate) pairs: usize,
    /// Running sums: row `r` begins at `r * out_stride` and has 16 elements. Overwritten if `first`, else added to.
    pub(crate) out: *mut f32,
    pub(crate) out_stride: usize,
    pub(crate) first: bool,
    /// At the end of `k`: added to the sums, whose NaNs then become canonical. Zeros stand for no bias and change nothing,
    /// because a sum is never -0.
    pub(crate) bias: Option<&'a [f32; PANEL]>,
}

impl Tile<'_> {
    fn check(&self) {
        assert!((1..=TILE_ROWS).contains(&self.rows), "a tile has 1 to {TILE_ROWS} rows");
        assert!(self.x.len() >= (self.rows - 1) * self.x_stride + 2 * self.pairs, "k past the rows of x");
        assert!(self.w.as_ptr().addr().is_multiple_of(VECTOR_ALIGN), "weights are not aligned");
        assert!(self.w.len() >= 2 * self.pairs * PANEL, "k past the panel");
    }
}

/// What an instruction set provides. [`Scalar`] is the definition.
pub(crate) trait Kernel: Copy + Send + Sync {
    /// `out[i] = bf16_operand(x[i])`; lengths are equal.
    fn round(self, x: &[f32], out: &mut [f32]);

    /// Dequantizes rows `start..start + len` of `k` of a panel to `out`, `[len][16]`, rounded as operands of the product.
    /// `start` is a multiple of 32 and of the type's block, `len` at most [`K_BLOCK`]. An odd `len` is followed by a row of zeros. `panel` and
    /// `out` are 32-byte aligned. Not called for f32 weights.
    fn dequantize(self, ty: WeightType, panel: &[u8], start: usize, len: usize, out: &mut [f32]);

    /// Computes a tile in the order of the contract.
    ///
    /// # Safety
    /// The rows of `tile.out` are valid for reads and writes and nobody else's for the time of the call.
    unsafe fn tile(self, tile: &Tile<'_>);
}

/// Whether this CPU has AVX2, FMA and F16C.
pub(crate) fn avx2_available() -> bool {
    #[cfg(target_arch = "x86_64")]
    return Avx2::detect().is_some();
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

#[cfg(test)]
mod tests;
