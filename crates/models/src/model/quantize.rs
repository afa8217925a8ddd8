//! Quantizes rows on their way into the packed layout.

use super::read::plain_values;
use crate::error::ModelError;
use plimsoll_linear::WeightType;
use rayon::prelude::*;

/// Types that matrices can be quantized to at load.
const SUPPORTED: &[WeightType] = &[WeightType::Q8_0, WeightType::Q4K];

/// Elements that are widened and quantized at a time.
const PIECE_ELEMENTS: usize = 1 << 18;

/// Whether a matrix stored as `stored`, with rows of `in_features`, becomes `wanted`.
pub(super) fn applies(stored: WeightType, wanted: WeightType, in_features: usize) -> bool {
    crate::checkpoint::PLAIN_TYPES.contains(&stored) && in_features.is_multiple_of(wanted.block_elements())
}

/// # Errors
/// [`ModelError::QuantizeTo`] if there is no quantizer for `wanted`.
pub(super) fn check(wanted: WeightType) -> Result<(), ModelError> {
    if SUPPORTED.contains(&wanted) {
        return Ok(());
    }
    Err(ModelError::QuantizeTo { found: wanted.name(), supported: "Q8_0, Q4_K" })
}

/// Quantizes whole rows in pieces of bounded size.
#[derive(Debug)]
pub(super) struct Rows {
    stored: WeightType,
    kind: WeightType,
    in_features: usize,
    threads: usize,
    values: Vec<f32>,
    bytes: Vec<u8>,
}

impl Rows {
    pub(super) fn new(
        stored: WeightType,
        kind: WeightType,
        in_features: usize,
        threads: usize,
    ) -> Result<Self, ModelError> {
        check(kind)?;
        Ok(Self { stored, kind, in_features, threads: threads.max(1), values: Vec::new(), bytes: Vec::new() })
    }

    /// Calls `push` with the quantized form of the rows in `stored`, piece by piece.
    ///
    /// # Errors
    /// Those of the quantizer (values past the range of its scales) and of `push`.
    pub(super) fn for_each(
        &mut self,
        stored: &[u8],
        mut push: impl FnMut(&[u8]) -> Result<(), plimsoll_linear::Error>,
    ) -> Result<(), plimsoll_linear::Error> {
        let row_bytes = self.in_features * self.stored.block_bytes();
        let rows = (PIECE_ELEMENTS / self.in_features).max(1);
        let quantized_row_bytes = self.kind.row_bytes(self.in_features)?;
        for piece in stored.chunks(rows * row_bytes) {
            self.values.clear();
            self.values.extend(plain_values(self.stored, piece));
            self.bytes.resize(piece.len() / row_bytes * quantized_row_bytes, 0);
            self.quantize(quantized_row_bytes)?;
            push(&self.bytes)?;
        }
        Ok(())
    }

    /// Quantizes the values at hand, rows divided between `threads` tasks of the current pool: a block depends on its own values alone.
    fn quantize(&mut self, quantized_row_bytes: usize) -> Result<(), plimsoll_linear::Error> {
        let Self { kind, in_features, values, bytes, threads, .. } = self;
        let rows = values.len() / *in_features;
        let share = rows.div_ceil(*threads).max(1);
        if share == rows {
            return plimsoll_linear::quantize(*kind, values, bytes);
        }
        values
            .par_chunks(share * *in_features)
            .zip(bytes.par_chunks_mut(share * quantized_row_bytes))
            .try_for_each(|(values, bytes)| plimsoll_linear::quantize(*kind, values, bytes))
    }
}
