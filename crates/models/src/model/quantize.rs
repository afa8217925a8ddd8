//! Quantizes rows on their way into the packed layout.

use super::read::plain_values;
use crate::error::ModelError;
use plimsoll_linear::WeightType;

/// Types that matrices can be quantized to at load.
const SUPPORTED: &[WeightType] = &[WeightType::Q8_0];

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
    Err(ModelError::QuantizeTo { found: wanted.name(), supported: "Q8_0" })
}

/// Quantizes whole rows in pieces of bounded size.
#[derive(Debug)]
pub(super) struct Rows {
    stored: WeightType,
    in_features: usize,
    values: Vec<f32>,
    bytes: Vec<u8>,
}

impl Rows {
    pub(super) fn new(stored: WeightType, kind: WeightType, in_features: usize) -> Result<Self, ModelError> {
        check(kind)?;
        Ok(Self { stored, in_features, values: Vec::new(), bytes: Vec::new() })
    }

    /// Calls `push` with the quantized form of the rows in `stored`, piece by piece.
    pub(super) fn for_each<E>(&mut self, stored: &[u8], mut push: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let row_bytes = self.in_features * self.stored.block_bytes();
        let rows = (PIECE_ELEMENTS / self.in_features).max(1);
        for piece in stored.chunks(rows * row_bytes) {
            self.values.clear();
            self.values.extend(plain_values(self.stored, piece));
            self.bytes.clear();
            q8_0(&self.values, &mut self.bytes);
            push(&self.bytes)?;
        }
        Ok(())
    }
}

/// Q8_0 as GGML has it: a scale of `max |x| / 127` per 32 elements, quants rounded half away from zero by the scale before it became f16.
fn q8_0(values: &[f32], bytes: &mut Vec<u8>) {
    for block in values.as_chunks::<32>().0 {
        let largest = block.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        let scale = largest / 127.0;
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        bytes.extend_from_slice(&half::f16::from_f32(scale).to_le_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "the quotient is at most 127")]
        bytes.extend(block.iter().map(|value| (value * inverse).round() as i8).flat_map(i8::to_le_bytes));
    }
}
