//! Dense decoders with grouped-query attention: Llama, Mistral, OLMo 2, Phi-3, Qwen2, Qwen3.

use super::{plain, window_of};
use crate::estimate::{
    AttentionShape, Config, EstimateError, FeedForward, LayerShape, Mixer, ModelShape, Parameters, config::divisible,
};

pub(super) fn llama(config: &Config<'_>) -> Result<ModelShape, EstimateError> {
    let bias = config.flag("attention_bias")?;
    dense(config, AttentionShape { qkv_bias: bias, output_bias: bias, ..attention(config)? }, |_| "full_attention")
}

/// The whole of q and of k is normed, with a weight for each element.
pub(super) fn olmo2(config: &Config<'_>) -> Result<ModelShape, EstimateError> {
    let bias = config.flag("attention_bias")?;
    let attention = AttentionShape { qkv_bias: bias, output_bias: bias, ..attention(config)? };
    let heads = attention.heads.saturating_add(attention.kv_heads);
    let mut shape = dense(config, attention, |_| "full_attention")?;
    for layer in &mut shape.layers {
        layer.extra.vectors = (heads as u64).saturating_mul(attention.head_dim as u64);
    }
    Ok(shape)
}

/// Projections are stored in one piece, which changes no sum; the window is that of every layer.
pub(super) fn phi3(config: &Config<'_>) -> Result<ModelShape, EstimateError> {
    mistral(config)
}

pub(super) fn mistral(config: &Config<'_>) -> Result<ModelShape, EstimateError> {
    let windowed = config.optional_size("sliding_window")?.is_some();
    dense(config, attention(config)?, |_| if windowed { "sliding_attention" } else { "full_attention" })
}

pub(super) fn qwen2(config: &Config<'_>) -> Result<ModelShape, EstimateError> {
    let (windowed, first) = qwen_windows(config)?;
    dense(config, AttentionShape { qkv_bias: true, ..attention(config)? }, |layer| qwen_type(windowed, first, layer))
}

pub(super) fn qwen3(config: &Config<'_>) -> Result<ModelShape, EstimateError> {
    let (windowed, first) = qwen_windows(config)?;
    dense(config, qwen3_attention(config)?, |layer| qwen_type(windowed, first, layer))
}

/// Attention of Qwen3 and its mixture-of-experts form.
pub(super) fn qwen3_attention(config: &Config<'_>) -> Result<AttentionShape, EstimateError> {
    let bias = config.flag("attention_bias")?;
    Ok(AttentionShape { qk_norm: true, qkv_bias: bias, output_bias: bias, ..attention(config)? })
}

/// Heads as every config of these families names them.
pub(super) fn attention(config: &Config<'_>) -> Result<AttentionShape, EstimateError> {
    let heads = config.required("num_attention_heads")?;
    let kv_heads = config.size_or("num_key_value_heads", heads)?;
    divisible(("num_attention_heads", heads), ("num_key_value_heads", kv_heads))?;
    Ok(AttentionShape::new(heads, kv_heads, config.head_dim()?))
}

/// Qwen windows the layers from `max_window_layers` on, and none unless told to.
fn qwen_windows(config: &Config<'_>) -> Result<(bool, usize), EstimateError> {
    Ok((config.flag("use_sliding_window")?, config.or("max_window_layers", 28)?))
}

fn qwen_type(windowed: bool, first: usize, layer: usize) -> &'static str {
    if windowed && layer >= first { "sliding_attention" } else { "full_attention" }
}

fn dense<'a>(
    config: &Config<'a>,
    attention: AttentionShape,
    default_type: impl Fn(usize) -> &'a str,
) -> Result<ModelShape, EstimateError> {
    let feed_forward = FeedForward::dense(config.required("intermediate_size")?);
    let layers = config.layer_types(default_type)?.into_iter().enumerate().map(|(layer, layer_type)| {
        let window = window_of(config, layer, layer_type, "sliding_window")?;
        let mixer = Mixer::Attention(AttentionShape { window, ..attention });
        Ok(LayerShape { mixer, feed_forward, norms: 2, extra: Parameters::default() })
    });
    plain(config, false, layers.collect::<Result<_, _>>()?)
}
