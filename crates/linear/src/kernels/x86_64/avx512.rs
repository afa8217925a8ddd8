//! AVX-512: one register holds a panel's 16 columns, and each lane does what the scalar kernel does for its output.

mod fused;
mod tile;
mod unpack;

use std::arch::x86_64::*;

pub(super) use tile::finish;
pub(super) use unpack::words;

use super::in_blocks;
use crate::WeightType;
use crate::kernels::{K_BLOCK, Kernel, Panel, Tile, VECTOR_ALIGN};
use crate::layout::{self, PANEL};
use crate::number::SMALLEST_OPERAND_BITS;

/// Proof that this CPU has AVX-512 F, BW and VL: `detect` is the only way to make one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512 {
    /// Whether it has the byte shuffles of VBMI too.
    vbmi: bool,
}

impl Avx512 {
    pub(crate) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl");
        found.then(|| Self { vbmi: is_x86_feature_detected!("avx512vbmi") })
    }

    /// As on a CPU without the byte shuffles.
    #[cfg(test)]
    pub(crate) fn without_vbmi(self) -> Self {
        Self { vbmi: false }
    }
}

/// Panics unless rows `start..start + len` of `k` lie in `panel`, aligned as panels are, and are whole units: of `block` rows, or of a
/// quantization block if that is smaller. 16-bit types need whole pairs, but for an odd end of `k`, which panels pad.
pub(super) fn check_panel(ty: WeightType, panel: &[u8], start: usize, len: usize, block: usize) {
    let elements = ty.block_elements();
    let end = (start + len).next_multiple_of(elements);
    assert!(layout::panel_bytes(ty, end).is_some_and(|bytes| bytes <= panel.len()), "k past the panel");
    assert!(panel.as_ptr().addr().is_multiple_of(32), "panel is not aligned");
    let unit = elements.min(block);
    assert!(start.is_multiple_of(unit.max(2)) && (elements == 1 || len.is_multiple_of(unit)), "partial blocks");
}

impl Kernel for Avx512 {
    const TILE_ROWS: usize = 12;
    const WIDE_TILE_ROWS: usize = tile::WIDE_ROWS;

    fn round(self, x: &[f32], out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "lengths differ");
        // SAFETY: an `Avx512` exists only after `detect` found the instructions; the lengths are equal.
        unsafe { round(x, out) }
    }

    fn dequantize(self, ty: WeightType, panel: &[u8], start: usize, len: usize, out: &mut [f32]) {
        check_panel(ty, panel, start, len, K_BLOCK);
        assert!(len <= K_BLOCK && out.len() >= K_BLOCK * PANEL, "more than a k block");
        assert!(out.as_ptr().addr().is_multiple_of(VECTOR_ALIGN), "output is not aligned");
        // SAFETY: an `Avx512` exists only after `detect` found the instructions. The panel was checked, and `out` has room for a k block.
        unsafe { unpack::floats(ty, panel.as_ptr(), start, len, out.as_mut_ptr()) }
    }

    unsafe fn tile(self, tile: &Tile<'_>) {
        tile.check(Self::TILE_ROWS);
        // SAFETY: an `Avx512` exists only after `detect` found the instructions; the operands are long enough, as just
        // checked, and the output is the caller's promise.
        unsafe { tile::run(tile) }
    }

    unsafe fn wide_tile(self, tile: &Tile<'_>, second: Panel<'_>) {
        tile.check(Self::WIDE_TILE_ROWS);
        tile.check_w(second.w);
        // SAFETY: an `Avx512` exists only after `detect` found the instructions; the operands are long enough, as just
        // checked, and the output is the caller's promise.
        unsafe { tile::run_wide(tile, second) }
    }

    fn fuses(self, ty: WeightType, rows: usize) -> bool {
        ty.multiplies_in_bf16() && rows <= fused::ROWS
    }

    unsafe fn fused(self, ty: WeightType, panel: &[u8], start: usize, tile: &Tile<'_>) {
        tile.check_x(fused::ROWS);
        // An odd `k` is padded in panels of the 16-bit types, and blocks are even.
        check_panel(ty, panel, start, 2 * tile.pairs, K_BLOCK);
        // SAFETY: an `Avx512` exists only after `detect` found the instructions, the shuffles too where `vbmi` says so; `x` and the panel
        // are long enough, as just checked, and the output is the caller's promise.
        unsafe {
            let is_written =
                if self.vbmi { fused::run_vbmi(ty, panel, start, tile) } else { fused::run(ty, panel, start, tile) };
            if !is_written {
                in_blocks(self, ty, panel, start, tile);
            }
        }
    }
}

/// # Safety
/// The lengths are equal.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn round(x: &[f32], out: &mut [f32]) {
    for i in (0..x.len()).step_by(16) {
        // Lanes past the end are neither read nor written.
        let lanes = if x.len() - i < 16 { (1 << (x.len() - i)) - 1 } else { !0 };
        // SAFETY: the lanes named lie in both slices.
        unsafe {
            let value = _mm512_maskz_loadu_ps(lanes, x.as_ptr().wrapping_add(i));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
            let rounded = _mm512_mask_mov_ps(round_bf16(value), nan, _mm512_set1_ps(f32::NAN));
            let rounded = _mm512_maskz_mov_ps(is_operand(value), rounded);
            _mm512_mask_storeu_ps(out.as_mut_ptr().wrapping_add(i), lanes, rounded);
        }
    }
}

/// Rounds lanes to bf16, ties to even. A NaN becomes anything.
#[inline]
#[target_feature(enable = "avx512f")]
fn round_bf16(value: __m512) -> __m512 {
    let bits = _mm512_castps_si512(value);
    let lowest_kept = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), lowest_kept);
    _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32(!0xffff)))
}

/// As the function of this name for AVX2, which says why it is right: lanes that are zero, NaN, infinite or of a magnitude from 2^-110 to
/// 2^111 are rounded to bf16.
#[inline]
#[target_feature(enable = "avx512f")]
fn round_value(value: __m512) -> __m512 {
    let shifted = _mm512_add_epi32(_mm512_castps_si512(value), _mm512_set1_epi32(16 << 23));
    let shifted = _mm512_castsi512_ps(shifted);
    _mm512_add_ps(_mm512_sub_ps(value, shifted), shifted)
}

/// Lanes whose magnitude is 2^-50 or more, or NaN.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn is_operand(value: __m512) -> __mmask16 {
    _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(_mm512_abs_ps(value), _mm512_set1_ps(f32::from_bits(SMALLEST_OPERAND_BITS)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::x86_64::tests::{keeps_infinities, rounds_every_significand};

    /// By [`round_value`] and by [`fused::round_finite`].
    #[target_feature(enable = "avx512f")]
    fn rounded(bits: u32) -> [[f32; 16]; 2] {
        let mut out = [[0.0; 16]; 2];
        // SAFETY: the arrays have sixteen lanes, and this function is compiled for the instructions.
        unsafe {
            let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            let values = _mm512_castsi512_ps(_mm512_add_epi32(lanes, _mm512_set1_epi32(bits.cast_signed())));
            _mm512_storeu_ps(out[0].as_mut_ptr(), round_value(values));
            _mm512_storeu_ps(out[1].as_mut_ptr(), fused::round_finite(values));
        }
        out
    }

    #[test]
    fn every_significand_is_rounded_to_the_nearest_and_ties_to_even() {
        if Avx512::detect().is_some() {
            // SAFETY: AVX-512 was detected.
            rounds_every_significand(|first| unsafe { rounded(first) });
        }
    }

    #[test]
    fn infinities_keep_their_value_unless_rounding_is_for_finite_ones() {
        if Avx512::detect().is_some() {
            // SAFETY: AVX-512 was detected.
            keeps_infinities(|first| unsafe { rounded(first) });
        }
    }
}
