//! AArch64: NEON, which every such CPU has. Outputs sit in lanes, so each lane does what the scalar kernel does for its output.
//!
//! A fused multiply-add of f32 lanes is what the contract says, operand for operand. Dot products and matrix products take no part: BFDOT and
//! BFMMLA add the products of an even and an odd `k` to each other first, and round to odd; SDOT, UDOT and the i8mm instructions multiply
//! integers, of which the contract has none, because block formats become bf16 first.
//!
//! FPCR.FZ may be set or not: no chain of a bf16 product holds a denormal, as [`crate::bf16_operand`] says.

mod fused;
mod tile;
mod unpack;

use std::arch::aarch64::*;

use super::{K_BLOCK, Kernel, Tile};
use crate::WeightType;
use crate::layout::{self, PANEL};
use crate::number::SMALLEST_OPERAND_BITS;

/// Proof that this CPU has NEON: `detect` is the only way to make one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neon(());

impl Neon {
    /// Always there: NEON is part of the base of every AArch64 target that has an operating system.
    pub(crate) fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Self(()))
    }
}

/// Panics unless rows `start..start + len` of `k` lie in `panel` and are whole runs of 32, or whole pairs of a 16-bit type, whose odd end of
/// `k` panels pad.
fn check_panel(ty: WeightType, panel: &[u8], start: usize, len: usize) {
    let elements = ty.block_elements();
    let end = (start + len).next_multiple_of(elements);
    assert!(layout::panel_bytes(ty, end).is_some_and(|bytes| bytes <= panel.len()), "k past the panel");
    assert!(start.is_multiple_of(32) && (elements == 1 || len.is_multiple_of(32)), "partial steps");
}

impl Kernel for Neon {
    const TILE_ROWS: usize = tile::ROWS;

    fn round(self, x: &[f32], out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "lengths differ");
        // SAFETY: a `Neon` exists only after `detect` found the instructions.
        unsafe { round(x, out) }
    }

    fn dequantize(self, ty: WeightType, panel: &[u8], start: usize, len: usize, out: &mut [f32]) {
        check_panel(ty, panel, start, len);
        assert!(len <= K_BLOCK && out.len() >= K_BLOCK * PANEL, "more than a k block");
        // SAFETY: a `Neon` exists only after `detect` found the instructions. The panel was checked, and `out` has room for a k block.
        unsafe { unpack::floats(ty, panel.as_ptr(), start, len, out.as_mut_ptr()) }
    }

    unsafe fn tile(self, tile: &Tile<'_>) {
        tile.check(Self::TILE_ROWS);
        // SAFETY: a `Neon` exists only after `detect` found the instructions; the operands are long enough, as just checked, and the output is the caller's promise.
        unsafe { tile::run(tile) }
    }

    fn fuses(self, ty: WeightType, rows: usize) -> bool {
        ty.multiplies_in_bf16() && rows <= fused::ROWS
    }

    unsafe fn fused(self, ty: WeightType, panel: &[u8], start: usize, tile: &Tile<'_>) {
        tile.check_x(fused::ROWS);
        check_panel(ty, panel, start, 2 * tile.pairs);
        // SAFETY: a `Neon` exists only after `detect` found the instructions; `x` and the panel are long enough, as just checked, and the output is the caller's promise.
        unsafe { fused::run(ty, panel, start, tile) }
    }
}

#[target_feature(enable = "neon")]
fn round(x: &[f32], out: &mut [f32]) {
    let ((from, from_rest), (to, to_rest)) = (x.as_chunks::<4>(), out.as_chunks_mut::<4>());
    for (x, out) in from.iter().zip(to) {
        // SAFETY: both arrays have four floats.
        unsafe {
            let value = vld1q_f32(x.as_ptr());
            let rounded = vbslq_f32(vceqq_f32(value, value), round_bf16(value), vdupq_n_f32(f32::NAN));
            vst1q_f32(out.as_mut_ptr(), operands(value, rounded));
        }
    }
    for (out, &x) in to_rest.iter_mut().zip(from_rest) {
        *out = crate::bf16_operand(x);
    }
}

/// Rounds lanes to bf16, ties to even. NaNs must be canonical (of either sign).
#[inline]
#[target_feature(enable = "neon")]
fn round_bf16(value: float32x4_t) -> float32x4_t {
    let bits = vreinterpretq_u32_f32(value);
    // The lowest bit that is kept, moved to the top, is added by the shift.
    let lowest_kept = vshlq_n_u32::<15>(bits);
    let rounded = vsraq_n_u32::<31>(vaddq_u32(bits, vdupq_n_u32(0x7fff)), lowest_kept);
    vreinterpretq_f32_u32(vbicq_u32(rounded, vdupq_n_u32(0xffff)))
}

/// `rounded`, or +0 where the magnitude of `value` is below 2^-50; a NaN is not.
#[inline]
#[target_feature(enable = "neon")]
fn operands(value: float32x4_t, rounded: float32x4_t) -> float32x4_t {
    let dropped = vcaltq_f32(value, vdupq_n_f32(f32::from_bits(SMALLEST_OPERAND_BITS)));
    vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(rounded), dropped))
}
