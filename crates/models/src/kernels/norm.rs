//! RMSNorm: Zhang and Sennrich 2019, arXiv:1910.07467.

use super::for_rows;
use multiversion::multiversion;

const LANES: usize = 8;

/// `out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i]` over each run of `weight.len()` elements.
///
/// `x`, `out`: any number of runs; the runs of one row are its heads where a norm is per head.
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32], threads: usize) {
    let width = weight.len();
    assert_eq!(x.len(), out.len(), "the norm's input and output differ in length");
    for_rows(out, width, threads, |first, out| {
        for (out, x) in out.chunks_exact_mut(width).zip(x[first * width..].chunks_exact(width)) {
            out.copy_from_slice(x);
            norm_runs(out, weight, eps);
        }
    });
}

/// [`rms_norm`] that leaves its result in `x`.
pub(crate) fn rms_norm_in_place(x: &mut [f32], weight: &[f32], eps: f32, threads: usize) {
    for_rows(x, weight.len(), threads, |_, x| norm_runs(x, weight, eps));
}

/// Each run of `weight.len()` elements. As [`super::elementwise`] says of its sums, the bits are those of any instruction set. Eight lanes fill the
/// registers of AVX2; with wider ones the compiler takes twice as many instructions.
#[multiversion(targets("x86_64+avx2"))]
fn norm_runs(x: &mut [f32], weight: &[f32], eps: f32) {
    for x in x.chunks_exact_mut(weight.len()) {
        let inverse = 1.0 / (sum_of_squares(x) / x.len() as f32 + eps).sqrt();
        for (x, weight) in x.iter_mut().zip(weight) {
            *x = *x * inverse * weight;
        }
    }
}

/// Sum of squares in eight lanes, combined as `((l0+l4)+(l2+l6)) + ((l1+l5)+(l3+l7))`.
#[inline(always)]
fn sum_of_squares(x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, tail) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += x * x;
        }
    }
    for (lane, x) in lanes.iter_mut().zip(tail) {
        *lane += x * x;
    }
    ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn row(width: usize, seed: u32) -> Vec<f32> {
        (0..width).map(|i| ((i as f32).mul_add(0.37, seed as f32)).sin() * 3.0).collect()
    }

    proptest! {
        #[test]
        fn norm_is_close_to_the_formula_in_f64(width in 1usize..=67, rows in 1usize..=9, seed in 0u32..1000) {
            let x: Vec<f32> = (seed..).take(rows).flat_map(|seed| row(width, seed)).collect();
            let weight = row(width, seed + 77);
            let mut out = vec![f32::NAN; x.len()];
            rms_norm(&x, &weight, 1e-5, &mut out, 1);
            for (x, out) in x.chunks(width).zip(out.chunks(width)) {
                let mean = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / width as f64;
                for i in 0..width {
                    let want = f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(weight[i]);
                    prop_assert!((f64::from(out[i]) - want).abs() <= 1e-5 * (1.0 + want.abs()), "{} {}", out[i], want);
                }
            }
        }

        #[test]
        fn a_row_has_the_same_bits_at_every_row_and_thread_count(width in 1usize..=700, rows in 1usize..=60, threads in 1usize..=4) {
            let x: Vec<f32> = (0..).take(rows).flat_map(|seed| row(width, seed)).collect();
            let weight = row(width, 5);
            let mut all = vec![f32::NAN; x.len()];
            rms_norm(&x, &weight, 1e-6, &mut all, threads);
            for (x, all) in x.chunks(width).zip(all.chunks(width)) {
                let mut alone = x.to_vec();
                rms_norm_in_place(&mut alone, &weight, 1e-6, 1);
                prop_assert!(alone.iter().zip(all).all(|(a, b)| a.to_bits() == b.to_bits()));
            }
        }
    }
}
