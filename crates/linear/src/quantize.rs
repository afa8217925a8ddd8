//! Values to stored blocks, for weights that become smaller at load.

mod blocks;
mod q4_k;

use half::{bf16, f16};

use crate::{Error, WeightType};

/// Quantizes `values`, whole blocks of `ty` (one row or several), to `out`, the bytes a GGUF file would hold.
///
/// `out` takes `ty.row_bytes(values.len())` bytes. Allocates nothing; a block depends on its own values alone, so rows may
/// be given in any pieces and from any thread, with the same bytes on every machine.
///
/// - F32, F16, BF16: the value itself, rounded to nearest, ties to even.
/// - Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: scale from the extreme values of the block, quants to nearest; the bytes of ggml's reference
///   and of the `gguf` package.
/// - Q4_K: for each 32 elements a least-squares search of scale and minimum, elements weighted by `rms + |x|` (the method of
///   llama.cpp's k-quants, pull request 1684 and after); then scale and minimum in 6 bits are chosen together, with the
///   quants that follow from them, where ggml rounds each alone. Relative RMS error: 0.0699 of normal values (ggml's reference:
///   0.0706), 0.0845 of Student's t with two degrees of freedom (0.0866).
///
/// # Errors
/// [`Error::PartialBlock`] and [`Error::QuantizedLength`] for the lengths, [`Error::NoQuantizer`] for other types,
/// [`Error::NotFinite`] for NaN and infinities, [`Error::PastF16`] if a block's scale (or an F16 or BF16 value) would be
/// infinite. `out` may hold the blocks before the fault then.
pub fn quantize(ty: WeightType, values: &[f32], out: &mut [u8]) -> Result<(), Error> {
    let expected_bytes = ty.row_bytes(values.len())?;
    if out.len() != expected_bytes {
        return Err(Error::QuantizedLength {
            type_name: ty.name(),
            elements: values.len(),
            expected_bytes: expected_bytes as u64,
            actual_bytes: out.len() as u64,
        });
    }
    let block: fn(&[f32], &mut [u8]) -> Result<(), PastF16> = match ty {
        WeightType::F32 => |x, out| {
            out.copy_from_slice(&x[0].to_le_bytes());
            Ok(())
        },
        WeightType::F16 => |x, out| put_f16(x[0], out),
        WeightType::Bf16 => |x, out| {
            let rounded = bf16::from_f32(x[0]);
            out.copy_from_slice(&rounded.to_le_bytes());
            if rounded.is_finite() { Ok(()) } else { Err(PastF16) }
        },
        WeightType::Q4_0 => blocks::q4_0,
        WeightType::Q4_1 => blocks::q4_1,
        WeightType::Q5_0 => blocks::q5_0,
        WeightType::Q5_1 => blocks::q5_1,
        WeightType::Q8_0 => blocks::q8_0,
        WeightType::Q4K => q4_k::block,
        _ => return Err(Error::NoQuantizer { type_name: ty.name() }),
    };
    let (elements, bytes) = (ty.block_elements(), ty.block_bytes());
    for (index, (x, out)) in values.chunks_exact(elements).zip(out.chunks_exact_mut(bytes)).enumerate() {
        check_finite(x, index * elements)?;
        block(x, out).map_err(|PastF16| Error::PastF16 { type_name: ty.name(), index: index * elements, elements })?;
    }
    Ok(())
}

/// A scale that an f16 cannot hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PastF16;

fn check_finite(x: &[f32], first_index: usize) -> Result<(), Error> {
    // One look at all of them first: a sum of zeros is zero, and NaN times zero, as infinity times zero, is NaN.
    if x.iter().fold(0.0, |sum, v| sum + v * 0.0) == 0.0 {
        return Ok(());
    }
    match x.iter().enumerate().find(|(_, v)| !v.is_finite()) {
        None => Ok(()),
        Some((i, v)) => {
            let found = if v.is_nan() { "NaN" } else { "infinite" };
            Err(Error::NotFinite { index: first_index + i, found })
        }
    }
}

/// Writes a scale; its sign and its denormals stay.
fn put_f16(scale: f32, out: &mut [u8]) -> Result<(), PastF16> {
    let rounded = f16::from_f32(scale);
    out[..2].copy_from_slice(&rounded.to_le_bytes());
    if rounded.is_finite() { Ok(()) } else { Err(PastF16) }
}

/// Adding this to a magnitude below 2^22 rounds it to an integer, ties to even, without a call to the system's library.
const TO_INTEGER: f32 = 12_582_912.0;

/// Rounds a magnitude below 2^22 to the nearest integer, ties to even.
fn nearest(x: f32) -> f32 {
    (x + TO_INTEGER) - TO_INTEGER
}

/// Rounds a magnitude below 2^22 to the nearest integer, ties away from zero, as C's `roundf`.
fn nearest_away(x: f32) -> f32 {
    let even = nearest(x);
    // Exact, and half exactly where a tie went towards zero.
    let left = x - even;
    if x > 0.0 && left == 0.5 {
        even + 1.0
    } else if x < 0.0 && left == -0.5 {
        even - 1.0
    } else {
        even
    }
}

/// The integer part of a quant, which is in 0..256 before.
fn to_u8(x: f32) -> u8 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and drops the fraction")]
    let quant = x as u8;
    quant
}
