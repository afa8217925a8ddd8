//! The packed layout: panels of 16 output columns, `k` ascending inside.
//!
//! A panel holds, per quantization block, the 16 columns' scales (then minimums) and then the quants ordered
//! `[k pair][16 columns]`, so that one load brings one pair of `k` for all columns and every output sits in its own
//! SIMD lane. This is the order (VNNI) that matrix instructions want as well. Bits beyond the low four lie apart, by
//! quads (2 bits per `k`) or octets (1 bit per `k`) of `k`, the lowest `k` in the lowest bits. Every block is a multiple of 32
//! bytes, and so is every part of one that is loaded as a vector.
//!
//! | type | bytes of a panel's block | of the stored size |
//! |---|---|---|
//! | F32 | `[k][16] f32`, `k` padded to even | 1 |
//! | F16, BF16 | `[k pair][16][2]` 16-bit, `k` padded to even | 1 |
//! | Q4_0, IQ4_NL | scale `[16] f16`, `[16 pairs][16]` bytes, low nibble = even `k` | 1 |
//! | Q4_1 | scale `[16] f16`, minimum `[16] f16`, `[16 pairs][16]` bytes | 1 |
//! | Q5_0 | scale `[16] f16`, low bits `[16 pairs][16]` bytes, high bits `[4 octets][16]` bytes | 1 |
//! | Q5_1 | scale `[16] f16`, minimum `[16] f16`, low bits `[16 pairs][16]` bytes, high bits `[4 octets][16]` bytes | 1 |
//! | Q8_0 | scale `[16] f16`, `[16 pairs][16][2] i8` | 1 |
//! | MXFP4 | scale `[16] bf16` (half of the power of two, exact), `[16 pairs][16]` bytes | 1.059 |
//! | Q2_K | factors `[16] f16` and `[16] f16`, `[16][16]` bytes with scale (low nibble) and minimum, `[64 quads][16]` bytes | 1 |
//! | Q3_K | factor `[16] f16`, scales `[16][16] i8`, low bits `[64 quads][16]` bytes, high bits `[32 octets][16]` bytes | 1.036 |
//! | Q4_K | factors `[16] f16` and `[16] f16`, scales `[8][16] u8`, minimums `[8][16] u8`, `[128 pairs][16]` bytes | 1.028 |
//! | Q5_K | as Q4_K, then high bits `[32 octets][16]` bytes | 1.023 |
//! | Q6_K | factor `[16] f16`, scales `[16][16] i8`, low bits `[128 pairs][16]` bytes, high bits `[64 quads][16]` bytes | 1 |
//! | IQ4_XS | factor `[16] f16`, scales `[8][16] i8`, `[128 pairs][16]` bytes | 1.015 |

mod blocks;
mod super_blocks;

use std::ops::Range;

use half::{bf16, f16};

use crate::WeightType;

/// Output columns of a panel.
pub(crate) const PANEL: usize = 16;

/// Where the parts of a panel's block begin, in bytes, and how long the block is. IQ4_NL and MXFP4 have the same parts.
pub(crate) mod q4_0 {
    pub(crate) const QUANTS: usize = 32;
    pub(crate) const BYTES: usize = QUANTS + 16 * 16;
}
pub(crate) mod q4_1 {
    pub(crate) const MINS: usize = 32;
    pub(crate) const QUANTS: usize = 64;
    pub(crate) const BYTES: usize = QUANTS + 16 * 16;
}
pub(crate) mod q5_0 {
    pub(crate) const LOW: usize = 32;
    pub(crate) const HIGH: usize = LOW + 16 * 16;
    pub(crate) const BYTES: usize = HIGH + 4 * 16;
}
pub(crate) mod q5_1 {
    pub(crate) const MINS: usize = 32;
    pub(crate) const LOW: usize = 64;
    pub(crate) const HIGH: usize = LOW + 16 * 16;
    pub(crate) const BYTES: usize = HIGH + 4 * 16;
}
pub(crate) mod q8_0 {
    pub(crate) const QUANTS: usize = 32;
    pub(crate) const BYTES: usize = QUANTS + 32 * 16;
}
pub(crate) mod q2_k {
    pub(crate) const MIN_FACTORS: usize = 32;
    pub(crate) const SCALES: usize = 64;
    pub(crate) const QUANTS: usize = SCALES + 16 * 16;
    pub(crate) const BYTES: usize = QUANTS + 64 * 16;
}
pub(crate) mod q3_k {
    pub(crate) const SCALES: usize = 32;
    pub(crate) const LOW: usize = SCALES + 16 * 16;
    pub(crate) const HIGH: usize = LOW + 64 * 16;
    pub(crate) const BYTES: usize = HIGH + 32 * 16;
}
pub(crate) mod q4_k {
    pub(crate) const MIN_FACTORS: usize = 32;
    pub(crate) const SCALES: usize = 64;
    pub(crate) const MINS: usize = SCALES + 8 * 16;
    pub(crate) const QUANTS: usize = MINS + 8 * 16;
    pub(crate) const BYTES: usize = QUANTS + 128 * 16;
}
/// Factors, scales and minimums are where [`q4_k`] has them.
pub(crate) mod q5_k {
    pub(crate) const LOW: usize = super::q4_k::QUANTS;
    pub(crate) const HIGH: usize = LOW + 128 * 16;
    pub(crate) const BYTES: usize = HIGH + 32 * 16;
}
pub(crate) mod q6_k {
    pub(crate) const SCALES: usize = 32;
    pub(crate) const LOW: usize = SCALES + 16 * 16;
    pub(crate) const HIGH: usize = LOW + 128 * 16;
    pub(crate) const BYTES: usize = HIGH + 64 * 16;
}
pub(crate) mod iq4_xs {
    pub(crate) const SCALES: usize = 32;
    pub(crate) const QUANTS: usize = SCALES + 8 * 16;
    pub(crate) const BYTES: usize = QUANTS + 128 * 16;
}

/// Bytes of one block of a panel; for the float types, of a pair of `k`.
const fn block_bytes(ty: WeightType) -> usize {
    match ty {
        WeightType::F32 => 2 * PANEL * 4,
        WeightType::F16 | WeightType::Bf16 => 2 * PANEL * 2,
        WeightType::Q4_0 | WeightType::Iq4Nl | WeightType::Mxfp4 => q4_0::BYTES,
        WeightType::Q4_1 => q4_1::BYTES,
        WeightType::Q5_0 => q5_0::BYTES,
        WeightType::Q5_1 => q5_1::BYTES,
        WeightType::Q8_0 => q8_0::BYTES,
        WeightType::Q2K => q2_k::BYTES,
        WeightType::Q3K => q3_k::BYTES,
        WeightType::Q4K => q4_k::BYTES,
        WeightType::Q5K => q5_k::BYTES,
        WeightType::Q6K => q6_k::BYTES,
        WeightType::Iq4Xs => iq4_xs::BYTES,
    }
}

/// Bytes of one panel of `in_features` rows of `k`; `None` on overflow. `in_features` is whole blocks.
pub(crate) fn panel_bytes(ty: WeightType, in_features: usize) -> Option<usize> {
    let blocks = match ty.block_elements() {
        1 => in_features.div_ceil(2),
        elements => in_features / elements,
    };
    blocks.checked_mul(block_bytes(ty))
}

/// Writes one stored row into column `column` of a panel.
///
/// NaN scales and NaN 16-bit weights become the canonical quiet NaN, so that rounding to bf16 by an integer add
/// cannot carry a NaN's payload into the sign.
pub(crate) fn pack_row(ty: WeightType, row: &[u8], panel: &mut [u8], column: usize) {
    let pack: fn(&[u8], &mut [u8], usize) = match ty {
        WeightType::F32 => {
            for (k, value) in row.chunks_exact(4).enumerate() {
                panel[(k * PANEL + column) * 4..][..4].copy_from_slice(value);
            }
            return;
        }
        WeightType::F16 => return pack_16_bit(row, panel, column, quiet_f16),
        WeightType::Bf16 => return pack_16_bit(row, panel, column, quiet_bf16),
        WeightType::Q4_0 | WeightType::Iq4Nl => blocks::pack_q4_0,
        WeightType::Q4_1 => blocks::pack_q4_1,
        WeightType::Q5_0 => blocks::pack_q5_0,
        WeightType::Q5_1 => blocks::pack_q5_1,
        WeightType::Q8_0 => blocks::pack_q8_0,
        WeightType::Mxfp4 => blocks::pack_mxfp4,
        WeightType::Q2K => super_blocks::pack_q2_k,
        WeightType::Q3K => super_blocks::pack_q3_k,
        WeightType::Q4K => super_blocks::pack_q4_k,
        WeightType::Q5K => super_blocks::pack_q5_k,
        WeightType::Q6K => super_blocks::pack_q6_k,
        WeightType::Iq4Xs => super_blocks::pack_iq4_xs,
    };
    for (source, block) in row.chunks_exact(ty.block_bytes()).zip(panel.chunks_exact_mut(block_bytes(ty))) {
        pack(source, block, column);
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

/// Packs bytes whose low nibbles are elements `0..quants.len()` and whose high nibbles are the elements after those.
fn pack_nibble_halves(quants: &[u8], packed: &mut [u8], column: usize) {
    // Bytes 2p and 2p + 1 hold the pair p in their low and the pair `pairs + p` in their high nibbles.
    let pairs = quants.len() / 2;
    for (p, pair) in quants.chunks_exact(2).enumerate() {
        packed[p * PANEL + column] = (pair[0] & 15) | (pair[1] << 4);
        packed[(pairs + p) * PANEL + column] = (pair[0] >> 4) | (pair[1] & 0xf0);
    }
}

/// Packs the `BITS` bits that `bits(k)` gives for each `k`, `8 / BITS` of them to a byte, into `packed`, which is all of the part.
fn pack_bits<const BITS: usize>(packed: &mut [u8], column: usize, bits: impl Fn(usize) -> u8) {
    let per_byte = 8 / BITS;
    for (index, bytes) in packed.chunks_exact_mut(PANEL).enumerate() {
        bytes[column] = (0..per_byte).fold(0, |byte, i| byte | (bits(index * per_byte + i) << (BITS * i)));
    }
}

/// The `BITS` bits of `k` in a part packed by [`pack_bits`].
#[inline(always)]
fn bits_at<const BITS: usize>(packed: &[u8], k: usize, column: usize) -> u8 {
    let per_byte = 8 / BITS;
    (row(packed, k / per_byte)[column] >> (k % per_byte * BITS)) & ((1 << BITS) - 1)
}

/// The `index`th row of 16 bytes: of a fixed length, so that a loop over its columns needs no checks.
#[inline(always)]
fn row(packed: &[u8], index: usize) -> &[u8] {
    &packed[index * PANEL..][..PANEL]
}

/// Calls `put(k, column, value)` with the exact dequantized values of `columns` for each `k` of `rows`, ascending.
///
/// Products and sums are rounded one by one, as GGML's reference does; none is fused.
#[inline(always)]
pub(crate) fn dequantize(
    ty: WeightType,
    panel: &[u8],
    rows: Range<usize>,
    columns: Range<usize>,
    put: impl FnMut(usize, usize, f32),
) {
    // Each arm compiles to its own loop.
    match ty {
        WeightType::F32 => of_pairs(ty, panel, rows, columns, put, |pair, k, column| {
            let at = (k * PANEL + column) * 4;
            f32::from_le_bytes([pair[at], pair[at + 1], pair[at + 2], pair[at + 3]])
        }),
        WeightType::F16 => of_pairs(ty, panel, rows, columns, put, |pair, k, column| f16_at(pair, 4 * column + 2 * k)),
        WeightType::Bf16 => of_pairs(ty, panel, rows, columns, put, |pair, k, column| bf16_at(pair, 4 * column + 2 * k)),
        WeightType::Q4_0 => of_blocks(ty, panel, rows, columns, put, blocks::q4_0),
        WeightType::Q4_1 => of_blocks(ty, panel, rows, columns, put, blocks::q4_1),
        WeightType::Q5_0 => of_blocks(ty, panel, rows, columns, put, blocks::q5_0),
        WeightType::Q5_1 => of_blocks(ty, panel, rows, columns, put, blocks::q5_1),
        WeightType::Q8_0 => of_blocks(ty, panel, rows, columns, put, blocks::q8_0),
        WeightType::Iq4Nl => of_blocks(ty, panel, rows, columns, put, blocks::iq4_nl),
        WeightType::Mxfp4 => of_blocks(ty, panel, rows, columns, put, blocks::mxfp4),
        WeightType::Q2K => of_blocks(ty, panel, rows, columns, put, super_blocks::q2_k),
        WeightType::Q3K => of_blocks(ty, panel, rows, columns, put, super_blocks::q3_k),
        WeightType::Q4K => of_blocks(ty, panel, rows, columns, put, super_blocks::q4_k),
        WeightType::Q5K => of_blocks(ty, panel, rows, columns, put, super_blocks::q5_k),
        WeightType::Q6K => of_blocks(ty, panel, rows, columns, put, super_blocks::q6_k),
        WeightType::Iq4Xs => of_blocks(ty, panel, rows, columns, put, super_blocks::iq4_xs),
    }
}

/// Calls `put(k, column, value)` where `values(block)(k % elements of a block, column)` is the value: what all values of a block have in
/// common, like scales, is read once for a block.
#[inline(always)]
fn of_blocks<'a, F: Fn(usize, usize) -> f32>(
    ty: WeightType,
    panel: &'a [u8],
    rows: Range<usize>,
    columns: Range<usize>,
    mut put: impl FnMut(usize, usize, f32),
    values: impl Fn(&'a [u8]) -> F,
) {
    let (elements, bytes) = (ty.block_elements(), block_bytes(ty));
    for block in rows.start / elements..rows.end.div_ceil(elements) {
        let first = block * elements;
        let value = values(&panel[block * bytes..][..bytes]);
        for k in rows.start.max(first)..rows.end.min(first + elements) {
            for column in columns.clone() {
                put(k, column, value(k - first, column));
            }
        }
    }
}

/// As [`of_blocks`] for the float types: `value(pair, k % 2, column)` of pairs of `k`.
#[inline(always)]
fn of_pairs(
    ty: WeightType,
    panel: &[u8],
    rows: Range<usize>,
    columns: Range<usize>,
    mut put: impl FnMut(usize, usize, f32),
    value: impl Fn(&[u8], usize, usize) -> f32,
) {
    let bytes = block_bytes(ty);
    for k in rows {
        let pair = &panel[k / 2 * bytes..][..bytes];
        for column in columns.clone() {
            put(k, column, value(pair, k % 2, column));
        }
    }
}

/// The f16 numbers of 16 columns.
fn f16s(bytes: &[u8]) -> [f32; PANEL] {
    std::array::from_fn(|column| f16_at(bytes, 2 * column))
}

/// The bf16 numbers of 16 columns.
fn bf16s(bytes: &[u8]) -> [f32; PANEL] {
    std::array::from_fn(|column| bf16_at(bytes, 2 * column))
}

fn f16_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn bf16_at(bytes: &[u8], at: usize) -> f32 {
    bf16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}
