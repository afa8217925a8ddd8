//! The definition of every kernel, in plain code.

use super::{Kernel, MAX_TILE_ROWS, STEP_PAIRS, Tile};
use crate::layout::{self, PANEL};
use crate::{WeightType, bf16_operand};

/// Plain Rust, on every machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scalar;

impl Kernel for Scalar {
    const TILE_ROWS: usize = MAX_TILE_ROWS;

    fn round(self, x: &[f32], out: &mut [f32]) {
        for (out, &x) in out.iter_mut().zip(x) {
            *out = bf16_operand(x);
        }
    }

    fn dequantize(self, ty: WeightType, panel: &[u8], start: usize, len: usize, out: &mut [f32]) {
        for column in 0..PANEL {
            layout::dequantize_column(ty, panel, column, start, start + len, |k, value| {
                out[(k - start) * PANEL + column] = bf16_operand(value);
            });
        }
        if len % 2 == 1 {
            out[len * PANEL..][..PANEL].fill(0.0);
        }
    }

    unsafe fn tile(self, tile: &Tile<'_>) {
        tile.check(Self::TILE_ROWS);
        for row in 0..tile.rows {
            // SAFETY: the caller's promise.
            let out = unsafe { std::slice::from_raw_parts_mut(tile.out.add(row * tile.out_stride), PANEL) };
            let mut sums = [0.0; PANEL];
            if !tile.first {
                sums.copy_from_slice(out);
            }
            let x = &tile.x[row * tile.x_stride..][..2 * tile.pairs];
            for (x, w) in x.chunks(2 * STEP_PAIRS).zip(tile.w.chunks(2 * STEP_PAIRS * PANEL)) {
                let (mut even, mut odd) = ([0.0f32; PANEL], [0.0f32; PANEL]);
                for (x, w) in x.chunks_exact(2).zip(w.chunks_exact(2 * PANEL)) {
                    let (w_even, w_odd) = w.split_at(PANEL);
                    for c in 0..PANEL {
                        even[c] = x[0].mul_add(w_even[c], even[c]);
                        odd[c] = x[1].mul_add(w_odd[c], odd[c]);
                    }
                }
                for c in 0..PANEL {
                    sums[c] += even[c] + odd[c];
                }
            }
            if let Some(bias) = tile.bias {
                for (sum, bias) in sums.iter_mut().zip(bias) {
                    *sum += bias;
                    if sum.is_nan() {
                        *sum = f32::NAN;
                    }
                }
            }
            out.copy_from_slice(&sums);
        }
    }
}
