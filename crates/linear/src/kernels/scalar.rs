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
        layout::dequantize::<PANEL>(ty, panel, start..start + len, 0, |k, values| {
            out[(k - start) * PANEL..][..PANEL].copy_from_slice(&values);
        });
        for value in &mut out[..len * PANEL] {
            *value = bf16_operand(*value);
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
                let added = if tile.is_bf16 { step_of_bf16(x, w) } else { step(x, w, f32::mul_add) };
                for (sum, added) in sums.iter_mut().zip(added) {
                    *sum += added;
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

/// What a step of `k` adds to the sums of a row: the even plus the odd chain of each column, by `multiply_add(x, w, chain)`.
#[inline(always)]
pub(super) fn step(x: &[f32], w: &[f32], multiply_add: impl Fn(f32, f32, f32) -> f32) -> [f32; PANEL] {
    let (mut even, mut odd) = ([0.0f32; PANEL], [0.0f32; PANEL]);
    for (x, w) in x.chunks_exact(2).zip(w.chunks_exact(2 * PANEL)) {
        let (w_even, w_odd) = w.split_at(PANEL);
        for c in 0..PANEL {
            even[c] = multiply_add(x[0], w_even[c], even[c]);
            odd[c] = multiply_add(x[1], w_odd[c], odd[c]);
        }
    }
    std::array::from_fn(|c| even[c] + odd[c])
}

/// [`step`] with fused multiply-adds, of operands as [`bf16_operand`] gives them: where a processor cannot be taken to have an instruction
/// for it, `mul_add` is a call that costs more than all the rest.
///
/// A product of two such operands has 16 significant bits and is zero or at least 2^-100, so rounding it to f32 changes nothing unless it
/// is too large for a finite f32: multiply, then add, gives the bits of the fused operation. A product that is too large becomes an
/// infinity, which no later addition makes finite again, whatever the fused chain would hold. So finite results are the fused ones, and the
/// others are computed once more.
pub(super) fn step_of_bf16(x: &[f32], w: &[f32]) -> [f32; PANEL] {
    let added = step(x, w, |x, w, chain| x * w + chain);
    let all_finite = added.iter().fold(true, |all, value| all & value.is_finite());
    if all_finite { added } else { step(x, w, f32::mul_add) }
}
