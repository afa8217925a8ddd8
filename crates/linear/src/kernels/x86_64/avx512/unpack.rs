//! Panels to pairs of rows of `k`, 16 columns each: written once, for whatever takes the pairs.
//!
//! Why the values are the definition's, bit for bit, is said in the AVX2 form of this file, `dequantize.rs`.
//!
//! Functions that a [`Pairs`] is handed through have no `target_feature` of their own: they must become part of the one function that is
//! compiled for the instructions and owns the `Pairs`, or its registers would go through memory. That function is the only caller, which
//! is the safety argument of every intrinsic here. Their common contract besides: rows `start..start + len` of `k` lie in the panel,
//! whole runs of 32 of them for block formats, `start` even, and `panel` is 32-byte aligned.

use std::arch::x86_64::*;

use super::round_bf16;
use crate::WeightType;
use crate::kernels::STEP_PAIRS;
use crate::layout::{PANEL, q4_1, q4_k, q6_k, q8_0};
use crate::number::SMALLEST_OPERAND_BITS;

/// What takes the pairs. Pairs come in ascending order, counted from the start.
///
/// # Safety
/// All methods are called only in functions compiled for AVX-512 F, BW and VL.
pub(super) trait Pairs {
    /// Values of an even and an odd row of `k`, to be rounded to bf16: zero, NaN with the canonical payload, or at least 2^-24.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn values(&mut self, pair: usize, even: __m512, odd: __m512);

    /// The same as operands, `[16][2]` bf16.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn words(&mut self, pair: usize, words: __m512i);

    /// A step of 16 pairs, or what is left of `k`, is complete.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn end_step(&mut self);
}

/// Whether this file reads the type.
pub(super) fn has(ty: WeightType) -> bool {
    use WeightType::{Bf16, F16, Q4_1, Q4K, Q6K, Q8_0};
    matches!(ty, F16 | Bf16 | Q4_1 | Q8_0 | Q4K | Q6K)
}

/// Hands out the pairs of a panel.
///
/// # Safety
/// See the module; `has(ty)`.
#[inline(always)]
pub(super) unsafe fn unpack<P: Pairs>(ty: WeightType, panel: *const u8, start: usize, len: usize, to: &mut P) {
    // SAFETY: the caller's promise.
    unsafe {
        match ty {
            WeightType::F16 => f16(panel, start, len, to),
            WeightType::Bf16 => bf16(panel, start, len, to),
            WeightType::Q4_1 => q4_1(panel, start, len, to),
            WeightType::Q8_0 => q8_0(panel, start, len, to),
            WeightType::Q4K => q4_k(panel, start, len, to),
            WeightType::Q6K => q6_k(panel, start, len, to),
            _ => unreachable!("{ty} is not read here"),
        }
    }
}

/// Even and odd rows of bf16 pairs, as f32.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn split(words: __m512i) -> (__m512, __m512) {
    let even = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words));
    (even, _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(!0xffff))))
}

/// Rounds an even and an odd row to bf16 pairs, by the CPU's conversion: ties to even; it flushes denormals, and there are none.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) fn join(even: __m512, odd: __m512) -> __m512i {
    // The conversion puts 16 even words before 16 odd ones.
    const ORDER: [u16; 32] = {
        let (mut order, mut i, mut word) = ([0; 32], 0, 0);
        while i < 32 {
            (order[i], order[i + 1]) = (word, 16 + word);
            (i, word) = (i + 2, word + 1);
        }
        order
    };
    // SAFETY: `__m512bh` and `__m512i` are the same 64 bytes, and so is the table.
    unsafe {
        let words: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(odd, even));
        _mm512_permutexvar_epi16(_mm512_loadu_si512(ORDER.as_ptr().cast()), words)
    }
}

/// Writes `[k][16]` rounded f32.
struct Floats(*mut f32);

impl Pairs for Floats {
    #[inline(always)]
    unsafe fn values(&mut self, pair: usize, even: __m512, odd: __m512) {
        // SAFETY: `floats` has room for every pair.
        unsafe {
            _mm512_store_ps(self.0.wrapping_add(2 * pair * PANEL), round_bf16(even));
            _mm512_store_ps(self.0.wrapping_add((2 * pair + 1) * PANEL), round_bf16(odd));
        }
    }
    #[inline(always)]
    unsafe fn words(&mut self, pair: usize, words: __m512i) {
        // SAFETY: `floats` has room for every pair.
        unsafe {
            let (even, odd) = split(words);
            _mm512_store_ps(self.0.wrapping_add(2 * pair * PANEL), even);
            _mm512_store_ps(self.0.wrapping_add((2 * pair + 1) * PANEL), odd);
        }
    }
    #[inline(always)]
    unsafe fn end_step(&mut self) {}
}

/// Writes `[k pair][16][2]` bf16.
struct Words(*mut u32);

impl Pairs for Words {
    #[inline(always)]
    unsafe fn values(&mut self, pair: usize, even: __m512, odd: __m512) {
        // SAFETY: `words` has room for every pair.
        unsafe { _mm512_store_si512(self.0.wrapping_add(pair * PANEL).cast(), join(even, odd)) }
    }
    #[inline(always)]
    unsafe fn words(&mut self, pair: usize, words: __m512i) {
        // SAFETY: `words` has room for every pair.
        unsafe { _mm512_store_si512(self.0.wrapping_add(pair * PANEL).cast(), words) }
    }
    #[inline(always)]
    unsafe fn end_step(&mut self) {}
}

/// Dequantizes to `[k][16]` rounded f32.
///
/// # Safety
/// See the module; `out` has room, 64-byte aligned; `has(ty)`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn floats(ty: WeightType, panel: *const u8, start: usize, len: usize, out: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe { unpack(ty, panel, start, len, &mut Floats(out)) }
}

/// Dequantizes to `[k pair][16][2]` bf16; false, with nothing written, for a type that this file does not read.
///
/// # Safety
/// See the module; `out` has room, 64-byte aligned.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(in crate::kernels::x86_64) unsafe fn words(
    ty: WeightType,
    panel: *const u8,
    start: usize,
    len: usize,
    out: *mut u32,
) -> bool {
    if has(ty) {
        // SAFETY: the caller's promise.
        unsafe { unpack(ty, panel, start, len, &mut Words(out)) }
    }
    has(ty)
}

/// 16 f16.
#[inline(always)]
unsafe fn load_f16(from: *const u8) -> __m512 {
    // SAFETY: see the module.
    unsafe { _mm512_cvtph_ps(_mm256_load_si256(from.cast())) }
}

/// 16 bytes in 32-bit lanes, zero-extended.
#[inline(always)]
unsafe fn load_u8(from: *const u8) -> __m512i {
    // SAFETY: see the module.
    unsafe { _mm512_cvtepu8_epi32(_mm_load_si128(from.cast())) }
}

/// Low and high nibbles of 16 bytes as floats, by a table: an index is the low four bits of its lane.
#[inline(always)]
unsafe fn load_nibbles(from: *const u8) -> (__m512, __m512) {
    // SAFETY: see the module.
    unsafe {
        let table = _mm512_setr_ps(0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.);
        let lanes = load_u8(from);
        (_mm512_permutexvar_ps(lanes, table), _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(lanes), table))
    }
}

#[inline(always)]
unsafe fn q4_1<P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P) {
    for block in 0..len / 32 {
        // SAFETY: see the module.
        unsafe {
            let from = panel.wrapping_add((start / 32 + block) * q4_1::BYTES);
            let (scales, mins) = (load_f16(from), load_f16(from.wrapping_add(q4_1::MINS)));
            for pair in 0..STEP_PAIRS {
                let (even, odd) = load_nibbles(from.wrapping_add(q4_1::QUANTS + pair * PANEL));
                let (even, odd) = (_mm512_fmadd_ps(even, scales, mins), _mm512_fmadd_ps(odd, scales, mins));
                to.values(block * STEP_PAIRS + pair, even, odd);
            }
            to.end_step();
        }
    }
}

#[inline(always)]
unsafe fn q8_0<P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P) {
    for block in 0..len / 32 {
        // SAFETY: see the module.
        unsafe {
            let from = panel.wrapping_add((start / 32 + block) * q8_0::BYTES);
            let scales = load_f16(from);
            for pair in 0..STEP_PAIRS {
                let quants = from.wrapping_add(q8_0::QUANTS + pair * 2 * PANEL);
                // The even quant is the low byte of 16 bits, the odd one the high byte.
                let both = _mm512_cvtepi16_epi32(_mm256_load_si256(quants.cast()));
                let even = _mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(both));
                let (even, odd) = (_mm512_cvtepi32_ps(even), _mm512_cvtepi32_ps(_mm512_srai_epi32::<8>(both)));
                to.values(block * STEP_PAIRS + pair, _mm512_mul_ps(even, scales), _mm512_mul_ps(odd, scales));
            }
            to.end_step();
        }
    }
}

#[inline(always)]
unsafe fn q4_k<P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P) {
    for (i, sub) in (start / 32..(start + len) / 32).enumerate() {
        // SAFETY: see the module.
        unsafe {
            let from = panel.wrapping_add(sub / 8 * q4_k::BYTES);
            let (factors, min_factors) = (load_f16(from), load_f16(from.wrapping_add(q4_k::MIN_FACTORS)));
            let scales = load_u8(from.wrapping_add(q4_k::SCALES + sub % 8 * PANEL));
            let mins = load_u8(from.wrapping_add(q4_k::MINS + sub % 8 * PANEL));
            let scales = _mm512_mul_ps(factors, _mm512_cvtepi32_ps(scales));
            let mins = _mm512_mul_ps(min_factors, _mm512_cvtepi32_ps(mins));
            for pair in 0..STEP_PAIRS {
                let (even, odd) = load_nibbles(from.wrapping_add(q4_k::QUANTS + (sub % 8 * STEP_PAIRS + pair) * PANEL));
                let (even, odd) = (_mm512_fmsub_ps(even, scales, mins), _mm512_fmsub_ps(odd, scales, mins));
                to.values(i * STEP_PAIRS + pair, even, odd);
            }
            to.end_step();
        }
    }
}

#[inline(always)]
unsafe fn q6_k<P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P) {
    for (i, step) in (start / 32..(start + len) / 32).enumerate() {
        // SAFETY: see the module.
        unsafe {
            let from = panel.wrapping_add(step / 8 * q6_k::BYTES);
            let factors = load_f16(from);
            let (low_mask, high_mask, center) = (_mm_set1_epi8(15), _mm_set1_epi8(0x30), _mm_set1_epi8(32));
            for half in 0..2 {
                let sub = step % 8 * 2 + half;
                let scales = _mm_load_si128(from.wrapping_add(q6_k::SCALES + sub * PANEL).cast());
                let scales = _mm512_mul_ps(factors, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scales)));
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

#[inline(always)]
unsafe fn bf16<P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P) {
    // Only bf16 weights can be below 2^-50; NaNs are above. The bits are those of a bf16 twice.
    // SAFETY: see the module.
    let smallest = unsafe { _mm512_set1_epi32((SMALLEST_OPERAND_BITS | (SMALLEST_OPERAND_BITS >> 16)).cast_signed()) };
    let pairs = len.div_ceil(2);
    for first in (0..pairs).step_by(STEP_PAIRS) {
        for pair in first..(first + STEP_PAIRS).min(pairs) {
            // SAFETY: see the module: an odd `k` is padded to a pair.
            unsafe {
                let words = _mm512_loadu_si512(panel.wrapping_add((start + 2 * pair) * 2 * PANEL).cast());
                let magnitudes = _mm512_and_si512(words, _mm512_set1_epi16(0x7fff));
                let kept = _mm512_cmpge_epi16_mask(magnitudes, smallest);
                to.words(pair, _mm512_maskz_mov_epi16(kept, words));
            }
        }
        // SAFETY: see the module.
        unsafe { to.end_step() };
    }
}

#[inline(always)]
unsafe fn f16<P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P) {
    let pairs = len.div_ceil(2);
    for first in (0..pairs).step_by(STEP_PAIRS) {
        for pair in first..(first + STEP_PAIRS).min(pairs) {
            // SAFETY: see the module: an odd `k` is padded to a pair.
            unsafe {
                let words = _mm512_loadu_si512(panel.wrapping_add((start + 2 * pair) * 2 * PANEL).cast());
                let even = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
                to.values(pair, even, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(words))));
            }
        }
        // SAFETY: see the module.
        unsafe { to.end_step() };
    }
}
