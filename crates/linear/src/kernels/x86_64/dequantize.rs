//! Panels to rounded f32, `[k][16]`.
//!
//! Every product of a factor, a scale and a quant is exact in f32 (at most 24 significant bits), so the fused
//! multiply-adds below round exactly where the definition's separate sum does. Nonzero values of f16 and of formats with f16
//! scales are at least 2^-24: only bf16 and MXFP4 weights can be below 2^-50. A zero may come out with the other sign than the definition's,
//! which no sum shows.
//!
//! All functions share one contract. Safety: rows `start..start + len` of `k` lie in `panel`, whole blocks of them for
//! block formats, at most a k block, `start` even; `out` has room for a k block. `panel` and `out` are 32-byte
//! aligned, and so is every part of a panel that is loaded at once.

mod blocks;
mod rows;
mod super_blocks;

pub(super) use blocks::{iq4_nl, mxfp4, q4_0, q5_0, q5_1};
pub(super) use super_blocks::{iq4_xs, q2_k, q3_k, q5_k};

use std::arch::x86_64::*;

use super::{is_operand, round_value};
use crate::layout::{PANEL, q4_1, q4_k, q6_k, q8_0};

/// Two vectors, columns 0..8 and 8..16 of one row of `k`.
type Row = [__m256; 2];

/// # Safety
/// `out` has room for 16 floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store(out: *mut f32, row: Row) {
    // SAFETY: the caller's promise.
    unsafe {
        _mm256_store_ps(out, row[0]);
        _mm256_store_ps(out.wrapping_add(8), row[1]);
    }
}

/// # Safety
/// `from` has 16 f16.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_f16(from: *const u8) -> Row {
    // SAFETY: the caller's promise.
    unsafe {
        [_mm256_cvtph_ps(_mm_load_si128(from.cast())), _mm256_cvtph_ps(_mm_load_si128(from.wrapping_add(16).cast()))]
    }
}

/// # Safety
/// `from` has 16 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_u8(from: *const u8) -> Row {
    // SAFETY: the caller's promise.
    let bytes = unsafe { [_mm_loadl_epi64(from.cast()), _mm_loadl_epi64(from.wrapping_add(8).cast())] };
    bytes.map(|bytes| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)))
}

/// # Safety
/// `from` has 16 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_i8(from: *const u8) -> Row {
    // SAFETY: the caller's promise.
    let bytes = unsafe { [_mm_loadl_epi64(from.cast()), _mm_loadl_epi64(from.wrapping_add(8).cast())] };
    bytes.map(|bytes| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)))
}

/// Loads 16 bytes and spreads them over the 32-bit lanes of two vectors, zero-extended.
///
/// # Safety
/// `from` has 16 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_lanes(from: *const u8) -> [__m256i; 2] {
    // SAFETY: the caller's promise.
    let bytes = unsafe { _mm256_broadcastsi128_si256(_mm_load_si128(from.cast())) };
    const Z: i8 = -1;
    let low = _mm256_setr_epi8(
        0, Z, Z, Z, 1, Z, Z, Z, 2, Z, Z, Z, 3, Z, Z, Z, 4, Z, Z, Z, 5, Z, Z, Z, 6, Z, Z, Z, 7, Z, Z, Z,
    );
    let high = _mm256_setr_epi8(
        8, Z, Z, Z, 9, Z, Z, Z, 10, Z, Z, Z, 11, Z, Z, Z, 12, Z, Z, Z, 13, Z, Z, Z, 14, Z, Z, Z, 15, Z, Z, Z,
    );
    [_mm256_shuffle_epi8(bytes, low), _mm256_shuffle_epi8(bytes, high)]
}

/// Low and high nibbles of 16 bytes as integers, for the even and the odd `k` of a pair.
///
/// # Safety
/// `from` has 16 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_nibbles(from: *const u8) -> [[__m256i; 2]; 2] {
    // SAFETY: the caller's promise.
    let lanes = unsafe { load_lanes(from) };
    let low = _mm256_set1_epi32(15);
    [lanes.map(|l| _mm256_and_si256(l, low)), lanes.map(|l| _mm256_srli_epi32::<4>(l))]
}

/// # Safety
/// See the module.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn q4_1(panel: &[u8], start: usize, len: usize, out: &mut [f32]) {
    for block in 0..len / 32 {
        // SAFETY: the block is in the panel and its 32 rows are in `out`.
        unsafe {
            let from = panel.as_ptr().wrapping_add((start / 32 + block) * q4_1::BYTES);
            let to = out.as_mut_ptr().wrapping_add(block * 32 * PANEL);
            let (scales, mins) = (load_f16(from), load_f16(from.wrapping_add(q4_1::MINS)));
            for pair in 0..16 {
                let quants = load_nibbles(from.wrapping_add(q4_1::QUANTS + pair * PANEL));
                for (i, quants) in quants.into_iter().enumerate() {
                    let row =
                        [0, 1].map(|h| round_value(_mm256_fmadd_ps(_mm256_cvtepi32_ps(quants[h]), scales[h], mins[h])));
                    store(to.wrapping_add((2 * pair + i) * PANEL), row);
                }
            }
        }
    }
}

/// # Safety
/// See the module.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn q8_0(panel: &[u8], start: usize, len: usize, out: &mut [f32]) {
    for block in 0..len / 32 {
        // SAFETY: the block is in the panel and its 32 rows are in `out`.
        unsafe {
            let from = panel.as_ptr().wrapping_add((start / 32 + block) * q8_0::BYTES);
            let to = out.as_mut_ptr().wrapping_add(block * 32 * PANEL);
            let scales = load_f16(from);
            for pair in 0..16 {
                let quants = from.wrapping_add(q8_0::QUANTS + pair * 2 * PANEL);
                let halves = [0, 1].map(|h| _mm256_cvtepu16_epi32(_mm_load_si128(quants.wrapping_add(16 * h).cast())));
                // The even quant is the low byte of a lane's 16 bits, the odd one the high byte.
                let even = [0, 1].map(|h| _mm256_srai_epi32::<24>(_mm256_slli_epi32::<24>(halves[h])));
                let odd = [0, 1].map(|h| _mm256_srai_epi32::<24>(_mm256_slli_epi32::<16>(halves[h])));
                for (i, quants) in [even, odd].into_iter().enumerate() {
                    let row = [0, 1].map(|h| round_value(_mm256_mul_ps(_mm256_cvtepi32_ps(quants[h]), scales[h])));
                    store(to.wrapping_add((2 * pair + i) * PANEL), row);
                }
            }
        }
    }
}

/// # Safety
/// See the module.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn q4_k(panel: &[u8], start: usize, len: usize, out: &mut [f32]) {
    debug_assert_eq!(len, 256, "a k block is one super-block");
    // SAFETY: the super-block is in the panel and its 256 rows are in `out`.
    unsafe {
        let from = panel.as_ptr().wrapping_add(start / 256 * q4_k::BYTES);
        let (factors, min_factors) = (load_f16(from), load_f16(from.wrapping_add(q4_k::MIN_FACTORS)));
        for sub in 0..8 {
            let to = out.as_mut_ptr().wrapping_add(sub * 32 * PANEL);
            let (scales, mins) = (
                load_u8(from.wrapping_add(q4_k::SCALES + sub * PANEL)),
                load_u8(from.wrapping_add(q4_k::MINS + sub * PANEL)),
            );
            let scales = [0, 1].map(|h| _mm256_mul_ps(factors[h], scales[h]));
            let mins = [0, 1].map(|h| _mm256_mul_ps(min_factors[h], mins[h]));
            for pair in 0..16 {
                let quants = load_nibbles(from.wrapping_add(q4_k::QUANTS + (sub * 16 + pair) * PANEL));
                for (i, quants) in quants.into_iter().enumerate() {
                    let row =
                        [0, 1].map(|h| round_value(_mm256_fmsub_ps(_mm256_cvtepi32_ps(quants[h]), scales[h], mins[h])));
                    store(to.wrapping_add((2 * pair + i) * PANEL), row);
                }
            }
        }
    }
}

/// # Safety
/// See the module.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn q6_k(panel: &[u8], start: usize, len: usize, out: &mut [f32]) {
    debug_assert_eq!(len, 256, "a k block is one super-block");
    // SAFETY: the super-block is in the panel and its 256 rows are in `out`.
    unsafe {
        let from = panel.as_ptr().wrapping_add(start / 256 * q6_k::BYTES);
        let factors = load_f16(from);
        let (low_mask, high_mask, center) = (_mm_set1_epi8(15), _mm_set1_epi8(0x30), _mm_set1_epi8(32));
        for sub in 0..16 {
            let to = out.as_mut_ptr().wrapping_add(sub * 16 * PANEL);
            let scales = load_i8(from.wrapping_add(q6_k::SCALES + sub * PANEL));
            let scales = [0, 1].map(|h| _mm256_mul_ps(factors[h], scales[h]));
            for quad in 0..4 {
                let low = from.wrapping_add(q6_k::LOW + (sub * 8 + quad * 2) * PANEL);
                let (low0, low1) = (_mm_load_si128(low.cast()), _mm_load_si128(low.wrapping_add(PANEL).cast()));
                let high = _mm_load_si128(from.wrapping_add(q6_k::HIGH + (sub * 4 + quad) * PANEL).cast());
                // Shifts of 16-bit lanes; the masks drop what crosses from one byte to the other.
                let low = [low0, _mm_srli_epi16::<4>(low0), low1, _mm_srli_epi16::<4>(low1)];
                let high = [_mm_slli_epi16::<4>(high), _mm_slli_epi16::<2>(high), high, _mm_srli_epi16::<2>(high)];
                for (i, (low, high)) in low.into_iter().zip(high).enumerate() {
                    let bits = _mm_or_si128(_mm_and_si128(low, low_mask), _mm_and_si128(high, high_mask));
                    let quants = _mm_sub_epi8(bits, center);
                    let quants = [_mm256_cvtepi8_epi32(quants), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(quants))];
                    let row = [0, 1].map(|h| round_value(_mm256_mul_ps(scales[h], _mm256_cvtepi32_ps(quants[h]))));
                    store(to.wrapping_add((4 * quad + i) * PANEL), row);
                }
            }
        }
    }
}

/// # Safety
/// See the module.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn bf16(panel: &[u8], start: usize, len: usize, out: &mut [f32]) {
    for pair in 0..len.div_ceil(2) {
        // SAFETY: the pair is in the panel (an odd `k` is padded) and its two rows are in `out`.
        unsafe {
            let from = panel.as_ptr().wrapping_add((start + 2 * pair) * 2 * PANEL);
            let to = out.as_mut_ptr().wrapping_add(2 * pair * PANEL);
            let lanes = [0, 1].map(|h| _mm256_load_si256(from.wrapping_add(32 * h).cast()));
            let even = lanes.map(|l| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(l)));
            let odd = lanes.map(|l| _mm256_castsi256_ps(_mm256_and_si256(l, _mm256_set1_epi32(!0xffff))));
            store(to, even.map(|v| _mm256_and_ps(v, is_operand(v))));
            store(to.wrapping_add(PANEL), odd.map(|v| _mm256_and_ps(v, is_operand(v))));
        }
    }
}

/// # Safety
/// See the module.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn f16(panel: &[u8], start: usize, len: usize, out: &mut [f32]) {
    for pair in 0..len.div_ceil(2) {
        // SAFETY: the pair is in the panel (an odd `k` is padded) and its two rows are in `out`.
        unsafe {
            let from = panel.as_ptr().wrapping_add((start + 2 * pair) * 2 * PANEL);
            let to = out.as_mut_ptr().wrapping_add(2 * pair * PANEL);
            let split = [0, 1].map(|h| {
                let lanes = _mm256_load_si256(from.wrapping_add(32 * h).cast());
                let even = _mm256_and_si256(lanes, _mm256_set1_epi32(0xffff));
                // Packing works in 128-bit halves: four even, four odd; then the middle quarters change places.
                let packed = _mm256_packus_epi32(even, _mm256_srli_epi32::<16>(lanes));
                let sorted = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
                let even = _mm256_cvtph_ps(_mm256_castsi256_si128(sorted));
                (round_value(even), round_value(_mm256_cvtph_ps(_mm256_extracti128_si256::<1>(sorted))))
            });
            store(to, [split[0].0, split[1].0]);
            store(to.wrapping_add(PANEL), [split[0].1, split[1].1]);
        }
    }
}
