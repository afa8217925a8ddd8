//! OLMo 2 dense decoder: as Llama, with the norms after attention and feed-forward instead of before, and RMSNorm over all of q and all of k
//! before RoPE. arXiv:2501.00656.

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
        attention::{AttentionParts, AttentionSpec, AttentionWeights, QkNorms},
        decoder::{Decoder, Head},
        rope::{Rope, fields::RopeDefaults},
    },
};
use plimsoll_program::{Activation, RopeLayout};

pub(super) const ENTRY: Entry =
    Entry { gguf: &["olmo2"], model_types: &["olmo2"], classes: &["Olmo2ForCausalLM"], from_gguf, from_folder };

/// Names of folders that differ from the usual ones.
const NAMES: &[(&str, &str)] =
    &[("post_attention_norm", "post_attention_layernorm"), ("post_ffw_norm", "post_feedforward_layernorm")];

/// Hyperparameters, named as in `config.json`.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "fields are named as in config.json")]
pub struct Config {
    pub sizes: Sizes,
    pub rope: Rope,
    pub attention_bias: bool,
}

impl Config {
    /// Reads the `olmo2.*` metadata of a GGUF file.
    ///
    /// # Errors
    /// [`ModelError`] naming a key that is missing, of the wrong type, out of range, or not supported.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ModelError> {
        Self::from_keys(&Keys::new(gguf, "olmo2"))
    }

    fn from_keys(keys: &Keys<'_>) -> Result<Self, ModelError> {
        let sizes = Sizes::from_keys(keys)?;
        sizes.require_intermediate(keys.name("feed_forward_length"))?;
        usual_scale(keys, sizes.head_dim)?;
        let rope = Rope::from_keys(keys, sizes.head_dim, sizes.max_position_embeddings, 10_000.0)?;
        // OLMo 3 goes by this name too, with windows on three layers of four.
        keys.neutral(&[("attention.sliding_window", &[0.0])])?;
        keys.finish()?;
        Ok(Self { sizes, rope, attention_bias: false })
    }

    /// Reads the fields of a `config.json`.
    ///
    /// # Errors
    /// [`ModelError`] naming a field that is missing, of the wrong type, out of range, or not supported.
    pub fn from_folder(folder: &Folder) -> Result<Self, ModelError> {
        Self::from_fields(&Fields::new(folder.config()))
    }

    fn from_fields(fields: &Fields<'_>) -> Result<Self, ModelError> {
        fields.find_choice("hidden_act", &["silu", "swish"])?;
        // The class takes another value than those of its relatives where nothing is said.
        fields.require("rms_norm_eps")?;
        let sizes = Sizes::from_fields(fields, &Defaults::default())?;
        sizes.require_intermediate(fields.name("intermediate_size"))?;
        let rope = Rope::from_fields(fields, &RopeDefaults::usual(sizes.head_dim, sizes.max_position_embeddings))?;
        let attention_bias = fields.find_flag("attention_bias")?.unwrap_or(false);
        fields.finish()?;
        Ok(Self { sizes, rope, attention_bias })
    }
}

fn from_gguf(gguf: &Gguf, keys: &Keys<'_>) -> Result<Recorded, ModelError> {
    record(&Config::from_keys(keys)?, Weights::of_gguf(gguf))
}

fn from_folder(folder: &Folder, fields: &Fields<'_>) -> Result<Recorded, ModelError> {
    record(&Config::from_fields(fields)?, Weights::of_folder(folder, NAMES))
}

/// Records the program of one pass.
fn record(cfg: &Config, weights: Weights<'_>) -> Result<Recorded, ModelError> {
    let bias = Bias::stated(cfg.attention_bias);
    let parts = AttentionParts { qkv_bias: bias, output_bias: bias, norms: QkNorms::Whole, gated: false };
    let spec = AttentionSpec::usual(&cfg.sizes, RopeLayout::Halves);
    let mut d = Decoder::new(weights, &cfg.sizes);
    let rope_table = d.rope_table("rope.inv_freq", &cfg.rope)?; // [rows, rotary_dim]
    let mut x = d.embed(); // [rows, hidden_size]
    for layer in 0..cfg.sizes.num_hidden_layers {
        d.b.set_layer(Some(layer));
        let w = AttentionWeights::declare(&mut d.b, &mut d.weights, &cfg.sizes, layer, parts);
        let h = d.attention(layer, x, rope_table, &w, &spec);
        let h = d.norm_assign(layer, "post_attention_norm", h);
        x = d.b.add_assign(x, h);
        let h = d.dense_mlp(layer, x, Activation::Silu, Bias::No);
        let h = d.norm_assign(layer, "post_ffw_norm", h);
        x = d.b.add_assign(x, h);
    }
    d.finish(x, Head::default())
}
