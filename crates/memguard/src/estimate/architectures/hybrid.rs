//! Qwen3-Next, Qwen3.5 and 3.6: gated delta-net layers with full attention at every fourth place.

use super::dense::attention;
use super::experts::{qwen_experts, qwen_feed_forward};
use super::plain;
use crate::estimate::{
    AttentionShape, Config, EstimateError, ExpertsShape, LayerShape, Mixer, ModelShape, Parameters, RecurrentShape,
    config::divisible,
};

/// Without experts.
pub(super) fn dense(config: &Config<'_>) -> Result<ModelShape, EstimateError> {
    hybrid(config, None)
}

/// With experts, beside a shared one.
pub(super) fn sparse(config: &Config<'_>) -> Result<ModelShape, EstimateError> {
    hybrid(config, qwen_experts(config)?)
}

fn hybrid(config: &Config<'_>, routed: Option<ExpertsShape>) -> Result<ModelShape, EstimateError> {
    let full = Mixer::Attention(AttentionShape { qk_norm: true, has_output_gate: true, ..attention(config)? });
    let key_heads = config.required("linear_num_key_heads")?;
    let value_heads = config.required("linear_num_value_heads")?;
    divisible(("linear_num_value_heads", value_heads), ("linear_num_key_heads", key_heads))?;
    let recurrent = Mixer::Recurrent(RecurrentShape {
        key_heads,
        value_heads,
        key_head_dim: config.required("linear_key_head_dim")?,
        value_head_dim: config.required("linear_value_head_dim")?,
        conv_kernel: config.size_or("linear_conv_kernel_dim", 4)?,
    });
    let interval = config.size_or("full_attention_interval", 4)?;
    let shared_width = config.or("shared_expert_intermediate_size", 0)?;
    let types =
        config.layer_types(
            |layer| if (layer + 1).is_multiple_of(interval) { "full_attention" } else { "linear_attention" },
        )?;
    let layers = types.into_iter().enumerate().map(|(layer, layer_type)| {
        let mixer = match layer_type {
            "full_attention" => full,
            "linear_attention" => recurrent,
            name => return Err(EstimateError::LayerType { layer, name: name.to_owned() }),
        };
        let feed_forward = qwen_feed_forward(config, layer, routed, shared_width)?;
        Ok(LayerShape { mixer, feed_forward, norms: 2, extra: Parameters::default() })
    });
    plain(config, false, layers.collect::<Result<_, _>>()?)
}
