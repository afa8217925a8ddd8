//! Few rows: weights go from the packed panel through registers into the sums, without a stop in memory.
//!
//! The sums of up to eight rows (two chains and the total each) fit in registers over all of `k`. Rounding to bf16 costs most, and takes two
//! operations in [`round_finite`], which gives NaN for what is infinite: a weight, or what a scale or a minimum makes of one. Then a sum is NaN,
//! and [`run`] says so: the caller does it the long way.

use std::arch::x86_64::*;

use super::tile;
use super::unpack::{Pairs, split, unpack};
use crate::WeightType;
use crate::kernels::Tile;

/// Most rows.
pub(super) const ROWS: usize = 8;

/// Multiplies the pairs it is given with `ROWS` rows of `x`. `VBMI`: the CPU shuffles bytes across a whole register.
struct Multiply<const ROWS: usize, const VBMI: bool> {
    x: [*const f32; ROWS],
    even: [__m512; ROWS],
    odd: [__m512; ROWS],
    acc: [__m512; ROWS],
}

impl<const ROWS: usize, const VBMI: bool> Pairs for Multiply<ROWS, VBMI> {
    const SHUFFLES_BYTES: bool = VBMI;

    #[inline(always)]
    unsafe fn values(&mut self, pair: usize, even: __m512, odd: __m512) {
        // SAFETY: as in [`Pairs`].
        unsafe { self.operands(pair, round_finite(even), round_finite(odd)) }
    }
    #[inline(always)]
    unsafe fn operands(&mut self, pair: usize, even: __m512, odd: __m512) {
        for r in 0..ROWS {
            // SAFETY: each row of `x` is as long as `k`, padded to a pair; the instructions as in [`Pairs`].
            unsafe {
                let x = self.x[r].wrapping_add(2 * pair);
                self.even[r] = _mm512_fmadd_ps(_mm512_set1_ps(*x), even, self.even[r]);
                self.odd[r] = _mm512_fmadd_ps(_mm512_set1_ps(*x.wrapping_add(1)), odd, self.odd[r]);
            }
        }
    }
    #[inline(always)]
    unsafe fn words(&mut self, pair: usize, words: __m512i) {
        // SAFETY: as in [`Pairs`].
        unsafe {
            let (even, odd) = split(words);
            self.operands(pair, even, odd);
        }
    }
    #[inline(always)]
    unsafe fn end_step(&mut self) {
        // SAFETY: as in [`Pairs`].
        unsafe {
            for r in 0..ROWS {
                self.acc[r] = _mm512_add_ps(self.acc[r], _mm512_add_ps(self.even[r], self.odd[r]));
                (self.even[r], self.odd[r]) = (_mm512_setzero_ps(), _mm512_setzero_ps());
            }
        }
    }
}

/// [`round_value`](super::round_value) by multiplications: `-(2^16 - 1) w` is rounded to 24 bits, and then `2^16 w` is added exactly. NaN for
/// infinities.
#[inline(always)]
pub(super) unsafe fn round_finite(w: __m512) -> __m512 {
    // SAFETY: as in [`Pairs`].
    unsafe { _mm512_fmadd_ps(w, _mm512_set1_ps(65_536.0), _mm512_mul_ps(w, _mm512_set1_ps(-65_535.0))) }
}

/// # Safety
/// As [`run`]; only in functions compiled for the instructions, VBMI among them if `VBMI`.
#[inline(always)]
unsafe fn rows<const ROWS: usize, const VBMI: bool>(
    ty: WeightType,
    panel: &[u8],
    start: usize,
    tile: &Tile<'_>,
) -> bool {
    // SAFETY: the caller's promise, throughout. Where fewer rows are asked for, the last one is computed more than once.
    unsafe {
        let zero = [_mm512_setzero_ps(); ROWS];
        let x = std::array::from_fn(|r| tile.x.as_ptr().wrapping_add(r.min(tile.rows - 1) * tile.x_stride));
        let mut sums = Multiply::<ROWS, VBMI> { x, even: zero, odd: zero, acc: tile::load(tile) };
        unpack(ty, panel.as_ptr(), start, 2 * tile.pairs, &mut sums);
        let nan = sums.acc.iter().fold(0, |nan, &acc| nan | _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(acc, acc));
        if nan == 0 {
            tile::store(tile, sums.acc);
        }
        nan == 0
    }
}

/// A tile of up to [`ROWS`] rows from the panel's rows `start..` of `k` on; `false` if a sum is NaN, and then nothing was written.
///
/// # Safety
/// `tile.rows` is at most [`ROWS`], `x` and the panel have `2 * tile.pairs` rows of `k` (from `start` on), whole blocks of a type that
/// `unpack` reads, and `tile.out` is the caller's alone.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn run(ty: WeightType, panel: &[u8], start: usize, tile: &Tile<'_>) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        match tile.rows {
            1 => rows::<1, false>(ty, panel, start, tile),
            2 => rows::<2, false>(ty, panel, start, tile),
            3 | 4 => rows::<4, false>(ty, panel, start, tile),
            _ => rows::<8, false>(ty, panel, start, tile),
        }
    }
}

/// As [`run`], with VBMI.
///
/// # Safety
/// As [`run`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
pub(super) unsafe fn run_vbmi(ty: WeightType, panel: &[u8], start: usize, tile: &Tile<'_>) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        match tile.rows {
            1 => rows::<1, true>(ty, panel, start, tile),
            2 => rows::<2, true>(ty, panel, start, tile),
            3 | 4 => rows::<4, true>(ty, panel, start, tile),
            _ => rows::<8, true>(ty, panel, start, tile),
        }
    }
}
