//! The same walk over tiles in candle's own operations: any device, bounded memory, no promise about bits.

use candle_core::{DType, Device, Result, Tensor};

use super::{Axes, CausalAttention};
use crate::{AttnShape, KV_BLOCK_TOKENS, KvDtype};

/// Most query rows of a tile.
const Q_TILE: usize = 128;

/// Below every maximum that counts: a row that sees nothing of a tile has this one, and adds nothing.
const NO_SCORE: f64 = -1e30;

/// As [`CausalAttention::forward`].
pub(super) fn forward(
    attention: &CausalAttention,
    axes: &Axes,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    start: usize,
) -> Result<Tensor> {
    let AttnShape { rows, .. } = axes.shape;
    let mut out = Vec::with_capacity(rows.div_ceil(Q_TILE));
    for first in (0..rows).step_by(Q_TILE) {
        let tile =
            Tile { attention, axes, start: start + first, rows: Q_TILE.min(rows - first), tile_rows: Q_TILE.min(rows) };
        out.push(tile.run(&q.narrow(2, first, tile.rows)?, k, v)?.to_dtype(q.dtype())?);
    }
    match &out[..] {
        [] => Tensor::zeros((axes.batch, axes.shape.heads, 0, axes.shape.v_head_dim), q.dtype(), q.device()),
        [tile] => Ok(tile.clone()),
        tiles => Tensor::cat(tiles, 2),
    }
}

/// A tile of query rows, filled up with rows of zeros to `tile_rows`: all tiles of a call have buffers of one size.
struct Tile<'a> {
    attention: &'a CausalAttention,
    axes: &'a Axes,
    /// Position of the first row.
    start: usize,
    rows: usize,
    tile_rows: usize,
}

impl Tile<'_> {
    /// `q`: `[batch, heads, rows, head_dim]`; returns `[batch, heads, rows, v_head_dim]` in f32.
    fn run(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let Axes { batch, shape } = *self.axes;
        let AttnShape { heads, kv_heads, head_dim, v_head_dim, kv_dtype, .. } = shape;
        let group_rows = heads / kv_heads * self.tile_rows;
        let q = filled(&operand(q, kv_dtype)?, self.tile_rows)?;
        let q = q.contiguous()?.reshape((batch, kv_heads, group_rows, head_dim))?;

        let last_key = self.start + self.rows - 1;
        let first_key = self.attention.window.map_or(0, |window| (self.start + 1).saturating_sub(window));
        let mut state: Option<State> = None;
        for first in (first_key / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS..=last_key).step_by(KV_BLOCK_TOKENS) {
            let tokens = KV_BLOCK_TOKENS.min(last_key + 1 - first);
            let keys = filled(&operand(&k.narrow(2, first, tokens)?, kv_dtype)?, KV_BLOCK_TOKENS)?;
            let values = filled(&operand(&v.narrow(2, first, tokens)?, kv_dtype)?, KV_BLOCK_TOKENS)?;
            let mask = self.mask(first, q.device())?;
            let scores = self.scores(&q, &keys, mask.as_ref())?;
            let block = State::of_block(&scores, &values, kv_dtype)?;
            state = Some(match state {
                None => block,
                Some(state) => state.fold(&block)?,
            });
        }
        let Some(state) = state else { candle_core::bail!("a row sees no key") };
        let sinks = self.sinks(q.device())?;
        let out = state.finish(sinks.as_ref())?.reshape((batch, heads, self.tile_rows, v_head_dim))?;
        out.narrow(2, 0, self.rows)?.contiguous()
    }

    /// `[batch, kv_heads, group rows, 64]`, hidden keys at minus infinity.
    fn scores(&self, q: &Tensor, keys: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let mut scores = (q.matmul(&keys.t()?)? * f64::from(self.attention.scale))?;
        if let Some(cap) = self.attention.softcap.map(f64::from) {
            scores = ((scores / cap)?.tanh()? * cap)?;
        }
        let Some(mask) = mask else { return Ok(scores) };
        let dims = scores.dims().to_vec();
        let scores = scores.reshape(((), self.tile_rows, KV_BLOCK_TOKENS))?;
        let hidden = Tensor::new(f32::NEG_INFINITY, scores.device())?.broadcast_as(scores.shape())?;
        mask.broadcast_as(scores.shape())?.where_cond(&scores, &hidden)?.reshape(dims)
    }

    /// Which of the keys `first ..` each row sees, `[rows of the tile, 64]`; `None` if all see all.
    fn mask(&self, first: usize, device: &Device) -> Result<Option<Tensor>> {
        let last_key = self.start + self.rows - 1;
        let sees = |position: usize, key: usize| {
            key <= position.min(last_key) && self.attention.window.is_none_or(|window| key + window > position)
        };
        let end = first + KV_BLOCK_TOKENS - 1;
        if sees(self.start, end) && sees(self.start + self.tile_rows - 1, first) {
            return Ok(None);
        }
        let seen: Vec<u8> = (self.start..self.start + self.tile_rows)
            .flat_map(|position| (first..=end).map(move |key| u8::from(sees(position, key))))
            .collect();
        Tensor::from_vec(seen, (self.tile_rows, KV_BLOCK_TOKENS), device).map(Some)
    }

    /// The logits of the sinks, `[1, kv_heads, group rows, 1]`.
    fn sinks(&self, device: &Device) -> Result<Option<Tensor>> {
        let Some(sinks) = &self.attention.sinks else { return Ok(None) };
        let each: Vec<f32> = sinks.iter().flat_map(|&sink| std::iter::repeat_n(sink, self.tile_rows)).collect();
        let kv_heads = self.axes.shape.kv_heads;
        let rows = each.len() / kv_heads;
        Tensor::from_vec(each, (1, kv_heads, rows, 1), device).map(Some)
    }
}

/// What some keys give: `[.., 1]` the largest score and the sum of probabilities, `[.., v_head_dim]` the sum of values.
struct State {
    max: Tensor,
    sum: Tensor,
    values: Tensor,
}

impl State {
    fn of_block(scores: &Tensor, values: &Tensor, dtype: KvDtype) -> Result<Self> {
        let max = scores.max_keepdim(3)?.maximum(NO_SCORE)?;
        let p = scores.broadcast_sub(&max)?.exp()?;
        let sum = p.sum_keepdim(3)?;
        Ok(Self { max, sum, values: operand(&p, dtype)?.matmul(values)? })
    }

    fn fold(&self, block: &Self) -> Result<Self> {
        let max = self.max.maximum(&block.max)?;
        let (keep, take) = ((&self.max - &max)?.exp()?, (&block.max - &max)?.exp()?);
        let sum = ((&self.sum * &keep)? + (&block.sum * &take)?)?;
        let values = (self.values.broadcast_mul(&keep)? + block.values.broadcast_mul(&take)?)?;
        Ok(Self { max, sum, values })
    }

    fn finish(self, sinks: Option<&Tensor>) -> Result<Tensor> {
        let Some(sinks) = sinks else { return self.values.broadcast_div(&self.sum) };
        let sinks = sinks.broadcast_as(self.max.shape())?;
        let max = self.max.maximum(&sinks)?;
        let keep = (&self.max - &max)?.exp()?;
        let sum = ((&self.sum * &keep)? + (sinks - &max)?.exp()?)?;
        self.values.broadcast_mul(&keep)?.broadcast_div(&sum)
    }
}

/// `x` in f32, with the values that a product over this KV type multiplies.
fn operand(x: &Tensor, dtype: KvDtype) -> Result<Tensor> {
    match dtype {
        KvDtype::F32 => x.to_dtype(DType::F32),
        KvDtype::F16 | KvDtype::Bf16 => x.to_dtype(DType::BF16)?.to_dtype(DType::F32),
    }
}

/// `x` with rows of zeros after its own, up to `rows`.
fn filled(x: &Tensor, rows: usize) -> Result<Tensor> {
    match rows - x.dim(2)? {
        0 => x.contiguous(),
        missing => x.pad_with_zeros(2, 0, missing),
    }
}

/// As [`CausalAttention::workspace_bytes`].
pub(super) fn workspace_bytes(batch: usize, shape: &AttnShape) -> u64 {
    let AttnShape { rows, heads, kv_heads, head_dim, v_head_dim, .. } = *shape;
    let tile_rows = Q_TILE.min(rows);
    let q_rows = batch * heads * tile_rows;
    let kv_rows = batch * kv_heads * KV_BLOCK_TOKENS;
    // The queries; the outputs so far, those of the block, and two products of them with their factors.
    let row_tiles = q_rows * (head_dim + 4 * v_head_dim);
    // Scores, and what is made of them: three at once, with the keys and values of the block and what they are copied from.
    let blocks = 3 * q_rows * KV_BLOCK_TOKENS + 2 * kv_rows * (head_dim + v_head_dim);
    // Maxima, sums and factors: one value a row each; the mask.
    let small = 12 * q_rows + tile_rows * KV_BLOCK_TOKENS / 4;
    // Tiles of the result, before they are joined.
    let joined = if rows > Q_TILE { batch * heads * rows * v_head_dim } else { 0 };
    ((row_tiles + blocks + small + joined) * size_of::<f32>()) as u64
}
