//! The register tile: up to 6 rows times 16 columns, two chains of fused multiply-adds per step.
//!
//! With few rows, both chains run at once to hide the latency of a multiply-add; with many, one after the other, so
//! that 6 x 16 running sums of one chain fill 12 registers. Both do the same operations per output.
//!
//! Aligned loads and wrapping pointer arithmetic carry no checks in builds with debug assertions: whole models run in
//! such builds.
//!
//! A chain starts with a product instead of a multiply-add to +0. That saves an instruction and can only turn a zero
//! of a chain negative, which no sum shows: `acc` starts at +0, and adding a zero of either sign leaves it as it is.

use std::arch::x86_64::*;

use crate::kernels::{STEP_PAIRS, Tile};
use crate::layout::PANEL;

/// One vector per half of a panel, for each row.
type Sums<const ROWS: usize> = [[__m256; 2]; ROWS];

/// `x[r, 2i] * w[2i]`, added to `sums` unless it is the `FIRST` of its chain.
///
/// # Safety
/// `x + r * stride` has `2 * i + 1` floats for each of the `ROWS` rows, `w` has `2 * i + 1` rows of 16.
#[inline(always)]
unsafe fn multiply<const ROWS: usize, const FIRST: bool>(
    x: *const f32,
    stride: usize,
    w: *const f32,
    i: usize,
    sums: &mut Sums<ROWS>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let w0 = _mm256_load_ps(w.wrapping_add(2 * i * PANEL));
        let w1 = _mm256_load_ps(w.wrapping_add(2 * i * PANEL + 8));
        for (r, sums) in sums.iter_mut().enumerate() {
            let x = _mm256_broadcastss_ps(_mm_load_ss(x.wrapping_add(r * stride + 2 * i)));
            *sums = if FIRST {
                [_mm256_mul_ps(x, w0), _mm256_mul_ps(x, w1)]
            } else {
                [_mm256_fmadd_ps(x, w0, sums[0]), _mm256_fmadd_ps(x, w1, sums[1])]
            };
        }
    }
}

/// One chain of a step: `pairs` (1 to 16) products.
///
/// # Safety
/// `x` and `w` point to the chain's first element: `x + r * stride` has `2 * pairs - 1` floats for each of the `ROWS`
/// rows, `w` has `2 * pairs - 1` rows of 16.
#[inline(always)]
unsafe fn chain<const ROWS: usize>(x: *const f32, stride: usize, w: *const f32, pairs: usize) -> Sums<ROWS> {
    // SAFETY: the callers are compiled for the instructions; and their promise, here and below.
    let mut sums = [[unsafe { _mm256_setzero_ps() }; 2]; ROWS];
    // SAFETY: as above.
    unsafe { multiply::<ROWS, true>(x, stride, w, 0, &mut sums) };
    if pairs == STEP_PAIRS {
        // Three rounds of five: a branch at the end of sixteen would be mispredicted and hold up the next chain.
        for first in (1..STEP_PAIRS).step_by(5) {
            for i in first..first + 5 {
                // SAFETY: as above.
                unsafe { multiply::<ROWS, false>(x, stride, w, i, &mut sums) };
            }
        }
    } else {
        for i in 1..pairs {
            // SAFETY: as above.
            unsafe { multiply::<ROWS, false>(x, stride, w, i, &mut sums) };
        }
    }
    sums
}

/// Both chains of a step, one after the other, added to `acc`. The first one's sums wait in memory, as `acc` does: what is inlined here goes
/// from registers to there and back once.
///
/// # Safety
/// `x + r * stride` has `2 * pairs` floats for each of the `ROWS` rows, `w` has `2 * pairs` rows of 16.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn chain_after_chain<const ROWS: usize>(
    x: *const f32,
    stride: usize,
    w: *const f32,
    pairs: usize,
    acc: &mut Sums<ROWS>,
) {
    // SAFETY: the caller's promise.
    let (even, odd) = unsafe {
        let even = chain::<ROWS>(x, stride, w, pairs);
        (even, chain::<ROWS>(x.wrapping_add(1), stride, w.wrapping_add(PANEL), pairs))
    };
    *acc = add(*acc, add(even, odd));
}

/// Both chains of a step at once, added.
///
/// # Safety
/// `x + r * stride` has `2 * pairs` floats for each of the `ROWS` rows, `w` has `2 * pairs` rows of 16.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn both_chains<const ROWS: usize>(x: *const f32, stride: usize, w: *const f32, pairs: usize) -> Sums<ROWS> {
    let mut even = [[_mm256_setzero_ps(); 2]; ROWS];
    let mut odd = even;
    // SAFETY: the caller's promise.
    unsafe {
        multiply::<ROWS, true>(x, stride, w, 0, &mut even);
        multiply::<ROWS, true>(x.wrapping_add(1), stride, w.wrapping_add(PANEL), 0, &mut odd);
        for i in 1..pairs {
            multiply::<ROWS, false>(x, stride, w, i, &mut even);
            multiply::<ROWS, false>(x.wrapping_add(1), stride, w.wrapping_add(PANEL), i, &mut odd);
        }
    }
    add(even, odd)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add<const ROWS: usize>(mut a: Sums<ROWS>, b: Sums<ROWS>) -> Sums<ROWS> {
    for (a, b) in a.iter_mut().zip(b) {
        *a = [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])];
    }
    a
}

/// The tile of `ROWS` rows; `PAIRED` runs both chains at once.
///
/// # Safety
/// `tile.rows` is `ROWS`, the operands are as long as [`Tile`] says, and `tile.out` is the caller's alone.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<const ROWS: usize, const PAIRED: bool>(tile: &Tile<'_>) {
    let (stride, out) = (tile.x_stride, tile.out);
    let mut acc = [[_mm256_setzero_ps(); 2]; ROWS];
    if !tile.first {
        for (r, acc) in acc.iter_mut().enumerate() {
            // SAFETY: row `r` of the output has 16 floats.
            unsafe {
                let out = out.wrapping_add(r * tile.out_stride);
                *acc = [_mm256_loadu_ps(out), _mm256_loadu_ps(out.wrapping_add(8))];
            }
        }
    }
    for first in (0..tile.pairs).step_by(STEP_PAIRS) {
        let pairs = STEP_PAIRS.min(tile.pairs - first);
        // SAFETY: the step lies before `2 * tile.pairs`.
        unsafe {
            let (x, w) = (tile.x.as_ptr().wrapping_add(2 * first), tile.w.as_ptr().wrapping_add(2 * first * PANEL));
            if PAIRED {
                acc = add(acc, both_chains::<ROWS>(x, stride, w, pairs));
            } else {
                chain_after_chain::<ROWS>(x, stride, w, pairs, &mut acc);
            }
        }
    }
    if let Some(bias) = tile.bias {
        // SAFETY: a bias has 16 floats.
        let bias = unsafe { [_mm256_loadu_ps(bias.as_ptr()), _mm256_loadu_ps(bias.as_ptr().wrapping_add(8))] };
        for acc in &mut acc {
            for (acc, bias) in acc.iter_mut().zip(bias) {
                let sum = _mm256_add_ps(*acc, bias);
                *acc = _mm256_blendv_ps(sum, _mm256_set1_ps(f32::NAN), _mm256_cmp_ps::<_CMP_UNORD_Q>(sum, sum));
            }
        }
    }
    for (r, acc) in acc.into_iter().enumerate() {
        // SAFETY: row `r` of the output has 16 floats.
        unsafe {
            let out = out.wrapping_add(r * tile.out_stride);
            _mm256_storeu_ps(out, acc[0]);
            _mm256_storeu_ps(out.wrapping_add(8), acc[1]);
        }
    }
}
