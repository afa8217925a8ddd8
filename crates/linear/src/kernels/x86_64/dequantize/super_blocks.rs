//! Super-blocks of 256 elements: Q2_K, Q3_K, Q5_K, IQ4_XS.

use std::arch::x86_64::*;

use super::rows::{nibble_rows, one_bit_rows, store_difference, store_product, table, to_f32, two_bit_rows};
use super::{load_f16, load_i8, load_u8};
use crate::codebook::IQ4_VALUES;
use crate::layout::{PANEL, iq4_xs, q2_k, q3_k, q4_k, q5_k};

/// # Safety
/// See [`super`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn q2_k(panel: &[u8], start: usize, len: usize, out: &mut [f32]) {
    debug_assert_eq!(len, 256, "a k block is one super-block");
    // SAFETY: the super-block is in the panel and its 256 rows are in `out`.
    unsafe {
        let from = panel.as_ptr().wrapping_add(start / 256 * q2_k::BYTES);
        let (factors, min_factors) = (load_f16(from), load_f16(from.wrapping_add(q2_k::MIN_FACTORS)));
        let low = _mm_set1_epi8(15);
        for sub in 0..16 {
            let both = _mm_load_si128(from.wrapping_add(q2_k::SCALES + sub * PANEL).cast());
            let scales = to_f32(_mm_and_si128(both, low));
            let mins = to_f32(_mm_and_si128(_mm_srli_epi16::<4>(both), low));
            let scales = [0, 1].map(|h| _mm256_mul_ps(factors[h], scales[h]));
            let mins = [0, 1].map(|h| _mm256_mul_ps(min_factors[h], mins[h]));
            for quad in 0..4 {
                let to = out.as_mut_ptr().wrapping_add((sub * 16 + quad * 4) * PANEL);
                let quants = two_bit_rows(from.wrapping_add(q2_k::QUANTS + (sub * 4 + quad) * PANEL));
                for (i, quants) in quants.into_iter().enumerate() {
                    store_difference(to.wrapping_add(i * PANEL), quants, scales, mins);
                }
            }
        }
    }
}

/// # Safety
/// See [`super`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn q3_k(panel: &[u8], start: usize, len: usize, out: &mut [f32]) {
    debug_assert_eq!(len, 256, "a k block is one super-block");
    let center = _mm_set1_epi8(4);
    // SAFETY: the super-block is in the panel and its 256 rows are in `out`.
    unsafe {
        let from = panel.as_ptr().wrapping_add(start / 256 * q3_k::BYTES);
        let factors = load_f16(from);
        for octet in 0..32 {
            let to = out.as_mut_ptr().wrapping_add(octet * 8 * PANEL);
            let scales = load_i8(from.wrapping_add(q3_k::SCALES + octet / 2 * PANEL));
            let scales = [0, 1].map(|h| _mm256_mul_ps(factors[h], scales[h]));
            let low = from.wrapping_add(q3_k::LOW + octet * 2 * PANEL);
            let low = [two_bit_rows(low), two_bit_rows(low.wrapping_add(PANEL))];
            let high = one_bit_rows::<2>(from.wrapping_add(q3_k::HIGH + octet * PANEL));
            for (i, (low, high)) in low.into_iter().flatten().zip(high).enumerate() {
                let quants = _mm_sub_epi8(_mm_or_si128(low, high), center);
                store_product(to.wrapping_add(i * PANEL), quants, scales);
            }
        }
    }
}

/// # Safety
/// See [`super`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn q5_k(panel: &[u8], start: usize, len: usize, out: &mut [f32]) {
    debug_assert_eq!(len, 256, "a k block is one super-block");
    // SAFETY: the super-block is in the panel and its 256 rows are in `out`.
    unsafe {
        let from = panel.as_ptr().wrapping_add(start / 256 * q5_k::BYTES);
        let (factors, min_factors) = (load_f16(from), load_f16(from.wrapping_add(q4_k::MIN_FACTORS)));
        for octet in 0..32 {
            let to = out.as_mut_ptr().wrapping_add(octet * 8 * PANEL);
            let sub = octet / 4;
            let scales = load_u8(from.wrapping_add(q4_k::SCALES + sub * PANEL));
            let mins = load_u8(from.wrapping_add(q4_k::MINS + sub * PANEL));
            let scales = [0, 1].map(|h| _mm256_mul_ps(factors[h], scales[h]));
            let mins = [0, 1].map(|h| _mm256_mul_ps(min_factors[h], mins[h]));
            let low = nibble_rows(from.wrapping_add(q5_k::LOW + octet * 4 * PANEL));
            let high = one_bit_rows::<4>(from.wrapping_add(q5_k::HIGH + octet * PANEL));
            for (i, (low, high)) in low.into_iter().zip(high).enumerate() {
                store_difference(to.wrapping_add(i * PANEL), _mm_or_si128(low, high), scales, mins);
            }
        }
    }
}

/// # Safety
/// See [`super`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn iq4_xs(panel: &[u8], start: usize, len: usize, out: &mut [f32]) {
    debug_assert_eq!(len, 256, "a k block is one super-block");
    let values = table(&IQ4_VALUES);
    // SAFETY: the super-block is in the panel and its 256 rows are in `out`.
    unsafe {
        let from = panel.as_ptr().wrapping_add(start / 256 * iq4_xs::BYTES);
        let factors = load_f16(from);
        for octet in 0..32 {
            let to = out.as_mut_ptr().wrapping_add(octet * 8 * PANEL);
            let scales = load_i8(from.wrapping_add(iq4_xs::SCALES + octet / 4 * PANEL));
            let scales = [0, 1].map(|h| _mm256_mul_ps(factors[h], scales[h]));
            let codes = nibble_rows(from.wrapping_add(iq4_xs::QUANTS + octet * 4 * PANEL));
            for (i, codes) in codes.into_iter().enumerate() {
                store_product(to.wrapping_add(i * PANEL), _mm_shuffle_epi8(values, codes), scales);
            }
        }
    }
}
