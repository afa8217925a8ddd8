//! Gemma 3 and 4: window layers with a full one at every sixth place.

use super::dense::attention;
use super::{plain, used, window_of};
use crate::estimate::{
    AttentionShape, Config, EstimateError, ExpertsShape, FeedForward, LayerShape, Mixer, ModelShape, Parameters,
    config::{at_most, divisible, missing},
};

pub(super) fn gemma3(config: &Config<'_>) -> Result<ModelShape, EstimateError> {
    let bias = config.flag("attention_bias")?;
    let attention = AttentionShape { qk_norm: true, qkv_bias: bias, output_bias: bias, ..attention(config)? };
    let feed_forward = FeedForward::dense(config.required("intermediate_size")?);
    let pattern = config.size_or("sliding_window_pattern", 6)?;
    let layers = layer_types(config, pattern)?.into_iter().enumerate().map(|(layer, layer_type)| {
        let mixer = Mixer::Attention(AttentionShape {
            window: window_of(config, layer, layer_type, "sliding_window")?,
            ..attention
        });
        Ok(LayerShape { mixer, feed_forward, norms: 4, extra: Parameters::default() })
    });
    plain(config, true, layers.collect::<Result<_, _>>()?)
}

/// Gemma 4: full layers have heads of their own width, the last layers share the KV of earlier ones, small models add an
/// embedding per layer, large ones experts beside the dense network.
pub(super) fn gemma4(config: &Config<'_>) -> Result<ModelShape, EstimateError> {
    let count = config.layers()?;
    let hidden_size = config.required("hidden_size")?;
    let per_layer = config.or("hidden_size_per_layer_input", 0)?;
    let mut types = layer_types(config, 6)?;
    if let Some(last) = types.last_mut() {
        *last = "full_attention";
    }
    let sharing = config.or("num_kv_shared_layers", 0)?;
    let first_shared = count - at_most(("num_kv_shared_layers", sharing), ("num_hidden_layers", count))?;
    let layers = types.into_iter().enumerate().map(|(layer, layer_type)| {
        let shared = layer >= first_shared;
        let attention = gemma4_attention(config, layer, layer_type)?;
        let double = if shared && config.flag("use_double_wide_mlp")? { 2 } else { 1 };
        let routed = gemma4_experts(config)?;
        let feed_forward = FeedForward {
            dense_width: config.required("intermediate_size")?.saturating_mul(double),
            dense_gate: false,
            routed,
        };
        // One scale per layer, and the router's own: one per hidden element and expert.
        let router = routed.map_or(0, |routed| hidden_size.saturating_add(routed.experts));
        let extra = Parameters {
            linear: (2 * per_layer as u64).saturating_mul(hidden_size as u64),
            vectors: router as u64,
            ..Parameters::default()
        };
        let norms = 4 + usize::from(per_layer > 0) + if routed.is_some() { 3 } else { 0 };
        let mixer = Mixer::Attention(AttentionShape { holds_kv: !shared, ..attention });
        Ok(LayerShape { mixer, feed_forward, norms, extra })
    });
    let mut shape = plain(config, true, layers.collect::<Result<_, _>>()?)?;
    let all_layers = (count as u64).saturating_mul(per_layer as u64);
    let vocab = config.size_or("vocab_size_per_layer_input", shape.vocab_size)? as u64;
    shape.extra = Parameters {
        linear: all_layers.saturating_mul(hidden_size as u64),
        embedding: all_layers.saturating_mul(vocab),
        vectors: per_layer as u64,
        ..Parameters::default()
    };
    Ok(shape)
}

fn gemma4_attention(config: &Config<'_>, layer: usize, layer_type: &str) -> Result<AttentionShape, EstimateError> {
    let base = AttentionShape { qk_norm: true, ..attention(config)? };
    let window = window_of(config, layer, layer_type, "sliding_window")?;
    if window.is_some() {
        return Ok(AttentionShape { window, ..base });
    }
    let keys_are_values = config.flag("attention_k_eq_v")?;
    let field = "num_global_key_value_heads";
    let kv_heads = if keys_are_values { config.size_or(field, base.kv_heads)? } else { base.kv_heads };
    divisible(("num_attention_heads", base.heads), (field, kv_heads))?;
    let head_dim = config.size_or("global_head_dim", 512)?;
    Ok(AttentionShape { head_dim, kv_heads, has_v_proj: !keys_are_values, ..base })
}

fn gemma4_experts(config: &Config<'_>) -> Result<Option<ExpertsShape>, EstimateError> {
    let field = "num_experts";
    let declared = config.flag("enable_moe_block")?;
    let experts = if declared { config.required(field)? } else { config.or(field, 0)? };
    if experts == 0 {
        return Ok(None);
    }
    let own = used(config, "top_k_experts", (field, experts))?;
    let usual = used(config, "num_experts_per_tok", (field, experts))?;
    let used = own.or(usual).ok_or_else(|| missing("top_k_experts"))?;
    Ok(Some(ExpertsShape { experts, used, width: config.required("moe_intermediate_size")?, bias: false }))
}

fn layer_types<'a>(config: &Config<'a>, pattern: usize) -> Result<Vec<&'a str>, EstimateError> {
    config.layer_types(|layer| if (layer + 1).is_multiple_of(pattern) { "full_attention" } else { "sliding_attention" })
}
