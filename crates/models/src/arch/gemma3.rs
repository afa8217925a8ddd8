//! Gemma 3 text decoder: norms before and after each block, RMSNorm on each q and k head, windows on five of six layers, two rotations,
//! GELU-gated feed-forward, embeddings scaled by the root of their width. arXiv:2503.19786.
//!
//! Norm weights are stored as their distance from one in folders, and with the one added in GGUF files. A folder may be that of the whole
//! multimodal model: its text part is under `text_config`, and its vision tower is left alone.

use super::{
    Recorded, Sizes,
    registry::Entry,
    sizes::{Defaults, refuse_quantized},
};
use crate::{
    checkpoint::{
        Fields, Folder, Keys,
        weights::{Bias, Weights},
    },
    error::ModelError,
    gguf::{Gguf, Value},
    layers::{
        attention::{AttentionParts, AttentionSpec, AttentionWeights, QkNorms},
        decoder::{Decoder, Head},
        rope::{Rope, RopeScaling, fields::RopeDefaults},
        windows::Windows,
    },
};
use plimsoll_program::{Activation, RopeLayout, Slot};
use std::ops::RangeInclusive;

pub(super) const ENTRY: Entry = Entry {
    gguf: &["gemma3"],
    model_types: &["gemma3_text", "gemma3"],
    classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    from_gguf,
    from_folder,
};

/// Names of folders that differ from the usual ones.
const NAMES: &[(&str, &str)] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// Tensors of the multimodal model that are no part of its text decoder.
const VISION: &[&str] =
    &["vision_tower.", "model.vision_tower.", "multi_modal_projector.", "model.multi_modal_projector."];

/// What the class in `transformers` takes where `config.json` says nothing. Released multimodal folders rely on it.
const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(262_208),
    num_attention_heads: Some(8),
    num_key_value_heads: Some(4),
    head_dim: Some(256),
    max_position_embeddings: Some(131_072),
    tie_word_embeddings: true,
};

/// One layer in so many sees all keys, unless the model says otherwise.
const PATTERN: usize = 6;

/// Base of the frequencies of layers with a window.
const LOCAL_THETA: f64 = 10_000.0;

/// Soft-caps that are taken for one; those of models are 30 and 50.
const CAPS: RangeInclusive<f64> = 0.01..=1e6;

/// Scales of scores before the root.
const SCALARS: RangeInclusive<f64> = 1e-3..=1e9;

/// Hyperparameters; fields that `config.json` has are named as there.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "fields are named as in config.json")]
pub struct Config {
    pub sizes: Sizes,
    /// Rotation of layers that see all keys.
    pub rope: Rope,
    /// Rotation of layers with a window.
    pub local_rope: Rope,
    /// Window of each layer; absent: all keys.
    pub windows: Vec<Option<usize>>,
    /// Scores are multiplied by one over its root.
    pub query_pre_attn_scalar: f64,
    pub attention_bias: bool,
    pub attn_logit_softcapping: Option<f32>,
    pub final_logit_softcapping: Option<f32>,
}

impl Config {
    /// Reads the `gemma3.*` metadata of a GGUF file.
    ///
    /// # Errors
    /// [`ModelError`] naming a key that is missing, of the wrong type, out of range, or not supported.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ModelError> {
        Self::from_keys(&Keys::new(gguf, "gemma3"))
    }

    fn from_keys(keys: &Keys<'_>) -> Result<Self, ModelError> {
        let sizes = Sizes::from_keys(keys)?;
        sizes.require_intermediate(keys.name("feed_forward_length"))?;
        let rope = Rope::from_keys(keys, sizes.head_dim, sizes.max_position_embeddings, LOCAL_THETA)?;
        let theta = keys.find_number("rope.freq_base_swa", crate::layers::rope::THETAS)?.unwrap_or(LOCAL_THETA);
        let local_rope = Rope { theta, scaling: RopeScaling::None, rotary_dim: rope.rotary_dim };
        let window = keys.find_size_or_zero("attention.sliding_window")?;
        let windows = windows_of_keys(keys, sizes.num_hidden_layers, window)?;
        // There is no key for the scale: the largest of the family alone, with 62 layers, has one of its own.
        let scalar = match sizes.num_hidden_layers {
            62 => sizes.hidden_size as f64 / sizes.num_attention_heads as f64,
            _ => sizes.head_dim as f64,
        };
        let stated = keys.find_number("attention.scale", 0.0..=1e3)?.filter(|&scale| scale != 0.0);
        let query_pre_attn_scalar = stated.map_or(scalar, |scale| 1.0 / (scale * scale));
        // 0 is llama.cpp's "not set".
        let cap = |key: &str| match keys.find_number(key, 0.0..=*CAPS.end())? {
            None | Some(0.0) => Ok(None),
            Some(cap) if CAPS.contains(&cap) => Ok(Some(as_f32(cap))),
            Some(cap) => Err(keys.unsupported(key, cap, "0, or a number from 0.01 to 1000000")),
        };
        let attn_logit_softcapping = cap("attn_logit_softcapping")?;
        let final_logit_softcapping = cap("final_logit_softcapping")?;
        keys.finish()?;
        Ok(Self {
            sizes,
            rope,
            local_rope,
            windows,
            query_pre_attn_scalar,
            attention_bias: false,
            attn_logit_softcapping,
            final_logit_softcapping,
        })
    }

    /// Reads the fields of a `config.json`, of a text model or a multimodal one.
    ///
    /// # Errors
    /// [`ModelError`] naming a field that is missing, of the wrong type, out of range, or not supported.
    pub fn from_folder(folder: &Folder) -> Result<Self, ModelError> {
        Self::from_fields(&Fields::new(folder.config()))
    }

    fn from_fields(fields: &Fields<'_>) -> Result<Self, ModelError> {
        if fields.find_text("model_type")? != Some("gemma3") {
            return Self::from_text_fields(fields, &DEFAULTS);
        }
        refuse_quantized(fields)?;
        let Some(text) = fields.object("text_config")? else {
            return Err(ModelError::MissingField { field: fields.name("text_config") });
        };
        text.find_choice("model_type", &["gemma3_text"])?;
        let tied = fields.find_flag("tie_word_embeddings")?.unwrap_or(DEFAULTS.tie_word_embeddings);
        fields.skip(&["vision_config", "mm_tokens_per_image"]);
        let config = Self::from_text_fields(&text, &Defaults { tie_word_embeddings: tied, ..DEFAULTS })?;
        fields.finish()?;
        Ok(config)
    }

    fn from_text_fields(fields: &Fields<'_>, defaults: &Defaults) -> Result<Self, ModelError> {
        fields.find_choice("hidden_activation", &["gelu_pytorch_tanh"])?;
        let sizes = Sizes::from_fields(fields, defaults)?;
        sizes.require_intermediate(fields.name("intermediate_size"))?;
        let whole = RopeDefaults {
            theta: 1_000_000.0,
            layer_type: Some("full_attention"),
            ..RopeDefaults::usual(sizes.head_dim, sizes.max_position_embeddings)
        };
        let local = RopeDefaults {
            theta: LOCAL_THETA,
            theta_field: "rope_local_base_freq",
            layer_type: Some("sliding_attention"),
            scaled: false,
            ..whole
        };
        // Present and null means none; absent is what the class takes.
        let window = if fields.contains("sliding_window") { fields.find_size("sliding_window")? } else { Some(4096) };
        let pattern = ["sliding_window_pattern", "_sliding_window_pattern"].map(|key| fields.find_size(key));
        let [stated, hidden] = pattern;
        let pattern = stated?.or(hidden?).unwrap_or(PATTERN);
        let windows = Windows::by_types(fields, sizes.num_hidden_layers, window, |layer| slides(layer, pattern))?;
        let cap = |key: &str| Ok::<_, ModelError>(fields.find_number(key, CAPS)?.map(as_f32));
        let config = Self {
            rope: Rope::from_fields(fields, &whole)?,
            local_rope: Rope::from_fields(fields, &local)?,
            windows,
            query_pre_attn_scalar: fields.find_number("query_pre_attn_scalar", SCALARS)?.unwrap_or(256.0),
            attention_bias: fields.find_flag("attention_bias")?.unwrap_or(false),
            attn_logit_softcapping: cap("attn_logit_softcapping")?,
            final_logit_softcapping: cap("final_logit_softcapping")?,
            sizes,
        };
        fields.finish()?;
        Ok(config)
    }
}

/// Whether a layer has a window when every `pattern`th sees all keys.
fn slides(layer: usize, pattern: usize) -> bool {
    !(layer + 1).is_multiple_of(pattern)
}

/// Windows as a GGUF file says it: every layer but each sixth, or by `attention.sliding_window_pattern`, a period or one flag per layer.
fn windows_of_keys(keys: &Keys<'_>, layers: usize, window: Option<usize>) -> Result<Vec<Option<usize>>, ModelError> {
    const KEY: &str = "attention.sliding_window_pattern";
    let of = |slides: &dyn Fn(usize) -> bool| (0..layers).map(|layer| window.filter(|_| slides(layer))).collect();
    match keys.value(KEY) {
        None => Ok(of(&|layer| slides(layer, PATTERN))),
        Some(Value::Array(_)) => {
            let flags: Vec<bool> = keys.gguf().get_bool_array(&keys.name(KEY))?.collect();
            if flags.len() != layers {
                let supported = format!("one flag for each of the {layers} layers");
                return Err(keys.unsupported(KEY, format!("an array of {}", flags.len()), supported));
            }
            Ok(of(&|layer| flags[layer]))
        }
        Some(_) => {
            let period = keys.size(KEY)?;
            Ok(of(&|layer| slides(layer, period)))
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "written in decimal, used in f32")]
fn as_f32(value: f64) -> f32 {
    value as f32
}

fn from_gguf(gguf: &Gguf, keys: &Keys<'_>) -> Result<Recorded, ModelError> {
    record(&Config::from_keys(keys)?, Weights::of_gguf(gguf))
}

fn from_folder(folder: &Folder, fields: &Fields<'_>) -> Result<Recorded, ModelError> {
    let config = Config::from_fields(fields)?;
    let mut weights = Weights::of_folder(folder, NAMES).with_norms_from_one();
    if folder.config().contains_key("text_config") {
        weights.ignore(VISION);
    }
    record(&config, weights)
}

/// Records the program of one pass.
fn record(cfg: &Config, weights: Weights<'_>) -> Result<Recorded, ModelError> {
    let bias = Bias::stated(cfg.attention_bias);
    let parts = AttentionParts { qkv_bias: bias, output_bias: bias, norms: QkNorms::Heads, gated: false };
    let spec = AttentionSpec {
        scale: as_f32(1.0 / cfg.query_pre_attn_scalar.sqrt()),
        softcap: cfg.attn_logit_softcapping,
        ..AttentionSpec::usual(&cfg.sizes, RopeLayout::Halves)
    };
    let mut d = Decoder::new(weights, &cfg.sizes);
    let table = |d: &mut Decoder<'_>, is_local: bool| -> Result<Option<Slot>, ModelError> {
        let is_used = cfg.windows.iter().any(|window| window.is_some() == is_local);
        let (name, rope) =
            if is_local { ("rope.local_inv_freq", &cfg.local_rope) } else { ("rope.inv_freq", &cfg.rope) };
        is_used.then(|| d.rope_table(name, rope)).transpose()
    };
    let (whole, local) = (table(&mut d, false)?, table(&mut d, true)?); // [rows, rotary_dim]
    let x = d.embed(); // [rows, hidden_size]
    let mut x = d.b.scale_assign(x, as_f32((cfg.sizes.hidden_size as f64).sqrt()));
    for (layer, &window) in cfg.windows.iter().enumerate() {
        d.b.set_layer(Some(layer));
        let rope_table = if window.is_some() { local } else { whole }.expect("recorded for the layers that use it");
        let w = AttentionWeights::declare(&mut d.b, &mut d.weights, &cfg.sizes, layer, parts);
        let h = d.norm(layer, "attn_norm", x);
        let h = d.attention(layer, h, rope_table, &w, &AttentionSpec { window, ..spec });
        let h = d.norm_assign(layer, "post_attention_norm", h);
        x = d.b.add_assign(x, h);
        let h = d.norm(layer, "ffn_norm", x);
        let h = d.dense_mlp(layer, h, Activation::GeluTanh, Bias::No);
        let h = d.norm_assign(layer, "post_ffw_norm", h);
        x = d.b.add_assign(x, h);
    }
    d.finish(x, Head { softcap: cfg.final_logit_softcapping })
}

#[cfg(test)]
mod tests;
