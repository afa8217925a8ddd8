//! What can be wrong with a model file, in one line each.

use crate::gguf::GgufError;
use plimsoll_program::BuildError;

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "field names say what they hold")]
#[non_exhaustive]
pub enum ModelError {
    /// The container itself is faulty.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// No program can be recorded for this architecture.
    #[error("architecture \"{found}\" is not known; known: {known}")]
    UnknownArchitecture { found: String, known: String },
    /// A setting that changes the arithmetic has a value that is not implemented.
    #[error("{key} = {found} is not supported; supported: {supported}")]
    Unsupported { key: String, found: String, supported: String },
    /// A size is zero or absurd.
    #[error("{key} = {found} is out of range {minimum} to {maximum}")]
    OutOfRange { key: String, found: u64, minimum: u64, maximum: u64 },
    /// Two sizes do not go together.
    #[error("{key} = {value} is not divisible by {divisor_key} = {divisor}")]
    NotDivisible { key: String, value: usize, divisor_key: String, divisor: usize },
    /// The file holds a tensor that the architecture would ignore: the arithmetic would silently differ.
    #[error(
        "tensor \"{tensor}\" is not part of architecture \"{architecture}\"; the file needs an architecture that is not known here"
    )]
    UnusedTensor { tensor: String, architecture: String },
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
}
