//! Qwen3.5 decoder, the part that reads text: Qwen3-Next with its projections apart, dense or with experts.
//!
//! As `transformers` 5.24 and llama.cpp compute it. The rotation by sections of images is the plain one where there are none. llama.cpp's files
//! have the value heads of a delta net in another order than folders.

use super::{
    Recorded,
    qwen3_next::{Config, NAMES, Projections, record},
    registry::Entry,
    sizes::refuse_quantized,
};
use crate::{
    checkpoint::{Fields, Folder, Keys, weights::Weights},
    error::ModelError,
    gguf::Gguf,
    layers::moe::config::MoeConfig,
};

/// Dense feed-forward blocks.
pub(super) const DENSE: Entry = Entry {
    gguf: &["qwen35"],
    model_types: &["qwen3_5", "qwen3_5_text"],
    classes: &["Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"],
    from_gguf: |gguf, keys| from_gguf(gguf, keys, false),
    from_folder: |folder, fields| from_folder(folder, fields, false),
};

/// Experts in every layer.
pub(super) const EXPERTS: Entry = Entry {
    gguf: &["qwen35moe"],
    model_types: &["qwen3_5_moe", "qwen3_5_moe_text"],
    classes: &["Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"],
    from_gguf: |gguf, keys| from_gguf(gguf, keys, true),
    from_folder: |folder, fields| from_folder(folder, fields, true),
};

fn from_gguf(gguf: &Gguf, keys: &Keys<'_>, moe: bool) -> Result<Recorded, ModelError> {
    record(&Config::from_keys(keys, moe, Projections::Apart)?, Weights::of_gguf(gguf))
}

fn from_folder(folder: &Folder, fields: &Fields<'_>, moe: bool) -> Result<Recorded, ModelError> {
    let nested = fields.object("text_config")?;
    if nested.is_some() {
        refuse_quantized(fields)?;
    }
    let text = nested.as_ref().unwrap_or(fields);
    text.find_choice("model_type", if moe { EXPERTS.model_types } else { DENSE.model_types })?;
    let mut cfg = Config::from_fields(text, if moe { 2 } else { 4 }, Projections::Apart)?;
    // Numbers of layers and the like that only guess further tokens.
    text.skip(&["mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mlp_only_layers"]);
    if moe {
        cfg.moe = MoeConfig::from_fields(text, true, true)?;
    }
    if nested.is_some() {
        text.finish()?;
        // What stands beside it is of images, but for this.
        if let Some(tied) = fields.find_flag("tie_word_embeddings")? {
            cfg.sizes.tie_word_embeddings = tied;
        }
        fields.skip(&["vision_config", "dtype", "torch_dtype"]);
    }
    fields.finish()?;
    let mut weights = Weights::of_folder(folder, NAMES);
    weights.ignore(&["model.visual.", "visual."]);
    record(&cfg, weights)
}
