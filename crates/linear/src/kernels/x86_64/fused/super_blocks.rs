//! Super-blocks of 256 elements: eight steps each, which may begin and end inside of one.

use std::arch::x86_64::*;

use super::{Multiply, Row, five_bit_step, load_f16, load_lanes, mul, nibble_step, splat, to_f32};
use crate::kernels::STEP_PAIRS;
use crate::layout::{PANEL, q4_k, q5_k, q6_k};

/// Scales and negative minimums of sub-block `sub` of Q4_K and Q5_K.
#[inline(always)]
unsafe fn k_scales(block: *const u8, sub: usize) -> (Row, Row) {
    // SAFETY: see the module above.
    unsafe {
        let (factors, min_factors) = (load_f16(block), load_f16(block.wrapping_add(q4_k::MIN_FACTORS)));
        let scales = to_f32(load_lanes(block.wrapping_add(q4_k::SCALES + sub * PANEL)));
        let mins = to_f32(load_lanes(block.wrapping_add(q4_k::MINS + sub * PANEL)));
        (mul(factors, scales), mul(mul(min_factors, mins), splat(-1.0)))
    }
}

#[inline(always)]
pub(super) unsafe fn q4_k<const ROWS: usize>(panel: *const u8, start: usize, pairs: usize, to: &mut Multiply<ROWS>) {
    for step in 0..pairs / STEP_PAIRS {
        // SAFETY: see the module above.
        unsafe {
            let (block, sub) = ((start / 32 + step) / 8, (start / 32 + step) % 8);
            let from = panel.wrapping_add(block * q4_k::BYTES);
            let (scales, mins) = k_scales(from, sub);
            let quants = from.wrapping_add(q4_k::QUANTS + sub * STEP_PAIRS * PANEL);
            nibble_step(quants, scales, mins, step * STEP_PAIRS, to);
        }
    }
}

#[inline(always)]
pub(super) unsafe fn q5_k<const ROWS: usize>(panel: *const u8, start: usize, pairs: usize, to: &mut Multiply<ROWS>) {
    for step in 0..pairs / STEP_PAIRS {
        // SAFETY: see the module above.
        unsafe {
            let (block, sub) = ((start / 32 + step) / 8, (start / 32 + step) % 8);
            let from = panel.wrapping_add(block * q5_k::BYTES);
            let (scales, mins) = k_scales(from, sub);
            let low = from.wrapping_add(q5_k::LOW + sub * STEP_PAIRS * PANEL);
            let high = from.wrapping_add(q5_k::HIGH + sub * STEP_PAIRS / 4 * PANEL);
            five_bit_step((low, high), scales, mins, step * STEP_PAIRS, to);
        }
    }
}

#[inline(always)]
pub(super) unsafe fn q6_k<const ROWS: usize>(panel: *const u8, start: usize, pairs: usize, to: &mut Multiply<ROWS>) {
    for step in 0..pairs / STEP_PAIRS {
        // SAFETY: see the module above.
        unsafe {
            let (block, first_sub) = ((start / 32 + step) / 8, (start / 32 + step) % 8 * 2);
            let from = panel.wrapping_add(block * q6_k::BYTES);
            let factors = load_f16(from);
            for sub in first_sub..first_sub + 2 {
                let scales = _mm_load_si128(from.wrapping_add(q6_k::SCALES + sub * PANEL).cast());
                let scales = mul(factors, signed_to_f32(scales));
                for quad in 0..4 {
                    let low = from.wrapping_add(q6_k::LOW + (sub * 8 + quad * 2) * PANEL);
                    let low0 = _mm_load_si128(low.cast());
                    let low1 = _mm_load_si128(low.wrapping_add(PANEL).cast());
                    let high = _mm_load_si128(from.wrapping_add(q6_k::HIGH + (sub * 4 + quad) * PANEL).cast());
                    let pair = step * STEP_PAIRS + sub % 2 * 8 + quad * 2;
                    // Shifts of 16-bit lanes; masks drop what crosses from one byte to the other.
                    let even = six_bits(low0, _mm_slli_epi16::<4>(high));
                    to.value::<0>(pair, mul(even, scales));
                    let odd = six_bits(_mm_srli_epi16::<4>(low0), _mm_slli_epi16::<2>(high));
                    to.value::<1>(pair, mul(odd, scales));
                    let even = six_bits(low1, high);
                    to.value::<0>(pair + 1, mul(even, scales));
                    let odd = six_bits(_mm_srli_epi16::<4>(low1), _mm_srli_epi16::<2>(high));
                    to.value::<1>(pair + 1, mul(odd, scales));
                }
            }
            to.end_step();
        }
    }
}

/// Nibbles and two bits above them, minus 32.
#[inline(always)]
unsafe fn six_bits(low: __m128i, high: __m128i) -> Row {
    // SAFETY: see the module above.
    unsafe {
        let low = _mm_and_si128(low, _mm_set1_epi8(15));
        let bits = _mm_or_si128(low, _mm_and_si128(high, _mm_set1_epi8(0x30)));
        signed_to_f32(_mm_sub_epi8(bits, _mm_set1_epi8(32)))
    }
}

/// Signed bytes as f32.
#[inline(always)]
unsafe fn signed_to_f32(bytes: __m128i) -> Row {
    // SAFETY: see the module above.
    unsafe { to_f32([_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes))]) }
}
