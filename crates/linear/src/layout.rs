//! The packed layout: panels of 16 output columns, `k` ascending inside.
//!
//! A panel holds, per quantization block, the 16 columns' scales (then minimums) and then the quants ordered
//! `[k pair][16 columns]`, so that one load brings one pair of `k` for all columns and every output sits in its own
//! SIMD lane. This is the order (VNNI) that matrix instructions want as well.
//!
//! | type | bytes of a panel's block |
//! |---|---|
//! | F32 | `[k][16] f32`, `k` padded to even |
//! | F16, BF16 | `[k pair][16][2]` 16-bit, `k` padded to even |
//! | Q4_1 | scale `[16] f16`, minimum `[16] f16`, `[16 pairs][16]` bytes, low nibble = even `k` |
//! | Q8_0 | scale `[16] f16`, `[16 pairs][16][2] i8` |
//! | Q4_K | factors `[16] f16` and `[16] f16`, scales `[8][16] u8`, minimums `[8][16] u8`, `[128 pairs][16]` bytes |
//! | Q6_K | factor `[16] f16`, scales `[16][16] i8`, low bits `[128 pairs][16]` bytes, high bits `[64 quads][16]` bytes, 2 bits per `k` |

use half::{bf16, f16};

use crate::WeightType;

/// Output columns of a panel.
pub(crate) const PANEL: usize = 16;

/// Where the parts of a panel's block begin, in bytes, and how long the block is.
pub(crate) mod q4_1 {
    pub(crate) const MINS: usize = 32;
    pub(crate) const QUANTS: usize = 64;
    pub(crate) const BYTES: usize = QUANTS + 16 * 16;
}
pub(crate) mod q8_0 {
    pub(crate) const QUANTS: usize = 32;
    pub(crate) const BYTES: usize = QUANTS + 32 * 16;
}
pub(crate) mod q4_k {
    pub(crate) const MIN_FACTORS: usize = 32;
    pub(crate) const SCALES: usize = 64;
    pub(crate) const MINS: usize = SCALES + 8 * 16;
    pub(crate) const QUANTS: usize = MINS + 8 * 16;
    pub(crate) const BYTES: usize = QUANTS + 128 * 16;
}
pub(crate) mod q6_k {
    pub(crate) const SCALES: usize = 32;
    pub(crate) const LOW: usize = SCALES + 16 * 16;
    pub(crate) const HIGH: usize = LOW + 128 * 16;
    pub(crate) const BYTES: usize = HIGH + 64 * 16;
}

/// Bytes of one panel of `in_features` rows of `k`; `None` on overflow. `in_features` is whole blocks.
pub(crate) fn panel_bytes(ty: WeightType, in_features: usize) -> Option<usize> {
    let pairs = in_features.div_ceil(2);
    match ty {
        WeightType::F32 => pairs.checked_mul(2 * PANEL * 4),
        WeightType::F16 | WeightType::Bf16 => pairs.checked_mul(2 * PANEL * 2),
        WeightType::Q4_1 => (in_features / 32).checked_mul(q4_1::BYTES),
        WeightType::Q8_0 => (in_features / 32).checked_mul(q8_0::BYTES),
        WeightType::Q4K => (in_features / 256).checked_mul(q4_k::BYTES),
        WeightType::Q6K => (in_features / 256).checked_mul(q6_k::BYTES),
    }
}

/// Writes one stored row into column `column` of a panel.
///
/// NaN scales and NaN 16-bit weights become the canonical quiet NaN, so that rounding to bf16 by an integer add
/// cannot carry a NaN's payload into the sign.
pub(crate) fn pack_row(ty: WeightType, row: &[u8], panel: &mut [u8], column: usize) {
    match ty {
        WeightType::F32 => {
            for (k, value) in row.chunks_exact(4).enumerate() {
                panel[(k * PANEL + column) * 4..][..4].copy_from_slice(value);
            }
        }
        WeightType::F16 => pack_16_bit(row, panel, column, quiet_f16),
        WeightType::Bf16 => pack_16_bit(row, panel, column, quiet_bf16),
        WeightType::Q4_1 => {
            for (source, block) in row.chunks_exact(20).zip(panel.chunks_exact_mut(q4_1::BYTES)) {
                pack_f16(source, 0, block, 0, column);
                pack_f16(source, 2, block, q4_1::MINS, column);
                let quants = &source[4..20];
                // Bytes 2p and 2p+1 hold the pair p in their low and the pair 8 + p in their high nibbles.
                for p in 0..8 {
                    let (a, b) = (quants[2 * p], quants[2 * p + 1]);
                    block[q4_1::QUANTS + p * PANEL + column] = (a & 15) | (b << 4);
                    block[q4_1::QUANTS + (8 + p) * PANEL + column] = (a >> 4) | (b & 0xf0);
                }
            }
        }
        WeightType::Q8_0 => {
            for (source, block) in row.chunks_exact(34).zip(panel.chunks_exact_mut(q8_0::BYTES)) {
                pack_f16(source, 0, block, 0, column);
                for (p, pair) in source[2..34].chunks_exact(2).enumerate() {
                    block[q8_0::QUANTS + (p * PANEL + column) * 2..][..2].copy_from_slice(pair);
                }
            }
        }
        WeightType::Q4K => {
            for (source, block) in row.chunks_exact(144).zip(panel.chunks_exact_mut(q4_k::BYTES)) {
                pack_q4_k(source, block, column);
            }
        }
        WeightType::Q6K => {
            for (source, block) in row.chunks_exact(210).zip(panel.chunks_exact_mut(q6_k::BYTES)) {
                pack_q6_k(source, block, column);
            }
        }
    }
}

fn pack_q4_k(source: &[u8], block: &mut [u8], column: usize) {
    pack_f16(source, 0, block, 0, column);
    pack_f16(source, 2, block, q4_k::MIN_FACTORS, column);
    let packed = &source[4..16];
    for sub in 0..8 {
        // Sub-blocks 0..4 have 6 plain bits; 4..8 have 4 bits here and their upper two in the first eight bytes.
        let (scale, min) = if sub < 4 {
            (packed[sub] & 63, packed[sub + 4] & 63)
        } else {
            let low = packed[sub + 4];
            ((low & 15) | ((packed[sub - 4] >> 6) << 4), (low >> 4) | ((packed[sub] >> 6) << 4))
        };
        block[q4_k::SCALES + sub * PANEL + column] = scale;
        block[q4_k::MINS + sub * PANEL + column] = min;
    }
    for (chunk, quants) in source[16..144].chunks_exact(32).enumerate() {
        // 64 elements: low nibbles are the first 32, high nibbles the second.
        for (p, pair) in quants.chunks_exact(2).enumerate() {
            let at = q4_k::QUANTS + (chunk * 32 + p) * PANEL + column;
            block[at] = (pair[0] & 15) | (pair[1] << 4);
            block[at + 16 * PANEL] = (pair[0] >> 4) | (pair[1] & 0xf0);
        }
    }
}

fn pack_q6_k(source: &[u8], block: &mut [u8], column: usize) {
    let (low, rest) = source.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, factor) = rest.split_at(16);
    pack_f16(factor, 0, block, 0, column);
    for (sub, &scale) in scales.iter().enumerate() {
        block[q6_k::SCALES + sub * PANEL + column] = scale;
    }
    // Element k of a half of 128 has its low nibble in byte k % 64 (low half first) and its two high bits in byte
    // k % 32, at 2 * (k / 32).
    let low_bits = |k: usize| {
        let (half, k) = (k / 128, k % 128);
        (low[half * 64 + k % 64] >> (4 * (k / 64))) & 15
    };
    let high_bits = |k: usize| {
        let (half, k) = (k / 128, k % 128);
        (high[half * 32 + k % 32] >> (2 * (k / 32))) & 3
    };
    for p in 0..128 {
        block[q6_k::LOW + p * PANEL + column] = low_bits(2 * p) | (low_bits(2 * p + 1) << 4);
    }
    for quad in 0..64 {
        let bits = (0..4).fold(0, |bits, i| bits | (high_bits(4 * quad + i) << (2 * i)));
        block[q6_k::HIGH + quad * PANEL + column] = bits;
    }
}

fn pack_16_bit(row: &[u8], panel: &mut [u8], column: usize, quiet: fn(u16) -> u16) {
    for (k, value) in row.chunks_exact(2).enumerate() {
        let bits = quiet(u16::from_le_bytes([value[0], value[1]]));
        panel[((k / 2 * PANEL + column) * 2 + k % 2) * 2..][..2].copy_from_slice(&bits.to_le_bytes());
    }
}

fn pack_f16(source: &[u8], from: usize, block: &mut [u8], to: usize, column: usize) {
    let bits = quiet_f16(u16::from_le_bytes([source[from], source[from + 1]]));
    block[to + 2 * column..][..2].copy_from_slice(&bits.to_le_bytes());
}

fn quiet_f16(bits: u16) -> u16 {
    if bits & 0x7fff > 0x7c00 { 0x7e00 } else { bits }
}

fn quiet_bf16(bits: u16) -> u16 {
    if bits & 0x7fff > 0x7f80 { 0x7fc0 } else { bits }
}

/// Calls `put(k, value)` with the exact dequantized values of one column for `k` in `start..end`, ascending.
///
/// Products and sums are rounded one by one, as GGML's reference does; none is fused.
pub(crate) fn dequantize_column(
    ty: WeightType,
    panel: &[u8],
    column: usize,
    start: usize,
    end: usize,
    mut put: impl FnMut(usize, f32),
) {
    for k in start..end {
        let value = match ty {
            WeightType::F32 => {
                let at = (k * PANEL + column) * 4;
                f32::from_le_bytes([panel[at], panel[at + 1], panel[at + 2], panel[at + 3]])
            }
            WeightType::F16 => f16_at(panel, (k / 2 * PANEL + column) * 4 + k % 2 * 2),
            WeightType::Bf16 => {
                let at = (k / 2 * PANEL + column) * 4 + k % 2 * 2;
                bf16::from_le_bytes([panel[at], panel[at + 1]]).to_f32()
            }
            WeightType::Q4_1 => {
                let (block, k) = (&panel[k / 32 * q4_1::BYTES..], k % 32);
                let (scale, min) = (f16_at(block, 2 * column), f16_at(block, q4_1::MINS + 2 * column));
                f32::from(nibble(block[q4_1::QUANTS + k / 2 * PANEL + column], k)) * scale + min
            }
            WeightType::Q8_0 => {
                let (block, k) = (&panel[k / 32 * q8_0::BYTES..], k % 32);
                let quant = block[q8_0::QUANTS + (k / 2 * PANEL + column) * 2 + k % 2].cast_signed();
                f32::from(quant) * f16_at(block, 2 * column)
            }
            WeightType::Q4K => {
                let (block, k) = (&panel[k / 256 * q4_k::BYTES..], k % 256);
                let scale = f16_at(block, 2 * column) * f32::from(block[q4_k::SCALES + k / 32 * PANEL + column]);
                let min = f16_at(block, q4_k::MIN_FACTORS + 2 * column)
                    * f32::from(block[q4_k::MINS + k / 32 * PANEL + column]);
                scale * f32::from(nibble(block[q4_k::QUANTS + k / 2 * PANEL + column], k)) - min
            }
            WeightType::Q6K => {
                let (block, k) = (&panel[k / 256 * q6_k::BYTES..], k % 256);
                let scale = block[q6_k::SCALES + k / 16 * PANEL + column].cast_signed();
                let low = nibble(block[q6_k::LOW + k / 2 * PANEL + column], k);
                let high = (block[q6_k::HIGH + k / 4 * PANEL + column] >> (k % 4 * 2)) & 3;
                let quant = (low | (high << 4)).cast_signed() - 32;
                f16_at(block, 2 * column) * f32::from(scale) * f32::from(quant)
            }
        };
        put(k, value);
    }
}

fn nibble(byte: u8, k: usize) -> u8 {
    (byte >> (k % 2 * 4)) & 15
}

fn f16_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}
