//! Bytes of weights, KV and transients from a [`ModelShape`], with no model code behind them.
//!
//! The terms for attention scratch, latent KV and DeepSeek V4's pools are those that oMLX (jundot/omlx) charges.

use super::shape::{
    AttentionShape, CompressedShape, FeedForward, IndexerShape, LatentShape, Mixer, ModelShape, PoolShape,
    RecurrentShape, product, sum,
};
use crate::{Pass, Profile};

/// Bytes of an f32.
const F32: usize = 4;

/// How many bytes a number of stored elements takes: `bytes` for every `elements` begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields say what they hold")]
pub struct StorageFormat {
    pub elements: u32,
    pub bytes: u32,
}

impl StorageFormat {
    /// Four bytes each.
    pub const F32: Self = Self { elements: 1, bytes: 4 };
    /// Two bytes each; f16 too.
    pub const BF16: Self = Self { elements: 1, bytes: 2 };
    /// One byte each, and an f32 scale per 128 by 128 of them.
    pub const FP8: Self = Self { elements: 128 * 128, bytes: 128 * 128 + 4 };
    /// Half a byte each, and a scale of one byte per 32.
    pub const MXFP4: Self = Self { elements: 32, bytes: 17 };
    /// GGML's `Q8_0`.
    pub const Q8_0: Self = Self { elements: 32, bytes: 34 };
    /// GGML's `Q6_K`.
    pub const Q6_K: Self = Self { elements: 256, bytes: 210 };
    /// GGML's `Q4_K`.
    pub const Q4_K: Self = Self { elements: 256, bytes: 144 };

    /// Bytes of `count` elements; zero `elements` count as one.
    #[must_use]
    pub fn bytes_of(self, count: u64) -> u64 {
        let bytes = u128::from(count) * u128::from(self.bytes);
        u64::try_from(bytes.div_ceil(u128::from(self.elements.max(1)))).unwrap_or(u64::MAX)
    }
}

/// How the weights are stored once loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields say what they hold")]
pub struct WeightFormats {
    pub linear: StorageFormat,
    pub experts: StorageFormat,
    pub embedding: StorageFormat,
    pub vectors: StorageFormat,
}

impl WeightFormats {
    /// Everything in `format`.
    #[must_use]
    pub const fn all(format: StorageFormat) -> Self {
        Self { linear: format, experts: format, embedding: format, vectors: format }
    }
}

/// The price of attention's scratch. Choose the one of the kernel that will run: it follows the shape, not free memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttentionPrice {
    /// `4 * heads * rows * head_dim` bytes, whatever the context.
    Fused,
    /// Adds all scores: `heads * rows * kv_len * score_bytes`.
    Unfused {
        /// Bytes of one score.
        score_bytes: usize,
    },
    /// Adds the scores of one tile: `heads * rows * min(tile_tokens, kv_len) * score_bytes`.
    Bounded {
        /// Keys per tile.
        tile_tokens: usize,
        /// Bytes of one score.
        score_bytes: usize,
    },
}

/// What an estimate depends on besides the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields say what they hold")]
pub struct EstimateSettings {
    /// How weights are stored; `None`: as the config says (`torch_dtype`, `quantization_config`), bf16 if it says nothing.
    pub weights: Option<WeightFormats>,
    /// The size of all weights where it is known exactly, as from a GGUF file. Wins over `weights`.
    pub weights_bytes: Option<u64>,
    /// Bytes of one stored key or value element.
    pub kv_element_bytes: usize,
    /// Tokens per KV block; only whole blocks are counted.
    pub kv_block_tokens: usize,
    /// Buffers of a recurrent layer's state: 2 where a pass writes one while the other stays as it was.
    pub state_buffers: usize,
    /// The largest chunk: a window layer holds its window and the rest of one chunk.
    pub chunk_rows: usize,
    pub attention: AttentionPrice,
}

impl Default for EstimateSettings {
    /// 16-bit KV in blocks of 64 tokens, one buffer of recurrent state, chunks of up to 2,048 rows, bounded attention with f32 tiles of 512 keys.
    fn default() -> Self {
        Self {
            weights: None,
            weights_bytes: None,
            kv_element_bytes: 2,
            kv_block_tokens: 64,
            state_buffers: 1,
            chunk_rows: 2_048,
            attention: AttentionPrice::Bounded { tile_tokens: 512, score_bytes: 4 },
        }
    }
}

/// A model priced in closed form.
///
/// Weights and KV are exact sums over the shape. **The transient is an estimate**: the residual stream plus the dearest of
/// one mixer, one feed-forward network and the logits, in f32. Where a program can be planned, use the plan's figure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClosedForm {
    shape: ModelShape,
    settings: EstimateSettings,
    formats: WeightFormats,
}

impl ClosedForm {
    /// Prices `shape`; weights in bf16 unless `settings` say otherwise.
    #[must_use]
    pub fn new(shape: ModelShape, settings: EstimateSettings) -> Self {
        let formats = settings.weights.unwrap_or(WeightFormats::all(StorageFormat::BF16));
        Self { shape, settings, formats }
    }

    /// The dimensions behind the numbers.
    #[must_use]
    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// The settings behind the numbers.
    #[must_use]
    pub fn settings(&self) -> &EstimateSettings {
        &self.settings
    }

    fn layer_kv_bytes(&self, mixer: &Mixer, context_tokens: usize) -> u64 {
        let kv = Kv { settings: &self.settings, context_tokens };
        match mixer {
            Mixer::Attention(shape) if !shape.holds_kv => 0,
            Mixer::Attention(shape) => kv.elements(shape.window, product([2, shape.kv_heads, shape.head_dim])),
            Mixer::Latent(shape) => {
                let index = shape.indexer.map_or(0, |indexer| indexer.head_dim as u64);
                kv.elements(None, sum([shape.kv_lora_rank as u64, shape.qk_rope_head_dim as u64, index]))
            }
            Mixer::Recurrent(shape) => recurrent_state_bytes(shape).saturating_mul(self.settings.state_buffers as u64),
            Mixer::Compressed(shape) => kv.compressed(shape),
        }
    }

    fn layer_transient_bytes(&self, layer: &super::LayerShape, pass: &Pass) -> u64 {
        let scratch =
            Scratch { price: self.settings.attention, rows: pass.rows, kv_len: pass.start.saturating_add(pass.rows) };
        let mixer = match &layer.mixer {
            Mixer::Attention(shape) => scratch.attention(shape),
            Mixer::Latent(shape) => scratch.latent(shape),
            Mixer::Recurrent(shape) => scratch.recurrent(shape),
            Mixer::Compressed(shape) => scratch.compressed(shape),
        };
        mixer.max(scratch.feed_forward(&layer.feed_forward, self.shape.hidden_size))
    }
}

impl Profile for ClosedForm {
    fn weights_bytes(&self) -> u64 {
        self.settings.weights_bytes.unwrap_or_else(|| {
            let parameters = self.shape.parameters();
            sum([
                self.formats.linear.bytes_of(parameters.linear),
                self.formats.experts.bytes_of(parameters.experts),
                self.formats.embedding.bytes_of(parameters.embedding),
                self.formats.vectors.bytes_of(parameters.vectors),
            ])
        })
    }

    fn kv_bytes(&self, context_tokens: usize) -> u64 {
        let layers = self.shape.layers.iter().map(|layer| self.layer_kv_bytes(&layer.mixer, context_tokens));
        layers.fold(0, u64::saturating_add)
    }

    fn transient_bytes(&self, pass: &Pass) -> u64 {
        // The stream and its normed copy stay while a layer works.
        let stream = product([pass.rows, 1 + self.shape.residual_streams, self.shape.hidden_size, F32]);
        let logits = product([pass.logit_rows, self.shape.vocab_size, F32]);
        let layers = self.shape.layers.iter().map(|layer| self.layer_transient_bytes(layer, pass)).max();
        stream.saturating_add(logits.max(layers.unwrap_or(0)))
    }
}

/// State of one sequence in a recurrent layer: one matrix per value head and the tail of the convolution, in f32.
fn recurrent_state_bytes(shape: &RecurrentShape) -> u64 {
    let tail = shape.conv_width().saturating_mul(shape.conv_kernel.saturating_sub(1) as u64);
    product([shape.value_heads, shape.key_head_dim, shape.value_head_dim])
        .saturating_add(tail)
        .saturating_mul(F32 as u64)
}

struct Kv<'a> {
    settings: &'a EstimateSettings,
    context_tokens: usize,
}

impl Kv<'_> {
    /// Tokens a layer stores, in whole blocks: `min(T, window + chunk - 1)`, which may straddle one block more than it fills.
    fn stored_tokens(&self, window: Option<usize>) -> u64 {
        let block = self.settings.kv_block_tokens.max(1);
        let mut blocks = self.context_tokens.div_ceil(block);
        if let Some(window) = window {
            let reach = window.saturating_add(self.settings.chunk_rows).saturating_sub(1);
            let straddling = reach.saturating_sub(1).div_ceil(block).saturating_add(1);
            blocks = blocks.min(straddling);
        }
        product([blocks, block])
    }

    fn elements(&self, window: Option<usize>, per_token: u64) -> u64 {
        self.stored_tokens(window).saturating_mul(per_token).saturating_mul(self.settings.kv_element_bytes as u64)
    }

    fn compressed(&self, shape: &CompressedShape) -> u64 {
        let window = self.elements(Some(shape.window), shape.head_dim as u64);
        let Some(pool) = shape.pool else {
            return window;
        };
        let entries = (self.context_tokens / pool.ratio.max(1)) as u64;
        let per_entry = sum([shape.head_dim as u64, pool.indexer.map_or(0, |indexer| indexer.head_dim as u64)]);
        // Entries and gates of the tokens that wait for a full window; two series, and the last window's first series again,
        // where windows overlap.
        let carried_rows = match pool.indexer {
            None => product([2, pool.ratio]),
            Some(_) => product([2, 3, pool.ratio]),
        };
        let elements = entries.saturating_add(carried_rows).saturating_mul(per_entry);
        window.saturating_add(elements.saturating_mul(self.settings.kv_element_bytes as u64))
    }
}

struct Scratch {
    price: AttentionPrice,
    rows: usize,
    kv_len: usize,
}

impl Scratch {
    /// `rows * width` values in f32.
    fn values(&self, width: u64) -> u64 {
        product([self.rows, F32]).saturating_mul(width)
    }

    /// Accumulators of all heads, and the scores of the price over `keys` keys.
    fn scores(&self, heads: usize, head_dim: usize, keys: usize) -> u64 {
        let fused = product([F32, heads, self.rows, head_dim]);
        let scores = match self.price {
            AttentionPrice::Fused => 0,
            AttentionPrice::Unfused { score_bytes } => product([heads, self.rows, keys, score_bytes]),
            AttentionPrice::Bounded { tile_tokens, score_bytes } => {
                product([heads, self.rows, keys.min(tile_tokens), score_bytes])
            }
        };
        fused.saturating_add(scores)
    }

    /// Keys a window leaves visible to the rows together.
    fn visible(&self, window: Option<usize>) -> usize {
        window.map_or(self.kv_len, |window| self.kv_len.min(window.saturating_add(self.rows).saturating_sub(1)))
    }

    fn attention(&self, shape: &AttentionShape) -> u64 {
        // q (with its gate), k, v and the heads' results.
        let heads = 2 + usize::from(shape.has_output_gate);
        let width = sum([product([heads, shape.heads, shape.head_dim]), product([2, shape.kv_heads, shape.head_dim])]);
        self.values(width).saturating_add(self.scores(shape.heads, shape.head_dim, self.visible(shape.window)))
    }

    /// Queries carried into the latent space, so that keys and values are never expanded.
    fn latent(&self, shape: &LatentShape) -> u64 {
        let latent = shape.kv_lora_rank.saturating_add(shape.qk_rope_head_dim);
        let query = shape.qk_nope_head_dim.saturating_add(shape.qk_rope_head_dim);
        let width = sum([
            shape.q_lora_rank.unwrap_or(0) as u64,
            product([shape.heads, query.saturating_add(shape.v_head_dim)]),
            product([shape.heads, latent.saturating_add(shape.kv_lora_rank)]),
            latent as u64,
        ]);
        let attention =
            self.scores(shape.heads, latent, shape.indexer.map_or(self.kv_len, |i| self.kv_len.min(i.top_k)));
        let indexer = shape.indexer.map_or(0, |indexer| self.indexer(&indexer, self.kv_len));
        self.values(width).saturating_add(attention.max(indexer))
    }

    fn recurrent(&self, shape: &RecurrentShape) -> u64 {
        // q, k, v before and after the convolution, the gate, the result, and the state that is being made.
        let width = sum([shape.conv_width().saturating_mul(2), shape.value_width().saturating_mul(2)]);
        self.values(width).saturating_add(recurrent_state_bytes(shape))
    }

    /// The largest of window attention, attention to the pool, and the choice of its entries.
    fn compressed(&self, shape: &CompressedShape) -> u64 {
        let width = sum([
            shape.q_lora_rank as u64,
            product([2, shape.heads, shape.head_dim]),
            shape.head_dim as u64,
            product([shape.o_groups, shape.o_lora_rank]),
        ]);
        let local = self.visible(Some(shape.window));
        let dearest = match shape.pool {
            None => self.scores(shape.heads, shape.head_dim, local),
            Some(pool) => self.pool(shape, &pool, local),
        };
        self.values(width).saturating_add(dearest)
    }

    fn pool(&self, shape: &CompressedShape, pool: &PoolShape, local: usize) -> u64 {
        let entries = self.kv_len / pool.ratio.max(1);
        let Some(indexer) = pool.indexer else {
            let projected = self.values(product([2, shape.head_dim]));
            return projected.max(self.scores(shape.heads, shape.head_dim, local.saturating_add(entries)));
        };
        let series = product([4, shape.head_dim.saturating_add(indexer.head_dim)]);
        let sparse = self.scores(shape.heads, shape.head_dim, local.saturating_add(entries.min(indexer.top_k)));
        self.values(series).max(self.indexer(&indexer, entries)).max(sparse)
    }

    /// Queries of the indexer, their scores (`heads * rows * entries` in f32 unless fused or bounded by a tile), and six
    /// workspaces of `rows * entries` in f32.
    fn indexer(&self, shape: &IndexerShape, entries: usize) -> u64 {
        let scores = self.scores(shape.heads, shape.head_dim, entries);
        scores.saturating_add(product([6, self.rows, entries, F32]))
    }

    fn feed_forward(&self, shape: &FeedForward, hidden_size: usize) -> u64 {
        // Gate and up (the product takes the gate's place), and the result.
        let dense = sum([product([2, shape.dense_width]), hidden_size as u64]);
        let routed = shape.routed.map_or(0, |routed| {
            // Rows are copied together per expert, and come back as one result per expert used.
            let per_expert = sum([product([2, routed.width]), product([2, hidden_size])]);
            sum([routed.experts as u64, per_expert.saturating_mul(routed.used as u64)])
        });
        self.values(dense.saturating_add(routed))
    }
}
