//! Gated delta net: linear attention with a short convolution, a gated delta rule and a gated norm.
//!
//! Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464, in the form of Qwen3-Next.

use plimsoll_kvcache::RecurrentSpec;
use plimsoll_program::{Activation, DType, DeltaOperands, Extent, HeadOrder, ProgramBuilder, Slot, Unary};

/// Sizes of a gated delta net.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeltaNetShape {
    pub(crate) key_heads: usize,
    pub(crate) key_head_dim: usize,
    pub(crate) value_heads: usize,
    pub(crate) value_head_dim: usize,
    /// Taps of the convolution.
    pub(crate) kernel: usize,
    /// Which key head a value head works with.
    pub(crate) order: HeadOrder,
}

impl DeltaNetShape {
    /// Width of all key heads.
    pub(crate) fn key_width(&self) -> usize {
        self.key_heads * self.key_head_dim
    }

    /// Width of all value heads.
    pub(crate) fn value_width(&self) -> usize {
        self.value_heads * self.value_head_dim
    }

    /// Channels of the convolution: queries, keys, values.
    pub(crate) fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    fn tail(&self) -> usize {
        (self.kernel - 1) * self.channels()
    }

    /// What a sequence holds for the layer: the last rows of the convolution's input, then one matrix per value head.
    pub(crate) fn state(&self) -> RecurrentSpec {
        RecurrentSpec { elements: self.tail() + self.key_head_dim * self.value_width() }
    }

    /// The weight with which [`ProgramBuilder::rms_norm`] makes unit vectors of keys, and of queries times `1 / sqrt(key_head_dim)`.
    #[expect(clippy::cast_possible_truncation, reason = "computed in f64, used in f32")]
    pub(crate) fn unit_weights(&self) -> [Vec<f32>; 2] {
        // x / sqrt(sum(x^2) + eps) = x / sqrt(mean(x^2) + eps / n) / sqrt(n)
        let root = (self.key_head_dim as f64).sqrt();
        [(1.0 / (root * root)) as f32, (1.0 / root) as f32].map(|weight| vec![weight; self.key_head_dim])
    }
}

/// Weights of one layer behind its input projections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeltaNetWeights {
    /// `[channels * kernel]`.
    pub(crate) conv: Slot,
    /// `[value_heads]`: added to the decay's input.
    pub(crate) dt_bias: Slot,
    /// `[value_heads]`: `-exp(A_log)`.
    pub(crate) decay_rate: Slot,
    /// `[key_head_dim]`, computed: see [`DeltaNetShape::unit_weights`].
    pub(crate) q_unit: Slot,
    /// As `q_unit`.
    pub(crate) k_unit: Slot,
    /// `[value_head_dim]`.
    pub(crate) norm: Slot,
    /// `[hidden_size, value_width]`.
    pub(crate) out: Slot,
}

/// What the input projections give.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeltaNetInputs {
    /// `[rows, channels]`: queries, keys, values, head by head.
    pub(crate) qkv: Slot,
    /// `[rows, value_width]`: gate of the norm.
    pub(crate) z: Slot,
    /// `[rows, value_heads]`: to the decay.
    pub(crate) a: Slot,
    /// `[rows, value_heads]`: to the part that is written.
    pub(crate) b: Slot,
}

/// Added to the sum of squares of a key or query.
const UNIT_EPS: f32 = 1e-6;

/// Records the layer behind its input projections, whose memory it takes; result `[rows, hidden_size]`. The state is declared here, for `layer` of the sequence.
pub(crate) fn delta_net(
    b: &mut ProgramBuilder,
    inputs: DeltaNetInputs,
    w: &DeltaNetWeights,
    shape: &DeltaNetShape,
    norm_eps: f32,
    layer: usize,
) -> Slot {
    let state = b.state(format!("blk.{layer}.recurrent"), Extent::Fixed(shape.state().elements), DType::F32);
    let tail = b.view(state, 0, shape.tail());
    let mixed = b.causal_conv(layer, inputs.qkv, w.conv, None, tail); // [rows, channels]
    let mixed = b.unary_assign(mixed, Unary::Silu);
    let part = |b: &mut ProgramBuilder, offset: usize, heads: usize, head_dim: usize| {
        let part = b.select_columns(mixed, offset, heads * head_dim);
        b.split_heads(part, heads) // [rows, heads, head_dim]
    };
    let (key_heads, key_head_dim) = (shape.key_heads, shape.key_head_dim);
    let q = part(b, 0, key_heads, key_head_dim);
    let k = part(b, shape.key_width(), key_heads, key_head_dim);
    let v = part(b, 2 * shape.key_width(), shape.value_heads, shape.value_head_dim);
    let eps = UNIT_EPS / key_head_dim as f32;
    let q = b.rms_norm_assign(q, w.q_unit, eps);
    let k = b.rms_norm_assign(k, w.k_unit, eps);
    let decay = b.add_assign(inputs.a, w.dt_bias); // [rows, value_heads]
    let decay = b.unary_assign(decay, Unary::Softplus);
    let decay = b.mul_assign(decay, w.decay_rate);
    let beta = b.unary_assign(inputs.b, Unary::Sigmoid);
    let matrices = b.view(state, shape.tail(), shape.key_head_dim * shape.value_width());
    let out = b.gated_delta(layer, DeltaOperands { q, k, v, decay, beta, order: shape.order }, matrices); // [rows, value_heads, value_head_dim]
    let out = b.rms_norm_assign(out, w.norm, norm_eps);
    let out = b.merge_heads(out);
    let out = b.glu_assign(inputs.z, out, Activation::Silu);
    b.linear(out, w.out)
}
