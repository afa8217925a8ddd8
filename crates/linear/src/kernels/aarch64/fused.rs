//! Few rows: weights go from the packed panel through registers into the sums, without a stop in memory.
//!
//! The chains of up to four rows and 8 columns fill 16 registers; the other 16 are for unpacking.

use std::arch::aarch64::*;

use super::tile;
use super::unpack::{Half, Pairs, round, unpack};
use crate::WeightType;
use crate::kernels::Tile;
use crate::layout::PANEL;

/// Most rows.
pub(super) const ROWS: usize = 4;

/// Multiplies the pairs it is given with `R` rows of `x`.
struct Multiply<const R: usize> {
    x: [*const f32; R],
    even: [Half; R],
    odd: [Half; R],
    /// Sums over all steps, of columns 0 to 8 and of columns 8 to 16.
    acc: [[Half; R]; 2],
}

impl<const R: usize> Pairs for Multiply<R> {
    #[inline(always)]
    unsafe fn values<const HALF: usize>(&mut self, pair: usize, even: Half, odd: Half) {
        // SAFETY: as in [`Pairs`].
        unsafe { self.operands::<HALF>(pair, round(even), round(odd)) };
    }
    #[inline(always)]
    unsafe fn operands<const HALF: usize>(&mut self, pair: usize, even: Half, odd: Half) {
        for r in 0..R {
            // SAFETY: each row of `x` is as long as `k`, padded to a pair; the instructions as in [`Pairs`].
            unsafe {
                let x = vld1_f32(self.x[r].wrapping_add(2 * pair));
                for v in 0..2 {
                    self.even[r][v] = vfmaq_lane_f32::<0>(self.even[r][v], even[v], x);
                    self.odd[r][v] = vfmaq_lane_f32::<1>(self.odd[r][v], odd[v], x);
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn end_step<const HALF: usize>(&mut self) {
        // SAFETY: as in [`Pairs`].
        unsafe {
            for r in 0..R {
                for v in 0..2 {
                    let step = vaddq_f32(self.even[r][v], self.odd[r][v]);
                    self.acc[HALF][r][v] = vaddq_f32(self.acc[HALF][r][v], step);
                }
            }
            (self.even, self.odd) = ([[vdupq_n_f32(0.0); 2]; R], [[vdupq_n_f32(0.0); 2]; R]);
        }
    }
}

/// # Safety
/// As [`run`], with `R` rows.
#[target_feature(enable = "neon")]
unsafe fn rows<const R: usize>(ty: WeightType, panel: &[u8], start: usize, tile: &Tile<'_>) {
    let zero = [[vdupq_n_f32(0.0); 2]; R];
    let x = std::array::from_fn(|r| tile.x.as_ptr().wrapping_add(r * tile.x_stride));
    // SAFETY: the caller's promise, throughout.
    unsafe {
        let acc = [tile::load(tile, 0), tile::load(tile, PANEL / 2)];
        let mut sums = Multiply::<R> { x, even: zero, odd: zero, acc };
        unpack(ty, panel.as_ptr(), start, 2 * tile.pairs, &mut sums);
        tile::store(tile, 0, sums.acc[0]);
        tile::store(tile, PANEL / 2, sums.acc[1]);
    }
}

/// # Safety
/// `tile.rows` is 1 to [`ROWS`], `x` and the panel have `2 * tile.pairs` rows of `k` (from `start` on), whole steps of a type that `unpack`
/// reads, and `tile.out` is the caller's alone.
#[target_feature(enable = "neon")]
pub(super) unsafe fn run(ty: WeightType, panel: &[u8], start: usize, tile: &Tile<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match tile.rows {
            1 => rows::<1>(ty, panel, start, tile),
            2 => rows::<2>(ty, panel, start, tile),
            3 => rows::<3>(ty, panel, start, tile),
            _ => rows::<4>(ty, panel, start, tile),
        }
    }
}
