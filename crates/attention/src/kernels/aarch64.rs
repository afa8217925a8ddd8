//! AArch64: NEON, which every such CPU has; eight lanes in two registers.
//!
//! BFDOT and BFMMLA take no part: they add the products of an even and an odd position to each other first, and round to odd, so their sums are
//! not the contract's.

mod product;

use std::arch::aarch64::*;
use std::arch::asm;
use std::ops::Range;

use super::lanes::{Lanes, Values};
use super::product as any_product;
use super::{Kernels, OPERAND_FLOOR, Operand, RowState, Rows, Softmax, rows, unpack};
use crate::math::Function;

/// Proof that this CPU has NEON: `detect` is the only way to make one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neon(());

impl Neon {
    /// Always there: NEON is part of the base of every AArch64 target that has an operating system.
    pub(crate) fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Self(()))
    }
}

/// Eight lanes in two registers.
#[derive(Debug, Clone, Copy)]
struct Register([float32x4_t; 2]);

macro_rules! register {
    ($($instruction:tt)*) => {
        // SAFETY: a `Register` is named only where [`Neon`] proves the instructions, and no memory is touched.
        unsafe { $($instruction)* }
    };
}

impl Register {
    #[inline(always)]
    fn map(self, f: impl Fn(float32x4_t) -> float32x4_t) -> Self {
        Self([f(self.0[0]), f(self.0[1])])
    }

    #[inline(always)]
    fn map2(self, other: Self, f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> Self {
        Self([f(self.0[0], other.0[0]), f(self.0[1], other.0[1])])
    }
}

impl Values for Register {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        register!(Self([vdupq_n_f32(x); 2]))
    }
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        register!(self.map2(other, |a, b| vaddq_f32(a, b)))
    }
    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        register!(self.map2(other, |a, b| vsubq_f32(a, b)))
    }
    #[inline(always)]
    fn times(self, other: Self) -> Self {
        register!(self.map2(other, |a, b| vmulq_f32(a, b)))
    }
    #[inline(always)]
    fn over(self, other: Self) -> Self {
        register!(self.map2(other, |a, b| vdivq_f32(a, b)))
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        register!(Self([vfmaq_f32(c.0[0], self.0[0], b.0[0]), vfmaq_f32(c.0[1], self.0[1], b.0[1])]))
    }
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        // Not FMAX, which gives NaN where either is.
        register!(self.map2(other, |a, b| vbslq_f32(vcgtq_f32(a, b), a, b)))
    }
    #[inline(always)]
    fn if_less(self, limit: Self, a: Self, b: Self) -> Self {
        let choose = |i: usize| register!(vbslq_f32(vcltq_f32(self.0[i], limit.0[i]), a.0[i], b.0[i]));
        Self([choose(0), choose(1)])
    }
    #[inline(always)]
    fn magnitude(self) -> Self {
        register!(self.map(|x| vabsq_f32(x)))
    }
    #[inline(always)]
    fn with_sign_of(self, sign: Self) -> Self {
        register!(self.map2(sign, |x, sign| vbslq_f32(vdupq_n_u32(0x8000_0000), sign, x)))
    }
    #[inline(always)]
    fn half_power_of_two(self) -> Self {
        register!(self.map(|x| {
            let shifted = vshlq_n_u32::<23>(vreinterpretq_u32_f32(x));
            vreinterpretq_f32_u32(vaddq_u32(shifted, vdupq_n_u32(0x3f00_0000)))
        }))
    }
    #[inline(always)]
    fn bf16_operand(self) -> Self {
        register!(self.map(|x| {
            let bits = vreinterpretq_u32_f32(x);
            let quiet = vorrq_u32(bits, vdupq_n_u32(0x40_0000));
            let kept = vbslq_u32(vceqq_f32(x, x), rounded(bits), quiet);
            let dropped = vcaltq_f32(x, vdupq_n_f32(OPERAND_FLOOR));
            vreinterpretq_f32_u32(vbicq_u32(vbicq_u32(kept, vdupq_n_u32(0xffff)), dropped))
        }))
    }
    #[inline(always)]
    fn bf16_operand_of_number(self) -> Self {
        register!(
            self.map(|x| { vreinterpretq_f32_u32(vbicq_u32(rounded(vreinterpretq_u32_f32(x)), vdupq_n_u32(0xffff))) })
        )
    }
}

impl Lanes for Register {
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller gives 8 readable values.
        Self(unsafe { [vld1q_f32(from), vld1q_f32(from.add(4))] })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller gives 8 writable values.
        unsafe {
            vst1q_f32(to, self.0[0]);
            vst1q_f32(to.add(4), self.0[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(from: *const u32) -> (Self, Self) {
        // SAFETY: the caller gives 8 readable values.
        unsafe {
            let (low, high) = (vld1q_u32(from), vld1q_u32(from.add(4)));
            (Self([even(low), even(high)]), Self([odd(low), odd(high)]))
        }
    }
    #[inline(always)]
    unsafe fn load_f16_pairs(from: *const u32) -> (Self, Self) {
        // SAFETY: the caller gives 8 readable values.
        unsafe {
            let (low, high) = (vld1q_u16(from.cast()), vld1q_u16(from.add(4).cast()));
            (Self(from_f16(vuzp1q_u16(low, high))), Self(from_f16(vuzp2q_u16(low, high))))
        }
    }
}

/// Bits of numbers rounded to bf16, ties to even; the lower half is anything.
#[inline]
#[target_feature(enable = "neon")]
fn rounded(bits: uint32x4_t) -> uint32x4_t {
    // The lowest bit that is kept, moved to the top, is added by the shift.
    let lowest_kept = vshlq_n_u32::<15>(bits);
    vsraq_n_u32::<31>(vaddq_u32(bits, vdupq_n_u32(0x7fff)), lowest_kept)
}

/// Even elements of bf16 pairs.
#[inline]
#[target_feature(enable = "neon")]
fn even(pairs: uint32x4_t) -> float32x4_t {
    vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs))
}

/// Odd elements of bf16 pairs.
#[inline]
#[target_feature(enable = "neon")]
fn odd(pairs: uint32x4_t) -> float32x4_t {
    vreinterpretq_f32_u32(vbicq_u32(pairs, vdupq_n_u32(0xffff)))
}

/// Eight f16 as f32: FCVTL, as every AArch64 CPU has it. The intrinsic of that name takes a type that older compilers do not have.
#[inline]
#[target_feature(enable = "neon")]
fn from_f16(bits: uint16x8_t) -> [float32x4_t; 2] {
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

impl Kernels for Neon {
    fn product(
        self,
        a: Rows<'_>,
        b: Operand<'_>,
        k: Range<usize>,
        columns: Range<usize>,
        out: &mut [f32],
        out_stride: usize,
    ) {
        if !product::is_whole(a.rows, b, &columns) {
            return any_product::product::<Register>(a, b, k, columns, out, out_stride);
        }
        product::product(a, b, k, columns, None, out, out_stride);
    }
    fn product_fold(
        self,
        a: Rows<'_>,
        b: Operand<'_>,
        k: Range<usize>,
        columns: usize,
        states: &[RowState],
        out: &mut [f32],
        out_stride: usize,
    ) {
        if !product::is_whole(a.rows, b, &(0..columns)) {
            return any_product::product_fold::<Register>(a, b, k, columns, states, out, out_stride);
        }
        product::product(a, b, k, 0..columns, Some(states), out, out_stride);
    }
    fn softmax(self, scores: &mut [f32], visible: Range<usize>, how: &Softmax, state: &mut RowState) {
        rows::softmax::<Register>(scores, visible, how, state);
    }
    fn unpack(self, source: Operand<'_>, k: usize, columns: usize, panel_k: usize, panels: &mut [f32]) {
        unpack::unpack::<Register>(source, k, columns, panel_k, panels);
    }
    fn round(self, row: &[f32], out: &mut [f32]) {
        rows::round::<Register>(row, out);
    }
    fn finish(self, accumulated: &[f32], state: RowState, sink: Option<f32>, out: &mut [f32]) {
        rows::finish::<Register>(accumulated, state, sink, out);
    }
    fn map<F: Function>(self, f: F, x: &mut [f32]) {
        rows::map::<Register, F>(f, x);
    }
    fn gate<F: Function>(self, f: F, gate: &mut [f32], up: &[f32]) {
        rows::gate::<Register, F>(f, gate, up);
    }
    fn sum(self, x: &[f32], squares: bool) -> f32 {
        rows::sum::<Register>(x, squares)
    }
}
