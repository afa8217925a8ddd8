//! The definition: one row and one head at a time, in plain code, straight from the stored blocks.
//!
//! The tiled kernels must give these bits. It is also what runs a value that is not finite in a block that a row sees only in part.

use std::ops::Range;

use crate::kernels::{RowState, bf16_operand};
use crate::math::{exp, exp_of_score, tanh};
use crate::{AttnParams, KV_BLOCK_TOKENS, KvBlock, KvDtype, KvLayout, KvView};

/// A product in the contract's order: steps of 32, in each an even and an odd chain from zero.
fn product(range: Range<usize>, left: impl Fn(usize) -> f32, right: impl Fn(usize) -> f32) -> f32 {
    let mut total = 0.0;
    let mut chains = [0.0f32; 2];
    for k in range.clone() {
        chains[k % 2] = left(k).mul_add(right(k), chains[k % 2]);
        if k % 32 == 31 || k + 1 == range.end {
            total += chains[0] + chains[1];
            chains = [0.0; 2];
        }
    }
    total
}

/// What a stored or computed value is as an operand of a product over this KV type.
fn operand(dtype: KvDtype, x: f32) -> f32 {
    match dtype {
        KvDtype::F32 => x,
        KvDtype::F16 | KvDtype::Bf16 => bf16_operand(x),
    }
}

/// What the visible values of one block add to one row of one head.
#[derive(Debug, Clone)]
pub(crate) struct RowValues<'a> {
    pub(crate) layout: &'a KvLayout,
    pub(crate) block: KvBlock<'a>,
    /// The KV head's place in the block.
    pub(crate) head: usize,
    pub(crate) visible: Range<usize>,
    /// Probabilities of the block's tokens.
    pub(crate) p: &'a [f32],
}

impl RowValues<'_> {
    /// Element `dim` of the sum.
    pub(crate) fn sum(&self, dim: usize) -> f32 {
        let value = |token| operand(self.layout.dtype, self.layout.v_element(self.block, self.head, token, dim));
        product(self.visible.clone(), |token| self.p[token], value)
    }

    /// Folds the sums into `accumulated`, `[v_head_dim]`.
    pub(crate) fn fold(&self, state: RowState, accumulated: &mut [f32]) {
        for (dim, out) in accumulated.iter_mut().enumerate() {
            *out = out.mul_add(state.keep, self.sum(dim) * state.take);
        }
    }
}

/// The tokens of the block at `first` that a row at `position` sees.
pub(crate) fn visible(position: usize, window: Option<usize>, first: usize) -> Range<usize> {
    let end = (position + 1).saturating_sub(first).min(KV_BLOCK_TOKENS);
    let start = window.map_or(0, |window| (position + 1).saturating_sub(window)).saturating_sub(first);
    start.min(end)..end
}

/// Attention of one row of one head. `q`: `[head_dim]`, `out`: `[v_head_dim]`.
pub(crate) fn row(
    q: &[f32],
    view: &KvView<'_>,
    kv_head: usize,
    position: usize,
    params: &AttnParams<'_>,
    sink: Option<f32>,
    out: &mut [f32],
) {
    let layout = view.layout();
    let first_key = params.window.map_or(0, |window| (position + 1).saturating_sub(window));
    let mut state = RowState::EMPTY;
    out.fill(0.0);
    for index in first_key / KV_BLOCK_TOKENS..=position / KV_BLOCK_TOKENS {
        let block = view.block(index);
        let visible = visible(position, params.window, index * KV_BLOCK_TOKENS);
        let mut p = [0.0f32; KV_BLOCK_TOKENS];
        let mut block_max = f32::NEG_INFINITY;
        for token in visible.clone() {
            let key = |dim| operand(layout.dtype, layout.k_element(block.k, kv_head, token, dim));
            let mut score = params.scale * product(0..layout.head_dim, |dim| operand(layout.dtype, q[dim]), key);
            if let Some(cap) = params.softcap {
                score = cap * tanh(score / cap);
            }
            p[token] = score;
            block_max = if score > block_max { score } else { block_max };
        }
        let mut lanes = [0.0f32; 16];
        for token in visible.clone() {
            let e = exp_of_score(p[token] - block_max);
            lanes[token % 16] += e;
            p[token] = operand(layout.dtype, e);
        }
        let l: [f32; 8] = std::array::from_fn(|i| lanes[i] + lanes[i + 8]);
        let sum = ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
        let max = if block_max > state.max { block_max } else { state.max };
        let (keep, take) = (exp(state.max - max), exp(block_max - max));
        state = RowState { max, sum: state.sum.mul_add(keep, sum * take), keep, take };
        RowValues { layout, block, head: kv_head, visible, p: &p }.fold(state, out);
    }
    let (mut keep, mut sum) = (1.0, state.sum);
    if let Some(sink) = sink {
        let max = if sink > state.max { sink } else { state.max };
        keep = exp(state.max - max);
        sum = sum.mul_add(keep, exp(sink - max));
    }
    for x in out {
        *x = *x * keep / sum;
    }
}
