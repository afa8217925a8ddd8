//! What packing a weight can refuse.

/// Why a weight was not packed. Every number needed to see the fault is a field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "field names say what they hold and in which unit")]
#[non_exhaustive]
pub enum Error {
    /// The GGML type id names no type this crate multiplies.
    #[error("GGML type {ggml_id} is not supported; supported ids are 0, 1, 3, 8, 12, 14 and 30")]
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
}
