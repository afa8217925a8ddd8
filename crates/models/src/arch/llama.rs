//! Llama decoder (Llama 2 and 3, Mistral, SmolLM2): GQA, RMSNorm before attention and feed-forward, RoPE, SwiGLU.
//!
//! Touvron et al. 2023, arXiv:2307.09288; Llama 3: arXiv:2407.21783; Mistral: arXiv:2310.06825.
//! GGUF files of this architecture hold q and k projections reordered so that a rotated pair is adjacent, hence [`RopeLayout::Pairs`].
//!
//! Keys follow llama.cpp. A key under `llama.attention.` or `llama.rope.` that is not known here is an error, and so is any other `llama.*` key
//! that would change the arithmetic to something that is not implemented. Unknown keys elsewhere under `llama.` are warned of and ignored.

use super::{Architecture, Dimensions, KvLayerShape, LayerState, Ports, rope_constant};
use crate::{
    error::ModelError,
    gguf::{Gguf, Value},
    layers::{
        mlp::{LinearWeights, MlpWeights, gated_mlp},
        rope::RopeScaling,
    },
    model::f32_values,
};
use plimsoll_program::{Activation, AttendSpec, DType, Extent, ProgramBuilder, RopeLayout, Slot};

/// Hyperparameters, named as in `config.json`.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "fields are named as in config.json")]
pub struct Config {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    pub rotary_dim: usize,
    pub max_position_embeddings: usize,
    pub rms_norm_eps: f32,
    pub rope_theta: f64,
    pub rope_scaling: RopeScaling,
    pub sliding_window: Option<usize>,
    pub tie_word_embeddings: bool,
}

impl Config {
    /// Softmax scale of attention: `1 / sqrt(head_dim)`.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "computed in f64, used in f32")]
    pub fn attention_scale(&self) -> f32 {
        (1.0 / (self.head_dim as f64).sqrt()) as f32
    }

    /// Reads the `llama.*` metadata of a GGUF file.
    ///
    /// # Errors
    /// [`ModelError`] naming a key that is missing, of the wrong type, out of range, or not supported.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ModelError> {
        let size = |key: &str| positive(key, gguf.get_u64(key)?);
        let optional = |key: &str| gguf.find_u64(key)?.map(|value| positive(key, value)).transpose();

        check_keys(gguf)?;
        let hidden_size = size("llama.embedding_length")?;
        let num_attention_heads = size("llama.attention.head_count")?;
        let num_key_value_heads = optional("llama.attention.head_count_kv")?.unwrap_or(num_attention_heads);
        divides(
            "llama.attention.head_count",
            num_attention_heads,
            "llama.attention.head_count_kv",
            num_key_value_heads,
        )?;
        let head_dim = match optional("llama.attention.key_length")? {
            Some(head_dim) => head_dim,
            None => {
                divides("llama.embedding_length", hidden_size, "llama.attention.head_count", num_attention_heads)?;
                hidden_size / num_attention_heads
            }
        };
        let head_dim = at_most("llama.attention.key_length", head_dim, MAX_HEAD_DIM)?;
        if let Some(value_length) = optional("llama.attention.value_length")?.filter(|&length| length != head_dim) {
            let supported = format!("{head_dim}, the key length");
            return Err(unsupported("llama.attention.value_length", value_length, supported));
        }
        let rotary_dim = optional("llama.rope.dimension_count")?.unwrap_or(head_dim);
        if rotary_dim > head_dim || !rotary_dim.is_multiple_of(2) {
            let supported = format!("an even number up to the head dimension, {head_dim}");
            return Err(unsupported("llama.rope.dimension_count", rotary_dim, supported));
        }
        let scale = 1.0 / (head_dim as f64).sqrt();
        if let Some(found) = gguf.find_f32("llama.attention.scale")?
            && found != 0.0
            && (f64::from(found) - scale).abs() > 1e-5 * scale
        {
            return Err(unsupported("llama.attention.scale", found, format!("{scale}, 1 / sqrt(head dimension)")));
        }
        let max_position_embeddings = size("llama.context_length")?;
        let embedding = gguf.tensor("token_embd.weight")?;
        // Every layer has tensors of its own: a count past them would only make the program long before the first missing one is named.
        let num_hidden_layers = at_most("llama.block_count", size("llama.block_count")?, gguf.tensors().len())?;
        let rms_norm_eps = gguf.get_f32("llama.attention.layer_norm_rms_epsilon")?;
        if !(rms_norm_eps.is_finite() && rms_norm_eps >= 0.0) {
            let key = "llama.attention.layer_norm_rms_epsilon";
            return Err(unsupported(key, rms_norm_eps, "a finite number from 0 on"));
        }
        let rope_theta = gguf.find_f32("llama.rope.freq_base")?.unwrap_or(10_000.0);
        if !(rope_theta.is_finite() && rope_theta > 1.0) {
            return Err(unsupported("llama.rope.freq_base", rope_theta, "a finite number above 1"));
        }
        Ok(Self {
            vocab_size: embedding.shape().first().copied().unwrap_or(0),
            hidden_size,
            intermediate_size: size("llama.feed_forward_length")?,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            rotary_dim,
            max_position_embeddings,
            rms_norm_eps,
            rope_theta: f64::from(rope_theta),
            rope_scaling: rope_scaling(gguf, rotary_dim, max_position_embeddings)?,
            // 0 is llama.cpp's "no window".
            sliding_window: gguf
                .find_u64("llama.attention.sliding_window")?
                .filter(|&window| window > 0)
                .map(|window| positive("llama.attention.sliding_window", window))
                .transpose()?,
            tie_word_embeddings: gguf.find_tensor("output.weight").is_none(),
        })
    }
}

/// Widest head: far beyond any model's, and small enough that frequencies can be computed before shapes are compared.
const MAX_HEAD_DIM: usize = 1 << 16;

/// Keys whose values are read in this file, or say nothing about the arithmetic.
const KNOWN_KEYS: &[&str] = &[
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.scale",
    "attention.sliding_window",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
    "tensor_data_layout",
    "vocab_size",
];

/// Keys that change the arithmetic unless they have one of these values, with which they do nothing. Flags count as 0 and 1.
const NEUTRAL_KEYS: &[(&str, &[f64])] = &[
    ("attention.causal", &[1.0]),
    ("attention.clamp_kqv", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("attn_logit_softcapping", &[0.0]),
    ("embedding_scale", &[0.0, 1.0]),
    ("expert_count", &[0.0]),
    ("expert_used_count", &[0.0]),
    ("final_logit_softcapping", &[0.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("pooling_type", &[0.0]),
    ("residual_scale", &[0.0, 1.0]),
    ("rope.scaling.attn_factor", &[1.0]),
    ("rope.scaling.yarn_attn_factor", &[1.0]),
    ("swin_norm", &[0.0]),
    ("use_parallel_residual", &[0.0]),
];

/// Refuses what would be computed otherwise than here.
fn check_keys(gguf: &Gguf) -> Result<(), ModelError> {
    for (key, value) in gguf.metadata() {
        let Some(name) = key.strip_prefix("llama.") else { continue };
        if let Some((_, neutral)) = NEUTRAL_KEYS.iter().find(|(known, _)| *known == name) {
            if !number(&value).is_some_and(|number| neutral.contains(&number)) {
                let values: Vec<String> = neutral.iter().map(f64::to_string).collect();
                return Err(unsupported(key, shown(&value), values.join(" or ")));
            }
        } else if name.starts_with("attention.") || name.starts_with("rope.") {
            if !KNOWN_KEYS.contains(&name) {
                return Err(unsupported(
                    key,
                    shown(&value),
                    "a file without this key, whose meaning is not known here",
                ));
            }
        } else if !KNOWN_KEYS.contains(&name) {
            tracing::warn!("the metadata key {key} is not known and ignored");
        }
    }
    Ok(())
}

/// The number that a scalar stands for.
fn number(value: &Value<'_>) -> Option<f64> {
    match *value {
        Value::F32(number) => Some(f64::from(number)),
        Value::F64(number) => Some(number),
        Value::Bool(flag) => Some(f64::from(u8::from(flag))),
        // Exact for all numbers that are compared with.
        ref other => other.as_integer().map(|number| number as f64),
    }
}

fn shown(value: &Value<'_>) -> String {
    match value {
        Value::String(text) => format!("{:?}", text.chars().take(40).collect::<String>()),
        Value::Bool(flag) => flag.to_string(),
        Value::Array(array) => format!("{array:?}"),
        other => number(other).map_or_else(String::new, |number| number.to_string()),
    }
}

fn unsupported(key: &str, found: impl ToString, supported: impl Into<String>) -> ModelError {
    ModelError::Unsupported { key: key.to_owned(), found: found.to_string(), supported: supported.into() }
}

fn positive(key: &str, value: u64) -> Result<usize, ModelError> {
    // Sizes beyond 2^31 are no model's; the bound keeps every product of two of them inside 64 bits.
    match usize::try_from(value) {
        Ok(size) if size > 0 && size <= 1 << 31 => Ok(size),
        _ => Err(ModelError::OutOfRange { key: key.to_owned(), found: value, minimum: 1, maximum: 1 << 31 }),
    }
}

fn at_most(key: &str, value: usize, maximum: usize) -> Result<usize, ModelError> {
    if value <= maximum {
        return Ok(value);
    }
    Err(ModelError::OutOfRange { key: key.to_owned(), found: value as u64, minimum: 1, maximum: maximum as u64 })
}

fn divides(key: &str, value: usize, divisor_key: &str, divisor: usize) -> Result<(), ModelError> {
    if value.is_multiple_of(divisor) {
        return Ok(());
    }
    Err(ModelError::NotDivisible { key: key.to_owned(), value, divisor_key: divisor_key.to_owned(), divisor })
}

fn rope_scaling(gguf: &Gguf, rotary_dim: usize, context: usize) -> Result<RopeScaling, ModelError> {
    let kind = gguf.find_str("llama.rope.scaling.type")?;
    let (factor_key, factor) = match gguf.find_f32("llama.rope.scaling.factor")? {
        Some(factor) => ("llama.rope.scaling.factor", factor),
        None => ("llama.rope.scale_linear", gguf.find_f32("llama.rope.scale_linear")?.unwrap_or(1.0)),
    };
    // 0 is llama.cpp's "not set".
    let factor = if factor == 0.0 { 1.0 } else { f64::from(factor) };
    if kind != Some("none") && !(factor.is_finite() && factor > 0.0) {
        return Err(unsupported(factor_key, factor, "a positive number"));
    }
    // Negative is llama.cpp's "not set": on for yarn, off for everything else.
    let ext_factor = gguf.find_f32("llama.rope.scaling.yarn_ext_factor")?.filter(|&factor| factor >= 0.0);
    let usual_ext_factor = if kind == Some("yarn") { 1.0 } else { 0.0 };
    if let Some(found) = ext_factor.filter(|&found| found != usual_ext_factor) {
        return Err(unsupported("llama.rope.scaling.yarn_ext_factor", found, usual_ext_factor.to_string()));
    }
    if let Some(tensor) = gguf.find_tensor("rope_freqs.weight") {
        if let Some(kind) = kind.filter(|&kind| kind != "none") {
            return Err(unsupported("llama.rope.scaling.type", kind, "\"none\" beside rope_freqs.weight"));
        }
        if kind.is_none() && factor != 1.0 {
            return Err(unsupported(factor_key, factor, "1 beside rope_freqs.weight"));
        }
        let factors = f32_values(&tensor.expect_shape(&[rotary_dim / 2])?)?;
        if let Some(found) = factors.iter().find(|factor| !(factor.is_finite() && **factor > 0.0)) {
            return Err(unsupported("a value of rope_freqs.weight", found, "positive numbers"));
        }
        return Ok(RopeScaling::Factors(factors));
    }
    match kind {
        None if factor == 1.0 => Ok(RopeScaling::None),
        Some("none") => Ok(RopeScaling::None),
        None | Some("linear") => Ok(RopeScaling::Linear { factor }),
        Some("yarn") => yarn(gguf, factor, context),
        Some(other) => Err(unsupported("llama.rope.scaling.type", other, "none, linear, yarn")),
    }
}

/// YaRN as llama.cpp reads its keys: cos and sin are multiplied by `m(1) / m(log_multiplier)`, or by `m(1)` without such a key, with
/// `m(x) = 0.1 x ln(factor) + 1`.
fn yarn(gguf: &Gguf, factor: f64, context: usize) -> Result<RopeScaling, ModelError> {
    let number = |key: &str, default: f32, least: f32| match gguf.find_f32(key)? {
        None => Ok(f64::from(default)),
        Some(found) if found.is_finite() && found >= least => Ok(f64::from(found)),
        Some(found) => Err(unsupported(key, found, format!("a finite number from {least} on"))),
    };
    let beta_fast = number("llama.rope.scaling.yarn_beta_fast", 32.0, f32::MIN_POSITIVE)?;
    let beta_slow = number("llama.rope.scaling.yarn_beta_slow", 1.0, f32::MIN_POSITIVE)?;
    let log_multiplier = number("llama.rope.scaling.yarn_log_multiplier", 0.0, 0.0)?;
    let temperature = RopeScaling::yarn_temperature;
    Ok(RopeScaling::Yarn {
        factor,
        original_context: gguf
            .find_u64("llama.rope.scaling.original_context_length")?
            .map_or(Ok(context), |value| positive("llama.rope.scaling.original_context_length", value))?,
        beta_fast,
        beta_slow,
        // A multiplier of 0 is llama.cpp's "not set", and `m(0)` is 1.
        attention_factor: temperature(factor, 1.0) / temperature(factor, log_multiplier),
    })
}

/// Reads the file's metadata and records its program.
pub(crate) fn from_gguf(gguf: &Gguf) -> Result<Architecture, ModelError> {
    let cfg = Config::from_gguf(gguf)?;
    record(&cfg, |name| gguf.find_tensor(name).is_some())
}

/// Records the program of one pass. `has_tensor` tells which optional tensors (biases) the file holds.
pub(crate) fn record(cfg: &Config, has_tensor: impl Fn(&str) -> bool) -> Result<Architecture, ModelError> {
    let mut b = ProgramBuilder::new();
    let mut computed = Vec::new();
    let ids = b.input("ids", Extent::PerRow(1), DType::U32);
    let positions = b.input("positions", Extent::PerRow(1), DType::U32);
    let logit_rows = b.input("logit_rows", Extent::PerLogitRow(1), DType::U32);
    let embedding = b.constant("token_embd.weight", &[cfg.vocab_size, cfg.hidden_size], DType::F32);
    let frequencies = cfg.rope_scaling.frequencies(cfg.rope_theta, cfg.rotary_dim);
    let (inv_freq, attention_factor) = rope_constant(&mut b, &mut computed, "rope.inv_freq", frequencies);

    let rope_table = b.rope_table(positions, inv_freq, attention_factor); // [rows, rotary_dim]
    let mut x = b.embed(ids, embedding); // [rows, hidden_size]
    for layer in 0..cfg.num_hidden_layers {
        b.set_layer(Some(layer));
        let w = LayerWeights::declare(&mut b, cfg, layer, &has_tensor);
        let h = b.rms_norm(x, w.attn_norm, cfg.rms_norm_eps);
        let h = attention(&mut b, h, rope_table, &w, cfg, layer);
        x = b.add_assign(x, h);
        let h = b.rms_norm(x, w.ffn_norm, cfg.rms_norm_eps);
        let h = gated_mlp(&mut b, h, &w.mlp, Activation::Silu);
        x = b.add_assign(x, h);
    }
    b.set_layer(None);
    let norm = b.constant("output_norm.weight", &[cfg.hidden_size], DType::F32);
    let head = if cfg.tie_word_embeddings {
        embedding
    } else {
        b.constant("output.weight", &[cfg.vocab_size, cfg.hidden_size], DType::F32)
    };
    // Only wanted rows go on: the head is the widest product of the model.
    let x = b.select_rows(x, logit_rows); // [logit_rows, hidden_size]
    let x = b.rms_norm(x, norm, cfg.rms_norm_eps);
    let logits = b.linear(x, head); // [logit_rows, vocab_size]
    b.mark_output(logits);

    let kv_layer = KvLayerShape {
        kv_heads: cfg.num_key_value_heads,
        head_dim: cfg.head_dim,
        v_head_dim: cfg.head_dim,
        window: cfg.sliding_window,
    };
    Ok(Architecture {
        program: b.build()?,
        ports: Ports { ids, positions, logit_rows, logits },
        computed,
        layers: vec![LayerState::Kv(kv_layer); cfg.num_hidden_layers],
        dimensions: Dimensions {
            layers: cfg.num_hidden_layers,
            hidden_size: cfg.hidden_size,
            vocab_size: cfg.vocab_size,
            context_length: cfg.max_position_embeddings,
        },
    })
}

/// Weights of one decoder layer.
struct LayerWeights {
    attn_norm: Slot,
    q: LinearWeights,
    k: LinearWeights,
    v: LinearWeights,
    o: LinearWeights,
    ffn_norm: Slot,
    mlp: MlpWeights,
}

impl LayerWeights {
    fn declare(b: &mut ProgramBuilder, cfg: &Config, layer: usize, has_tensor: &impl Fn(&str) -> bool) -> Self {
        let mut linear = |name: &str, out_features: usize, in_features: usize| {
            let bias = format!("blk.{layer}.{name}.bias");
            LinearWeights {
                weight: b.constant(format!("blk.{layer}.{name}.weight"), &[out_features, in_features], DType::F32),
                bias: has_tensor(&bias).then(|| b.constant(&bias, &[out_features], DType::F32)),
            }
        };
        let (hidden, ffn) = (cfg.hidden_size, cfg.intermediate_size);
        let q_width = cfg.num_attention_heads * cfg.head_dim;
        let kv_width = cfg.num_key_value_heads * cfg.head_dim;
        let q = linear("attn_q", q_width, hidden);
        let k = linear("attn_k", kv_width, hidden);
        let v = linear("attn_v", kv_width, hidden);
        let o = linear("attn_output", hidden, q_width);
        let gate = linear("ffn_gate", ffn, hidden);
        let up = linear("ffn_up", ffn, hidden);
        let down = linear("ffn_down", hidden, ffn);
        Self {
            attn_norm: b.constant(format!("blk.{layer}.attn_norm.weight"), &[hidden], DType::F32),
            q,
            k,
            v,
            o,
            ffn_norm: b.constant(format!("blk.{layer}.ffn_norm.weight"), &[hidden], DType::F32),
            mlp: MlpWeights { gate, up, down },
        }
    }
}

/// Records the attention of one layer. `x`: `[rows, hidden_size]`, same shape out. KV belongs to the sequence, never to the model.
fn attention(b: &mut ProgramBuilder, x: Slot, rope_table: Slot, w: &LayerWeights, cfg: &Config, layer: usize) -> Slot {
    let qkv = b.linear_many(x, &[(w.q.weight, w.q.bias), (w.k.weight, w.k.bias), (w.v.weight, w.v.bias)]);
    let q = b.split_heads(qkv[0], cfg.num_attention_heads); // [rows, heads, head_dim]
    let q = b.rope_assign(q, rope_table, RopeLayout::Pairs);
    let k = b.split_heads(qkv[1], cfg.num_key_value_heads); // [rows, kv_heads, head_dim]
    let k = b.rope_assign(k, rope_table, RopeLayout::Pairs);
    let v = b.split_heads(qkv[2], cfg.num_key_value_heads);
    let spec = AttendSpec { scale: cfg.attention_scale(), window: cfg.sliding_window, softcap: None, sinks: None };
    let kv = b.state(format!("blk.{layer}.kv"), Extent::Fixed(0), DType::F32);
    let out = b.attend(layer, q, k, v, kv, spec); // [rows, heads, head_dim]
    let out = b.merge_heads(out); // [rows, heads * head_dim]
    w.o.apply(b, out)
}

#[cfg(test)]
mod tests;
