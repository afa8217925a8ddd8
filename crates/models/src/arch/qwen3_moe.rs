//! Qwen3 mixture-of-experts decoder: Qwen3's attention, and experts chosen by a softmax over all of them. arXiv:2505.09388.

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
        moe::config::{MoeConfig, SparseLayers},
        rope::{Rope, fields::RopeDefaults},
    },
};
use plimsoll_program::RopeLayout;

pub(super) const ENTRY: Entry = Entry {
    gguf: &["qwen3moe"],
    model_types: &["qwen3_moe"],
    classes: &["Qwen3MoeForCausalLM"],
    from_gguf,
    from_folder,
};

/// Hyperparameters.
struct Config {
    sizes: Sizes,
    rope: Rope,
    moe: Option<MoeConfig>,
    sparse: SparseLayers,
    attention_bias: Bias,
}

impl Config {
    fn from_keys(keys: &Keys<'_>) -> Result<Self, ModelError> {
        let sizes = Sizes::from_keys(keys)?;
        usual_scale(keys, sizes.head_dim)?;
        let rope = Rope::from_keys(keys, sizes.head_dim, sizes.max_position_embeddings, 10_000.0)?;
        keys.neutral(&[("attention.sliding_window", &[0.0])])?;
        let moe = Some(MoeConfig::from_keys(keys, false)?);
        keys.finish()?;
        Ok(Self { sizes, rope, moe, sparse: SparseLayers::Found, attention_bias: Bias::IfPresent })
    }

    fn from_fields(fields: &Fields<'_>) -> Result<Self, ModelError> {
        fields.find_choice("hidden_act", &["silu", "swish"])?;
        fields.neutral(&[("use_sliding_window", &[0.0])])?;
        fields.skip(&["sliding_window", "max_window_layers"]);
        let sizes = Sizes::from_fields(fields, &Defaults { num_key_value_heads: Some(4), ..Defaults::default() })?;
        let rope = Rope::from_fields(fields, &RopeDefaults::usual(sizes.head_dim, sizes.max_position_embeddings))?;
        let moe = MoeConfig::from_fields(fields, false, false)?;
        let sparse = SparseLayers::from_fields(fields)?;
        let attention_bias = Bias::stated(fields.find_flag("attention_bias")?.unwrap_or(false));
        fields.finish()?;
        Ok(Self { sizes, rope, moe, sparse, attention_bias })
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
    let bias = cfg.attention_bias;
    let parts = AttentionParts { qkv_bias: bias, output_bias: bias, norms: QkNorms::Heads, gated: false };
    let spec = AttentionSpec::usual(&cfg.sizes, RopeLayout::Halves);
    let mut d = Decoder::new(weights, &cfg.sizes);
    let rope_table = d.rope_table("rope.inv_freq", &cfg.rope)?; // [rows, rotary_dim]
    let mut x = d.embed(); // [rows, hidden_size]
    for layer in 0..cfg.sizes.num_hidden_layers {
        d.b.set_layer(Some(layer));
        let w = AttentionWeights::declare(&mut d.b, &mut d.weights, &cfg.sizes, layer, parts);
        let h = d.norm(layer, "attn_norm", x);
        let h = d.attention(layer, h, rope_table, &w, &spec);
        x = d.b.add_assign(x, h);
        let h = d.norm(layer, "ffn_norm", x);
        let h = d.sparse_or_dense(layer, h, cfg.moe.as_ref(), &cfg.sparse)?;
        x = d.b.add_assign(x, h);
    }
    d.finish(x, Head::default())
}
