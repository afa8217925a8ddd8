//! The frame of a decoder: token ids in, logits of the wanted rows out, and the layers between them as an architecture records them.

use super::{
    attention::{AttentionParts, AttentionSpec, AttentionWeights, attention},
    mlp::{MlpWeights, gated_mlp},
    moe::{
        MoeWeights,
        config::{MoeConfig, SparseLayers},
        moe,
    },
    rope::Rope,
};
use crate::{
    arch::{Architecture, Dimensions, KvLayerShape, LayerState, Ports, Recorded, Sizes},
    checkpoint::weights::{Bias, Weights},
    error::ModelError,
};
use plimsoll_program::{Activation, DType, Extent, ProgramBuilder, RopeLayout, Slot};

/// A decoder while its program is recorded.
#[derive(Debug)]
pub(crate) struct Decoder<'c> {
    pub(crate) b: ProgramBuilder,
    pub(crate) weights: Weights<'c>,
    ids: Slot,
    /// Absolute positions, u32 `[rows]`.
    pub(crate) positions: Slot,
    logit_rows: Slot,
    embedding: Slot,
    layers: Vec<LayerState>,
    sizes: Sizes,
}

/// A layer with a norm before attention and one before a dense feed-forward block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PreNorm {
    pub(crate) parts: AttentionParts,
    pub(crate) mlp_bias: Bias,
    pub(crate) activation: Activation,
    pub(crate) layout: RopeLayout,
}

/// What follows the last layer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Head {
    /// `cap * tanh(logit / cap)`.
    pub(crate) softcap: Option<f32>,
}

impl<'c> Decoder<'c> {
    /// Declares the inputs and the embedding table.
    pub(crate) fn new(mut weights: Weights<'c>, sizes: &Sizes) -> Self {
        let mut b = ProgramBuilder::new();
        let ids = b.input("ids", Extent::PerRow(1), DType::U32);
        let positions = b.input("positions", Extent::PerRow(1), DType::U32);
        let logit_rows = b.input("logit_rows", Extent::PerLogitRow(1), DType::U32);
        let embedding = weights.whole(&mut b, "token_embd.weight", &[sizes.vocab_size, sizes.hidden_size]);
        Self { b, weights, ids, positions, logit_rows, embedding, layers: Vec::new(), sizes: sizes.clone() }
    }

    /// Records the table of cosines and sines that layers share: `[rows, rotary_dim]`. `name`: that of the frequencies.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] if the frequencies cannot be computed with.
    pub(crate) fn rope_table(&mut self, name: &str, rope: &Rope) -> Result<Slot, ModelError> {
        if rope.is_stored() {
            self.weights.mark_used("rope_freqs.weight");
        }
        Ok(self.weights.rope_table(&mut self.b, name, self.positions, rope.frequencies()?))
    }

    /// Records the embedding of the ids: `[rows, hidden_size]`.
    pub(crate) fn embed(&mut self) -> Slot {
        self.b.embed(self.ids, self.embedding)
    }

    /// Notes what a sequence holds for the next layer. Layers come in ascending order, each once.
    pub(crate) fn keep(&mut self, state: LayerState) {
        self.layers.push(state);
    }

    /// Records one attention block and notes what its layer, the next one, keeps. `x`: `[rows, hidden_size]`, same shape out.
    pub(crate) fn attention(
        &mut self,
        layer: usize,
        x: Slot,
        rope_table: Slot,
        w: &AttentionWeights,
        spec: &AttentionSpec,
    ) -> Slot {
        self.keep(LayerState::Kv(KvLayerShape {
            kv_heads: spec.kv_heads,
            head_dim: self.sizes.head_dim,
            v_head_dim: self.sizes.head_dim,
            window: spec.window,
        }));
        attention(&mut self.b, layer, x, rope_table, w, spec)
    }

    /// Declares and records a whole layer: `x + attention(norm(x))`, then `x + mlp(norm(x))`. `x`: `[rows, hidden_size]`, same shape out.
    /// `window`: keys a row sees, itself included.
    pub(crate) fn pre_norm_layer(
        &mut self,
        layer: usize,
        x: Slot,
        rope_table: Slot,
        kind: &PreNorm,
        window: Option<usize>,
    ) -> Slot {
        self.b.set_layer(Some(layer));
        let w = AttentionWeights::declare(&mut self.b, &mut self.weights, &self.sizes, layer, kind.parts);
        let spec = AttentionSpec { window, ..AttentionSpec::usual(&self.sizes, kind.layout) };
        let h = self.norm(layer, "attn_norm", x);
        let h = self.attention(layer, h, rope_table, &w, &spec);
        let x = self.b.add_assign(x, h);
        let h = self.norm(layer, "ffn_norm", x);
        let h = self.dense_mlp(layer, h, kind.activation, kind.mlp_bias);
        self.b.add_assign(x, h)
    }

    /// Declares and records a dense gated feed-forward block. `x`: `[rows, hidden_size]`, same shape out.
    pub(crate) fn dense_mlp(&mut self, layer: usize, x: Slot, activation: Activation, bias: Bias) -> Slot {
        let (hidden, ffn) = (self.sizes.hidden_size, self.sizes.intermediate_size);
        let w = MlpWeights::declare(&mut self.b, &mut self.weights, layer, [hidden, ffn], bias);
        gated_mlp(&mut self.b, x, &w, activation)
    }

    /// Declares and records a feed-forward block of experts. `x`: `[rows, hidden_size]`, same shape out.
    ///
    /// # Errors
    /// [`ModelError`] if the router is missing or has another shape: before as many matrices are looked for as the settings say.
    pub(crate) fn experts(
        &mut self,
        layer: usize,
        x: Slot,
        cfg: &MoeConfig,
        activation: Activation,
    ) -> Result<Slot, ModelError> {
        let hidden_size = self.sizes.hidden_size;
        let router = self.weights.stored_name(&format!("blk.{layer}.ffn_gate_inp.weight"));
        let checkpoint = self.weights.checkpoint();
        if !checkpoint.is_outline() {
            checkpoint.tensor(&router)?.expect_shape(&[cfg.num_experts, hidden_size])?;
        }
        let w = MoeWeights::declare(&mut self.b, &mut self.weights, layer, hidden_size, cfg);
        Ok(moe(&mut self.b, x, &w, cfg.route(), activation))
    }

    /// Declares and records a SiLU-gated feed-forward block: of experts in the layers that have them, else a dense one.
    ///
    /// # Errors
    /// [`ModelError`] as of [`experts`](Self::experts); or if a dense layer has no width.
    pub(crate) fn sparse_or_dense(
        &mut self,
        layer: usize,
        x: Slot,
        moe: Option<&MoeConfig>,
        sparse: &SparseLayers,
    ) -> Result<Slot, ModelError> {
        match moe.filter(|_| sparse.contains(layer, &self.weights)) {
            Some(moe) => self.experts(layer, x, moe, Activation::Silu),
            None => {
                self.sizes.require_intermediate("intermediate_size".to_owned())?;
                Ok(self.dense_mlp(layer, x, Activation::Silu, Bias::No))
            }
        }
    }

    /// Records the RMS norm `blk.<layer>.<part>.weight` of the hidden size. Same shape out, in memory of its own.
    pub(crate) fn norm(&mut self, layer: usize, part: &str, x: Slot) -> Slot {
        let weight = self.weights.norm(&mut self.b, &format!("blk.{layer}.{part}.weight"), self.sizes.hidden_size);
        self.b.rms_norm(x, weight, self.sizes.rms_norm_eps)
    }

    /// As [`norm`](Self::norm), in place of `x`.
    pub(crate) fn norm_assign(&mut self, layer: usize, part: &str, x: Slot) -> Slot {
        let weight = self.weights.norm(&mut self.b, &format!("blk.{layer}.{part}.weight"), self.sizes.hidden_size);
        self.b.rms_norm_assign(x, weight, self.sizes.rms_norm_eps)
    }

    /// Records the last norm and the output head, and builds the program.
    ///
    /// # Errors
    /// [`ModelError::Program`] if the sizes contradict each other; [`ModelError::TiedHeadDiffers`].
    pub(crate) fn finish(self, x: Slot, head: Head) -> Result<Recorded, ModelError> {
        let Self { mut b, mut weights, ids, positions, logit_rows, embedding, layers, sizes } = self;
        b.set_layer(None);
        let norm = weights.norm(&mut b, "output_norm.weight", sizes.hidden_size);
        let shape = [sizes.vocab_size, sizes.hidden_size];
        let matrix = weights.head(&mut b, embedding, sizes.tie_word_embeddings, shape)?;
        // Only wanted rows go on: the head is the widest product of the model.
        let x = b.select_rows(x, logit_rows); // [logit_rows, hidden_size]
        let x = b.rms_norm(x, norm, sizes.rms_norm_eps);
        let mut logits = b.linear(x, matrix); // [logit_rows, vocab_size]
        if let Some(cap) = head.softcap {
            logits = b.softcap_assign(logits, cap);
        }
        b.mark_output(logits);
        let (sources, computed) = weights.finish();
        let dimensions: Dimensions = sizes.dimensions();
        let ports = Ports { ids, positions, logit_rows, logits };
        let architecture = Architecture { program: b.build()?, ports, computed, layers, dimensions };
        Ok(Recorded { architecture, sources })
    }
}
