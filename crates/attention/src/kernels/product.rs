//! Products in the contract's order: steps of 32 along the summed axis, an even and an odd chain in each.

use std::ops::Range;

use super::lanes::{Lanes, Values};
use super::source::{Bf16Pairs, F16Pairs, Plain, Source};
use super::{Operand, PANEL, RowState, Rows};

/// Length of the two chains' step along the summed axis.
const STEP: usize = 32;

/// Where a product goes.
trait Sink: Copy {
    /// # Safety
    /// `out` has room for 8 values, `row` is a row of the operand.
    unsafe fn put<L: Lanes>(self, row: usize, out: *mut f32, value: L);
    /// # Safety
    /// As `put`, for one value.
    unsafe fn put_one(self, row: usize, out: *mut f32, value: f32);
}

#[derive(Clone, Copy)]
struct Store;
#[derive(Clone, Copy)]
struct Fold(*const RowState);

impl Sink for Store {
    #[inline(always)]
    unsafe fn put<L: Lanes>(self, _: usize, out: *mut f32, value: L) {
        // SAFETY: the caller gives room for 8 values.
        unsafe { value.store(out) }
    }
    #[inline(always)]
    unsafe fn put_one(self, _: usize, out: *mut f32, value: f32) {
        // SAFETY: the caller gives room for one value.
        unsafe { *out = value }
    }
}

impl Sink for Fold {
    #[inline(always)]
    unsafe fn put<L: Lanes>(self, row: usize, out: *mut f32, value: L) {
        // SAFETY: one state per row, room for 8 values.
        unsafe {
            let state = &*self.0.add(row);
            let taken = value.times(L::splat(state.take));
            L::load(out).fma(L::splat(state.keep), taken).store(out);
        }
    }
    #[inline(always)]
    unsafe fn put_one(self, row: usize, out: *mut f32, value: f32) {
        // SAFETY: one state per row, room for one value.
        unsafe {
            let state = &*self.0.add(row);
            *out = (*out).fma(state.keep, value * state.take);
        }
    }
}

/// `R` rows times `C` registers of columns; `a` points at the first row.
///
/// # Safety
/// `R` rows of `k.end` elements at `a`, `8 * C` columns from `column` on in `b`, room for them at `out`.
#[inline(always)]
unsafe fn micro<L: Lanes, S: Source, W: Sink, const R: usize, const C: usize>(
    (a, a_stride): (*const f32, usize),
    b: S,
    k: &Range<usize>,
    column: usize,
    (sink, row): (W, usize),
    (out, out_stride): (*mut f32, usize),
) {
    // SAFETY: the caller's rows and columns.
    let mut total = unsafe { totals::<L, S, R, C, false>((a, a_stride), b, k, column) };
    if S::IS_BF16 && total.iter().flatten().fold(false, |any, sum| any | sum.any_not_finite()) {
        // SAFETY: as above.
        total = unsafe { totals::<L, S, R, C, true>((a, a_stride), b, k, column) };
    }
    for (r, total) in total.into_iter().enumerate() {
        for (c, total) in total.into_iter().enumerate() {
            // SAFETY: the caller gives room for these columns.
            unsafe { sink.put(row + r, out.add(r * out_stride + column + 8 * c), total) };
        }
    }
}

/// The sums of [`micro`]; `FUSED` if [`Lanes::fma_of_bf16`] will not do.
///
/// # Safety
/// As [`micro`], but for `out`.
#[expect(clippy::needless_range_loop, reason = "the same index runs over several register tiles")]
#[inline(always)]
unsafe fn totals<L: Lanes, S: Source, const R: usize, const C: usize, const FUSED: bool>(
    (a, a_stride): (*const f32, usize),
    b: S,
    k: &Range<usize>,
    column: usize,
) -> [[L; C]; R] {
    let zero = L::splat(0.0);
    let mut total = [[zero; C]; R];
    let mut at = k.start;
    while at < k.end {
        let step_end = ((at / STEP + 1) * STEP).min(k.end);
        let (mut even, mut odd) = ([[zero; C]; R], [[zero; C]; R]);
        while at + 1 < step_end {
            let mut right = [(zero, zero); C];
            for (c, pair) in right.iter_mut().enumerate() {
                // SAFETY: `at + 1 < k.end`, and the caller's columns.
                *pair = unsafe { b.pair::<L>(at, column + 8 * c) };
            }
            for r in 0..R {
                // SAFETY: row `r` holds `k.end` elements.
                let (x, y) = unsafe {
                    let x = a.add(r * a_stride + at);
                    (L::splat(*x), L::splat(*x.add(1)))
                };
                for c in 0..C {
                    even[r][c] = multiply_add::<L, S, FUSED>(x, right[c].0, even[r][c]);
                    odd[r][c] = multiply_add::<L, S, FUSED>(y, right[c].1, odd[r][c]);
                }
            }
            at += 2;
        }
        if at < step_end {
            for c in 0..C {
                // SAFETY: `at < k.end`, and the caller's columns.
                let right = unsafe { b.even::<L>(at, column + 8 * c) };
                for r in 0..R {
                    // SAFETY: row `r` holds `k.end` elements.
                    let x = L::splat(unsafe { *a.add(r * a_stride + at) });
                    even[r][c] = multiply_add::<L, S, FUSED>(x, right, even[r][c]);
                }
            }
            at += 1;
        }
        for r in 0..R {
            for c in 0..C {
                total[r][c] = total[r][c].plus(even[r][c].plus(odd[r][c]));
            }
        }
    }
    total
}

#[inline(always)]
fn multiply_add<L: Lanes, S: Source, const FUSED: bool>(x: L, right: L, chain: L) -> L {
    if S::IS_BF16 && !FUSED { x.fma_of_bf16(right, chain) } else { x.fma(right, chain) }
}

/// One element by the contract's order, for columns that do not fill a register.
///
/// # Safety
/// As [`micro`], for one row and one column.
#[inline(always)]
unsafe fn single<S: Source>(a: *const f32, b: S, k: &Range<usize>, column: usize) -> f32 {
    let mut total = 0.0;
    let mut at = k.start;
    while at < k.end {
        let step_end = ((at / STEP + 1) * STEP).min(k.end);
        let mut chains = [0.0f32; 2];
        while at < step_end {
            // SAFETY: the caller's bounds.
            let (x, w) = unsafe { (*a.add(at), b.element(at, column)) };
            chains[at % 2] = x.fma(w, chains[at % 2]);
            at += 1;
        }
        total += chains[0] + chains[1];
    }
    total
}

/// All rows times `columns` of one source; `out` points at column 0 of the first row.
///
/// # Safety
/// Every row has `k.end` elements, the source and `out` have the columns.
#[inline(always)]
unsafe fn all_rows<L: Lanes, S: Source, W: Sink>(
    a: Rows<'_>,
    b: S,
    k: &Range<usize>,
    columns: Range<usize>,
    sink: W,
    (out, out_stride): (*mut f32, usize),
) {
    let mut column = columns.start;
    while column < columns.end {
        let width = match columns.end - column {
            // Two registers of columns, as many chains and what a pair is taken apart into are too much for sixteen registers.
            PANEL.. if !S::IS_PAIRS || a.rows < 3 => 16,
            8.. => 8,
            rest => rest,
        };
        let mut row = 0;
        while row < a.rows {
            let left = a.rows - row;
            // SAFETY: `row < a.rows`.
            let from = (unsafe { a.data.as_ptr().add(row * a.stride) }, a.stride);
            // SAFETY: as above.
            let to = (unsafe { out.add(row * out_stride) }, out_stride);
            // SAFETY: the caller's bounds, and the arms take no more rows or columns than are left.
            unsafe {
                row += match (width, left) {
                    (16, 3..) => {
                        micro::<L, S, W, 3, 2>(from, b, k, column, (sink, row), to);
                        3
                    }
                    (16, 2) => {
                        micro::<L, S, W, 2, 2>(from, b, k, column, (sink, row), to);
                        2
                    }
                    (16, _) => {
                        micro::<L, S, W, 1, 2>(from, b, k, column, (sink, row), to);
                        1
                    }
                    (8, 4..) => {
                        micro::<L, S, W, 4, 1>(from, b, k, column, (sink, row), to);
                        4
                    }
                    (8, 3) => {
                        micro::<L, S, W, 3, 1>(from, b, k, column, (sink, row), to);
                        3
                    }
                    (8, 2) => {
                        micro::<L, S, W, 2, 1>(from, b, k, column, (sink, row), to);
                        2
                    }
                    (8, _) => {
                        micro::<L, S, W, 1, 1>(from, b, k, column, (sink, row), to);
                        1
                    }
                    _ => {
                        for c in column..column + width {
                            sink.put_one(row, to.0.add(c), single(from.0, b, k, c));
                        }
                        1
                    }
                };
            }
        }
        column += width;
    }
}

#[inline(always)]
fn multiply<L: Lanes, W: Sink>(
    a: Rows<'_>,
    b: Operand<'_>,
    k: Range<usize>,
    columns: Range<usize>,
    sink: W,
    out: &mut [f32],
    out_stride: usize,
) {
    if a.rows == 0 || columns.is_empty() {
        return;
    }
    assert!(k.start.is_multiple_of(2), "k starts at {}", k.start);
    assert!((a.rows - 1) * a.stride + k.end <= a.data.len(), "left operand too short");
    assert!((a.rows - 1) * out_stride + columns.end <= out.len(), "output too short");
    b.check(k.end, columns.end);
    let to = (out.as_mut_ptr(), out_stride);
    // SAFETY: the assertions and `check` cover every row, k and column named here.
    unsafe {
        match b {
            Operand::Panels { data, k: panel_k } => {
                for panel in columns.start / PANEL..columns.end / PANEL {
                    let source = Plain::<true>(data.as_ptr().add(panel * panel_k * PANEL), PANEL);
                    let to = (to.0.add(panel * PANEL), out_stride);
                    all_rows::<L, _, _>(a, source, &k, 0..PANEL, sink, to);
                }
            }
            Operand::F32 { data, stride } => {
                all_rows::<L, _, _>(a, Plain::<false>(data.as_ptr(), stride), &k, columns, sink, to)
            }
            Operand::Bf16 { data, stride } => {
                all_rows::<L, _, _>(a, Bf16Pairs(data.as_ptr(), stride), &k, columns, sink, to)
            }
            Operand::F16 { data, stride } => {
                all_rows::<L, _, _>(a, F16Pairs(data.as_ptr(), stride), &k, columns, sink, to)
            }
        }
    }
}

#[inline(always)]
pub(super) fn product<L: Lanes>(
    a: Rows<'_>,
    b: Operand<'_>,
    k: Range<usize>,
    columns: Range<usize>,
    out: &mut [f32],
    out_stride: usize,
) {
    multiply::<L, Store>(a, b, k, columns, Store, out, out_stride);
}

#[inline(always)]
pub(super) fn product_fold<L: Lanes>(
    a: Rows<'_>,
    b: Operand<'_>,
    k: Range<usize>,
    columns: usize,
    states: &[RowState],
    out: &mut [f32],
    out_stride: usize,
) {
    assert_eq!(states.len(), a.rows, "one state per row");
    multiply::<L, Fold>(a, b, k, 0..columns, Fold(states.as_ptr()), out, out_stride);
}
