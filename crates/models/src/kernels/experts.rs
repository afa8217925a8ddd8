//! Mixtures of experts: choosing experts, their products, and the weighted sum of those.

use super::for_rows;
use plimsoll_attention::{Isa, math};
use plimsoll_linear::{Group, Output, PackedWeight, Settings, WeightType};
use plimsoll_program::{RouteSpec, Scoring};
use rayon::prelude::*;
use smallvec::SmallVec;

/// Rows that go through one expert's product at a time. A larger group is done in several runs, with the same bits: a row's product does not
/// depend on the rows beside it. So scratch does not grow with the pass, whatever the routing.
const TILE_ROWS: usize = 256;

/// Most rows of a pass whose pairs of row and expert all go through one call: few rows meet many experts, a row or two each.
const DECODE_ROWS: usize = 8;

/// Elements between the scores of two tasks.
fn score_stride(experts: usize) -> usize {
    experts.next_multiple_of(16)
}

/// Scratch of [`top_k`]: the scores of one row for each thread.
pub(crate) fn top_k_scratch_bytes(experts: usize, threads: usize) -> u64 {
    (score_stride(experts) * threads.max(1) * size_of::<f32>()) as u64
}

/// Chooses `spec.k` of `experts` for each row, see [`plimsoll_program::Op::TopK`].
///
/// `logits`: `[rows, experts]`; `ids`, `weights`: `[rows, k]`. The denominator of a softmax is summed in the eight lanes of the crate's other
/// row sums, the sum of the chosen scores in their order.
pub(crate) fn top_k(
    logits: &[f32],
    experts: usize,
    spec: &RouteSpec,
    (ids, weights): (&mut [u32], &mut [f32]),
    scratch: &mut [f32],
    isa: Isa,
    threads: usize,
) {
    /// Below this many scores a second thread costs more than it saves.
    const WORTH_SPLITTING: usize = 1 << 14;
    let (k, rows) = (spec.k, logits.len() / experts);
    let tasks = if logits.len() < WORTH_SPLITTING { 1 } else { threads.max(1) };
    let share = rows.div_ceil(tasks).max(1);
    let work = |logits: &[f32], ids: &mut [u32], weights: &mut [f32], scores: &mut [f32]| {
        let chosen = ids.chunks_exact_mut(k).zip(weights.chunks_exact_mut(k));
        for (logits, (ids, weights)) in logits.chunks_exact(experts).zip(chosen) {
            scores.copy_from_slice(logits);
            score(scores, spec.scoring, isa);
            select(scores, ids, weights);
            finish(weights, spec);
        }
    };
    if tasks == 1 {
        return work(logits, ids, weights, &mut scratch[..experts]);
    }
    logits
        .par_chunks(share * experts)
        .zip(ids.par_chunks_mut(share * k))
        .zip(weights.par_chunks_mut(share * k))
        .zip(scratch.par_chunks_mut(score_stride(experts)))
        .for_each(|(((logits, ids), weights), scores)| work(logits, ids, weights, &mut scores[..experts]));
}

fn score(scores: &mut [f32], scoring: Scoring, isa: Isa) {
    match scoring {
        Scoring::Sigmoid => math::activate(isa, math::Activation::Sigmoid, scores),
        Scoring::Softmax => {
            let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            scores.iter_mut().for_each(|score| *score -= max);
            math::exp_slice(isa, scores);
            let total = math::sum(isa, scores);
            scores.iter_mut().for_each(|score| *score /= total);
        }
    }
}

/// The largest scores, descending, ties to the lowest number; NaN counts as less than everything else.
fn select(scores: &[f32], ids: &mut [u32], weights: &mut [f32]) {
    let key = |score: f32| if score.is_nan() { f32::NEG_INFINITY } else { score };
    let (k, mut held) = (ids.len(), 0);
    for (id, &score) in (0u32..).zip(scores) {
        if held == k {
            if key(score) <= key(weights[k - 1]) {
                continue;
            }
        } else {
            held += 1;
        }
        let mut at = held - 1;
        while at > 0 && key(weights[at - 1]) < key(score) {
            (ids[at], weights[at]) = (ids[at - 1], weights[at - 1]);
            at -= 1;
        }
        (ids[at], weights[at]) = (id, score);
    }
}

fn finish(weights: &mut [f32], spec: &RouteSpec) {
    if spec.normalize {
        // Sigmoids can all be 0, a softmax cannot.
        let total = weights.iter().sum::<f32>().max(f32::MIN_POSITIVE);
        weights.iter_mut().for_each(|weight| *weight /= total);
    }
    weights.iter_mut().for_each(|weight| *weight *= spec.scale);
}

/// Sizes of an expert product.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpertShape {
    pub(crate) rows: usize,
    /// Experts per row.
    pub(crate) k: usize,
    pub(crate) experts: usize,
    pub(crate) in_features: usize,
    pub(crate) out_features: usize,
    pub(crate) weight_type: WeightType,
}

/// Scratch of an expert product in bytes, part by part, each in whole cache lines.
#[derive(Debug, Clone, Copy)]
struct ExpertScratch {
    /// End of each expert's group, u32.
    ends: usize,
    /// Slots of all rows, grouped by expert, u32.
    order: usize,
    /// Rows of one run, gathered.
    x: usize,
    /// Their products.
    out: usize,
    /// What the product itself needs.
    linear: usize,
}

impl ExpertShape {
    fn pairs(&self) -> usize {
        self.rows.saturating_mul(self.k)
    }

    /// Whether all pairs of row and expert go through one call.
    fn is_decode(&self) -> bool {
        self.rows <= DECODE_ROWS && self.pairs() <= TILE_ROWS
    }

    fn scratch(&self, settings: Settings) -> ExpertScratch {
        let (pairs, tile) = (self.pairs(), self.pairs().min(TILE_ROWS));
        let lines = |elements: usize| elements.saturating_mul(4).checked_next_multiple_of(64).unwrap_or(usize::MAX);
        let linear = |rows| {
            let part = [(self.weight_type, self.out_features)];
            plimsoll_linear::scratch_bytes(rows, self.in_features, &part, settings)
        };
        // A run has any number of rows up to a tile, and which ones occur is the routing's: the largest need among them.
        let linear = (1..=tile).map(linear).max().unwrap_or(0);
        let groups = if self.is_decode() {
            let (inputs, outputs) = (self.in_features, self.out_features);
            plimsoll_linear::group_scratch_bytes(pairs, inputs, outputs, self.weight_type, settings)
        } else {
            0
        };
        let linear = linear.max(groups);
        ExpertScratch {
            ends: lines(self.experts),
            order: lines(pairs),
            x: lines(tile.saturating_mul(self.in_features)),
            out: lines(tile.saturating_mul(self.out_features)),
            linear: usize::try_from(linear).unwrap_or(usize::MAX),
        }
    }

    /// Scratch that [`expert_linear`] takes: by shapes alone, enough for any routing.
    pub(crate) fn scratch_bytes(&self, settings: Settings) -> u64 {
        let ExpertScratch { ends, order, x, out, linear } = self.scratch(settings);
        [ends, order, x, out, linear].into_iter().fold(0, |sum: u64, part| sum.saturating_add(part as u64))
    }
}

/// Multiplies each row with the weights of its experts, see [`plimsoll_program::Op::ExpertLinear`].
///
/// `x`: `[rows, in_features]` or `[rows, k * in_features]`; `ids`: `[rows, k]`; `out`: `[rows, k * out_features]`. Slots are grouped by expert (a
/// stable counting sort), each group's rows gathered, multiplied and scattered. A slot's bits are those of its row alone.
///
/// Before each product, `is_cancelled` may end it; then `out` is not whole, and the result false.
///
/// # Panics
/// If an id is not below the number of experts, or a length does not fit `shape`.
#[expect(clippy::too_many_arguments, reason = "a kernel: shapes, operands, scratch, settings, and when to end")]
pub(crate) fn expert_linear(
    shape: &ExpertShape,
    x: &[f32],
    ids: &[u32],
    weights: &[PackedWeight],
    out: &mut [f32],
    scratch: &mut [u8],
    settings: Settings,
    is_cancelled: impl Fn() -> bool,
) -> bool {
    let ExpertShape { k, experts, in_features, out_features, .. } = *shape;
    let shared = x.len() == shape.rows * in_features;
    assert!(shared || x.len() == shape.pairs() * in_features, "x has {} elements for {shape:?}", x.len());
    assert_eq!((ids.len(), weights.len()), (shape.pairs(), experts), "ids and weights do not fit {shape:?}");
    assert_eq!(out.len(), shape.pairs() * out_features, "out does not fit {shape:?}");
    let sizes = shape.scratch(settings);
    let (ends, rest) = scratch.split_at_mut(sizes.ends);
    let (order, rest) = rest.split_at_mut(sizes.order);
    let (gathered, rest) = rest.split_at_mut(sizes.x);
    let (products, linear_scratch) = rest.split_at_mut(sizes.out);
    let ends = &mut bytemuck::cast_slice_mut::<u8, u32>(ends)[..experts];
    let order = &mut bytemuck::cast_slice_mut::<u8, u32>(order)[..ids.len()];
    let (gathered, products) = (bytemuck::cast_slice_mut(gathered), bytemuck::cast_slice_mut(products));
    group(ids, ends, order);
    let row_of = |slot: u32| {
        let slot = slot as usize;
        &x[in_features * if shared { slot / k } else { slot }..][..in_features]
    };
    if shape.is_decode() {
        let pairs = order.len();
        let gathered: &mut [f32] = &mut gathered[..pairs * in_features];
        for (&slot, to) in order.iter().zip(gathered.chunks_exact_mut(in_features)) {
            to.copy_from_slice(row_of(slot));
        }
        let (mut x, mut results): (&[f32], &mut [f32]) = (gathered, &mut products[..pairs * out_features]);
        let (mut groups, mut start) = (SmallVec::<[Group<'_>; 64]>::new(), 0);
        for (weight, &end) in weights.iter().zip(&*ends) {
            let rows = end as usize - start;
            start = end as usize;
            if rows > 0 {
                let (own_x, other_x) = x.split_at(rows * in_features);
                let (own_out, other_out) = std::mem::take(&mut results).split_at_mut(rows * out_features);
                (x, results) = (other_x, other_out);
                groups.push(Group { weight, x: own_x, out: own_out });
            }
        }
        plimsoll_linear::linear_groups(&mut groups, linear_scratch, settings);
        drop(groups);
        for (&slot, from) in order.iter().zip(products.chunks_exact(out_features)) {
            out[slot as usize * out_features..][..out_features].copy_from_slice(from);
        }
        return true;
    }
    let mut start = 0;
    for (weight, &end) in weights.iter().zip(&*ends) {
        let end = end as usize;
        for slots in order[start..end].chunks(TILE_ROWS) {
            if is_cancelled() {
                return false;
            }
            if let [slot] = *slots {
                // One row is where it has to be already.
                let out = &mut out[slot as usize * out_features..][..out_features];
                let part = Output { weight, bias: None, out };
                plimsoll_linear::linear(row_of(slot), 1, &mut [part], linear_scratch, settings);
                continue;
            }
            let rows = slots.len();
            let gathered: &mut [f32] = &mut gathered[..rows * in_features];
            for (&slot, to) in slots.iter().zip(gathered.chunks_exact_mut(in_features)) {
                to.copy_from_slice(row_of(slot));
            }
            let products: &mut [f32] = &mut products[..rows * out_features];
            let part = Output { weight, bias: None, out: products };
            plimsoll_linear::linear(gathered, rows, &mut [part], linear_scratch, settings);
            for (&slot, from) in slots.iter().zip(products.chunks_exact(out_features)) {
                out[slot as usize * out_features..][..out_features].copy_from_slice(from);
            }
        }
        start = end;
    }
    true
}

/// Slots by expert, ascending inside of a group; `ends[e]` is where expert `e`'s group ends in `order`.
fn group(ids: &[u32], ends: &mut [u32], order: &mut [u32]) {
    ends.fill(0);
    for &id in ids {
        ends[id as usize] += 1;
    }
    let mut start = 0;
    for end in ends.iter_mut() {
        start += std::mem::replace(end, start);
    }
    for (slot, &id) in (0u32..).zip(ids) {
        let at = &mut ends[id as usize];
        order[*at as usize] = slot;
        *at += 1;
    }
}

/// `out[r] = sum over j of weights[r, j] * x[r, j]` in ascending `j`; `x`: `[rows, k, width]`, `weights`: `[rows, k]`, `out`: `[rows, width]`.
pub(crate) fn combine(x: &[f32], weights: &[f32], k: usize, width: usize, out: &mut [f32], threads: usize) {
    for_rows(out, width, threads, |first, out| {
        let rows = x[first * k * width..].chunks_exact(k * width).zip(weights[first * k..].chunks_exact(k));
        for (out, (x, weights)) in out.chunks_exact_mut(width).zip(rows) {
            let mut slots = x.chunks_exact(width).zip(weights);
            if let Some((x, &weight)) = slots.next() {
                out.iter_mut().zip(x).for_each(|(out, x)| *out = weight * x);
            }
            for (x, &weight) in slots {
                out.iter_mut().zip(x).for_each(|(out, x)| *out += weight * x);
            }
        }
    });
}

/// `x[r] = x[r] * factor[r]`; `x`: `[rows, width]`.
pub(crate) fn scale_rows(x: &mut [f32], factor: &[f32], width: usize, threads: usize) {
    for_rows(x, width, threads, |first, x| {
        for (x, factor) in x.chunks_exact_mut(width).zip(&factor[first..]) {
            x.iter_mut().for_each(|x| *x *= factor);
        }
    });
}

#[cfg(test)]
mod tests;
