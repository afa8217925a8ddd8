//! DeepSeek V2, V3 and V3.2: latent attention, then experts after a few dense layers.

use super::{plain, routed};
use crate::estimate::{
    Config, EstimateError, FeedForward, IndexerShape, LatentShape, LayerShape, Mixer, ModelShape, Parameters,
};

pub(super) fn latent(config: &Config<'_>) -> Result<ModelShape, EstimateError> {
    let indexer = match config.optional_size("index_head_dim")? {
        None => None,
        Some(head_dim) => Some(IndexerShape {
            heads: config.required("index_n_heads")?,
            head_dim,
            top_k: config.required("index_topk")?,
        }),
    };
    let mixer = Mixer::Latent(LatentShape {
        heads: config.required("num_attention_heads")?,
        q_lora_rank: config.optional_size("q_lora_rank")?,
        kv_lora_rank: config.required("kv_lora_rank")?,
        qk_nope_head_dim: config.required("qk_nope_head_dim")?,
        qk_rope_head_dim: config.required("qk_rope_head_dim")?,
        v_head_dim: config.required("v_head_dim")?,
        indexer,
    });
    let first = config.or("first_k_dense_replace", 0)?;
    let every = config.size_or("moe_layer_freq", 1)?;
    let layers = (0..config.layers()?).map(|layer| {
        let feed_forward = if layer < first || !layer.is_multiple_of(every) {
            FeedForward::dense(config.required("intermediate_size")?)
        } else {
            experts(config)?
        };
        Ok(LayerShape { mixer, feed_forward, norms: 2, extra: Parameters::default() })
    });
    plain(config, false, layers.collect::<Result<_, _>>()?)
}

/// Routed experts beside shared ones of the same width.
pub(super) fn experts(config: &Config<'_>) -> Result<FeedForward, EstimateError> {
    let routed = routed(config, "n_routed_experts")?;
    let dense_width = config.or("n_shared_experts", 0)?.saturating_mul(routed.width);
    Ok(FeedForward { dense_width, dense_gate: false, routed: Some(routed) })
}
