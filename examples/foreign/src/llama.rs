//! The host: a Llama as candle users write it. Nothing here knows of plimsoll but the field `attention` and its one call.

use candle_core::{DType, Device, Result, Tensor, bail};
use candle_nn::{Embedding, Module, VarBuilder, embedding, rotary_emb::rope};
use candle_transformers::models::{
    llama::Config,
    with_tracing::{Linear, RmsNorm, linear_no_bias},
};
use plimsoll_attention::CausalAttention;

/// How a linear layer is loaded: input features, output features, and where its `weight` is.
pub type MakeLinear<'a> = &'a dyn Fn(usize, usize, VarBuilder<'_>) -> Result<Box<dyn Module>>;

/// The layers of candle-transformers, loaded under the names of its `Llama`.
pub struct Llama {
    pub(crate) config: Config,
    pub(crate) attention: CausalAttention,
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    lm_head: Box<dyn Module>,
    /// Rotations, `[positions, head_dim / 2]`.
    cos: Tensor,
    sin: Tensor,
}

struct Layer {
    input_norm: RmsNorm,
    qkv: [Box<dyn Module>; 3],
    o_proj: Box<dyn Module>,
    post_norm: RmsNorm,
    gate: Box<dyn Module>,
    up: Box<dyn Module>,
    down: Box<dyn Module>,
}

/// Keys and values of one sequence, `[1, kv_heads, tokens, head_dim]` a layer, allocated once.
#[derive(Debug)]
pub struct KvCache(Vec<[Tensor; 2]>);

impl KvCache {
    /// Room for so many tokens.
    ///
    /// # Errors
    /// If the device has no room for it.
    pub fn new(config: &Config, tokens: usize, device: &Device) -> Result<Self> {
        let head_dim = config.hidden_size / config.num_attention_heads;
        let zeros = || Tensor::zeros((1, config.num_key_value_heads, tokens, head_dim), DType::F32, device);
        (0..config.num_hidden_layers).map(|_| Ok([zeros()?, zeros()?])).collect::<Result<_>>().map(Self)
    }
}

impl Llama {
    /// Loads the tensors of candle-transformers' `Llama` with its own linear layers.
    ///
    /// # Errors
    /// If a tensor is missing, or the settings have a part that is not written here.
    pub fn load(vb: VarBuilder<'_>, config: &Config, attention: CausalAttention) -> Result<Self> {
        Self::load_with(vb, config, attention, &|from, to, vb| -> Result<Box<dyn Module>> {
            let linear: Linear = linear_no_bias(from, to, vb)?;
            Ok(Box::new(linear))
        })
    }

    /// As [`Llama::load`], with linear layers of the caller's.
    ///
    /// # Errors
    /// As [`Llama::load`].
    pub fn load_with(
        vb: VarBuilder<'_>,
        config: &Config,
        attention: CausalAttention,
        linear: MakeLinear<'_>,
    ) -> Result<Self> {
        if config.rope_scaling.is_some() {
            bail!("rope_scaling is not written here");
        }
        let (hidden, ffn, eps) = (config.hidden_size, config.intermediate_size, config.rms_norm_eps);
        let head_dim = hidden / config.num_attention_heads;
        let kv = head_dim * config.num_key_value_heads;
        let layer = |index: usize| {
            let vb = vb.pp(format!("model.layers.{index}"));
            let (attn, mlp) = (vb.pp("self_attn"), vb.pp("mlp"));
            Ok(Layer {
                input_norm: RmsNorm::new(hidden, eps, vb.pp("input_layernorm"))?,
                qkv: [
                    linear(hidden, hidden, attn.pp("q_proj"))?,
                    linear(hidden, kv, attn.pp("k_proj"))?,
                    linear(hidden, kv, attn.pp("v_proj"))?,
                ],
                o_proj: linear(hidden, hidden, attn.pp("o_proj"))?,
                post_norm: RmsNorm::new(hidden, eps, vb.pp("post_attention_layernorm"))?,
                gate: linear(hidden, ffn, mlp.pp("gate_proj"))?,
                up: linear(hidden, ffn, mlp.pp("up_proj"))?,
                down: linear(ffn, hidden, mlp.pp("down_proj"))?,
            })
        };
        let embed_tokens = embedding(config.vocab_size, hidden, vb.pp("model.embed_tokens"))?;
        let head = if config.tie_word_embeddings { vb.pp("model.embed_tokens") } else { vb.pp("lm_head") };
        let powers = (0..head_dim).step_by(2).map(|i| config.rope_theta.powf(i as f32 / head_dim as f32).recip());
        let powers = Tensor::from_iter(powers, vb.device())?.unsqueeze(0)?;
        let positions = u32::try_from(config.max_position_embeddings).map_err(candle_core::Error::wrap)?;
        let angles = Tensor::arange(0, positions, vb.device())?.to_dtype(DType::F32)?.unsqueeze(1)?.matmul(&powers)?;
        Ok(Self {
            attention,
            embed_tokens,
            layers: (0..config.num_hidden_layers).map(layer).collect::<Result<_>>()?,
            norm: RmsNorm::new(hidden, eps, vb.pp("model.norm"))?,
            lm_head: linear(hidden, config.vocab_size, head)?,
            cos: angles.cos()?,
            sin: angles.sin()?,
            config: config.clone(),
        })
    }

    /// Logits of the last of `tokens`, `[1, vocab_size]`, which stand at `start ..` and go into the cache.
    ///
    /// # Errors
    /// If the cache or the positions are too short.
    pub fn forward(&self, tokens: &[u32], start: usize, cache: &KvCache) -> Result<Tensor> {
        let ids = Tensor::new(tokens, self.cos.device())?.unsqueeze(0)?;
        let mut x = self.embed_tokens.forward(&ids)?;
        for (layer, kv) in self.layers.iter().zip(&cache.0) {
            x = (self.attend(layer, kv, &layer.input_norm.forward(&x)?, start)? + x)?;
            let y = layer.post_norm.forward(&x)?;
            let y = (candle_nn::ops::silu(&layer.gate.forward(&y)?)? * layer.up.forward(&y)?)?;
            x = (layer.down.forward(&y)? + x)?;
        }
        let last = self.norm.forward(&x.narrow(1, tokens.len() - 1, 1)?.contiguous()?)?;
        self.lm_head.forward(&last.squeeze(1)?)
    }

    fn attend(&self, layer: &Layer, [keys, values]: &[Tensor; 2], x: &Tensor, start: usize) -> Result<Tensor> {
        let (batch, rows, hidden) = x.dims3()?;
        let head_dim = hidden / self.config.num_attention_heads;
        let heads =
            |i: usize| layer.qkv[i].forward(x)?.reshape((batch, rows, (), head_dim))?.transpose(1, 2)?.contiguous();
        let (cos, sin) = (self.cos.narrow(0, start, rows)?, self.sin.narrow(0, start, rows)?);
        keys.slice_set(&rope(&heads(1)?, &cos, &sin)?, 2, start)?;
        values.slice_set(&heads(2)?, 2, start)?;
        let (k, v) = (keys.narrow(2, 0, start + rows)?, values.narrow(2, 0, start + rows)?);
        let out = self.attention.forward(&rope(&heads(0)?, &cos, &sin)?, &k, &v, start)?;
        layer.o_proj.forward(&out.transpose(1, 2)?.reshape((batch, rows, hidden))?)
    }
}

impl std::fmt::Debug for Llama {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Llama")
            .field("config", &self.config)
            .field("attention", &self.attention)
            .finish_non_exhaustive()
    }
}
