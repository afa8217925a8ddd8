//! Rotary position embedding: Su et al. 2021, arXiv:2104.09864.

use super::for_rows;
use multiversion::multiversion;
use plimsoll_attention::math::sin_cos;
use plimsoll_program::RopeLayout;

/// Fills `out` `[rows, rotary_dim]` with `rotary_dim / 2` cosines and then as many sines per row, each times `scale`.
///
/// The angle is `position * inv_freq`, multiplied in f32 as the reference implementations do, its sine and cosine in f64.
pub(crate) fn rope_table(positions: &[u32], inv_freq: &[f32], scale: f32, out: &mut [f32]) {
    let half = inv_freq.len();
    for (&position, row) in positions.iter().zip(out.chunks_exact_mut(2 * half)) {
        let (cos_row, sin_row) = row.split_at_mut(half);
        for ((cos_out, sin_out), frequency) in cos_row.iter_mut().zip(sin_row).zip(inv_freq) {
            let angle = position as f32 * frequency;
            let (sin, cos) = sin_cos(f64::from(angle));
            *cos_out = cos * scale;
            *sin_out = sin * scale;
        }
    }
}

/// Rotates `x` `[rows, heads, head_dim]` in place; the dimensions of a head past the table's `rotary_dim` stay.
pub(crate) fn rotate(
    x: &mut [f32],
    table: &[f32],
    heads: usize,
    rotary_dim: usize,
    layout: RopeLayout,
    threads: usize,
) {
    let rows = table.len() / rotary_dim.max(1);
    if rows == 0 || x.is_empty() {
        return;
    }
    let width = x.len() / rows;
    let (head_dim, half) = (width / heads, rotary_dim / 2);
    for_rows(x, width, threads, |first, x| {
        let rows = x.chunks_exact_mut(width).zip(table[first * rotary_dim..].chunks_exact(rotary_dim));
        for (x, table) in rows {
            let (cos, sin) = table.split_at(half);
            rotate_heads(x, head_dim, cos, sin, layout);
        }
    });
}

/// The heads of one row. As [`super::elementwise`] says of its sums, the bits are those of any instruction set.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn rotate_heads(x: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32], layout: RopeLayout) {
    for head in x.chunks_exact_mut(head_dim) {
        let rotated = &mut head[..2 * cos.len()];
        match layout {
            RopeLayout::Halves => {
                let (low, high) = rotated.split_at_mut(cos.len());
                for (((a, b), c), s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                    (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
                }
            }
            RopeLayout::Pairs => {
                for ((pair, c), s) in rotated.chunks_exact_mut(2).zip(cos).zip(sin) {
                    (pair[0], pair[1]) = (pair[0] * c - pair[1] * s, pair[1] * c + pair[0] * s);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_zero_leaves_x_as_it_is_and_layouts_pair_other_dimensions() {
        let mut table = vec![0.0; 4];
        rope_table(&[0], &[1.0, 0.5], 1.0, &mut table);
        assert_eq!(table, [1.0, 1.0, 0.0, 0.0]);
        let mut x = vec![1.0, 2.0, 3.0, 4.0, 9.0];
        rotate(&mut x, &table, 1, 4, RopeLayout::Pairs, 1);
        assert_eq!(x, [1.0, 2.0, 3.0, 4.0, 9.0]);
        // A quarter turn of the first pair only.
        let quarter = [0.0, 1.0, 1.0, 0.0];
        rotate(&mut x, &quarter, 1, 4, RopeLayout::Pairs, 1);
        assert_eq!(x, [-2.0, 1.0, 3.0, 4.0, 9.0]);
        let mut x = vec![1.0, 2.0, 3.0, 4.0, 9.0];
        rotate(&mut x, &quarter, 1, 4, RopeLayout::Halves, 1);
        assert_eq!(x, [-3.0, 2.0, 1.0, 4.0, 9.0]);
    }

    #[test]
    fn angles_follow_position_times_frequency_far_into_the_context() {
        let inv_freq = [1.0, 0.123, 1e-4];
        let mut table = vec![0.0; 6];
        rope_table(&[131_071], &inv_freq, 0.5, &mut table);
        for (i, f) in inv_freq.iter().enumerate() {
            let angle = f64::from(131_071.0f32 * f);
            assert!((f64::from(table[i]) - 0.5 * angle.cos()).abs() < 1e-7);
            assert!((f64::from(table[3 + i]) - 0.5 * angle.sin()).abs() < 1e-7);
        }
    }
}
