//! What a caller can get wrong, with the numbers that show it.

use crate::{Isa, KvDtype, KvValues};

/// Why a view could not be made or a pass could not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "field names say what they hold and in which unit")]
#[non_exhaustive]
pub enum Error {
    /// A layout or shape has an axis of length zero.
    #[error("{axis} is zero")]
    EmptyAxis { axis: &'static str },
    /// An axis is so long that products of axes could not be counted.
    #[error("{axis} is {length}, at most {maximum} can be counted")]
    TooLarge { axis: &'static str, length: usize, maximum: usize },
    /// `kv_heads` does not divide `heads`.
    #[error("{heads} query heads cannot be shared out over {kv_heads} KV heads")]
    HeadGroups { heads: usize, kv_heads: usize },
    /// The view's layout is not the one the route was chosen for.
    #[error("the route was chosen for {expected} {field}, the view has {actual}")]
    LayoutMismatch { field: &'static str, expected: usize, actual: usize },
    /// The view's number format is not the one the route was chosen for.
    #[error("the route was chosen for {expected:?} keys and values, the view has {actual:?}")]
    DtypeMismatch { expected: KvDtype, actual: KvDtype },
    /// The view's values are not where the route was chosen for.
    #[error("the route was chosen for {}, the view has {}", expected.name(), actual.name())]
    ValuesMismatch { expected: KvValues, actual: KvValues },
    /// Values that are the first elements of a key, and more than it has.
    #[error("values of {v_head_dim} elements cannot be in keys of {head_dim}")]
    ValuesPastKeys { head_dim: usize, v_head_dim: usize },
    /// Fewer blocks than `kv_len` needs.
    #[error("{kv_len} keys from block {first_block} on need {needed} KV blocks, {actual} were given")]
    MissingBlocks { kv_len: usize, first_block: usize, needed: usize, actual: usize },
    /// A block's K or V part has the wrong length.
    #[error("KV block {block}: {part} has {actual_bytes} bytes, the layout needs {expected_bytes}")]
    BlockBytes { block: usize, part: &'static str, expected_bytes: usize, actual_bytes: usize },
    /// A block's K or V part does not start at a multiple of 64 bytes.
    #[error("KV block {block}: {part} starts {offset} bytes past a multiple of 64")]
    BlockAlignment { block: usize, part: &'static str, offset: usize },
    /// The view has already dropped keys that the first row's window still covers.
    #[error("the first row needs keys from position {needed_position} on, the view starts at {first_position}")]
    KeysDropped { needed_position: usize, first_position: usize },
    /// The last row lies past the last key: each row sees at least itself.
    #[error("rows {start}..{start}+{rows} reach past the {kv_len} keys of the view")]
    RowsPastKeys { start: usize, rows: usize, kv_len: usize },
    /// A sliding window of no tokens, or not the one the route was chosen for.
    #[error("the window is {actual:?} tokens, the route was chosen for {expected:?}")]
    Window { expected: Option<usize>, actual: Option<usize> },
    /// A slice has the wrong number of elements.
    #[error("{slice} has {actual} elements, the shape needs {expected}")]
    SliceLength { slice: &'static str, expected: usize, actual: usize },
    /// The scratch slice is too small.
    #[error("scratch has {actual_bytes} bytes, {needed_bytes} are needed")]
    ScratchBytes { needed_bytes: u64, actual_bytes: u64 },
    /// The scratch slice does not start at a multiple of 64 bytes.
    #[error("scratch starts {offset} bytes past a multiple of 64")]
    ScratchAlignment { offset: usize },
    /// The CPU lacks an instruction set, or the system does not permit it.
    #[error("this CPU has no {isa}, or the system does not permit it; the best it has is {best}")]
    IsaUnavailable { isa: Isa, best: Isa },
    /// Another thread wanted the end of the call.
    #[error("the call was stopped")]
    Stopped,
    /// No instruction set has the name that was given.
    #[error("no such instruction set; there are amx, avx512, avx2, neon and scalar")]
    UnknownIsa,
}
