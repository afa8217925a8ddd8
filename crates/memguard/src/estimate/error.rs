//! Why a model could not be priced.

/// Why a config gave no profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "field names say what they hold")]
#[non_exhaustive]
pub enum EstimateError {
    /// The config names no architecture.
    #[error("the config names no architecture (`model_type`, or `general.architecture` in a GGUF file)")]
    NoArchitecture,
    /// Nobody registered this architecture.
    #[error("architecture `{name}` is not registered")]
    UnknownArchitecture { name: String },
    /// A field the architecture cannot do without is absent.
    #[error("the config has no `{field}`")]
    MissingField { field: &'static str },
    /// A field holds what it cannot hold.
    #[error("`{field}` cannot be {value}")]
    BadField { field: &'static str, value: String },
    /// The list of layer kinds is shorter than the model.
    #[error("{layers} layers, but `layer_types` lists {listed}")]
    LayerCount { layers: usize, listed: usize },
    /// A layer is of a kind the architecture does not have.
    #[error("layer {layer} is of unknown type `{name}`")]
    LayerType { layer: usize, name: String },
    /// The rule of whoever registered the architecture says no; built-in rules never do.
    #[error("`{name}`: {reason}")]
    Refused { name: String, reason: String },
}
