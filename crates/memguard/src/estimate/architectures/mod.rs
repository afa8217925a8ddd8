//! The built-in rules, one file per family. Fields and defaults follow the configuration classes of Hugging Face's
//! `transformers` 5.24.

mod deepseek;
mod deepseek_v4;
mod dense;
mod experts;
mod gemma;
mod hybrid;

use serde_json::Value;

use super::{
    ClosedForm, Config, Estimate, EstimateError, EstimateSettings, ExpertsShape, LayerShape, ModelShape, Parameters,
    Registry, StorageFormat, WeightFormats,
    config::{at_most, bad, missing},
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
    ("qwen3_next", hybrid::sparse),
    ("qwen3_5", hybrid::dense),
    ("qwen3_5_text", hybrid::dense),
    ("qwen3_5_moe", hybrid::sparse),
    ("qwen3_5_moe_text", hybrid::sparse),
    // Qwen3.6 ships with the classes of 3.5.
    ("qwen3_6", hybrid::dense),
    ("qwen3_6_moe", hybrid::sparse),
    ("deepseek_v2", deepseek::latent),
    ("deepseek_v3", deepseek::latent),
    ("kimi_k2", deepseek::latent),
    ("deepseek_v32", deepseek::latent),
    ("deepseek_v4", deepseek_v4::compressed),
];

pub(super) fn register_all(registry: &mut Registry) {
    for (name, rule) in RULES {
        registry.register(name, move |config: &Config<'_>, settings: &EstimateSettings| {
            let formats = settings.weights.map_or_else(|| stored_formats(config), Ok)?;
            let settings = EstimateSettings { weights: Some(formats), ..*settings };
            Ok(Estimate::closed_form(ClosedForm::new(rule(config)?, settings)))
        });
    }
}

/// How the weights of a checkpoint with this config are held once loaded: matrices as stored, vectors widened to f32.
fn stored_formats(config: &Config<'_>) -> Result<WeightFormats, EstimateError> {
    let dtype_field = ["dtype", "torch_dtype"].into_iter().find(|field| config.value(field).is_some());
    let plain = match dtype_field.map(|field| Ok((field, config.word(field)?))).transpose()? {
        Some((field, Some(name))) => plain_format(name)
            .ok_or_else(|| bad(field, &Value::from(name), "bfloat16, float16, float32, float64, or an 8-bit type"))?,
        _ => StorageFormat::BF16,
    };
    let formats = WeightFormats { vectors: StorageFormat::F32, ..WeightFormats::all(plain) };
    let Some(quantization) = config.value("quantization_config") else {
        return Ok(formats);
    };
    if !quantization.is_object() {
        return Err(bad("quantization_config", quantization, "an object"));
    }
    let with = |format| WeightFormats { linear: format, experts: format, ..formats };
    Ok(match quantization.get("quant_method").and_then(Value::as_str) {
        Some("mxfp4") => WeightFormats { experts: StorageFormat::MXFP4, ..formats },
        Some("fp8" | "fbgemm_fp8") => with(StorageFormat::FP8),
        Some("gptq" | "awq") => with(packed_format(quantization)?),
        // Of every other method it is only known that its weights are no larger.
        _ => formats,
    })
}

/// Numbers one by one, by the name of their type; `None` for a word that names none.
fn plain_format(name: &str) -> Option<StorageFormat> {
    match name.strip_prefix("torch.").unwrap_or(name) {
        "float64" | "double" => Some(StorageFormat { elements: 1, bytes: 8 }),
        "float32" | "float" => Some(StorageFormat::F32),
        "bfloat16" | "float16" | "half" | "auto" => Some(StorageFormat::BF16),
        "int8" | "uint8" => Some(StorageFormat { elements: 1, bytes: 1 }),
        eight if eight.starts_with("float8_") => Some(StorageFormat::FP8),
        _ => None,
    }
}

/// GPTQ and AWQ: `bits` each, and for every group a scale in f16 and a zero of `bits`.
fn packed_format(quantization: &Value) -> Result<StorageFormat, EstimateError> {
    let read = |names: [&'static str; 2], default: u32, most: u32| {
        let Some((name, value)) = names.into_iter().find_map(|name| Some((name, quantization.get(name)?))) else {
            return Ok(default);
        };
        // One group for a whole column is written as -1: as good as none.
        if name.ends_with("group_size") && value.as_i64() == Some(-1) {
            return Ok(most);
        }
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        let field = format!("quantization_config.{name}");
        number
            .filter(|number| (1..=most).contains(number))
            .ok_or_else(|| bad(&field, value, format!("a whole number from 1 to {most}")))
    };
    let bits = read(["bits", "w_bit"], 4, 8)?;
    let group = read(["group_size", "q_group_size"], 128, 1 << 16)?;
    // Eight groups, so that their bits are whole bytes.
    Ok(StorageFormat { elements: 8 * group, bytes: bits * group + 8 * 2 + bits })
}

/// Routed experts of a model that says how many there are under `field`, the other sizes under their usual names.
fn routed(config: &Config<'_>, field: &str) -> Result<ExpertsShape, EstimateError> {
    let experts = config.required(field)?;
    let used = used(config, "num_experts_per_tok", (field, experts))?.ok_or_else(|| missing("num_experts_per_tok"))?;
    Ok(ExpertsShape { experts, used, width: config.required("moe_intermediate_size")?, bias: false })
}

/// Experts per token, of which there are no more than `experts`, which has the name of its field with it.
fn used(config: &Config<'_>, field: &str, experts: (&str, usize)) -> Result<Option<usize>, EstimateError> {
    config.optional_size(field)?.map(|used| at_most((field, used), experts)).transpose()
}

/// A model whose residual stream is single and whose parameters are all in its layers, tables and norms.
fn plain(config: &Config<'_>, tied_by_default: bool, layers: Vec<LayerShape>) -> Result<ModelShape, EstimateError> {
    Ok(ModelShape {
        hidden_size: config.required("hidden_size")?,
        vocab_size: config.required("vocab_size")?,
        tie_word_embeddings: match config.value("tie_word_embeddings") {
            Some(_) => config.flag("tie_word_embeddings")?,
            None => tied_by_default,
        },
        residual_streams: 1,
        layers,
        extra: Parameters::default(),
    })
}

/// Window of a layer of `layer_type`: none, or that of `field`. A file that lists windowed layers has to state it.
fn window_of(config: &Config<'_>, layer: usize, layer_type: &str, field: &str) -> Result<Option<usize>, EstimateError> {
    match layer_type {
        "full_attention" => Ok(None),
        "sliding_attention" | "chunked_attention" => match config.optional_size(field)? {
            None if config.value("layer_types").is_some() => Err(missing(field)),
            window => Ok(window),
        },
        name => Err(EstimateError::LayerType { layer, name: name.to_owned() }),
    }
}
