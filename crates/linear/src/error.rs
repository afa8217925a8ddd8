//! What packing a weight or choosing an instruction set can refuse.

use crate::Isa;

/// Why a weight was not packed, or an instruction set not taken. Every number needed to see the fault is a field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "field names say what they hold and in which unit")]
#[non_exhaustive]
pub enum Error {
    /// The GGML type id names no type this crate multiplies.
    #[error(
        "GGML type {ggml_id} is not supported; supported ids are 0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 30, 39"
    )]
    UnsupportedType { ggml_id: u32 },
    /// A weight needs at least one row and one column.
    #[error("a weight of {out_features} x {in_features} is empty")]
    Empty { out_features: usize, in_features: usize },
    /// Rows of a block format consist of whole quantization blocks.
    #[error("{in_features} input features are not whole {type_name} blocks of {block_elements} elements")]
    PartialBlock { type_name: &'static str, in_features: usize, block_elements: usize },
    /// The weight's size in bytes does not fit in this machine's address space.
    #[error("a {type_name} weight of {out_features} x {in_features} is too large for this machine")]
    TooLarge { type_name: &'static str, out_features: usize, in_features: usize },
    /// The system has no memory for the packed weight.
    #[error("no memory for a packed weight of {bytes} bytes")]
    OutOfMemory { bytes: u64 },
    /// The bytes are not exactly `out_features` rows.
    #[error("{type_name} {out_features} x {in_features} takes {expected_bytes} bytes, {actual_bytes} given")]
    ByteLength {
        type_name: &'static str,
        out_features: usize,
        in_features: usize,
        expected_bytes: u64,
        actual_bytes: u64,
    },
    /// A piece given to [`Packer::push`](crate::Packer::push) is not whole rows.
    #[error("a piece of {actual_bytes} bytes is not whole rows of {row_bytes} bytes")]
    PartialRow { row_bytes: u64, actual_bytes: u64 },
    /// More rows were pushed than the weight has.
    #[error("{pushed_rows} rows pushed into a weight of {out_features} rows")]
    TooManyRows { pushed_rows: usize, out_features: usize },
    /// Fewer rows were pushed than the weight has.
    #[error("{pushed_rows} of {out_features} rows pushed")]
    MissingRows { pushed_rows: usize, out_features: usize },
    /// The bytes given to [`quantize`](crate::quantize) are not exactly those of its values.
    #[error("{elements} elements take {expected_bytes} bytes as {type_name}, {actual_bytes} given")]
    QuantizedLength { type_name: &'static str, elements: usize, expected_bytes: u64, actual_bytes: u64 },
    /// A type that is read but not made here.
    #[error(
        "values are not quantized to {type_name} here; F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and Q4_K can be made"
    )]
    NoQuantizer { type_name: &'static str },
    /// A value that no scale can reach.
    #[error("element {index} is {found}; only finite values can be quantized")]
    NotFinite { index: usize, found: &'static str },
    /// Values so large that the block's scale, or the value itself, is past the largest 16-bit float.
    #[error(
        "the {elements} elements from {index} on are too large for {type_name}, whose scales end at 65504; keep them in F32"
    )]
    PastF16 { type_name: &'static str, index: usize, elements: usize },
    /// The CPU lacks an instruction set, or the system does not permit it.
    #[error("this CPU has no {isa}, or the system does not permit it; the best it has is {best}")]
    IsaUnavailable { isa: Isa, best: Isa },
    /// No instruction set has this name.
    #[error("no instruction set is called {name:?}; there are amx, avx512, avx2, neon and scalar")]
    UnknownIsa { name: String },
}
