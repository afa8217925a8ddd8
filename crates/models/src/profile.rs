//! What a model costs on the CPU executor, before or after its weights are loaded: the planner's own numbers.

use crate::{
    arch::{self, Architecture},
    executor::cost::{CpuCost, CpuSettings},
    model::{LoadPlan, Model, Outline, OutlineTypes, WeightTypes},
};
use plimsoll_linear::WeightType;
use plimsoll_memguard::{
    Config, Estimate, EstimateError, EstimateSettings, Pass, Profile, Registry, StorageFormat, TransientSource,
};
use plimsoll_program::Dims;
use serde_json::Value;

/// Prices a model on the CPU executor: KV by its layers, transients by planning its program. No weight is needed.
#[derive(Debug, Clone, Copy)]
pub struct CpuProfile<'a> {
    architecture: &'a Architecture,
    weight_types: &'a WeightTypes,
    weights_bytes: u64,
    settings: CpuSettings,
}

impl<'a> CpuProfile<'a> {
    /// Of a model that is not loaded yet.
    #[must_use]
    pub fn of_plan(plan: &'a LoadPlan, settings: CpuSettings) -> Self {
        Self {
            architecture: plan.architecture(),
            weight_types: plan.weight_types(),
            weights_bytes: plan.weights_bytes(),
            settings,
        }
    }

    /// Of a model of which only the settings are known.
    #[must_use]
    pub fn of_outline(outline: &'a Outline, settings: CpuSettings) -> Self {
        Self {
            architecture: outline.architecture(),
            weight_types: outline.weight_types(),
            weights_bytes: outline.weights_bytes(),
            settings,
        }
    }

    /// Of a loaded model; the same numbers.
    #[must_use]
    pub fn of_model(model: &'a Model, settings: CpuSettings) -> Self {
        Self {
            architecture: model.architecture(),
            weight_types: model.weight_types(),
            weights_bytes: model.weights_bytes(),
            settings,
        }
    }
}

impl CpuProfile<'_> {
    /// The same where no chunk has more than `rows` rows: layers with a sliding window are priced for that.
    #[must_use]
    pub fn with_max_chunk_rows(self, rows: usize) -> Self {
        Self { settings: CpuSettings { max_chunk_rows: Some(rows), ..self.settings }, ..self }
    }
}

impl Profile for CpuProfile<'_> {
    fn weights_bytes(&self) -> u64 {
        self.weights_bytes
    }

    fn kv_bytes(&self, context_tokens: usize) -> u64 {
        self.settings.kv_spec(self.architecture).bytes(context_tokens)
    }

    /// The peak of the pass by the program's plan: exactly the arena that the executor makes.
    fn transient_bytes(&self, pass: &Pass) -> u64 {
        let dims = Dims { rows: pass.rows, logit_rows: pass.logit_rows, kv_len: pass.start.saturating_add(pass.rows) };
        let cost = CpuCost { weight_types: self.weight_types, settings: self.settings };
        self.architecture.program.plan(&dims, &cost).peak_bytes
    }
}

/// Registers the program of every architecture that has one, so that a `config.json` is priced by the planner instead of by a
/// closed form: exactly what the CPU executor takes with `settings`, whose KV type wins over that of the [`EstimateSettings`].
///
/// A config that no program can be recorded from is refused with [`EstimateError::Refused`]; [`Registry::builtin`] may still have
/// a closed form for it.
///
/// ```
/// use plimsoll_attention::KvDtype;
/// use plimsoll_memguard::{EstimateSettings, Profile, Registry, TransientSource};
/// use plimsoll_models::{CpuSettings, register_programs};
///
/// let mut registry = Registry::builtin();
/// register_programs(&mut registry, CpuSettings::detect(8, KvDtype::Bf16));
/// let config = serde_json::json!({
///     "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
///     "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960,
///     "tie_word_embeddings": true,
/// });
/// let qwen3 = registry.from_config(&config, &EstimateSettings::default())?;
/// assert_eq!(qwen3.transient_source(), TransientSource::Plan);
/// assert_eq!(qwen3.kv_bytes(64), 28 * 2 * 8 * 128 * 2 * 64);
/// # Ok::<(), plimsoll_memguard::EstimateError>(())
/// ```
pub fn register_programs(registry: &mut Registry, settings: CpuSettings) {
    for name in arch::known_model_types() {
        registry.register(name, move |config: &Config<'_>, wanted: &EstimateSettings| price(config, wanted, settings));
    }
}

fn price(config: &Config<'_>, wanted: &EstimateSettings, settings: CpuSettings) -> Result<Estimate, EstimateError> {
    let refused = |reason: String| {
        let name = config.names().next().unwrap_or_default().to_owned();
        EstimateError::Refused { name, reason }
    };
    let Value::Object(root) = config.root() else { return Err(refused("the config is no object".to_owned())) };
    let types = match wanted.weights {
        None => OutlineTypes::default(),
        Some(formats) => {
            let kind = |format| {
                let none = || refused("no kernel runs weights of this format".to_owned());
                weight_type_of(format).ok_or_else(none).map(Some)
            };
            OutlineTypes {
                linear: kind(formats.linear)?,
                experts: kind(formats.experts)?,
                embedding: kind(formats.embedding)?,
            }
        }
    };
    let outline = Outline::from_config(root, types).map_err(|error| refused(error.to_string()))?;
    Ok(Estimate::new(Planned { outline, settings, weights_bytes: wanted.weights_bytes }, TransientSource::Plan))
}

/// The weight type that takes this many bytes for this many elements; of several, the first that kernels know.
fn weight_type_of(format: StorageFormat) -> Option<WeightType> {
    // Both are two bytes an element, and the same to every price.
    if format == StorageFormat::BF16 {
        return Some(WeightType::Bf16);
    }
    let same = |kind: &&WeightType| {
        (kind.block_elements(), kind.block_bytes()) == (format.elements as usize, format.bytes as usize)
    };
    WeightType::ALL.iter().find(same).copied()
}

/// A registered program, priced.
struct Planned {
    outline: Outline,
    settings: CpuSettings,
    weights_bytes: Option<u64>,
}

impl Profile for Planned {
    fn weights_bytes(&self) -> u64 {
        self.weights_bytes.unwrap_or_else(|| self.outline.weights_bytes())
    }

    fn kv_bytes(&self, context_tokens: usize) -> u64 {
        CpuProfile::of_outline(&self.outline, self.settings).kv_bytes(context_tokens)
    }

    fn transient_bytes(&self, pass: &Pass) -> u64 {
        CpuProfile::of_outline(&self.outline, self.settings).transient_bytes(pass)
    }
}
