//! Products in bf16 by matrix tiles: blocks of 16 rows of `x` and panels of 16 columns, both as bf16.
//!
//! As in `product`, an item is a rectangle of one output, and each of its outputs is summed over all of `k` by one task. All rows of the item
//! take their turn with two panels that were dequantized for one block of `k`; between blocks of `k`, sums wait in scratch.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use super::part::{Part, find, panels};
use super::tasks::{self, ITEMS_PER_TASK};
use super::x86_64::{Amx, Micro, STEP, TILE, TILE_ELEMENTS, Tiles};
use crate::Combine;
use crate::layout::PANEL;

/// Most rows of `k` in a block. Two panels of it take 20 KiB and the rows of `x` that go by in between as much again, so the panels stay in
/// a first-level cache of 48 KiB. From the second level, not more than half of the four tiles of a step could be had in time.
const K_BLOCK: usize = 320;
/// Bytes of an item's rows of `x` that stay in the second-level cache: then one pair of panels after another goes through all of `k`. Else
/// all pairs go through one block of `k` after another. Caches have 2 MiB, but share them with other work and with the output.
const RESIDENT_X_BYTES: usize = 640 << 10;
/// Most rows of an item in the first case. Many share the cost of dequantizing.
const RESIDENT_ROWS: usize = 512;
/// Most rows and panels of an item in the second case: the more panels, the less often `x` comes from further away, but all their sums wait
/// (256 KiB) beside a block of `x` (160 KiB).
const ITEM_ROWS: usize = 256;
const ITEM_PANELS: usize = 16;
/// Fewest rows of an item: below, dequantizing a panel costs more than multiplying with it.
const MIN_ITEM_ROWS: usize = 128;
/// Fewest rows that tiles are used for: fewer go through the vector kernels without storing a dequantized weight.
const MIN_ROWS: usize = 3;

/// Scratch of a product, in f32 elements: a pure function of the shape.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TiledPlan {
    /// Tiles of `x`.
    pub(crate) x: usize,
    /// Tiles of two panels and sums, of one task.
    pub(crate) task: usize,
}

impl TiledPlan {
    /// `None` where the vector kernels do better. `panels`: those of all weights that share the pass.
    pub(crate) fn new(rows: usize, in_features: usize, panels: usize) -> Option<Self> {
        let steps = in_features.div_ceil(STEP);
        (rows >= MIN_ROWS).then(|| {
            let most_rows = rows.min(most_rows(in_features));
            let waiting = waiting_panels(most_rows, in_features).min(panels.next_multiple_of(2));
            Self {
                x: rows.div_ceil(2 * TILE) * steps * 2 * TILE_ELEMENTS,
                task: 2 * block_len(in_features) / STEP * TILE_ELEMENTS
                    + waiting * most_rows.next_multiple_of(2 * TILE) * PANEL,
            }
        })
    }
}

/// Rows of `k` in a block: a multiple of a step. Blocks are equal but for the last.
fn block_len(in_features: usize) -> usize {
    in_features.div_ceil(in_features.div_ceil(K_BLOCK)).next_multiple_of(STEP)
}

/// Whether an item's rows of `x` stay in the second-level cache.
fn x_is_resident(rows: usize, in_features: usize) -> bool {
    rows * in_features * size_of::<u16>() <= RESIDENT_X_BYTES
}

/// Most rows of an item.
fn most_rows(in_features: usize) -> usize {
    if x_is_resident(RESIDENT_ROWS, in_features) { RESIDENT_ROWS } else { ITEM_ROWS }
}

/// Panels of an item of `rows` rows whose sums wait between blocks of `k`.
fn waiting_panels(rows: usize, in_features: usize) -> usize {
    match in_features <= block_len(in_features) {
        true => 0,
        false if x_is_resident(rows, in_features) => 2,
        false => ITEM_PANELS,
    }
}

/// A product of `rows` rows with several weights, none of them f32.
pub(crate) struct TiledProduct<'a> {
    parts: &'a [Option<Part<'a>>],
    /// Tiles, `[pair of row blocks][step][2 blocks of 16 rows]`.
    x: &'a [f32],
    rows: usize,
    in_features: usize,
    panels: usize,
    item_panels: usize,
    item_rows: usize,
    /// Of a gated product, what becomes of the outputs of its two parts, which are of one width.
    combine: Option<Combine<'a>>,
    /// Once set, nobody wants the result.
    stop: &'a AtomicBool,
}

impl<'a> TiledProduct<'a> {
    /// `parts` are all present up to the first `None`; their own `x` is not read, but `x` as [`Amx::round_to_tiles`] leaves it.
    pub(crate) fn new(
        parts: &'a [Option<Part<'a>>],
        x: &'a [f32],
        rows: usize,
        in_features: usize,
        threads: usize,
        stop: &'a AtomicBool,
    ) -> Self {
        let panels = panels(parts);
        let wanted = if threads == 1 { 1 } else { threads * ITEMS_PER_TASK };
        let pairs = panels.div_ceil(2);
        let most_rows = most_rows(in_features);
        let row_ranges = rows.div_ceil(most_rows).max(wanted.div_ceil(pairs.max(1)).min(rows / MIN_ITEM_ROWS)).max(1);
        let item_rows = rows.div_ceil(row_ranges).next_multiple_of(2 * TILE);
        // Items of fewer rows may keep `x` where the price was made for more; they need no more than was priced then.
        let most = if waiting_panels(rows.min(most_rows), in_features) > 2 { ITEM_PANELS / 2 } else { pairs };
        let item_panels = 2 * (pairs * row_ranges / wanted).clamp(1, most.max(1));
        Self { parts, x, rows, in_features, panels, item_panels, item_rows, combine: None, stop }
    }

    /// If `combine` is there, the first of two parts gets both outputs combined; the second, of the same width, is not written. Panels of the two
    /// take turns.
    pub(crate) fn combined(self, combine: Option<Combine<'a>>) -> Self {
        Self { combine, ..self }
    }

    /// Part and place in it of a panel.
    fn find(&self, panel: usize) -> (&Part<'a>, usize) {
        if self.combine.is_none() {
            return find(self.parts, panel);
        }
        (self.parts[panel % 2].as_ref().expect("a gated product has two parts"), panel / 2)
    }

    /// Runs all items on at most `threads` tasks; `scratch` is [`TiledPlan::task`] elements for each.
    pub(crate) fn run(&self, amx: Amx, threads: usize, scratch: &mut [f32]) {
        let items = self.panels.div_ceil(self.item_panels) * self.rows.div_ceil(self.item_rows);
        let slice = scratch.len() / threads.max(1);
        tasks::run(items, threads.min(items), scratch, slice, self.stop, |items, scratch| {
            let tiles = Tiles::configure(amx);
            for item in items {
                // SAFETY: each item goes to one task once, and items are disjoint rectangles.
                unsafe { self.run_item(amx, &tiles, item, scratch) };
            }
        });
    }

    /// # Safety
    /// No other call with the same `item` may run at the same time.
    unsafe fn run_item(&self, amx: Amx, tiles: &Tiles, item: usize, scratch: &mut [f32]) {
        let row_ranges = self.rows.div_ceil(self.item_rows);
        let first_row = item % row_ranges * self.item_rows;
        let rows = first_row..(first_row + self.item_rows).min(self.rows);
        let first_panel = item / row_ranges * self.item_panels;
        let item_panels = first_panel..(first_panel + self.item_panels).min(self.panels);
        let k_block = block_len(self.in_features);
        let (weights, sums) = scratch.split_at_mut(2 * k_block / STEP * TILE_ELEMENTS);
        // Sums of one pair of panels: four tiles for every 32 rows.
        let pair_sums = rows.len().div_ceil(2 * TILE) * 4 * TILE_ELEMENTS;
        let most_rows = self.rows.min(most_rows(self.in_features));
        let one_after_another = waiting_panels(most_rows, self.in_features) <= 2;
        let together = if one_after_another { 2 } else { item_panels.len() };
        for first_panel in item_panels.clone().step_by(together) {
            for start in (0..self.in_features).step_by(k_block) {
                let block = start..(start + k_block).min(self.in_features);
                let end_panel = (first_panel + together).min(item_panels.end);
                for (pair, panel) in (first_panel..end_panel).step_by(2).enumerate() {
                    let panels = panel..(panel + 2).min(end_panel);
                    let sums =
                        if self.in_features > k_block { &mut sums[pair * pair_sums..][..pair_sums] } else { &mut [] };
                    // SAFETY: other panels or other rows in every other item.
                    unsafe { self.run_pair(amx, tiles, panels, block.clone(), rows.clone(), weights, sums) };
                }
            }
        }
    }

    /// One or two panels and one block of `k`, for a range of rows.
    ///
    /// # Safety
    /// No other call with one of these panels and an overlapping range of rows may run at the same time.
    #[expect(clippy::too_many_arguments, reason = "the three axes of a block, and the scratch for it")]
    unsafe fn run_pair(
        &self,
        amx: Amx,
        tiles: &Tiles,
        panels: Range<usize>,
        block: Range<usize>,
        rows: Range<usize>,
        weights: &mut [f32],
        sums: &mut [f32],
    ) {
        let steps = block.len().div_ceil(STEP);
        let all_steps = self.in_features.div_ceil(STEP);
        let (w0, w1) = weights.split_at_mut(weights.len() / 2);
        let (w0, w1) = (&mut w0[..steps * TILE_ELEMENTS], &mut w1[..steps * TILE_ELEMENTS]);
        let columns = panels.clone().map(|panel| Columns::new(self.find(panel)));
        let mut targets = [None, None];
        for ((target, columns), w) in targets.iter_mut().zip(columns).zip([&mut *w0, &mut *w1]) {
            let (weight, panel) = (columns.part.weight, columns.panel);
            amx.dequantize_to_tiles(weight.weight_type(), weight.panel(panel), block.start, block.len(), w);
            *target = Some(columns);
        }
        let w = [Some(&*w0), (panels.len() > 1).then_some(&*w1)];
        let x_tiles = |row: usize| {
            let at = (row / (2 * TILE) * all_steps + block.start / STEP) * 2 * TILE_ELEMENTS;
            &self.x[at..][..2 * steps * TILE_ELEMENTS]
        };
        let (first, last) = (block.start == 0, block.end == self.in_features);
        let mut finished = Sums([0.0; 4 * TILE_ELEMENTS]);
        for (i, row) in rows.clone().step_by(2 * TILE).enumerate() {
            if last {
                let written = if self.combine.is_some() { 1 } else { 2 };
                for columns in targets.iter().flatten().take(written) {
                    columns.fetch(amx, row, (2 * TILE).min(rows.end - row));
                }
            }
            let kept = sums.get_mut(i * 4 * TILE_ELEMENTS..).map(|sums| sums.as_mut_ptr());
            let next = if row + 2 * TILE < rows.end { row + 2 * TILE } else { rows.start };
            let micro = Micro {
                x: x_tiles(row),
                both_blocks: row + TILE < rows.end,
                next_x: x_tiles(next),
                w,
                steps,
                from: if first { None } else { kept.map(<*mut f32>::cast_const) },
                to: if last { finished.0.as_mut_ptr() } else { kept.unwrap_or(std::ptr::null_mut()) },
            };
            // SAFETY: `finished` and, where there is more than one block of `k`, each four tiles of `sums` are ours.
            unsafe { micro.run(tiles) };
            if !last {
                continue;
            }
            if let Some(combine) = self.combine {
                let [Some(gate), Some(up)] = &targets else { unreachable!("panels of a gated product come in pairs") };
                for (block, sums) in finished.0.as_chunks::<{ 2 * TILE_ELEMENTS }>().0.iter().enumerate() {
                    let row = row + block * TILE;
                    if row < rows.end {
                        let ([gate_sums, up_sums], _) = sums.as_chunks::<TILE_ELEMENTS>() else { unreachable!() };
                        // SAFETY: this panel and these rows are this call's alone.
                        unsafe {
                            gate.finish_gated(amx, (gate_sums, up_sums), up, combine, row, TILE.min(rows.end - row))
                        };
                    }
                }
                tiles.restore(amx);
                continue;
            }
            for (tile, sums) in finished.0.as_chunks::<TILE_ELEMENTS>().0.iter().enumerate() {
                let row = row + tile / 2 * TILE;
                if let (Some(columns), true) = (&targets[tile % 2], row < rows.end) {
                    // SAFETY: this panel and these rows are this call's alone.
                    unsafe { columns.finish(amx, sums, row, TILE.min(rows.end - row)) };
                }
            }
        }
    }
}

/// Four tiles of sums, aligned for whole lines.
#[repr(align(64))]
struct Sums([f32; 4 * TILE_ELEMENTS]);

/// Where a panel's outputs go.
struct Columns<'p, 'a> {
    part: &'p Part<'a>,
    panel: usize,
    count: usize,
    bias: [f32; PANEL],
}

impl<'p, 'a> Columns<'p, 'a> {
    fn new((part, panel): (&'p Part<'a>, usize)) -> Self {
        let first = panel * PANEL;
        let count = PANEL.min(part.weight.out_features() - first);
        let mut bias = [0.0; PANEL];
        if let Some(values) = part.bias {
            bias[..count].copy_from_slice(&values[first..][..count]);
        }
        Self { part, panel, count, bias }
    }

    /// Fetches the lines of these rows.
    fn fetch(&self, amx: Amx, row: usize, rows: usize) {
        let stride = self.part.weight.out_features();
        let out = self.part.out.row(row * stride + self.panel * PANEL, (rows - 1) * stride + self.count);
        amx.fetch_output(out, rows, self.count, stride);
    }

    /// Combines what is finished of this panel and of the one of the other part, and writes it here.
    ///
    /// # Safety
    /// These rows of this panel are the caller's alone.
    unsafe fn finish_gated(
        &self,
        amx: Amx,
        (gate_sums, up_sums): (&[f32; TILE_ELEMENTS], &[f32; TILE_ELEMENTS]),
        up: &Self,
        combine: Combine<'_>,
        row: usize,
        rows: usize,
    ) {
        let (mut gate_tile, mut up_tile) = ([0.0; TILE_ELEMENTS], [0.0; TILE_ELEMENTS]);
        let whole = (rows, PANEL);
        // SAFETY: both tiles have room, and are ours; the output is in bounds, as `row` checks, and the caller's alone.
        unsafe {
            amx.finish(gate_sums, &self.bias, whole, gate_tile.as_mut_ptr(), PANEL);
            amx.finish(up_sums, &up.bias, whole, up_tile.as_mut_ptr(), PANEL);
            combine(&mut gate_tile[..rows * PANEL], &up_tile[..rows * PANEL]);
            let stride = self.part.weight.out_features();
            let out = self.part.out.row(row * stride + self.panel * PANEL, (rows - 1) * stride + self.count);
            amx.store(&gate_tile, (rows, self.count), out, stride);
        }
    }

    /// # Safety
    /// These rows of this panel are the caller's alone.
    unsafe fn finish(&self, amx: Amx, sums: &[f32; TILE_ELEMENTS], row: usize, rows: usize) {
        let stride = self.part.weight.out_features();
        let out = self.part.out.row(row * stride + self.panel * PANEL, (rows - 1) * stride + self.count);
        // SAFETY: in bounds of the output, as `row` checks, and the caller's alone.
        unsafe { amx.finish(sums, &self.bias, (rows, self.count), out, stride) }
    }
}
