//! Panels to pairs of rows of `k`, 8 columns at a time: written once, for whatever takes the pairs.
//!
//! Every product of a factor, a scale and a quant is exact in f32 (at most 24 significant bits), so the fused multiply-adds below round
//! exactly where the definition's separate sum does. Nonzero values of f16 and of formats with f16 scales are at least 2^-24: only bf16 and
//! MXFP4 weights can be below 2^-50. A zero may come out with the other sign than the definition's, which no sum shows.
//!
//! Each step of 32 rows of `k` is unpacked for columns 0 to 8 and then for columns 8 to 16: the sums of both halves at once would not fit in
//! registers. Functions that a [`Pairs`] is handed through must become part of the one that owns it, or its registers would go through memory;
//! a `target_feature` of their own would forbid to insist on that. All functions share one contract: rows `start..start + len` of `k` lie in the panel, whole runs of 32 of them for block
//! formats, and `start` is a multiple of 32.

mod blocks;
mod super_blocks;

use std::arch::aarch64::*;
use std::arch::asm;

use super::{operands, round_bf16};
use crate::WeightType;
use crate::kernels::STEP_PAIRS;
use crate::layout::PANEL;
use crate::number::SMALLEST_OPERAND_BITS;

/// 8 columns of one row of `k`.
pub(super) type Half = [float32x4_t; 2];

/// What takes the pairs. In each half, pairs come in ascending order, counted from the start.
///
/// # Safety
/// All methods are called only in functions compiled for NEON, as all functions of an AArch64 target with an operating system are.
pub(super) trait Pairs {
    /// Values of an even and an odd row of `k`, to be rounded to bf16: zero, NaN with the canonical payload, or at least 2^-50.
    ///
    /// # Safety
    /// See the trait; the pair is inside of what `self` was made for.
    unsafe fn values<const HALF: usize>(&mut self, pair: usize, even: Half, odd: Half);

    /// The same as operands.
    ///
    /// # Safety
    /// As `values`.
    unsafe fn operands<const HALF: usize>(&mut self, pair: usize, even: Half, odd: Half);

    /// A half of a step of 16 pairs, or of what is left of `k`, is complete.
    ///
    /// # Safety
    /// As `values`.
    unsafe fn end_step<const HALF: usize>(&mut self);
}

/// A block format: how a step is unpacked.
trait Format {
    /// Bytes of a panel's block.
    const BYTES: usize;
    /// Steps in it.
    const STEPS: usize;

    /// Hands out half `HALF` of step `step` of a block; its first pair is number `first`.
    ///
    /// # Safety
    /// See the module.
    unsafe fn step<const HALF: usize, P: Pairs>(block: *const u8, step: usize, first: usize, to: &mut P);
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
            WeightType::Q4_0 => steps::<blocks::Q4_0, P>(panel, start, len, to),
            WeightType::Q4_1 => steps::<blocks::Q4_1, P>(panel, start, len, to),
            WeightType::Q5_0 => steps::<blocks::Q5_0, P>(panel, start, len, to),
            WeightType::Q5_1 => steps::<blocks::Q5_1, P>(panel, start, len, to),
            WeightType::Q8_0 => steps::<blocks::Q8_0, P>(panel, start, len, to),
            WeightType::Iq4Nl => steps::<blocks::Iq4Nl, P>(panel, start, len, to),
            WeightType::Mxfp4 => steps::<blocks::Mxfp4, P>(panel, start, len, to),
            WeightType::Q2K => steps::<super_blocks::Q2K, P>(panel, start, len, to),
            WeightType::Q3K => steps::<super_blocks::Q3K, P>(panel, start, len, to),
            WeightType::Q4K => steps::<super_blocks::Q4K, P>(panel, start, len, to),
            WeightType::Q5K => steps::<super_blocks::Q5K, P>(panel, start, len, to),
            WeightType::Q6K => steps::<super_blocks::Q6K, P>(panel, start, len, to),
            WeightType::Iq4Xs => steps::<super_blocks::Iq4Xs, P>(panel, start, len, to),
        }
    }
}

/// # Safety
/// See the module.
#[inline(always)]
unsafe fn steps<F: Format, P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P) {
    for (i, step) in (start / 32..(start + len) / 32).enumerate() {
        let block = panel.wrapping_add(step / F::STEPS * F::BYTES);
        // SAFETY: the caller's promise.
        unsafe {
            F::step::<0, P>(block, step % F::STEPS, i * STEP_PAIRS, to);
            to.end_step::<0>();
            F::step::<1, P>(block, step % F::STEPS, i * STEP_PAIRS, to);
            to.end_step::<1>();
        }
    }
}

/// Rounds to bf16.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn round(values: Half) -> Half {
    [round_bf16(values[0]), round_bf16(values[1])]
}

/// Writes `[k][16]` rounded f32.
struct Floats(*mut f32);

impl Pairs for Floats {
    #[inline(always)]
    unsafe fn values<const HALF: usize>(&mut self, pair: usize, even: Half, odd: Half) {
        // SAFETY: as in [`Pairs`].
        unsafe { self.operands::<HALF>(pair, round(even), round(odd)) };
    }
    #[inline(always)]
    unsafe fn operands<const HALF: usize>(&mut self, pair: usize, even: Half, odd: Half) {
        let to = self.0.wrapping_add(2 * pair * PANEL + 8 * HALF);
        // SAFETY: `floats` has room for every pair.
        unsafe {
            vst1q_f32(to, even[0]);
            vst1q_f32(to.wrapping_add(4), even[1]);
            vst1q_f32(to.wrapping_add(PANEL), odd[0]);
            vst1q_f32(to.wrapping_add(PANEL + 4), odd[1]);
        }
    }
    #[inline(always)]
    unsafe fn end_step<const HALF: usize>(&mut self) {}
}

/// Dequantizes to `[k][16]` rounded f32.
///
/// # Safety
/// See the module; `out` has room.
pub(super) unsafe fn floats(ty: WeightType, panel: *const u8, start: usize, len: usize, out: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe { unpack(ty, panel, start, len, &mut Floats(out)) }
}

/// Half `HALF` of 16 f16.
///
/// # Safety
/// See the module: they are in the panel.
#[inline(always)]
unsafe fn load_f16<const HALF: usize>(from: *const u8) -> Half {
    // SAFETY: the caller's promise.
    unsafe { from_f16(vld1q_u16(from.wrapping_add(16 * HALF).cast())) }
}

/// Eight f16 as f32: FCVTL, as every AArch64 CPU has it. The intrinsic of that name takes a type that older compilers do not have.
#[inline]
#[target_feature(enable = "neon")]
fn from_f16(bits: uint16x8_t) -> Half {
    let (low, high);
    // SAFETY: the two conversions touch no memory and none but their operands.
    unsafe {
        asm!(
            "fcvtl {low:v}.4s, {bits:v}.4h",
            "fcvtl2 {high:v}.4s, {bits:v}.8h",
            low = out(vreg) low,
            high = lateout(vreg) high,
            bits = in(vreg) bits,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    [low, high]
}

/// Half `HALF` of 16 bytes.
///
/// # Safety
/// See the module: they are in the panel.
#[inline(always)]
unsafe fn load_u8<const HALF: usize>(from: *const u8) -> uint8x8_t {
    // SAFETY: the caller's promise.
    unsafe { vld1_u8(from.wrapping_add(8 * HALF)) }
}

/// Low and high nibbles.
#[inline]
#[target_feature(enable = "neon")]
fn nibbles(bytes: uint8x8_t) -> [uint8x8_t; 2] {
    [vand_u8(bytes, vdup_n_u8(15)), vshr_n_u8::<4>(bytes)]
}

/// The two bits of each `k` of a quad.
#[inline]
#[target_feature(enable = "neon")]
fn two_bits(bytes: uint8x8_t) -> [uint8x8_t; 4] {
    let mask = vdup_n_u8(3);
    [
        vand_u8(bytes, mask),
        vand_u8(vshr_n_u8::<2>(bytes), mask),
        vand_u8(vshr_n_u8::<4>(bytes), mask),
        vshr_n_u8::<6>(bytes),
    ]
}

/// Sets bit `AT` of `low` where bit `bit` of `high` is set.
#[inline]
#[target_feature(enable = "neon")]
fn with_high_bit<const AT: u32>(low: uint8x8_t, high: uint8x8_t, bit: usize) -> uint8x8_t {
    let is_set = vtst_u8(high, vdup_n_u8(1 << bit));
    vorr_u8(low, vand_u8(is_set, vdup_n_u8(1 << AT)))
}

/// Signed bytes as f32.
#[inline]
#[target_feature(enable = "neon")]
fn signed(bytes: int8x8_t) -> Half {
    words(vmovl_s8(bytes))
}

/// Unsigned bytes as f32.
#[inline]
#[target_feature(enable = "neon")]
fn unsigned(bytes: uint8x8_t) -> Half {
    // Below 256: as good as signed.
    words(vreinterpretq_s16_u16(vmovl_u8(bytes)))
}

/// Signed 16-bit integers as f32.
#[inline]
#[target_feature(enable = "neon")]
fn words(words: int16x8_t) -> Half {
    [vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))), vcvtq_f32_s32(vmovl_high_s16(words))]
}

/// Signed quants times `scales`.
#[inline]
#[target_feature(enable = "neon")]
fn scaled(quants: int8x8_t, scales: Half) -> Half {
    times(signed(quants), scales)
}

/// Unsigned quants times `scales`, plus `mins`.
#[inline]
#[target_feature(enable = "neon")]
fn affine(quants: uint8x8_t, scales: Half, mins: Half) -> Half {
    fma(unsigned(quants), scales, mins)
}

/// Quants without a sign, centred on `center`.
#[inline]
#[target_feature(enable = "neon")]
fn centred(quants: uint8x8_t, center: i8) -> int8x8_t {
    vsub_s8(vreinterpret_s8_u8(quants), vdup_n_s8(center))
}

/// `a * b`.
#[inline]
#[target_feature(enable = "neon")]
fn times(a: Half, b: Half) -> Half {
    [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])]
}

/// `a * b + c`, rounded once.
#[inline]
#[target_feature(enable = "neon")]
fn fma(a: Half, b: Half, c: Half) -> Half {
    [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])]
}

/// `-a`.
#[inline]
#[target_feature(enable = "neon")]
fn minus(a: Half) -> Half {
    [vnegq_f32(a[0]), vnegq_f32(a[1])]
}

/// Half `HALF` of pair `pair` of a 16-bit type, as words of an even (lower) and an odd element.
///
/// # Safety
/// See the module: an odd `k` is padded to a pair.
#[inline(always)]
unsafe fn load_pairs<const HALF: usize>(panel: *const u8, start: usize, pair: usize) -> [uint16x8_t; 2] {
    let from = panel.wrapping_add((start + 2 * pair) * 2 * PANEL + 32 * HALF);
    // SAFETY: the caller's promise.
    unsafe { [vld1q_u16(from.cast()), vld1q_u16(from.wrapping_add(16).cast())] }
}

/// Even and odd elements of bf16 pairs as operands. Of the 16-bit types only bf16 can be below 2^-50; NaNs are above.
#[inline]
#[target_feature(enable = "neon")]
fn split(words: uint16x8_t) -> (float32x4_t, float32x4_t) {
    const SMALLEST: u16 = (SMALLEST_OPERAND_BITS >> 16) as u16;
    let magnitudes = vandq_u16(words, vdupq_n_u16(0x7fff));
    let kept = vandq_u16(words, vcgeq_u16(magnitudes, vdupq_n_u16(SMALLEST)));
    let pairs = vreinterpretq_u32_u16(kept);
    let odd = vbicq_u32(pairs, vdupq_n_u32(0xffff));
    (vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs)), vreinterpretq_f32_u32(odd))
}

/// # Safety
/// See the module.
#[inline(always)]
unsafe fn bf16<P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P) {
    /// # Safety
    /// See the module.
    #[inline(always)]
    unsafe fn half<const HALF: usize, P: Pairs>(panel: *const u8, start: usize, pair: usize, to: &mut P) {
        // SAFETY: the caller's promise.
        unsafe {
            let [low, high] = load_pairs::<HALF>(panel, start, pair);
            let ((even_low, odd_low), (even_high, odd_high)) = (split(low), split(high));
            to.operands::<HALF>(pair, [even_low, even_high], [odd_low, odd_high]);
        }
    }
    // SAFETY: the caller's promise, throughout.
    unsafe {
        pairs(
            len,
            to,
            |pair, to| half::<0, P>(panel, start, pair, to),
            |pair, to| half::<1, P>(panel, start, pair, to),
        );
    }
}

/// # Safety
/// See the module.
#[inline(always)]
unsafe fn f16<P: Pairs>(panel: *const u8, start: usize, len: usize, to: &mut P) {
    /// # Safety
    /// See the module.
    #[inline(always)]
    unsafe fn half<const HALF: usize, P: Pairs>(panel: *const u8, start: usize, pair: usize, to: &mut P) {
        // SAFETY: the caller's promise.
        unsafe {
            let [low, high] = load_pairs::<HALF>(panel, start, pair);
            to.values::<HALF>(pair, from_f16(vuzp1q_u16(low, high)), from_f16(vuzp2q_u16(low, high)));
        }
    }
    // SAFETY: the caller's promise, throughout.
    unsafe {
        pairs(
            len,
            to,
            |pair, to| half::<0, P>(panel, start, pair, to),
            |pair, to| half::<1, P>(panel, start, pair, to),
        );
    }
}

/// The pairs of a type without blocks, step by step, for both halves in turn.
///
/// # Safety
/// As [`Pairs::end_step`].
#[inline(always)]
unsafe fn pairs<P: Pairs>(len: usize, to: &mut P, first: impl Fn(usize, &mut P), second: impl Fn(usize, &mut P)) {
    let pairs = len.div_ceil(2);
    for at in (0..pairs).step_by(STEP_PAIRS) {
        let step = at..(at + STEP_PAIRS).min(pairs);
        step.clone().for_each(|pair| first(pair, to));
        // SAFETY: the caller's promise.
        unsafe { to.end_step::<0>() };
        step.for_each(|pair| second(pair, to));
        // SAFETY: the caller's promise.
        unsafe { to.end_step::<1>() };
    }
}
