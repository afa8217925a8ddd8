//! AVX-512: products with sixteen columns in one register. What is eight lanes wide by definition stays with AVX2.

use std::arch::x86_64::*;
use std::ops::Range;

use super::Avx2;
use crate::kernels::{Kernels, Operand, PANEL, RowState, Rows, Softmax};
use crate::math::Function;

/// Length of the two chains' step along the summed axis.
const STEP: usize = 32;

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

/// Where the pairs of a right-hand operand come from. Only functions compiled for AVX-512 call these methods: that is the safety argument
/// of every intrinsic below.
trait Source: Copy {
    /// Elements `(k, k + 1)` of 16 columns; `k` is even.
    ///
    /// # Safety
    /// Both rows and the 16 columns are inside the operand; see the trait.
    unsafe fn pair(self, k: usize, column: usize) -> (__m512, __m512);
    /// Element `k` of 16 columns; `k` is even and `k + 1` may lie outside.
    ///
    /// # Safety
    /// Row `k` and the 16 columns are inside the operand; see the trait.
    unsafe fn even(self, k: usize, column: usize) -> __m512;
}

#[derive(Clone, Copy)]
struct Plain(*const f32, usize);
#[derive(Clone, Copy)]
struct Bf16Pairs(*const u32, usize);
#[derive(Clone, Copy)]
struct F16Pairs(*const u32, usize);

impl Source for Plain {
    #[inline(always)]
    unsafe fn pair(self, k: usize, column: usize) -> (__m512, __m512) {
        // SAFETY: the caller keeps both rows inside.
        unsafe { (self.even(k, column), self.even(k + 1, column)) }
    }
    #[inline(always)]
    unsafe fn even(self, k: usize, column: usize) -> __m512 {
        // SAFETY: the caller keeps the row inside.
        unsafe { _mm512_loadu_ps(self.0.add(k * self.1 + column)) }
    }
}

impl Source for Bf16Pairs {
    #[inline(always)]
    unsafe fn pair(self, k: usize, column: usize) -> (__m512, __m512) {
        // SAFETY: the caller keeps the pair inside.
        unsafe {
            let pairs = _mm512_loadu_si512(self.0.add(k / 2 * self.1 + column).cast());
            let even = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs));
            (even, _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-0x1_0000))))
        }
    }
    #[inline(always)]
    unsafe fn even(self, k: usize, column: usize) -> __m512 {
        // SAFETY: the odd half is stored, whatever it holds.
        unsafe { self.pair(k, column).0 }
    }
}

impl Source for F16Pairs {
    #[inline(always)]
    unsafe fn pair(self, k: usize, column: usize) -> (__m512, __m512) {
        // SAFETY: the caller keeps the pair inside.
        unsafe {
            let pairs = _mm512_loadu_si512(self.0.add(k / 2 * self.1 + column).cast());
            let even = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs));
            let odd = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(pairs)));
            (bf16_operand(even), bf16_operand(odd))
        }
    }
    #[inline(always)]
    unsafe fn even(self, k: usize, column: usize) -> __m512 {
        // SAFETY: the odd half is stored, whatever it holds.
        unsafe { self.pair(k, column).0 }
    }
}

/// Rounds f16 values to bf16, ties to even. None but zeros is below 2^-50, and a NaN stays one: its quiet bit is kept.
#[inline(always)]
unsafe fn bf16_operand(x: __m512) -> __m512 {
    // SAFETY: see [`Source`].
    unsafe {
        let bits = _mm512_castps_si512(x);
        let high = _mm512_set1_epi32(-0x1_0000);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
        let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
        _mm512_castsi512_ps(_mm512_and_si512(_mm512_mask_mov_epi32(sum, nan, quiet), high))
    }
}

/// Where a product goes: row `r` of the tile is stored, or folded with the factors of state `r`.
#[derive(Clone, Copy)]
pub(super) struct Sink {
    /// Row 0, column 0.
    pub(super) out: *mut f32,
    pub(super) stride: usize,
    /// One state for each row; `None` stores.
    pub(super) states: Option<*const RowState>,
}

impl Sink {
    /// # Safety
    /// `row` and 16 columns from `column` on are inside the output; there is a state for the row; see [`Source`].
    #[inline(always)]
    pub(super) unsafe fn put(self, row: usize, column: usize, value: __m512) {
        // SAFETY: the caller's promise.
        unsafe {
            let out = self.out.add(row * self.stride + column);
            let value = match self.states {
                None => value,
                Some(states) => {
                    let state = &*states.add(row);
                    let taken = _mm512_mul_ps(value, _mm512_set1_ps(state.take));
                    _mm512_fmadd_ps(_mm512_loadu_ps(out), _mm512_set1_ps(state.keep), taken)
                }
            };
            _mm512_storeu_ps(out, value);
        }
    }
}

/// `R` rows, from `row` on, times 16 columns.
///
/// # Safety
/// `R` rows of `k.end` elements from row `row` of `a` on, 16 columns from `column` on in `b`, and room for them in `sink`; see [`Source`].
#[inline(always)]
unsafe fn micro<S: Source, const R: usize>(
    a: Rows<'_>,
    b: S,
    k: &Range<usize>,
    (row, column, to_column): (usize, usize, usize),
    sink: Sink,
) {
    // SAFETY: the caller's promise, throughout.
    unsafe {
        let zero = _mm512_setzero_ps();
        let a_rows = a.data.as_ptr().add(row * a.stride);
        let mut total = [zero; R];
        let mut at = k.start;
        while at < k.end {
            let step_end = ((at / STEP + 1) * STEP).min(k.end);
            let (mut even, mut odd) = ([zero; R], [zero; R]);
            while at + 1 < step_end {
                let (w_even, w_odd) = b.pair(at, column);
                for r in 0..R {
                    let x = a_rows.add(r * a.stride + at);
                    even[r] = _mm512_fmadd_ps(_mm512_set1_ps(*x), w_even, even[r]);
                    odd[r] = _mm512_fmadd_ps(_mm512_set1_ps(*x.add(1)), w_odd, odd[r]);
                }
                at += 2;
            }
            if at < step_end {
                let w = b.even(at, column);
                for (r, even) in even.iter_mut().enumerate() {
                    *even = _mm512_fmadd_ps(_mm512_set1_ps(*a_rows.add(r * a.stride + at)), w, *even);
                }
                at += 1;
            }
            for r in 0..R {
                total[r] = _mm512_add_ps(total[r], _mm512_add_ps(even[r], odd[r]));
            }
        }
        for (r, total) in total.into_iter().enumerate() {
            sink.put(row + r, to_column, total);
        }
    }
}

/// All rows times 16 columns, which are `to_column..` of the output.
///
/// # Safety
/// As [`micro`], for all rows of `a`.
#[inline(always)]
unsafe fn all_rows<S: Source>(a: Rows<'_>, b: S, k: &Range<usize>, column: usize, to_column: usize, sink: Sink) {
    let mut row = 0;
    while row < a.rows {
        let at = (row, column, to_column);
        // SAFETY: the caller's bounds; the arms take no more rows than are left.
        unsafe {
            row += match a.rows - row {
                8.. => {
                    micro::<S, 8>(a, b, k, at, sink);
                    8
                }
                4.. => {
                    micro::<S, 4>(a, b, k, at, sink);
                    4
                }
                2.. => {
                    micro::<S, 2>(a, b, k, at, sink);
                    2
                }
                _ => {
                    micro::<S, 1>(a, b, k, at, sink);
                    1
                }
            };
        }
    }
}

/// # Safety
/// As [`micro`], for all rows of `a` and all of `columns`, whole sixteens of them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn multiply(a: Rows<'_>, b: Operand<'_>, k: Range<usize>, columns: Range<usize>, sink: Sink) {
    for column in columns.step_by(PANEL) {
        // SAFETY: the caller's promise; a panel is `[panel_k][16]`.
        unsafe {
            match b {
                Operand::Panels { data, k: panel_k } => {
                    let panel = Plain(data.as_ptr().add(column * panel_k), PANEL);
                    all_rows(a, panel, &k, 0, column, sink);
                }
                Operand::F32 { data, stride } => all_rows(a, Plain(data.as_ptr(), stride), &k, column, column, sink),
                Operand::Bf16 { data, stride } => {
                    all_rows(a, Bf16Pairs(data.as_ptr(), stride), &k, column, column, sink);
                }
                Operand::F16 { data, stride } => all_rows(a, F16Pairs(data.as_ptr(), stride), &k, column, column, sink),
            }
        }
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
    fn softmax(self, scores: &mut [f32], visible: Range<usize>, how: &Softmax, state: &mut RowState) {
        self.0.softmax(scores, visible, how, state);
    }
    fn unpack(self, source: Operand<'_>, k: usize, columns: usize, panel_k: usize, panels: &mut [f32]) {
        self.0.unpack(source, k, columns, panel_k, panels);
    }
    fn round(self, row: &[f32], out: &mut [f32]) {
        self.0.round(row, out);
    }
    fn finish(self, accumulated: &[f32], state: RowState, sink: Option<f32>, out: &mut [f32]) {
        self.0.finish(accumulated, state, sink, out);
    }
    fn map<F: Function>(self, f: F, x: &mut [f32]) {
        self.0.map(f, x);
    }
    fn gate<F: Function>(self, f: F, gate: &[f32], up: &[f32], out: &mut [f32]) {
        self.0.gate(f, gate, up, out);
    }
    fn sum(self, x: &[f32], squares: bool) -> f32 {
        self.0.sum(x, squares)
    }
}
