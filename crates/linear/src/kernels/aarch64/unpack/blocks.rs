//! Blocks of 32 elements: one step each.

use std::arch::aarch64::*;

use super::{
    Format, Half, Pairs, affine, centred, load_f16, load_u8, nibbles, operands, scaled, times, with_high_bit, words,
};
use crate::codebook::{IQ4_VALUES, MXFP4_VALUES};
use crate::kernels::STEP_PAIRS;
use crate::layout::{PANEL, q4_0, q4_1, q5_0, q5_1, q8_0};

/// What the codes in both nibbles of 8 bytes stand for, times the scale.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn look_up_nibbles(bytes: uint8x8_t, values: int8x16_t, scales: Half) -> [Half; 2] {
    let [even, odd] = nibbles(bytes);
    [scaled(vqtbl1_s8(values, even), scales), scaled(vqtbl1_s8(values, odd), scales)]
}

/// A table for lookups.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn table(values: &[i8; 16]) -> int8x16_t {
    // SAFETY: the array has 16 bytes.
    unsafe { vld1q_s8(values.as_ptr()) }
}

/// The formats of a scale and codes of four bits: what a code stands for, times the scale.
///
/// # Safety
/// See the module above.
#[inline(always)]
unsafe fn coded<const HALF: usize, P: Pairs>(block: *const u8, first: usize, values: &[i8; 16], to: &mut P) {
    // SAFETY: the caller's promise.
    unsafe {
        let (scales, values) = (load_f16::<HALF>(block), table(values));
        for pair in 0..STEP_PAIRS {
            let codes = load_u8::<HALF>(block.wrapping_add(q4_0::QUANTS + pair * PANEL));
            let [even, odd] = look_up_nibbles(codes, values, scales);
            to.values::<HALF>(first + pair, even, odd);
        }
    }
}

pub(super) struct Q4_0;
impl Format for Q4_0 {
    const BYTES: usize = q4_0::BYTES;
    const STEPS: usize = 1;

    #[inline(always)]
    unsafe fn step<const HALF: usize, P: Pairs>(block: *const u8, _step: usize, first: usize, to: &mut P) {
        const VALUES: [i8; 16] = [-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7];
        // SAFETY: the caller's promise.
        unsafe { coded::<HALF, P>(block, first, &VALUES, to) };
    }
}

pub(super) struct Iq4Nl;
impl Format for Iq4Nl {
    const BYTES: usize = q4_0::BYTES;
    const STEPS: usize = 1;

    #[inline(always)]
    unsafe fn step<const HALF: usize, P: Pairs>(block: *const u8, _step: usize, first: usize, to: &mut P) {
        // SAFETY: the caller's promise.
        unsafe { coded::<HALF, P>(block, first, &IQ4_VALUES, to) };
    }
}

/// Without magnitudes below 2^-50.
#[inline]
#[target_feature(enable = "neon")]
fn without_small(values: Half) -> Half {
    [operands(values[0], values[0]), operands(values[1], values[1])]
}

/// A power of two times at most four bits: nothing is rounded, but a magnitude may be too small for an operand.
pub(super) struct Mxfp4;
impl Format for Mxfp4 {
    const BYTES: usize = q4_0::BYTES;
    const STEPS: usize = 1;

    #[inline(always)]
    unsafe fn step<const HALF: usize, P: Pairs>(block: *const u8, _step: usize, first: usize, to: &mut P) {
        // SAFETY: the caller's promise.
        unsafe {
            let scales = vld1q_u16(block.wrapping_add(16 * HALF).cast());
            let scales = [vshll_n_u16::<16>(vget_low_u16(scales)), vshll_high_n_u16::<16>(scales)];
            let scales = [vreinterpretq_f32_u32(scales[0]), vreinterpretq_f32_u32(scales[1])];
            let values = table(&MXFP4_VALUES);
            for pair in 0..STEP_PAIRS {
                let codes = load_u8::<HALF>(block.wrapping_add(q4_0::QUANTS + pair * PANEL));
                let [even, odd] = look_up_nibbles(codes, values, scales);
                to.operands::<HALF>(first + pair, without_small(even), without_small(odd));
            }
        }
    }
}

pub(super) struct Q4_1;
impl Format for Q4_1 {
    const BYTES: usize = q4_1::BYTES;
    const STEPS: usize = 1;

    #[inline(always)]
    unsafe fn step<const HALF: usize, P: Pairs>(block: *const u8, _step: usize, first: usize, to: &mut P) {
        // SAFETY: the caller's promise.
        unsafe {
            let (scales, mins) = (load_f16::<HALF>(block), load_f16::<HALF>(block.wrapping_add(q4_1::MINS)));
            for pair in 0..STEP_PAIRS {
                let quants = load_u8::<HALF>(block.wrapping_add(q4_1::QUANTS + pair * PANEL));
                let [even, odd] = nibbles(quants);
                to.values::<HALF>(first + pair, affine(even, scales, mins), affine(odd, scales, mins));
            }
        }
    }
}

/// Five bits of the pair's quants: `low` are its nibbles, `high` the bits of an octet of `k`.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn five_bits(low: uint8x8_t, high: uint8x8_t, pair: usize) -> [uint8x8_t; 2] {
    let [even, odd] = nibbles(low);
    let bit = 2 * (pair % 4);
    [with_high_bit::<4>(even, high, bit), with_high_bit::<4>(odd, high, bit + 1)]
}

pub(super) struct Q5_0;
impl Format for Q5_0 {
    const BYTES: usize = q5_0::BYTES;
    const STEPS: usize = 1;

    #[inline(always)]
    unsafe fn step<const HALF: usize, P: Pairs>(block: *const u8, _step: usize, first: usize, to: &mut P) {
        // SAFETY: the caller's promise.
        unsafe {
            let scales = load_f16::<HALF>(block);
            for octet in 0..STEP_PAIRS / 4 {
                let high = load_u8::<HALF>(block.wrapping_add(q5_0::HIGH + octet * PANEL));
                for pair in 4 * octet..4 * octet + 4 {
                    let low = load_u8::<HALF>(block.wrapping_add(q5_0::LOW + pair * PANEL));
                    let [even, odd] = five_bits(low, high, pair);
                    let (even, odd) = (scaled(centred(even, 16), scales), scaled(centred(odd, 16), scales));
                    to.values::<HALF>(first + pair, even, odd);
                }
            }
        }
    }
}

pub(super) struct Q5_1;
impl Format for Q5_1 {
    const BYTES: usize = q5_1::BYTES;
    const STEPS: usize = 1;

    #[inline(always)]
    unsafe fn step<const HALF: usize, P: Pairs>(block: *const u8, _step: usize, first: usize, to: &mut P) {
        // SAFETY: the caller's promise.
        unsafe {
            let (scales, mins) = (load_f16::<HALF>(block), load_f16::<HALF>(block.wrapping_add(q5_1::MINS)));
            for octet in 0..STEP_PAIRS / 4 {
                let high = load_u8::<HALF>(block.wrapping_add(q5_1::HIGH + octet * PANEL));
                for pair in 4 * octet..4 * octet + 4 {
                    let low = load_u8::<HALF>(block.wrapping_add(q5_1::LOW + pair * PANEL));
                    let [even, odd] = five_bits(low, high, pair);
                    to.values::<HALF>(first + pair, affine(even, scales, mins), affine(odd, scales, mins));
                }
            }
        }
    }
}

pub(super) struct Q8_0;
impl Format for Q8_0 {
    const BYTES: usize = q8_0::BYTES;
    const STEPS: usize = 1;

    #[inline(always)]
    unsafe fn step<const HALF: usize, P: Pairs>(block: *const u8, _step: usize, first: usize, to: &mut P) {
        // SAFETY: the caller's promise.
        unsafe {
            let scales = load_f16::<HALF>(block);
            for pair in 0..STEP_PAIRS {
                let quants = block.wrapping_add(q8_0::QUANTS + pair * 2 * PANEL + 16 * HALF);
                // The even quant is the low byte of 16 bits, the odd one the high byte.
                let both = vld1q_s16(quants.cast());
                let (even, odd) = (vshrq_n_s16::<8>(vshlq_n_s16::<8>(both)), vshrq_n_s16::<8>(both));
                to.values::<HALF>(first + pair, times(words(even), scales), times(words(odd), scales));
            }
        }
    }
}
