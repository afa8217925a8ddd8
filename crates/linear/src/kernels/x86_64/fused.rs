//! A few rows on AVX2: weights go from the packed panel through registers into the sums, without a stop in memory.
//!
//! With one row, a step of 32 rows of `k` is done for all columns at once: four chains hide the latency of their multiply-adds. With more rows
//! it is done for columns 0..8 and then for columns 8..16, since the chains of both would not fit in 16 registers, and a chain that waits in
//! memory takes three times as long. Where 16-bit weights need fewer registers, two rows take all columns too. Loops write out two pairs and no
//! more: what a compiler loads early for the next ones would not fit either.
//!
//! Rounding to bf16 is what costs most: two operations in [`round_finite`], or three in [`Multiply::product`] where a weight is one exact product,
//! that product included. Both give NaN where a scale is infinite. Then a sum is NaN, and [`run`] says so: the caller does it the long way.
//!
//! As in `avx512/unpack.rs`, functions here are parts of the one that is compiled for the instructions, which is the safety argument of every
//! intrinsic. Their common contract besides: rows `0..2 * pairs` of `k`, from `start` on, lie in the panel, whole runs of 32 of them for
//! block formats, and the panel is 32-byte aligned.

mod super_blocks;

use std::arch::x86_64::*;

use super::{LINE, STEP_LINES, fetch_ahead, is_operand};
use crate::WeightType;
use crate::kernels::{STEP_PAIRS, Tile};
use crate::layout::{PANEL, q4_0, q4_1, q5_0, q8_0};

/// Most rows of any type.
pub(super) const ROWS: usize = 4;
/// Pairs of a step that are written out one after the other.
const UNROLLED: usize = 2;
/// Columns of a vector: half of a panel's.
const HALF: usize = 8;

/// Most rows of weights of this type; with more, storing the dequantized weights costs less than chains that wait in memory. 0 for types
/// that [`run`] does not take.
pub(super) fn most_rows(ty: WeightType) -> usize {
    use WeightType::{Bf16, F16, Q4_0, Q4_1, Q4K, Q5_0, Q5K, Q6K, Q8_0};
    match ty {
        Q8_0 => ROWS,
        F16 | Bf16 | Q4_0 | Q4_1 | Q5_0 | Q4K | Q5K | Q6K => 2,
        _ => 0,
    }
}

/// Multiplies the pairs it is given with `ROWS` rows of `x`, `HALVES` of the columns' halves at a time.
struct Multiply<const ROWS: usize, const HALVES: usize> {
    x: [*const f32; ROWS],
    /// Of even and of odd `k`.
    chains: [[[__m256; HALVES]; ROWS]; 2],
    /// Of both halves.
    acc: [[__m256; 2]; ROWS],
}

impl<const ROWS: usize, const HALVES: usize> Multiply<ROWS, HALVES> {
    /// An operand of the chain of even (0) or odd (1) `k`, of one of the halves that are at hand.
    #[inline(always)]
    unsafe fn operand<const CHAIN: usize>(&mut self, pair: usize, half: usize, w: __m256) {
        for r in 0..ROWS {
            // SAFETY: see the module; each row of `x` is as long as `k`, padded to a pair.
            unsafe {
                let x = _mm256_set1_ps(*self.x[r].wrapping_add(2 * pair + CHAIN));
                let chain = &mut self.chains[CHAIN][r][half];
                *chain = _mm256_fmadd_ps(x, w, *chain);
            }
        }
    }

    /// The same of a value that is to be rounded.
    #[inline(always)]
    unsafe fn value<const CHAIN: usize>(&mut self, pair: usize, half: usize, w: __m256) {
        // SAFETY: see the module.
        unsafe { self.operand::<CHAIN>(pair, half, round_finite(w)) }
    }

    /// The same of `quants * scales`, which is exact, and so is the product with `shifted`, 2^16 times as large.
    #[inline(always)]
    unsafe fn product<const CHAIN: usize>(
        &mut self,
        pair: usize,
        half: usize,
        quants: __m256,
        [scales, shifted]: [__m256; 2],
    ) {
        // SAFETY: see the module.
        unsafe {
            let t = _mm256_mul_ps(quants, shifted);
            self.operand::<CHAIN>(pair, half, _mm256_add_ps(_mm256_fmsub_ps(quants, scales, t), t));
        }
    }

    /// A step of 16 pairs, or what is left of `k`, is complete for the halves from `first` on.
    #[inline(always)]
    unsafe fn end_step(&mut self, first: usize) {
        for r in 0..ROWS {
            for half in 0..HALVES {
                // SAFETY: see the module.
                unsafe {
                    let step = _mm256_add_ps(self.chains[0][r][half], self.chains[1][r][half]);
                    self.acc[r][first + half] = _mm256_add_ps(self.acc[r][first + half], step);
                    self.chains[0][r][half] = _mm256_setzero_ps();
                    self.chains[1][r][half] = _mm256_setzero_ps();
                }
            }
        }
    }
}

/// A tile of up to [`ROWS`] rows from the panel's rows `start..` of `k` on; `false` if a sum is NaN, and then nothing was written.
///
/// # Safety
/// See the module; `x` is as long as [`Tile`] says, and `tile.out` is the caller's alone.
///
/// # Panics
/// If the tile has more rows than [`most_rows`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run(ty: WeightType, panel: &[u8], start: usize, tile: &Tile<'_>) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        match tile.rows {
            1 => rows::<1, 2>(ty, panel.as_ptr(), start, tile),
            // What becomes operands in fewer operations leaves room for eight chains.
            2 if matches!(ty, WeightType::F16 | WeightType::Bf16) => rows::<2, 2>(ty, panel.as_ptr(), start, tile),
            2 => rows::<2, 1>(ty, panel.as_ptr(), start, tile),
            3 => rows::<3, 1>(ty, panel.as_ptr(), start, tile),
            _ => rows::<4, 1>(ty, panel.as_ptr(), start, tile),
        }
    }
}

/// # Safety
/// As [`run`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows<const ROWS: usize, const HALVES: usize>(
    ty: WeightType,
    panel: *const u8,
    start: usize,
    tile: &Tile<'_>,
) -> bool {
    let zero = _mm256_setzero_ps();
    let mut to = Multiply::<ROWS, HALVES> {
        x: [tile.x.as_ptr(); ROWS],
        chains: [[[zero; HALVES]; ROWS]; 2],
        acc: [[zero; 2]; ROWS],
    };
    for r in 0..ROWS {
        to.x[r] = tile.x.as_ptr().wrapping_add(r * tile.x_stride);
        if !tile.first {
            for half in 0..2 {
                // SAFETY: row `r` of the output has 16 floats.
                to.acc[r][half] = unsafe { _mm256_loadu_ps(tile.out.wrapping_add(r * tile.out_stride + half * HALF)) };
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe {
        match ty {
            WeightType::F16 => f16(panel, start, tile.pairs, &mut to),
            WeightType::Bf16 => bf16(panel, start, tile.pairs, &mut to),
            WeightType::Q8_0 => q8_0(panel, start, tile.pairs, &mut to),
            _ if ROWS * HALVES > 2 => unreachable!("{ROWS} rows of {ty} are not dequantized on the way"),
            WeightType::Q4_0 => q4_0(panel, start, tile.pairs, &mut to),
            WeightType::Q4_1 => q4_1(panel, start, tile.pairs, &mut to),
            WeightType::Q5_0 => q5_0(panel, start, tile.pairs, &mut to),
            WeightType::Q4K => super_blocks::q4_k(panel, start, tile.pairs, &mut to),
            WeightType::Q5K => super_blocks::q5_k(panel, start, tile.pairs, &mut to),
            WeightType::Q6K => super_blocks::q6_k(panel, start, tile.pairs, &mut to),
            _ => unreachable!("{ty} is not dequantized on the way"),
        }
    }
    let mut nan = zero;
    for acc in &mut to.acc {
        if let Some(bias) = tile.bias {
            for (half, acc) in acc.iter_mut().enumerate() {
                // SAFETY: a bias has 16 floats.
                *acc = _mm256_add_ps(*acc, unsafe { _mm256_loadu_ps(bias.as_ptr().wrapping_add(half * HALF)) });
            }
        }
        nan = _mm256_or_ps(nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(acc[0], acc[1]));
    }
    if _mm256_movemask_ps(nan) != 0 {
        return false;
    }
    for (r, acc) in to.acc.iter().enumerate() {
        for (half, acc) in acc.iter().enumerate() {
            // SAFETY: row `r` of the output has 16 floats.
            unsafe { _mm256_storeu_ps(tile.out.wrapping_add(r * tile.out_stride + half * HALF), *acc) };
        }
    }
    true
}

/// [`round_value`](super::round_value) by multiplications: `-(2^16 - 1) w` is rounded to 24 bits, and then `2^16 w` is added exactly. NaN for
/// infinities.
#[inline(always)]
pub(super) unsafe fn round_finite(w: __m256) -> __m256 {
    // SAFETY: see the module.
    unsafe { _mm256_fmadd_ps(w, _mm256_set1_ps(65_536.0), _mm256_mul_ps(w, _mm256_set1_ps(-65_535.0))) }
}

/// 8 f16.
#[inline(always)]
unsafe fn load_f16(from: *const u8) -> __m256 {
    // SAFETY: see the module.
    unsafe { _mm256_cvtph_ps(_mm_load_si128(from.cast())) }
}

/// 8 bytes in 32-bit lanes, zero-extended.
#[inline(always)]
unsafe fn load_lanes(from: *const u8) -> __m256i {
    const Z: i8 = -1;
    // SAFETY: see the module.
    unsafe {
        // A byte shuffle: processors do two of them in a cycle, but only one extension.
        let order = _mm256_setr_epi8(
            0, Z, Z, Z, 1, Z, Z, Z, 2, Z, Z, Z, 3, Z, Z, Z, 4, Z, Z, Z, 5, Z, Z, Z, 6, Z, Z, Z, 7, Z, Z, Z,
        );
        _mm256_shuffle_epi8(_mm256_set1_epi64x(from.cast::<i64>().read_unaligned()), order)
    }
}

/// A step of nibbles of the halves from `quants` on: `quants * scales + mins`, exact before it is rounded to f32.
#[inline(always)]
unsafe fn nibble_step<const ROWS: usize, const HALVES: usize>(
    quants: *const u8,
    scales: [[__m256; 2]; HALVES],
    first: usize,
    to: &mut Multiply<ROWS, HALVES>,
) {
    for run in 0..STEP_PAIRS / UNROLLED {
        for pair in run * UNROLLED..(run + 1) * UNROLLED {
            for (half, [scales, mins]) in scales.into_iter().enumerate() {
                // SAFETY: see the module.
                unsafe {
                    let lanes = load_lanes(quants.wrapping_add(pair * PANEL + half * HALF));
                    let even = _mm256_cvtepi32_ps(_mm256_and_si256(lanes, _mm256_set1_epi32(15)));
                    to.value::<0>(first + pair, half, _mm256_fmadd_ps(even, scales, mins));
                    let odd = _mm256_cvtepi32_ps(_mm256_srli_epi32::<4>(lanes));
                    to.value::<1>(first + pair, half, _mm256_fmadd_ps(odd, scales, mins));
                }
            }
        }
    }
}

/// 16 bytes, in both halves of a vector: what is done to quants of fewer bits is done to those of all columns.
#[inline(always)]
unsafe fn load_bytes(from: *const u8) -> __m256i {
    // SAFETY: see the module.
    unsafe { _mm256_broadcastsi128_si256(_mm_load_si128(from.cast())) }
}

/// The bytes of one half of the columns in 32-bit lanes, zero-extended, as f32.
#[inline(always)]
unsafe fn columns(bytes: __m256i, half: usize) -> __m256 {
    const Z: i8 = -1;
    // SAFETY: see the module.
    unsafe {
        let order = match half {
            0 => _mm256_setr_epi8(
                0, Z, Z, Z, 1, Z, Z, Z, 2, Z, Z, Z, 3, Z, Z, Z, 4, Z, Z, Z, 5, Z, Z, Z, 6, Z, Z, Z, 7, Z, Z, Z,
            ),
            _ => _mm256_setr_epi8(
                8, Z, Z, Z, 9, Z, Z, Z, 10, Z, Z, Z, 11, Z, Z, Z, 12, Z, Z, Z, 13, Z, Z, Z, 14, Z, Z, Z, 15, Z, Z, Z,
            ),
        };
        _mm256_cvtepi32_ps(_mm256_shuffle_epi8(bytes, order))
    }
}

/// As [`nibble_step`] for the halves from `side` on, with a fifth bit of each quant in `high`, by octets of `k`.
#[inline(always)]
unsafe fn five_bit_step<const ROWS: usize, const HALVES: usize>(
    (low, high): (*const u8, *const u8),
    side: usize,
    scales: [[__m256; 2]; HALVES],
    first: usize,
    to: &mut Multiply<ROWS, HALVES>,
) {
    for octet in 0..STEP_PAIRS / 4 {
        // SAFETY: see the module.
        let high = unsafe { load_bytes(high.wrapping_add(octet * PANEL)) };
        let (low, pair) = (low.wrapping_add(octet * 4 * PANEL), first + octet * 4);
        // SAFETY: see the module.
        unsafe {
            five_bit_pair::<0, ROWS, HALVES>(low, high, side, scales, pair, to);
            five_bit_pair::<2, ROWS, HALVES>(low.wrapping_add(PANEL), high, side, scales, pair + 1, to);
            five_bit_pair::<4, ROWS, HALVES>(low.wrapping_add(2 * PANEL), high, side, scales, pair + 2, to);
            five_bit_pair::<6, ROWS, HALVES>(low.wrapping_add(3 * PANEL), high, side, scales, pair + 3, to);
        }
    }
}

/// One pair of [`five_bit_step`], whose bits in `high` begin with `BIT`.
#[inline(always)]
unsafe fn five_bit_pair<const BIT: usize, const ROWS: usize, const HALVES: usize>(
    low: *const u8,
    high: __m256i,
    side: usize,
    scales: [[__m256; 2]; HALVES],
    pair: usize,
    to: &mut Multiply<ROWS, HALVES>,
) {
    // SAFETY: see the module.
    unsafe {
        let (low, nibble) = (load_bytes(low), _mm256_set1_epi8(15));
        let even = with_fifth_bit(_mm256_and_si256(low, nibble), high, BIT);
        let odd = with_fifth_bit(_mm256_and_si256(_mm256_srli_epi16::<4>(low), nibble), high, BIT + 1);
        for (half, [scales, mins]) in scales.into_iter().enumerate() {
            to.value::<0>(pair, half, _mm256_fmadd_ps(columns(even, side + half), scales, mins));
            to.value::<1>(pair, half, _mm256_fmadd_ps(columns(odd, side + half), scales, mins));
        }
    }
}

/// Bit `bit` of each byte of `high`, as bit 4 of what a nibble lies in.
#[inline(always)]
unsafe fn with_fifth_bit(low: __m256i, high: __m256i, bit: usize) -> __m256i {
    let (left, right) = (4_usize.saturating_sub(bit), bit.saturating_sub(4));
    // SAFETY: see the module. Shifts of 16-bit lanes; the mask drops what crosses from one byte to the other.
    unsafe {
        let high = _mm256_sll_epi16(high, _mm_cvtsi64_si128(left as i64));
        let high = _mm256_srl_epi16(high, _mm_cvtsi64_si128(right as i64));
        _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(16)))
    }
}

#[inline(always)]
unsafe fn q4_0<const ROWS: usize, const HALVES: usize>(
    panel: *const u8,
    start: usize,
    pairs: usize,
    to: &mut Multiply<ROWS, HALVES>,
) {
    for block in 0..pairs / STEP_PAIRS {
        let from = panel.wrapping_add((start / 32 + block) * q4_0::BYTES);
        fetch_ahead::<{ q4_0::BYTES.div_ceil(LINE) }>(from);
        for first in (0..2).step_by(HALVES) {
            // SAFETY: see the module.
            unsafe {
                let scales = centered::<HALVES>(from, first, -8.0);
                let quants = from.wrapping_add(q4_0::QUANTS + first * HALF);
                nibble_step(quants, scales, block * STEP_PAIRS, to);
                to.end_step(first);
            }
        }
    }
}

/// The scales of the halves from `first` on, and `center` times each: `(quant - 8) * scale` is two exact products, whose difference is exact too.
#[inline(always)]
unsafe fn centered<const HALVES: usize>(from: *const u8, first: usize, center: f32) -> [[__m256; 2]; HALVES] {
    // SAFETY: see the module.
    unsafe {
        let mut all = [[_mm256_setzero_ps(); 2]; HALVES];
        for (half, scales) in all.iter_mut().enumerate() {
            let of_half = load_f16(from.wrapping_add(2 * (first + half) * HALF));
            *scales = [of_half, _mm256_mul_ps(of_half, _mm256_set1_ps(center))];
        }
        all
    }
}

#[inline(always)]
unsafe fn q4_1<const ROWS: usize, const HALVES: usize>(
    panel: *const u8,
    start: usize,
    pairs: usize,
    to: &mut Multiply<ROWS, HALVES>,
) {
    for block in 0..pairs / STEP_PAIRS {
        let from = panel.wrapping_add((start / 32 + block) * q4_1::BYTES);
        fetch_ahead::<{ q4_1::BYTES.div_ceil(LINE) }>(from);
        for first in (0..2).step_by(HALVES) {
            // SAFETY: see the module.
            unsafe {
                let mut all = [[_mm256_setzero_ps(); 2]; HALVES];
                for (half, scales) in all.iter_mut().enumerate() {
                    let from = from.wrapping_add(2 * (first + half) * HALF);
                    *scales = [load_f16(from), load_f16(from.wrapping_add(q4_1::MINS))];
                }
                let quants = from.wrapping_add(q4_1::QUANTS + first * HALF);
                nibble_step(quants, all, block * STEP_PAIRS, to);
                to.end_step(first);
            }
        }
    }
}

#[inline(always)]
unsafe fn q5_0<const ROWS: usize, const HALVES: usize>(
    panel: *const u8,
    start: usize,
    pairs: usize,
    to: &mut Multiply<ROWS, HALVES>,
) {
    for block in 0..pairs / STEP_PAIRS {
        let from = panel.wrapping_add((start / 32 + block) * q5_0::BYTES);
        fetch_ahead::<{ q5_0::BYTES.div_ceil(LINE) }>(from);
        for first in (0..2).step_by(HALVES) {
            // SAFETY: see the module.
            unsafe {
                let scales = centered::<HALVES>(from, first, -16.0);
                let quants = (from.wrapping_add(q5_0::LOW), from.wrapping_add(q5_0::HIGH));
                five_bit_step(quants, first, scales, block * STEP_PAIRS, to);
                to.end_step(first);
            }
        }
    }
}

#[inline(always)]
unsafe fn q8_0<const ROWS: usize, const HALVES: usize>(
    panel: *const u8,
    start: usize,
    pairs: usize,
    to: &mut Multiply<ROWS, HALVES>,
) {
    const Z: i8 = -1;
    for block in 0..pairs / STEP_PAIRS {
        let from = panel.wrapping_add((start / 32 + block) * q8_0::BYTES);
        fetch_ahead::<{ q8_0::BYTES.div_ceil(LINE) }>(from);
        for first in (0..2).step_by(HALVES) {
            // SAFETY: see the module.
            unsafe {
                // The even quants, and the odd ones, each as the highest byte of 32 bits: 2^24 times themselves, sign included.
                let even = _mm256_setr_epi8(
                    Z, Z, Z, 0, Z, Z, Z, 2, Z, Z, Z, 4, Z, Z, Z, 6, Z, Z, Z, 8, Z, Z, Z, 10, Z, Z, Z, 12, Z, Z, Z, 14,
                );
                let odd = _mm256_setr_epi8(
                    Z, Z, Z, 1, Z, Z, Z, 3, Z, Z, Z, 5, Z, Z, Z, 7, Z, Z, Z, 9, Z, Z, Z, 11, Z, Z, Z, 13, Z, Z, Z, 15,
                );
                let mut all = [[_mm256_setzero_ps(); 2]; HALVES];
                for (half, scales) in all.iter_mut().enumerate() {
                    let of_half = load_f16(from.wrapping_add(2 * (first + half) * HALF));
                    let of_half = _mm256_mul_ps(of_half, _mm256_set1_ps(1.0 / 16_777_216.0));
                    *scales = [of_half, _mm256_mul_ps(of_half, _mm256_set1_ps(65_536.0))];
                }
                for run in 0..STEP_PAIRS / UNROLLED {
                    for pair in run * UNROLLED..(run + 1) * UNROLLED {
                        for (half, scales) in all.into_iter().enumerate() {
                            let quants = from.wrapping_add(q8_0::QUANTS + (pair * PANEL + (first + half) * HALF) * 2);
                            let quants = _mm256_broadcastsi128_si256(_mm_load_si128(quants.cast()));
                            let row = block * STEP_PAIRS + pair;
                            let even = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(quants, even));
                            to.product::<0>(row, half, even, scales);
                            let odd = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(quants, odd));
                            to.product::<1>(row, half, odd, scales);
                        }
                    }
                }
                to.end_step(first);
            }
        }
    }
}

#[inline(always)]
unsafe fn bf16<const ROWS: usize, const HALVES: usize>(
    panel: *const u8,
    start: usize,
    pairs: usize,
    to: &mut Multiply<ROWS, HALVES>,
) {
    for step in (0..pairs).step_by(STEP_PAIRS) {
        fetch_ahead::<STEP_LINES>(panel.wrapping_add((start + 2 * step) * 2 * PANEL));
        for first in (0..2).step_by(HALVES) {
            for pair in step..(step + STEP_PAIRS).min(pairs) {
                for half in 0..HALVES {
                    // SAFETY: see the module: an odd `k` is padded to a pair.
                    unsafe {
                        let from = panel.wrapping_add(((start + 2 * pair) * PANEL + 2 * (first + half) * HALF) * 2);
                        let words = _mm256_load_si256(from.cast());
                        let even = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words));
                        let odd = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(!0xffff)));
                        to.operand::<0>(pair, half, _mm256_and_ps(even, is_operand(even)));
                        to.operand::<1>(pair, half, _mm256_and_ps(odd, is_operand(odd)));
                    }
                }
            }
            // SAFETY: see the module.
            unsafe { to.end_step(first) };
        }
    }
}

#[inline(always)]
unsafe fn f16<const ROWS: usize, const HALVES: usize>(
    panel: *const u8,
    start: usize,
    pairs: usize,
    to: &mut Multiply<ROWS, HALVES>,
) {
    for step in (0..pairs).step_by(STEP_PAIRS) {
        fetch_ahead::<STEP_LINES>(panel.wrapping_add((start + 2 * step) * 2 * PANEL));
        for first in (0..2).step_by(HALVES) {
            for pair in step..(step + STEP_PAIRS).min(pairs) {
                for half in 0..HALVES {
                    // SAFETY: see the module: an odd `k` is padded to a pair.
                    unsafe {
                        let from = panel.wrapping_add(((start + 2 * pair) * PANEL + 2 * (first + half) * HALF) * 2);
                        // Four even and four odd ones in each half of 128 bits, then the middle quarters change places.
                        let order = _mm256_setr_epi8(
                            0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7,
                            10, 11, 14, 15,
                        );
                        let words = _mm256_shuffle_epi8(_mm256_load_si256(from.cast()), order);
                        let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
                        to.value::<0>(pair, half, _mm256_cvtph_ps(_mm256_castsi256_si128(words)));
                        to.value::<1>(pair, half, _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(words)));
                    }
                }
            }
            // SAFETY: see the module.
            unsafe { to.end_step(first) };
        }
    }
}
