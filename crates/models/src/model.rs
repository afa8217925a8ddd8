//! A model in memory: its program and the weights it names, packed for the kernels.

use crate::{
    arch::{self, Architecture},
    error::ModelError,
    gguf::{GgmlType, Gguf, TensorView},
};
use plimsoll_linear::{PackedWeight, WeightType};
use plimsoll_program::{Slot, SlotInfo};
use std::collections::HashSet;

/// The value of a constant slot.
#[derive(Debug)]
pub enum Constant {
    /// A matrix, packed for the linear kernels; embedding rows are read from it too.
    Matrix(PackedWeight),
    /// A stack of matrices of one shape and type, one per expert: a constant of three axes.
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
    /// Storage type of the matrix or stack of matrices in `slot`; f32 for everything else.
    #[must_use]
    pub fn of(&self, slot: Slot) -> WeightType {
        self.0.get(slot.index()).copied().flatten().unwrap_or(WeightType::F32)
    }
}

/// A loaded model. Immutable: sequences own their KV, executors own their arenas.
#[derive(Debug)]
pub struct Model {
    name: String,
    architecture: Architecture,
    /// Indexed by slot; `None` for slots that are no constants.
    constants: Vec<Option<Constant>>,
    weight_types: WeightTypes,
    weights_bytes: u64,
}

impl Model {
    /// Reads the model of a GGUF file, repacking its weights with `threads` threads. Pages of the file leave the resident set
    /// once their tensor is packed, so that at no time two copies of the weights are resident.
    ///
    /// # Errors
    /// [`ModelError`] that names the key or tensor at fault, what was expected and what was found.
    pub fn from_gguf(gguf: &Gguf, threads: usize) -> Result<Self, ModelError> {
        let plan = LoadPlan::new(gguf)?;
        plan.load(gguf, threads)
    }

    /// Value of `general.name`, or the architecture's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Program, ports and sizes.
    #[must_use]
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Bytes of all weights.
    #[must_use]
    pub fn weights_bytes(&self) -> u64 {
        self.weights_bytes
    }

    /// How the matrices are stored.
    #[must_use]
    pub fn weight_types(&self) -> &WeightTypes {
        &self.weight_types
    }

    /// The value of a constant slot; `None` where the slot is no constant.
    #[must_use]
    pub fn constant(&self, slot: Slot) -> Option<&Constant> {
        self.constants.get(slot.index())?.as_ref()
    }
}

/// A file whose every tensor has been checked against the program, before any weight is read: prices the load.
#[derive(Debug)]
pub struct LoadPlan {
    architecture: Architecture,
    weight_types: WeightTypes,
    weights_bytes: u64,
}

impl LoadPlan {
    /// Records the program of the file's architecture and checks that each tensor it names is there, in its shape and in a type
    /// that the kernels run, and that the file holds no tensor that the program would ignore.
    ///
    /// # Errors
    /// [`ModelError`] that names the key or tensor at fault.
    pub fn new(gguf: &Gguf) -> Result<Self, ModelError> {
        let architecture = arch::build(gguf)?;
        let computed: HashSet<Slot> = architecture.computed.iter().map(|(slot, _)| *slot).collect();
        let mut named = HashSet::from(["rope_freqs.weight"]);
        let mut weight_types = WeightTypes(vec![None; architecture.program.slots().len()]);
        let mut weights_bytes = 0;
        for (slot, info) in constants(&architecture) {
            if computed.contains(&slot) {
                continue;
            }
            let tensor = gguf.tensor(&info.name)?.expect_shape(&info.shape)?;
            weights_bytes += match info.shape[..] {
                [out_features, in_features] => {
                    let kind = weight_type(&tensor)?;
                    weight_types.0[slot.index()] = Some(kind);
                    PackedWeight::packed_bytes(kind, out_features, in_features)
                }
                [experts, out_features, in_features] => {
                    let kind = weight_type(&tensor)?;
                    weight_types.0[slot.index()] = Some(kind);
                    PackedWeight::packed_bytes(kind, out_features, in_features).saturating_mul(experts as u64)
                }
                _ => {
                    tensor.expect_type(VECTOR_TYPES)?;
                    4 * info.shape.iter().product::<usize>() as u64
                }
            };
            named.insert(info.name.as_str());
        }
        if let Some(tensor) = gguf.tensors().find(|tensor| !named.contains(tensor.name())) {
            return Err(ModelError::UnusedTensor {
                tensor: tensor.name().to_owned(),
                architecture: gguf.get_str("general.architecture")?.to_owned(),
            });
        }
        weights_bytes += architecture.computed.iter().map(|(_, values)| 4 * values.len() as u64).sum::<u64>();
        Ok(Self { architecture, weight_types, weights_bytes })
    }

    /// Bytes that the packed weights will occupy.
    #[must_use]
    pub fn weights_bytes(&self) -> u64 {
        self.weights_bytes
    }

    /// How the matrices are stored.
    #[must_use]
    pub fn weight_types(&self) -> &WeightTypes {
        &self.weight_types
    }

    /// Program, ports and sizes.
    #[must_use]
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Packs the weights of `gguf`, the file this plan was made from.
    ///
    /// # Errors
    /// [`ModelError::Weight`] if a tensor cannot be packed.
    pub fn load(self, gguf: &Gguf, threads: usize) -> Result<Model, ModelError> {
        let mut values: Vec<Option<Constant>> = Vec::new();
        values.resize_with(self.architecture.program.slots().len(), || None);
        for (slot, frequencies) in &self.architecture.computed {
            values[slot.index()] = Some(Constant::Vector(frequencies.clone()));
        }
        for (slot, info) in constants(&self.architecture) {
            if values[slot.index()].is_some() {
                continue;
            }
            let tensor = gguf.tensor(&info.name)?;
            values[slot.index()] = Some(match info.shape[..] {
                [out_features, in_features] => {
                    let kind = weight_type(&tensor)?;
                    PackedWeight::pack(kind, out_features, in_features, tensor.data(), threads)
                        .map(Constant::Matrix)
                        .map_err(|source| ModelError::Weight { tensor: info.name.clone(), source })?
                }
                [experts, out_features, in_features] => {
                    let kind = weight_type(&tensor)?;
                    let expert_bytes = tensor.data().len().checked_div(experts).filter(|&bytes| bytes > 0).unwrap_or(1);
                    let weights = tensor.data().chunks(expert_bytes).map(|expert| {
                        PackedWeight::pack(kind, out_features, in_features, expert, threads)
                            .map_err(|source| ModelError::Weight { tensor: info.name.clone(), source })
                    });
                    Constant::Experts(weights.collect::<Result<_, _>>()?)
                }
                _ => Constant::Vector(f32_values(&tensor)?),
            });
            if let Err(error) = gguf.advise_done(&tensor) {
                // The pages are merely resident for longer.
                tracing::debug!(tensor = info.name, %error, "file pages were not given back");
            }
        }
        let name = match gguf.find_str("general.name")? {
            Some(name) => name.to_owned(),
            None => gguf.get_str("general.architecture")?.to_owned(),
        };
        Ok(Model {
            name,
            weights_bytes: values.iter().flatten().map(Constant::bytes).sum(),
            architecture: self.architecture,
            weight_types: self.weight_types,
            constants: values,
        })
    }
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
        Self { name: "hand-made".to_owned(), architecture, constants: values, weight_types, weights_bytes }
    }
}

fn constants(architecture: &Architecture) -> impl Iterator<Item = (Slot, &SlotInfo)> {
    let program = &architecture.program;
    program.constants().iter().map(|&slot| (slot, program.slot(slot)))
}

fn weight_type(tensor: &TensorView<'_>) -> Result<WeightType, ModelError> {
    tensor.expect_type(MATRIX_TYPES)?;
    WeightType::from_ggml(tensor.ggml_type().id())
        .map_err(|source| ModelError::Weight { tensor: tensor.name().to_owned(), source })
}

/// Types in which a matrix can be stored: those that the linear kernels multiply with.
const MATRIX_TYPES: &[GgmlType] = &[
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::Bf16,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q2K,
    GgmlType::Q3K,
    GgmlType::Q4K,
    GgmlType::Q5K,
    GgmlType::Q6K,
    GgmlType::Iq4Nl,
    GgmlType::Iq4Xs,
    GgmlType::Mxfp4,
];

/// Types in which a norm weight, a bias or frequency factors can be stored.
const VECTOR_TYPES: &[GgmlType] = &[GgmlType::F32, GgmlType::F16, GgmlType::Bf16];

/// The values of a tensor of one axis.
///
/// # Errors
/// [`GgufError`](crate::gguf::GgufError) if it is stored in a block format.
pub(crate) fn f32_values(tensor: &TensorView<'_>) -> Result<Vec<f32>, ModelError> {
    let tensor = tensor.expect_type(VECTOR_TYPES)?;
    let data = tensor.data();
    let halves =
        |convert: fn(u16) -> f32| data.chunks_exact(2).map(|b| convert(u16::from_le_bytes([b[0], b[1]]))).collect();
    Ok(match tensor.ggml_type() {
        GgmlType::F16 => halves(|bits| half::f16::from_bits(bits).to_f32()),
        GgmlType::Bf16 => halves(|bits| half::bf16::from_bits(bits).to_f32()),
        _ => data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
    })
}

#[cfg(test)]
mod tests;
