//! Few rows: weights go from the packed panel through registers into the sums, without a stop in memory.
//!
//! The sums of up to eight rows (two chains and the total each) fit in registers over all of `k`.

use std::arch::x86_64::*;

use super::unpack::{Pairs, join, split, unpack};
use super::{round_bf16, tile};
use crate::WeightType;
use crate::kernels::Tile;

/// Most rows.
pub(super) const ROWS: usize = 8;

/// Multiplies the pairs it is given with `ROWS` rows of `x`. `BF16`: the CPU converts to bf16.
struct Multiply<const ROWS: usize, const BF16: bool> {
    x: [*const f32; ROWS],
    even: [__m512; ROWS],
    odd: [__m512; ROWS],
    acc: [__m512; ROWS],
}

impl<const ROWS: usize, const BF16: bool> Multiply<ROWS, BF16> {
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
}

impl<const ROWS: usize, const BF16: bool> Pairs for Multiply<ROWS, BF16> {
    #[inline(always)]
    unsafe fn values(&mut self, pair: usize, even: __m512, odd: __m512) {
        // SAFETY: as in [`Pairs`]; the conversion exists where `BF16` says so.
        unsafe {
            let (even, odd) = if BF16 { split(join(even, odd)) } else { (round_bf16(even), round_bf16(odd)) };
            self.operands(pair, even, odd);
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

/// # Safety
/// As [`run`]; only in functions compiled for the instructions.
#[inline(always)]
unsafe fn rows<const ROWS: usize, const BF16: bool>(ty: WeightType, panel: &[u8], start: usize, tile: &Tile<'_>) {
    // SAFETY: the caller's promise, throughout. Where fewer rows are asked for, the last one is computed more than once.
    unsafe {
        let zero = [_mm512_setzero_ps(); ROWS];
        let x = std::array::from_fn(|r| tile.x.as_ptr().wrapping_add(r.min(tile.rows - 1) * tile.x_stride));
        let mut sums = Multiply::<ROWS, BF16> { x, even: zero, odd: zero, acc: tile::load(tile) };
        unpack(ty, panel.as_ptr(), start, 2 * tile.pairs, &mut sums);
        tile::store(tile, sums.acc);
    }
}

/// # Safety
/// `tile.rows` is at most [`ROWS`], `x` and the panel have `2 * tile.pairs` rows of `k` (from `start` on), whole blocks of a type that
/// `unpack` reads, and `tile.out` is the caller's alone.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn run(ty: WeightType, panel: &[u8], start: usize, tile: &Tile<'_>) {
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

/// As [`run`], with the CPU's conversion to bf16.
///
/// # Safety
/// As [`run`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn run_bf16(ty: WeightType, panel: &[u8], start: usize, tile: &Tile<'_>) {
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
