//! Super-blocks of 256 elements: from a stored block into a column of a panel's block, and one element back out.

use super::{Columns, PANEL, each, pack_bits, pack_f16, pack_nibble_halves};
use super::{iq4_xs, q2_k, q3_k, q4_k, q5_k, q6_k};
use crate::codebook::IQ4_VALUES;

pub(super) fn pack_q2_k(source: &[u8], block: &mut [u8], column: usize) {
    let (scales, rest) = source.split_at(16);
    let (quants, factors) = rest.split_at(64);
    pack_f16(factors, 0, block, 0, column);
    pack_f16(factors, 2, block, q2_k::MIN_FACTORS, column);
    for (sub, &scale_and_min) in scales.iter().enumerate() {
        block[q2_k::SCALES + sub * PANEL + column] = scale_and_min;
    }
    pack_bits::<2>(&mut block[q2_k::QUANTS..], column, |k| two_bits(quants, k));
}

pub(super) fn pack_q3_k(source: &[u8], block: &mut [u8], column: usize) {
    let (high, rest) = source.split_at(32);
    let (low, rest) = rest.split_at(64);
    let (scales, factor) = rest.split_at(12);
    pack_f16(factor, 0, block, 0, column);
    for sub in 0..16 {
        // Eight bytes hold the low nibbles of scales 0..8, then of 8..16; four bytes hold two high bits of every fourth.
        let low = (scales[sub % 8] >> (4 * (sub / 8))) & 15;
        let high = (scales[8 + sub % 4] >> (2 * (sub / 4))) & 3;
        block[q3_k::SCALES + sub * PANEL + column] = (low | (high << 4)).wrapping_sub(32);
    }
    pack_bits::<2>(&mut block[q3_k::LOW..q3_k::HIGH], column, |k| two_bits(low, k));
    pack_bits::<1>(&mut block[q3_k::HIGH..], column, |k| one_bit(high, k));
}

pub(super) fn pack_q4_k(source: &[u8], block: &mut [u8], column: usize) {
    pack_k_scales(source, block, column);
    pack_64s(&source[16..144], &mut block[q4_k::QUANTS..], column);
}

pub(super) fn pack_q5_k(source: &[u8], block: &mut [u8], column: usize) {
    pack_k_scales(source, block, column);
    pack_64s(&source[48..176], &mut block[q5_k::LOW..q5_k::HIGH], column);
    let high = &source[16..48];
    pack_bits::<1>(&mut block[q5_k::HIGH..], column, |k| one_bit(high, k));
}

/// Two factors and eight 6-bit scales and minimums, the first 16 bytes of Q4_K and Q5_K.
fn pack_k_scales(source: &[u8], block: &mut [u8], column: usize) {
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
}

/// 32 bytes for each 64 elements: low nibbles are the first 32, high nibbles the second.
fn pack_64s(quants: &[u8], packed: &mut [u8], column: usize) {
    for (quants, packed) in quants.chunks_exact(32).zip(packed.chunks_exact_mut(32 * PANEL)) {
        pack_nibble_halves(quants, packed, column);
    }
}

pub(super) fn pack_q6_k(source: &[u8], block: &mut [u8], column: usize) {
    let (low, rest) = source.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, factor) = rest.split_at(16);
    pack_f16(factor, 0, block, 0, column);
    for (sub, &scale) in scales.iter().enumerate() {
        block[q6_k::SCALES + sub * PANEL + column] = scale;
    }
    // Element k of a half of 128 has its low nibble in byte k % 64, low half first.
    pack_bits::<4>(&mut block[q6_k::LOW..q6_k::HIGH], column, |k| {
        let (half, k) = (k / 128, k % 128);
        (low[half * 64 + k % 64] >> (4 * (k / 64))) & 15
    });
    pack_bits::<2>(&mut block[q6_k::HIGH..], column, |k| two_bits(high, k));
}

pub(super) fn pack_iq4_xs(source: &[u8], block: &mut [u8], column: usize) {
    pack_f16(source, 0, block, 0, column);
    let (high, low) = (u16::from_le_bytes([source[2], source[3]]), &source[4..8]);
    for sub in 0..8 {
        let low = (low[sub / 2] >> (4 * (sub % 2))) & 15;
        let high = ((high >> (2 * sub)) & 3).to_le_bytes()[0];
        block[iq4_xs::SCALES + sub * PANEL + column] = (low | (high << 4)).wrapping_sub(32);
    }
    let packed = block[iq4_xs::QUANTS..].chunks_exact_mut(16 * PANEL);
    for (quants, packed) in source[8..136].chunks_exact(16).zip(packed) {
        pack_nibble_halves(quants, packed, column);
    }
}

/// Two bits of element k, stored by halves of 128 elements: byte k % 32 of the half, at 2 * (k / 32).
fn two_bits(quants: &[u8], k: usize) -> u8 {
    let (half, k) = (k / 128, k % 128);
    (quants[half * 32 + k % 32] >> (2 * (k / 32))) & 3
}

/// One bit of element k of 256, stored in byte k % 32 at bit k / 32.
fn one_bit(quants: &[u8], k: usize) -> u8 {
    (quants[k % 32] >> (k / 32)) & 1
}

/// The values of some columns as a function of `k`; so are the others.
#[inline(always)]
pub(super) fn q2_k<const N: usize>(block: Columns<'_, N>) -> impl Fn(usize) -> [f32; N] {
    let (factors, min_factors) = (block.f16s(0), block.f16s(q2_k::MIN_FACTORS));
    move |k| {
        let scales_and_mins = block.bytes(q2_k::SCALES, k / 16);
        let quants = block.bits::<2>(q2_k::QUANTS, k);
        each(|c| {
            let scale = factors[c] * f32::from(scales_and_mins[c] & 15);
            let min = min_factors[c] * f32::from(scales_and_mins[c] >> 4);
            scale * f32::from(quants[c]) - min
        })
    }
}

#[inline(always)]
pub(super) fn q3_k<const N: usize>(block: Columns<'_, N>) -> impl Fn(usize) -> [f32; N] {
    let factors = block.f16s(0);
    move |k| {
        let scales = block.bytes(q3_k::SCALES, k / 16);
        let (low, high) = (block.bits::<2>(q3_k::LOW, k), block.bits::<1>(q3_k::HIGH, k));
        each(|c| {
            let quant = (low[c] | (high[c] << 2)).cast_signed() - 4;
            factors[c] * f32::from(scales[c].cast_signed()) * f32::from(quant)
        })
    }
}

#[inline(always)]
pub(super) fn q4_k<const N: usize>(block: Columns<'_, N>) -> impl Fn(usize) -> [f32; N] {
    let scales_and_mins = k_scales_and_mins(block);
    move |k| {
        let (scales, mins) = scales_and_mins(k / 32);
        let quants = block.bits::<4>(q4_k::QUANTS, k);
        each(|c| scales[c] * f32::from(quants[c]) - mins[c])
    }
}

#[inline(always)]
pub(super) fn q5_k<const N: usize>(block: Columns<'_, N>) -> impl Fn(usize) -> [f32; N] {
    let scales_and_mins = k_scales_and_mins(block);
    move |k| {
        let (scales, mins) = scales_and_mins(k / 32);
        let (low, high) = (block.bits::<4>(q5_k::LOW, k), block.bits::<1>(q5_k::HIGH, k));
        each(|c| scales[c] * f32::from(low[c] | (high[c] << 4)) - mins[c])
    }
}

/// Scales and minimums as a function of the sub-block.
#[inline(always)]
fn k_scales_and_mins<const N: usize>(block: Columns<'_, N>) -> impl Fn(usize) -> ([f32; N], [f32; N]) {
    let (factors, min_factors) = (block.f16s(0), block.f16s(q4_k::MIN_FACTORS));
    move |sub| {
        let (scales, mins) = (block.bytes(q4_k::SCALES, sub), block.bytes(q4_k::MINS, sub));
        (each(|c| factors[c] * f32::from(scales[c])), each(|c| min_factors[c] * f32::from(mins[c])))
    }
}

#[inline(always)]
pub(super) fn q6_k<const N: usize>(block: Columns<'_, N>) -> impl Fn(usize) -> [f32; N] {
    let factors = block.f16s(0);
    move |k| {
        let scales = block.bytes(q6_k::SCALES, k / 16);
        let (low, high) = (block.bits::<4>(q6_k::LOW, k), block.bits::<2>(q6_k::HIGH, k));
        each(|c| {
            let quant = (low[c] | (high[c] << 4)).cast_signed() - 32;
            factors[c] * f32::from(scales[c].cast_signed()) * f32::from(quant)
        })
    }
}

#[inline(always)]
pub(super) fn iq4_xs<const N: usize>(block: Columns<'_, N>) -> impl Fn(usize) -> [f32; N] {
    let factors = block.f16s(0);
    move |k| {
        let scales = block.bytes(iq4_xs::SCALES, k / 32);
        let codes = block.bits::<4>(iq4_xs::QUANTS, k);
        each(|c| {
            let value = IQ4_VALUES[usize::from(codes[c])];
            factors[c] * f32::from(scales[c].cast_signed()) * f32::from(value)
        })
    }
}
