//! Oracles: plain code over the stored bytes, without the packed layout and the kernels. Slow; for tests.

use half::{bf16, f16};

use crate::{Error, WeightType, bf16_operand};

/// Dequantizes stored bytes (whole blocks of `ty`) as GGML's `dequantize_row_*` functions do.
///
/// # Errors
/// [`Error::PartialRow`] if `bytes` is not whole blocks.
pub fn dequantize(ty: WeightType, bytes: &[u8]) -> Result<Vec<f32>, Error> {
    let block_bytes = ty.block_bytes();
    if !bytes.len().is_multiple_of(block_bytes) {
        return Err(Error::PartialRow { row_bytes: block_bytes as u64, actual_bytes: bytes.len() as u64 });
    }
    let mut out = Vec::with_capacity(bytes.len() / block_bytes * ty.block_elements());
    for block in bytes.chunks_exact(block_bytes) {
        match ty {
            WeightType::F32 => out.push(f32::from_le_bytes([block[0], block[1], block[2], block[3]])),
            WeightType::F16 => out.push(half_at(block, 0)),
            WeightType::Bf16 => out.push(bf16::from_le_bytes([block[0], block[1]]).to_f32()),
            WeightType::Q4_1 => {
                let (d, m) = (half_at(block, 0), half_at(block, 2));
                out.extend(block[4..20].iter().map(|q| f32::from(q & 15) * d + m));
                out.extend(block[4..20].iter().map(|q| f32::from(q >> 4) * d + m));
            }
            WeightType::Q8_0 => {
                let d = half_at(block, 0);
                out.extend(block[2..34].iter().map(|q| f32::from(q.cast_signed()) * d));
            }
            WeightType::Q4K => dequantize_q4_k(block, &mut out),
            WeightType::Q6K => dequantize_q6_k(block, &mut out),
        }
    }
    Ok(out)
}

fn dequantize_q4_k(block: &[u8], out: &mut Vec<f32>) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let packed = &block[4..16];
    let scale_and_min = |j: usize| {
        if j < 4 {
            (packed[j] & 63, packed[j + 4] & 63)
        } else {
            let scale = (packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4);
            (scale, (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4))
        }
    };
    for (pair, quants) in block[16..144].chunks_exact(32).enumerate() {
        for nibble in 0..2 {
            let (scale, min) = scale_and_min(2 * pair + nibble);
            let (d, m) = (d * f32::from(scale), dmin * f32::from(min));
            out.extend(quants.iter().map(|q| d * f32::from((q >> (4 * nibble)) & 15) - m));
        }
    }
}

fn dequantize_q6_k(block: &[u8], out: &mut Vec<f32>) {
    let d = half_at(block, 208);
    for half in 0..2 {
        let (low, high) = (&block[half * 64..][..64], &block[128 + half * 32..][..32]);
        let scales = &block[192 + half * 8..][..8];
        for quarter in 0..4 {
            for l in 0..32 {
                let low_bits = (low[l + 32 * (quarter % 2)] >> (4 * (quarter / 2))) & 15;
                let high_bits = (high[l] >> (2 * quarter)) & 3;
                let quant = (low_bits | (high_bits << 4)).cast_signed() - 32;
                let scale = scales[l / 16 + 2 * quarter].cast_signed();
                out.push(d * f32::from(scale) * f32::from(quant));
            }
        }
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// The contract, spelled out for one output: `x` and `w` are `[in_features]`, `w` dequantized.
///
/// Steps of 32; two chains of fused multiply-adds per step, from +0; `acc + (even + odd)`; the bias last. NaN results
/// are the canonical quiet NaN. [`linear`](crate::linear) gives these bits.
pub fn dot(ty: WeightType, x: &[f32], w: &[f32], bias: Option<f32>) -> f32 {
    let operand = |v: f32| if ty.multiplies_in_bf16() { bf16_operand(v) } else { v };
    let mut acc = 0.0f32;
    for (x, w) in x.chunks(32).zip(w.chunks(32)) {
        let mut chains = [0.0f32; 2];
        for (i, (&x, &w)) in x.iter().zip(w).enumerate() {
            chains[i % 2] = operand(x).mul_add(operand(w), chains[i % 2]);
        }
        acc += chains[0] + chains[1];
    }
    let out = bias.map_or(acc, |bias| acc + bias);
    if out.is_nan() { f32::NAN } else { out }
}

/// `x` `[rows, in_features]` times the transpose of `w` `[out_features, in_features]` plus `bias`, each output by [`dot`].
///
/// # Panics
/// If a length does not fit the shapes.
pub fn linear_f32(
    ty: WeightType,
    x: &[f32],
    rows: usize,
    w: &[f32],
    out_features: usize,
    bias: Option<&[f32]>,
) -> Vec<f32> {
    each_output(x, rows, w, out_features, |x, w, n| dot(ty, x, w, bias.map(|bias| bias[n])))
}

/// The same product in f64 without any rounding of operands: what error bounds are measured against.
///
/// # Panics
/// If a length does not fit the shapes.
pub fn linear_f64(x: &[f32], rows: usize, w: &[f32], out_features: usize, bias: Option<&[f32]>) -> Vec<f64> {
    each_output(x, rows, w, out_features, |x, w, n| {
        let sum: f64 = x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
        sum + bias.map_or(0.0, |bias| f64::from(bias[n]))
    })
}

fn each_output<T>(
    x: &[f32],
    rows: usize,
    w: &[f32],
    out_features: usize,
    output: impl Fn(&[f32], &[f32], usize) -> T,
) -> Vec<T> {
    assert!(out_features > 0 && w.len().is_multiple_of(out_features), "weight is not {out_features} rows");
    let in_features = w.len() / out_features;
    assert_eq!(x.len(), rows * in_features, "x is not [{rows}, {in_features}]");
    let mut out = Vec::with_capacity(rows * out_features);
    for x in x.chunks_exact(in_features) {
        for (n, w) in w.chunks_exact(in_features).enumerate() {
            out.push(output(x, w, n));
        }
    }
    out
}
