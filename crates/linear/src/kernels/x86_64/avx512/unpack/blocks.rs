//! Blocks of 32 elements: one step each.

use std::arch::x86_64::*;

use super::bytes::{self, with_fifth_bits};
use super::{
    COUNT, COUNT_ON, Pairs, UNROLLED, fetched_block, load_f16, load_u8, look_up_5_bits, look_up_nibbles, table,
};
use crate::codebook::{IQ4_VALUES, MXFP4_VALUES};
use crate::kernels::STEP_PAIRS;
use crate::kernels::x86_64::avx512::is_operand;
use crate::layout::{PANEL, q4_0, q4_1, q5_0, q5_1, q8_0};

/// The formats of a scale and codes of four bits: what a code stands for, times the scale.
#[inline(always)]
unsafe fn coded<P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P, values: [f32; 16]) {
    for block in 0..len / 32 {
        // SAFETY: see the module above.
        unsafe {
            let from = fetched_block(panel, start / 32 + block, q4_0::BYTES);
            let (scales, values) = (load_f16(from), table(values));
            for run in 0..STEP_PAIRS / UNROLLED {
                for pair in run * UNROLLED..(run + 1) * UNROLLED {
                    let (even, odd) = look_up_nibbles(from.wrapping_add(q4_0::QUANTS + pair * PANEL), values);
                    to.values(block * STEP_PAIRS + pair, _mm512_mul_ps(even, scales), _mm512_mul_ps(odd, scales));
                }
            }
            to.end_step();
        }
    }
}

#[inline(always)]
pub(super) unsafe fn q4_0<P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P) {
    if !P::SHUFFLES_BYTES {
        // SAFETY: see the module above.
        return unsafe { coded(panel, start, len, to, COUNT.map(|value| value - 8.0)) };
    }
    for block in 0..len / 32 {
        // SAFETY: see the module above.
        unsafe {
            let from = fetched_block(panel, start / 32 + block, q4_0::BYTES);
            let quants = from.wrapping_add(q4_0::QUANTS);
            bytes::nibble_step(quants, load_f16(from), 8.0, block * STEP_PAIRS, to, |_, quants| quants);
        }
    }
}

#[inline(always)]
pub(super) unsafe fn iq4_nl<P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P) {
    // SAFETY: see the module above.
    unsafe { coded(panel, start, len, to, IQ4_VALUES.map(f32::from)) }
}

/// A power of two times at most four bits: nothing is rounded, but a magnitude may be too small for an operand, or too large for
/// [`Pairs::values`].
#[inline(always)]
pub(super) unsafe fn mxfp4<P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P) {
    for block in 0..len / 32 {
        // SAFETY: see the module above.
        unsafe {
            let from = fetched_block(panel, start / 32 + block, q4_0::BYTES);
            let scales = _mm512_cvtepu16_epi32(_mm256_load_si256(from.cast()));
            let scales = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(scales));
            let values = table(MXFP4_VALUES.map(f32::from));
            for run in 0..STEP_PAIRS / UNROLLED {
                for pair in run * UNROLLED..(run + 1) * UNROLLED {
                    let quants = from.wrapping_add(q4_0::QUANTS + pair * PANEL);
                    let (even, odd) = look_up_nibbles(quants, values);
                    let (even, odd) = (_mm512_mul_ps(even, scales), _mm512_mul_ps(odd, scales));
                    let (even, odd) =
                        (_mm512_maskz_mov_ps(is_operand(even), even), _mm512_maskz_mov_ps(is_operand(odd), odd));
                    to.operands(block * STEP_PAIRS + pair, even, odd);
                }
            }
            to.end_step();
        }
    }
}

#[inline(always)]
pub(super) unsafe fn q5_0<P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P) {
    for block in 0..len / 32 {
        // SAFETY: see the module above.
        unsafe {
            let from = fetched_block(panel, start / 32 + block, q5_0::BYTES);
            if P::SHUFFLES_BYTES {
                let (low, high) = (from.wrapping_add(q5_0::LOW), from.wrapping_add(q5_0::HIGH));
                bytes::nibble_step(low, load_f16(from), 16.0, block * STEP_PAIRS, to, |run, quants| {
                    with_fifth_bits(high.wrapping_add(run * PANEL), quants)
                });
                continue;
            }
            let (scales, tables) = (load_f16(from), [table(COUNT.map(|value| value - 16.0)), table(COUNT)]);
            for run in 0..STEP_PAIRS / UNROLLED {
                for pair in run * UNROLLED..(run + 1) * UNROLLED {
                    let high = load_u8(from.wrapping_add(q5_0::HIGH + pair / 4 * PANEL));
                    let (even, odd) = look_up_5_bits(from.wrapping_add(q5_0::LOW + pair * PANEL), high, pair, tables);
                    to.values(block * STEP_PAIRS + pair, _mm512_mul_ps(even, scales), _mm512_mul_ps(odd, scales));
                }
            }
            to.end_step();
        }
    }
}

#[inline(always)]
pub(super) unsafe fn q5_1<P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P) {
    for block in 0..len / 32 {
        // SAFETY: see the module above.
        unsafe {
            let from = fetched_block(panel, start / 32 + block, q5_1::BYTES);
            let (scales, mins) = (load_f16(from), load_f16(from.wrapping_add(q5_1::MINS)));
            let tables = [table(COUNT), table(COUNT_ON)];
            for run in 0..STEP_PAIRS / UNROLLED {
                for pair in run * UNROLLED..(run + 1) * UNROLLED {
                    let high = load_u8(from.wrapping_add(q5_1::HIGH + pair / 4 * PANEL));
                    let (even, odd) = look_up_5_bits(from.wrapping_add(q5_1::LOW + pair * PANEL), high, pair, tables);
                    let (even, odd) = (_mm512_fmadd_ps(even, scales, mins), _mm512_fmadd_ps(odd, scales, mins));
                    to.values(block * STEP_PAIRS + pair, even, odd);
                }
            }
            to.end_step();
        }
    }
}

#[inline(always)]
pub(super) unsafe fn q4_1<P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P) {
    for block in 0..len / 32 {
        // SAFETY: see the module.
        unsafe {
            let from = fetched_block(panel, start / 32 + block, q4_1::BYTES);
            let (scales, mins) = (load_f16(from), load_f16(from.wrapping_add(q4_1::MINS)));
            if P::SHUFFLES_BYTES
                && let Some(affine) = bytes::Affine::with_mins(scales, mins)
            {
                bytes::nibble_step_with_mins(from.wrapping_add(q4_1::QUANTS), affine, block * STEP_PAIRS, to);
                continue;
            }
            for run in 0..STEP_PAIRS / UNROLLED {
                for pair in run * UNROLLED..(run + 1) * UNROLLED {
                    let (even, odd) = look_up_nibbles(from.wrapping_add(q4_1::QUANTS + pair * PANEL), table(COUNT));
                    let (even, odd) = (_mm512_fmadd_ps(even, scales, mins), _mm512_fmadd_ps(odd, scales, mins));
                    to.values(block * STEP_PAIRS + pair, even, odd);
                }
            }
            to.end_step();
        }
    }
}

#[inline(always)]
pub(super) unsafe fn q8_0<P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P) {
    for block in 0..len / 32 {
        // SAFETY: see the module.
        unsafe {
            let from = fetched_block(panel, start / 32 + block, q8_0::BYTES);
            let scales = load_f16(from);
            if P::SHUFFLES_BYTES {
                bytes::byte_step(from.wrapping_add(q8_0::QUANTS), scales, block * STEP_PAIRS, to);
                continue;
            }
            for run in 0..STEP_PAIRS / UNROLLED {
                for pair in run * UNROLLED..(run + 1) * UNROLLED {
                    let quants = from.wrapping_add(q8_0::QUANTS + pair * 2 * PANEL);
                    // The even quant is the low byte of 16 bits, the odd one the high byte.
                    let both = _mm512_cvtepi16_epi32(_mm256_load_si256(quants.cast()));
                    let even = _mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(both));
                    let (even, odd) = (_mm512_cvtepi32_ps(even), _mm512_cvtepi32_ps(_mm512_srai_epi32::<8>(both)));
                    to.values(block * STEP_PAIRS + pair, _mm512_mul_ps(even, scales), _mm512_mul_ps(odd, scales));
                }
            }
            to.end_step();
        }
    }
}
