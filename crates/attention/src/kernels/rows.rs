//! What happens to one row: softmax of a block, rounding, the end, activations, sums.

use std::ops::Range;

use super::lanes::{Lanes, Values, combine, combine_halves};
use super::{RowState, Softmax};
use crate::KV_BLOCK_TOKENS;
use crate::math::{Exp, Function, exp_of_score, softcap};

#[inline(always)]
pub(super) fn softmax<L: Lanes>(scores: &mut [f32], visible: Range<usize>, how: &Softmax, state: &mut RowState) {
    // Most blocks are seen whole: that loop has a fixed length and no mask.
    match (visible == (0..KV_BLOCK_TOKENS), how.bf16) {
        (true, true) => softmax_of::<L, true, true>(scores, visible, how, state),
        (true, false) => softmax_of::<L, true, false>(scores, visible, how, state),
        (false, true) => softmax_of::<L, false, true>(scores, visible, how, state),
        (false, false) => softmax_of::<L, false, false>(scores, visible, how, state),
    }
}

#[inline(always)]
fn softmax_of<L: Lanes, const WHOLE: bool, const BF16: bool>(
    scores: &mut [f32],
    visible: Range<usize>,
    how: &Softmax,
    state: &mut RowState,
) {
    assert!(scores.len() == KV_BLOCK_TOKENS && visible.start < visible.end && visible.end <= KV_BLOCK_TOKENS);
    let (first, last) = if WHOLE { (0, KV_BLOCK_TOKENS / 8) } else { (visible.start / 8, visible.end.div_ceil(8)) };
    let scale = L::splat(how.scale);
    let mut largest = L::splat(f32::NEG_INFINITY);
    for i in first..last {
        let at = &mut scores[8 * i..8 * i + 8];
        // SAFETY: `at` holds 8 values.
        let mut s = scale.times(unsafe { L::load(at.as_ptr()) });
        if let Some(cap) = how.softcap {
            s = softcap(s, L::splat(cap));
        }
        if !WHOLE {
            s = keep_visible(s, 8 * i, &visible, f32::NEG_INFINITY);
        }
        largest = s.larger(largest);
        // SAFETY: `at` holds 8 values.
        unsafe { s.store(at.as_mut_ptr()) };
    }
    // No lane is NaN: `larger` kept the old value against one.
    let l = largest.to_array();
    let block_max = (l[0].larger(l[4]).larger(l[2].larger(l[6]))).larger(l[1].larger(l[5]).larger(l[3].larger(l[7])));
    let max = L::splat(block_max);
    let mut sums = [L::splat(0.0); 2];
    scores[..8 * first].fill(0.0);
    scores[8 * last..].fill(0.0);
    for i in first..last {
        let at = &mut scores[8 * i..8 * i + 8];
        // SAFETY: `at` holds 8 values.
        let s = unsafe { L::load(at.as_ptr()) };
        let mut p = exp_of_score(s.minus(max));
        if !WHOLE {
            p = keep_visible(p, 8 * i, &visible, 0.0);
        }
        sums[i % 2] = sums[i % 2].plus(p);
        if BF16 {
            p = p.bf16_operand_of_number();
        }
        // SAFETY: `at` holds 8 values.
        unsafe { p.store(at.as_mut_ptr()) };
    }
    let sum = combine_halves(sums[0].to_array(), sums[1].to_array());
    if sum.is_nan() {
        // One NaN makes the row's product NaN throughout; rounding did not take care of it.
        scores[visible.start] = f32::NAN;
    }
    state.fold(block_max, sum);
}

/// `out = fma(out, keep, product * take)`, element by element.
#[inline(always)]
pub(super) fn fold_plain(product: &[f32], state: RowState, out: &mut [f32]) {
    assert_eq!(product.len(), out.len(), "row lengths");
    for (out, x) in out.iter_mut().zip(product) {
        *out = out.fma(state.keep, x * state.take);
    }
}

/// Replaces the lanes of tokens outside `visible`; `token` is the first lane's.
#[inline(always)]
fn keep_visible<L: Lanes>(values: L, token: usize, visible: &Range<usize>, hidden: f32) -> L {
    if visible.start <= token && token + 8 <= visible.end {
        return values;
    }
    let mut lanes = values.to_array();
    for (i, x) in lanes.iter_mut().enumerate() {
        if !visible.contains(&(token + i)) {
            *x = hidden;
        }
    }
    L::from_array(lanes)
}

#[inline(always)]
pub(super) fn round<L: Lanes>(row: &[f32], out: &mut [f32]) {
    assert_eq!(row.len(), out.len(), "row lengths");
    let ((from, from_rest), (to, to_rest)) = (row.as_chunks::<8>(), out.as_chunks_mut::<8>());
    for (x, y) in from.iter().zip(to) {
        *y = L::from_array(*x).bf16_operand().to_array();
    }
    for (x, y) in from_rest.iter().zip(to_rest) {
        *y = x.bf16_operand();
    }
}

#[inline(always)]
pub(super) fn finish<L: Lanes>(accumulated: &[f32], state: RowState, sink: Option<f32>, out: &mut [f32]) {
    assert_eq!(accumulated.len(), out.len(), "row lengths");
    let (mut keep, mut sum) = (1.0, state.sum);
    if let Some(sink) = sink {
        let max = if sink > state.max { sink } else { state.max };
        keep = Exp.eval(state.max - max);
        sum = sum.fma(keep, Exp.eval(sink - max));
    }
    let ((from, from_rest), (to, to_rest)) = (accumulated.as_chunks::<8>(), out.as_chunks_mut::<8>());
    for (x, y) in from.iter().zip(to) {
        *y = L::from_array(*x).times(L::splat(keep)).over(L::splat(sum)).to_array();
    }
    for (x, y) in from_rest.iter().zip(to_rest) {
        *y = x * keep / sum;
    }
}

#[inline(always)]
pub(super) fn map<L: Lanes, F: Function>(f: F, x: &mut [f32]) {
    let (chunks, rest) = x.as_chunks_mut::<8>();
    for chunk in chunks {
        *chunk = f.eval(L::from_array(*chunk)).to_array();
    }
    for value in rest {
        *value = f.eval(*value);
    }
}

#[inline(always)]
pub(super) fn gate<L: Lanes, F: Function>(f: F, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up lengths");
    let ((gates, gate_rest), (ups, up_rest)) = (gate.as_chunks_mut::<8>(), up.as_chunks::<8>());
    for (g, u) in gates.iter_mut().zip(ups) {
        *g = f.eval(L::from_array(*g)).times(L::from_array(*u)).to_array();
    }
    for (g, u) in gate_rest.iter_mut().zip(up_rest) {
        *g = f.eval(*g) * u;
    }
}

#[inline(always)]
pub(super) fn sum<L: Lanes>(x: &[f32], squares: bool) -> f32 {
    let mut lanes = L::splat(0.0);
    let (chunks, rest) = x.as_chunks::<8>();
    for chunk in chunks {
        let x = L::from_array(*chunk);
        lanes = if squares { x.fma(x, lanes) } else { lanes.plus(x) };
    }
    let mut lanes = lanes.to_array();
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = if squares { x.fma(x, *lane) } else { *lane + x };
    }
    combine(lanes)
}
