//! The oracle: attention over plain arrays in f64, with nothing tiled, folded or rounded.

use crate::{AttnParams, Error};

/// Causal attention of `rows` queries at positions `start ..` in f64.
///
/// `q`: `[rows, heads, head_dim]`, `k`: `[kv_len, kv_heads, head_dim]`, `v`: `[kv_len, kv_heads, v_head_dim]`; returns `[rows, heads, v_head_dim]`.
/// For tests: time and memory grow with `rows * kv_len`.
///
/// # Errors
/// [`Error::HeadGroups`], [`Error::RowsPastKeys`], [`Error::SliceLength`].
pub fn attention_f32(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    dims: Dims,
    start: usize,
    params: &AttnParams<'_>,
) -> Result<Vec<f32>, Error> {
    let Dims { rows, kv_len, heads, kv_heads, head_dim, v_head_dim } = dims;
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        return Err(Error::HeadGroups { heads, kv_heads });
    }
    if start + rows > kv_len {
        return Err(Error::RowsPastKeys { start, rows, kv_len });
    }
    for (slice, actual, expected) in [
        ("q", q.len(), rows * heads * head_dim),
        ("k", k.len(), kv_len * kv_heads * head_dim),
        ("v", v.len(), kv_len * kv_heads * v_head_dim),
    ] {
        if actual != expected {
            return Err(Error::SliceLength { slice, expected, actual });
        }
    }
    let group_size = heads / kv_heads;
    let mut out = vec![0.0; rows * heads * v_head_dim];
    for row in 0..rows {
        let position = start + row;
        let first = params.window.map_or(0, |window| (position + 1).saturating_sub(window));
        for head in 0..heads {
            let query = &q[(row * heads + head) * head_dim..][..head_dim];
            let kv_head = head / group_size;
            let scores: Vec<f64> = (first..=position)
                .map(|j| {
                    let key = &k[(j * kv_heads + kv_head) * head_dim..][..head_dim];
                    let dot: f64 = query.iter().zip(key).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
                    let score = f64::from(params.scale) * dot;
                    params.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
                })
                .collect();
            let sink = params.sinks.map(|sinks| f64::from(sinks[head]));
            let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().copied().chain(sink).map(|s| (s - max).exp()).sum();
            for dim in 0..v_head_dim {
                let value = |j: usize| f64::from(v[(j * kv_heads + kv_head) * v_head_dim + dim]);
                let total: f64 = scores.iter().zip(first..).map(|(s, j)| (s - max).exp() * value(j)).sum();
                #[expect(clippy::cast_possible_truncation, reason = "the result is f32")]
                let result = (total / sum) as f32;
                out[(row * heads + head) * v_head_dim + dim] = result;
            }
        }
    }
    Ok(out)
}

/// Axis lengths of [`attention_f32`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "named after the axes they measure")]
pub struct Dims {
    pub rows: usize,
    pub kv_len: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub v_head_dim: usize,
}
