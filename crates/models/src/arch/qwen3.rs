//! Qwen3 dense decoder: GQA, RMSNorm on each q and k head before RoPE, SwiGLU. arXiv:2505.09388.

use super::{Recorded, qwen2::Config, registry::Entry};
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
    },
};
use plimsoll_program::{Activation, RopeLayout};

pub(super) const ENTRY: Entry =
    Entry { gguf: &["qwen3"], model_types: &["qwen3"], classes: &["Qwen3ForCausalLM"], from_gguf, from_folder };

/// Width of a head where `config.json` does not say, as the class in `transformers` has it.
const HEAD_DIM: usize = 128;

fn from_gguf(gguf: &Gguf, keys: &Keys<'_>) -> Result<Recorded, ModelError> {
    record(&Config::from_keys(keys)?, Weights::of_gguf(gguf), Bias::IfPresent)
}

fn from_folder(folder: &Folder, fields: &Fields<'_>) -> Result<Recorded, ModelError> {
    let config = Config::from_fields(fields, Some(HEAD_DIM))?;
    let bias = fields.find_flag("attention_bias")?.unwrap_or(false);
    fields.finish()?;
    record(&config, Weights::of_folder(folder, &[]), Bias::stated(bias))
}

/// Records the program of one pass.
fn record(cfg: &Config, weights: Weights<'_>, bias: Bias) -> Result<Recorded, ModelError> {
    let mut d = Decoder::new(weights, &cfg.sizes);
    let rope_table = d.rope_table("rope.inv_freq", &cfg.rope)?; // [rows, rotary_dim]
    let mut x = d.embed(); // [rows, hidden_size]
    let parts = AttentionParts { qkv_bias: bias, output_bias: bias, norms: QkNorms::Heads, gated: false };
    let layer_of = PreNorm { parts, mlp_bias: Bias::No, activation: Activation::Silu, layout: RopeLayout::Halves };
    for (layer, &window) in cfg.windows.iter().enumerate() {
        x = d.pre_norm_layer(layer, x, rope_table, &layer_of, window);
    }
    d.finish(x, Head::default())
}
