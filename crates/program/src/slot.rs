//! Slots: the values a program names, and how large they are.

use std::fmt;

/// Element type of a slot as the steps see it.
///
/// A weight stored in a block format is declared with the type it is read as (`F32`): how it is stored is known to the
/// executor alone, and constants take no part in the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit float.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an `F32`.
    Bf16,
    /// 32-bit unsigned integer: token ids, positions, row numbers.
    U32,
    /// Byte.
    U8,
}

impl DType {
    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::U8 => 1,
        }
    }

    /// Whether the type is a floating-point type.
    pub const fn is_float(self) -> bool {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => true,
            Self::U32 | Self::U8 => false,
        }
    }
}

/// What one pass through the program is sized by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dims {
    /// Tokens in the pass.
    pub rows: usize,
    /// Rows whose logits are asked for.
    pub logit_rows: usize,
    /// Keys visible to the last row. Sizes no slot, only the scratch memory a [`CostModel`](crate::CostModel) reports.
    pub kv_len: usize,
}

/// How many elements a slot has: affine in the dimensions of a pass, nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Extent {
    /// `[n]`, whatever the pass.
    Fixed(usize),
    /// `[rows, n]`: one row per token of the pass.
    PerRow(usize),
    /// `[logit_rows, n]`: one row per row of logits.
    PerLogitRow(usize),
}

impl Extent {
    /// Elements of one row. A `Fixed` extent is one row.
    pub const fn width(self) -> usize {
        match self {
            Self::Fixed(n) | Self::PerRow(n) | Self::PerLogitRow(n) => n,
        }
    }

    /// Number of rows in a pass. A `Fixed` extent is one row.
    pub const fn rows(self, dims: &Dims) -> usize {
        match self {
            Self::Fixed(_) => 1,
            Self::PerRow(_) => dims.rows,
            Self::PerLogitRow(_) => dims.logit_rows,
        }
    }

    /// Number of elements in a pass, saturating at `usize::MAX`.
    pub const fn elements(self, dims: &Dims) -> usize {
        self.width().saturating_mul(self.rows(dims))
    }

    /// As many rows, each of `width` elements.
    #[must_use]
    pub const fn with_width(self, width: usize) -> Self {
        match self {
            Self::Fixed(_) => Self::Fixed(width),
            Self::PerRow(_) => Self::PerRow(width),
            Self::PerLogitRow(_) => Self::PerLogitRow(width),
        }
    }

    /// Whether both have the same number of rows in every pass.
    pub fn same_rows(self, other: Self) -> bool {
        self.with_width(0) == other.with_width(0)
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(n) => write!(f, "[{n}]"),
            Self::PerRow(n) => write!(f, "[rows, {n}]"),
            Self::PerLogitRow(n) => write!(f, "[logit_rows, {n}]"),
        }
    }
}

/// Names one value of a program. Made by a [`ProgramBuilder`](crate::ProgramBuilder), valid for its program only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub(crate) u32);

impl Slot {
    /// Position in [`Program::slots`](crate::Program::slots).
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn from_index(index: usize) -> Self {
        Self(u32::try_from(index).expect("a program has fewer than 2^32 slots"))
    }
}

/// Who owns a slot's memory and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SlotKind {
    /// A weight or table. Lives as long as the model, outside the arena.
    Constant,
    /// Given by the caller before the pass; in the arena from start to end, never written by a step.
    Input,
    /// Read by the caller after the pass; in the arena from the step that makes it to the end.
    Output,
    /// Lives across passes (KV, recurrent state), outside the arena; belongs to the sequence.
    State,
    /// In the arena from the step that makes it to its last use.
    Temporary,
    /// Another name for the memory of `of`, which is never a view itself.
    View {
        /// The slot whose memory this is.
        of: Slot,
    },
}

impl SlotKind {
    /// Lower-case name for messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Input => "input",
            Self::Output => "output",
            Self::State => "state",
            Self::Temporary => "temporary",
            Self::View { .. } => "view",
        }
    }

    /// Whether the memory comes from the arena. A view has none of its own: ask for its root.
    pub const fn in_arena(self) -> bool {
        match self {
            Self::Input | Self::Output | Self::Temporary => true,
            Self::Constant | Self::State | Self::View { .. } => false,
        }
    }
}

/// What is known of a slot before any pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotInfo {
    /// Unique for constants, inputs and state (`"blk.0.attn_q.weight"`); a hint for the rest.
    pub name: String,
    /// Who owns the memory.
    pub kind: SlotKind,
    /// Number of elements.
    pub extent: Extent,
    /// Element type.
    pub dtype: DType,
    /// Heads that the last axis is split into; 1 if it is not split.
    pub groups: usize,
    /// For a view, elements between the start of its root and its own; 0 otherwise.
    pub offset: usize,
    /// For a constant, its shape (`[out_features, in_features]`); empty otherwise.
    pub shape: Vec<usize>,
}

impl SlotInfo {
    /// Elements of one head: the row's width over the number of groups.
    pub fn head_dim(&self) -> usize {
        self.extent.width() / self.groups.max(1)
    }

    /// Bytes in a pass, saturating at `u64::MAX`.
    pub fn bytes(&self, dims: &Dims) -> u64 {
        (self.extent.elements(dims) as u64).saturating_mul(self.dtype.bytes())
    }
}
