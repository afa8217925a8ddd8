//! Blocks of 32 elements, as ggml's `quantize_row_*_ref` functions and the `gguf` package write them.

use super::{PastF16, nearest_away, put_f16, to_u8};

pub(super) fn q8_0(x: &[f32], out: &mut [u8]) -> Result<(), PastF16> {
    let scale = x.iter().fold(0.0f32, |largest, v| largest.max(v.abs())) / 127.0;
    put_f16(scale, out)?;
    let inverse = inverse(scale);
    for (out, x) in out[2..34].iter_mut().zip(x) {
        #[expect(clippy::cast_possible_truncation, reason = "at most 127")]
        let quant = nearest_away(x * inverse) as i8;
        *out = quant.cast_unsigned();
    }
    Ok(())
}

pub(super) fn q4_0(x: &[f32], out: &mut [u8]) -> Result<(), PastF16> {
    let scale = signed_extreme(x) / -8.0;
    put_f16(scale, out)?;
    let inverse = inverse(scale);
    put_nibbles(&mut out[2..18], |k| to_u8(x[k] * inverse + 8.5).min(15));
    Ok(())
}

pub(super) fn q4_1(x: &[f32], out: &mut [u8]) -> Result<(), PastF16> {
    let (min, max) = extremes(x);
    let scale = (max - min) / 15.0;
    put_f16(scale, out)?;
    put_f16(min, &mut out[2..])?;
    let inverse = inverse(scale);
    put_nibbles(&mut out[4..20], |k| to_u8((x[k] - min) * inverse + 0.5).min(15));
    Ok(())
}

pub(super) fn q5_0(x: &[f32], out: &mut [u8]) -> Result<(), PastF16> {
    let scale = signed_extreme(x) / -16.0;
    put_f16(scale, out)?;
    let inverse = inverse(scale);
    put_5_bit(&mut out[2..22], |k| to_u8(x[k] * inverse + 16.5).min(31));
    Ok(())
}

pub(super) fn q5_1(x: &[f32], out: &mut [u8]) -> Result<(), PastF16> {
    let (min, max) = extremes(x);
    let scale = (max - min) / 31.0;
    put_f16(scale, out)?;
    put_f16(min, &mut out[2..])?;
    let inverse = inverse(scale);
    put_5_bit(&mut out[4..24], |k| to_u8((x[k] - min) * inverse + 0.5).min(31));
    Ok(())
}

/// 1 / scale, or 0 where that is no finite number: such a scale is zero as an f16, so that the quants count for nothing.
fn inverse(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The first value of the largest magnitude, with its sign.
fn signed_extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0f32, |extreme, &v| if v.abs() > extreme.abs() { v } else { extreme })
}

fn extremes(x: &[f32]) -> (f32, f32) {
    x[1..].iter().fold((x[0], x[0]), |(min, max), &v| (if v < min { v } else { min }, if v > max { v } else { max }))
}

/// Elements 0..16 to the low nibbles of 16 bytes, 16..32 to the high ones.
fn put_nibbles(out: &mut [u8], quant: impl Fn(usize) -> u8) {
    for (k, out) in out.iter_mut().enumerate() {
        *out = quant(k) | (quant(k + 16) << 4);
    }
}

/// High bits, element k in bit k of four bytes, then the low bits as nibbles.
fn put_5_bit(out: &mut [u8], quant: impl Fn(usize) -> u8) {
    let (high, low) = out.split_at_mut(4);
    for (byte, high) in high.iter_mut().enumerate() {
        *high = (0..8).fold(0, |bits, i| bits | ((quant(8 * byte + i) >> 4) << i));
    }
    put_nibbles(low, |k| quant(k) & 15);
}
