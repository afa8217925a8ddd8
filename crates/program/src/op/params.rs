//! What operations are told besides their slots.

#[cfg(doc)]
use crate::Op;
use crate::Slot;

/// One weight of a [`Op::Linear`] step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearPart {
    /// Constant `[out_features, in_features]`.
    pub weight: Slot,
    /// Constant `[out_features]`, added once at the end.
    pub bias: Option<Slot>,
    /// `[.., out_features]`.
    pub out: Slot,
}

/// Which elements of a head rotate together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeLayout {
    /// `i` with `i + rotated / 2` (GPT-NeoX, Hugging Face checkpoints).
    Halves,
    /// `2 i` with `2 i + 1` (the paper's, GGUF files of the llama family).
    Pairs,
}

/// Parameters of an [`Op::Attend`] step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttendSpec {
    /// Factor on `q . k`.
    pub scale: f32,
    /// Keys a row sees, itself included; `None` for all.
    pub window: Option<usize>,
    /// `cap * tanh(score / cap)` after the scale.
    pub softcap: Option<f32>,
    /// Constant `[heads]`: one more logit per head that takes weight and gives no value.
    pub sinks: Option<Slot>,
}

impl AttendSpec {
    /// Plain causal attention.
    pub const fn causal(scale: f32) -> Self {
        Self { scale, window: None, softcap: None, sinks: None }
    }
}

/// Activation of a gated unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x * Phi(x)`, with the error function.
    Gelu,
    /// GELU by its `tanh` formula.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
}

/// Function of one element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unary {
    /// `x * sigmoid(x)`.
    Silu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `x * Phi(x)`, with the error function.
    Gelu,
    /// GELU by its `tanh` formula.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// Hyperbolic tangent.
    Tanh,
    /// `e^x`.
    Exp,
    /// `-x`.
    Neg,
    /// `x * x`.
    Square,
    /// Square root.
    Sqrt,
    /// `ln(1 + e^x)`; `x` itself above 20.
    Softplus,
}

/// Which key head a value head of an [`Op::GatedDelta`] step works with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeadOrder {
    /// Neighbours share one: `h / (value_heads / key_heads)` (Hugging Face checkpoints).
    Grouped,
    /// Key heads repeat: `h % key_heads` (llama.cpp's files of Qwen3.5).
    Tiled,
}

impl HeadOrder {
    /// The key head of value head `head`.
    pub const fn key_head(self, head: usize, key_heads: usize, value_heads: usize) -> usize {
        match self {
            Self::Grouped => head / (value_heads / key_heads),
            Self::Tiled => head % key_heads,
        }
    }
}

/// How a router's logits become the scores of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scoring {
    /// Softmax over all experts of the row.
    Softmax,
    /// `1 / (1 + exp(-x))` of each logit.
    Sigmoid,
}

/// Parameters of an [`Op::TopK`] step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouteSpec {
    /// Experts chosen per row.
    pub k: usize,
    /// What is compared and becomes a weight.
    pub scoring: Scoring,
    /// Whether the chosen scores are divided by their sum.
    pub normalize: bool,
    /// Factor on each weight, at the end.
    pub scale: f32,
}

/// Chooses a branch of an [`Op::If`] step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// The pass has at most this many rows.
    RowsAtMost(usize),
    /// The one element of this `Fixed(1)` slot is not zero.
    Nonzero(Slot),
}

/// One source of an [`Op::Scan`] step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanInput {
    /// `[rows, width]`.
    pub source: Slot,
    /// `[width]`: row `i` of the source during iteration `i`. Owned by the body.
    pub row: Slot,
}

/// A value that an [`Op::Scan`] step hands from one iteration to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carry {
    /// Initial value before the step, final value after it. Owned by a chain around the body, or state.
    pub carry: Slot,
    /// Copied to `carry` after each iteration. Where both have one root, the body has written in place and there is
    /// nothing to copy.
    pub next: Slot,
}

/// One stacked result of an [`Op::Scan`] step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanOutput {
    /// `[width]`: the value of iteration `i`.
    pub row: Slot,
    /// `[rows, width]`: row `i` is taken after iteration `i`, before the carries take their next value.
    pub stacked: Slot,
}
