//! What can be wrong with a model, in one line each.

use crate::{
    checkpoint::{FolderError, StoredType},
    gguf::GgufError,
};
use plimsoll_program::BuildError;

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "field names say what they hold")]
#[non_exhaustive]
pub enum ModelError {
    /// The GGUF container itself is faulty.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The model folder itself is faulty.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// No program can be recorded for this architecture.
    #[error("architecture \"{found}\" is not known; known: {known}")]
    UnknownArchitecture { found: String, known: String },
    /// A setting that changes the arithmetic has a value that is not implemented.
    #[error("{key} = {found} is not supported; supported: {supported}")]
    Unsupported { key: String, found: String, supported: String },
    /// `config.json` lacks a field without which the model cannot be run.
    #[error("config.json has no {field}; it is incomplete or of another architecture")]
    MissingField { field: String },
    /// A field of `config.json` is of another type.
    #[error("{field} of config.json is {found}, expected {expected}")]
    WrongField { field: String, found: String, expected: &'static str },
    /// A field of `config.json` that nothing is known of, and whose name says that it may change the arithmetic.
    #[error(
        "{field} = {found} of config.json is not known here and may change the arithmetic; the model needs a newer version, or the field removed if it means nothing"
    )]
    UnknownField { field: String, found: String },
    /// A size is zero or absurd.
    #[error("{key} = {found} is out of range {minimum} to {maximum}")]
    OutOfRange { key: String, found: u64, minimum: u64, maximum: u64 },
    /// Two sizes do not go together.
    #[error("{key} = {value} is not divisible by {divisor_key} = {divisor}")]
    NotDivisible { key: String, value: usize, divisor_key: String, divisor: usize },
    /// No tensor of this name. `similar`: at most three names that are there, nearest first.
    #[error(
        "tensor '{tensor}' is not in the file{}; the model is incomplete or of another architecture",
        similar_hint(similar)
    )]
    MissingTensor { tensor: String, similar: Vec<String> },
    /// A tensor of another shape than the model needs; outermost axis first.
    #[error(
        "tensor '{tensor}' has the shape {found:?}, expected {expected:?}; the model and its metadata do not fit together"
    )]
    WrongShape { tensor: String, expected: Vec<usize>, found: Vec<usize> },
    /// A tensor type that no kernel runs.
    #[error(
        "tensor '{tensor}' has type {found}, not supported here; supported: {supported}; convert the model to one of these"
    )]
    TensorType { tensor: String, found: StoredType, supported: String },
    /// One weight is put together from tensors of different types.
    #[error(
        "tensor \"{tensor}\" has type {found}, others of {constant} have {first}; convert the model so that they are the same"
    )]
    MixedTypes { constant: String, tensor: String, found: &'static str, first: &'static str },
    /// The source holds a tensor that the architecture would ignore: the arithmetic would silently differ.
    #[error(
        "tensor \"{tensor}\" is not part of architecture \"{architecture}\"; the file needs an architecture that is not known here"
    )]
    UnusedTensor { tensor: String, architecture: String },
    /// The settings say that output head and embedding table are one, and the source has two that differ.
    #[error(
        "tie_word_embeddings = true, but {head} and {table} differ; set it to false if the head is a matrix of its own"
    )]
    TiedHeadDiffers { head: String, table: String },
    /// A weight that is no number.
    #[error(
        "tensor \"{tensor}\" holds {value} at element {index}; the file is damaged or the training diverged: fetch it again"
    )]
    NotFinite { tensor: String, index: usize, value: f32 },
    /// The recorded program does not hold together: shapes in the file contradict each other.
    #[error("the model's sizes contradict each other: {0}")]
    Program(#[from] BuildError),
    /// A weight could not be repacked.
    #[error("tensor \"{tensor}\": {source}")]
    Weight {
        tensor: String,
        #[source]
        source: plimsoll_linear::Error,
    },
    /// The system has no memory for a weight.
    #[error("no memory for the {bytes} bytes of {tensor}")]
    OutOfMemory { tensor: String, bytes: u64 },
    /// Weights can be quantized at load to a few types only.
    #[error("weights cannot be quantized to {found} at load; supported: {supported}")]
    QuantizeTo { found: &'static str, supported: &'static str },
}

fn similar_hint(similar: &[String]) -> String {
    if similar.is_empty() { String::new() } else { format!(" (similar: {})", similar.join(", ")) }
}
