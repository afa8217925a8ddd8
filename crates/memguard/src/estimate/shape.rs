//! What a model is made of, as far as bytes go, and the closed forms for its parameters.

/// A decoder as its dimensions: enough to price weights, KV and transient memory in closed form.
///
/// Text only: vision and audio towers and multi-token-prediction layers are not counted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are named as in `config.json`")]
pub struct ModelShape {
    pub hidden_size: usize,
    pub vocab_size: usize,
    /// Whether the output head is the embedding table.
    pub tie_word_embeddings: bool,
    /// Copies of the residual stream (hyper-connections); 1 in most models.
    pub residual_streams: usize,
    pub layers: Vec<LayerShape>,
    /// Parameters outside the layers, beyond embedding, head and final norm.
    pub extra: Parameters,
}

/// One decoder layer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields say what they hold")]
pub struct LayerShape {
    pub mixer: Mixer,
    pub feed_forward: FeedForward,
    /// Norms of `hidden_size` elements.
    pub norms: usize,
    /// Parameters beyond mixer, feed-forward and those norms.
    pub extra: Parameters,
}

/// What moves information between tokens in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mixer {
    /// Keys and values per token, shared by groups of heads.
    Attention(AttentionShape),
    /// Multi-head latent attention (DeepSeek V2, arXiv:2405.04434): one latent and one rotated key per token.
    Latent(LatentShape),
    /// Gated delta rule: a state of constant size, no keys per token.
    Recurrent(RecurrentShape),
    /// A window of shared keys beside a pool of compressed ones (DeepSeek V4).
    Compressed(CompressedShape),
}

/// Grouped-query attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are named as in `config.json`")]
pub struct AttentionShape {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// A query sees at most this many keys; `None`: all.
    pub window: Option<usize>,
    /// `false` in a layer that reads the keys and values of an earlier one: it has neither projections nor KV for them.
    pub holds_kv: bool,
    /// Whether values are projected apart from keys. They are stored apart in any case.
    pub has_v_proj: bool,
    /// Whether the query projection makes a gate as wide as itself.
    pub has_output_gate: bool,
    pub qkv_bias: bool,
    pub output_bias: bool,
    /// Whether heads of q and k are normed with weights of `head_dim` elements.
    pub qk_norm: bool,
    /// Whether every head has a learned sink.
    pub sinks: bool,
}

impl AttentionShape {
    /// Plain attention: no window, bias, norm, gate or sink.
    #[must_use]
    pub const fn new(heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self {
            heads,
            kv_heads,
            head_dim,
            window: None,
            holds_kv: true,
            has_v_proj: true,
            has_output_gate: false,
            qkv_bias: false,
            output_bias: false,
            qk_norm: false,
            sinks: false,
        }
    }
}

/// Multi-head latent attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are named as in `config.json`")]
pub struct LatentShape {
    pub heads: usize,
    pub q_lora_rank: Option<usize>,
    pub kv_lora_rank: usize,
    pub qk_nope_head_dim: usize,
    pub qk_rope_head_dim: usize,
    pub v_head_dim: usize,
    pub indexer: Option<IndexerShape>,
}

/// Picks the keys that a query attends to: one small key per token or pool entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are named as in `config.json`")]
pub struct IndexerShape {
    pub heads: usize,
    pub head_dim: usize,
    pub top_k: usize,
}

/// Gated delta rule with a short convolution (arXiv:2412.06464).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are named as in `config.json`")]
pub struct RecurrentShape {
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_head_dim: usize,
    pub value_head_dim: usize,
    pub conv_kernel: usize,
}

/// Window attention with one shared key-value head, beside compressed keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are named as in `config.json`")]
pub struct CompressedShape {
    pub heads: usize,
    /// Width of the one vector per token that is key and value.
    pub head_dim: usize,
    pub q_lora_rank: usize,
    pub o_groups: usize,
    pub o_lora_rank: usize,
    pub window: usize,
    /// `None`: the window alone.
    pub pool: Option<PoolShape>,
}

/// Compressed keys: one entry per `ratio` tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields say what they hold")]
pub struct PoolShape {
    pub ratio: usize,
    /// With an indexer, two overlapping series are compressed, and a query attends to its top entries only.
    pub indexer: Option<IndexerShape>,
}

/// The feed-forward part of a layer; dense and routed parts may stand side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "fields say what they hold")]
pub struct FeedForward {
    /// Width of the part every token passes (a shared expert counts here); 0: none.
    pub dense_width: usize,
    /// Whether the dense part has a gate of one output (Qwen's shared expert).
    pub dense_gate: bool,
    pub routed: Option<ExpertsShape>,
}

impl FeedForward {
    /// One gated feed-forward network of `width`.
    #[must_use]
    pub const fn dense(width: usize) -> Self {
        Self { dense_width: width, dense_gate: false, routed: None }
    }
}

/// Routed experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields say what they hold")]
pub struct ExpertsShape {
    pub experts: usize,
    /// Experts per token.
    pub used: usize,
    pub width: usize,
    /// Whether router and experts have biases.
    pub bias: bool,
}

/// Parameters by how they are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Parameters {
    /// Matrices.
    pub linear: u64,
    /// Matrices of routed experts.
    pub experts: u64,
    /// Embedding tables and the output head.
    pub embedding: u64,
    /// Norms, biases, sinks, taps of convolutions and other vectors.
    pub vectors: u64,
}

impl Parameters {
    /// All of them; at most `u64::MAX`.
    #[must_use]
    pub fn total(&self) -> u64 {
        sum([self.linear, self.experts, self.embedding, self.vectors])
    }

    fn plus(self, other: Self) -> Self {
        Self {
            linear: self.linear.saturating_add(other.linear),
            experts: self.experts.saturating_add(other.experts),
            embedding: self.embedding.saturating_add(other.embedding),
            vectors: self.vectors.saturating_add(other.vectors),
        }
    }
}

/// A product that stays at `u64::MAX` instead of wrapping: configs come from strangers.
pub(super) fn product<const N: usize>(factors: [usize; N]) -> u64 {
    factors.into_iter().fold(1, |product, factor| product.saturating_mul(factor as u64))
}

pub(super) fn sum<const N: usize>(terms: [u64; N]) -> u64 {
    terms.into_iter().fold(0, u64::saturating_add)
}

impl ModelShape {
    /// All parameters of the text decoder.
    #[must_use]
    pub fn parameters(&self) -> Parameters {
        let tables = if self.tie_word_embeddings { 1 } else { 2 };
        let outside = Parameters {
            embedding: product([tables, self.vocab_size, self.hidden_size]),
            vectors: self.hidden_size as u64,
            ..self.extra
        };
        let outside = Parameters {
            embedding: outside.embedding.saturating_add(self.extra.embedding),
            vectors: outside.vectors.saturating_add(self.extra.vectors),
            ..outside
        };
        self.layers.iter().fold(outside, |total, layer| total.plus(layer.parameters(self.hidden_size)))
    }

    /// Layers whose memory grows with the context.
    #[must_use]
    pub fn kv_layers(&self) -> usize {
        self.layers.iter().filter(|layer| layer.mixer.holds_kv()).count()
    }
}

impl LayerShape {
    fn parameters(&self, hidden_size: usize) -> Parameters {
        let norms = Parameters { vectors: product([self.norms, hidden_size]), ..Parameters::default() };
        self.mixer.parameters(hidden_size).plus(self.feed_forward.parameters(hidden_size)).plus(norms).plus(self.extra)
    }
}

impl Mixer {
    /// Whether the layer keeps anything per token of context.
    #[must_use]
    pub fn holds_kv(&self) -> bool {
        match self {
            Self::Attention(shape) => shape.holds_kv,
            Self::Latent(_) | Self::Compressed(_) => true,
            Self::Recurrent(_) => false,
        }
    }

    fn parameters(&self, hidden_size: usize) -> Parameters {
        let (linear, vectors) = match self {
            Self::Attention(shape) => shape.parameters(hidden_size),
            Self::Latent(shape) => shape.parameters(hidden_size),
            Self::Recurrent(shape) => shape.parameters(hidden_size),
            Self::Compressed(shape) => shape.parameters(hidden_size),
        };
        Parameters { linear, vectors, ..Parameters::default() }
    }
}

impl AttentionShape {
    fn parameters(&self, hidden_size: usize) -> (u64, u64) {
        let q_width = product([1 + usize::from(self.has_output_gate), self.heads, self.head_dim]);
        let kv_parts = usize::from(self.holds_kv) * (1 + usize::from(self.has_v_proj));
        let kv_width = product([kv_parts, self.kv_heads, self.head_dim]);
        let qkv_width = q_width.saturating_add(kv_width);
        let linear =
            sum([qkv_width.saturating_mul(hidden_size as u64), product([self.heads, self.head_dim, hidden_size])]);
        let norms = usize::from(self.qk_norm) * (1 + usize::from(self.holds_kv));
        let vectors = sum([
            if self.qkv_bias { qkv_width } else { 0 },
            if self.output_bias { hidden_size as u64 } else { 0 },
            product([norms, self.head_dim]),
            if self.sinks { self.heads as u64 } else { 0 },
        ]);
        (linear, vectors)
    }
}

impl LatentShape {
    fn parameters(&self, hidden_size: usize) -> (u64, u64) {
        let q_head_dim = self.qk_nope_head_dim.saturating_add(self.qk_rope_head_dim);
        let q_rank = self.q_lora_rank.unwrap_or(0);
        let query = match self.q_lora_rank {
            Some(rank) => sum([product([hidden_size, rank]), product([rank, self.heads, q_head_dim])]),
            None => product([hidden_size, self.heads, q_head_dim]),
        };
        let latent = self.kv_lora_rank.saturating_add(self.qk_rope_head_dim);
        let expanded = self.qk_nope_head_dim.saturating_add(self.v_head_dim);
        let indexer = self.indexer.map_or((0, 0), |indexer| {
            let per_hidden = indexer.head_dim.saturating_add(indexer.heads);
            (
                sum([product([q_rank, indexer.heads, indexer.head_dim]), product([hidden_size, per_hidden])]),
                product([2, indexer.head_dim]),
            )
        });
        let linear = sum([
            query,
            product([hidden_size, latent]),
            product([self.kv_lora_rank, self.heads, expanded]),
            product([self.heads, self.v_head_dim, hidden_size]),
            indexer.0,
        ]);
        (linear, sum([q_rank as u64, self.kv_lora_rank as u64, indexer.1]))
    }
}

impl RecurrentShape {
    /// Width of the convolved q, k and v.
    pub(super) fn conv_width(&self) -> u64 {
        sum([product([2, self.key_heads, self.key_head_dim]), self.value_width()])
    }

    pub(super) fn value_width(&self) -> u64 {
        product([self.value_heads, self.value_head_dim])
    }

    fn parameters(&self, hidden_size: usize) -> (u64, u64) {
        let hidden = hidden_size as u64;
        // q, k and v, the gate z, and one b and one a per value head.
        let in_width = sum([self.conv_width(), self.value_width(), product([2, self.value_heads])]);
        let linear = sum([in_width.saturating_mul(hidden), self.value_width().saturating_mul(hidden)]);
        let taps = self.conv_width().saturating_mul(self.conv_kernel as u64);
        (linear, sum([taps, product([2, self.value_heads]), self.value_head_dim as u64]))
    }
}

impl CompressedShape {
    fn parameters(&self, hidden_size: usize) -> (u64, u64) {
        let o_width = product([self.o_groups, self.o_lora_rank]);
        let local = sum([
            product([hidden_size, self.q_lora_rank]),
            product([self.q_lora_rank, self.heads, self.head_dim]),
            product([hidden_size, self.head_dim]),
            // Each group of heads has its own output projection into `o_lora_rank`.
            product([self.heads, self.head_dim, self.o_lora_rank]),
            o_width.saturating_mul(hidden_size as u64),
        ]);
        let vectors = sum([self.q_lora_rank as u64, self.head_dim as u64, self.heads as u64]);
        let Some(pool) = self.pool else {
            return (local, vectors);
        };
        // Entries and gates, with a bias per place in the window.
        let compressor = |series: usize, width: usize| {
            sum([product([2, series, width, hidden_size]), product([pool.ratio, series, width])])
        };
        match pool.indexer {
            None => (sum([local, compressor(1, self.head_dim)]), sum([vectors, self.head_dim as u64])),
            Some(indexer) => {
                let index = sum([
                    compressor(2, indexer.head_dim),
                    product([self.q_lora_rank, indexer.heads, indexer.head_dim]),
                    product([hidden_size, indexer.heads]),
                ]);
                let linear = sum([local, compressor(2, self.head_dim), index]);
                (linear, sum([vectors, self.head_dim as u64, indexer.head_dim as u64]))
            }
        }
    }
}

impl FeedForward {
    fn parameters(&self, hidden_size: usize) -> Parameters {
        let mut linear = product([3, hidden_size, self.dense_width]);
        if self.dense_gate {
            linear = linear.saturating_add(hidden_size as u64);
        }
        let Some(routed) = self.routed else {
            return Parameters { linear, ..Parameters::default() };
        };
        let biases = if routed.bias {
            let per_expert = sum([product([2, routed.width]), hidden_size as u64, 1]);
            per_expert.saturating_mul(routed.experts as u64)
        } else {
            0
        };
        Parameters {
            linear: linear.saturating_add(product([routed.experts, hidden_size])),
            experts: product([routed.experts, 3, hidden_size, routed.width]),
            embedding: 0,
            vectors: biases,
        }
    }
}
