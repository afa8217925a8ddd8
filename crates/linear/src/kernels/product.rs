//! Cuts a product into work items and runs them on several tasks.
//!
//! An item is a rectangle of one output: some panels of columns times a range of rows. Each of its outputs is summed
//! over all of `k` by the task that took the item, so cutting never changes a bit.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{K_BLOCK, Kernel, STEP_PAIRS, TILE_ROWS, Tile};
use crate::PackedWeight;
use crate::layout::PANEL;

/// Items per task: enough that a task that is late costs little.
const ITEMS_PER_TASK: usize = 8;
/// Rows of an item, unless there are too few panels: rows times [`K_BLOCK`] operands should stay in the second-level cache.
const ITEM_ROWS: usize = 32 * TILE_ROWS;
/// Bytes of `x` that stay in the second-level cache whatever the order of the loops.
const RESIDENT_X_BYTES: usize = 64 << 10;
/// Fewest rows of an item: below, dequantizing a panel costs more than multiplying with it.
const MIN_ITEM_ROWS: usize = 8 * TILE_ROWS;
/// Multiply-adds below which a second task costs more than it saves.
const INLINE_WORK: usize = 1 << 16;

/// Operands of `x`, ready to multiply: row `r` begins at `data[r * stride]`, padded with a zero if `k` is odd.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) stride: usize,
}

/// One weight of the product and its output, `[rows, out_features]`.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    weight: &'a PackedWeight,
    bias: Option<&'a [f32]>,
    x: Operand<'a>,
    out: SharedOut<'a>,
}

impl<'a> Part<'a> {
    pub(crate) fn new(weight: &'a PackedWeight, bias: Option<&'a [f32]>, x: Operand<'a>, out: &'a mut [f32]) -> Self {
        Self { weight, bias, x, out: SharedOut::new(out) }
    }
}

/// An output that several tasks write, each its own tiles.
#[derive(Debug, Clone, Copy)]
struct SharedOut<'a> {
    start: *mut f32,
    len: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: it stands for a `&mut [f32]`, and `run` (unsafe) asks that no two tasks touch the same elements.
unsafe impl Send for SharedOut<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedOut<'_> {}

impl<'a> SharedOut<'a> {
    fn new(out: &'a mut [f32]) -> Self {
        Self { start: out.as_mut_ptr(), len: out.len(), borrow: PhantomData }
    }

    /// The element at `start`, of which `len` follow.
    fn row(&self, start: usize, len: usize) -> *mut f32 {
        assert!(start + len <= self.len, "a tile leaves the output");
        self.start.wrapping_add(start)
    }

    /// # Safety
    /// While the result lives, no other reference to these elements may exist, in any thread.
    #[expect(clippy::mut_from_ref, reason = "the caller vouches that tiles are disjoint")]
    unsafe fn slice(&self, start: usize, len: usize) -> &mut [f32] {
        // SAFETY: in bounds of the borrowed slice, as `row` checks, and exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.row(start, len), len) }
    }
}

/// A product of `rows` rows with several weights, cut into items.
#[derive(Debug)]
pub(crate) struct Product<'a> {
    parts: &'a [Option<Part<'a>>],
    rows: usize,
    in_features: usize,
    panels: usize,
    item_panels: usize,
    item_rows: usize,
}

impl<'a> Product<'a> {
    /// `parts` are all present up to the first `None`.
    pub(crate) fn new(parts: &'a [Option<Part<'a>>], rows: usize, in_features: usize, threads: usize) -> Self {
        let panels: usize = parts.iter().flatten().map(|part| part.weight.panels()).sum();
        let wanted = if threads == 1 { 1 } else { threads * ITEMS_PER_TASK };
        let row_ranges = rows.div_ceil(ITEM_ROWS).max(wanted.div_ceil(panels.max(1)).min(rows / MIN_ITEM_ROWS)).max(1);
        let item_rows = rows.div_ceil(row_ranges).next_multiple_of(TILE_ROWS);
        let item_panels = (panels * row_ranges / wanted).clamp(1, panels.max(1));
        Self { parts, rows, in_features, panels, item_panels, item_rows }
    }

    fn items(&self) -> usize {
        self.panels.div_ceil(self.item_panels) * self.rows.div_ceil(self.item_rows)
    }

    /// Runs all items on at most `scratch.len() / (K_BLOCK * PANEL)` tasks, or one if the work is small; every task
    /// dequantizes into its own `[K_BLOCK][16]` slice of `scratch`.
    pub(crate) fn run<K: Kernel>(&self, kernel: K, threads: usize, scratch: &mut [f32]) {
        let next = AtomicUsize::new(0);
        let task = |scratch: &mut [f32]| {
            loop {
                let item = next.fetch_add(1, Ordering::Relaxed);
                if item >= self.items() {
                    return;
                }
                // SAFETY: the counter gives each item to one task once, and items are disjoint rectangles.
                unsafe { self.run_item(kernel, item, scratch) };
            }
        };
        let work = self.rows.saturating_mul(self.in_features).saturating_mul(self.panels * PANEL);
        let tasks = if work < INLINE_WORK { 1 } else { threads.min(self.items()) };
        let slice = scratch.len() / threads.max(1);
        let (own, mut rest) = scratch.split_at_mut(slice);
        if tasks <= 1 {
            return task(own);
        }
        rayon::in_place_scope(|scope| {
            for _ in 1..tasks {
                let (scratch, others) = rest.split_at_mut(slice);
                rest = others;
                let task = &task;
                scope.spawn(move |_| task(scratch));
            }
            task(own);
        });
    }

    /// # Safety
    /// No other call with the same `item` may run at the same time.
    unsafe fn run_item<K: Kernel>(&self, kernel: K, item: usize, scratch: &mut [f32]) {
        let row_ranges = self.rows.div_ceil(self.item_rows);
        let first_row = item % row_ranges * self.item_rows;
        let rows = first_row..(first_row + self.item_rows).min(self.rows);
        let first_panel = item / row_ranges * self.item_panels;
        let panels = first_panel..(first_panel + self.item_panels).min(self.panels);
        // Many rows: all panels take their turn on one block of `k`, so its slice of `x` stays in the second-level cache.
        // Few rows: all of `x` stays anyway, and each panel streams from memory in one go.
        let x_bytes = rows.len() * self.in_features * size_of::<f32>();
        let together = if x_bytes <= RESIDENT_X_BYTES { 1 } else { panels.len() };
        // Equal blocks of whole steps: a short last block would spend its time on loading and storing sums. Block formats
        // of 256 elements always get whole blocks.
        let k = self.in_features;
        let k_block = k.div_ceil(k.div_ceil(K_BLOCK)).next_multiple_of(2 * STEP_PAIRS);
        for first_panel in panels.clone().step_by(together) {
            for start in (0..k).step_by(k_block) {
                let block = start..(start + k_block).min(k);
                for panel in first_panel..(first_panel + together).min(panels.end) {
                    let (part, panel) = self.find(panel);
                    // SAFETY: another panel or another range of rows in every other item.
                    unsafe { self.run_panel(kernel, part, panel, block.clone(), rows.clone(), scratch) };
                }
            }
        }
    }

    /// The part that the `panel`th panel of the product belongs to, and its index there.
    fn find(&self, mut panel: usize) -> (&Part<'a>, usize) {
        for part in self.parts.iter().flatten() {
            if panel < part.weight.panels() {
                return (part, panel);
            }
            panel -= part.weight.panels();
        }
        unreachable!("a panel past the last part")
    }

    /// One panel and one block of `k`, for a range of rows.
    ///
    /// # Safety
    /// No other call with the same part, panel and an overlapping range of rows may run at the same time.
    unsafe fn run_panel<K: Kernel>(
        &self,
        kernel: K,
        part: &Part<'_>,
        panel_index: usize,
        block: Range<usize>,
        rows: Range<usize>,
        scratch: &mut [f32],
    ) {
        let (weight, x, start) = (part.weight, part.x, block.start);
        let panel = weight.panel(panel_index);
        let first_column = panel_index * PANEL;
        let columns = PANEL.min(weight.out_features() - first_column);
        let pairs = block.len().div_ceil(2);
        let w = if weight.weight_type().multiplies_in_bf16() {
            kernel.dequantize(weight.weight_type(), panel, start, block.len(), scratch);
            &scratch[..2 * pairs * PANEL]
        } else {
            &bytemuck::cast_slice(panel)[start * PANEL..][..2 * pairs * PANEL]
        };
        let mut bias = [0.0; PANEL];
        if let Some(values) = part.bias {
            bias[..columns].copy_from_slice(&values[first_column..][..columns]);
        }
        let last = block.end == self.in_features;
        let mut edge = [0.0; TILE_ROWS * PANEL];
        for row in rows.clone().step_by(TILE_ROWS) {
            let at = row * weight.out_features() + first_column;
            let mut tile = Tile {
                x: &x.data[row * x.stride + start..],
                x_stride: x.stride,
                rows: TILE_ROWS.min(rows.end - row),
                w,
                pairs,
                out: edge.as_mut_ptr(),
                out_stride: PANEL,
                first: start == 0,
                bias: last.then_some(&bias),
            };
            if columns == PANEL {
                tile.out = part.out.row(at, (tile.rows - 1) * weight.out_features() + PANEL);
                tile.out_stride = weight.out_features();
                // SAFETY: the rows of this panel are this call's alone.
                unsafe { kernel.tile(&tile) };
                continue;
            }
            // A last panel that is not full goes through a buffer of whole rows.
            // SAFETY: the rows of this panel are this call's alone, and one slice of them lives at a time.
            let columns_of = |r: usize| unsafe { part.out.slice(at + r * weight.out_features(), columns) };
            for r in 0..tile.rows {
                edge[r * PANEL..][..columns].copy_from_slice(columns_of(r));
            }
            // SAFETY: the buffer is ours.
            unsafe { kernel.tile(&tile) };
            for r in 0..tile.rows {
                columns_of(r).copy_from_slice(&edge[r * PANEL..][..columns]);
            }
        }
    }
}
