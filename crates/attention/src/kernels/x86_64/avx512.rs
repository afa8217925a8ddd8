//! AVX-512: products with sixteen columns in one register, a softmax of sixteen rows, functions of sixteen values. The sums of a row, eight lanes wide by
//! definition, stay with AVX2.

mod product;
mod rows;

use std::ops::Range;

use super::Avx2;
use crate::kernels::{AHEAD_ROWS, Kernels, Operand, PANEL, RowState, Rows, Softmax};
use crate::math::Function;
use crate::{KvDtype, KvLayout};
pub(super) use product::Sink;
use product::{multiply, multiply_ahead};
pub(super) use rows::{ProbabilityTiles, softmax_rows_to_tiles};

/// Proof that this CPU has AVX-512 F, BW and VL, and what AVX2 needs: `detect` is the only way to make one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512(Avx2);

impl Avx512 {
    /// `None` where a feature is missing.
    pub(crate) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl");
        Avx2::detect().filter(|_| found).map(Self)
    }
}

/// Panics unless rows, `k` and columns are inside the operands and the output.
pub(super) fn check(
    a: Rows<'_>,
    b: Operand<'_>,
    k: &Range<usize>,
    columns: &Range<usize>,
    out: &[f32],
    out_stride: usize,
) {
    assert!(k.start.is_multiple_of(2), "k starts at {}", k.start);
    assert!((a.rows - 1) * a.stride + k.end <= a.data.len(), "left operand too short");
    assert!((a.rows - 1) * out_stride + columns.end <= out.len(), "output too short");
    b.check(k.end, columns.end);
}

/// Whether whole registers of columns are asked for, and any row.
pub(super) fn is_whole(rows: usize, columns: &Range<usize>) -> bool {
    rows > 0 && !columns.is_empty() && columns.start.is_multiple_of(PANEL) && columns.end.is_multiple_of(PANEL)
}

impl Kernels for Avx512 {
    fn reads_pairs(self, layout: &KvLayout) -> bool {
        // The conversion runs beside the multiply-adds. Rows of V so far apart that they share few sets of a cache are unpacked instead.
        layout.dtype == KvDtype::Bf16 && layout.v_head_dim <= 256 && layout.v_head_dim.is_multiple_of(PANEL)
    }
    fn product(
        self,
        a: Rows<'_>,
        b: Operand<'_>,
        k: Range<usize>,
        columns: Range<usize>,
        out: &mut [f32],
        out_stride: usize,
    ) {
        if !is_whole(a.rows, &columns) {
            return self.0.product(a, b, k, columns, out, out_stride);
        }
        check(a, b, &k, &columns, out, out_stride);
        let sink = Sink { out: out.as_mut_ptr(), stride: out_stride, states: None };
        // SAFETY: an `Avx512` exists only after `detect` found the features; `check` covers every row, k and column named here.
        unsafe { multiply(a, b, k, columns, sink) }
    }
    fn product_ahead(
        self,
        a: Rows<'_>,
        b: Operand<'_>,
        k: Range<usize>,
        columns: Range<usize>,
        out: &mut [f32],
        out_stride: usize,
        ahead: &[u8],
    ) {
        if !is_whole(a.rows, &columns) || a.rows > AHEAD_ROWS || ahead.is_empty() {
            self.prefetch(ahead);
            return self.product(a, b, k, columns, out, out_stride);
        }
        check(a, b, &k, &columns, out, out_stride);
        let sink = Sink { out: out.as_mut_ptr(), stride: out_stride, states: None };
        // SAFETY: as in `product`.
        unsafe { multiply_ahead(a, b, k, columns, sink, ahead) }
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
        if !is_whole(a.rows, &(0..columns)) {
            return self.0.product_fold(a, b, k, columns, states, out, out_stride);
        }
        assert_eq!(states.len(), a.rows, "one state per row");
        check(a, b, &k, &(0..columns), out, out_stride);
        let sink = Sink { out: out.as_mut_ptr(), stride: out_stride, states: Some(states.as_ptr()) };
        // SAFETY: as in `product`.
        unsafe { multiply(a, b, k, 0..columns, sink) }
    }
    fn score_columns(self, _rows: usize) -> usize {
        2 * PANEL
    }
    fn softmax(self, scores: &mut [f32], visible: Range<usize>, how: &Softmax, state: &mut RowState) {
        // SAFETY: an `Avx512` exists only after `detect` found the features.
        unsafe { rows::softmax(scores, visible, how, state) }
    }
    fn softmax_whole(self, scores: &mut [f32], how: &Softmax, states: &mut [RowState]) {
        // SAFETY: as in `softmax`.
        unsafe { rows::softmax_whole(scores, how, states) }
    }
    fn fold(self, product: &[f32], state: RowState, out: &mut [f32]) {
        self.0.fold(product, state, out);
    }
    fn prefetch(self, bytes: &[u8]) {
        self.0.prefetch(bytes);
    }
    fn unpack(self, source: Operand<'_>, k: usize, columns: usize, panel_k: usize, panels: &mut [f32]) {
        self.0.unpack(source, k, columns, panel_k, panels);
    }
    fn round(self, row: &[f32], out: &mut [f32]) {
        // SAFETY: as in `softmax`.
        unsafe { rows::round(row, out) }
    }
    fn finish(self, accumulated: &[f32], state: RowState, sink: Option<f32>, out: &mut [f32]) {
        self.0.finish(accumulated, state, sink, out);
    }
    fn map<F: Function>(self, f: F, x: &mut [f32]) {
        // SAFETY: as in `softmax`.
        unsafe { rows::map(f, x) }
    }
    fn gate<F: Function>(self, f: F, gate: &mut [f32], up: &[f32]) {
        // SAFETY: as in `softmax`.
        unsafe { rows::gate(f, gate, up) }
    }
    fn sum(self, x: &[f32], squares: bool) -> f32 {
        self.0.sum(x, squares)
    }
}
