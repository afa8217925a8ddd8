//! Long steps in parts, so that a cancel is seen inside of them: a row's bits do not depend on the rows that go with it.

use plimsoll_linear::{Output, PackedWeight, Settings};
use smallvec::SmallVec;
use std::time::{Duration, Instant};

use crate::{executor::cost::CpuSettings, kernels::arena::OPERANDS};

/// How long a part should take: a cancel is seen at its end.
const PART: Duration = Duration::from_millis(40);

/// Multiply-adds a second and thread that plain scalar code does at the least, and code with vector units: where measuring begins.
const SCALAR_PER_SECOND: f64 = 0.2e9;
const VECTOR_PER_SECOND: f64 = 8e9;

/// Rows of a step that says how fast its path is: with few, reading weights or keys takes the time.
const TELLING_ROWS: usize = 32;

/// How fast one kind of step is here, as measured. It sizes parts, and a part's size changes no bit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pace {
    /// Multiply-adds.
    per_second: f64,
    /// Multiply-adds of a part, whatever the speed.
    fixed: Option<u64>,
}

impl Pace {
    fn new(is_scalar: bool, threads: usize) -> Self {
        let per_second = if is_scalar { SCALAR_PER_SECOND } else { VECTOR_PER_SECOND };
        Self { per_second: per_second * threads as f64, fixed: None }
    }

    /// Multiply-adds of a part.
    fn part_work(&self) -> u64 {
        #[expect(clippy::cast_possible_truncation, reason = "a float past the range becomes the end of the range")]
        let work = (self.per_second * PART.as_secs_f64()) as u64;
        self.fixed.unwrap_or(work)
    }

    /// Learns from a part. A slower one counts at once, so that a bound holds for the next; a faster one by and by.
    fn learn(&mut self, work: u64, took: Duration) {
        // What is this short says more of the clock than of the kernel.
        if took < PART / 40 {
            if work > self.part_work() / 4 {
                self.per_second *= 1.25;
            }
            return;
        }
        let measured = work as f64 / took.as_secs_f64();
        let weight = if measured < self.per_second { 1.0 } else { 0.25 };
        self.per_second += (measured - self.per_second) * weight;
    }

    /// Runs a part of a step of `rows` rows and learns from it.
    pub(super) fn time<R>(&mut self, rows: usize, work: u64, part: impl FnOnce() -> R) -> R {
        if rows < TELLING_ROWS {
            return part();
        }
        let start = Instant::now();
        let result = part();
        self.learn(work, start.elapsed());
        result
    }

    /// Rows of each part of a step, see [`tile_rows`].
    pub(super) fn rows(&self, rows: usize, row_work: u64, least: usize) -> usize {
        tile_rows(rows, row_work, least, self.part_work())
    }
}

/// The paces of all kinds of steps that are taken apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paces {
    pub(super) linear: Pace,
    pub(super) attention: Pace,
    pub(super) delta: Pace,
}

impl Paces {
    pub(super) fn new(settings: &CpuSettings) -> Self {
        let linear = Pace::new(settings.linear_isa == plimsoll_linear::Isa::Scalar, settings.threads);
        let attention = Pace::new(settings.attention_isa == plimsoll_attention::Isa::Scalar, settings.threads);
        // Its chains of sums leave most of a vector unit idle.
        let delta = Pace { per_second: attention.per_second / 4.0, ..attention };
        Self { linear, attention, delta }
    }

    /// Parts of `work` multiply-adds, whatever the speed.
    #[cfg(test)]
    pub(super) fn fixed(work: u64) -> Self {
        let pace = Pace { fixed: Some(work), ..Pace::new(true, 1) };
        Self { linear: pace, attention: pace, delta: pace }
    }
}

/// Rows that a part of a product is a multiple of, if it has so many: with fewer, reading the weights would cost more than multiplying with them.
const LEAST_LINEAR_ROWS: usize = 32;

/// The same for attention: enough for every thread to have tiles of its own.
const LEAST_ATTENTION_ROWS: usize = 64;

/// The cancel flag was seen in the middle of a step; what the step has written is not whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cancelled;

/// Rows of each part of `rows` rows of `row_work` multiply-adds: all of them where they are soon done, else parts of about one size and at most
/// `tile_work`, in multiples of `least` rows, or of a smaller power of two where so many take too long.
fn tile_rows(rows: usize, row_work: u64, least: usize, tile_work: u64) -> usize {
    let most = usize::try_from(tile_work / row_work.max(1)).unwrap_or(usize::MAX).max(1);
    if rows <= most {
        return rows.max(1);
    }
    let granule = if most >= least { least } else { 1 << most.ilog2() };
    let most = most / granule * granule;
    rows.div_ceil(rows.div_ceil(most)).next_multiple_of(granule)
}

/// `tile`, or as many times two of it as fit, or all rows: fewer rows may need more scratch than all of them, and the scratch was sized for all.
fn tile_that_fits(rows: usize, mut tile: usize, fits: impl Fn(usize) -> bool) -> usize {
    let fails = |tile: usize| !fits(tile) || !rows.is_multiple_of(tile) && !fits(rows % tile);
    while tile < rows && fails(tile) {
        tile = tile.saturating_mul(2);
    }
    if tile < rows { tile } else { rows.max(1) }
}

/// `plimsoll_linear::linear`, part by part of the rows, as large as `pace` says; `is_cancelled` is asked between two of them.
pub(super) fn linear(
    (x, rows): (&[f32], usize),
    outputs: &mut [Output<'_>],
    scratch: &mut [u8],
    settings: Settings,
    pace: &mut Pace,
    is_cancelled: impl Fn() -> bool,
) -> Result<(), Cancelled> {
    let width = |weight: &PackedWeight| weight.out_features();
    let (in_features, out_features) =
        (x.len() / rows.max(1), outputs.iter().map(|output| width(output.weight)).sum::<usize>());
    let row_work = in_features as u64 * out_features as u64;
    let tile = pace.rows(rows, row_work, LEAST_LINEAR_ROWS);
    let shapes: SmallVec<[_; OPERANDS]> =
        outputs.iter().map(|output| (output.weight.weight_type(), width(output.weight))).collect();
    let needs = |rows: usize| plimsoll_linear::scratch_bytes(rows, in_features, &shapes, settings);
    let tile = tile_that_fits(rows, tile, |rows| needs(rows) <= scratch.len() as u64);
    if tile >= rows {
        pace.time(rows, row_work * rows as u64, || plimsoll_linear::linear(x, rows, outputs, scratch, settings));
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
        let x = &x[of(in_features)];
        pace.time(rows, row_work * count as u64, || {
            plimsoll_linear::linear(x, count, &mut parts, scratch, settings);
        });
    }
    Ok(())
}

/// Calls `run` with the rows of each part of attention: `rows` rows of `row_work` multiply-adds each, as in [`linear`]. `fits` tells whether the
/// scratch is enough for so many rows.
pub(super) fn attend<E>(
    (rows, row_work): (usize, u64),
    pace: &mut Pace,
    fits: impl Fn(usize) -> bool,
    is_cancelled: impl Fn() -> bool,
    mut run: impl FnMut(std::ops::Range<usize>) -> Result<(), E>,
) -> Result<Result<(), E>, Cancelled> {
    let tile = tile_that_fits(rows, pace.rows(rows, row_work, LEAST_ATTENTION_ROWS), fits);
    for start in (0..rows).step_by(tile) {
        // The first part follows the look before the step.
        if start > 0 && is_cancelled() {
            return Err(Cancelled);
        }
        let part = start..(start + tile).min(rows);
        if let Err(error) = pace.time(rows, row_work * part.len() as u64, || run(part)) {
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
        assert_eq!(tile_rows(512, 1 << 26, 32, 1 << 30), 16, "32 rows would take twice as long");
        assert_eq!(tile_rows(100, 1 << 25, 32, (1 << 30) - 1), 16);
        assert_eq!(tile_rows(512, u64::MAX, 32, 1 << 30), 1);
        assert_eq!(tile_rows(0, 0, 32, 1), 1);
    }

    #[test]
    fn no_part_is_more_work_than_the_pace_allows() {
        for (rows, row_work, tile_work) in
            [(512, 1 << 20, 1 << 25), (513, 90_000_000, 1 << 28), (7, 3, 5), (4096, 1, 1000)]
        {
            for least in [1, 32, 64] {
                let tile = tile_rows(rows, row_work, least, tile_work);
                assert!(tile as u64 * row_work <= tile_work.max(row_work), "{tile} of {rows} rows of {row_work}");
            }
        }
    }

    #[test]
    fn a_pace_follows_what_is_measured_down_at_once_and_up_by_and_by() {
        let settings = |isa| Pace::new(isa == Isa::Scalar, 2);
        let (mut scalar, mut vector) = (settings(Isa::Scalar), settings(Isa::Avx2));
        assert_eq!((scalar.part_work(), vector.part_work()), (16_000_000, 640_000_000));
        vector.learn(64_000_000, Duration::from_millis(80));
        assert_eq!(vector.part_work(), 32_000_000, "800 million a second, 40 ms of it");
        for _ in 0..40 {
            scalar.learn(100_000_000, Duration::from_millis(10));
        }
        assert!(scalar.part_work().abs_diff(400_000_000) < 4_000_000, "{}", scalar.part_work());
        let before = scalar;
        scalar.time(TELLING_ROWS - 1, 1, || std::thread::sleep(Duration::from_millis(2)));
        assert_eq!(scalar, before, "few rows tell nothing");
        // A part that ends before the clock can tell makes the next one larger.
        scalar.learn(scalar.part_work(), Duration::ZERO);
        assert!(scalar.part_work() > before.part_work());
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
        let mut pace = Paces::fixed(32 * (width * width) as u64).linear;
        let result = linear((&x, rows), &mut outputs, &mut scratch[aligned..], settings, &mut pace, is_cancelled);
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
        let mut pace = Paces::fixed(640).attention;
        let ended = attend::<()>(
            (300, 10),
            &mut pace,
            |_| true,
            is_cancelled,
            |rows| {
                seen.push(rows);
                Ok(())
            },
        );
        assert_eq!((ended, seen), (Err(Cancelled), vec![0..64, 64..128]));
        assert_eq!(attend((300, 10), &mut pace, |_| true, || false, |rows| Err(rows.start)), Ok(Err(0)));
    }

    #[test]
    fn rows_that_need_more_scratch_than_all_are_not_taken_apart() {
        assert_eq!(tile_that_fits(300, 64, |_| true), 64);
        assert_eq!(tile_that_fits(300, 64, |rows| rows == 300), 300);
        assert_eq!(tile_that_fits(300, 64, |rows| rows != 300 % 64), 300, "the last part");
        assert_eq!(tile_that_fits(300, 8, |rows| rows >= 44), 64);
        assert_eq!(tile_that_fits(40, 64, |_| false), 40);
    }
}
