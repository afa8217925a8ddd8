//! Llama decoder (Llama 2 and 3, Mistral, SmolLM2): GQA, RMSNorm before attention and feed-forward, RoPE, SwiGLU.
//!
//! Touvron et al. 2023, arXiv:2307.09288; Llama 3: arXiv:2407.21783; Mistral: arXiv:2310.06825.
//! GGUF files of this architecture hold q and k projections reordered so that a rotated pair is adjacent, hence [`RopeLayout::Pairs`]; folders
//! have them as trained, hence [`RopeLayout::Halves`].
//!
//! A GGUF key under `llama.` or a field of `config.json` that is not known here and may change the arithmetic is an error, and so is a
//! known one with a value that is not implemented.

use super::{
    Recorded, Sizes,
    registry::Entry,
    sizes::{Defaults, usual_scale},
};
use crate::{
    checkpoint::{
        Fields, Folder, Keys,
        weights::{Bias, Dialect, Weights},
    },
    error::ModelError,
    gguf::Gguf,
    layers::{
        attention::{AttentionParts, QkNorms},
        decoder::{Decoder, Head, PreNorm},
        rope::{Rope, fields::RopeDefaults},
    },
};
use plimsoll_program::{Activation, RopeLayout};

pub(super) const ENTRY: Entry = Entry {
    gguf: &["llama"],
    model_types: &["llama", "mistral"],
    classes: &["LlamaForCausalLM", "MistralForCausalLM"],
    from_gguf,
    from_folder,
};

/// Hyperparameters; fields that `config.json` has are named as there.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "fields are named as in config.json")]
pub struct Config {
    pub sizes: Sizes,
    pub rope: Rope,
    pub sliding_window: Option<usize>,
    /// `None`: as the file has them.
    pub attention_bias: Option<bool>,
    /// `None`: as the file has them.
    pub mlp_bias: Option<bool>,
}

impl Config {
    /// Reads the `llama.*` metadata of a GGUF file.
    ///
    /// # Errors
    /// [`ModelError`] naming a key that is missing, of the wrong type, out of range, or not supported.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ModelError> {
        Self::from_keys(&Keys::new(gguf, "llama"))
    }

    fn from_keys(keys: &Keys<'_>) -> Result<Self, ModelError> {
        keys.neutral(&[
            ("attn_logit_softcapping", &[0.0]),
            ("expert_count", &[0.0]),
            ("expert_used_count", &[0.0]),
            ("final_logit_softcapping", &[0.0]),
        ])?;
        let sizes = Sizes::from_keys(keys)?;
        sizes.require_intermediate(keys.name("feed_forward_length"))?;
        usual_scale(keys, sizes.head_dim)?;
        let rope = Rope::from_keys(keys, sizes.head_dim, sizes.max_position_embeddings, 10_000.0)?;
        let sliding_window = keys.find_size_or_zero("attention.sliding_window")?;
        keys.finish()?;
        Ok(Self { sizes, rope, sliding_window, attention_bias: None, mlp_bias: None })
    }

    /// Reads the fields of a `config.json`.
    ///
    /// # Errors
    /// [`ModelError`] naming a field that is missing, of the wrong type, out of range, or not supported.
    pub fn from_folder(folder: &Folder) -> Result<Self, ModelError> {
        Self::from_fields(&Fields::new(folder.config()))
    }

    fn from_fields(fields: &Fields<'_>) -> Result<Self, ModelError> {
        let is_mistral = fields.find_text("model_type")? == Some("mistral");
        fields.find_choice("hidden_act", &["silu", "swish"])?;
        fields.neutral(&[("rope_interleaved", &[0.0])])?;
        let kv_heads = is_mistral.then_some(8);
        let sizes = Sizes::from_fields(fields, &Defaults { num_key_value_heads: kv_heads, ..Defaults::default() })?;
        sizes.require_intermediate(fields.name("intermediate_size"))?;
        let rope = Rope::from_fields(fields, &RopeDefaults::usual(sizes.head_dim, sizes.max_position_embeddings))?;
        let sliding_window = match (is_mistral, fields.contains("sliding_window")) {
            (true, true) => fields.find_size("sliding_window")?,
            // What the class takes where the file says nothing.
            (true, false) => Some(4096),
            (false, _) if fields.value("sliding_window").is_some() => {
                return Err(fields.unsupported("sliding_window", "null: the reference's Llama has no window"));
            }
            (false, _) => None,
        };
        let attention_bias = Some(fields.find_flag("attention_bias")?.unwrap_or(false));
        let mlp_bias = Some(fields.find_flag("mlp_bias")?.unwrap_or(false));
        fields.finish()?;
        Ok(Self { sizes, rope, sliding_window, attention_bias, mlp_bias })
    }
}

fn from_gguf(gguf: &Gguf, keys: &Keys<'_>) -> Result<Recorded, ModelError> {
    record(&Config::from_keys(keys)?, Weights::of_gguf(gguf))
}

fn from_folder(folder: &Folder, fields: &Fields<'_>) -> Result<Recorded, ModelError> {
    record(&Config::from_fields(fields)?, Weights::of_folder(folder, &[]))
}

/// Records the program of one pass.
fn record(cfg: &Config, weights: Weights<'_>) -> Result<Recorded, ModelError> {
    let bias = |stated: Option<bool>| stated.map_or(Bias::IfPresent, Bias::stated);
    let parts = AttentionParts {
        qkv_bias: bias(cfg.attention_bias),
        output_bias: bias(cfg.attention_bias),
        norms: QkNorms::None,
        gated: false,
    };
    let layout = match weights.dialect() {
        Dialect::Gguf => RopeLayout::Pairs,
        Dialect::HuggingFace => RopeLayout::Halves,
    };
    let kind = PreNorm { parts, mlp_bias: bias(cfg.mlp_bias), activation: Activation::Silu, layout };
    let mut d = Decoder::new(weights, &cfg.sizes);
    let rope_table = d.rope_table("rope.inv_freq", &cfg.rope)?; // [rows, rotary_dim]
    let mut x = d.embed(); // [rows, hidden_size]
    for layer in 0..cfg.sizes.num_hidden_layers {
        x = d.pre_norm_layer(layer, x, rope_table, &kind, cfg.sliding_window);
    }
    d.finish(x, Head::default())
}

#[cfg(test)]
mod tests;
