//! Oracles: plain code over the stored bytes, without the packed layout and the kernels. Slow; for tests.

use half::{bf16, f16};

use crate::codebook::{IQ4_VALUES, MXFP4_VALUES};
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
            WeightType::Q4_0 => {
                let d = half_at(block, 0);
                out.extend(nibbles(&block[2..18]).map(|q| d * (f32::from(q) - 8.0)));
            }
            WeightType::Q4_1 => {
                let (d, m) = (half_at(block, 0), half_at(block, 2));
                out.extend(nibbles(&block[4..20]).map(|q| f32::from(q) * d + m));
            }
            WeightType::Q5_0 => {
                let (d, high) = (half_at(block, 0), u32_at(block, 2));
                let quants = nibbles(&block[6..22]).enumerate();
                out.extend(quants.map(|(k, q)| d * (f32::from(q) + 16.0 * ((high >> k) & 1) as f32 - 16.0)));
            }
            WeightType::Q5_1 => {
                let (d, m, high) = (half_at(block, 0), half_at(block, 2), u32_at(block, 4));
                let quants = nibbles(&block[8..24]).enumerate();
                out.extend(quants.map(|(k, q)| d * (f32::from(q) + 16.0 * ((high >> k) & 1) as f32) + m));
            }
            WeightType::Q8_0 => {
                let d = half_at(block, 0);
                out.extend(block[2..34].iter().map(|q| f32::from(q.cast_signed()) * d));
            }
            WeightType::Q2K => dequantize_q2_k(block, &mut out),
            WeightType::Q3K => dequantize_q3_k(block, &mut out),
            WeightType::Q4K => dequantize_q4_k(block, &mut out),
            WeightType::Q5K => dequantize_q5_k(block, &mut out),
            WeightType::Q6K => dequantize_q6_k(block, &mut out),
            WeightType::Iq4Nl => {
                let d = half_at(block, 0);
                out.extend(nibbles(&block[2..18]).map(|q| d * f32::from(IQ4_VALUES[usize::from(q)])));
            }
            WeightType::Iq4Xs => dequantize_iq4_xs(block, &mut out),
            WeightType::Mxfp4 => {
                // 2^(e - 128); no power of two of that range is rounded on its way from f64.
                #[expect(clippy::cast_possible_truncation, reason = "exact")]
                let d = 2f64.powi(i32::from(block[0]) - 128) as f32;
                out.extend(nibbles(&block[1..17]).map(|q| d * f32::from(MXFP4_VALUES[usize::from(q)])));
            }
        }
    }
    Ok(out)
}

/// All low nibbles, then all high nibbles.
fn nibbles(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().map(|byte| byte & 15).chain(bytes.iter().map(|byte| byte >> 4))
}

fn dequantize_q2_k(block: &[u8], out: &mut Vec<f32>) {
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    let mut scales = block[..16].iter();
    for quants in block[16..80].chunks_exact(32) {
        for shift in [0, 2, 4, 6] {
            for quants in quants.chunks_exact(16) {
                let Some(scale) = scales.next() else { return };
                let (d, m) = (d * f32::from(scale & 15), dmin * f32::from(scale >> 4));
                out.extend(quants.iter().map(|q| d * f32::from((q >> shift) & 3) - m));
            }
        }
    }
}

fn dequantize_q3_k(block: &[u8], out: &mut Vec<f32>) {
    let (high, low, packed, d) = (&block[..32], &block[32..96], &block[96..108], half_at(block, 108));
    // 128 bits as three words: low nibbles of scales 0..4 and 8..12, of 4..8 and 12..16, and two high bits of all.
    let words = [0, 4, 8].map(|at| u32_at(packed, at));
    let scale = |sub: usize| {
        let low = (words[sub / 4 % 2] >> (8 * (sub % 4) + 4 * (sub / 8))) & 15;
        let high = (words[2] >> (8 * (sub % 4) + 2 * (sub / 4))) & 3;
        (low + 16 * high) as f32 - 32.0
    };
    for sub in 0..16 {
        let d = d * scale(sub);
        for k in 16 * sub..16 * (sub + 1) {
            let bits = (low[k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2)) & 3;
            let center = if high[k % 32] & (1 << (k / 32)) == 0 { 4.0 } else { 0.0 };
            out.push(d * (f32::from(bits) - center));
        }
    }
}

/// Scale and minimum of sub-block `j` of Q4_K and Q5_K, from their 12 packed bytes.
fn k_scale_and_min(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let scale = (packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4);
        (scale, (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4))
    }
}

fn dequantize_q4_k(block: &[u8], out: &mut Vec<f32>) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for (pair, quants) in block[16..144].chunks_exact(32).enumerate() {
        for nibble in 0..2 {
            let (scale, min) = k_scale_and_min(&block[4..16], 2 * pair + nibble);
            let (d, m) = (d * f32::from(scale), dmin * f32::from(min));
            out.extend(quants.iter().map(|q| d * f32::from((q >> (4 * nibble)) & 15) - m));
        }
    }
}

fn dequantize_q5_k(block: &[u8], out: &mut Vec<f32>) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (high, quants) = (&block[16..48], &block[48..176]);
    for sub in 0..8 {
        let (scale, min) = k_scale_and_min(&block[4..16], sub);
        let (d, m) = (d * f32::from(scale), dmin * f32::from(min));
        for l in 0..32 {
            let low = (quants[sub / 2 * 32 + l] >> (4 * (sub % 2))) & 15;
            let quant = low + 16 * ((high[l] >> sub) & 1);
            out.push(d * f32::from(quant) - m);
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

fn dequantize_iq4_xs(block: &[u8], out: &mut Vec<f32>) {
    let (d, high) = (half_at(block, 0), u16::from_le_bytes([block[2], block[3]]));
    for (sub, (low, quants)) in nibble_pairs(&block[4..8]).zip(block[8..136].chunks_exact(16)).enumerate() {
        let scale = f32::from(u16::from(low) + 16 * ((high >> (2 * sub)) & 3)) - 32.0;
        out.extend(nibbles(quants).map(|q| d * scale * f32::from(IQ4_VALUES[usize::from(q)])));
    }
}

/// Low and high nibble of each byte in turn.
fn nibble_pairs(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().flat_map(|byte| [byte & 15, byte >> 4])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
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
