//! Super-blocks of 256 elements: eight steps each, which may begin and end inside of one.

use std::arch::x86_64::*;

use super::bytes;
use super::{
    COUNT, COUNT_ON, Pairs, UNROLLED, fetched_super_block, load_f16, load_u8, look_up_5_bits, look_up_nibbles, table,
    with_high_bit,
};
use crate::codebook::IQ4_VALUES;
use crate::kernels::STEP_PAIRS;
use crate::layout::{PANEL, iq4_xs, q2_k, q3_k, q4_k, q5_k, q6_k};

/// 16 signed bytes times `factors`.
#[inline(always)]
unsafe fn signed_scales(from: *const u8, factors: __m512) -> __m512 {
    // SAFETY: see the module above.
    unsafe { _mm512_mul_ps(factors, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128(from.cast())))) }
}

/// Scales and minimums of sub-block `sub` of Q4_K and Q5_K.
#[inline(always)]
unsafe fn k_scales(block: *const u8, sub: usize) -> (__m512, __m512) {
    // SAFETY: see the module above.
    unsafe {
        let (factors, min_factors) = (load_f16(block), load_f16(block.wrapping_add(q4_k::MIN_FACTORS)));
        let scales = load_u8(block.wrapping_add(q4_k::SCALES + sub * PANEL));
        let mins = load_u8(block.wrapping_add(q4_k::MINS + sub * PANEL));
        (_mm512_mul_ps(factors, _mm512_cvtepi32_ps(scales)), _mm512_mul_ps(min_factors, _mm512_cvtepi32_ps(mins)))
    }
}

#[inline(always)]
pub(super) unsafe fn q4_k<P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P) {
    for (i, sub) in (start / 32..(start + len) / 32).enumerate() {
        // SAFETY: see the module.
        unsafe {
            let from = fetched_super_block(panel, sub, q4_k::BYTES);
            let (scales, mins) = k_scales(from, sub % 8);
            for run in 0..STEP_PAIRS / UNROLLED {
                for pair in run * UNROLLED..(run + 1) * UNROLLED {
                    let (even, odd) = look_up_nibbles(
                        from.wrapping_add(q4_k::QUANTS + (sub % 8 * STEP_PAIRS + pair) * PANEL),
                        table(COUNT),
                    );
                    let (even, odd) = (_mm512_fmsub_ps(even, scales, mins), _mm512_fmsub_ps(odd, scales, mins));
                    to.values(i * STEP_PAIRS + pair, even, odd);
                }
            }
            to.end_step();
        }
    }
}

#[inline(always)]
pub(super) unsafe fn q5_k<P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P) {
    for (i, sub) in (start / 32..(start + len) / 32).enumerate() {
        // SAFETY: see the module above.
        unsafe {
            let from = fetched_super_block(panel, sub, q5_k::BYTES);
            let (scales, mins) = k_scales(from, sub % 8);
            let tables = [table(COUNT), table(COUNT_ON)];
            for run in 0..STEP_PAIRS / UNROLLED {
                for pair in run * UNROLLED..(run + 1) * UNROLLED {
                    let high = load_u8(from.wrapping_add(q5_k::HIGH + (sub % 8 * 4 + pair / 4) * PANEL));
                    let low = from.wrapping_add(q5_k::LOW + (sub % 8 * STEP_PAIRS + pair) * PANEL);
                    let (even, odd) = look_up_5_bits(low, high, pair, tables);
                    let (even, odd) = (_mm512_fmsub_ps(even, scales, mins), _mm512_fmsub_ps(odd, scales, mins));
                    to.values(i * STEP_PAIRS + pair, even, odd);
                }
            }
            to.end_step();
        }
    }
}

#[inline(always)]
pub(super) unsafe fn iq4_xs<P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P) {
    for (i, sub) in (start / 32..(start + len) / 32).enumerate() {
        // SAFETY: see the module above.
        unsafe {
            let from = fetched_super_block(panel, sub, iq4_xs::BYTES);
            let scales = signed_scales(from.wrapping_add(iq4_xs::SCALES + sub % 8 * PANEL), load_f16(from));
            for run in 0..STEP_PAIRS / UNROLLED {
                for pair in run * UNROLLED..(run + 1) * UNROLLED {
                    let codes = from.wrapping_add(iq4_xs::QUANTS + (sub % 8 * STEP_PAIRS + pair) * PANEL);
                    let (even, odd) = look_up_nibbles(codes, table(IQ4_VALUES.map(f32::from)));
                    to.values(i * STEP_PAIRS + pair, _mm512_mul_ps(even, scales), _mm512_mul_ps(odd, scales));
                }
            }
            to.end_step();
        }
    }
}

#[inline(always)]
pub(super) unsafe fn q2_k<P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P) {
    for (i, step) in (start / 32..(start + len) / 32).enumerate() {
        // SAFETY: see the module above.
        unsafe {
            let from = fetched_super_block(panel, step, q2_k::BYTES);
            let (factors, min_factors) = (load_f16(from), load_f16(from.wrapping_add(q2_k::MIN_FACTORS)));
            // An index is four bits, of which two count.
            let values = table(COUNT.map(|value| value % 4.0));
            for half in 0..2 {
                let sub = step % 8 * 2 + half;
                let both = load_u8(from.wrapping_add(q2_k::SCALES + sub * PANEL));
                let scales = _mm512_cvtepi32_ps(_mm512_and_si512(both, _mm512_set1_epi32(15)));
                let scales = _mm512_mul_ps(factors, scales);
                let mins = _mm512_mul_ps(min_factors, _mm512_cvtepi32_ps(_mm512_srli_epi32::<4>(both)));
                for quad in 0..4 {
                    let quants = load_u8(from.wrapping_add(q2_k::QUANTS + (sub * 4 + quad) * PANEL));
                    let shifted = [
                        quants,
                        _mm512_srli_epi32::<2>(quants),
                        _mm512_srli_epi32::<4>(quants),
                        _mm512_srli_epi32::<6>(quants),
                    ];
                    let mut rows = [_mm512_setzero_ps(); 4];
                    for (row, index) in rows.iter_mut().zip(shifted) {
                        *row = _mm512_fmsub_ps(_mm512_permutexvar_ps(index, values), scales, mins);
                    }
                    let pair = i * STEP_PAIRS + half * 8 + quad * 2;
                    to.values(pair, rows[0], rows[1]);
                    to.values(pair + 1, rows[2], rows[3]);
                }
            }
            to.end_step();
        }
    }
}

#[inline(always)]
pub(super) unsafe fn q3_k<P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P) {
    for (i, step) in (start / 32..(start + len) / 32).enumerate() {
        // SAFETY: see the module above.
        unsafe {
            let from = fetched_super_block(panel, step, q3_k::BYTES);
            let factors = load_f16(from);
            // An index is four bits, of which three count.
            let values = table(COUNT.map(|value| value % 8.0 - 4.0));
            for half in 0..2 {
                let sub = step % 8 * 2 + half;
                let scales = signed_scales(from.wrapping_add(q3_k::SCALES + sub * PANEL), factors);
                for quad in 0..4 {
                    let low = load_u8(from.wrapping_add(q3_k::LOW + (sub * 4 + quad) * PANEL));
                    let high = load_u8(from.wrapping_add(q3_k::HIGH + (sub * 2 + quad / 2) * PANEL));
                    let shifted =
                        [low, _mm512_srli_epi32::<2>(low), _mm512_srli_epi32::<4>(low), _mm512_srli_epi32::<6>(low)];
                    let mut rows = [_mm512_setzero_ps(); 4];
                    for (n, (row, low)) in rows.iter_mut().zip(shifted).enumerate() {
                        let index = with_high_bit::<2>(low, high, quad % 2 * 4 + n);
                        *row = _mm512_mul_ps(scales, _mm512_permutexvar_ps(index, values));
                    }
                    let pair = i * STEP_PAIRS + half * 8 + quad * 2;
                    to.values(pair, rows[0], rows[1]);
                    to.values(pair + 1, rows[2], rows[3]);
                }
            }
            to.end_step();
        }
    }
}

#[inline(always)]
pub(super) unsafe fn q6_k<P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P) {
    for (i, step) in (start / 32..(start + len) / 32).enumerate() {
        // SAFETY: see the module.
        unsafe {
            let from = fetched_super_block(panel, step, q6_k::BYTES);
            let factors = load_f16(from);
            let (low_mask, high_mask, center) = (_mm_set1_epi8(15), _mm_set1_epi8(0x30), _mm_set1_epi8(32));
            for half in 0..2 {
                let sub = step % 8 * 2 + half;
                let scales = _mm_load_si128(from.wrapping_add(q6_k::SCALES + sub * PANEL).cast());
                let scales = _mm512_mul_ps(factors, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scales)));
                if P::SHUFFLES_BYTES {
                    let low = from.wrapping_add(q6_k::LOW + sub * 8 * PANEL);
                    let high = from.wrapping_add(q6_k::HIGH + sub * 4 * PANEL);
                    bytes::six_bit_half_step(low, high, scales, i * STEP_PAIRS + half * 8, to);
                    continue;
                }
                for quad in 0..4 {
                    let low = from.wrapping_add(q6_k::LOW + (sub * 8 + quad * 2) * PANEL);
                    let (low0, low1) = (_mm_load_si128(low.cast()), _mm_load_si128(low.wrapping_add(PANEL).cast()));
                    let high = _mm_load_si128(from.wrapping_add(q6_k::HIGH + (sub * 4 + quad) * PANEL).cast());
                    // Shifts of 16-bit lanes; the masks drop what crosses from one byte to the other.
                    let low = [low0, _mm_srli_epi16::<4>(low0), low1, _mm_srli_epi16::<4>(low1)];
                    let high = [_mm_slli_epi16::<4>(high), _mm_slli_epi16::<2>(high), high, _mm_srli_epi16::<2>(high)];
                    let mut rows = [_mm512_setzero_ps(); 4];
                    for (n, row) in rows.iter_mut().enumerate() {
                        let bits = _mm_or_si128(_mm_and_si128(low[n], low_mask), _mm_and_si128(high[n], high_mask));
                        let quants = _mm512_cvtepi8_epi32(_mm_sub_epi8(bits, center));
                        *row = _mm512_mul_ps(scales, _mm512_cvtepi32_ps(quants));
                    }
                    let pair = i * STEP_PAIRS + half * 8 + quad * 2;
                    to.values(pair, rows[0], rows[1]);
                    to.values(pair + 1, rows[2], rows[3]);
                }
            }
            to.end_step();
        }
    }
}
