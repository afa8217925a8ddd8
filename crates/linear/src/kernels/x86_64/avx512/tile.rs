//! The register tiles: up to 12 rows times 16 columns, or 6 rows times 32.
//!
//! Both chains of a step run at once: 24 sums of chains are 24 registers, and two or four hold the pair of weights. The sums over all steps
//! come by only once in a step, so they may lie in memory. A value of `x` is broadcast by its load: in the narrow tile each multiply-add has
//! one of its own, and loads are what holds it up; in the wide one two share it, 16 loads go with 24 multiply-adds.

use std::arch::x86_64::*;

use crate::kernels::{Panel, STEP_PAIRS, Tile};
use crate::layout::PANEL;

/// Most rows of the wide tile.
pub(super) const WIDE_ROWS: usize = 6;

/// Adds bias and makes NaNs canonical.
#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::kernels::x86_64) fn finish(sum: __m512, bias: __m512) -> __m512 {
    let sum = _mm512_add_ps(sum, bias);
    _mm512_mask_mov_ps(sum, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(sum, sum), _mm512_set1_ps(f32::NAN))
}

/// The tile's running sums.
///
/// # Safety
/// `tile.rows` is at most `ROWS`, and the rows of `tile.out` are readable.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn load<const ROWS: usize>(tile: &Tile<'_>) -> [__m512; ROWS] {
    let mut acc = [_mm512_setzero_ps(); ROWS];
    if !tile.first {
        for (r, acc) in acc.iter_mut().enumerate().take(tile.rows) {
            // SAFETY: row `r` of the output has 16 floats.
            *acc = unsafe { _mm512_loadu_ps(tile.out.wrapping_add(r * tile.out_stride)) };
        }
    }
    acc
}

/// Writes the sums, with the bias if this is the end of `k`.
///
/// # Safety
/// `tile.rows` is at most `ROWS`, and the rows of `tile.out` are the caller's alone.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn store<const ROWS: usize>(tile: &Tile<'_>, mut acc: [__m512; ROWS]) {
    if let Some(bias) = tile.bias {
        // SAFETY: a bias has 16 floats.
        let bias = unsafe { _mm512_loadu_ps(bias.as_ptr()) };
        acc = acc.map(|acc| finish(acc, bias));
    }
    for (r, acc) in acc.into_iter().enumerate().take(tile.rows) {
        // SAFETY: row `r` of the output has 16 floats.
        unsafe { _mm512_storeu_ps(tile.out.wrapping_add(r * tile.out_stride), acc) };
    }
}

/// # Safety
/// The operands are as long as [`Tile`] says, `tile.rows` is 1 to 12, and `tile.out` is the caller's alone.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn run(tile: &Tile<'_>) {
    macro_rules! of {
        ($($rows:literal)*) => {
            match tile.rows {
                // SAFETY: the caller's promise.
                $($rows => unsafe { run_rows::<$rows>(tile) },)*
                _ => unreachable!("a tile has 1 to 12 rows"),
            }
        };
    }
    of!(1 2 3 4 5 6 7 8 9 10 11 12)
}

/// # Safety
/// As [`run`], with `ROWS` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn run_rows<const ROWS: usize>(tile: &Tile<'_>) {
    // SAFETY: the caller's promise, here and below.
    let mut acc = unsafe { load::<ROWS>(tile) };
    for first in (0..tile.pairs).step_by(STEP_PAIRS) {
        let x = tile.x.as_ptr().wrapping_add(2 * first);
        let w = tile.w.as_ptr().wrapping_add(2 * first * PANEL);
        let pairs = STEP_PAIRS.min(tile.pairs - first);
        // SAFETY: the step lies before `2 * tile.pairs`. A whole step has a fixed length, so that the compiler can unroll it.
        let step = unsafe {
            if pairs == STEP_PAIRS {
                chains::<ROWS>(x, tile.x_stride, w, STEP_PAIRS)
            } else {
                chains::<ROWS>(x, tile.x_stride, w, pairs)
            }
        };
        for (acc, step) in acc.iter_mut().zip(step) {
            *acc = _mm512_add_ps(*acc, step);
        }
    }
    // SAFETY: the caller's promise.
    unsafe { store(tile, acc) };
}

/// Both chains of a step, added.
///
/// # Safety
/// `x + r * stride` has `2 * pairs` floats for each of the `ROWS` rows, `w` has `2 * pairs` rows of 16, aligned to 64 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn chains<const ROWS: usize>(x: *const f32, stride: usize, w: *const f32, pairs: usize) -> [__m512; ROWS] {
    let mut even = [_mm512_setzero_ps(); ROWS];
    let mut odd = even;
    for i in 0..pairs {
        // SAFETY: the caller's promise.
        unsafe {
            let w_even = _mm512_load_ps(w.wrapping_add(2 * i * PANEL));
            let w_odd = _mm512_load_ps(w.wrapping_add((2 * i + 1) * PANEL));
            for r in 0..ROWS {
                let x = x.wrapping_add(r * stride + 2 * i);
                even[r] = _mm512_fmadd_ps(_mm512_set1_ps(*x), w_even, even[r]);
                odd[r] = _mm512_fmadd_ps(_mm512_set1_ps(*x.wrapping_add(1)), w_odd, odd[r]);
            }
        }
    }
    for (even, odd) in even.iter_mut().zip(odd) {
        *even = _mm512_add_ps(*even, odd);
    }
    even
}

/// Two tiles side by side.
///
/// # Safety
/// As [`run`], with 1 to 6 rows of 32 elements; `second` has as many rows of `k` as `tile`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn run_wide(tile: &Tile<'_>, second: Panel<'_>) {
    macro_rules! of {
        ($($rows:literal)*) => {
            match tile.rows {
                // SAFETY: the caller's promise.
                $($rows => unsafe { run_wide_rows::<$rows>(tile, second) },)*
                _ => unreachable!("a wide tile has 1 to 6 rows"),
            }
        };
    }
    of!(1 2 3 4 5 6)
}

/// # Safety
/// As [`run_wide`], with `ROWS` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn run_wide_rows<const ROWS: usize>(tile: &Tile<'_>, second: Panel<'_>) {
    let right = Tile { out: tile.out.wrapping_add(PANEL), w: second.w, bias: second.bias, ..*tile };
    // SAFETY: the caller's promise, here and below.
    let (mut left_acc, mut right_acc) = unsafe { (load::<ROWS>(tile), load::<ROWS>(&right)) };
    for first in (0..tile.pairs).step_by(STEP_PAIRS) {
        let x = tile.x.as_ptr().wrapping_add(2 * first);
        let w = tile.w.as_ptr().wrapping_add(2 * first * PANEL);
        let second_w = right.w.as_ptr().wrapping_add(2 * first * PANEL);
        let pairs = STEP_PAIRS.min(tile.pairs - first);
        // SAFETY: the step lies before `2 * tile.pairs`. A whole step has a fixed length, so that the compiler can unroll it.
        let step = unsafe {
            if pairs == STEP_PAIRS {
                wide_chains::<ROWS>(x, tile.x_stride, w, second_w, STEP_PAIRS)
            } else {
                wide_chains::<ROWS>(x, tile.x_stride, w, second_w, pairs)
            }
        };
        for r in 0..ROWS {
            left_acc[r] = _mm512_add_ps(left_acc[r], step[r][0]);
            right_acc[r] = _mm512_add_ps(right_acc[r], step[r][1]);
        }
    }
    // SAFETY: the caller's promise.
    unsafe {
        store(tile, left_acc);
        store(&right, right_acc);
    }
}

/// Both chains of a step for two panels, added.
///
/// # Safety
/// As [`chains`], for both `w` and `second_w`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn wide_chains<const ROWS: usize>(
    x: *const f32,
    stride: usize,
    w: *const f32,
    second_w: *const f32,
    pairs: usize,
) -> [[__m512; 2]; ROWS] {
    let mut even = [[_mm512_setzero_ps(); 2]; ROWS];
    let mut odd = even;
    for i in 0..pairs {
        // SAFETY: the caller's promise.
        unsafe {
            let (at_even, at_odd) = (2 * i * PANEL, (2 * i + 1) * PANEL);
            let w_even = [_mm512_load_ps(w.wrapping_add(at_even)), _mm512_load_ps(second_w.wrapping_add(at_even))];
            let w_odd = [_mm512_load_ps(w.wrapping_add(at_odd)), _mm512_load_ps(second_w.wrapping_add(at_odd))];
            for r in 0..ROWS {
                let x = x.wrapping_add(r * stride + 2 * i);
                let (x_even, x_odd) = (_mm512_set1_ps(*x), _mm512_set1_ps(*x.wrapping_add(1)));
                for p in 0..2 {
                    even[r][p] = _mm512_fmadd_ps(x_even, w_even[p], even[r][p]);
                    odd[r][p] = _mm512_fmadd_ps(x_odd, w_odd[p], odd[r][p]);
                }
            }
        }
    }
    for (even, odd) in even.iter_mut().zip(odd) {
        *even = [_mm512_add_ps(even[0], odd[0]), _mm512_add_ps(even[1], odd[1])];
    }
    even
}
