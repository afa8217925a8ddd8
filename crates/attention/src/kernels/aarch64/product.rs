//! Products of whole registers of columns: up to 6 rows times 8 columns, or 2 rows times 16, both chains of a step at once.
//!
//! The sums of both chains fill 24 of 32 registers at most; the others hold the pair of the right-hand operand and values of `x`, which a
//! multiply-add picks from a lane.

use std::arch::aarch64::*;
use std::ops::Range;

use super::{even, from_f16, odd, rounded};
use crate::kernels::{Operand, PANEL, RowState, Rows};

/// Length of the two chains' step along the summed axis.
const STEP: usize = 32;
/// Columns of half a panel, the least that these products take.
const HALF: usize = 8;

/// `V` registers of four columns.
type Columns<const V: usize> = [float32x4_t; V];

/// Where the pairs of a right-hand operand come from.
trait Source: Copy {
    /// Elements `(k, k + 1)` of `4 * V` columns; `k` is even.
    ///
    /// # Safety
    /// Both rows and the columns are inside the operand.
    unsafe fn pair<const V: usize>(self, k: usize, column: usize) -> (Columns<V>, Columns<V>);
    /// Element `k` of `4 * V` columns; `k` is even and `k + 1` may lie outside.
    ///
    /// # Safety
    /// Row `k` and the columns are inside the operand.
    unsafe fn even<const V: usize>(self, k: usize, column: usize) -> Columns<V>;
}

#[derive(Clone, Copy)]
struct Plain(*const f32, usize);
#[derive(Clone, Copy)]
struct Bf16Pairs(*const u32, usize);
#[derive(Clone, Copy)]
struct F16Pairs(*const u32, usize);

impl Source for Plain {
    #[inline(always)]
    unsafe fn pair<const V: usize>(self, k: usize, column: usize) -> (Columns<V>, Columns<V>) {
        // SAFETY: the caller keeps both rows inside.
        unsafe { (self.even(k, column), self.even(k + 1, column)) }
    }
    #[inline(always)]
    unsafe fn even<const V: usize>(self, k: usize, column: usize) -> Columns<V> {
        // SAFETY: the caller keeps the row inside.
        unsafe {
            let from = self.0.add(k * self.1 + column);
            let mut columns = [vdupq_n_f32(0.0); V];
            for (v, columns) in columns.iter_mut().enumerate() {
                *columns = vld1q_f32(from.add(4 * v));
            }
            columns
        }
    }
}

impl Source for Bf16Pairs {
    #[inline(always)]
    unsafe fn pair<const V: usize>(self, k: usize, column: usize) -> (Columns<V>, Columns<V>) {
        // SAFETY: the caller keeps the pair inside.
        unsafe {
            let from = self.0.add(k / 2 * self.1 + column);
            let mut pair = ([vdupq_n_f32(0.0); V], [vdupq_n_f32(0.0); V]);
            for v in 0..V {
                let pairs = vld1q_u32(from.add(4 * v));
                (pair.0[v], pair.1[v]) = (even(pairs), odd(pairs));
            }
            pair
        }
    }
    #[inline(always)]
    unsafe fn even<const V: usize>(self, k: usize, column: usize) -> Columns<V> {
        // SAFETY: the odd half is stored, whatever it holds.
        unsafe { self.pair(k, column).0 }
    }
}

impl Source for F16Pairs {
    #[inline(always)]
    unsafe fn pair<const V: usize>(self, k: usize, column: usize) -> (Columns<V>, Columns<V>) {
        // SAFETY: the caller keeps the pair inside; `V` is even.
        unsafe {
            let mut pair = ([vdupq_n_f32(0.0); V], [vdupq_n_f32(0.0); V]);
            for v in (0..V).step_by(2) {
                let from = self.0.add(k / 2 * self.1 + column + 4 * v);
                let (low, high) = (vld1q_u16(from.cast()), vld1q_u16(from.add(4).cast()));
                let (even, odd) = (from_f16(vuzp1q_u16(low, high)), from_f16(vuzp2q_u16(low, high)));
                (pair.0[v], pair.0[v + 1]) = (operand_of_f16(even[0]), operand_of_f16(even[1]));
                (pair.1[v], pair.1[v + 1]) = (operand_of_f16(odd[0]), operand_of_f16(odd[1]));
            }
            pair
        }
    }
    #[inline(always)]
    unsafe fn even<const V: usize>(self, k: usize, column: usize) -> Columns<V> {
        // SAFETY: the odd half is stored, whatever it holds.
        unsafe { self.pair(k, column).0 }
    }
}

/// Rounds values of f16 to bf16, ties to even. None but zeros is below 2^-50; a NaN, which the conversion made quiet, must not be rounded,
/// or it could overflow into the sign.
#[inline]
#[target_feature(enable = "neon")]
fn operand_of_f16(x: float32x4_t) -> float32x4_t {
    let bits = vreinterpretq_u32_f32(x);
    let kept = vbslq_u32(vceqq_f32(x, x), rounded(bits), bits);
    vreinterpretq_f32_u32(vbicq_u32(kept, vdupq_n_u32(0xffff)))
}

/// Where a product goes: row `r` is stored, or folded with the factors of state `r`.
#[derive(Clone, Copy)]
struct Sink {
    /// Row 0, column 0.
    out: *mut f32,
    stride: usize,
    /// One state for each row; `None` stores.
    states: Option<*const RowState>,
}

impl Sink {
    /// # Safety
    /// `row` and the columns from `column` on are inside the output; there is a state for the row.
    #[inline(always)]
    unsafe fn put<const V: usize>(self, row: usize, column: usize, values: Columns<V>) {
        for (v, mut value) in values.into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe {
                let out = self.out.add(row * self.stride + column + 4 * v);
                if let Some(states) = self.states {
                    let state = &*states.add(row);
                    let taken = vmulq_n_f32(value, state.take);
                    value = vfmaq_n_f32(taken, vld1q_f32(out), state.keep);
                }
                vst1q_f32(out, value);
            }
        }
    }
}

/// `R` rows, from `row` on, times `4 * V` columns, which are `to_column..` of the output.
///
/// # Safety
/// `R` rows of `k.end` elements from row `row` of `a` on, the columns from `column` on in `b`, and room for them in `sink`.
#[inline(always)]
unsafe fn micro<S: Source, const R: usize, const V: usize>(
    a: Rows<'_>,
    b: S,
    k: &Range<usize>,
    (row, column, to_column): (usize, usize, usize),
    sink: Sink,
) {
    // SAFETY: the caller's promise, throughout.
    unsafe {
        let zero = [[vdupq_n_f32(0.0); V]; R];
        let a_rows = a.data.as_ptr().add(row * a.stride);
        let mut total = zero;
        let mut at = k.start;
        while at < k.end {
            let step_end = ((at / STEP + 1) * STEP).min(k.end);
            let (mut even, mut odd) = (zero, zero);
            while at + 1 < step_end {
                let (w_even, w_odd) = b.pair::<V>(at, column);
                for r in 0..R {
                    let x = vld1_f32(a_rows.add(r * a.stride + at));
                    for v in 0..V {
                        even[r][v] = vfmaq_lane_f32::<0>(even[r][v], w_even[v], x);
                        odd[r][v] = vfmaq_lane_f32::<1>(odd[r][v], w_odd[v], x);
                    }
                }
                at += 2;
            }
            if at < step_end {
                let w = b.even::<V>(at, column);
                for (r, even) in even.iter_mut().enumerate() {
                    let x = *a_rows.add(r * a.stride + at);
                    for v in 0..V {
                        even[v] = vfmaq_n_f32(even[v], w[v], x);
                    }
                }
                at += 1;
            }
            for r in 0..R {
                for v in 0..V {
                    total[r][v] = vaddq_f32(total[r][v], vaddq_f32(even[r][v], odd[r][v]));
                }
            }
        }
        for (r, total) in total.into_iter().enumerate() {
            sink.put(row + r, to_column, total);
        }
    }
}

/// All rows times `columns` (8 or 16) columns from `column` on, which are `to_column..` of the output.
///
/// # Safety
/// As [`micro`], for all rows of `a`.
unsafe fn all_rows<S: Source>(
    a: Rows<'_>,
    b: S,
    k: &Range<usize>,
    (column, columns, to_column): (usize, usize, usize),
    sink: Sink,
) {
    let mut row = 0;
    while row < a.rows {
        let rows = (a.rows - row).min(6);
        // SAFETY: the caller's bounds; no arm takes more rows or columns than are left.
        unsafe {
            match rows {
                1 if columns == PANEL => micro::<S, 1, 4>(a, b, k, (row, column, to_column), sink),
                2 if columns == PANEL => micro::<S, 2, 4>(a, b, k, (row, column, to_column), sink),
                _ => {
                    for half in (0..columns).step_by(HALF) {
                        let at = (row, column + half, to_column + half);
                        match rows {
                            1 => micro::<S, 1, 2>(a, b, k, at, sink),
                            2 => micro::<S, 2, 2>(a, b, k, at, sink),
                            3 => micro::<S, 3, 2>(a, b, k, at, sink),
                            4 => micro::<S, 4, 2>(a, b, k, at, sink),
                            5 => micro::<S, 5, 2>(a, b, k, at, sink),
                            _ => micro::<S, 6, 2>(a, b, k, at, sink),
                        }
                    }
                }
            }
        }
        row += rows;
    }
}

/// Whether there is a row, and columns that fill registers.
pub(super) fn is_whole(rows: usize, b: Operand<'_>, columns: &Range<usize>) -> bool {
    let unit = if matches!(b, Operand::Panels { .. }) { PANEL } else { HALF };
    rows > 0 && !columns.is_empty() && columns.start.is_multiple_of(unit) && columns.end.is_multiple_of(unit)
}

/// `a` times `columns` of `b` over `k`, stored, or folded with `states`; only for what [`is_whole`].
pub(super) fn product(
    a: Rows<'_>,
    b: Operand<'_>,
    k: Range<usize>,
    columns: Range<usize>,
    states: Option<&[RowState]>,
    out: &mut [f32],
    out_stride: usize,
) {
    assert!(k.start.is_multiple_of(2), "k starts at {}", k.start);
    assert!((a.rows - 1) * a.stride + k.end <= a.data.len(), "left operand too short");
    assert!((a.rows - 1) * out_stride + columns.end <= out.len(), "output too short");
    assert!(states.is_none_or(|states| states.len() == a.rows), "one state per row");
    b.check(k.end, columns.end);
    let sink = Sink { out: out.as_mut_ptr(), stride: out_stride, states: states.map(<[RowState]>::as_ptr) };
    for column in columns.clone().step_by(PANEL) {
        let width = PANEL.min(columns.end - column);
        let at = (column, width, column);
        // SAFETY: the assertions and `check` cover every row, k and column named here; a panel is `[panel_k][16]`.
        unsafe {
            match b {
                Operand::Panels { data, k: panel_k } => {
                    all_rows(a, Plain(data.as_ptr().add(column * panel_k), PANEL), &k, (0, width, column), sink);
                }
                Operand::F32 { data, stride } => all_rows(a, Plain(data.as_ptr(), stride), &k, at, sink),
                Operand::Bf16 { data, stride } => all_rows(a, Bf16Pairs(data.as_ptr(), stride), &k, at, sink),
                Operand::F16 { data, stride } => all_rows(a, F16Pairs(data.as_ptr(), stride), &k, at, sink),
            }
        }
    }
}
