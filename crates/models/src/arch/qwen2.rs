//! Qwen2 and Qwen2.5 dense decoders: as Llama, with biases on q, k and v. arXiv:2407.10671, arXiv:2412.15115.

use super::{
    Recorded, Sizes,
    registry::Entry,
    sizes::{Defaults, usual_scale},
};
use crate::{
    checkpoint::{
        Fields, Folder, Keys,
        weights::{Bias, Weights},
    },
    error::ModelError,
    gguf::Gguf,
    layers::{
        attention::{AttentionParts, QkNorms},
        decoder::{Decoder, Head, PreNorm},
        rope::{Rope, fields::RopeDefaults},
        windows::Windows,
    },
};
use plimsoll_program::{Activation, RopeLayout};

pub(super) const ENTRY: Entry =
    Entry { gguf: &["qwen2"], model_types: &["qwen2"], classes: &["Qwen2ForCausalLM"], from_gguf, from_folder };

/// Hyperparameters, named as in `config.json`.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "fields are named as in config.json")]
pub struct Config {
    pub sizes: Sizes,
    pub rope: Rope,
    /// Window of each layer; absent: all keys.
    pub windows: Vec<Option<usize>>,
}

impl Config {
    /// Reads the `qwen2.*` metadata of a GGUF file.
    ///
    /// # Errors
    /// [`ModelError`] naming a key that is missing, of the wrong type, out of range, or not supported.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ModelError> {
        Self::from_keys(&Keys::new(gguf, "qwen2"))
    }

    pub(super) fn from_keys(keys: &Keys<'_>) -> Result<Self, ModelError> {
        let sizes = Sizes::from_keys(keys)?;
        sizes.require_intermediate(keys.name("feed_forward_length"))?;
        usual_scale(keys, sizes.head_dim)?;
        let rope = Rope::from_keys(keys, sizes.head_dim, sizes.max_position_embeddings, 10_000.0)?;
        keys.neutral(&[("attention.sliding_window", &[0.0]), ("expert_count", &[0.0]), ("expert_used_count", &[0.0])])?;
        keys.finish()?;
        let windows = vec![None; sizes.num_hidden_layers];
        Ok(Self { sizes, rope, windows })
    }

    /// Reads the fields of a `config.json`.
    ///
    /// # Errors
    /// [`ModelError`] naming a field that is missing, of the wrong type, out of range, or not supported.
    pub fn from_folder(folder: &Folder) -> Result<Self, ModelError> {
        let fields = Fields::new(folder.config());
        let config = Self::from_fields(&fields, None)?;
        fields.finish()?;
        Ok(config)
    }

    /// What Qwen2 and Qwen3 have in common; the caller finishes the fields.
    pub(super) fn from_fields(fields: &Fields<'_>, head_dim: Option<usize>) -> Result<Self, ModelError> {
        fields.find_choice("hidden_act", &["silu", "swish"])?;
        let defaults = Defaults { num_key_value_heads: Some(32), head_dim, ..Defaults::default() };
        let sizes = Sizes::from_fields(fields, &defaults)?;
        sizes.require_intermediate(fields.name("intermediate_size"))?;
        let rope = Rope::from_fields(fields, &RopeDefaults::usual(sizes.head_dim, sizes.max_position_embeddings))?;
        let windows = Windows::of_qwen(fields, sizes.num_hidden_layers)?;
        Ok(Self { sizes, rope, windows })
    }
}

fn from_gguf(gguf: &Gguf, keys: &Keys<'_>) -> Result<Recorded, ModelError> {
    // The bias of the output projection is in some converted files, all zeros.
    record(&Config::from_keys(keys)?, Weights::of_gguf(gguf), Bias::IfPresent)
}

fn from_folder(folder: &Folder, fields: &Fields<'_>) -> Result<Recorded, ModelError> {
    let config = Config::from_fields(fields, None)?;
    fields.finish()?;
    record(&config, Weights::of_folder(folder, &[]), Bias::No)
}

/// Records the program of one pass.
fn record(cfg: &Config, weights: Weights<'_>, output_bias: Bias) -> Result<Recorded, ModelError> {
    let mut d = Decoder::new(weights, &cfg.sizes);
    let rope_table = d.rope_table("rope.inv_freq", &cfg.rope)?; // [rows, rotary_dim]
    let mut x = d.embed(); // [rows, hidden_size]
    let parts = AttentionParts { qkv_bias: Bias::Yes, output_bias, norms: QkNorms::None, gated: false };
    let layer_of = PreNorm { parts, mlp_bias: Bias::No, activation: Activation::Silu, layout: RopeLayout::Halves };
    for (layer, &window) in cfg.windows.iter().enumerate() {
        x = d.pre_norm_layer(layer, x, rope_table, &layer_of, window);
    }
    d.finish(x, Head::default())
}
