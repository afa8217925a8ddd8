//! A tensor of a file: its name, shape, type and bytes.

use std::fmt;

use super::error::shown;
use super::{GgmlType, GgufError};

/// Most dimensions a tensor can have.
pub const MAX_DIMENSIONS: usize = 4;

/// Sizes of 1 to [`MAX_DIMENSIONS`] dimensions, outermost first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    dims: [usize; MAX_DIMENSIONS],
    len: usize,
}

impl Shape {
    pub(super) fn dims(&self) -> &[usize] {
        &self.dims[..self.len]
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.dims().fmt(f)
    }
}

/// Checks the dimensions of tensor `name`, given innermost first as files have them, and counts its bytes.
pub(super) fn check_size(name: &str, ggml_type: GgmlType, dims: &[u64]) -> Result<(Shape, u64), GgufError> {
    if dims.is_empty() || dims.len() > MAX_DIMENSIONS {
        let found = u32::try_from(dims.len()).unwrap_or(u32::MAX);
        return Err(GgufError::DimensionCount { name: shown(name), found, max: MAX_DIMENSIONS });
    }
    if dims.contains(&0) {
        return Err(GgufError::EmptyDimension { name: shown(name), dims: dims.to_vec() });
    }
    let row_elements = dims[0];
    let block_elements = ggml_type.block_elements() as u64;
    if !row_elements.is_multiple_of(block_elements) {
        return Err(GgufError::PartialBlock { name: shown(name), ggml_type, row_elements, block_elements });
    }
    let size = || {
        let elements = dims.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim))?;
        let size_bytes = ggml_type.size_bytes(elements)?;
        // No slice is longer than `isize::MAX` bytes. Blocks shrink some types below one byte an element, so that the
        // number of elements is held to the same bound.
        isize::try_from(size_bytes.max(elements)).ok()?;
        let mut shape = Shape { dims: [1; MAX_DIMENSIONS], len: dims.len() };
        for (out, &dim) in shape.dims.iter_mut().zip(dims.iter().rev()) {
            *out = usize::try_from(dim).ok()?;
        }
        Some((shape, size_bytes))
    };
    size().ok_or_else(|| GgufError::TensorTooLarge { name: shown(name), dims: dims.to_vec() })
}

/// One tensor of an open file; a cheap copy that borrows name and data.
#[derive(Clone, Copy)]
pub struct TensorView<'a> {
    pub(super) name: &'a str,
    pub(super) shape: Shape,
    pub(super) ggml_type: GgmlType,
    pub(super) data: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// Name, such as `blk.0.attn_q.weight`.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// Sizes of the 1 to 4 dimensions, outermost first, so `[out_features, in_features]` for a weight matrix. (The file
    /// itself has them innermost first.) No size is zero.
    pub fn shape(&self) -> &[usize] {
        self.shape.dims()
    }

    /// Element type.
    pub fn ggml_type(&self) -> GgmlType {
        self.ggml_type
    }

    /// Number of elements: the product of the shape.
    pub fn elements(&self) -> usize {
        self.shape().iter().product()
    }

    /// The tensor as stored: row-major, each row a whole number of quant blocks, little-endian. The length is the one that
    /// type and shape ask for. It begins at a multiple of the file's alignment in the file, and so in memory for a map;
    /// for a buffer the address is arbitrary.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// The tensor itself if its shape is `expected` (outermost first).
    ///
    /// # Errors
    /// [`GgufError::WrongShape`].
    pub fn expect_shape(self, expected: &[usize]) -> Result<Self, GgufError> {
        if self.shape() == expected {
            return Ok(self);
        }
        Err(GgufError::WrongShape { name: shown(self.name), expected: expected.to_vec(), found: self.shape().to_vec() })
    }

    /// The tensor itself if its type is one of `supported`.
    ///
    /// # Errors
    /// [`GgufError::UnsupportedType`], which lists `supported`.
    pub fn expect_type(self, supported: &[GgmlType]) -> Result<Self, GgufError> {
        if supported.contains(&self.ggml_type) {
            return Ok(self);
        }
        Err(GgufError::UnsupportedType { name: shown(self.name), found: self.ggml_type, supported: supported.to_vec() })
    }
}

impl fmt::Debug for TensorView<'_> {
    /// Without the data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorView")
            .field("name", &self.name)
            .field("shape", &self.shape)
            .field("ggml_type", &self.ggml_type)
            .field("data_bytes", &self.data.len())
            .finish()
    }
}
