//! A model of which only `config.json` is known: recorded and priced, never loaded.

use super::{Shape, WeightTypes, constants};
use crate::{
    arch,
    checkpoint::{CheckpointRef, Fields, Folder},
    error::ModelError,
};
use plimsoll_linear::{PackedWeight, WeightType};
use serde_json::{Map, Value};

/// The program of a model and the bytes of its weights, from its settings alone. The same figures as those of the
/// [`LoadPlan`](super::LoadPlan) of a folder whose matrices are stored in these types.
#[derive(Debug)]
pub struct Outline {
    pub(super) shape: Shape,
}

/// How matrices are stored that nobody has seen. `None`: as `config.json` says (`dtype`, `torch_dtype`), BF16 where it says nothing.
/// Routers, and matrices whose rows are no whole blocks of the type, are always as `config.json` says; norm weights, biases and
/// other vectors are f32 once loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutlineTypes {
    /// Matrices of attention, recurrences and dense feed-forward blocks.
    pub linear: Option<WeightType>,
    /// Matrices of routed experts.
    pub experts: Option<WeightType>,
    /// The embedding table and the output head.
    pub embedding: Option<WeightType>,
}

impl OutlineTypes {
    /// Every matrix that can be in this type.
    #[must_use]
    pub fn all(wanted: WeightType) -> Self {
        Self { linear: Some(wanted), experts: Some(wanted), embedding: Some(wanted) }
    }
}

impl Outline {
    /// Records the program that a folder with this `config.json` has.
    ///
    /// # Errors
    /// [`ModelError`] that names the field at fault, or the architecture that has no program.
    pub fn from_config(config: &Map<String, Value>, types: OutlineTypes) -> Result<Self, ModelError> {
        let folder = Folder::outline(config.clone());
        let checkpoint = CheckpointRef::from(&folder);
        let arch::Recorded { architecture, sources } = arch::record(checkpoint)?;
        let stored = stored_type(&Fields::new(config))?;
        let mut weight_types = WeightTypes(vec![None; architecture.program.slots().len()]);
        let computed = architecture.computed.iter().map(|(_, values)| 4 * values.len() as u64);
        let mut weights_bytes = computed.fold(0, u64::saturating_add);
        for (slot, info) in constants(&architecture) {
            let Some(source) = sources.of.get(&slot) else { continue };
            let [.., out_features, in_features] = info.shape[..] else {
                weights_bytes = weights_bytes.saturating_add(product(&info.shape).saturating_mul(4));
                continue;
            };
            let wanted = match (info.shape.len(), info.name.as_str()) {
                (3.., _) => types.experts,
                (_, "token_embd.weight" | "output.weight") => types.embedding,
                _ => types.linear,
            };
            let fits = |kind: &WeightType| source.quantizable && kind.row_bytes(in_features).is_ok();
            let kind = wanted.filter(fits).unwrap_or(stored);
            weight_types.0[slot.index()] = Some(kind);
            let experts = product(&info.shape[..info.shape.len() - 2]);
            let bytes = experts.saturating_mul(PackedWeight::packed_bytes(kind, out_features, in_features));
            weights_bytes = weights_bytes.saturating_add(bytes);
        }
        let name = arch::name_of(checkpoint)?;
        Ok(Self { shape: Shape { name, architecture, weight_types, weights_bytes } })
    }
}

fn product(axes: &[usize]) -> u64 {
    axes.iter().fold(1, |product: u64, &axis| product.saturating_mul(axis as u64))
}

/// The type of the weights by `config.json`, the part about text first.
fn stored_type(fields: &Fields<'_>) -> Result<WeightType, ModelError> {
    let text = fields.object("text_config")?;
    for fields in text.iter().chain([fields]) {
        for key in ["dtype", "torch_dtype"] {
            let Some(name) = fields.find_text(key)? else { continue };
            return match name.strip_prefix("torch.").unwrap_or(name) {
                "float32" | "float" => Ok(WeightType::F32),
                "float16" | "half" => Ok(WeightType::F16),
                "bfloat16" | "auto" => Ok(WeightType::Bf16),
                _ => Err(fields.unsupported(key, "bfloat16, float16, float32")),
            };
        }
    }
    Ok(WeightType::Bf16)
}
