//! Quants of 16 columns as bytes: unpacking a few rows of `k` at a time, and storing a row of values.

use std::arch::x86_64::*;

use super::{Row, store};
use crate::kernels::x86_64::round_value;
use crate::layout::PANEL;

/// The nibbles of four pairs of `k`: eight rows.
///
/// # Safety
/// `from` has 64 bytes, 16-byte aligned.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn nibble_rows(from: *const u8) -> [__m128i; 8] {
    let low = _mm_set1_epi8(15);
    let mut rows = [_mm_setzero_si128(); 8];
    for (pair, rows) in rows.chunks_exact_mut(2).enumerate() {
        // SAFETY: the caller's promise.
        let bytes = unsafe { _mm_load_si128(from.wrapping_add(pair * PANEL).cast()) };
        // Shifts of 16-bit lanes, here and below; the masks drop what crosses from one byte to the other.
        rows[0] = _mm_and_si128(bytes, low);
        rows[1] = _mm_and_si128(_mm_srli_epi16::<4>(bytes), low);
    }
    rows
}

/// The two bits of each `k` of a quad: four rows.
///
/// # Safety
/// `from` has 16 bytes, 16-byte aligned.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn two_bit_rows(from: *const u8) -> [__m128i; 4] {
    // SAFETY: the caller's promise.
    let bytes = unsafe { _mm_load_si128(from.cast()) };
    let rows = [bytes, _mm_srli_epi16::<2>(bytes), _mm_srli_epi16::<4>(bytes), _mm_srli_epi16::<6>(bytes)];
    rows.map(|row| _mm_and_si128(row, _mm_set1_epi8(3)))
}

/// The bit of each `k` of an octet, moved to bit `TO` (2 or 4): eight rows.
///
/// # Safety
/// `from` has 16 bytes, 16-byte aligned.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn one_bit_rows<const TO: i64>(from: *const u8) -> [__m128i; 8] {
    // SAFETY: the caller's promise.
    let bytes = unsafe { _mm_load_si128(from.cast()) };
    let bit = _mm_set1_epi8(1 << TO);
    [0, 1, 2, 3, 4, 5, 6, 7].map(|from: i64| {
        let (left, right) = (_mm_cvtsi64_si128((TO - from).max(0)), _mm_cvtsi64_si128((from - TO).max(0)));
        _mm_and_si128(_mm_srl_epi16(_mm_sll_epi16(bytes, left), right), bit)
    })
}

/// Signed bytes as f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn to_f32(quants: __m128i) -> Row {
    let halves = [_mm256_cvtepi8_epi32(quants), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(quants))];
    halves.map(|half| _mm256_cvtepi32_ps(half))
}

/// A table of 16 bytes for byte shuffles.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn table(values: &[i8; 16]) -> __m128i {
    // SAFETY: the array has 16 bytes; the load needs no alignment.
    unsafe { _mm_loadu_si128(values.as_ptr().cast()) }
}

/// Stores `quants * scales`, rounded.
///
/// # Safety
/// `to` has room for 16 floats, 32-byte aligned.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn store_product(to: *mut f32, quants: __m128i, scales: Row) {
    let quants = to_f32(quants);
    // SAFETY: the caller's promise.
    unsafe { store(to, [0, 1].map(|h| round_value(_mm256_mul_ps(scales[h], quants[h])))) };
}

/// Stores `quants * scales + mins`, rounded.
///
/// # Safety
/// `to` has room for 16 floats, 32-byte aligned.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn store_sum(to: *mut f32, quants: __m128i, scales: Row, mins: Row) {
    let quants = to_f32(quants);
    // SAFETY: the caller's promise.
    unsafe { store(to, [0, 1].map(|h| round_value(_mm256_fmadd_ps(quants[h], scales[h], mins[h])))) };
}

/// Stores `quants * scales - mins`, rounded.
///
/// # Safety
/// `to` has room for 16 floats, 32-byte aligned.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn store_difference(to: *mut f32, quants: __m128i, scales: Row, mins: Row) {
    let quants = to_f32(quants);
    // SAFETY: the caller's promise.
    unsafe { store(to, [0, 1].map(|h| round_value(_mm256_fmsub_ps(quants[h], scales[h], mins[h])))) };
}
