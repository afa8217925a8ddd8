//! Blocks of 32 elements: from a stored block into a column of a panel's block, and one element back out.

use super::{Columns, PANEL, bf16s, each, pack_f16, pack_nibble_halves};
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

/// The values of some columns as a function of `k`; so are the others.
#[inline(always)]
pub(super) fn q4_0<const N: usize>(block: Columns<'_, N>) -> impl Fn(usize) -> [f32; N] {
    let scales = block.f16s(0);
    move |k| {
        let quants = block.bits::<4>(q4_0::QUANTS, k);
        each(|c| scales[c] * f32::from(quants[c].cast_signed() - 8))
    }
}

#[inline(always)]
pub(super) fn q4_1<const N: usize>(block: Columns<'_, N>) -> impl Fn(usize) -> [f32; N] {
    let (scales, mins) = (block.f16s(0), block.f16s(q4_1::MINS));
    move |k| {
        let quants = block.bits::<4>(q4_1::QUANTS, k);
        each(|c| scales[c] * f32::from(quants[c]) + mins[c])
    }
}

#[inline(always)]
pub(super) fn q5_0<const N: usize>(block: Columns<'_, N>) -> impl Fn(usize) -> [f32; N] {
    let scales = block.f16s(0);
    move |k| {
        let (low, high) = (block.bits::<4>(q5_0::LOW, k), block.bits::<1>(q5_0::HIGH, k));
        each(|c| scales[c] * f32::from((low[c] | (high[c] << 4)).cast_signed() - 16))
    }
}

#[inline(always)]
pub(super) fn q5_1<const N: usize>(block: Columns<'_, N>) -> impl Fn(usize) -> [f32; N] {
    let (scales, mins) = (block.f16s(0), block.f16s(q5_1::MINS));
    move |k| {
        let (low, high) = (block.bits::<4>(q5_1::LOW, k), block.bits::<1>(q5_1::HIGH, k));
        each(|c| scales[c] * f32::from(low[c] | (high[c] << 4)) + mins[c])
    }
}

#[inline(always)]
pub(super) fn q8_0<const N: usize>(block: Columns<'_, N>) -> impl Fn(usize) -> [f32; N] {
    let scales = block.f16s(0);
    move |k| {
        let pairs = block.row::<2>(q8_0::QUANTS, k / 2);
        each(|c| scales[c] * f32::from(pairs[c][k % 2].cast_signed()))
    }
}

#[inline(always)]
pub(super) fn iq4_nl<const N: usize>(block: Columns<'_, N>) -> impl Fn(usize) -> [f32; N] {
    let scales = block.f16s(0);
    move |k| {
        let codes = block.bits::<4>(q4_0::QUANTS, k);
        each(|c| scales[c] * f32::from(IQ4_VALUES[usize::from(codes[c])]))
    }
}

#[inline(always)]
pub(super) fn mxfp4<const N: usize>(block: Columns<'_, N>) -> impl Fn(usize) -> [f32; N] {
    let scales = bf16s(block.row(0, 0));
    move |k| {
        let codes = block.bits::<4>(q4_0::QUANTS, k);
        each(|c| scales[c] * f32::from(MXFP4_VALUES[usize::from(codes[c])]))
    }
}
