//! Why a model could not be priced.

/// Why a config gave no profile. A field is named as the file has it: as in `config.json`, or by its whole key in a GGUF file.
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
    MissingField { field: String },
    /// A field holds what it cannot hold.
    #[error("`{field}` cannot be {value}: expected {expected}")]
    BadField { field: String, value: String, expected: String },
    /// Two sizes do not go together.
    #[error("`{field}` = {value} is not divisible by `{divisor_field}` = {divisor}")]
    NotDivisible { field: String, value: usize, divisor_field: String, divisor: usize },
    /// A part is larger than the whole.
    #[error("`{field}` = {value} is more than `{limit_field}` = {limit}")]
    MoreThan { field: String, value: usize, limit_field: String, limit: usize },
    /// The list of layer kinds is shorter or longer than the model.
    #[error("{layers} layers, but `{field}` lists {listed}")]
    LayerCount { field: String, layers: usize, listed: usize },
    /// A layer is of a kind the architecture does not have.
    #[error("layer {layer} is of unknown type `{name}`")]
    LayerType { layer: usize, name: String },
    /// The rule of whoever registered the architecture says no; built-in rules never do.
    #[error("`{name}`: {reason}")]
    Refused { name: String, reason: String },
}

impl EstimateError {
    /// The same with every field called what `name` makes of it.
    pub(super) fn with_fields(mut self, name: impl Fn(&str) -> String) -> Self {
        let fields = match &mut self {
            Self::MissingField { field } | Self::BadField { field, .. } | Self::LayerCount { field, .. } => {
                [Some(field), None]
            }
            Self::NotDivisible { field, divisor_field: other, .. }
            | Self::MoreThan { field, limit_field: other, .. } => [Some(field), Some(other)],
            Self::NoArchitecture | Self::UnknownArchitecture { .. } | Self::LayerType { .. } | Self::Refused { .. } => {
                [None, None]
            }
        };
        for field in fields.into_iter().flatten() {
            *field = name(field);
        }
        self
    }
}
