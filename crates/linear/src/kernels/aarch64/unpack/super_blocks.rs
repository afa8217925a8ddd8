//! Super-blocks of 256 elements: eight steps each.

use std::arch::aarch64::*;

use super::blocks::{five_bits, look_up_nibbles, table};
use super::{
    Format, Half, Pairs, affine, centred, load_f16, load_u8, minus, nibbles, scaled, times, two_bits, unsigned,
    with_high_bit,
};
use crate::codebook::IQ4_VALUES;
use crate::kernels::STEP_PAIRS;
use crate::layout::{PANEL, iq4_xs, q2_k, q3_k, q4_k, q5_k, q6_k};

/// Signed bytes times `factors`.
///
/// # Safety
/// See the module above.
#[inline(always)]
unsafe fn signed_scales<const HALF: usize>(from: *const u8, factors: Half) -> Half {
    // SAFETY: the caller's promise.
    unsafe { scaled(vreinterpret_s8_u8(load_u8::<HALF>(from)), factors) }
}

/// Scales and negated minimums of sub-block `sub` of Q4_K and Q5_K.
///
/// # Safety
/// See the module above.
#[inline(always)]
unsafe fn k_scales<const HALF: usize>(block: *const u8, sub: usize) -> (Half, Half) {
    // SAFETY: the caller's promise.
    unsafe {
        let scales = unsigned(load_u8::<HALF>(block.wrapping_add(q4_k::SCALES + sub * PANEL)));
        let mins = unsigned(load_u8::<HALF>(block.wrapping_add(q4_k::MINS + sub * PANEL)));
        let min_factors = load_f16::<HALF>(block.wrapping_add(q4_k::MIN_FACTORS));
        (times(load_f16::<HALF>(block), scales), minus(times(min_factors, mins)))
    }
}

pub(super) struct Q4K;
impl Format for Q4K {
    const BYTES: usize = q4_k::BYTES;
    const STEPS: usize = 8;

    #[inline(always)]
    unsafe fn step<const HALF: usize, P: Pairs>(block: *const u8, step: usize, first: usize, to: &mut P) {
        // SAFETY: the caller's promise.
        unsafe {
            let (scales, mins) = k_scales::<HALF>(block, step);
            for pair in 0..STEP_PAIRS {
                let quants = load_u8::<HALF>(block.wrapping_add(q4_k::QUANTS + (step * STEP_PAIRS + pair) * PANEL));
                let [even, odd] = nibbles(quants);
                to.values::<HALF>(first + pair, affine(even, scales, mins), affine(odd, scales, mins));
            }
        }
    }
}

pub(super) struct Q5K;
impl Format for Q5K {
    const BYTES: usize = q5_k::BYTES;
    const STEPS: usize = 8;

    #[inline(always)]
    unsafe fn step<const HALF: usize, P: Pairs>(block: *const u8, step: usize, first: usize, to: &mut P) {
        // SAFETY: the caller's promise.
        unsafe {
            let (scales, mins) = k_scales::<HALF>(block, step);
            for octet in 0..STEP_PAIRS / 4 {
                let high = load_u8::<HALF>(block.wrapping_add(q5_k::HIGH + (step * 4 + octet) * PANEL));
                for pair in 4 * octet..4 * octet + 4 {
                    let low = load_u8::<HALF>(block.wrapping_add(q5_k::LOW + (step * STEP_PAIRS + pair) * PANEL));
                    let [even, odd] = five_bits(low, high, pair);
                    to.values::<HALF>(first + pair, affine(even, scales, mins), affine(odd, scales, mins));
                }
            }
        }
    }
}

pub(super) struct Iq4Xs;
impl Format for Iq4Xs {
    const BYTES: usize = iq4_xs::BYTES;
    const STEPS: usize = 8;

    #[inline(always)]
    unsafe fn step<const HALF: usize, P: Pairs>(block: *const u8, step: usize, first: usize, to: &mut P) {
        // SAFETY: the caller's promise.
        unsafe {
            let scales = block.wrapping_add(iq4_xs::SCALES + step * PANEL);
            let (scales, values) = (signed_scales::<HALF>(scales, load_f16::<HALF>(block)), table(&IQ4_VALUES));
            for pair in 0..STEP_PAIRS {
                let codes = load_u8::<HALF>(block.wrapping_add(iq4_xs::QUANTS + (step * STEP_PAIRS + pair) * PANEL));
                let [even, odd] = look_up_nibbles(codes, values, scales);
                to.values::<HALF>(first + pair, even, odd);
            }
        }
    }
}

pub(super) struct Q2K;
impl Format for Q2K {
    const BYTES: usize = q2_k::BYTES;
    const STEPS: usize = 8;

    #[inline(always)]
    unsafe fn step<const HALF: usize, P: Pairs>(block: *const u8, step: usize, first: usize, to: &mut P) {
        // SAFETY: the caller's promise.
        unsafe {
            let min_factors = load_f16::<HALF>(block.wrapping_add(q2_k::MIN_FACTORS));
            for part in 0..2 {
                let sub = 2 * step + part;
                let [scales, mins] = nibbles(load_u8::<HALF>(block.wrapping_add(q2_k::SCALES + sub * PANEL)));
                let scales = times(load_f16::<HALF>(block), unsigned(scales));
                let mins = minus(times(min_factors, unsigned(mins)));
                for quad in 0..4 {
                    let quants = load_u8::<HALF>(block.wrapping_add(q2_k::QUANTS + (sub * 4 + quad) * PANEL));
                    let [q0, q1, q2, q3] = two_bits(quants);
                    let pair = first + 8 * part + 2 * quad;
                    to.values::<HALF>(pair, affine(q0, scales, mins), affine(q1, scales, mins));
                    to.values::<HALF>(pair + 1, affine(q2, scales, mins), affine(q3, scales, mins));
                }
            }
        }
    }
}

pub(super) struct Q3K;
impl Format for Q3K {
    const BYTES: usize = q3_k::BYTES;
    const STEPS: usize = 8;

    #[inline(always)]
    unsafe fn step<const HALF: usize, P: Pairs>(block: *const u8, step: usize, first: usize, to: &mut P) {
        // SAFETY: the caller's promise.
        unsafe {
            let factors = load_f16::<HALF>(block);
            for part in 0..2 {
                let sub = 2 * step + part;
                let scales = signed_scales::<HALF>(block.wrapping_add(q3_k::SCALES + sub * PANEL), factors);
                for quad in 0..4 {
                    let low = two_bits(load_u8::<HALF>(block.wrapping_add(q3_k::LOW + (sub * 4 + quad) * PANEL)));
                    let high = load_u8::<HALF>(block.wrapping_add(q3_k::HIGH + (sub * 2 + quad / 2) * PANEL));
                    let value = |n: usize| {
                        let bits = with_high_bit::<2>(low[n], high, quad % 2 * 4 + n);
                        scaled(centred(bits, 4), scales)
                    };
                    let pair = first + 8 * part + 2 * quad;
                    to.values::<HALF>(pair, value(0), value(1));
                    to.values::<HALF>(pair + 1, value(2), value(3));
                }
            }
        }
    }
}

pub(super) struct Q6K;
impl Format for Q6K {
    const BYTES: usize = q6_k::BYTES;
    const STEPS: usize = 8;

    #[inline(always)]
    unsafe fn step<const HALF: usize, P: Pairs>(block: *const u8, step: usize, first: usize, to: &mut P) {
        // SAFETY: the caller's promise.
        unsafe {
            let (factors, mask) = (load_f16::<HALF>(block), vdup_n_u8(0x30));
            for part in 0..2 {
                let sub = 2 * step + part;
                let scales = signed_scales::<HALF>(block.wrapping_add(q6_k::SCALES + sub * PANEL), factors);
                for quad in 0..4 {
                    let low = block.wrapping_add(q6_k::LOW + (sub * 8 + quad * 2) * PANEL);
                    let high = load_u8::<HALF>(block.wrapping_add(q6_k::HIGH + (sub * 4 + quad) * PANEL));
                    let high = [vshl_n_u8::<4>(high), vshl_n_u8::<2>(high), high, vshr_n_u8::<2>(high)];
                    let value = |low: uint8x8_t, high: uint8x8_t| {
                        scaled(centred(vorr_u8(low, vand_u8(high, mask)), 32), scales)
                    };
                    for i in 0..2 {
                        let [even, odd] = nibbles(load_u8::<HALF>(low.wrapping_add(i * PANEL)));
                        let pair = first + 8 * part + 2 * quad + i;
                        to.values::<HALF>(pair, value(even, high[2 * i]), value(odd, high[2 * i + 1]));
                    }
                }
            }
        }
    }
}
