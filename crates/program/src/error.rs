//! What can be wrong with a program.

use std::fmt;

use crate::{DType, Extent};

/// The operation a fault belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct At {
    /// Name of the builder's operation, such as `linear`.
    pub op: &'static str,
    /// Scope it was recorded in, such as `layer 3`; empty if none.
    pub label: String,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.label.is_empty() { f.write_str(self.op) } else { write!(f, "{} in {}", self.op, self.label) }
    }
}

/// Why [`ProgramBuilder::build`](crate::ProgramBuilder::build) refused. Slots go by their names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "field names say what they hold and in which unit")]
#[non_exhaustive]
pub enum BuildError {
    /// A constant's shape is not what the operation takes.
    #[error("{at}: constant '{slot}' has shape {found:?}, expected {expected}")]
    Shape { at: At, slot: String, expected: String, found: Vec<usize> },
    /// An operand's rows have the wrong number of elements.
    #[error("{at}: '{slot}' has rows of {found} elements, expected {expected}")]
    Width { at: At, slot: String, expected: usize, found: usize },
    /// An operand has the wrong extent.
    #[error("{at}: '{slot}' is {found}, expected {expected}")]
    Extent { at: At, slot: String, expected: Extent, found: Extent },
    /// An operand is `Fixed` where rows of the pass are needed, or the other way round.
    #[error("{at}: '{slot}' is {found}, expected {expected}")]
    Rows { at: At, slot: String, expected: &'static str, found: Extent },
    /// An operand has the wrong element type.
    #[error("{at}: '{slot}' is {found:?}, expected {expected}")]
    DType { at: At, slot: String, expected: &'static str, found: DType },
    /// An operand is of the wrong kind.
    #[error("{at}: '{slot}' is a slot of kind {found}, expected {expected}")]
    Kind { at: At, slot: String, expected: &'static str, found: &'static str },
    /// The last axis cannot be split into that many groups.
    #[error("{at}: the {width} elements per row of '{slot}' do not split into {groups} groups")]
    Groups { at: At, slot: String, width: usize, groups: usize },
    /// The heads of q, k and v do not fit together.
    #[error("{at}: {heads} heads over {kv_heads} key heads and {v_heads} value heads")]
    HeadGroups { at: At, heads: usize, kv_heads: usize, v_heads: usize },
    /// q and k have different head sizes.
    #[error("{at}: query heads have {q_head_dim} elements, key heads {k_head_dim}")]
    HeadDim { at: At, q_head_dim: usize, k_head_dim: usize },
    /// A router that chooses no expert, or more than there are.
    #[error("{at}: {k} of {experts} experts")]
    Experts { at: At, k: usize, experts: usize },
    /// Elements past the end of a group.
    #[error("{at}: elements {offset}..{offset}+{len} of each group of '{slot}', which has {head_dim}")]
    Columns { at: At, slot: String, offset: usize, len: usize, head_dim: usize },
    /// The heads of a delta rule do not fit together.
    #[error("{at}: {value_heads} value heads over {key_heads} key heads of q and {k_heads} of k")]
    DeltaHeads { at: At, key_heads: usize, k_heads: usize, value_heads: usize },
    /// A rotary table is wider than a head, or odd.
    #[error("{at}: a rotary table of {rotated} elements for heads of {head_dim}")]
    Rotary { at: At, rotated: usize, head_dim: usize },
    /// Attention over a window of no keys: a row sees at least its own.
    #[error("{at}: a window of 0 keys")]
    EmptyWindow { at: At },
    /// A view past the end of its slot.
    #[error("{at}: elements {offset}..{offset}+{len} of '{slot}', which has {elements}")]
    ViewRange { at: At, slot: String, offset: usize, len: usize, elements: usize },
    /// A slot was read after an in-place operation took its memory.
    #[error("{at}: '{slot}' was overwritten in place by {overwritten_by}")]
    UsedAfterOverwrite { at: At, slot: String, overwritten_by: &'static str },
    /// In-place work on memory that the current chain does not own.
    #[error(
        "{at}: '{slot}' ({kind}) cannot be overwritten here: only a whole temporary of the same chain or a carry can"
    )]
    NotOverwritable { at: At, slot: String, kind: &'static str },
    /// An in-place operation whose other operand is the memory it overwrites.
    #[error("{at}: '{slot}' shares the memory that is overwritten")]
    AliasedOperand { at: At, slot: String },
    /// A slot of a branch or scan body was used outside of it.
    #[error("{at}: '{slot}' belongs to a nested chain that has ended")]
    OutOfScope { at: At, slot: String },
    /// A slot of another builder.
    #[error("{at}: slot number {index}, but only {slots} exist")]
    UnknownSlot { at: At, index: usize, slots: usize },
    /// The branches of an `if` give different numbers of results.
    #[error("{at}: {then_results} results from one branch, {else_results} from the other")]
    BranchResults { at: At, then_results: usize, else_results: usize },
    /// A scan body gives a wrong number of next values.
    #[error("{at}: {carries} carries, but the body gives {next} next values")]
    ScanResults { at: At, carries: usize, next: usize },
    /// Two constants, inputs or states of one name.
    #[error("{at}: the name '{name}' is taken")]
    DuplicateName { at: At, name: String },
    /// More than one fault, in the order they were met.
    #[error("{} faults, the first: {}", faults.len(), faults[0])]
    Several { faults: Vec<Self> },
}
