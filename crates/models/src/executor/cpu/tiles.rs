//! Long steps in parts, so that a cancel is seen inside of them: a row's bits do not depend on the rows that go with it.

use plimsoll_linear::{Output, PackedWeight, Settings};
use smallvec::SmallVec;

use crate::kernels::arena::OPERANDS;

/// Multiply-adds per thread between two looks at the cancel flag: some hundredths of a second with vector units, a second in plain scalar code.
pub(super) const TILE_WORK: u64 = 1 << 30;

/// Fewest rows of a part of a product: with fewer, reading the weights would cost more than multiplying with them.
const LEAST_LINEAR_ROWS: usize = 32;

/// Fewest rows of a part of attention: enough for every thread to have tiles of its own.
const LEAST_ATTENTION_ROWS: usize = 64;

/// The cancel flag was seen in the middle of a step; what the step has written is not whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cancelled;

/// Rows of each part of `rows` rows of `row_work` multiply-adds: all of them where they are soon done, else parts of about one size.
fn tile_rows(rows: usize, row_work: u64, least: usize, tile_work: u64) -> usize {
    let most = usize::try_from(tile_work / row_work.max(1)).unwrap_or(usize::MAX).max(least);
    if rows <= most { rows.max(1) } else { rows.div_ceil(rows.div_ceil(most)).next_multiple_of(least) }
}

/// `tile`, or all rows where fewer would need more scratch than all of them, which a kernel may: the scratch was sized for all.
fn tile_that_fits(rows: usize, tile: usize, fits: impl Fn(usize) -> bool) -> usize {
    let last = rows.checked_rem(tile).unwrap_or(0);
    if tile < rows && (!fits(tile) || last > 0 && !fits(last)) { rows } else { tile }
}

/// `plimsoll_linear::linear`, part by part of the rows. `tile_work`: multiply-adds between two calls of `is_cancelled`.
pub(super) fn linear(
    (x, rows): (&[f32], usize),
    outputs: &mut [Output<'_>],
    scratch: &mut [u8],
    settings: Settings,
    tile_work: u64,
    is_cancelled: impl Fn() -> bool,
) -> Result<(), Cancelled> {
    let width = |weight: &PackedWeight| weight.out_features();
    let (in_features, out_features) =
        (x.len() / rows.max(1), outputs.iter().map(|output| width(output.weight)).sum::<usize>());
    let tile = tile_rows(rows, in_features as u64 * out_features as u64, LEAST_LINEAR_ROWS, tile_work);
    let shapes: SmallVec<[_; OPERANDS]> =
        outputs.iter().map(|output| (output.weight.weight_type(), width(output.weight))).collect();
    let needs = |rows: usize| plimsoll_linear::scratch_bytes(rows, in_features, &shapes, settings);
    let tile = tile_that_fits(rows, tile, |rows| needs(rows) <= scratch.len() as u64);
    if tile >= rows {
        plimsoll_linear::linear(x, rows, outputs, scratch, settings);
        return Ok(());
    }
    for start in (0..rows).step_by(tile) {
        if is_cancelled() {
            return Err(Cancelled);
        }
        let count = tile.min(rows - start);
        let of = |width: usize| start * width..(start + count) * width;
        let mut parts: SmallVec<[Output<'_>; OPERANDS]> = outputs
            .iter_mut()
            .map(|Output { weight, bias, out }| Output { weight, bias: *bias, out: &mut out[of(width(weight))] })
            .collect();
        plimsoll_linear::linear(&x[of(in_features)], count, &mut parts, scratch, settings);
    }
    Ok(())
}

/// Calls `run` with the rows of each part of attention: `rows` rows of `row_work` multiply-adds each. `tile_work` as in [`linear`]; `fits` tells whether
/// the scratch is enough for so many rows.
pub(super) fn attend<E>(
    (rows, row_work): (usize, u64),
    tile_work: u64,
    fits: impl Fn(usize) -> bool,
    is_cancelled: impl Fn() -> bool,
    mut run: impl FnMut(std::ops::Range<usize>) -> Result<(), E>,
) -> Result<Result<(), E>, Cancelled> {
    let tile = tile_that_fits(rows, tile_rows(rows, row_work, LEAST_ATTENTION_ROWS, tile_work), fits);
    for start in (0..rows).step_by(tile) {
        // The first part follows the look before the step.
        if start > 0 && is_cancelled() {
            return Err(Cancelled);
        }
        if let Err(error) = run(start..(start + tile).min(rows)) {
            return Ok(Err(error));
        }
    }
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_linear::{Isa, WeightType};
    use std::cell::Cell;

    #[test]
    fn parts_are_of_about_one_size_and_only_where_a_step_is_long() {
        assert_eq!(tile_rows(512, 1 << 20, 32, 1 << 30), 512, "half of the work");
        assert_eq!(tile_rows(512, 1 << 22, 32, 1 << 30), 256);
        assert_eq!(tile_rows(513, 1 << 22, 32, 1 << 30), 192, "three parts, not two and a row");
        assert_eq!(tile_rows(512, u64::MAX, 32, 1 << 30), 32);
        assert_eq!(tile_rows(20, u64::MAX, 32, 1 << 30), 20);
        assert_eq!(tile_rows(0, 0, 32, 1), 1);
    }

    /// Rows of a product that were computed when `is_cancelled` said yes at the look `at`, and whether it ended by that.
    fn computed(at: usize) -> (Vec<f32>, bool) {
        let (rows, width) = (100, 32);
        let values: Vec<f32> = (0..width * width).map(|i| (i % 7) as f32 - 3.0).collect();
        let weight = PackedWeight::pack(WeightType::F32, width, width, bytemuck::cast_slice(&values), 1).unwrap();
        let x: Vec<f32> = (0..rows * width).map(|i| (i % 5) as f32 - 2.0).collect();
        let settings = Settings { isa: Isa::detect(), threads: 1 };
        let bytes = plimsoll_linear::scratch_bytes(rows, width, &[(WeightType::F32, width)], settings);
        let mut scratch = vec![0_u8; usize::try_from(bytes).unwrap() + 64];
        let aligned = scratch.as_ptr().align_offset(64);
        let mut out = vec![f32::NAN; rows * width];
        let looks = Cell::new(0);
        let is_cancelled = || {
            looks.set(looks.get() + 1);
            looks.get() > at
        };
        let mut outputs = [Output { weight: &weight, bias: None, out: &mut out }];
        let work = 32 * (width * width) as u64;
        let result = linear((&x, rows), &mut outputs, &mut scratch[aligned..], settings, work, is_cancelled);
        (out, result.is_err())
    }

    #[test]
    fn a_product_ends_at_the_part_after_the_cancel_and_is_the_same_in_parts() {
        let (whole, ended) = computed(usize::MAX);
        assert!(!ended && whole.iter().all(|value| value.is_finite()));
        for at in 0..4 {
            let (out, ended) = computed(at);
            let done = at * 32 * 32;
            assert!(ended && out[..done] == whole[..done] && out[done..].iter().all(|value| value.is_nan()), "{at}");
        }
    }

    #[test]
    fn attention_ends_at_the_part_after_the_cancel() {
        let looks = Cell::new(0);
        let mut seen = Vec::new();
        let is_cancelled = || {
            looks.set(looks.get() + 1);
            looks.get() == 2
        };
        let ended = attend::<()>(
            (300, 10),
            10,
            |_| true,
            is_cancelled,
            |rows| {
                seen.push(rows);
                Ok(())
            },
        );
        assert_eq!((ended, seen), (Err(Cancelled), vec![0..64, 64..128]));
        assert_eq!(attend((300, 10), 10, |_| true, || false, |rows| Err(rows.start)), Ok(Err(0)));
    }

    #[test]
    fn rows_that_need_more_scratch_than_all_are_not_taken_apart() {
        assert_eq!(tile_that_fits(300, 64, |_| true), 64);
        assert_eq!(tile_that_fits(300, 64, |rows| rows == 300), 300);
        assert_eq!(tile_that_fits(300, 64, |rows| rows != 300 % 64), 300, "the last part");
        assert_eq!(tile_that_fits(40, 64, |_| false), 64);
    }
}
