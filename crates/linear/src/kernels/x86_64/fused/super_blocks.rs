//! Super-blocks of 256 elements: eight steps each, which may begin and end inside of one.

use std::arch::x86_64::*;

use super::{HALF, LINE, Multiply, columns, fetch_ahead, five_bit_step, load_bytes, load_f16, load_lanes, nibble_step};
use crate::kernels::STEP_PAIRS;
use crate::layout::{PANEL, q4_k, q5_k, q6_k};

/// Scales and negative minimums of sub-block `sub` of Q4_K and Q5_K, of the halves from `first` on.
#[inline(always)]
unsafe fn k_scales<const HALVES: usize>(block: *const u8, sub: usize, first: usize) -> [[__m256; 2]; HALVES] {
    // SAFETY: see the module above.
    unsafe {
        let mut all = [[_mm256_setzero_ps(); 2]; HALVES];
        for (half, of_half) in all.iter_mut().enumerate() {
            let column = (first + half) * HALF;
            let factors = block.wrapping_add(2 * column);
            let (factors, min_factors) = (load_f16(factors), load_f16(factors.wrapping_add(q4_k::MIN_FACTORS)));
            let scales = load_lanes(block.wrapping_add(q4_k::SCALES + sub * PANEL + column));
            let mins = load_lanes(block.wrapping_add(q4_k::MINS + sub * PANEL + column));
            let scales = _mm256_mul_ps(factors, _mm256_cvtepi32_ps(scales));
            let mins = _mm256_mul_ps(min_factors, _mm256_cvtepi32_ps(mins));
            *of_half = [scales, _mm256_xor_ps(mins, _mm256_set1_ps(-0.0))];
        }
        all
    }
}

#[inline(always)]
pub(super) unsafe fn q4_k<const ROWS: usize, const HALVES: usize>(
    panel: *const u8,
    start: usize,
    pairs: usize,
    to: &mut Multiply<ROWS, HALVES>,
) {
    for step in 0..pairs / STEP_PAIRS {
        let (block, sub) = ((start / 32 + step) / 8, (start / 32 + step) % 8);
        let from = panel.wrapping_add(block * q4_k::BYTES);
        fetch_ahead::<{ q4_k::BYTES.div_ceil(8 * LINE) }>(from.wrapping_add(sub * q4_k::BYTES / 8));
        for first in (0..2).step_by(HALVES) {
            // SAFETY: see the module above.
            unsafe {
                let scales = k_scales::<HALVES>(from, sub, first);
                let quants = from.wrapping_add(q4_k::QUANTS + sub * STEP_PAIRS * PANEL + first * HALF);
                nibble_step(quants, scales, step * STEP_PAIRS, to);
                to.end_step(first);
            }
        }
    }
}

#[inline(always)]
pub(super) unsafe fn q5_k<const ROWS: usize, const HALVES: usize>(
    panel: *const u8,
    start: usize,
    pairs: usize,
    to: &mut Multiply<ROWS, HALVES>,
) {
    for step in 0..pairs / STEP_PAIRS {
        let (block, sub) = ((start / 32 + step) / 8, (start / 32 + step) % 8);
        let from = panel.wrapping_add(block * q5_k::BYTES);
        fetch_ahead::<{ q5_k::BYTES.div_ceil(8 * LINE) }>(from.wrapping_add(sub * q5_k::BYTES / 8));
        for first in (0..2).step_by(HALVES) {
            // SAFETY: see the module above.
            unsafe {
                let scales = k_scales::<HALVES>(from, sub, first);
                let low = from.wrapping_add(q5_k::LOW + sub * STEP_PAIRS * PANEL);
                let high = from.wrapping_add(q5_k::HIGH + sub * STEP_PAIRS / 4 * PANEL);
                five_bit_step((low, high), first, scales, step * STEP_PAIRS, to);
                to.end_step(first);
            }
        }
    }
}

#[inline(always)]
pub(super) unsafe fn q6_k<const ROWS: usize, const HALVES: usize>(
    panel: *const u8,
    start: usize,
    pairs: usize,
    to: &mut Multiply<ROWS, HALVES>,
) {
    for step in 0..pairs / STEP_PAIRS {
        let (block, first_sub) = ((start / 32 + step) / 8, (start / 32 + step) % 8 * 2);
        let from = panel.wrapping_add(block * q6_k::BYTES);
        fetch_ahead::<{ q6_k::BYTES.div_ceil(8 * LINE) }>(from.wrapping_add(first_sub / 2 * q6_k::BYTES / 8));
        for first in (0..2).step_by(HALVES) {
            for sub in first_sub..first_sub + 2 {
                // SAFETY: see the module above.
                unsafe {
                    let mut all = [[_mm256_setzero_ps(); 2]; HALVES];
                    for (half, of_half) in all.iter_mut().enumerate() {
                        let column = (first + half) * HALF;
                        // Signed.
                        let scales = from.wrapping_add(q6_k::SCALES + sub * PANEL + column);
                        let scales = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(scales.cast())));
                        let scales = _mm256_mul_ps(load_f16(from.wrapping_add(2 * column)), scales);
                        // `(quant - 32) * scale`: both products and their difference are exact.
                        *of_half = [scales, _mm256_mul_ps(scales, _mm256_set1_ps(-32.0))];
                    }
                    let (nibble, upper) = (_mm256_set1_epi8(15), _mm256_set1_epi8(0x30));
                    for quad in 0..4 {
                        let low = from.wrapping_add(q6_k::LOW + (sub * 8 + quad * 2) * PANEL);
                        let low = [load_bytes(low), load_bytes(low.wrapping_add(PANEL))];
                        let high = load_bytes(from.wrapping_add(q6_k::HIGH + (sub * 4 + quad) * PANEL));
                        // Shifts of 16-bit lanes; masks drop what crosses from one byte to the other.
                        let odd = [_mm256_srli_epi16::<4>(low[0]), _mm256_srli_epi16::<4>(low[1])];
                        let above = [_mm256_slli_epi16::<4>(high), _mm256_slli_epi16::<2>(high)];
                        let quants = [
                            _mm256_or_si256(_mm256_and_si256(low[0], nibble), _mm256_and_si256(above[0], upper)),
                            _mm256_or_si256(_mm256_and_si256(odd[0], nibble), _mm256_and_si256(above[1], upper)),
                        ];
                        let above = [high, _mm256_srli_epi16::<2>(high)];
                        let next = [
                            _mm256_or_si256(_mm256_and_si256(low[1], nibble), _mm256_and_si256(above[0], upper)),
                            _mm256_or_si256(_mm256_and_si256(odd[1], nibble), _mm256_and_si256(above[1], upper)),
                        ];
                        let pair = step * STEP_PAIRS + sub % 2 * 8 + quad * 2;
                        for (pair, [even, odd]) in [(pair, quants), (pair + 1, next)] {
                            for (half, &[scales, mins]) in all.iter().enumerate() {
                                let even = columns(even, first + half);
                                to.value::<0>(pair, half, _mm256_fmadd_ps(even, scales, mins));
                                let odd = columns(odd, first + half);
                                to.value::<1>(pair, half, _mm256_fmadd_ps(odd, scales, mins));
                            }
                        }
                    }
                }
            }
            // SAFETY: see the module above.
            unsafe { to.end_step(first) };
        }
    }
}
