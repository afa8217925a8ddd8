//! Which architectures there are, and how a checkpoint says which it is of.

use super::{Architecture, gemma3, llama, olmo2, phi3, qwen2, qwen3, qwen3_5, qwen3_moe, qwen3_next};
use crate::{
    checkpoint::{CheckpointRef, Fields, Folder, Keys, one_line, weights::Sources},
    error::ModelError,
    gguf::Gguf,
};

/// An architecture as recorded for one checkpoint.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) architecture: Architecture,
    /// Where its constants come from.
    pub(crate) sources: Sources,
}

/// One known architecture: its names, and what reads its settings and records its program.
pub(crate) struct Entry {
    /// Values of `general.architecture`.
    pub(crate) gguf: &'static [&'static str],
    /// Values of `model_type` in `config.json`.
    pub(crate) model_types: &'static [&'static str],
    /// Values of `architectures` in `config.json`; one of those given there must be known.
    pub(crate) classes: &'static [&'static str],
    pub(crate) from_gguf: fn(&Gguf, &Keys<'_>) -> Result<Recorded, ModelError>,
    pub(crate) from_folder: fn(&Folder, &Fields<'_>) -> Result<Recorded, ModelError>,
}

/// Every architecture that can be loaded; a new one is one file and one line here.
pub(crate) const REGISTRY: &[Entry] = &[
    llama::ENTRY,
    gemma3::ENTRY,
    olmo2::ENTRY,
    phi3::ENTRY,
    qwen2::ENTRY,
    qwen3::ENTRY,
    qwen3_moe::ENTRY,
    qwen3_next::ENTRY,
    qwen3_5::DENSE,
    qwen3_5::EXPERTS,
];

/// Names of all architectures that can be loaded, as GGUF files have them.
pub fn known_architectures() -> impl Iterator<Item = &'static str> {
    REGISTRY.iter().flat_map(|entry| entry.gguf.iter().copied())
}

/// Values of `model_type` of all architectures that have a program.
pub fn known_model_types() -> impl Iterator<Item = &'static str> {
    REGISTRY.iter().flat_map(|entry| entry.model_types.iter().copied())
}

/// What the checkpoint calls its architecture.
///
/// # Errors
/// [`ModelError`] if it does not say.
pub(crate) fn name_of(checkpoint: CheckpointRef<'_>) -> Result<String, ModelError> {
    match checkpoint {
        CheckpointRef::Gguf(gguf) => Ok(gguf.get_str("general.architecture")?.to_owned()),
        CheckpointRef::Folder(folder) => Ok(model_type(&Fields::new(folder.config()))?.to_owned()),
    }
}

fn model_type<'a>(fields: &Fields<'a>) -> Result<&'a str, ModelError> {
    let found = fields.find_text("model_type")?;
    found.ok_or_else(|| ModelError::MissingField { field: "model_type".to_owned() })
}

/// Finds the architecture that the checkpoint names and records its program.
///
/// # Errors
/// [`ModelError::UnknownArchitecture`], with those known; and whatever the architecture finds wrong with the settings.
pub(crate) fn record(checkpoint: CheckpointRef<'_>) -> Result<Recorded, ModelError> {
    match checkpoint {
        CheckpointRef::Gguf(gguf) => {
            let name = gguf.get_str("general.architecture")?;
            let entry = find(|entry| entry.gguf, name)?;
            (entry.from_gguf)(gguf, &Keys::new(gguf, name))
        }
        CheckpointRef::Folder(folder) => {
            let fields = Fields::new(folder.config());
            let entry = find(|entry| entry.model_types, model_type(&fields)?)?;
            let classes = fields.find_texts("architectures")?;
            if classes
                .is_some_and(|found| !found.is_empty() && !found.iter().any(|class| entry.classes.contains(class)))
            {
                return Err(fields.unsupported("architectures", &entry.classes.join(", ")));
            }
            (entry.from_folder)(folder, &fields)
        }
    }
}

fn find(names: fn(&Entry) -> &'static [&'static str], name: &str) -> Result<&'static Entry, ModelError> {
    REGISTRY.iter().find(|entry| names(entry).contains(&name)).ok_or_else(|| ModelError::UnknownArchitecture {
        found: one_line(name),
        known: REGISTRY.iter().flat_map(|entry| names(entry).iter().copied()).collect::<Vec<_>>().join(", "),
    })
}
