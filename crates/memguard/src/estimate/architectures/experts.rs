//! Mixtures of experts over grouped-query attention: Qwen3-MoE, gpt-oss, Llama 4.

use super::dense::{attention, qwen3_attention};
use super::{plain, window_of};
use crate::estimate::{
    AttentionShape, Config, EstimateError, ExpertsShape, FeedForward, LayerShape, Mixer, ModelShape, Parameters,
};

pub(super) fn qwen3_moe(config: &Config<'_>) -> Result<ModelShape, EstimateError> {
    let attention = qwen3_attention(config)?;
    let layers = (0..config.layers()?).map(|layer| {
        let feed_forward = qwen_feed_forward(config, layer, 0)?;
        Ok(LayerShape { mixer: Mixer::Attention(attention), feed_forward, norms: 2, extra: Parameters::default() })
    });
    plain(config, false, layers.collect::<Result<_, _>>()?)
}

/// Qwen's choice per layer: experts on every `decoder_sparse_step`-th layer that `mlp_only_layers` does not name.
pub(super) fn qwen_feed_forward(
    config: &Config<'_>,
    layer: usize,
    shared_width: usize,
) -> Result<FeedForward, EstimateError> {
    let experts = config.or("num_experts", 0)?;
    let step = config.positive_or("decoder_sparse_step", 1)?;
    let dense_only = config.numbers("mlp_only_layers").is_some_and(|layers| layers.contains(&(layer as u64)));
    if experts == 0 || dense_only || !(layer + 1).is_multiple_of(step) {
        return Ok(FeedForward::dense(config.required("intermediate_size")?));
    }
    let routed = ExpertsShape {
        experts,
        used: config.required("num_experts_per_tok")?,
        width: config.required("moe_intermediate_size")?,
        bias: false,
    };
    Ok(FeedForward { dense_width: shared_width, dense_gate: shared_width > 0, routed: Some(routed) })
}

pub(super) fn gpt_oss(config: &Config<'_>) -> Result<ModelShape, EstimateError> {
    let bias = config.value("attention_bias").is_none() || config.flag("attention_bias");
    let attention = AttentionShape { qkv_bias: bias, output_bias: bias, sinks: true, ..attention(config)? };
    let window = config.optional("sliding_window")?;
    let routed = ExpertsShape {
        experts: config.required("num_local_experts")?,
        used: config.required("num_experts_per_tok")?,
        width: config.required("intermediate_size")?,
        bias: true,
    };
    let types = config.layer_types(|layer| if layer % 2 == 0 { "sliding_attention" } else { "full_attention" })?;
    let layers = types.into_iter().enumerate().map(|(layer, layer_type)| {
        let mixer = Mixer::Attention(AttentionShape { window: window_of(layer, layer_type, window)?, ..attention });
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
    let window = config.optional("attention_chunk_size")?;
    let interval = config.positive_or("no_rope_layer_interval", 4)?;
    let step = config.positive_or("interleave_moe_layer_step", 1)?;
    let listed = config.numbers("moe_layers");
    let width = config.required("intermediate_size")?;
    let routed = ExpertsShape {
        experts: config.required("num_local_experts")?,
        used: config.or("num_experts_per_tok", 1)?,
        width,
        bias: false,
    };
    let types = config.layer_types(|layer| {
        if (layer + 1).is_multiple_of(interval) { "full_attention" } else { "chunked_attention" }
    })?;
    let layers = types.into_iter().enumerate().map(|(layer, layer_type)| {
        let mixer = Mixer::Attention(AttentionShape { window: window_of(layer, layer_type, window)?, ..attention });
        let has_experts = match &listed {
            Some(layers) => layers.contains(&(layer as u64)),
            None => (layer + 1).is_multiple_of(step),
        };
        let feed_forward = if has_experts {
            FeedForward { dense_width: width, dense_gate: false, routed: Some(routed) }
        } else {
            FeedForward::dense(config.or("intermediate_size_mlp", width)?)
        };
        Ok(LayerShape { mixer, feed_forward, norms: 2, extra: Parameters::default() })
    });
    plain(config, false, layers.collect::<Result<_, _>>()?)
}
