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

use half::slice::HalfFloatSliceExt;
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

/// `N` columns of a panel's block, from `first` on.
#[derive(Debug, Clone, Copy)]
struct Columns<'a, const N: usize> {
    block: &'a [u8],
    first: usize,
}

impl<const N: usize> Columns<'_, N> {
    /// Row `index` of `[..][16]` elements of so many bytes that begin `at` this byte of the block.
    #[inline(always)]
    fn row<const BYTES: usize>(self, at: usize, index: usize) -> [[u8; BYTES]; N] {
        let mut row = [[0; BYTES]; N];
        let start = at + (index * PANEL + self.first) * BYTES;
        row.as_flattened_mut().copy_from_slice(&self.block[start..][..N * BYTES]);
        row
    }

    #[inline(always)]
    fn bytes(self, at: usize, index: usize) -> [u8; N] {
        let row = self.row::<1>(at, index);
        each(|c| row[c][0])
    }

    /// The `BITS` bits of `k` in a part packed by [`pack_bits`].
    #[inline(always)]
    fn bits<const BITS: usize>(self, at: usize, k: usize) -> [u8; N] {
        let per_byte = 8 / BITS;
        let bytes = self.bytes(at, k / per_byte);
        each(|c| (bytes[c] >> (k % per_byte * BITS)) & ((1 << BITS) - 1))
    }

    #[inline(always)]
    fn f16s(self, at: usize) -> [f32; N] {
        f16s(self.row(at, 0))
    }
}

/// `value(column)` of all columns. A loop, which becomes vectors where `array::map` and `array::from_fn` do not.
#[inline(always)]
fn each<T: Copy + Default, const N: usize>(value: impl Fn(usize) -> T) -> [T; N] {
    let mut values = [T::default(); N];
    for (column, to) in values.iter_mut().enumerate() {
        *to = value(column);
    }
    values
}

fn f16s<const N: usize>(bytes: [[u8; 2]; N]) -> [f32; N] {
    let halves = bytes.map(f16::from_le_bytes);
    let mut values = [0.0; N];
    if N == 1 {
        values[0] = halves[0].to_f32();
    } else {
        // All at once: whether the processor converts them is asked once.
        halves.convert_to_f32_slice(&mut values);
    }
    values
}

#[inline(always)]
fn bf16s<const N: usize>(bytes: [[u8; 2]; N]) -> [f32; N] {
    each(|c| bf16::from_le_bytes(bytes[c]).to_f32())
}

/// Calls `put(k, values)` with the exact dequantized values of `N` columns, from `first` on, for each `k` of `rows`, ascending.
///
/// Products and sums are rounded one by one, as GGML's reference does; none is fused.
#[inline(always)]
pub(crate) fn dequantize<const N: usize>(
    ty: WeightType,
    panel: &[u8],
    rows: Range<usize>,
    first: usize,
    put: impl FnMut(usize, [f32; N]),
) {
    // Each arm compiles to its own loop.
    match ty {
        WeightType::F32 => of_blocks(ty, panel, rows, first, put, |pair| {
            move |k| {
                let values = pair.row(0, k);
                each(|c| f32::from_le_bytes(values[c]))
            }
        }),
        WeightType::F16 => of_blocks(ty, panel, rows, first, put, |pair| move |k| f16s(half_of_pair(pair, k))),
        WeightType::Bf16 => of_blocks(ty, panel, rows, first, put, |pair| move |k| bf16s(half_of_pair(pair, k))),
        WeightType::Q4_0 => of_blocks(ty, panel, rows, first, put, blocks::q4_0),
        WeightType::Q4_1 => of_blocks(ty, panel, rows, first, put, blocks::q4_1),
        WeightType::Q5_0 => of_blocks(ty, panel, rows, first, put, blocks::q5_0),
        WeightType::Q5_1 => of_blocks(ty, panel, rows, first, put, blocks::q5_1),
        WeightType::Q8_0 => of_blocks(ty, panel, rows, first, put, blocks::q8_0),
        WeightType::Iq4Nl => of_blocks(ty, panel, rows, first, put, blocks::iq4_nl),
        WeightType::Mxfp4 => of_blocks(ty, panel, rows, first, put, blocks::mxfp4),
        WeightType::Q2K => of_blocks(ty, panel, rows, first, put, super_blocks::q2_k),
        WeightType::Q3K => of_blocks(ty, panel, rows, first, put, super_blocks::q3_k),
        WeightType::Q4K => of_blocks(ty, panel, rows, first, put, super_blocks::q4_k),
        WeightType::Q5K => of_blocks(ty, panel, rows, first, put, super_blocks::q5_k),
        WeightType::Q6K => of_blocks(ty, panel, rows, first, put, super_blocks::q6_k),
        WeightType::Iq4Xs => of_blocks(ty, panel, rows, first, put, super_blocks::iq4_xs),
    }
}

/// Calls `put(k, values(block)(k % elements of a block))`: what all values of a block have in common, like scales, is read once for a
/// block. A block of the float types is a pair.
#[inline(always)]
fn of_blocks<'a, const N: usize, F: Fn(usize) -> [f32; N]>(
    ty: WeightType,
    panel: &'a [u8],
    rows: Range<usize>,
    first: usize,
    mut put: impl FnMut(usize, [f32; N]),
    values: impl Fn(Columns<'a, N>) -> F,
) {
    let (elements, bytes) = (ty.block_elements().max(2), block_bytes(ty));
    for block in rows.start / elements..rows.end.div_ceil(elements) {
        let start = block * elements;
        let values = values(Columns { block: &panel[block * bytes..][..bytes], first });
        for k in rows.start.max(start)..rows.end.min(start + elements) {
            put(k, values(k - start));
        }
    }
}

/// The 16 bits of `k` of a pair.
#[inline(always)]
fn half_of_pair<const N: usize>(pair: Columns<'_, N>, k: usize) -> [[u8; 2]; N] {
    let pairs = pair.row::<4>(0, 0);
    each(|c| [pairs[c][2 * k], pairs[c][2 * k + 1]])
}
