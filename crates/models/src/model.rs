//! A model in memory: its program and the weights it names, packed for the kernels.

mod outline;
mod quantize;
mod read;

use crate::{
    arch::{self, Architecture},
    checkpoint::{CheckpointRef, source::Resolved, weights::Sources},
    error::ModelError,
};
use plimsoll_linear::{PackedWeight, WeightType};
use plimsoll_program::{Slot, SlotInfo};
use std::collections::HashSet;

pub use outline::{Outline, OutlineTypes};
pub(crate) use read::plain_values;

/// The value of a constant slot.
#[derive(Debug)]
pub enum Constant {
    /// A matrix, packed for the linear kernels; embedding rows are read from it too.
    Matrix(PackedWeight),
    /// One matrix for each expert, all of one shape and type.
    Experts(Vec<PackedWeight>),
    /// A norm weight, a bias, or computed frequencies.
    Vector(Vec<f32>),
}

impl Constant {
    /// Bytes that the value occupies.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Matrix(weight) => weight.bytes(),
            Self::Experts(weights) => weights.iter().map(PackedWeight::bytes).sum(),
            Self::Vector(values) => std::mem::size_of_val(values.as_slice()) as u64,
        }
    }
}

/// How each matrix of a model is stored, by its constant slot.
#[derive(Debug, Clone, Default)]
pub struct WeightTypes(Vec<Option<WeightType>>);

impl WeightTypes {
    /// Storage type of the matrix, or of the experts' matrices, in `slot`; f32 for everything that is no matrix.
    #[must_use]
    pub fn of(&self, slot: Slot) -> WeightType {
        self.0.get(slot.index()).copied().flatten().unwrap_or(WeightType::F32)
    }
}

/// What a caller may choose about loading.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadOptions {
    /// Quantize matrices that are stored as F32, F16 or BF16 to this type while they are read. Matrices whose rows are no whole blocks,
    /// routers, norm weights and biases stay as they are.
    pub quantize: Option<WeightType>,
}

impl LoadOptions {
    /// As stored, or quantized to `quantize`.
    #[must_use]
    pub fn quantized(quantize: Option<WeightType>) -> Self {
        Self { quantize }
    }
}

/// What a plan and the model it becomes have in common.
#[derive(Debug)]
struct Shape {
    name: String,
    architecture: Architecture,
    weight_types: WeightTypes,
    weights_bytes: u64,
}

/// A loaded model. Immutable: sequences own their KV, executors own their arenas.
#[derive(Debug)]
pub struct Model {
    shape: Shape,
    /// Indexed by slot; `None` for slots that are no constants.
    constants: Vec<Option<Constant>>,
}

/// The questions that a plan and a loaded model answer alike.
macro_rules! shape_getters {
    ($type:ty) => {
        impl $type {
            /// Value of `general.name`, the folder's name, or the architecture's.
            #[must_use]
            pub fn name(&self) -> &str {
                &self.shape.name
            }

            /// Program, ports and sizes.
            #[must_use]
            pub fn architecture(&self) -> &Architecture {
                &self.shape.architecture
            }

            /// Bytes of all weights as the kernels hold them.
            #[must_use]
            pub fn weights_bytes(&self) -> u64 {
                self.shape.weights_bytes
            }

            /// How the matrices are stored.
            #[must_use]
            pub fn weight_types(&self) -> &WeightTypes {
                &self.shape.weight_types
            }
        }
    };
}

shape_getters!(Model);
shape_getters!(LoadPlan);
shape_getters!(Outline);

impl Model {
    /// Reads the model of a checkpoint, repacking its weights with `threads` threads. Pages of the files leave the resident set as soon as
    /// they are packed, so that at no time two copies of the weights, nor of any one of them, are resident.
    ///
    /// # Errors
    /// [`ModelError`] that names the key or tensor at fault, what was expected and what was found.
    pub fn load<'a>(checkpoint: impl Into<CheckpointRef<'a>>, threads: usize) -> Result<Self, ModelError> {
        let checkpoint = checkpoint.into();
        LoadPlan::new(checkpoint)?.load(checkpoint, threads)
    }

    /// As [`Model::load`], of a GGUF file.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn from_gguf(gguf: &crate::gguf::Gguf, threads: usize) -> Result<Self, ModelError> {
        Self::load(gguf, threads)
    }

    /// The value of a constant slot; `None` where the slot is no constant.
    #[must_use]
    pub fn constant(&self, slot: Slot) -> Option<&Constant> {
        self.constants.get(slot.index())?.as_ref()
    }
}

/// A checkpoint whose every tensor has been checked against the program, before any weight is read: prices the load.
#[derive(Debug)]
pub struct LoadPlan {
    shape: Shape,
    sources: Sources,
}

impl LoadPlan {
    /// Records the program of the checkpoint's architecture and checks that each tensor it names is there, in its shape and in a type
    /// that the kernels run, and that the checkpoint holds no tensor that the program would ignore.
    ///
    /// # Errors
    /// [`ModelError`] that names the key or tensor at fault.
    pub fn new<'a>(checkpoint: impl Into<CheckpointRef<'a>>) -> Result<Self, ModelError> {
        Self::with_options(checkpoint, &LoadOptions::default())
    }

    /// As [`LoadPlan::new`], with choices of the caller.
    ///
    /// # Errors
    /// As [`LoadPlan::new`]; [`ModelError::QuantizeTo`] if there is no quantizer for the wanted type.
    pub fn with_options<'a>(
        checkpoint: impl Into<CheckpointRef<'a>>,
        options: &LoadOptions,
    ) -> Result<Self, ModelError> {
        let checkpoint = checkpoint.into();
        if let Some(wanted) = options.quantize {
            quantize::check(wanted)?;
        }
        let arch::Recorded { architecture, sources } = arch::record(checkpoint)?;
        let mut weight_types = WeightTypes(vec![None; architecture.program.slots().len()]);
        let mut weights_bytes = 4 * architecture.computed.iter().map(|(_, values)| values.len() as u64).sum::<u64>();
        for (slot, info) in constants(&architecture) {
            let Some((source, resolved)) = resolve(&sources, slot, info, checkpoint)? else { continue };
            let [.., out_features, in_features] = info.shape[..] else {
                weights_bytes += 4 * info.shape.iter().product::<usize>() as u64;
                continue;
            };
            let kind = options
                .quantize
                .filter(|&wanted| source.quantizable && quantize::applies(resolved.stored, wanted, in_features))
                .unwrap_or(resolved.stored);
            kind.row_bytes(in_features).map_err(|source| ModelError::Weight { tensor: info.name.clone(), source })?;
            weight_types.0[slot.index()] = Some(kind);
            let experts = info.shape[..info.shape.len() - 2].iter().product::<usize>() as u64;
            weights_bytes += experts * PackedWeight::packed_bytes(kind, out_features, in_features);
        }
        refuse_unused(checkpoint, &sources)?;
        let name = checkpoint_name(checkpoint)?;
        Ok(Self { shape: Shape { name, architecture, weight_types, weights_bytes }, sources })
    }

    /// Packs the weights of `checkpoint`, the one this plan was made from.
    ///
    /// # Errors
    /// [`ModelError`] naming a tensor that cannot be packed, holds what is no number, or for which there is no memory.
    pub fn load<'a>(self, checkpoint: impl Into<CheckpointRef<'a>>, threads: usize) -> Result<Model, ModelError> {
        let checkpoint = checkpoint.into();
        let Self { shape: Shape { architecture, weight_types, .. }, sources } = &self;
        let mut values: Vec<Option<Constant>> = Vec::new();
        values.resize_with(architecture.program.slots().len(), || None);
        for (slot, info) in constants(architecture) {
            let Some((source, resolved)) = resolve(sources, slot, info, checkpoint)? else { continue };
            let kind = weight_types.of(slot);
            values[slot.index()] =
                Some(read::constant(checkpoint, &info.name, &info.shape, source, &resolved, kind, threads)?);
            for tensor in &resolved.tensors {
                checkpoint.advise_done(tensor);
            }
        }
        for (slot, computed) in &architecture.computed {
            values[slot.index()] = Some(Constant::Vector(computed.clone()));
        }
        let weights_bytes = values.iter().flatten().map(Constant::bytes).sum();
        Ok(Model { shape: Shape { weights_bytes, ..self.shape }, constants: values })
    }
}

/// Where a constant comes from; `None` if it is computed.
fn resolve<'s, 'a>(
    sources: &'s Sources,
    slot: Slot,
    info: &SlotInfo,
    checkpoint: CheckpointRef<'a>,
) -> Result<Option<(&'s crate::checkpoint::source::Source, Resolved<'a>)>, ModelError> {
    let Some(source) = sources.of.get(&slot) else { return Ok(None) };
    Ok(Some((source, source.resolve(&info.name, &info.shape, checkpoint)?)))
}

/// Refuses a tensor that the program does not read: the model would compute something else.
fn refuse_unused(checkpoint: CheckpointRef<'_>, sources: &Sources) -> Result<(), ModelError> {
    let parts = sources.of.values().flat_map(|source| &source.parts).map(|part| part.tensor.as_str());
    let used: HashSet<&str> = parts.chain(sources.used.iter().map(String::as_str)).collect();
    let mut ignored = 0;
    for name in checkpoint.tensor_names() {
        if used.contains(name) {
            continue;
        }
        // Older checkpoints carry what their library computed at start: frequencies of RoPE, and causal masks.
        let is_buffer = matches!(checkpoint, CheckpointRef::Folder(_))
            && [".rotary_emb.inv_freq", ".attn.masked_bias", ".attn.bias"].iter().any(|end| name.ends_with(end));
        if !is_buffer && !sources.ignored.iter().any(|prefix| name.starts_with(prefix)) {
            return Err(ModelError::UnusedTensor {
                tensor: crate::checkpoint::one_line(name),
                architecture: arch::name_of(checkpoint)?,
            });
        }
        ignored += 1;
    }
    if ignored > 0 {
        tracing::info!("{ignored} tensors belong to no text model and are not read");
    }
    Ok(())
}

fn checkpoint_name(checkpoint: CheckpointRef<'_>) -> Result<String, ModelError> {
    let named = match checkpoint {
        CheckpointRef::Gguf(gguf) => gguf.find_str("general.name")?.map(str::to_owned),
        CheckpointRef::Folder(folder) => {
            // A relative path such as "." has no name of its own.
            let path = folder.path().canonicalize().unwrap_or_else(|_| folder.path().to_owned());
            path.file_name().map(|name| name.to_string_lossy().into_owned())
        }
    };
    named.map_or_else(|| arch::name_of(checkpoint), Ok)
}

#[cfg(test)]
impl Model {
    /// A model of a hand-made program; `constants` are all that it names.
    pub(crate) fn from_parts(architecture: Architecture, constants: Vec<(Slot, Constant)>) -> Self {
        let mut values: Vec<Option<Constant>> = Vec::new();
        values.resize_with(architecture.program.slots().len(), || None);
        let mut weight_types = WeightTypes(vec![None; values.len()]);
        for (slot, value) in constants {
            weight_types.0[slot.index()] = match &value {
                Constant::Matrix(weight) => Some(weight.weight_type()),
                Constant::Experts(weights) => weights.first().map(PackedWeight::weight_type),
                Constant::Vector(_) => None,
            };
            values[slot.index()] = Some(value);
        }
        let weights_bytes = values.iter().flatten().map(Constant::bytes).sum();
        let name = "hand-made".to_owned();
        Self { shape: Shape { name, architecture, weight_types, weights_bytes }, constants: values }
    }
}

fn constants(architecture: &Architecture) -> impl Iterator<Item = (Slot, &SlotInfo)> {
    let program = &architecture.program;
    program.constants().iter().map(|&slot| (slot, program.slot(slot)))
}

#[cfg(test)]
mod tests;
