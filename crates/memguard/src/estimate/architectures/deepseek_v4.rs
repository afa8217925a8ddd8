//! DeepSeek V4: a window of shared keys in every layer, beside compressed pools at two ratios.

use serde_json::Value;

use super::deepseek::experts;
use super::plain;
use crate::estimate::{
    CompressedShape, Config, EstimateError, IndexerShape, LayerShape, Mixer, ModelShape, Parameters, PoolShape,
    config::{bad, divisible},
};

const SPARSE: &str = "compressed_sparse_attention";
const HEAVY: &str = "heavily_compressed_attention";
const WINDOW: &str = "sliding_attention";

pub(super) fn compressed(config: &Config<'_>) -> Result<ModelShape, EstimateError> {
    let heads = config.required("num_attention_heads")?;
    divisible(("num_attention_heads", heads), ("o_groups", config.required("o_groups")?))?;
    let base = CompressedShape {
        heads,
        head_dim: config.required("head_dim")?,
        q_lora_rank: config.required("q_lora_rank")?,
        o_groups: config.required("o_groups")?,
        o_lora_rank: config.required("o_lora_rank")?,
        window: config.required("sliding_window")?,
        pool: None,
    };
    let indexer = IndexerShape {
        heads: config.required("index_n_heads")?,
        head_dim: config.required("index_head_dim")?,
        top_k: config.required("index_topk")?,
    };
    let rates = match config.value("compress_rates") {
        None => Config::new(&Value::Null),
        Some(rates @ Value::Object(_)) => Config::new(rates),
        Some(other) => return Err(bad("compress_rates", other, "an object with a ratio for each kind of layer")),
    };
    let ratio = |layer_type: &str, default: usize| {
        let ratio = rates.size_or(layer_type, default);
        ratio.map_err(|error| error.with_fields(|field| format!("compress_rates.{field}")))
    };
    let sparse = PoolShape { ratio: ratio(SPARSE, 4)?, indexer: Some(indexer) };
    let heavy = PoolShape { ratio: ratio(HEAVY, 128)?, indexer: None };
    let streams = config.size_or("hc_mult", 1)?;
    let hidden_size = config.required("hidden_size")?;
    let feed_forward = experts(config)?;
    let layers = layer_types(config)?.into_iter().enumerate().map(|(layer, layer_type)| {
        let pool = match layer_type {
            WINDOW => None,
            SPARSE => Some(sparse),
            HEAVY => Some(heavy),
            name => return Err(EstimateError::LayerType { layer, name: name.to_owned() }),
        };
        let mixer = Mixer::Compressed(CompressedShape { pool, ..base });
        Ok(LayerShape { mixer, feed_forward, norms: 2, extra: hyper_connections(streams, hidden_size) })
    });
    let mut shape = plain(config, false, layers.collect::<Result<_, _>>()?)?;
    shape.residual_streams = streams;
    let streams = streams as u64;
    shape.extra = Parameters {
        linear: streams.saturating_mul(streams).saturating_mul(hidden_size as u64),
        vectors: streams.saturating_add(1),
        ..Parameters::default()
    };
    Ok(shape)
}

/// Older configs list a ratio per layer (0, 4, 128) in place of a type.
fn layer_types<'a>(config: &Config<'a>) -> Result<Vec<&'a str>, EstimateError> {
    let listed = config.numbers("compress_ratios")?;
    let (field, layers) = ("compress_ratios", config.layers()?);
    // Layers that guess further tokens are listed behind the decoder's own.
    if let Some(listed) = listed.as_ref().filter(|listed| listed.len() < layers) {
        return Err(EstimateError::LayerCount { field: field.to_owned(), layers, listed: listed.len() });
    }
    let default = |layer: usize| match listed.as_ref().and_then(|ratios| ratios.get(layer)) {
        Some(0) => WINDOW,
        Some(4) => SPARSE,
        Some(_) => HEAVY,
        // Two heavily compressed layers first, then both kinds in turn.
        None if layer >= 2 && layer % 2 == 1 => SPARSE,
        None => HEAVY,
    };
    config.layer_types(default)
}

/// Two connections per layer: the mix of `streams` residual streams before and after mixer and feed-forward network.
fn hyper_connections(streams: usize, hidden_size: usize) -> Parameters {
    let streams = streams as u64;
    let outputs = (2 + streams).saturating_mul(streams);
    Parameters {
        linear: outputs.saturating_mul(streams).saturating_mul(hidden_size as u64).saturating_mul(2),
        vectors: outputs.saturating_add(3).saturating_mul(2),
        ..Parameters::default()
    }
}
