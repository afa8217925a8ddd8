//! The sizes that every decoder has, read from either kind of checkpoint.

use super::Dimensions;
use crate::{
    checkpoint::{Fields, Keys},
    error::ModelError,
};

/// Sizes of a decoder, named as in `config.json`.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "fields are named as in config.json")]
pub struct Sizes {
    pub vocab_size: usize,
    pub hidden_size: usize,
    /// Of a dense feed-forward block; 0 where an architecture has none and reads its own.
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    pub max_position_embeddings: usize,
    pub rms_norm_eps: f32,
    pub tie_word_embeddings: bool,
}

/// What an architecture takes where `config.json` says nothing, as its class in `transformers` does. `None` where it must say.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Defaults {
    pub(crate) vocab_size: Option<usize>,
    pub(crate) num_attention_heads: Option<usize>,
    /// `None`: as many as query heads.
    pub(crate) num_key_value_heads: Option<usize>,
    /// `None`: hidden size over heads.
    pub(crate) head_dim: Option<usize>,
    pub(crate) max_position_embeddings: Option<usize>,
    pub(crate) tie_word_embeddings: bool,
}

/// Widest head: far beyond any model's, and small enough that frequencies can be computed before shapes are compared.
pub(super) const MAX_HEAD_DIM: usize = 1 << 16;

/// Most layers of a folder; a GGUF file is held to its number of tensors.
const MAX_LAYERS: usize = 10_000;

/// Most heads, widest rows and most tokens of a vocabulary of a folder, and widest feed-forward block: real models stay far below. A GGUF file
/// is held to the shapes of its tensors.
const MAX_HEADS: usize = 1 << 16;
const MAX_HIDDEN_SIZE: usize = 1 << 20;
const MAX_WIDTH: usize = 1 << 26;

/// Largest epsilon of a norm.
const MAX_EPS: f64 = 1.0;

/// Fields that turn a decoder into something else unless they have these values.
const NEUTRAL_FIELDS: &[(&str, &[f64])] = &[
    ("add_cross_attention", &[0.0]),
    ("is_decoder", &[0.0, 1.0]),
    ("is_encoder_decoder", &[0.0]),
    ("pretraining_tp", &[0.0, 1.0]),
    ("tie_encoder_decoder", &[0.0]),
    ("use_bidirectional_attention", &[0.0]),
    ("use_mrope", &[0.0]),
    ("use_parallel_residual", &[0.0]),
];

/// The same for the keys of GGUF files.
const NEUTRAL_KEYS: &[(&str, &[f64])] = &[
    ("attention.causal", &[1.0]),
    ("attention.clamp_kqv", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("embedding_scale", &[0.0, 1.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("pooling_type", &[0.0]),
    ("residual_scale", &[0.0, 1.0]),
    ("swin_norm", &[0.0]),
    ("use_parallel_residual", &[0.0]),
];

impl Sizes {
    /// From the metadata of a GGUF file.
    ///
    /// # Errors
    /// [`ModelError`] naming a key that is missing, of the wrong type, out of range, or not supported.
    pub(crate) fn from_keys(keys: &Keys<'_>) -> Result<Self, ModelError> {
        keys.neutral(NEUTRAL_KEYS)?;
        // What the file's own tensors say, or what only other programs read.
        keys.skip(&["tensor_data_layout", "vocab_size"]);
        let hidden_size = keys.size("embedding_length")?;
        let heads = keys.size("attention.head_count")?;
        let kv_heads = keys.find_size("attention.head_count_kv")?.unwrap_or(heads);
        divides(&keys.name("attention.head_count"), heads, &keys.name("attention.head_count_kv"), kv_heads)?;
        let head_dim = match keys.find_size("attention.key_length")? {
            Some(head_dim) => head_dim,
            None => {
                divides(&keys.name("embedding_length"), hidden_size, &keys.name("attention.head_count"), heads)?;
                hidden_size / heads
            }
        };
        let head_dim = at_most(&keys.name("attention.key_length"), head_dim, MAX_HEAD_DIM)?;
        if let Some(found) = keys.find_size("attention.value_length")?.filter(|&length| length != head_dim) {
            return Err(keys.unsupported("attention.value_length", found, format!("{head_dim}, the key length")));
        }
        let max_position_embeddings = keys.size("context_length")?;
        let gguf = keys.gguf();
        let embedding = crate::checkpoint::CheckpointRef::from(gguf).tensor("token_embd.weight")?;
        // Every layer has tensors of its own: a count past them would only make the program long before the first missing one is named.
        let layers = at_most(&keys.name("block_count"), keys.size("block_count")?, gguf.tensors().len())?;
        let eps = keys.gguf().get_f32(&keys.name("attention.layer_norm_rms_epsilon"))?;
        if !(0.0..=MAX_EPS).contains(&f64::from(eps)) {
            return Err(keys.unsupported("attention.layer_norm_rms_epsilon", eps, "a number from 0 to 1"));
        }
        Ok(Self {
            vocab_size: embedding.shape.first().copied().unwrap_or(0),
            hidden_size,
            intermediate_size: keys.find_size("feed_forward_length")?.unwrap_or(0),
            num_hidden_layers: layers,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim,
            max_position_embeddings,
            rms_norm_eps: eps,
            tie_word_embeddings: gguf.find_tensor("output.weight").is_none(),
        })
    }

    /// From `config.json`, or the `text_config` inside it.
    ///
    /// # Errors
    /// [`ModelError`] naming a field that is missing, of the wrong type, out of range, or not supported.
    pub(crate) fn from_fields(fields: &Fields<'_>, defaults: &Defaults) -> Result<Self, ModelError> {
        refuse_quantized(fields)?;
        fields.neutral(NEUTRAL_FIELDS)?;
        let hidden_size = at_most(&fields.name("hidden_size"), fields.size("hidden_size")?, MAX_HIDDEN_SIZE)?;
        let size = |key: &str, default: Option<usize>| match (fields.find_size(key)?, default) {
            (Some(size), _) | (None, Some(size)) => Ok(size),
            (None, None) => fields.size(key),
        };
        let heads = size("num_attention_heads", defaults.num_attention_heads)?;
        let heads = at_most(&fields.name("num_attention_heads"), heads, MAX_HEADS)?;
        // Null means as many as query heads; absent is what the class takes.
        let absent = defaults.num_key_value_heads.filter(|_| !fields.contains("num_key_value_heads"));
        let kv_heads = fields.find_size("num_key_value_heads")?.or(absent).unwrap_or(heads);
        divides(&fields.name("num_attention_heads"), heads, &fields.name("num_key_value_heads"), kv_heads)?;
        let head_dim = match fields.find_size("head_dim")?.or(defaults.head_dim) {
            Some(head_dim) => head_dim,
            None => {
                divides(&fields.name("hidden_size"), hidden_size, &fields.name("num_attention_heads"), heads)?;
                hidden_size / heads
            }
        };
        let layers = fields.size("num_hidden_layers")?;
        let intermediate_size = fields.find_size("intermediate_size")?.unwrap_or(0);
        // 1e-6 is the default of every class here.
        let eps = fields.find_number("rms_norm_eps", 0.0..=MAX_EPS)?.unwrap_or(1e-6);
        #[expect(clippy::cast_possible_truncation, reason = "written in decimal, used in f32")]
        let rms_norm_eps = eps as f32;
        Ok(Self {
            vocab_size: at_most(&fields.name("vocab_size"), size("vocab_size", defaults.vocab_size)?, MAX_WIDTH)?,
            hidden_size,
            intermediate_size: at_most(&fields.name("intermediate_size"), intermediate_size, MAX_WIDTH)?,
            num_hidden_layers: at_most(&fields.name("num_hidden_layers"), layers, MAX_LAYERS)?,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim: at_most(&fields.name("head_dim"), head_dim, MAX_HEAD_DIM)?,
            max_position_embeddings: size("max_position_embeddings", defaults.max_position_embeddings)?,
            rms_norm_eps,
            tie_word_embeddings: fields.find_flag("tie_word_embeddings")?.unwrap_or(defaults.tie_word_embeddings),
        })
    }

    /// The usual factor on scores: `1 / sqrt(head_dim)`.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "computed in f64, used in f32")]
    pub fn attention_scale(&self) -> f32 {
        (1.0 / (self.head_dim as f64).sqrt()) as f32
    }

    /// Width of the heads of a query together.
    #[must_use]
    pub fn q_width(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// Width of the heads of a key together.
    #[must_use]
    pub fn kv_width(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }

    /// The sizes that callers ask a loaded model for.
    #[must_use]
    pub fn dimensions(&self) -> Dimensions {
        Dimensions {
            layers: self.num_hidden_layers,
            hidden_size: self.hidden_size,
            vocab_size: self.vocab_size,
            context_length: self.max_position_embeddings,
        }
    }

    /// The width of the dense feed-forward block, which must be given.
    ///
    /// # Errors
    /// [`ModelError::MissingField`] naming `key`.
    pub(crate) fn require_intermediate(&self, key: String) -> Result<(), ModelError> {
        if self.intermediate_size > 0 { Ok(()) } else { Err(ModelError::MissingField { field: key }) }
    }
}

/// Refuses folders whose weights are stored in the format of a quantization library.
///
/// # Errors
/// [`ModelError::Unsupported`] naming the library's method.
pub(crate) fn refuse_quantized(fields: &Fields<'_>) -> Result<(), ModelError> {
    let Some(quantization) = fields.object("quantization_config")? else { return Ok(()) };
    let method = quantization.find_text("quant_method")?.unwrap_or("unnamed");
    Err(ModelError::Unsupported {
        key: fields.name("quantization_config"),
        found: crate::checkpoint::one_line(method),
        supported: "folders with F32, F16 or BF16 weights, and GGUF files for quantized models".to_owned(),
    })
}

/// Refuses a scale of scores, as GGUF files may state it, other than `1 / sqrt(head_dim)`; 0 is llama.cpp's "not set".
///
/// # Errors
/// [`ModelError::Unsupported`].
pub(crate) fn usual_scale(keys: &Keys<'_>, head_dim: usize) -> Result<(), ModelError> {
    let usual = 1.0 / (head_dim as f64).sqrt();
    match keys.find_f32("attention.scale")? {
        None | Some(0.0) => Ok(()),
        Some(found) if (f64::from(found) - usual).abs() <= 1e-5 * usual => Ok(()),
        Some(found) => Err(keys.unsupported("attention.scale", found, format!("{usual}, 1 / sqrt(head dimension)"))),
    }
}

pub(crate) fn at_most(key: &str, value: usize, maximum: usize) -> Result<usize, ModelError> {
    if value <= maximum {
        return Ok(value);
    }
    Err(ModelError::OutOfRange { key: key.to_owned(), found: value as u64, minimum: 1, maximum: maximum as u64 })
}

pub(crate) fn divides(key: &str, value: usize, divisor_key: &str, divisor: usize) -> Result<(), ModelError> {
    if value.is_multiple_of(divisor) {
        return Ok(());
    }
    Err(ModelError::NotDivisible { key: key.to_owned(), value, divisor_key: divisor_key.to_owned(), divisor })
}
