//! Kernels: one trait, one implementation per instruction set, all with the same bits.
#![expect(unsafe_code, reason = "SIMD loads and stores, and threads that write disjoint tiles of one output")]

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod part;
mod product;
mod scalar;
mod tasks;
#[cfg(target_arch = "x86_64")]
mod tiled;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::Neon;
pub(crate) use part::{Operand, Part};
pub(crate) use product::{PANEL_SCRATCH, Product};
pub(crate) use scalar::Scalar;
#[cfg(target_arch = "x86_64")]
pub(crate) use tiled::{TiledPlan, TiledProduct};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{Amx, Avx2, Avx512, TILE};
#[cfg(all(test, target_arch = "x86_64"))]
use x86_64::{Micro, Tiles};

use crate::layout::PANEL;
use crate::{Isa, WeightType};

/// Most rows of `x` in one tile of any kernel; every kernel's own number divides it.
pub(crate) const MAX_TILE_ROWS: usize = 12;
/// Most rows of `k` that are dequantized at once: 16 KiB as f32, half of a small first-level cache, and one whole super-block.
pub(crate) const K_BLOCK: usize = 256;
/// `k` advances in steps of 16 pairs.
pub(crate) const STEP_PAIRS: usize = 16;

/// Alignment of packed panels and of dequantized weights, for vector loads.
pub(crate) const VECTOR_ALIGN: usize = 64;

/// A tile of the product: `rows` (1..=[`Kernel::TILE_ROWS`]) rows of `x` times 16 columns, over some of `k`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tile<'a> {
    /// Row `r` begins at `r * x_stride` and has at least `2 * pairs` elements.
    pub(crate) x: &'a [f32],
    pub(crate) x_stride: usize,
    pub(crate) rows: usize,
    /// `[2 * pairs][16]`, aligned to [`VECTOR_ALIGN`]; nothing where weights are dequantized on the way.
    pub(crate) w: &'a [f32],
    /// Whether `x` and `w` hold what [`bf16_operand`](crate::bf16_operand) gives, and not any f32.
    pub(crate) is_bf16: bool,
    pub(crate) pairs: usize,
    /// Running sums: row `r` begins at `r * out_stride` and has 16 elements. Overwritten if `first`, else added to.
    pub(crate) out: *mut f32,
    pub(crate) out_stride: usize,
    pub(crate) first: bool,
    /// At the end of `k`: added to the sums, whose NaNs then become canonical. Zeros stand for no bias and change nothing,
    /// because a sum is never -0.
    pub(crate) bias: Option<&'a [f32; PANEL]>,
}

/// Weights and bias of 16 columns, as in [`Tile`].
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only AVX-512 has wide tiles"))]
pub(crate) struct Panel<'a> {
    pub(crate) w: &'a [f32],
    pub(crate) bias: Option<&'a [f32; PANEL]>,
}

impl Tile<'_> {
    fn check_x(&self, most_rows: usize) {
        assert!((1..=most_rows).contains(&self.rows), "a tile has 1 to {most_rows} rows");
        assert!(self.x.len() >= (self.rows - 1) * self.x_stride + 2 * self.pairs, "k past the rows of x");
    }

    fn check(&self, most_rows: usize) {
        self.check_x(most_rows);
        self.check_w(self.w);
    }

    fn check_w(&self, w: &[f32]) {
        assert!(w.as_ptr().addr().is_multiple_of(VECTOR_ALIGN), "weights are not aligned");
        assert!(w.len() >= 2 * self.pairs * PANEL, "k past the panel");
    }
}

/// What an instruction set provides. [`Scalar`] is the definition.
pub(crate) trait Kernel: Copy + Send + Sync {
    /// Most rows of `x` in one tile; divides [`MAX_TILE_ROWS`].
    const TILE_ROWS: usize;

    /// `out[i] = bf16_operand(x[i])`; lengths are equal.
    fn round(self, x: &[f32], out: &mut [f32]);

    /// Dequantizes rows `start..start + len` of `k` of a panel to `out`, `[len][16]`, rounded as operands of the product.
    /// `start` is a multiple of 32 and of the type's block, `len` at most [`K_BLOCK`]. An odd `len` is followed by a row of zeros. `panel` is
    /// 32-byte aligned, `out` to [`VECTOR_ALIGN`]. Not called for f32 weights.
    fn dequantize(self, ty: WeightType, panel: &[u8], start: usize, len: usize, out: &mut [f32]);

    /// Computes a tile in the order of the contract.
    ///
    /// # Safety
    /// The rows of `tile.out` are valid for reads and writes and nobody else's for the time of the call.
    unsafe fn tile(self, tile: &Tile<'_>);

    /// Most rows of [`Kernel::wide_tile`]; divides [`MAX_TILE_ROWS`], and is 0 where there is no such tile.
    const WIDE_TILE_ROWS: usize = 0;

    /// Two tiles side by side: `second` has the weights of the 16 columns behind those of `tile`, and their bias if this is the end of `k`.
    /// Rows of the output have 32 elements.
    ///
    /// # Safety
    /// As `tile`.
    unsafe fn wide_tile(self, _tile: &Tile<'_>, _second: Panel<'_>) {
        unreachable!("a kernel without wide tiles")
    }

    /// Whether [`Kernel::fused`] takes `rows` rows of weights of this type; if so, `rows` is at most [`Kernel::TILE_ROWS`].
    fn fuses(self, _ty: WeightType, _rows: usize) -> bool {
        false
    }

    /// `dequantize` and `tile` in one: weights go from the panel, `start` rows of `k` in, through registers into the sums. `tile.w` is
    /// not read; `tile.pairs` is not limited.
    ///
    /// # Safety
    /// As `tile`.
    unsafe fn fused(self, ty: WeightType, _panel: &[u8], _start: usize, _tile: &Tile<'_>) {
        unreachable!("{ty} is not dequantized on the way")
    }
}

/// Whether this CPU, and this system, run the kernels of an instruction set.
pub(crate) fn is_available(isa: Isa) -> bool {
    match isa {
        Isa::Scalar => true,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => Avx2::detect().is_some(),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => Avx512::detect().is_some(),
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => Amx::detect().is_some(),
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 | Isa::Amx => false,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => Neon::detect().is_some(),
        #[cfg(not(target_arch = "aarch64"))]
        Isa::Neon => false,
    }
}

#[cfg(test)]
mod tests;
