//! The inner loops, once per instruction set, with equal bits.
//!
//! [`product`], [`unpack`] and [`rows`] are written once over [`lanes::Lanes`], eight f32 values; [`scalar`] runs them on an array, `x86_64` on
//! AVX2 registers, `aarch64` on pairs of NEON registers. AVX-512 has products, a softmax and functions of its own, AMX
//! products and whole blocks; both leave what is eight lanes wide by definition to AVX2; NEON has one for whole registers of columns.
//! [`crate::plain`] is the definition both are tested against.
#![expect(unsafe_code, reason = "SIMD intrinsics, unchecked inner loops, and threads that write disjoint rows")]

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod lanes;
mod product;
mod rows;
mod rows_out;
mod scalar;
mod source;
mod unpack;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::ops::Range;

use crate::math::exp_unbounded;
use crate::{Isa, KV_BLOCK_TOKENS, KvLayout};
#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::Neon;
pub(crate) use lanes::Values;
pub(crate) use rows_out::RowsOut;
pub(crate) use scalar::Scalar;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{Amx, Avx2, Avx512};

/// Columns of one panel of an unpacked operand.
pub(crate) const PANEL: usize = 16;
/// Rows after which more of the next block is prefetched.
pub(crate) const PREFETCH_ROWS: usize = 16;
/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

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

/// An operand of a bf16 product: magnitudes below 2^-50 replaced by +0, the rest rounded to nearest even, NaN kept.
///
/// The floor makes every partial sum a multiple of 2^-114, so no sum is ever a denormal.
#[inline(always)]
pub(crate) fn bf16_operand(x: f32) -> f32 {
    let bits = x.to_bits();
    if x.is_nan() {
        return f32::from_bits((bits | 0x0040_0000) & 0xffff_0000);
    }
    if x.abs() < OPERAND_FLOOR {
        return 0.0;
    }
    f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
}

/// 2^-50.
pub(crate) const OPERAND_FLOOR: f32 = 8.881_784e-16;

/// The right-hand operand of a product, `[k, columns]`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operand<'a> {
    /// f32 panels of 16 columns, each `[k][16]`, with `k` rows each, of bf16 operands.
    Panels { data: &'a [f32], k: usize },
    /// f32 rows `stride` apart.
    F32 { data: &'a [f32], stride: usize },
    /// bf16 pairs `[k / 2][columns][2]`, rows of pairs `stride` apart.
    Bf16 { data: &'a [u32], stride: usize },
    /// f16 pairs, rounded to bf16 when read.
    F16 { data: &'a [u32], stride: usize },
}

impl Operand<'_> {
    fn check(&self, k: usize, columns: usize) {
        let (have, need) = match *self {
            Self::Panels { data, k: panel_k } => {
                assert!(k <= panel_k && columns.is_multiple_of(PANEL), "panel bounds");
                (data.len(), columns * panel_k)
            }
            Self::F32 { data, stride } => (data.len(), k.saturating_sub(1) * stride + columns),
            Self::Bf16 { data, stride } | Self::F16 { data, stride } => {
                (data.len(), k.div_ceil(2).saturating_sub(1) * stride + columns)
            }
        };
        assert!(need <= have, "operand of {have} elements, {need} needed");
    }
}

/// The left-hand operand of a product: f32 rows `stride` apart, already rounded where the product is in bf16.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) rows: usize,
}

/// Most rows that a kernel takes through the right-hand operand at once. They are done with it as fast as it comes from memory.
const AHEAD_ROWS: usize = 4;

/// What one row needs to turn its scores of one block into probabilities.
#[derive(Debug, Clone)]
pub(crate) struct Softmax {
    pub(crate) scale: f32,
    pub(crate) softcap: Option<f32>,
    /// Whether probabilities are operands of a bf16 product.
    pub(crate) bf16: bool,
}

/// A block of keys and values, and rows that see some of it.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only AMX takes a block in one call"))]
pub(crate) struct BlockOperands<'a> {
    /// Rows of `head_dim` elements, operands of a bf16 product if `how` says so.
    pub(crate) q: Rows<'a>,
    /// The same as [`Kernels::pack_queries`] leaves them, if it did.
    pub(crate) packed_q: Option<&'a [f32]>,
    pub(crate) k: Operand<'a>,
    pub(crate) v: Operand<'a>,
    pub(crate) how: &'a Softmax,
    pub(crate) head_dim: usize,
    pub(crate) v_head_dim: usize,
    /// Whether each row sees all of it. If not, all values are finite, those of tokens that no row sees too.
    pub(crate) is_whole: bool,
}

/// Running maximum and denominator of one row.
#[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct RowState {
    pub(crate) max: f32,
    pub(crate) sum: f32,
    /// Factor of what was accumulated before the present block.
    pub(crate) keep: f32,
    /// Factor of the present block.
    pub(crate) take: f32,
}

impl RowState {
    pub(crate) const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0, keep: 0.0, take: 0.0 };

    /// Takes in a block of which the largest score and the sum of the probabilities are known.
    #[inline(always)]
    pub(crate) fn fold(&mut self, block_max: f32, sum: f32) {
        // One of the two differences is 0, and exp(0) is 1. The first block has keep = exp(-inf) = 0: a copy, bit for bit.
        if block_max > self.max {
            (self.keep, self.take) = (exp_unbounded(self.max - block_max), 1.0);
            self.max = block_max;
        } else {
            (self.keep, self.take) = (1.0, exp_unbounded(block_max - self.max));
        }
        self.sum = self.sum.fma(self.keep, sum * self.take);
    }
}

/// One instruction set. Every method gives the same bits in every implementation.
pub(crate) trait Kernels: Copy + Send + Sync {
    /// Whether products with many rows read pairs of this layout as they are stored, so that unpacking them would be in vain.
    fn reads_pairs(self, _layout: &KvLayout) -> bool {
        false
    }

    /// `out[r][c] = sum over k of a[r][k] * b[k][c]` in the contract's order, for `c` in `columns` and `k` in `k`.
    ///
    /// `k.start` is even. `out` rows are `out_stride` apart and start at column 0.
    fn product(
        self,
        a: Rows<'_>,
        b: Operand<'_>,
        k: Range<usize>,
        columns: Range<usize>,
        out: &mut [f32],
        out_stride: usize,
    );

    /// As `product`, and asks for the bytes `ahead`, which are read soon, on the way.
    #[expect(
        clippy::too_many_arguments,
        reason = "two operands, two ranges, where the result goes, and what comes next"
    )]
    fn product_ahead(
        self,
        a: Rows<'_>,
        b: Operand<'_>,
        k: Range<usize>,
        columns: Range<usize>,
        out: &mut [f32],
        out_stride: usize,
        ahead: &[u8],
    ) {
        if a.rows > AHEAD_ROWS || ahead.is_empty() {
            self.prefetch(ahead);
            return self.product(a, b, k, columns, out, out_stride);
        }
        let part = ahead.len().div_ceil(columns.len().div_ceil(2 * PANEL).max(1)).next_multiple_of(LINE);
        let mut parts = ahead.chunks(part);
        for first in columns.clone().step_by(2 * PANEL) {
            self.prefetch(parts.next().unwrap_or_default());
            self.product(a, b, k.clone(), first..(first + 2 * PANEL).min(columns.end), out, out_stride);
        }
    }

    /// As `product`, folded into a running output: `out = fma(out, keep, product * take)` with each row's factors.
    #[expect(clippy::too_many_arguments, reason = "two operands, a range, and where the result goes")]
    fn product_fold(
        self,
        a: Rows<'_>,
        b: Operand<'_>,
        k: Range<usize>,
        columns: usize,
        states: &[RowState],
        out: &mut [f32],
        out_stride: usize,
    );

    /// Columns of scores that few rows take at a time, so that the next block is prefetched in between; divides a block's.
    fn score_columns(self, _rows: usize) -> usize {
        PANEL
    }

    /// Whether blocks that so many rows see go to [`Kernels::fold_block`].
    fn folds_blocks(self, _layout: &KvLayout, _rows: usize) -> bool {
        false
    }

    /// Lays rows out as [`Kernels::fold_block`] reads them, [`PREFETCH_ROWS`] after the other, in half of their size; `false` if `packed` has no
    /// room for them, or nothing is gained.
    fn pack_queries(self, _q: Rows<'_>, _head_dim: usize, _packed: &mut [f32]) -> bool {
        false
    }

    /// Folds a block into the states and running outputs of rows, as `product`, `softmax` and `product_fold` would. Each row sees some
    /// of it: `visible`, which is not asked if all see all. Calls `ahead` after each [`PREFETCH_ROWS`] rows.
    fn fold_block(
        self,
        _block: &BlockOperands<'_>,
        _visible: impl Fn(usize) -> Range<usize>,
        _states: &mut [RowState],
        _out: (&mut [f32], usize),
        _ahead: impl FnMut(),
    ) {
        unreachable!("a kernel that takes no block in one call")
    }

    /// Folds one row's product, made by `product`, into a running output, as `product_fold` does.
    fn fold(self, product: &[f32], state: RowState, out: &mut [f32]) {
        rows::fold_plain(product, state, out);
    }

    /// Asks for bytes that are read soon.
    fn prefetch(self, _bytes: &[u8]) {}

    /// Turns the scores of one block into probabilities in place and updates the row's state; tokens outside `visible` become 0.
    fn softmax(self, scores: &mut [f32], visible: Range<usize>, how: &Softmax, state: &mut RowState);

    /// As `softmax`, for rows that see the whole block: `scores` is `[rows][64]`, with one state for each row.
    fn softmax_whole(self, scores: &mut [f32], how: &Softmax, states: &mut [RowState]) {
        for (scores, state) in scores.chunks_exact_mut(KV_BLOCK_TOKENS).zip(states) {
            self.softmax(scores, 0..KV_BLOCK_TOKENS, how, state);
        }
    }

    /// Unpacks 16-bit pairs `[pairs][columns][2]` into panels; the columns after the last are zero.
    ///
    /// Only the first `k` elements of the summed axis are read; the rest of the panels' `panel_k` rows become zero.
    fn unpack(self, source: Operand<'_>, k: usize, columns: usize, panel_k: usize, panels: &mut [f32]);

    /// Copies `row` into `out`, rounded to operands of a bf16 product.
    fn round(self, row: &[f32], out: &mut [f32]);

    /// Joins the sink and writes `accumulated / sum`.
    fn finish(self, accumulated: &[f32], state: RowState, sink: Option<f32>, out: &mut [f32]);

    /// Applies `f` to each element of `x` in place.
    fn map<F: crate::math::Function>(self, f: F, x: &mut [f32]);

    /// `gate[i] = f(gate[i]) * up[i]`.
    fn gate<F: crate::math::Function>(self, f: F, gate: &mut [f32], up: &[f32]);

    /// Sum of `x` or of its squares over 8 lanes.
    fn sum(self, x: &[f32], squares: bool) -> f32;
}

#[cfg(test)]
mod tests;
