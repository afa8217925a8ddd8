//! Quants of 64 bytes at a time, each shuffled straight into the significand of a float (AVX-512 VBMI).
//!
//! A byte `q` in a power of two `base`, where its significand has a unit of 1, gives the float `base + q`. Then
//! `(base + q) * scale - (base + center) * scale` is one fused multiply-add: it needs no conversion, and no subtraction of the center. The
//! subtrahend must be exact: a scale of f16 has 11 bits, and with [`BASE`] the other factor, its trailing zeros left out, no more than 13.
//! Where a scale has more bits, or a minimum is added, the power of two is the next above the quants ([`SIX_BIT_BASE`], [`FOUR_BIT_BASE`]).
//! Infinite scales give NaN.
//!
//! Contracts as in the module above, of functions compiled for VBMI besides.

use std::arch::x86_64::*;

use super::Pairs;
use crate::kernels::STEP_PAIRS;
use crate::layout::PANEL;

/// Pairs whose nibbles fill 64 bytes, for all columns.
const RUN: usize = 4;

/// `2^15` has its unit in the lowest bit of this byte.
const BASE: f32 = 32_768.0;
const BYTE: usize = 1;
/// `2^6` has six bits for a quant below the highest of this byte, which is the lowest of the exponent and set; and so has `2^4` four.
const SIX_BIT_BASE: f32 = 64.0;
const FOUR_BIT_BASE: f32 = 16.0;
const UPPER_BYTE: usize = 2;
const EXPONENT: i8 = i8::MIN;
const SIX_BITS: i8 = 0b0111_1110;
const FOUR_BITS: i8 = 0b0111_1000;

/// `quants * scales` and a constant of the column, as `(base + quants) * scales + offsets`.
#[derive(Clone, Copy)]
pub(super) struct Affine {
    base: f32,
    scales: __m512,
    offsets: __m512,
}

impl Affine {
    /// `(quants - center) * scales`.
    #[inline(always)]
    unsafe fn centered(base: f32, scales: __m512, center: f32) -> Self {
        // SAFETY: see the module above.
        Self { base, scales, offsets: unsafe { _mm512_mul_ps(scales, _mm512_set1_ps(-(base + center))) } }
    }

    /// `quants * scales + mins` of four bits, rounded once; `None` unless `mins - base * scales` is exact in all columns. (Infinite ones pass: their
    /// values are NaN.) It is for most blocks of weights where scales and minimums are f16; scales of scales have too many bits.
    #[inline(always)]
    pub(super) unsafe fn with_mins(scales: __m512, mins: __m512) -> Option<Self> {
        const DOWN: i32 = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
        const UP: i32 = _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC;
        // SAFETY: see the module above.
        unsafe {
            let base = _mm512_mul_ps(scales, _mm512_set1_ps(FOUR_BIT_BASE));
            let offsets = _mm512_sub_round_ps::<DOWN>(mins, base);
            let is_exact = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(offsets, _mm512_sub_round_ps::<UP>(mins, base));
            (is_exact == !0).then_some(Self { base: FOUR_BIT_BASE, scales, offsets })
        }
    }

    /// Values of the quants at byte `FIRST + c * STRIDE` for column `c`, put into byte `AT` of the float.
    #[inline(always)]
    unsafe fn values<const FIRST: usize, const STRIDE: usize, const AT: usize>(self, quants: __m512i) -> __m512 {
        // SAFETY: see the module above.
        unsafe {
            let order = _mm512_loadu_si512(const { &order(FIRST, STRIDE, AT) }.as_ptr().cast());
            let base = _mm512_castps_si512(_mm512_set1_ps(self.base));
            let floats = _mm512_mask_permutexvar_epi8(base, 0x1111_1111_1111_1111 << AT, order, quants);
            _mm512_fmadd_ps(_mm512_castsi512_ps(floats), self.scales, self.offsets)
        }
    }

    /// Hands out a run of four pairs, whose quants lie as `[pair][column]`, even ones and odd ones apart.
    #[inline(always)]
    unsafe fn hand_out<P: Pairs, const AT: usize>(self, first: usize, [even, odd]: [__m512i; 2], to: &mut P) {
        // SAFETY: see the module above.
        unsafe {
            to.values(first, self.values::<0, 1, AT>(even), self.values::<0, 1, AT>(odd));
            to.values(first + 1, self.values::<16, 1, AT>(even), self.values::<16, 1, AT>(odd));
            to.values(first + 2, self.values::<32, 1, AT>(even), self.values::<32, 1, AT>(odd));
            to.values(first + 3, self.values::<48, 1, AT>(even), self.values::<48, 1, AT>(odd));
        }
    }
}

/// In byte `at` of lane `c`: `first + c * stride`.
const fn order(first: usize, stride: usize, at: usize) -> [u8; 64] {
    let (mut order, mut column) = ([0; 64], 0);
    while column < PANEL {
        let from = first + column * stride;
        assert!(from < 64 && at < 4, "past the end of a vector");
        #[expect(clippy::cast_possible_truncation, reason = "below 64")]
        let byte = from as u8;
        order[4 * column + at] = byte;
        column += 1;
    }
    order
}

/// A step of nibbles: `(quants - center) * scales`, the quants as `finish(run, nibbles)` leaves those of a run, even and odd ones.
#[inline(always)]
pub(super) unsafe fn nibble_step<P: Pairs>(
    quants: *const u8,
    scales: __m512,
    center: f32,
    first: usize,
    to: &mut P,
    finish: impl Fn(usize, [__m512i; 2]) -> [__m512i; 2],
) {
    // SAFETY: see the module above.
    unsafe {
        let affine = Affine::centered(BASE, scales, center);
        for run in 0..STEP_PAIRS / RUN {
            let both = _mm512_loadu_si512(quants.wrapping_add(run * RUN * PANEL).cast());
            let nibble = _mm512_set1_epi8(15);
            let odd = _mm512_and_si512(_mm512_srli_epi16::<4>(both), nibble);
            let quants = finish(run, [_mm512_and_si512(both, nibble), odd]);
            affine.hand_out::<P, BYTE>(first + run * RUN, quants, to);
        }
        to.end_step();
    }
}

/// A step of nibbles of a [`Affine::with_mins`].
#[inline(always)]
pub(super) unsafe fn nibble_step_with_mins<P: Pairs>(quants: *const u8, affine: Affine, first: usize, to: &mut P) {
    // SAFETY: see the module above. Shifts of 16-bit lanes; the mask drops what crosses from one byte to the other.
    unsafe {
        for run in 0..STEP_PAIRS / RUN {
            let both = _mm512_loadu_si512(quants.wrapping_add(run * RUN * PANEL).cast());
            let quants = [_mm512_slli_epi16::<3>(both), _mm512_srli_epi16::<1>(both)];
            let quants = [with_exponent(quants[0], FOUR_BITS), with_exponent(quants[1], FOUR_BITS)];
            affine.hand_out::<P, UPPER_BYTE>(first + run * RUN, quants, to);
        }
        to.end_step();
    }
}

/// These bits of each byte, and the exponent's.
#[inline(always)]
unsafe fn with_exponent(bytes: __m512i, bits: i8) -> __m512i {
    // SAFETY: see the module above.
    unsafe { _mm512_ternarylogic_epi32::<0b1111_1000>(_mm512_set1_epi8(EXPONENT), bytes, _mm512_set1_epi8(bits)) }
}

/// Puts bit 2p of each column's byte at `high` as the fifth one into the even quants of pair `p` of a run, and bit 2p + 1 into the odd ones.
#[inline(always)]
pub(super) unsafe fn with_fifth_bits(high: *const u8, [even, odd]: [__m512i; 2]) -> [__m512i; 2] {
    /// The bit of the even quants, byte by byte.
    const BITS: [u8; 64] = {
        let (mut bits, mut byte) = ([0; 64], 0);
        while byte < 64 {
            bits[byte] = 1 << (byte / PANEL * 2);
            byte += 1;
        }
        bits
    };
    // SAFETY: see the module above.
    unsafe {
        let high = _mm512_broadcast_i32x4(_mm_load_si128(high.cast()));
        let bits = _mm512_loadu_si512(BITS.as_ptr().cast());
        let set = [_mm512_test_epi8_mask(high, bits), _mm512_test_epi8_mask(high, _mm512_add_epi8(bits, bits))];
        let fifth = _mm512_set1_epi8(16);
        [_mm512_mask_add_epi8(even, set[0], even, fifth), _mm512_mask_add_epi8(odd, set[1], odd, fifth)]
    }
}

/// A step of signed bytes, an even and an odd `k` of each column side by side: `quants * scales`.
#[inline(always)]
pub(super) unsafe fn byte_step<P: Pairs>(quants: *const u8, scales: __m512, first: usize, to: &mut P) {
    // SAFETY: see the module above.
    unsafe {
        let affine = Affine::centered(BASE, scales, 128.0);
        for pair in (0..STEP_PAIRS).step_by(2) {
            let signed = _mm512_loadu_si512(quants.wrapping_add(pair * 2 * PANEL).cast());
            let quants = _mm512_xor_si512(signed, _mm512_set1_epi8(i8::MIN));
            to.values(first + pair, affine.values::<0, 2, BYTE>(quants), affine.values::<1, 2, BYTE>(quants));
            to.values(first + pair + 1, affine.values::<32, 2, BYTE>(quants), affine.values::<33, 2, BYTE>(quants));
        }
        to.end_step();
    }
}

/// Half a step of six bits, of which the upper two lie by quads of `k` at `high`: `(quants - 32) * scales`, of scales of up to 18 bits.
#[inline(always)]
pub(super) unsafe fn six_bit_half_step<P: Pairs>(
    low: *const u8,
    high: *const u8,
    scales: __m512,
    first: usize,
    to: &mut P,
) {
    /// Where the nibble lies in [`SIX_BITS`].
    const LOW: i8 = 0b0001_1110;
    // SAFETY: see the module above.
    unsafe {
        let affine = Affine::centered(SIX_BIT_BASE, scales, 32.0);
        for run in 0..STEP_PAIRS / 2 / RUN {
            let both = _mm512_loadu_si512(low.wrapping_add(run * RUN * PANEL).cast());
            let quads = high.wrapping_add(run * 2 * PANEL);
            // The first quad for two pairs, the second for the others.
            let high = _mm512_broadcast_i32x4(_mm_load_si128(quads.cast()));
            let second = _mm_load_si128(quads.wrapping_add(PANEL).cast());
            let high = _mm512_mask_broadcast_i32x4(high, 0xff00, second);
            // Bits 0 and 1 go to 5 and 6 for the even quants of a quad's first pair, and 2 and 3, 4 and 5, 6 and 7 for those that follow. What
            // turns in from other bytes is masked.
            let turned = |first: i32, second: i32| {
                let [a, b] = [first, second];
                _mm512_rolv_epi32(high, _mm512_set_epi32(b, b, b, b, a, a, a, a, b, b, b, b, a, a, a, a))
            };
            // The nibble where the mask is set, else the bits of `high`.
            let joined = |low, high| _mm512_ternarylogic_epi32::<0b1100_1010>(_mm512_set1_epi8(LOW), low, high);
            let even = joined(_mm512_slli_epi16::<1>(both), turned(5, 1));
            let odd = joined(_mm512_srli_epi16::<3>(both), turned(3, 31));
            let quants = [with_exponent(even, SIX_BITS), with_exponent(odd, SIX_BITS)];
            affine.hand_out::<P, UPPER_BYTE>(first + run * RUN, quants, to);
        }
    }
}
