//! Products with sixteen columns in one register.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::kernels::{LINE, Operand, PANEL, RowState, Rows};

/// Length of the two chains' step along the summed axis.
const STEP: usize = 32;

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

/// f32 rows some elements apart.
#[derive(Clone, Copy)]
struct Plain(*const f32, usize);
/// f32 panels of 16 columns, with so many rows each.
#[derive(Clone, Copy)]
struct Panels(*const f32, usize);
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

impl Source for Panels {
    #[inline(always)]
    unsafe fn pair(self, k: usize, column: usize) -> (__m512, __m512) {
        // SAFETY: the caller keeps both rows inside.
        unsafe { (self.even(k, column), self.even(k + 1, column)) }
    }
    #[inline(always)]
    unsafe fn even(self, k: usize, column: usize) -> __m512 {
        // SAFETY: the caller keeps the row inside; the panels before this one have `16 * self.1` elements each.
        unsafe { _mm512_loadu_ps(self.0.add(column * self.1 + k * PANEL)) }
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
pub(in super::super) struct Sink {
    /// Row 0, column 0.
    pub(in super::super) out: *mut f32,
    pub(in super::super) stride: usize,
    /// One state for each row; `None` stores.
    pub(in super::super) states: Option<*const RowState>,
}

impl Sink {
    /// # Safety
    /// `row` and 16 columns from `column` on are inside the output; there is a state for the row; see [`Source`].
    #[inline(always)]
    pub(in super::super) unsafe fn put(self, row: usize, column: usize, value: __m512) {
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

/// What is asked for in the course of a product: a pair of rows of 16 columns is one line, and with each a line that comes later. All at once,
/// they would wait for each other, and the product for them.
trait Ahead {
    /// As many lines as this.
    fn fetch(&mut self, lines: usize);
}

struct Nothing;

/// Lines from the first pointer to before the second.
struct Lines(*const u8, *const u8);

impl Ahead for Nothing {
    #[inline(always)]
    fn fetch(&mut self, _: usize) {}
}

impl Ahead for Lines {
    #[inline(always)]
    fn fetch(&mut self, lines: usize) {
        for _ in 0..lines {
            if self.0 < self.1 {
                // SAFETY: every x86-64 CPU has SSE; a prefetch reads nothing that a program can see.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(self.0.cast()) };
                self.0 = self.0.wrapping_add(LINE);
            }
        }
    }
}

/// `R` rows, from `row` on, times `16 * C` columns.
///
/// # Safety
/// `R` rows of `k.end` elements from row `row` of `a` on, `16 * C` columns from `column` on in `b` and in `sink`; see [`Source`].
#[expect(clippy::needless_range_loop, reason = "the same index runs over several register tiles")]
#[inline(always)]
unsafe fn micro<S: Source, const R: usize, const C: usize>(
    a: Rows<'_>,
    b: S,
    k: &Range<usize>,
    (row, column): (usize, usize),
    sink: Sink,
    ahead: &mut impl Ahead,
) {
    // SAFETY: the caller's promise, throughout.
    unsafe {
        let zero = _mm512_setzero_ps();
        let a_rows = a.data.as_ptr().add(row * a.stride);
        let mut total = [[zero; C]; R];
        let mut at = k.start;
        while at < k.end {
            let step_end = ((at / STEP + 1) * STEP).min(k.end);
            let (mut even, mut odd) = ([[zero; C]; R], [[zero; C]; R]);
            while at + 1 < step_end {
                ahead.fetch(C);
                let mut right = [(zero, zero); C];
                for c in 0..C {
                    right[c] = b.pair(at, column + 16 * c);
                }
                for r in 0..R {
                    let x = a_rows.add(r * a.stride + at);
                    let (x, y) = (_mm512_set1_ps(*x), _mm512_set1_ps(*x.add(1)));
                    for c in 0..C {
                        even[r][c] = _mm512_fmadd_ps(x, right[c].0, even[r][c]);
                        odd[r][c] = _mm512_fmadd_ps(y, right[c].1, odd[r][c]);
                    }
                }
                at += 2;
            }
            if at < step_end {
                for c in 0..C {
                    let right = b.even(at, column + 16 * c);
                    for r in 0..R {
                        let x = _mm512_set1_ps(*a_rows.add(r * a.stride + at));
                        even[r][c] = _mm512_fmadd_ps(x, right, even[r][c]);
                    }
                }
                at += 1;
            }
            for r in 0..R {
                for c in 0..C {
                    total[r][c] = _mm512_add_ps(total[r][c], _mm512_add_ps(even[r][c], odd[r][c]));
                }
            }
        }
        for r in 0..R {
            for c in 0..C {
                sink.put(row + r, column + 16 * c, total[r][c]);
            }
        }
    }
}

/// All rows times `16 * C` columns from `column` on.
///
/// # Safety
/// As [`micro`], for all rows of `a`.
#[inline(always)]
unsafe fn all_rows<S: Source, const C: usize>(
    a: Rows<'_>,
    b: S,
    k: &Range<usize>,
    column: usize,
    sink: Sink,
    ahead: &mut impl Ahead,
) {
    let mut row = 0;
    while row < a.rows {
        let at = (row, column);
        // SAFETY: the caller's bounds; the arms take no more rows than are left.
        unsafe {
            row += match a.rows - row {
                4.. => {
                    micro::<S, 4, C>(a, b, k, at, sink, ahead);
                    4
                }
                3 => {
                    micro::<S, 3, C>(a, b, k, at, sink, ahead);
                    3
                }
                2 => {
                    micro::<S, 2, C>(a, b, k, at, sink, ahead);
                    2
                }
                _ => {
                    micro::<S, 1, C>(a, b, k, at, sink, ahead);
                    1
                }
            };
        }
    }
}

/// # Safety
/// As [`all_rows`], for all of `columns`, whole sixteens of them.
#[inline(always)]
unsafe fn all_columns<S: Source>(
    a: Rows<'_>,
    b: S,
    k: &Range<usize>,
    columns: Range<usize>,
    sink: Sink,
    ahead: &mut impl Ahead,
) {
    let mut column = columns.start;
    while column < columns.end {
        // SAFETY: the caller's bounds; no more columns are taken than are left.
        unsafe {
            if columns.end - column >= 2 * PANEL {
                all_rows::<S, 2>(a, b, k, column, sink, ahead);
                column += 2 * PANEL;
            } else {
                all_rows::<S, 1>(a, b, k, column, sink, ahead);
                column += PANEL;
            }
        }
    }
}

/// # Safety
/// Every row of `a` has `k.end` elements; `b` and `sink` have the columns, whole sixteens of them; the CPU has AVX-512 F, BW and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn multiply(a: Rows<'_>, b: Operand<'_>, k: Range<usize>, columns: Range<usize>, sink: Sink) {
    // SAFETY: the caller's promise.
    unsafe { multiply_and(a, b, &k, columns, sink, &mut Nothing) }
}

/// As [`multiply`], and asks for the bytes `ahead`.
///
/// # Safety
/// As [`multiply`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn multiply_ahead(
    a: Rows<'_>,
    b: Operand<'_>,
    k: Range<usize>,
    columns: Range<usize>,
    sink: Sink,
    ahead: &[u8],
) {
    let Range { start, end } = ahead.as_ptr_range();
    let mut lines = Lines(start, end);
    // SAFETY: the caller's promise.
    unsafe { multiply_and(a, b, &k, columns, sink, &mut lines) }
    // What a product that reads less has left.
    while lines.0 < lines.1 {
        lines.fetch(1);
    }
}

/// # Safety
/// As [`multiply`]; only in functions compiled for AVX-512.
#[inline(always)]
unsafe fn multiply_and(
    a: Rows<'_>,
    b: Operand<'_>,
    k: &Range<usize>,
    columns: Range<usize>,
    sink: Sink,
    ahead: &mut impl Ahead,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match b {
            Operand::Panels { data, k: panel_k } => {
                all_columns(a, Panels(data.as_ptr(), panel_k), k, columns, sink, ahead)
            }
            Operand::F32 { data, stride } => all_columns(a, Plain(data.as_ptr(), stride), k, columns, sink, ahead),
            Operand::Bf16 { data, stride } => all_columns(a, Bf16Pairs(data.as_ptr(), stride), k, columns, sink, ahead),
            Operand::F16 { data, stride } => all_columns(a, F16Pairs(data.as_ptr(), stride), k, columns, sink, ahead),
        }
    }
}
