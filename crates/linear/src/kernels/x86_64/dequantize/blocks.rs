//! Blocks of 32 elements: Q4_0, Q5_0, Q5_1, IQ4_NL, MXFP4.

use std::arch::x86_64::*;

use super::rows::{nibble_rows, one_bit_rows, store_product, store_sum, table, to_f32};
use super::{Row, load_f16, store};
use crate::codebook::{IQ4_VALUES, MXFP4_VALUES};
use crate::kernels::x86_64::is_operand;
use crate::layout::{PANEL, q4_0, q5_0, q5_1};

/// # Safety
/// See [`super`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn q4_0(panel: &[u8], start: usize, len: usize, out: &mut [f32]) {
    let center = _mm_set1_epi8(8);
    for block in 0..len / 32 {
        // SAFETY: the block is in the panel and its 32 rows are in `out`.
        unsafe {
            let from = panel.as_ptr().wrapping_add((start / 32 + block) * q4_0::BYTES);
            let scales = load_f16(from);
            for octet in 0..4 {
                let to = out.as_mut_ptr().wrapping_add((block * 32 + octet * 8) * PANEL);
                let quants = nibble_rows(from.wrapping_add(q4_0::QUANTS + octet * 4 * PANEL));
                for (i, quants) in quants.into_iter().enumerate() {
                    store_product(to.wrapping_add(i * PANEL), _mm_sub_epi8(quants, center), scales);
                }
            }
        }
    }
}

/// # Safety
/// See [`super`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn q5_0(panel: &[u8], start: usize, len: usize, out: &mut [f32]) {
    let center = _mm_set1_epi8(16);
    for block in 0..len / 32 {
        // SAFETY: the block is in the panel and its 32 rows are in `out`.
        unsafe {
            let from = panel.as_ptr().wrapping_add((start / 32 + block) * q5_0::BYTES);
            let scales = load_f16(from);
            for octet in 0..4 {
                let to = out.as_mut_ptr().wrapping_add((block * 32 + octet * 8) * PANEL);
                let low = nibble_rows(from.wrapping_add(q5_0::LOW + octet * 4 * PANEL));
                let high = one_bit_rows::<4>(from.wrapping_add(q5_0::HIGH + octet * PANEL));
                for (i, (low, high)) in low.into_iter().zip(high).enumerate() {
                    let quants = _mm_sub_epi8(_mm_or_si128(low, high), center);
                    store_product(to.wrapping_add(i * PANEL), quants, scales);
                }
            }
        }
    }
}

/// # Safety
/// See [`super`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn q5_1(panel: &[u8], start: usize, len: usize, out: &mut [f32]) {
    for block in 0..len / 32 {
        // SAFETY: the block is in the panel and its 32 rows are in `out`.
        unsafe {
            let from = panel.as_ptr().wrapping_add((start / 32 + block) * q5_1::BYTES);
            let (scales, mins) = (load_f16(from), load_f16(from.wrapping_add(q5_1::MINS)));
            for octet in 0..4 {
                let to = out.as_mut_ptr().wrapping_add((block * 32 + octet * 8) * PANEL);
                let low = nibble_rows(from.wrapping_add(q5_1::LOW + octet * 4 * PANEL));
                let high = one_bit_rows::<4>(from.wrapping_add(q5_1::HIGH + octet * PANEL));
                for (i, (low, high)) in low.into_iter().zip(high).enumerate() {
                    store_sum(to.wrapping_add(i * PANEL), _mm_or_si128(low, high), scales, mins);
                }
            }
        }
    }
}

/// # Safety
/// See [`super`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn iq4_nl(panel: &[u8], start: usize, len: usize, out: &mut [f32]) {
    let values = table(&IQ4_VALUES);
    for block in 0..len / 32 {
        // SAFETY: the block is in the panel and its 32 rows are in `out`.
        unsafe {
            let from = panel.as_ptr().wrapping_add((start / 32 + block) * q4_0::BYTES);
            let scales = load_f16(from);
            for octet in 0..4 {
                let to = out.as_mut_ptr().wrapping_add((block * 32 + octet * 8) * PANEL);
                let codes = nibble_rows(from.wrapping_add(q4_0::QUANTS + octet * 4 * PANEL));
                for (i, codes) in codes.into_iter().enumerate() {
                    store_product(to.wrapping_add(i * PANEL), _mm_shuffle_epi8(values, codes), scales);
                }
            }
        }
    }
}

/// A power of two times at most four bits: nothing is rounded, but a magnitude may be too small for an operand.
///
/// # Safety
/// See [`super`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn mxfp4(panel: &[u8], start: usize, len: usize, out: &mut [f32]) {
    let values = table(&MXFP4_VALUES);
    for block in 0..len / 32 {
        // SAFETY: the block is in the panel and its 32 rows are in `out`.
        unsafe {
            let from = panel.as_ptr().wrapping_add((start / 32 + block) * q4_0::BYTES);
            let scales: Row = [0, 1].map(|h| {
                let bits = _mm256_cvtepu16_epi32(_mm_load_si128(from.wrapping_add(16 * h).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
            });
            for octet in 0..4 {
                let to = out.as_mut_ptr().wrapping_add((block * 32 + octet * 8) * PANEL);
                let codes = nibble_rows(from.wrapping_add(q4_0::QUANTS + octet * 4 * PANEL));
                for (i, codes) in codes.into_iter().enumerate() {
                    let quants = to_f32(_mm_shuffle_epi8(values, codes));
                    let row = [0, 1].map(|h| {
                        let value = _mm256_mul_ps(scales[h], quants[h]);
                        _mm256_and_ps(value, is_operand(value))
                    });
                    store(to.wrapping_add(i * PANEL), row);
                }
            }
        }
    }
}
