//! Cuts a product into work items and runs them on several tasks.
//!
//! An item is a rectangle of one output: some panels of columns times a range of rows. Each of its outputs is summed
//! over all of `k` by the task that took the item, so cutting never changes a bit.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::part::{Part, find, panels};
use super::tasks::{self, ITEMS_PER_TASK};
use super::{K_BLOCK, Kernel, MAX_TILE_ROWS, Panel, STEP_PAIRS, Tile};
use crate::layout::PANEL;

/// Rows of an item, unless there are too few panels: rows times [`K_BLOCK`] operands should stay in the second-level cache.
const ITEM_ROWS: usize = 16 * MAX_TILE_ROWS;
/// Bytes of an item's rows of `x` that stay in the second-level cache, or are fetched from the third in time.
const RESIDENT_X_BYTES: usize = 480 << 10;
/// Panels that take turns on one block of `k` where all of `x` does not stay: the more, the less often a block of `x` is fetched, but all
/// their outputs (12 KiB each) wait beside it.
const WAITING_PANELS: usize = 8;
/// Elements of one dequantized panel in scratch.
pub(crate) const PANEL_SCRATCH: usize = K_BLOCK * PANEL;
/// Fewest rows of an item: below, dequantizing a panel costs more than multiplying with it.
const MIN_ITEM_ROWS: usize = 4 * MAX_TILE_ROWS;
/// Multiply-adds below which a second task costs more than it saves.
const INLINE_WORK: usize = 1 << 16;

/// A product of `rows` rows with several weights, cut into items.
#[derive(Debug)]
pub(crate) struct Product<'a> {
    parts: &'a [Option<Part<'a>>],
    rows: usize,
    in_features: usize,
    panels: usize,
    item_panels: usize,
    item_rows: usize,
    /// Once set, nobody wants the result.
    stop: &'a AtomicBool,
}

impl<'a> Product<'a> {
    /// `parts` are all present up to the first `None`.
    pub(crate) fn new(
        parts: &'a [Option<Part<'a>>],
        rows: usize,
        in_features: usize,
        threads: usize,
        stop: &'a AtomicBool,
    ) -> Self {
        let panels = panels(parts);
        let wanted = if threads == 1 { 1 } else { threads * ITEMS_PER_TASK };
        let row_ranges = rows.div_ceil(ITEM_ROWS).max(wanted.div_ceil(panels.max(1)).min(rows / MIN_ITEM_ROWS)).max(1);
        let item_rows = rows.div_ceil(row_ranges).next_multiple_of(MAX_TILE_ROWS);
        let item_panels = (panels * row_ranges / wanted).clamp(1, panels.max(1));
        // Whole pairs, for wide tiles.
        let item_panels = if item_panels == 1 { 1 } else { item_panels.next_multiple_of(2) };
        Self { parts, rows, in_features, panels, item_panels, item_rows, stop }
    }

    fn items(&self) -> usize {
        self.panels.div_ceil(self.item_panels) * self.rows.div_ceil(self.item_rows)
    }

    /// Runs all items on at most `threads` tasks, or one if the work is small; every task dequantizes into its own slice of `scratch`,
    /// [`PANEL_SCRATCH`] elements for each panel of its widest tile.
    pub(crate) fn run<K: Kernel>(&self, kernel: K, threads: usize, scratch: &mut [f32]) {
        let work = self.rows.saturating_mul(self.in_features).saturating_mul(self.panels * PANEL);
        let tasks = if work < INLINE_WORK { 1 } else { threads.min(self.items()) };
        let slice = scratch.len() / threads.max(1);
        tasks::run(self.items(), tasks, scratch, slice, self.stop, |items, scratch| {
            for item in items {
                // SAFETY: each item goes to one task once, and items are disjoint rectangles.
                unsafe { self.run_item(kernel, item, scratch) };
            }
        });
    }

    /// Each part with its own few rows of `x`; all weights have one shape. An item is some panels of one part, over all of its rows and of
    /// `k`. Scratch as in [`Product::run`].
    pub(crate) fn run_groups<K: Kernel>(&self, kernel: K, threads: usize, scratch: &mut [f32]) {
        let groups = self.parts.iter().flatten().count();
        let panels = self.panels / groups.max(1);
        let wanted = if threads == 1 { groups } else { threads * ITEMS_PER_TASK };
        let item_panels = (self.panels / wanted.max(1)).clamp(1, panels.max(1));
        let (items_of_group, items) = (panels.div_ceil(item_panels), groups * panels.div_ceil(item_panels));
        let work = self.rows.saturating_mul(self.in_features).saturating_mul(panels * PANEL);
        let tasks = if work < INLINE_WORK { 1 } else { threads.min(items) };
        let slice = scratch.len() / threads.max(1);
        tasks::run(items, tasks, scratch, slice, self.stop, |items, scratch| {
            for item in items {
                let Some(part) = &self.parts[item / items_of_group] else { continue };
                let first = item % items_of_group * item_panels;
                for panel in first..(first + item_panels).min(panels) {
                    let fused = kernel.fuses(part.weight.weight_type(), part.rows);
                    let k_block = if fused { self.in_features } else { self.k_block() };
                    for start in (0..self.in_features).step_by(k_block) {
                        let block = start..(start + k_block).min(self.in_features);
                        // SAFETY: each item goes to one task once, and no two have the same part and panel.
                        unsafe { self.run_panel(kernel, part, panel, block, 0..part.rows, scratch) };
                    }
                }
            }
        });
    }

    /// Rows of `k` in a block. Equal blocks of whole steps: a short last block would spend its time on loading and storing sums. Block
    /// formats of 256 elements always get whole blocks.
    fn k_block(&self) -> usize {
        self.in_features.div_ceil(self.in_features.div_ceil(K_BLOCK)).next_multiple_of(2 * STEP_PAIRS)
    }

    /// # Safety
    /// No other call with the same `item` may run at the same time.
    unsafe fn run_item<K: Kernel>(&self, kernel: K, item: usize, scratch: &mut [f32]) {
        let row_ranges = self.rows.div_ceil(self.item_rows);
        let first_row = item % row_ranges * self.item_rows;
        let rows = first_row..(first_row + self.item_rows).min(self.rows);
        let first_panel = item / row_ranges * self.item_panels;
        let panels = first_panel..(first_panel + self.item_panels).min(self.panels);
        // Where all of `x` stays in the second-level cache, a panel, or a pair, goes through all of `k` and its outputs stay in the first.
        let x_bytes = rows.len() * self.in_features * size_of::<f32>();
        let together = match (x_bytes <= RESIDENT_X_BYTES, K::WIDE_TILE_ROWS) {
            (true, 0) => 1,
            (true, _) => 2,
            (false, _) => WAITING_PANELS,
        };
        let (k, k_block) = (self.in_features, self.k_block());
        for first_panel in panels.clone().step_by(together) {
            // A single task has one item of all panels.
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let end_panel = (first_panel + together).min(panels.end);
            for start in (0..k).step_by(k_block) {
                let block = start..(start + k_block).min(k);
                let mut next = first_panel;
                while next < end_panel {
                    let (part, panel) = find(self.parts, next);
                    let weight = part.weight;
                    // Few rows keep their sums in registers over all of `k`, and need no room for weights.
                    let fused = kernel.fuses(weight.weight_type(), rows.len());
                    let is_pair = K::WIDE_TILE_ROWS > 0
                        && !fused
                        && next + 1 < end_panel
                        && (panel + 2) * PANEL <= weight.out_features();
                    next += if is_pair { 2 } else { 1 };
                    let block = match fused {
                        false => block.clone(),
                        true if start == 0 => 0..k,
                        true => continue,
                    };
                    // SAFETY: other panels or another range of rows in every other item.
                    unsafe {
                        if is_pair {
                            self.run_pair(kernel, part, panel, block, rows.clone(), scratch);
                        } else {
                            self.run_panel(kernel, part, panel, block, rows.clone(), scratch);
                        }
                    }
                }
            }
        }
    }

    /// A full panel and the full one behind it, one block of `k`, for a range of rows.
    ///
    /// # Safety
    /// No other call with the same part, one of these panels and an overlapping range of rows may run at the same time.
    unsafe fn run_pair<K: Kernel>(
        &self,
        kernel: K,
        part: &Part<'_>,
        panel: usize,
        block: Range<usize>,
        rows: Range<usize>,
        scratch: &mut [f32],
    ) {
        let (weight, x) = (part.weight, part.x);
        let columns = panel * PANEL..(panel + 2) * PANEL;
        let pairs = block.len().div_ceil(2);
        let (left, right) = scratch.split_at_mut(scratch.len().min(PANEL_SCRATCH));
        let w = operands(kernel, part, panel, &block, left);
        let second_w = operands(kernel, part, panel + 1, &block, right);
        let (mut bias, mut second_bias) = ([0.0; PANEL], [0.0; PANEL]);
        if let Some(values) = part.bias {
            let (left, right) = values[columns.clone()].split_at(PANEL);
            bias.copy_from_slice(left);
            second_bias.copy_from_slice(right);
        }
        let last = block.end == self.in_features;
        let second = Panel { w: second_w, bias: last.then_some(&second_bias) };
        for row in rows.clone().step_by(K::WIDE_TILE_ROWS) {
            let tile_rows = K::WIDE_TILE_ROWS.min(rows.end - row);
            let at = row * weight.out_features() + columns.start;
            let tile = Tile {
                x: &x.data[row * x.stride + block.start..],
                x_stride: x.stride,
                rows: tile_rows,
                w,
                is_bf16: weight.weight_type().multiplies_in_bf16(),
                pairs,
                out: part.out.row(at, (tile_rows - 1) * weight.out_features() + 2 * PANEL),
                out_stride: weight.out_features(),
                first: block.start == 0,
                bias: last.then_some(&bias),
            };
            // SAFETY: the rows of these panels are this call's alone.
            unsafe { kernel.wide_tile(&tile, second) };
        }
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
        let ty = weight.weight_type();
        let fused = kernel.fuses(ty, rows.len());
        let w = if fused { &[] } else { operands(kernel, part, panel_index, &block, scratch) };
        let mut bias = [0.0; PANEL];
        if let Some(values) = part.bias {
            bias[..columns].copy_from_slice(&values[first_column..][..columns]);
        }
        let last = block.end == self.in_features;
        // SAFETY: the caller of `multiply` vouches for the output.
        let multiply =
            |tile: &Tile<'_>| unsafe { if fused { kernel.fused(ty, panel, start, tile) } else { kernel.tile(tile) } };
        let tiles = rows.clone().step_by(K::TILE_ROWS).map(|row| (row, K::TILE_ROWS.min(rows.end - row)));
        let tile_at = |(row, tile_rows): (usize, usize), out: *mut f32, out_stride: usize| Tile {
            x: &x.data[row * x.stride + start..],
            x_stride: x.stride,
            rows: tile_rows,
            w,
            is_bf16: ty.multiplies_in_bf16(),
            pairs,
            out,
            out_stride,
            first: start == 0,
            bias: last.then_some(&bias),
        };
        let out_features = weight.out_features();
        if columns == PANEL {
            for (row, tile_rows) in tiles {
                let out = part.out.row(row * out_features + first_column, (tile_rows - 1) * out_features + PANEL);
                // The rows of this panel are this call's alone.
                multiply(&tile_at((row, tile_rows), out, out_features));
            }
            return;
        }
        // A last panel that is not full goes through a buffer of whole rows.
        let mut edge = [0.0; MAX_TILE_ROWS * PANEL];
        for (row, tile_rows) in tiles {
            // SAFETY: the rows of this panel are this call's alone, and one slice of them lives at a time.
            let columns_of = |r: usize| unsafe { part.out.slice((row + r) * out_features + first_column, columns) };
            for r in 0..tile_rows {
                edge[r * PANEL..][..columns].copy_from_slice(columns_of(r));
            }
            // The buffer is ours.
            multiply(&tile_at((row, tile_rows), edge.as_mut_ptr(), PANEL));
            for r in 0..tile_rows {
                columns_of(r).copy_from_slice(&edge[r * PANEL..][..columns]);
            }
        }
    }
}

/// Rows `block` of `k` of a panel, `[k][16]`, an odd number of them padded with zeros: dequantized to `scratch`, or f32 weights as they are.
fn operands<'a, K: Kernel>(
    kernel: K,
    part: &Part<'a>,
    panel: usize,
    block: &Range<usize>,
    scratch: &'a mut [f32],
) -> &'a [f32] {
    let (weight, len) = (part.weight, block.len().next_multiple_of(2) * PANEL);
    let (ty, panel) = (weight.weight_type(), weight.panel(panel));
    if !ty.multiplies_in_bf16() {
        return &bytemuck::cast_slice(panel)[block.start * PANEL..][..len];
    }
    kernel.dequantize(ty, panel, block.start, block.len(), scratch);
    &scratch[..len]
}
