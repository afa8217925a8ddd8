//! Panels to pairs of rows of `k`, 16 columns each: written once, for whatever takes the pairs.
//!
//! Why the values are the definition's, bit for bit, is said in the AVX2 form of this file, `dequantize.rs`, and for quants that are shuffled
//! into floats in `bytes.rs`.
//!
//! Functions that a [`Pairs`] is handed through have no `target_feature` of their own: they must become part of the one function that is
//! compiled for the instructions and owns the `Pairs`, or its registers would go through memory. That function is the only caller, which
//! is the safety argument of every intrinsic here. Their common contract besides: rows `start..start + len` of `k` lie in the panel,
//! whole runs of 32 of them for block formats, `start` even, and `panel` is 32-byte aligned.

mod blocks;
mod bytes;
mod super_blocks;

use std::arch::x86_64::*;

use super::round_value;
use crate::WeightType;
use crate::kernels::STEP_PAIRS;
use crate::kernels::x86_64::{LINE, STEP_LINES, fetch_ahead};
use crate::layout::PANEL;
use crate::number::SMALLEST_OPERAND_BITS;

/// Pairs of a step that are written out one after the other: with fewer, loops and shifts by a variable cost more than the products.
const UNROLLED: usize = 4;

/// What takes the pairs. Pairs come in ascending order, counted from the start.
///
/// # Safety
/// All methods are called only in functions compiled for AVX-512 F, BW and VL, and for VBMI where [`Pairs::SHUFFLES_BYTES`] says so.
pub(super) trait Pairs {
    /// Whether the CPU has VBMI, and `values` takes NaN in place of any value of an infinite scale.
    const SHUFFLES_BYTES: bool = false;

    /// Values of an even and an odd row of `k`, to be rounded to bf16: zero, infinite, NaN, or of a magnitude from 2^-50 to 2^111.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn values(&mut self, pair: usize, even: __m512, odd: __m512);

    /// Operands: what [`bf16_operand`](crate::bf16_operand) leaves as it is.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn operands(&mut self, pair: usize, even: __m512, odd: __m512);

    /// The same as `[16][2]` bf16.
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

/// Hands out the pairs of a panel.
///
/// # Safety
/// See the module.
#[inline(always)]
pub(super) unsafe fn unpack<P: Pairs>(ty: WeightType, panel: *const u8, start: usize, len: usize, to: &mut P) {
    // SAFETY: the caller's promise.
    unsafe {
        match ty {
            WeightType::F32 => unreachable!("f32 weights are multiplied as they are"),
            WeightType::F16 => f16(panel, start, len, to),
            WeightType::Bf16 => bf16(panel, start, len, to),
            WeightType::Q4_0 => blocks::q4_0(panel, start, len, to),
            WeightType::Q4_1 => blocks::q4_1(panel, start, len, to),
            WeightType::Q5_0 => blocks::q5_0(panel, start, len, to),
            WeightType::Q5_1 => blocks::q5_1(panel, start, len, to),
            WeightType::Q8_0 => blocks::q8_0(panel, start, len, to),
            WeightType::Iq4Nl => blocks::iq4_nl(panel, start, len, to),
            WeightType::Mxfp4 => blocks::mxfp4(panel, start, len, to),
            WeightType::Q2K => super_blocks::q2_k(panel, start, len, to),
            WeightType::Q3K => super_blocks::q3_k(panel, start, len, to),
            WeightType::Q4K => super_blocks::q4_k(panel, start, len, to),
            WeightType::Q5K => super_blocks::q5_k(panel, start, len, to),
            WeightType::Q6K => super_blocks::q6_k(panel, start, len, to),
            WeightType::Iq4Xs => super_blocks::iq4_xs(panel, start, len, to),
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
fn join(even: __m512, odd: __m512) -> __m512i {
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
        // SAFETY: as in [`Pairs`].
        unsafe {
            self.operands(pair, round_value(even), round_value(odd));
        }
    }
    #[inline(always)]
    unsafe fn operands(&mut self, pair: usize, even: __m512, odd: __m512) {
        // SAFETY: `floats` has room for every pair.
        unsafe {
            _mm512_store_ps(self.0.wrapping_add(2 * pair * PANEL), even);
            _mm512_store_ps(self.0.wrapping_add((2 * pair + 1) * PANEL), odd);
        }
    }
    #[inline(always)]
    unsafe fn words(&mut self, pair: usize, words: __m512i) {
        // SAFETY: `floats` has room for every pair.
        unsafe {
            let (even, odd) = split(words);
            self.operands(pair, even, odd);
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
        unsafe { self.words(pair, join(even, odd)) }
    }
    #[inline(always)]
    unsafe fn operands(&mut self, pair: usize, even: __m512, odd: __m512) {
        // SAFETY: as in [`Pairs`].
        unsafe { self.words(pair, join(even, odd)) }
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
/// See the module; `out` has room, 64-byte aligned.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn floats(ty: WeightType, panel: *const u8, start: usize, len: usize, out: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe { unpack(ty, panel, start, len, &mut Floats(out)) }
}

/// Dequantizes to `[k pair][16][2]` bf16.
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
) {
    // SAFETY: the caller's promise.
    unsafe { unpack(ty, panel, start, len, &mut Words(out)) }
}

/// The block of so many bytes at `index`, and what is going to be loaded soon after it.
#[inline(always)]
fn fetched_block(panel: *const u8, index: usize, bytes: usize) -> *const u8 {
    let block = panel.wrapping_add(index * bytes);
    for line in (0..bytes).step_by(LINE) {
        fetch_ahead::<1>(block.wrapping_add(line));
    }
    block
}

/// The super-block of so many bytes that holds step `index`, and of what follows an eighth.
#[inline(always)]
fn fetched_super_block(panel: *const u8, index: usize, bytes: usize) -> *const u8 {
    fetched_block(panel.wrapping_add(index / 8 * bytes), index % 8, bytes / 8);
    panel.wrapping_add(index / 8 * bytes)
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

/// A table for lookups: lane i is entry i.
#[inline(always)]
unsafe fn table(values: [f32; 16]) -> __m512 {
    // SAFETY: see the module.
    unsafe { _mm512_loadu_ps(values.as_ptr()) }
}

/// 0 to 15, and 16 to 31.
const COUNT: [f32; 16] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
const COUNT_ON: [f32; 16] = [16., 17., 18., 19., 20., 21., 22., 23., 24., 25., 26., 27., 28., 29., 30., 31.];

/// The entries that low and high nibbles of 16 bytes name: an index is the low four bits of its lane.
#[inline(always)]
unsafe fn look_up_nibbles(from: *const u8, table: __m512) -> (__m512, __m512) {
    // SAFETY: see the module.
    unsafe {
        let lanes = load_u8(from);
        (_mm512_permutexvar_ps(lanes, table), _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(lanes), table))
    }
}

/// As [`look_up_nibbles`] with a fifth bit, which selects the table: pair `pair % 4` of an octet of `k` whose bits are `high`.
#[inline(always)]
unsafe fn look_up_5_bits(from: *const u8, high: __m512i, pair: usize, tables: [__m512; 2]) -> (__m512, __m512) {
    // SAFETY: see the module. Bits above the fifth are not read.
    unsafe {
        let lanes = load_u8(from);
        let even = with_high_bit::<4>(lanes, high, 2 * (pair % 4));
        let odd = with_high_bit::<4>(_mm512_srli_epi32::<4>(lanes), high, 2 * (pair % 4) + 1);
        (_mm512_permutex2var_ps(tables[0], even, tables[1]), _mm512_permutex2var_ps(tables[0], odd, tables[1]))
    }
}

/// The lowest `AT` bits of `low`, and in bit `AT` bit `bit` of `high`; bits above may be anything.
#[inline(always)]
unsafe fn with_high_bit<const AT: u32>(low: __m512i, high: __m512i, bit: usize) -> __m512i {
    // SAFETY: see the module. Both counts are the same in every lane, and below 32; a bit is between 0 and 7.
    unsafe {
        let high = _mm512_slli_epi32::<AT>(high);
        let high = _mm512_srl_epi32(high, _mm_cvtsi64_si128(bit as i64));
        // Low where the mask is set, else high.
        _mm512_ternarylogic_epi32::<0b1100_1010>(_mm512_set1_epi32((1 << AT) - 1), low, high)
    }
}

#[inline(always)]
unsafe fn bf16<P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P) {
    // Of the 16-bit types only bf16 can be below 2^-50; NaNs are above. The bits are those of a bf16 twice.
    // SAFETY: see the module.
    let smallest = unsafe { _mm512_set1_epi32((SMALLEST_OPERAND_BITS | (SMALLEST_OPERAND_BITS >> 16)).cast_signed()) };
    let pairs = len.div_ceil(2);
    for first in (0..pairs).step_by(STEP_PAIRS) {
        fetch_ahead::<STEP_LINES>(panel.wrapping_add((start + 2 * first) * 2 * PANEL));
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
        fetch_ahead::<STEP_LINES>(panel.wrapping_add((start + 2 * first) * 2 * PANEL));
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernels::{K_BLOCK, Kernel, x86_64::Avx512};
    use crate::layout;

    #[repr(align(64))]
    struct Aligned<T>(T);

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// What matrix tiles take is tested without them.
        #[test]
        fn words_are_the_floats(seed in prop::collection::vec(any::<u8>(), 977), second: bool) {
            let Some(kernel) = Avx512::detect().filter(|_| is_x86_feature_detected!("avx512bf16")) else { return Ok(()) };
            for &ty in &WeightType::ALL[1..] {
                let start = if second { K_BLOCK } else { 0 };
                let mut panel = vec![0; layout::panel_bytes(ty, start + K_BLOCK).unwrap() + 64];
                let skip = panel.as_ptr().align_offset(64);
                let end = panel.len() - 64 + skip;
                let panel = &mut panel[skip..end];
                for column in 0..PANEL {
                    let row_bytes = ty.row_bytes(start + K_BLOCK).unwrap();
                    let row: Vec<u8> = seed.iter().copied().cycle().skip(column * 31).take(row_bytes).collect();
                    layout::pack_row(ty, &row, panel, column);
                }
                let mut floats = Aligned([0.0; K_BLOCK * PANEL]);
                kernel.dequantize(ty, panel, start, K_BLOCK, &mut floats.0);
                let mut pairs = Aligned([0_u32; K_BLOCK / 2 * PANEL]);
                // SAFETY: the instructions were detected; both are whole blocks of this type, and `pairs` has room for them.
                unsafe { words(ty, panel.as_ptr(), start, K_BLOCK, pairs.0.as_mut_ptr()) };
                for (i, &pair) in pairs.0.iter().enumerate() {
                    let (pair_of_k, column) = (i / PANEL, i % PANEL);
                    for (k, bits) in [pair << 16, pair & 0xffff_0000].into_iter().enumerate() {
                        let (got, want) = (f32::from_bits(bits), floats.0[(2 * pair_of_k + k) * PANEL + column]);
                        // Neither the sign of a zero nor which NaN a NaN is shows in a product.
                        prop_assert!(got == want || (got.is_nan() && want.is_nan()), "{ty}: {got} for {want}");
                    }
                }
            }
        }
    }
}
