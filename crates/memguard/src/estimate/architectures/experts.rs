//! Mixtures of experts over grouped-query attention: Qwen3-MoE, gpt-oss, Llama 4.

use super::dense::{attention, qwen3_attention};
use super::{plain, routed, used, window_of};
use crate::estimate::{
    AttentionShape, Config, EstimateError, ExpertsShape, FeedForward, LayerShape, Mixer, ModelShape, Parameters,
    config::missing,
};

pub(super) fn qwen3_moe(config: &Config<'_>) -> Result<ModelShape, EstimateError> {
    let attention = qwen3_attention(config)?;
    let layers = (0..config.layers()?).map(|layer| {
        let feed_forward = qwen_feed_forward(config, layer, qwen_experts(config)?, 0)?;
        Ok(LayerShape { mixer: Mixer::Attention(attention), feed_forward, norms: 2, extra: Parameters::default() })
    });
    plain(config, false, layers.collect::<Result<_, _>>()?)
}

/// Qwen's experts; its classes take a count of 0 for a dense model. Files of transformers 5 have the count under the other name.
pub(super) fn qwen_experts(config: &Config<'_>) -> Result<Option<ExpertsShape>, EstimateError> {
    let field = if config.value("num_local_experts").is_some() { "num_local_experts" } else { "num_experts" };
    match config.optional(field)? {
        None => Err(missing(field)),
        Some(0) => Ok(None),
        Some(_) => Ok(Some(routed(config, field)?)),
    }
}

/// Qwen's choice per layer: experts on every `decoder_sparse_step`-th layer that `mlp_only_layers` does not name.
pub(super) fn qwen_feed_forward(
    config: &Config<'_>,
    layer: usize,
    routed: Option<ExpertsShape>,
    shared_width: usize,
) -> Result<FeedForward, EstimateError> {
    let step = config.size_or("decoder_sparse_step", 1)?;
    let dense_only = config.numbers("mlp_only_layers")?.is_some_and(|layers| layers.contains(&(layer as u64)));
    let Some(routed) = routed.filter(|_| !dense_only && (layer + 1).is_multiple_of(step)) else {
        return Ok(FeedForward::dense(config.required("intermediate_size")?));
    };
    Ok(FeedForward { dense_width: shared_width, dense_gate: shared_width > 0, routed: Some(routed) })
}

pub(super) fn gpt_oss(config: &Config<'_>) -> Result<ModelShape, EstimateError> {
    let bias = config.value("attention_bias").is_none() || config.flag("attention_bias")?;
    let attention = AttentionShape { qkv_bias: bias, output_bias: bias, sinks: true, ..attention(config)? };
    let experts = config.required("num_local_experts")?;
    let used = used(config, "num_experts_per_tok", ("num_local_experts", experts))?;
    let used = used.ok_or_else(|| missing("num_experts_per_tok"))?;
    let routed = ExpertsShape { experts, used, width: config.required("intermediate_size")?, bias: true };
    let types = config.layer_types(|layer| if layer % 2 == 0 { "sliding_attention" } else { "full_attention" })?;
    let layers = types.into_iter().enumerate().map(|(layer, layer_type)| {
        let mixer = Mixer::Attention(AttentionShape {
            window: window_of(config, layer, layer_type, "sliding_window")?,
            ..attention
        });
        let feed_forward = FeedForward { routed: Some(routed), ..FeedForward::default() };
        Ok(LayerShape { mixer, feed_forward, norms: 2, extra: Parameters::default() })
    });
    plain(config, false, layers.collect::<Result<_, _>>()?)
}

/// Layers with rotary positions attend within chunks of `attention_chunk_size`; every fourth sees all.
///
/// A query sees at most one chunk, so the chunk is charged as a window.
pub(super) fn llama4(config: &Config<'_>) -> Result<ModelShape, EstimateError> {
    let attention = attention(config)?;
    let interval = config.size_or("no_rope_layer_interval", 4)?;
    let step = config.size_or("interleave_moe_layer_step", 1)?;
    let listed = config.numbers("moe_layers")?;
    let width = config.required("intermediate_size")?;
    let dense_width = config.size_or("intermediate_size_mlp", width)?;
    let experts = config.required("num_local_experts")?;
    let used = used(config, "num_experts_per_tok", ("num_local_experts", experts))?.unwrap_or(1);
    let routed = ExpertsShape { experts, used, width, bias: false };
    let types = config.layer_types(|layer| {
        if (layer + 1).is_multiple_of(interval) { "full_attention" } else { "chunked_attention" }
    })?;
    let layers = types.into_iter().enumerate().map(|(layer, layer_type)| {
        let mixer = Mixer::Attention(AttentionShape {
            window: window_of(config, layer, layer_type, "attention_chunk_size")?,
            ..attention
        });
        let has_experts = match &listed {
            Some(layers) => layers.contains(&(layer as u64)),
            None => (layer + 1).is_multiple_of(step),
        };
        let feed_forward = if has_experts {
            FeedForward { dense_width: width, dense_gate: false, routed: Some(routed) }
        } else {
            FeedForward::dense(dense_width)
        };
        Ok(LayerShape { mixer, feed_forward, norms: 2, extra: Parameters::default() })
    });
    plain(config, false, layers.collect::<Result<_, _>>()?)
}
