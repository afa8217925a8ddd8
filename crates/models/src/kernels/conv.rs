//! Depthwise causal convolution over the rows of one sequence.

use super::for_rows;

/// What a convolution multiplies by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taps<'a> {
    /// `[channels, kernel]`.
    pub(crate) weight: &'a [f32],
    /// `[channels]`.
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) channels: usize,
}

/// `out[t, c] = sum over j of weight[c, j] * x[t - (kernel - 1) + j, c]` in ascending `j`, plus `bias[c]` at the end; products and sums are
/// rounded one by one. Rows before the first are those of `before`.
///
/// `x`, `out`: `[rows, channels]`; `before`, `after`: `[kernel - 1, channels]`, oldest row first.
pub(crate) fn causal_conv(
    x: &[f32],
    taps_of: &Taps<'_>,
    before: &[f32],
    after: &mut [f32],
    out: &mut [f32],
    threads: usize,
) {
    let Taps { weight, bias, channels } = *taps_of;
    let history = before.len();
    for_rows(out, channels, threads, |first, out| {
        for (index, out) in out.chunks_exact_mut(channels).enumerate() {
            let row = |tap: usize| row_of(before, x, (first + index + tap) * channels, channels);
            match history / channels {
                // The kernels of known models, with the taps of a channel in registers.
                3 => taps([row(0), row(1), row(2), row(3)], weight, out),
                2 => taps([row(0), row(1), row(2)], weight, out),
                1 => taps([row(0), row(1)], weight, out),
                before => {
                    let kernel = before + 1;
                    for tap in 0..kernel {
                        for (c, (out, x)) in out.iter_mut().zip(row(tap)).enumerate() {
                            let product = weight[c * kernel + tap] * x;
                            *out = if tap == 0 { product } else { *out + product };
                        }
                    }
                }
            }
            if let Some(bias) = bias {
                out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
            }
        }
    });
    let rows = x.len();
    for (at, after) in after.chunks_exact_mut(channels).enumerate() {
        after.copy_from_slice(row_of(before, x, rows + at * channels, channels));
    }
}

/// The row that starts at an element of `before` and `x`, taken as one.
fn row_of<'a>(before: &'a [f32], x: &'a [f32], at: usize, channels: usize) -> &'a [f32] {
    match at.checked_sub(before.len()) {
        None => &before[at..][..channels],
        Some(at) => &x[at..][..channels],
    }
}

fn taps<const K: usize>(rows: [&[f32]; K], weight: &[f32], out: &mut [f32]) {
    let rows = rows.map(|row| &row[..out.len()]);
    let (weight, _) = weight.as_chunks::<K>();
    for (c, (out, weight)) in out.iter_mut().zip(weight).enumerate() {
        let mut sum = weight[0] * rows[0][c];
        for tap in 1..K {
            sum += weight[tap] * rows[tap][c];
        }
        *out = sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;
    use proptest::prelude::*;

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_cut_of_the_rows_gives_the_bits_of_the_definition(
            rows in 1usize..=30, channels in 1usize..=40, kernel in 1usize..=6, cut in 0usize..=30, threads in 1usize..=3,
            biased in any::<bool>(),
        ) {
            let cut = cut.min(rows);
            let mut random = Random(rows as u64);
            let (x, weight) = (random.values(rows * channels), random.values(channels * kernel));
            let bias = random.values(channels);
            let bias = biased.then_some(&bias[..]);
            let history = (kernel - 1) * channels;
            let start = random.values(history);
            let all: Vec<f32> = start.iter().chain(&x).copied().collect();
            let want: Vec<f32> = (0..rows * channels)
                .map(|at| {
                    let (t, c) = (at / channels, at % channels);
                    let term = |j: usize| weight[c * kernel + j] * all[(t + j) * channels + c];
                    let sum = (1..kernel).fold(term(0), |sum, j| sum + term(j));
                    bias.map_or(sum, |bias| sum + bias[c])
                })
                .collect();
            let (mut middle, mut end) = (vec![f32::NAN; history], vec![f32::NAN; history]);
            let mut out = vec![f32::NAN; rows * channels];
            let (head, tail) = out.split_at_mut(cut * channels);
            let weights = Taps { weight: &weight, bias, channels };
            causal_conv(&x[..cut * channels], &weights, &start, &mut middle, head, 1);
            causal_conv(&x[cut * channels..], &weights, &middle, &mut end, tail, threads);
            prop_assert_eq!(bits(&out), bits(&want));
            prop_assert_eq!(bits(&end), bits(&all[all.len() - history..]));
        }
    }
}
