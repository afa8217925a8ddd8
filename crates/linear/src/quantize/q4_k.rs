//! Q4_K: eight sub-blocks of 32 elements, `x ~ d * scale * quant - dmin * min` with 6-bit scales and minimums.

use super::{PastF16, nearest, put_f16, to_u8};
use half::f16;

const SUB: usize = 32;
const SUBS: usize = 8;
/// Largest quant.
const QUANT_MAX: f32 = 15.0;
/// Largest 6-bit scale or minimum.
const SCALE_MAX: f32 = 63.0;
/// Largest magnitude whose scale can be an f16; sums of squares of anything smaller stay finite.
const LARGEST: f32 = 65504.0 * SCALE_MAX * QUANT_MAX;
/// Lanes of a sum; a fixed number, so that the order of adding is the same on every machine.
const LANES: usize = 8;

/// What approximates a sub-block: `scale * quant - min`, both at least 0.
#[derive(Debug, Clone, Copy, Default)]
struct Fit {
    scale: f32,
    min: f32,
}

pub(super) fn block(x: &[f32], out: &mut [u8]) -> Result<(), PastF16> {
    if x.iter().any(|v| v.abs() > LARGEST) {
        return Err(PastF16);
    }
    let (subs, _) = x.as_chunks::<SUB>();
    let mut weights = [[0.0; SUB]; SUBS];
    let mut fits = [Fit::default(); SUBS];
    for (sub, x) in subs.iter().enumerate() {
        // The rms keeps small elements from being given up for large ones.
        let rms = (sum(|i| x[i] * x[i]) / SUB as f32).sqrt();
        for (weight, x) in weights[sub].iter_mut().zip(x) {
            *weight = rms + x.abs();
        }
        fits[sub] = fit(x, &weights[sub]);
    }
    let (factors, rest) = out.split_at_mut(4);
    let (scales, quants) = rest.split_at_mut(12);
    let largest = |of: fn(&Fit) -> f32| fits.iter().map(of).fold(0.0, f32::max);
    put_f16(largest(|fit| fit.scale) / SCALE_MAX, factors)?;
    put_f16(largest(|fit| fit.min) / SCALE_MAX, &mut factors[2..])?;
    // From here on what the reader will see, not what was rounded to it.
    let [d, dmin] = [0, 2].map(|at| f16::from_le_bytes([factors[at], factors[at + 1]]).to_f32());
    let mut chosen = [(0, 0); SUBS];
    quants.fill(0);
    for (sub, x) in subs.iter().enumerate() {
        let (scale, min) = choose(x, &weights[sub], fits[sub], d, dmin);
        chosen[sub] = (to_u8(scale), to_u8(min));
        let levels = levels(x, d * scale, dmin * min);
        for (quants, level) in quants[sub / 2 * SUB..].iter_mut().zip(levels) {
            *quants |= to_u8(level) << (4 * (sub % 2));
        }
    }
    for sub in 0..SUBS / 2 {
        let ((scale, min), (late_scale, late_min)) = (chosen[sub], chosen[sub + 4]);
        scales[sub] = scale | ((late_scale >> 4) << 6);
        scales[sub + 4] = min | ((late_min >> 4) << 6);
        scales[sub + 8] = (late_scale & 15) | ((late_min & 15) << 4);
    }
    Ok(())
}

/// Scale and minimum with the least weighted squared error over a range of trial scales.
///
/// Each trial rounds the elements to levels above the best minimum so far, then solves for the scale and minimum that fit
/// these levels best.
fn fit(x: &[f32; SUB], weights: &[f32; SUB]) -> Fit {
    let (min, max) = x.iter().fold((0.0f32, f32::MIN), |(min, max), &v| (min.min(v), max.max(v)));
    if max <= min {
        // All elements are the same number, zero or below.
        return Fit { scale: 0.0, min: -min };
    }
    let (sum_w, sum_wx) = (sum(|i| weights[i]), sum(|i| weights[i] * x[i]));
    let mut best = Fit { scale: (max - min) / QUANT_MAX, min: -min };
    let mut best_error = error(x, weights, &trial_levels(x, best.min, QUANT_MAX / (max - min)), best);
    for step in 0..=10u8 {
        let inverse = (QUANT_MAX - 1.0 + 0.2 * f32::from(step)) / (max + best.min);
        let levels = trial_levels(x, best.min, inverse);
        let weighted: [f32; SUB] = std::array::from_fn(|i| weights[i] * levels[i]);
        let sum_wl = sum(|i| weighted[i]);
        let sum_wll = sum(|i| weighted[i] * levels[i]);
        let sum_wxl = sum(|i| weighted[i] * x[i]);
        let determinant = sum_w * sum_wll - sum_wl * sum_wl;
        if determinant <= 0.0 {
            continue;
        }
        let mut trial = Fit {
            scale: (sum_w * sum_wxl - sum_wx * sum_wl) / determinant,
            min: (sum_wl * sum_wxl - sum_wll * sum_wx) / determinant,
        };
        if trial.min < 0.0 {
            // The format only subtracts.
            trial = Fit { scale: sum_wxl / sum_wll, min: 0.0 };
        }
        let trial_error = error(x, weights, &levels, trial);
        if trial.scale >= 0.0 && trial_error < best_error {
            (best, best_error) = (trial, trial_error);
        }
    }
    best
}

/// The 6-bit scale and minimum near a fit with the least error once the elements are rounded to their levels.
fn choose(x: &[f32; SUB], weights: &[f32; SUB], fit: Fit, d: f32, dmin: f32) -> (f32, f32) {
    let near = |value: f32, factor: f32| {
        let middle = if factor > 0.0 { nearest((value / factor).min(SCALE_MAX)) } else { 0.0 };
        // The middle first: it stays if a neighbour is no better.
        [middle, (middle - 1.0).max(0.0), (middle + 1.0).min(SCALE_MAX)]
    };
    let (mut best, mut best_error) = ((0.0, 0.0), f32::INFINITY);
    for scale in near(fit.scale, d) {
        for min in near(fit.min, dmin) {
            let rounded = Fit { scale: d * scale, min: dmin * min };
            let error = error(x, weights, &levels(x, rounded.scale, rounded.min), rounded);
            if error < best_error {
                (best, best_error) = ((scale, min), error);
            }
        }
    }
    best
}

/// Levels of a trial: `(x + min) * inverse` to the nearest of 0..=15.
fn trial_levels(x: &[f32; SUB], min: f32, inverse: f32) -> [f32; SUB] {
    std::array::from_fn(|i| nearest(((x[i] + min) * inverse).clamp(0.0, QUANT_MAX)))
}

/// The levels nearest to `x` under `scale * level - min`.
fn levels(x: &[f32; SUB], scale: f32, min: f32) -> [f32; SUB] {
    let inverse = 1.0 / scale;
    if !inverse.is_finite() {
        return [0.0; SUB];
    }
    // Clamped before rounding too: a tiny scale may send an element anywhere.
    std::array::from_fn(|i| nearest(((x[i] + min) * inverse).clamp(0.0, QUANT_MAX)))
}

/// Weighted squared error of an approximation.
fn error(x: &[f32; SUB], weights: &[f32; SUB], levels: &[f32; SUB], fit: Fit) -> f32 {
    sum(|i| {
        let difference = fit.scale * levels[i] - fit.min - x[i];
        weights[i] * difference * difference
    })
}

/// Sum of the terms of the 32 elements of a sub-block, in eight lanes.
#[inline(always)]
fn sum(term: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for start in (0..SUB).step_by(LANES) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += term(start + lane);
        }
    }
    ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]))
}
