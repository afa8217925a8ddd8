//! Super-blocks of 256 elements: from a stored block into a column of a panel's block, and one element back out.

use super::{PANEL, bits_at, f16s, pack_bits, pack_f16, pack_nibble_halves, row};
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

/// The value of element `k` of a column, as a function of `(k, column)`; so are the others.
#[inline(always)]
pub(super) fn q2_k(block: &[u8]) -> impl Fn(usize, usize) -> f32 {
    let (factors, min_factors) = (f16s(block), f16s(&block[q2_k::MIN_FACTORS..]));
    let (scales, quants) = (&block[q2_k::SCALES..], &block[q2_k::QUANTS..]);
    move |k, column| {
        let scale_and_min = row(scales, k / 16)[column];
        let scale = factors[column] * f32::from(scale_and_min & 15);
        let min = min_factors[column] * f32::from(scale_and_min >> 4);
        scale * f32::from(bits_at::<2>(quants, k, column)) - min
    }
}

#[inline(always)]
pub(super) fn q3_k(block: &[u8]) -> impl Fn(usize, usize) -> f32 {
    let (factors, scales) = (f16s(block), &block[q3_k::SCALES..]);
    let (low, high) = (&block[q3_k::LOW..], &block[q3_k::HIGH..]);
    move |k, column| {
        let scale = row(scales, k / 16)[column].cast_signed();
        let (low, high) = (bits_at::<2>(low, k, column), bits_at::<1>(high, k, column));
        factors[column] * f32::from(scale) * f32::from((low | (high << 2)).cast_signed() - 4)
    }
}

#[inline(always)]
pub(super) fn q4_k(block: &[u8]) -> impl Fn(usize, usize) -> f32 {
    let (scale_and_min, quants) = (k_scales_and_mins(block), &block[q4_k::QUANTS..]);
    move |k, column| {
        let (scale, min) = scale_and_min(k / 32, column);
        scale * f32::from(bits_at::<4>(quants, k, column)) - min
    }
}

#[inline(always)]
pub(super) fn q5_k(block: &[u8]) -> impl Fn(usize, usize) -> f32 {
    let (scale_and_min, low, high) = (k_scales_and_mins(block), &block[q5_k::LOW..], &block[q5_k::HIGH..]);
    move |k, column| {
        let (scale, min) = scale_and_min(k / 32, column);
        let (low, high) = (bits_at::<4>(low, k, column), bits_at::<1>(high, k, column));
        scale * f32::from(low | (high << 4)) - min
    }
}

/// Scale and minimum as a function of `(sub-block, column)`.
#[inline(always)]
fn k_scales_and_mins(block: &[u8]) -> impl Fn(usize, usize) -> (f32, f32) {
    let (factors, min_factors) = (f16s(block), f16s(&block[q4_k::MIN_FACTORS..]));
    let (scales, mins) = (&block[q4_k::SCALES..], &block[q4_k::MINS..]);
    move |sub, column| {
        let scale = factors[column] * f32::from(row(scales, sub)[column]);
        (scale, min_factors[column] * f32::from(row(mins, sub)[column]))
    }
}

#[inline(always)]
pub(super) fn q6_k(block: &[u8]) -> impl Fn(usize, usize) -> f32 {
    let (factors, scales) = (f16s(block), &block[q6_k::SCALES..]);
    let (low, high) = (&block[q6_k::LOW..], &block[q6_k::HIGH..]);
    move |k, column| {
        let scale = row(scales, k / 16)[column].cast_signed();
        let (low, high) = (bits_at::<4>(low, k, column), bits_at::<2>(high, k, column));
        factors[column] * f32::from(scale) * f32::from((low | (high << 4)).cast_signed() - 32)
    }
}

#[inline(always)]
pub(super) fn iq4_xs(block: &[u8]) -> impl Fn(usize, usize) -> f32 {
    let (factors, scales, codes) = (f16s(block), &block[iq4_xs::SCALES..], &block[iq4_xs::QUANTS..]);
    move |k, column| {
        let scale = row(scales, k / 32)[column].cast_signed();
        let value = IQ4_VALUES[usize::from(bits_at::<4>(codes, k, column))];
        factors[column] * f32::from(scale) * f32::from(value)
    }
}
