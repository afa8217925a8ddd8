//! What the executor runs between the products: normalization, rotation, gating, sums, and the arena they run in.
//!
//! All of it is plain code over rows, split over threads by whole rows: a row's bits never depend on the split. Sums over a row keep eight
//! lanes (index modulo 8, ascending) that are combined in one fixed order; products and sums are never fused, so every instruction set gives
//! the same bits.

pub(crate) mod arena;
pub(crate) mod columns;
pub(crate) mod conv;
pub(crate) mod delta;
pub(crate) mod elementwise;
pub(crate) mod experts;
pub(crate) mod norm;
pub(crate) mod rope;
pub(crate) mod softplus;

use rayon::prelude::*;

/// Runs `work(first_row, rows_of_out)` on about equal runs of whole rows, on `threads` threads of the current pool.
///
/// `out`: `[rows, width]`.
pub(crate) fn for_rows(out: &mut [f32], width: usize, threads: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
    // Below this many elements a second thread costs more than it saves.
    const WORTH_SPLITTING: usize = 1 << 14;
    if width == 0 || out.is_empty() {
        return;
    }
    if threads <= 1 || out.len() < WORTH_SPLITTING {
        work(0, out);
        return;
    }
    let rows_per_task = (out.len() / width).div_ceil(threads);
    out.par_chunks_mut(rows_per_task * width).enumerate().for_each(|(task, out)| work(task * rows_per_task, out));
}
