//! One or two rows on AVX2: weights go from the packed panel through registers into the sums, without a stop in memory.
//!
//! Rounding to bf16 is what costs most, so it is done by Veltkamp's splitting (Dekker 1971, "A floating-point technique for extending the
//! available precision"): with `t = (2^16 + 1) w`, `t + (w - t)` is `w` rounded to eight bits, three operations instead of five. A tie
//! becomes two ties of those operations, each to even, and goes to even itself. This holds for every `w` whose `t` is finite; if a scale is
//! infinite the result is NaN where it should be infinite. Then a sum is NaN, and [`run`] says so: the caller does it the long way.
//!
//! As in `avx512/unpack.rs`, functions here are parts of the one that is compiled for the instructions, which is the safety argument of every
//! intrinsic. Their common contract besides: rows `0..2 * pairs` of `k`, from `start` on, lie in the panel, whole runs of 32 of them for
//! block formats, and the panel is 32-byte aligned.

mod super_blocks;

use std::arch::x86_64::*;

use super::{fetch_ahead, is_operand};
use crate::WeightType;
use crate::kernels::{STEP_PAIRS, Tile};
use crate::layout::{PANEL, q4_0, q4_1, q5_0, q8_0};

/// Most rows: the chains of more do not fit in 16 registers.
pub(super) const ROWS: usize = 2;
/// Pairs of a step that are written out one after the other.
const UNROLLED: usize = 4;

/// Two vectors, columns 0..8 and 8..16 of one row of `k`.
type Row = [__m256; 2];

/// Whether [`run`] takes weights of this type.
pub(super) fn takes(ty: WeightType) -> bool {
    use WeightType::{Bf16, F16, Q4_0, Q4_1, Q4K, Q5_0, Q5K, Q6K, Q8_0};
    matches!(ty, F16 | Bf16 | Q4_0 | Q4_1 | Q5_0 | Q8_0 | Q4K | Q5K | Q6K)
}

/// Multiplies the pairs it is given with `ROWS` rows of `x`.
struct Multiply<const ROWS: usize> {
    x: [*const f32; ROWS],
    chains: [[Row; ROWS]; 2],
    acc: [Row; ROWS],
}

impl<const ROWS: usize> Multiply<ROWS> {
    /// An operand of the chain of even (0) or odd (1) `k`.
    #[inline(always)]
    unsafe fn operand<const CHAIN: usize>(&mut self, pair: usize, w: Row) {
        for r in 0..ROWS {
            // SAFETY: see the module; each row of `x` is as long as `k`, padded to a pair.
            unsafe {
                let x = splat(*self.x[r].wrapping_add(2 * pair + CHAIN));
                self.chains[CHAIN][r] = fma(x, w, self.chains[CHAIN][r]);
            }
        }
    }

    /// The same of a value that is to be rounded: NaN, zero, or of a magnitude from 2^-50 to 2^111. One after the other, because registers
    /// are few.
    #[inline(always)]
    unsafe fn value<const CHAIN: usize>(&mut self, pair: usize, w: Row) {
        // SAFETY: see the module.
        unsafe { self.operand::<CHAIN>(pair, round(w)) }
    }

    /// A step of 16 pairs, or what is left of `k`, is complete.
    #[inline(always)]
    unsafe fn end_step(&mut self) {
        for r in 0..ROWS {
            // SAFETY: see the module.
            unsafe {
                self.acc[r] = add(self.acc[r], add(self.chains[0][r], self.chains[1][r]));
                self.chains[0][r] = [_mm256_setzero_ps(), _mm256_setzero_ps()];
                self.chains[1][r] = self.chains[0][r];
            }
        }
    }
}

/// A tile of `ROWS` rows from the panel's rows `start..` of `k` on; `false` if a sum is NaN, and then nothing was written.
///
/// # Safety
/// See the module; `tile.rows` is 1 or 2, `x` is as long as [`Tile`] says, and `tile.out` is the caller's alone.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run(ty: WeightType, panel: &[u8], start: usize, tile: &Tile<'_>) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        match tile.rows {
            1 => rows::<1>(ty, panel.as_ptr(), start, tile),
            _ => rows::<2>(ty, panel.as_ptr(), start, tile),
        }
    }
}

/// # Safety
/// As [`run`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows<const ROWS: usize>(ty: WeightType, panel: *const u8, start: usize, tile: &Tile<'_>) -> bool {
    let zero = [[_mm256_setzero_ps(), _mm256_setzero_ps()]; ROWS];
    let mut to = Multiply { x: [tile.x.as_ptr(); ROWS], chains: [zero; 2], acc: zero };
    for r in 0..ROWS {
        to.x[r] = tile.x.as_ptr().wrapping_add(r * tile.x_stride);
        if !tile.first {
            let out = tile.out.wrapping_add(r * tile.out_stride);
            // SAFETY: row `r` of the output has 16 floats.
            to.acc[r] = unsafe { [_mm256_loadu_ps(out), _mm256_loadu_ps(out.wrapping_add(8))] };
        }
    }
    // SAFETY: the caller's promise.
    unsafe {
        match ty {
            WeightType::F16 => f16(panel, start, tile.pairs, &mut to),
            WeightType::Bf16 => bf16(panel, start, tile.pairs, &mut to),
            WeightType::Q4_0 => q4_0(panel, start, tile.pairs, &mut to),
            WeightType::Q4_1 => q4_1(panel, start, tile.pairs, &mut to),
            WeightType::Q5_0 => q5_0(panel, start, tile.pairs, &mut to),
            WeightType::Q8_0 => q8_0(panel, start, tile.pairs, &mut to),
            WeightType::Q4K => super_blocks::q4_k(panel, start, tile.pairs, &mut to),
            WeightType::Q5K => super_blocks::q5_k(panel, start, tile.pairs, &mut to),
            WeightType::Q6K => super_blocks::q6_k(panel, start, tile.pairs, &mut to),
            _ => unreachable!("{ty} is not dequantized on the way"),
        }
    }
    if let Some(bias) = tile.bias {
        // SAFETY: a bias has 16 floats.
        let bias = unsafe { [_mm256_loadu_ps(bias.as_ptr()), _mm256_loadu_ps(bias.as_ptr().wrapping_add(8))] };
        for acc in &mut to.acc {
            *acc = [_mm256_add_ps(acc[0], bias[0]), _mm256_add_ps(acc[1], bias[1])];
        }
    }
    let mut nan = _mm256_setzero_ps();
    for acc in &to.acc {
        nan = _mm256_or_ps(nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(acc[0], acc[1]));
    }
    if _mm256_movemask_ps(nan) != 0 {
        return false;
    }
    for (r, acc) in to.acc.iter().enumerate() {
        let out = tile.out.wrapping_add(r * tile.out_stride);
        // SAFETY: row `r` of the output has 16 floats.
        unsafe {
            _mm256_storeu_ps(out, acc[0]);
            _mm256_storeu_ps(out.wrapping_add(8), acc[1]);
        }
    }
    true
}

/// Rounds to bf16, see the module.
#[inline(always)]
unsafe fn round(w: Row) -> Row {
    // SAFETY: see the module.
    unsafe {
        let split = _mm256_set1_ps(65_537.0);
        let t = [_mm256_mul_ps(w[0], split), _mm256_mul_ps(w[1], split)];
        add(t, [_mm256_sub_ps(w[0], t[0]), _mm256_sub_ps(w[1], t[1])])
    }
}

#[inline(always)]
unsafe fn splat(x: f32) -> Row {
    // SAFETY: see the module.
    unsafe { [_mm256_set1_ps(x), _mm256_set1_ps(x)] }
}

#[inline(always)]
unsafe fn add(a: Row, b: Row) -> Row {
    // SAFETY: see the module.
    unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
}

#[inline(always)]
unsafe fn mul(a: Row, b: Row) -> Row {
    // SAFETY: see the module.
    unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
}

#[inline(always)]
unsafe fn fma(a: Row, b: Row, c: Row) -> Row {
    // SAFETY: see the module.
    unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
}

/// 16 f16.
#[inline(always)]
unsafe fn load_f16(from: *const u8) -> Row {
    // SAFETY: see the module.
    unsafe {
        [_mm256_cvtph_ps(_mm_load_si128(from.cast())), _mm256_cvtph_ps(_mm_load_si128(from.wrapping_add(16).cast()))]
    }
}

/// 16 bytes in 32-bit lanes, zero-extended.
#[inline(always)]
unsafe fn load_lanes(from: *const u8) -> [__m256i; 2] {
    // SAFETY: see the module.
    unsafe {
        [
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast())),
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.wrapping_add(8).cast())),
        ]
    }
}

#[inline(always)]
unsafe fn to_f32(lanes: [__m256i; 2]) -> Row {
    // SAFETY: see the module.
    unsafe { [_mm256_cvtepi32_ps(lanes[0]), _mm256_cvtepi32_ps(lanes[1])] }
}

/// Low and high nibbles of 16 bytes, for the even and the odd row of a pair.
#[inline(always)]
unsafe fn load_nibbles(from: *const u8) -> [[__m256i; 2]; 2] {
    // SAFETY: see the module.
    unsafe {
        let (lanes, low) = (load_lanes(from), _mm256_set1_epi32(15));
        [
            [_mm256_and_si256(lanes[0], low), _mm256_and_si256(lanes[1], low)],
            [_mm256_srli_epi32::<4>(lanes[0]), _mm256_srli_epi32::<4>(lanes[1])],
        ]
    }
}

/// Bit `bit` of each lane of `high`, as bit 4 of what nibbles lie in.
#[inline(always)]
unsafe fn with_fifth_bit(low: [__m256i; 2], high: [__m256i; 2], bit: usize) -> [__m256i; 2] {
    // SAFETY: see the module. A shift by the same count in every lane, below 32.
    unsafe {
        let (count, mask) = (_mm_cvtsi64_si128(bit as i64), _mm256_set1_epi32(16));
        let high = [_mm256_slli_epi32::<4>(high[0]), _mm256_slli_epi32::<4>(high[1])];
        [
            _mm256_or_si256(low[0], _mm256_and_si256(_mm256_srl_epi32(high[0], count), mask)),
            _mm256_or_si256(low[1], _mm256_and_si256(_mm256_srl_epi32(high[1], count), mask)),
        ]
    }
}

/// A step of nibbles: `quants * scales + mins`, exact before it is rounded.
#[inline(always)]
unsafe fn nibble_step<const ROWS: usize>(
    quants: *const u8,
    scales: Row,
    mins: Row,
    first: usize,
    to: &mut Multiply<ROWS>,
) {
    for run in 0..STEP_PAIRS / UNROLLED {
        for pair in run * UNROLLED..(run + 1) * UNROLLED {
            // SAFETY: see the module.
            unsafe {
                let [even, odd] = load_nibbles(quants.wrapping_add(pair * PANEL));
                to.value::<0>(first + pair, fma(to_f32(even), scales, mins));
                to.value::<1>(first + pair, fma(to_f32(odd), scales, mins));
            }
        }
    }
    // SAFETY: see the module.
    unsafe { to.end_step() };
}

/// As [`nibble_step`], with a fifth bit of each quant in `high`, by octets of `k`.
#[inline(always)]
unsafe fn five_bit_step<const ROWS: usize>(
    (low, high): (*const u8, *const u8),
    scales: Row,
    mins: Row,
    first: usize,
    to: &mut Multiply<ROWS>,
) {
    for octet in 0..STEP_PAIRS / 4 {
        // SAFETY: see the module.
        let high = unsafe { load_lanes(high.wrapping_add(octet * PANEL)) };
        for i in 0..4 {
            let pair = octet * 4 + i;
            // SAFETY: see the module.
            unsafe {
                let [even, odd] = load_nibbles(low.wrapping_add(pair * PANEL));
                let even = to_f32(with_fifth_bit(even, high, 2 * i));
                to.value::<0>(first + pair, fma(even, scales, mins));
                let odd = to_f32(with_fifth_bit(odd, high, 2 * i + 1));
                to.value::<1>(first + pair, fma(odd, scales, mins));
            }
        }
    }
    // SAFETY: see the module.
    unsafe { to.end_step() };
}

#[inline(always)]
unsafe fn q4_0<const ROWS: usize>(panel: *const u8, start: usize, pairs: usize, to: &mut Multiply<ROWS>) {
    for block in 0..pairs / STEP_PAIRS {
        // SAFETY: see the module.
        unsafe {
            let from = panel.wrapping_add((start / 32 + block) * q4_0::BYTES);
            let scales = load_f16(from);
            // `(quant - 8) * scale`: both products and their difference are exact.
            let mins = mul(scales, splat(-8.0));
            nibble_step(from.wrapping_add(q4_0::QUANTS), scales, mins, block * STEP_PAIRS, to);
        }
    }
}

#[inline(always)]
unsafe fn q4_1<const ROWS: usize>(panel: *const u8, start: usize, pairs: usize, to: &mut Multiply<ROWS>) {
    for block in 0..pairs / STEP_PAIRS {
        // SAFETY: see the module.
        unsafe {
            let from = panel.wrapping_add((start / 32 + block) * q4_1::BYTES);
            let (scales, mins) = (load_f16(from), load_f16(from.wrapping_add(q4_1::MINS)));
            nibble_step(from.wrapping_add(q4_1::QUANTS), scales, mins, block * STEP_PAIRS, to);
        }
    }
}

#[inline(always)]
unsafe fn q5_0<const ROWS: usize>(panel: *const u8, start: usize, pairs: usize, to: &mut Multiply<ROWS>) {
    for block in 0..pairs / STEP_PAIRS {
        // SAFETY: see the module.
        unsafe {
            let from = panel.wrapping_add((start / 32 + block) * q5_0::BYTES);
            let scales = load_f16(from);
            let quants = (from.wrapping_add(q5_0::LOW), from.wrapping_add(q5_0::HIGH));
            // As in Q4_0.
            five_bit_step(quants, scales, mul(scales, splat(-16.0)), block * STEP_PAIRS, to);
        }
    }
}

#[inline(always)]
unsafe fn q8_0<const ROWS: usize>(panel: *const u8, start: usize, pairs: usize, to: &mut Multiply<ROWS>) {
    for block in 0..pairs / STEP_PAIRS {
        // SAFETY: see the module.
        unsafe {
            let from = panel.wrapping_add((start / 32 + block) * q8_0::BYTES);
            let scales = load_f16(from);
            for run in 0..STEP_PAIRS / UNROLLED {
                for pair in run * UNROLLED..(run + 1) * UNROLLED {
                    let quants = from.wrapping_add(q8_0::QUANTS + pair * 2 * PANEL);
                    // The even quant is the low byte of 16 bits, the odd one the high byte.
                    let both = [
                        _mm256_cvtepi16_epi32(_mm_load_si128(quants.cast())),
                        _mm256_cvtepi16_epi32(_mm_load_si128(quants.wrapping_add(16).cast())),
                    ];
                    let low = [_mm256_slli_epi32::<24>(both[0]), _mm256_slli_epi32::<24>(both[1])];
                    let even = to_f32([_mm256_srai_epi32::<24>(low[0]), _mm256_srai_epi32::<24>(low[1])]);
                    to.value::<0>(block * STEP_PAIRS + pair, mul(even, scales));
                    let odd = to_f32([_mm256_srai_epi32::<8>(both[0]), _mm256_srai_epi32::<8>(both[1])]);
                    to.value::<1>(block * STEP_PAIRS + pair, mul(odd, scales));
                }
            }
            to.end_step();
        }
    }
}

#[inline(always)]
unsafe fn bf16<const ROWS: usize>(panel: *const u8, start: usize, pairs: usize, to: &mut Multiply<ROWS>) {
    for first in (0..pairs).step_by(STEP_PAIRS) {
        fetch_ahead(panel.wrapping_add((start + 2 * first) * 2 * PANEL));
        for pair in first..(first + STEP_PAIRS).min(pairs) {
            // SAFETY: see the module: an odd `k` is padded to a pair.
            unsafe {
                let from = panel.wrapping_add((start + 2 * pair) * 2 * PANEL);
                let words = [_mm256_load_si256(from.cast()), _mm256_load_si256(from.wrapping_add(32).cast())];
                let high = _mm256_set1_epi32(!0xffff);
                let even = [_mm256_slli_epi32::<16>(words[0]), _mm256_slli_epi32::<16>(words[1])];
                let odd = [_mm256_and_si256(words[0], high), _mm256_and_si256(words[1], high)];
                to.operand::<0>(pair, operand_or_zero(even));
                to.operand::<1>(pair, operand_or_zero(odd));
            }
        }
        // SAFETY: see the module.
        unsafe { to.end_step() };
    }
}

#[inline(always)]
unsafe fn operand_or_zero(bits: [__m256i; 2]) -> Row {
    // SAFETY: see the module.
    unsafe {
        let row = [_mm256_castsi256_ps(bits[0]), _mm256_castsi256_ps(bits[1])];
        [_mm256_and_ps(row[0], is_operand(row[0])), _mm256_and_ps(row[1], is_operand(row[1]))]
    }
}

#[inline(always)]
unsafe fn f16<const ROWS: usize>(panel: *const u8, start: usize, pairs: usize, to: &mut Multiply<ROWS>) {
    for first in (0..pairs).step_by(STEP_PAIRS) {
        fetch_ahead(panel.wrapping_add((start + 2 * first) * 2 * PANEL));
        for pair in first..(first + STEP_PAIRS).min(pairs) {
            // SAFETY: see the module: an odd `k` is padded to a pair.
            unsafe {
                let from = panel.wrapping_add((start + 2 * pair) * 2 * PANEL);
                // Four even and four odd ones in each half of 128 bits, then the middle quarters change places.
                let order = _mm256_setr_epi8(
                    0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11,
                    14, 15,
                );
                let left = _mm256_shuffle_epi8(_mm256_load_si256(from.cast()), order);
                let right = _mm256_shuffle_epi8(_mm256_load_si256(from.wrapping_add(32).cast()), order);
                let left = _mm256_permute4x64_epi64::<0b11_01_10_00>(left);
                let right = _mm256_permute4x64_epi64::<0b11_01_10_00>(right);
                let even =
                    [_mm256_cvtph_ps(_mm256_castsi256_si128(left)), _mm256_cvtph_ps(_mm256_castsi256_si128(right))];
                let odd = [
                    _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(left)),
                    _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(right)),
                ];
                to.value::<0>(pair, even);
                to.value::<1>(pair, odd);
            }
        }
        // SAFETY: see the module.
        unsafe { to.end_step() };
    }
}
