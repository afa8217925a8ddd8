//! Blocks of 32 elements: from a stored block into a column of a panel's block, and one element back out.

use super::{PANEL, bf16_at, bits_at, f16_at, pack_f16, pack_nibble_halves};
use super::{q4_0, q4_1, q5_0, q5_1, q8_0};
use crate::codebook::{IQ4_VALUES, MXFP4_VALUES, half_e8m0_bits};

pub(super) fn pack_q4_0(source: &[u8], block: &mut [u8], column: usize) {
    pack_f16(source, 0, block, 0, column);
    pack_nibble_halves(&source[2..18], &mut block[q4_0::QUANTS..], column);
}

pub(super) fn pack_q4_1(source: &[u8], block: &mut [u8], column: usize) {
    pack_f16(source, 0, block, 0, column);
    pack_f16(source, 2, block, q4_1::MINS, column);
    pack_nibble_halves(&source[4..20], &mut block[q4_1::QUANTS..], column);
}

pub(super) fn pack_q5_0(source: &[u8], block: &mut [u8], column: usize) {
    pack_f16(source, 0, block, 0, column);
    pack_5_bit(&source[2..22], &mut block[q5_0::LOW..], column);
}

pub(super) fn pack_q5_1(source: &[u8], block: &mut [u8], column: usize) {
    pack_f16(source, 0, block, 0, column);
    pack_f16(source, 2, block, q5_1::MINS, column);
    pack_5_bit(&source[4..24], &mut block[q5_1::LOW..], column);
}

/// Four bytes of high bits, element k in bit k, then 16 bytes of nibbles; to low bits and, behind them, high bits.
fn pack_5_bit(source: &[u8], packed: &mut [u8], column: usize) {
    let (high, low) = source.split_at(4);
    let (packed_low, packed_high) = packed.split_at_mut(16 * PANEL);
    pack_nibble_halves(low, packed_low, column);
    // Element k in bit k is the packed order already: octet after octet, the lowest k in the lowest bit.
    for (octet, &bits) in high.iter().enumerate() {
        packed_high[octet * PANEL + column] = bits;
    }
}

pub(super) fn pack_q8_0(source: &[u8], block: &mut [u8], column: usize) {
    pack_f16(source, 0, block, 0, column);
    for (p, pair) in source[2..34].chunks_exact(2).enumerate() {
        block[q8_0::QUANTS + (p * PANEL + column) * 2..][..2].copy_from_slice(pair);
    }
}

pub(super) fn pack_mxfp4(source: &[u8], block: &mut [u8], column: usize) {
    block[2 * column..][..2].copy_from_slice(&half_e8m0_bits(source[0]).to_le_bytes());
    pack_nibble_halves(&source[1..17], &mut block[q4_0::QUANTS..], column);
}

pub(super) fn q4_0_at(block: &[u8], column: usize, k: usize) -> f32 {
    let quant = bits_at::<4>(&block[q4_0::QUANTS..], column, k).cast_signed() - 8;
    f16_at(block, 2 * column) * f32::from(quant)
}

pub(super) fn q4_1_at(block: &[u8], column: usize, k: usize) -> f32 {
    let quant = bits_at::<4>(&block[q4_1::QUANTS..], column, k);
    f16_at(block, 2 * column) * f32::from(quant) + f16_at(block, q4_1::MINS + 2 * column)
}

pub(super) fn q5_0_at(block: &[u8], column: usize, k: usize) -> f32 {
    let (low, high) = (bits_at::<4>(&block[q5_0::LOW..], column, k), bits_at::<1>(&block[q5_0::HIGH..], column, k));
    f16_at(block, 2 * column) * f32::from((low | (high << 4)).cast_signed() - 16)
}

pub(super) fn q5_1_at(block: &[u8], column: usize, k: usize) -> f32 {
    let (low, high) = (bits_at::<4>(&block[q5_1::LOW..], column, k), bits_at::<1>(&block[q5_1::HIGH..], column, k));
    f16_at(block, 2 * column) * f32::from(low | (high << 4)) + f16_at(block, q5_1::MINS + 2 * column)
}

pub(super) fn q8_0_at(block: &[u8], column: usize, k: usize) -> f32 {
    let quant = block[q8_0::QUANTS + (k / 2 * PANEL + column) * 2 + k % 2].cast_signed();
    f16_at(block, 2 * column) * f32::from(quant)
}

pub(super) fn iq4_nl_at(block: &[u8], column: usize, k: usize) -> f32 {
    let code = bits_at::<4>(&block[q4_0::QUANTS..], column, k);
    f16_at(block, 2 * column) * f32::from(IQ4_VALUES[usize::from(code)])
}

pub(super) fn mxfp4_at(block: &[u8], column: usize, k: usize) -> f32 {
    let code = bits_at::<4>(&block[q4_0::QUANTS..], column, k);
    bf16_at(block, 2 * column) * f32::from(MXFP4_VALUES[usize::from(code)])
}
