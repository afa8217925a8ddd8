//! The built-in rules, one file per family. Fields and defaults follow the configuration classes of Hugging Face's
//! `transformers` 5.24.

mod deepseek;
mod deepseek_v4;
mod dense;
mod experts;
mod gemma;
mod hybrid;

use super::{
    ClosedForm, Config, Estimate, EstimateError, EstimateSettings, LayerShape, ModelShape, Parameters, Registry,
    StorageFormat, WeightFormats,
};

type ShapeRule = fn(&Config<'_>) -> Result<ModelShape, EstimateError>;

const RULES: [(&str, ShapeRule); 27] = [
    ("llama", dense::llama),
    ("mistral", dense::mistral),
    ("olmo2", dense::olmo2),
    ("phi3", dense::phi3),
    ("qwen2", dense::qwen2),
    ("qwen3", dense::qwen3),
    ("qwen3_moe", experts::qwen3_moe),
    ("gpt_oss", experts::gpt_oss),
    ("llama4", experts::llama4),
    ("llama4_text", experts::llama4),
    ("gemma3", gemma::gemma3),
    ("gemma3_text", gemma::gemma3),
    ("gemma4", gemma::gemma4),
    ("gemma4_text", gemma::gemma4),
    ("gemma4_unified", gemma::gemma4),
    ("qwen3_next", hybrid::hybrid),
    ("qwen3_5", hybrid::hybrid),
    ("qwen3_5_text", hybrid::hybrid),
    ("qwen3_5_moe", hybrid::hybrid),
    ("qwen3_5_moe_text", hybrid::hybrid),
    // Qwen3.6 ships with the classes of 3.5.
    ("qwen3_6", hybrid::hybrid),
    ("qwen3_6_moe", hybrid::hybrid),
    ("deepseek_v2", deepseek::latent),
    ("deepseek_v3", deepseek::latent),
    ("kimi_k2", deepseek::latent),
    ("deepseek_v32", deepseek::latent),
    ("deepseek_v4", deepseek_v4::compressed),
];

pub(super) fn register_all(registry: &mut Registry) {
    for (name, rule) in RULES {
        registry.register(name, move |config: &Config<'_>, settings: &EstimateSettings| {
            let formats = settings.weights.unwrap_or_else(|| stored_formats(config));
            let settings = EstimateSettings { weights: Some(formats), ..*settings };
            Ok(Estimate::closed_form(ClosedForm::new(rule(config)?, settings)))
        });
    }
}

/// How the weights of a checkpoint with this config are held once loaded: matrices as stored, vectors widened to f32.
fn stored_formats(config: &Config<'_>) -> WeightFormats {
    let dtype = ["dtype", "torch_dtype"].into_iter().find_map(|field| config.value(field)?.as_str());
    let plain = match dtype {
        Some("float32") => StorageFormat::F32,
        _ => StorageFormat::BF16,
    };
    let formats = WeightFormats { vectors: StorageFormat::F32, ..WeightFormats::all(plain) };
    let method =
        config.value("quantization_config").and_then(|quantization| quantization.get("quant_method")?.as_str());
    match method {
        Some("mxfp4") => WeightFormats { experts: StorageFormat::MXFP4, ..formats },
        Some("fp8") => WeightFormats { linear: StorageFormat::FP8, experts: StorageFormat::FP8, ..formats },
        _ => formats,
    }
}

/// A model whose residual stream is single and whose parameters are all in its layers, tables and norms.
fn plain(config: &Config<'_>, tied_by_default: bool, layers: Vec<LayerShape>) -> Result<ModelShape, EstimateError> {
    Ok(ModelShape {
        hidden_size: config.required("hidden_size")?,
        vocab_size: config.required("vocab_size")?,
        tie_word_embeddings: config
            .value("tie_word_embeddings")
            .map_or(tied_by_default, |_| config.flag("tie_word_embeddings")),
        residual_streams: 1,
        layers,
        extra: Parameters::default(),
    })
}

/// Window of a layer of `layer_type`: none, or `window`.
fn window_of(layer: usize, layer_type: &str, window: Option<usize>) -> Result<Option<usize>, EstimateError> {
    match layer_type {
        "full_attention" => Ok(None),
        "sliding_attention" | "chunked_attention" => Ok(window),
        name => Err(EstimateError::LayerType { layer, name: name.to_owned() }),
    }
}
