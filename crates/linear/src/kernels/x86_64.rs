//! x86-64: AVX2 with FMA and F16C here, AVX-512 and AMX in their own modules. Outputs sit in lanes, so each lane does what the scalar kernel does for its output.

mod amx;
mod avx512;
mod dequantize;
mod fused;
mod tile;

use std::arch::x86_64::*;

pub(crate) use amx::{Amx, Micro, STEP, TILE, TILE_ELEMENTS, Tiles};
pub(crate) use avx512::Avx512;

use super::{K_BLOCK, Kernel, STEP_PAIRS, Tile};
use crate::WeightType;
use crate::layout::{self, PANEL};
use crate::number::SMALLEST_OPERAND_BITS;

/// Proof that this CPU has AVX2, FMA and F16C: `detect` is the only way to make one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    pub(crate) fn detect() -> Option<Self> {
        let found =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        found.then_some(Self(()))
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;
/// Lines of a step of 16-bit weights.
const STEP_LINES: usize = STEP_PAIRS * 2 * PANEL * size_of::<u16>() / LINE;
/// How far ahead of the loads of one panel its lines are fetched: always with AVX-512, and with AVX2 those of 16-bit weights, and those of block
/// formats where it multiplies a few rows with them. That is what memory delivers in its latency, and past the end of a page, where the
/// processor's own prefetching stops.
const FETCH_AHEAD: usize = 3 << 10;

/// Fetches so many lines that are going to be loaded soon after those at `from`: those of a step of weights.
#[inline(always)]
fn fetch_ahead<const LINES: usize>(from: *const u8) {
    for line in 0..LINES {
        // SAFETY: a prefetch touches nothing, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(FETCH_AHEAD + line * LINE).cast()) };
    }
}

/// Alignment of panels and of dequantized weights, for vector loads.
const VECTOR_ALIGN: usize = 32;

impl Kernel for Avx2 {
    const TILE_ROWS: usize = 6;

    fn round(self, x: &[f32], out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "lengths differ");
        // SAFETY: an `Avx2` exists only after `detect` found the instructions; the lengths are equal.
        unsafe { round(x, out) }
    }

    fn dequantize(self, ty: WeightType, panel: &[u8], start: usize, len: usize, out: &mut [f32]) {
        let end = start + len;
        assert!(layout::panel_bytes(ty, end).is_some_and(|bytes| bytes <= panel.len()), "k past the panel");
        assert!(len <= K_BLOCK && out.len() >= K_BLOCK * PANEL, "more than a k block");
        let aligned = panel.as_ptr().addr() | out.as_ptr().addr();
        assert!(aligned.is_multiple_of(VECTOR_ALIGN), "panel or output is not aligned");
        let block = ty.block_elements().max(2);
        assert!(
            start.is_multiple_of(block) && (ty.block_elements() == 1 || len.is_multiple_of(block)),
            "partial blocks"
        );
        // SAFETY: an `Avx2` exists only after `detect` found the instructions. Rows up to `end` of `k` lie in the panel,
        // whole blocks of them for block formats, `out` has room for all of a k block, and both are aligned.
        unsafe {
            match ty {
                WeightType::F32 => unreachable!("f32 weights are multiplied as they are"),
                WeightType::F16 => dequantize::f16(panel, start, len, out),
                WeightType::Bf16 => dequantize::bf16(panel, start, len, out),
                WeightType::Q4_1 => dequantize::q4_1(panel, start, len, out),
                WeightType::Q8_0 => dequantize::q8_0(panel, start, len, out),
                WeightType::Q4K => dequantize::q4_k(panel, start, len, out),
                WeightType::Q6K => dequantize::q6_k(panel, start, len, out),
                WeightType::Q4_0 => dequantize::q4_0(panel, start, len, out),
                WeightType::Q5_0 => dequantize::q5_0(panel, start, len, out),
                WeightType::Q5_1 => dequantize::q5_1(panel, start, len, out),
                WeightType::Q2K => dequantize::q2_k(panel, start, len, out),
                WeightType::Q3K => dequantize::q3_k(panel, start, len, out),
                WeightType::Q5K => dequantize::q5_k(panel, start, len, out),
                WeightType::Iq4Nl => dequantize::iq4_nl(panel, start, len, out),
                WeightType::Iq4Xs => dequantize::iq4_xs(panel, start, len, out),
                WeightType::Mxfp4 => dequantize::mxfp4(panel, start, len, out),
            }
        }
    }

    unsafe fn tile(self, tile: &Tile<'_>) {
        tile.check(Self::TILE_ROWS);
        // SAFETY: an `Avx2` exists only after `detect` found the instructions; the operands are long enough, as just
        // checked, and the output is the caller's promise.
        unsafe {
            match tile.rows {
                1 => tile::run::<1, true>(tile),
                2 => tile::run::<2, true>(tile),
                3 => tile::run::<3, true>(tile),
                4 => tile::run::<4, false>(tile),
                5 => tile::run::<5, false>(tile),
                _ => tile::run::<6, false>(tile),
            }
        }
    }

    fn fuses(self, ty: WeightType, rows: usize) -> bool {
        rows <= fused::most_rows(ty)
    }

    unsafe fn fused(self, ty: WeightType, panel: &[u8], start: usize, tile: &Tile<'_>) {
        tile.check_x(fused::ROWS);
        // An odd `k` is padded in panels of the 16-bit types, and blocks are even.
        avx512::check_panel(ty, panel, start, 2 * tile.pairs, K_BLOCK);
        // SAFETY: an `Avx2` exists only after `detect` found the instructions; `x` and the panel are long enough, as just checked, and the
        // output is the caller's promise.
        if !unsafe { fused::run(ty, panel, start, tile) } {
            // SAFETY: as above.
            unsafe { in_blocks(self, ty, panel, start, tile) };
        }
    }
}

/// What [`Kernel::fused`] does, by way of memory: where a sum is NaN.
///
/// # Safety
/// As [`Kernel::tile`].
#[cold]
unsafe fn in_blocks<K: Kernel>(kernel: K, ty: WeightType, panel: &[u8], start: usize, tile: &Tile<'_>) {
    #[repr(align(64))]
    struct Weights([f32; K_BLOCK * PANEL]);
    let mut weights = Weights([0.0; K_BLOCK * PANEL]);
    let len = 2 * tile.pairs;
    for at in (0..len).step_by(K_BLOCK) {
        let block = K_BLOCK.min(len - at);
        kernel.dequantize(ty, panel, start + at, block, &mut weights.0);
        let last = at + block == len;
        let tile = Tile {
            x: &tile.x[at..],
            w: &weights.0,
            pairs: block / 2,
            first: tile.first && at == 0,
            bias: tile.bias.filter(|_| last),
            ..*tile
        };
        // SAFETY: the caller's promise.
        unsafe { kernel.tile(&tile) };
    }
}

/// # Safety
/// The lengths are equal.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn round(x: &[f32], out: &mut [f32]) {
    let whole = x.len() / 8 * 8;
    for i in (0..whole).step_by(8) {
        // SAFETY: `i + 8 <= x.len() == out.len()`.
        unsafe {
            let value = _mm256_loadu_ps(x.as_ptr().add(i));
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(value, value);
            let rounded = _mm256_blendv_ps(round_bf16(value), _mm256_set1_ps(f32::NAN), nan);
            _mm256_storeu_ps(out.as_mut_ptr().add(i), _mm256_and_ps(rounded, is_operand(value)));
        }
    }
    for (out, &x) in out[whole..].iter_mut().zip(&x[whole..]) {
        *out = crate::bf16_operand(x);
    }
}

/// Rounds lanes to bf16, ties to even. A NaN becomes anything.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn round_bf16(value: __m256) -> __m256 {
    let bits = _mm256_castps_si256(value);
    let lowest_kept = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), lowest_kept);
    _mm256_castsi256_ps(_mm256_and_si256(rounded, _mm256_set1_epi32(!0xffff)))
}

/// Rounds lanes to bf16, ties to even, where each is zero, NaN, infinite or of a magnitude from 2^-110 to 2^111: every value of a format with
/// f16 scales. A zero may change its sign.
///
/// With `t = 2^16 w`, by an addition to the exponent, `w - t` is `-(2^16 - 1) w` rounded to 24 bits, and `t` a multiple of its last place: so
/// `(w - t) + t` is exact and is `w` rounded to eight bits. A tie goes to even, because an even multiple was added. Where the difference
/// has a smaller exponent than `t`, `w` is within 2^-16 of a power of two, which it is rounded to on the finer grid as well.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn round_value(value: __m256) -> __m256 {
    let shifted = _mm256_add_epi32(_mm256_castps_si256(value), _mm256_set1_epi32(16 << 23));
    let shifted = _mm256_castsi256_ps(shifted);
    _mm256_add_ps(_mm256_sub_ps(value, shifted), shifted)
}

/// All ones where the magnitude is 2^-50 or more, or NaN.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn is_operand(value: __m256) -> __m256 {
    let magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0), value);
    _mm256_cmp_ps::<_CMP_NLT_UQ>(magnitude, _mm256_set1_ps(f32::from_bits(SMALLEST_OPERAND_BITS)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[target_feature(enable = "avx2,fma,f16c")]
    fn rounded(bits: u32) -> [[f32; 8]; 2] {
        let lanes = [0, 1, 2, 3, 4, 5, 6, 7].map(|lane| bits + lane);
        let mut out = [[0.0; 8]; 2];
        // SAFETY: the arrays have eight lanes, and this function is compiled for the instructions.
        unsafe {
            let values = _mm256_castsi256_ps(_mm256_loadu_si256(lanes.as_ptr().cast()));
            _mm256_storeu_ps(out[0].as_mut_ptr(), round_value(values));
            _mm256_storeu_ps(out[1].as_mut_ptr(), fused::round_finite(values));
        }
        out
    }

    #[test]
    fn every_significand_is_rounded_to_the_nearest_and_ties_to_even() {
        if Avx2::detect().is_some() {
            // SAFETY: AVX2 was detected, and with it what else the function is compiled for.
            rounds_every_significand(|first| unsafe { rounded(first) });
        }
    }

    #[test]
    fn infinities_keep_their_value_unless_rounding_is_for_finite_ones() {
        if Avx2::detect().is_some() {
            // SAFETY: AVX2 was detected, and with it what else the function is compiled for.
            keeps_infinities(|first| unsafe { rounded(first) });
        }
    }

    /// `rounded` gives the numbers of the bits from the first on, rounded by `round_value` and by `round_finite`. Powers of two do not enter: every
    /// significand, at both ends of the exponents and in the middle.
    pub(super) fn rounds_every_significand<const LANES: usize>(rounded: impl Fn(u32) -> [[f32; LANES]; 2]) {
        for exponent in [127 - 50, 127, 127 + 110] {
            for significand in (0..1 << 23).step_by(LANES) {
                let first = exponent << 23 | significand;
                let [value, finite] = rounded(first);
                for ((value, finite), bits) in value.into_iter().zip(finite).zip(first..) {
                    let want = crate::bf16_operand(f32::from_bits(bits)).to_bits();
                    assert_eq!([value.to_bits(), finite.to_bits()], [want; 2], "{bits:#x}");
                }
            }
        }
    }

    pub(super) fn keeps_infinities<const LANES: usize>(rounded: impl Fn(u32) -> [[f32; LANES]; 2]) {
        let ([value, finite], [zero, finite_zero]) = (rounded(0x7f80_0000), rounded(0));
        assert!(value[0] == f32::INFINITY && finite[0].is_nan() && zero[0] == 0.0 && finite_zero[0] == 0.0);
        assert!(value[1..].iter().chain(&finite[1..]).all(|value| value.is_nan()));
    }
}
