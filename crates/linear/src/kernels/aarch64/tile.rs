//! The register tile: up to 6 rows times 16 columns, both chains of a step at once.
//!
//! There are 32 registers of four lanes. One or two rows take all 16 columns at a time, more take 8 and then the other 8: the sums of both
//! chains fill 24 registers at most, and the others hold the pair of weights and values of `x`, which a multiply-add picks from a
//! lane. The sums over all steps come by only once in a step, so they may lie in memory.

use std::arch::aarch64::*;

use crate::kernels::{STEP_PAIRS, Tile};
use crate::layout::PANEL;

/// Most rows.
pub(super) const ROWS: usize = 6;

/// `V` registers of columns for each row.
type Sums<const R: usize, const V: usize> = [[float32x4_t; V]; R];

/// # Safety
/// The operands are as long as [`Tile`] says, `tile.rows` is 1 to [`ROWS`], and `tile.out` is the caller's alone.
#[target_feature(enable = "neon")]
pub(super) unsafe fn run(tile: &Tile<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match tile.rows {
            1 => columns::<1, 4>(tile, 0),
            2 => columns::<2, 4>(tile, 0),
            3 => halves::<3>(tile),
            4 => halves::<4>(tile),
            5 => halves::<5>(tile),
            _ => halves::<6>(tile),
        }
    }
}

/// # Safety
/// As [`run`], with `R` rows.
#[target_feature(enable = "neon")]
unsafe fn halves<const R: usize>(tile: &Tile<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        columns::<R, 2>(tile, 0);
        columns::<R, 2>(tile, PANEL / 2);
    }
}

/// `R` rows times `4 * V` columns from `column` on.
///
/// # Safety
/// As [`run`], with `R` rows; a panel has the columns.
#[target_feature(enable = "neon")]
unsafe fn columns<const R: usize, const V: usize>(tile: &Tile<'_>, column: usize) {
    // SAFETY: the caller's promise, here and below: rows of the output have 16 floats.
    let mut acc = unsafe { load::<R, V>(tile, column) };
    for first in (0..tile.pairs).step_by(STEP_PAIRS) {
        let x = tile.x.as_ptr().wrapping_add(2 * first);
        let w = tile.w.as_ptr().wrapping_add(2 * first * PANEL + column);
        let pairs = STEP_PAIRS.min(tile.pairs - first);
        // SAFETY: the step lies before `2 * tile.pairs`.
        let step = unsafe { chains::<R, V>(x, tile.x_stride, w, pairs) };
        for (acc, step) in acc.iter_mut().flatten().zip(step.iter().flatten()) {
            *acc = vaddq_f32(*acc, *step);
        }
    }
    // SAFETY: as above.
    unsafe { store(tile, column, acc) };
}

/// The tile's running sums of `4 * V` columns from `column` on.
///
/// # Safety
/// `tile.rows` is at most `R`, rows of the output are readable and have these columns.
#[inline]
#[target_feature(enable = "neon")]
pub(super) unsafe fn load<const R: usize, const V: usize>(tile: &Tile<'_>, column: usize) -> Sums<R, V> {
    let mut acc = [[vdupq_n_f32(0.0); V]; R];
    if !tile.first {
        for (r, acc) in acc.iter_mut().enumerate().take(tile.rows) {
            for (v, acc) in acc.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                *acc = unsafe { vld1q_f32(tile.out.wrapping_add(r * tile.out_stride + column + 4 * v)) };
            }
        }
    }
    acc
}

/// Writes sums of `4 * V` columns from `column` on, with the bias and with canonical NaNs if this is the end of `k`.
///
/// # Safety
/// `tile.rows` is at most `R`, rows of the output are the caller's alone and have these columns.
#[inline]
#[target_feature(enable = "neon")]
pub(super) unsafe fn store<const R: usize, const V: usize>(tile: &Tile<'_>, column: usize, acc: Sums<R, V>) {
    for (r, acc) in acc.into_iter().enumerate().take(tile.rows) {
        for (v, mut sum) in acc.into_iter().enumerate() {
            let at = column + 4 * v;
            // SAFETY: the caller's promise; a bias has 16 floats.
            unsafe {
                if let Some(bias) = tile.bias {
                    sum = vaddq_f32(sum, vld1q_f32(bias.as_ptr().wrapping_add(at)));
                    sum = vbslq_f32(vceqq_f32(sum, sum), sum, vdupq_n_f32(f32::NAN));
                }
                vst1q_f32(tile.out.wrapping_add(r * tile.out_stride + at), sum);
            }
        }
    }
}

/// Both chains of a step, added.
///
/// # Safety
/// `x + r * stride` has `2 * pairs` floats for each of the `R` rows, `w` is `2 * pairs` rows 16 apart of `4 * V` floats.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn chains<const R: usize, const V: usize>(
    x: *const f32,
    stride: usize,
    w: *const f32,
    pairs: usize,
) -> Sums<R, V> {
    let (mut even, mut odd) = ([[vdupq_n_f32(0.0); V]; R], [[vdupq_n_f32(0.0); V]; R]);
    for i in 0..pairs {
        let (mut w_even, mut w_odd) = ([vdupq_n_f32(0.0); V], [vdupq_n_f32(0.0); V]);
        for v in 0..V {
            // SAFETY: the caller's promise.
            unsafe {
                w_even[v] = vld1q_f32(w.wrapping_add(2 * i * PANEL + 4 * v));
                w_odd[v] = vld1q_f32(w.wrapping_add((2 * i + 1) * PANEL + 4 * v));
            }
        }
        for r in 0..R {
            // SAFETY: the caller's promise.
            let x = unsafe { vld1_f32(x.wrapping_add(r * stride + 2 * i)) };
            for v in 0..V {
                even[r][v] = vfmaq_lane_f32::<0>(even[r][v], w_even[v], x);
                odd[r][v] = vfmaq_lane_f32::<1>(odd[r][v], w_odd[v], x);
            }
        }
    }
    for (even, odd) in even.iter_mut().flatten().zip(odd.iter().flatten()) {
        *even = vaddq_f32(*even, *odd);
    }
    even
}
