//! Plain Rust: eight lanes as an array.

use std::ops::Range;

use half::f16;

use super::lanes::{Lanes, Values as _};
use super::{Kernels, Operand, RowState, Rows, Softmax, product, rows, unpack};
use crate::math::Function;

/// The instruction set every machine has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scalar;

/// Eight lanes.
type Array8 = [f32; 8];

impl Lanes for Array8 {
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller gives 8 readable values.
        unsafe { from.cast::<[f32; 8]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller gives 8 writable values.
        unsafe { to.cast::<[f32; 8]>().write_unaligned(self) }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(from: *const u32) -> (Self, Self) {
        // SAFETY: the caller gives 8 readable values.
        let pairs = unsafe { from.cast::<[u32; 8]>().read_unaligned() };
        (pairs.map(|p| f32::from_bits(p << 16)), pairs.map(|p| f32::from_bits(p & 0xffff_0000)))
    }
    #[inline(always)]
    unsafe fn load_f16_pairs(from: *const u32) -> (Self, Self) {
        // SAFETY: the caller gives 8 readable pairs.
        let pairs = unsafe { from.cast::<[[f16; 2]; 8]>().read_unaligned() };
        (pairs.map(|p| p[0].to_f32()), pairs.map(|p| p[1].to_f32()))
    }
    /// Where a processor cannot be taken to have an instruction for it, `mul_add` is a call that costs more than all the rest. A product of two
    /// bf16 operands has 16 significant bits and is zero or at least 2^-100, so rounding it to f32 changes nothing unless it is too large for
    /// a finite f32; and then the chain is infinite or NaN from there on.
    #[inline(always)]
    fn fma_of_bf16(self, b: Self, c: Self) -> Self {
        self.times(b).plus(c)
    }
    #[inline(always)]
    fn any_not_finite(self) -> bool {
        self.iter().fold(false, |any, x| any | !x.is_finite())
    }
}

impl Kernels for Scalar {
    fn product(
        self,
        a: Rows<'_>,
        b: Operand<'_>,
        k: Range<usize>,
        columns: Range<usize>,
        out: &mut [f32],
        out_stride: usize,
    ) {
        product::product::<Array8>(a, b, k, columns, out, out_stride);
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
        product::product_fold::<Array8>(a, b, k, columns, states, out, out_stride);
    }
    fn softmax(self, scores: &mut [f32], visible: Range<usize>, how: &Softmax, state: &mut RowState) {
        rows::softmax::<Array8>(scores, visible, how, state);
    }
    fn unpack(self, source: Operand<'_>, k: usize, columns: usize, panel_k: usize, panels: &mut [f32]) {
        unpack::unpack::<Array8>(source, k, columns, panel_k, panels);
    }
    fn round(self, row: &[f32], out: &mut [f32]) {
        rows::round::<Array8>(row, out);
    }
    fn finish(self, accumulated: &[f32], state: RowState, sink: Option<f32>, out: &mut [f32]) {
        rows::finish::<Array8>(accumulated, state, sink, out);
    }
    fn map<F: Function>(self, f: F, x: &mut [f32]) {
        rows::map::<Array8, F>(f, x);
    }
    fn gate<F: Function>(self, f: F, gate: &mut [f32], up: &[f32]) {
        rows::gate::<Array8, F>(f, gate, up);
    }
    fn sum(self, x: &[f32], squares: bool) -> f32 {
        rows::sum::<Array8>(x, squares)
    }
}
