//! Tiles of query rows against KV blocks: the loop around the kernels.
//!
//! The rows of all query heads that share a KV head form one axis, position by position: row `r` of a KV head is head `r % group_size` of
//! the group at position `start + r / group_size`. A tile is a range of that axis, so a tile reads each K and V block once for the whole group.
#![expect(unsafe_code, reason = "tasks write disjoint rows of one output")]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::kernels::{Kernels, Operand, PANEL, RowState, Rows, RowsOut, Softmax};
use crate::{AttnParams, AttnShape, KV_BLOCK_TOKENS, KvBlock, KvDtype, KvLayout, KvView, plain};

/// From this many rows in a tile on, a 16-bit block is unpacked to f32 once for all of them.
const UNPACK_ROWS: usize = 16;

/// f32 values of which a slice of scratch holds a whole number: 64 bytes.
const ALIGN: usize = 16;

/// One call, checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) shape: &'a AttnShape,
    pub(crate) q: &'a [f32],
    pub(crate) view: &'a KvView<'a>,
    pub(crate) start: usize,
    pub(crate) params: &'a AttnParams<'a>,
}

/// How a shape is cut into tiles, and the scratch of one task.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    group_size: usize,
    /// Rows of a KV head's axis.
    axis_rows: usize,
    tile_rows: usize,
    tiles: usize,
    tasks: usize,
    unpack: bool,
    head_dim: usize,
    /// `v_head_dim` in whole panels.
    v_columns: usize,
}

impl Plan {
    pub(crate) fn new(shape: &AttnShape, threads: usize) -> Self {
        let group_size = shape.heads.checked_div(shape.kv_heads).unwrap_or(0);
        let axis_rows = shape.rows * group_size;
        // The tile's queries, outputs and probabilities stay in a 512 KiB second-level cache beside the unpacked block.
        let most = if shape.head_dim + shape.v_head_dim <= 256 { 96 } else { 48 };
        let tile_rows = axis_rows.clamp(1, most);
        let tiles = axis_rows.div_ceil(tile_rows);
        Self {
            group_size,
            axis_rows,
            tile_rows,
            tiles,
            tasks: threads.min(tiles * shape.kv_heads).max(1),
            unpack: shape.kv_dtype != KvDtype::F32 && tile_rows >= UNPACK_ROWS,
            head_dim: shape.head_dim,
            v_columns: shape.v_head_dim.next_multiple_of(PANEL),
        }
    }

    pub(crate) const fn unpacks(&self) -> bool {
        self.unpack
    }

    /// Scratch of all tasks.
    pub(crate) fn bytes(&self) -> u64 {
        (self.task_floats() * self.tasks * size_of::<f32>()) as u64
    }

    /// Lengths, in f32, of the parts of one task's scratch: K panels, V panels, queries, probabilities, outputs, states.
    fn parts(&self) -> [usize; 6] {
        let panels = if self.unpack { KV_BLOCK_TOKENS } else { 0 };
        [
            self.head_dim * panels,
            self.v_columns * panels,
            self.tile_rows * self.head_dim,
            self.tile_rows * KV_BLOCK_TOKENS,
            self.tile_rows * self.v_columns,
            self.tile_rows * (size_of::<RowState>() / size_of::<f32>()),
        ]
        .map(|len| len.next_multiple_of(ALIGN))
    }

    fn task_floats(&self) -> usize {
        self.parts().iter().sum()
    }
}

/// One task's scratch.
struct Scratch<'a> {
    k: &'a mut [f32],
    v: &'a mut [f32],
    q: &'a mut [f32],
    p: &'a mut [f32],
    o: &'a mut [f32],
    states: &'a mut [RowState],
}

impl<'a> Scratch<'a> {
    fn new(plan: &Plan, mut floats: &'a mut [f32]) -> Self {
        let [k, v, q, p, o, states] = plan.parts().map(|len| {
            let part;
            (part, floats) = std::mem::take(&mut floats).split_at_mut(len);
            part
        });
        Self { k, v, q, p, o, states: bytemuck::cast_slice_mut(states) }
    }
}

/// Runs the call with tiles.
pub(crate) fn run<K: Kernels>(kernels: K, plan: &Plan, call: &Call<'_>, out: &mut [f32], scratch: &mut [u8]) {
    let floats: &mut [f32] =
        bytemuck::cast_slice_mut(&mut scratch[..plan.task_floats() * plan.tasks * size_of::<f32>()]);
    let out = RowsOut::new(out);
    let items = plan.tiles * call.shape.kv_heads;
    let next = AtomicUsize::new(0);
    let work = |floats: &mut [f32]| {
        let mut scratch = Scratch::new(plan, floats);
        loop {
            let item = next.fetch_add(1, Ordering::Relaxed);
            if item >= items {
                return;
            }
            // Late tiles see the most keys: longest work first.
            let tile = plan.tiles - 1 - item / call.shape.kv_heads;
            let rows = tile * plan.tile_rows..((tile + 1) * plan.tile_rows).min(plan.axis_rows);
            Tile { kernels, plan, call, kv_head: item % call.shape.kv_heads, rows }.run(&mut scratch, out);
        }
    };
    let (first, others) = floats.split_at_mut(plan.task_floats());
    if others.is_empty() {
        return work(first);
    }
    rayon::in_place_scope(|scope| {
        for floats in others.chunks_exact_mut(plan.task_floats()) {
            scope.spawn(|_| work(floats));
        }
        work(first);
    });
}

/// Runs the call by the definition.
pub(crate) fn run_plain(call: &Call<'_>, out: &mut [f32]) {
    let AttnShape { heads, kv_heads, head_dim, v_head_dim, .. } = *call.shape;
    for (i, (q, out)) in call.q.chunks_exact(head_dim).zip(out.chunks_exact_mut(v_head_dim)).enumerate() {
        let (row, head) = (i / heads, i % heads);
        let sink = call.params.sinks.map(|sinks| sinks[head]);
        plain::row(q, call.view, head / (heads / kv_heads), call.start + row, call.params, sink, out);
    }
}

/// One work item.
struct Tile<'a, K> {
    kernels: K,
    plan: &'a Plan,
    call: &'a Call<'a>,
    kv_head: usize,
    /// Rows of the KV head's axis.
    rows: Range<usize>,
}

impl<K: Kernels> Tile<'_, K> {
    fn run(&self, scratch: &mut Scratch<'_>, out: RowsOut<'_>) {
        let shape = self.call.shape;
        let count = self.rows.len();
        for (r, to) in scratch.q.chunks_exact_mut(shape.head_dim).take(count).enumerate() {
            let from = &self.call.q[self.row_of_call(r) * shape.head_dim..][..shape.head_dim];
            if shape.kv_dtype == KvDtype::F32 {
                to.copy_from_slice(from);
            } else {
                self.kernels.round(from, to);
            }
        }
        scratch.o[..count * self.plan.v_columns].fill(0.0);
        scratch.states[..count].fill(RowState::EMPTY);

        let first_key = self.call.params.window.map_or(0, |window| (self.position(0) + 1).saturating_sub(window));
        for index in first_key / KV_BLOCK_TOKENS..=self.position(count - 1) / KV_BLOCK_TOKENS {
            self.fold_block(index, scratch);
        }

        for r in 0..count {
            let row = self.row_of_call(r);
            let sink = self.call.params.sinks.map(|sinks| sinks[row % shape.heads]);
            // SAFETY: each row of each head belongs to one tile of one KV head, and no range outlives this iteration.
            let out = unsafe { out.range(row * shape.v_head_dim, shape.v_head_dim) };
            let accumulated = &scratch.o[r * self.plan.v_columns..][..shape.v_head_dim];
            self.kernels.finish(accumulated, scratch.states[r], sink, out);
        }
    }

    /// Absolute position of the tile's row `r`.
    fn position(&self, r: usize) -> usize {
        self.call.start + (self.rows.start + r) / self.plan.group_size
    }

    /// Index of the tile's row `r` in `[rows, heads]`.
    fn row_of_call(&self, r: usize) -> usize {
        let r = self.rows.start + r;
        let group_size = self.plan.group_size;
        r / group_size * self.call.shape.heads + self.kv_head * group_size + r % group_size
    }

    fn fold_block(&self, index: usize, scratch: &mut Scratch<'_>) {
        let layout = self.call.view.layout();
        let block = self.call.view.block(index);
        let visible = |r| plain::visible(self.position(r), self.call.params.window, index * KV_BLOCK_TOKENS);
        // The rows that see any of the block are neighbours: positions only grow.
        let count = self.rows.len();
        let first = (0..count).find(|&r| !visible(r).is_empty()).unwrap_or(count);
        let last = (first..count).find(|&r| visible(r).is_empty()).unwrap_or(count);
        if first == last {
            return;
        }
        let all = visible(first).start.min(visible(last - 1).start)..visible(last - 1).end.max(visible(first).end);
        let whole = |r| visible(r) == (0..KV_BLOCK_TOKENS);
        let whole = whole(first) && whole(last - 1);

        let (keys, values) = self.operands(layout, block);
        let keys = self.unpacked(keys, layout.head_dim, KV_BLOCK_TOKENS, layout.head_dim, scratch.k);
        // Columns that only hidden tokens would fill are left out; there are none in a block that all rows see whole.
        let width = if whole { KV_BLOCK_TOKENS } else { PANEL };
        for columns in (0..KV_BLOCK_TOKENS).step_by(width).map(|c| c..c + width) {
            let sees = |r: &usize| {
                let visible = visible(*r);
                visible.start < columns.end && columns.start < visible.end
            };
            let from = if whole { first } else { (first..last).find(sees).unwrap_or(last) };
            let to = if whole { last } else { (from..last).rev().find(sees).map_or(from, |r| r + 1) };
            let q = Rows { data: &scratch.q[from * layout.head_dim..], stride: layout.head_dim, rows: to - from };
            let p = &mut scratch.p[from * KV_BLOCK_TOKENS..];
            self.kernels.product(q, keys, 0..layout.head_dim, columns, p, KV_BLOCK_TOKENS);
        }

        let how = Softmax {
            scale: self.call.params.scale,
            softcap: self.call.params.softcap,
            bf16: layout.dtype != KvDtype::F32,
        };
        for r in first..last {
            let scores = &mut scratch.p[r * KV_BLOCK_TOKENS..][..KV_BLOCK_TOKENS];
            self.kernels.softmax(scores, visible(r), &how, &mut scratch.states[r]);
        }

        if !whole && !all_finite(layout, block, self.kv_head, all.clone()) {
            // A hidden token's 0 times infinity would be NaN: take each row's own tokens only.
            for r in first..last {
                let p = &scratch.p[r * KV_BLOCK_TOKENS..][..KV_BLOCK_TOKENS];
                let o = &mut scratch.o[r * self.plan.v_columns..][..layout.v_head_dim];
                plain::fold_values(layout, block, self.kv_head, visible(r), p, scratch.states[r], o);
            }
            return;
        }
        let (values, columns) = match self.unpacked(values, all.end, layout.v_head_dim, KV_BLOCK_TOKENS, scratch.v) {
            panels @ Operand::Panels { .. } => (panels, self.plan.v_columns),
            direct => (direct, layout.v_head_dim),
        };
        // A tile that is cut by the diagonal or the window goes a few rows at a time, so that hidden tokens cost little.
        let step = if whole { last - first } else { 3 };
        for from in (first..last).step_by(step) {
            let to = (from + step).min(last);
            let k_start = visible(from).start.min(visible(to - 1).start);
            let k_end = visible(from).end.max(visible(to - 1).end);
            let p = Rows { data: &scratch.p[from * KV_BLOCK_TOKENS..], stride: KV_BLOCK_TOKENS, rows: to - from };
            let o = &mut scratch.o[from * self.plan.v_columns..];
            let k = k_start - k_start % 2..k_end;
            self.kernels.product_fold(p, values, k, columns, &scratch.states[from..to], o, self.plan.v_columns);
        }
    }

    /// This head's keys `[head_dim, 64]` and values `[64, v_head_dim]`, as stored.
    fn operands<'b>(&self, layout: &KvLayout, block: KvBlock<'b>) -> (Operand<'b>, Operand<'b>) {
        let (k_len, v_len) = (layout.k_head_elements(), layout.v_head_elements());
        let (k, v) = (KV_BLOCK_TOKENS, layout.v_head_dim);
        match layout.dtype {
            KvDtype::F32 => (
                Operand::F32 { data: head(block.k, self.kv_head, k_len), stride: k },
                Operand::F32 { data: head(block.v, self.kv_head, v_len), stride: v },
            ),
            KvDtype::F16 => (
                Operand::F16 { data: head(block.k, self.kv_head, k_len / 2), stride: k },
                Operand::F16 { data: head(block.v, self.kv_head, v_len / 2), stride: v },
            ),
            KvDtype::Bf16 => (
                Operand::Bf16 { data: head(block.k, self.kv_head, k_len / 2), stride: k },
                Operand::Bf16 { data: head(block.v, self.kv_head, v_len / 2), stride: v },
            ),
        }
    }

    /// The operand in panels where this plan unpacks, else as it is.
    fn unpacked<'b>(
        &self,
        operand: Operand<'b>,
        k: usize,
        columns: usize,
        panel_k: usize,
        panels: &'b mut [f32],
    ) -> Operand<'b> {
        if !self.plan.unpack || self.kernels.reads_pairs(self.call.view.layout()) {
            return operand;
        }
        let panels = &mut panels[..columns.next_multiple_of(PANEL) * panel_k];
        self.kernels.unpack(operand, k, columns, panel_k, panels);
        Operand::Panels { data: panels, k: panel_k }
    }
}

/// The part of a block that belongs to one KV head.
fn head<T: bytemuck::Pod>(block: &[u8], kv_head: usize, len: usize) -> &[T] {
    &bytemuck::cast_slice(block)[kv_head * len..][..len]
}

/// Whether the values of these tokens are all finite.
fn all_finite(layout: &KvLayout, block: KvBlock<'_>, kv_head: usize, tokens: Range<usize>) -> bool {
    let width = layout.v_head_dim;
    let exponent = match layout.dtype {
        KvDtype::F32 => {
            let values: &[u32] = head(block.v, kv_head, layout.v_head_elements());
            // Sums start at an even token, so a hidden one before the first is multiplied with its zero as well.
            let values = &values[tokens.start / 2 * 2 * width..tokens.end * width];
            return !values.iter().fold(false, |found, x| found | (x & 0x7f80_0000 == 0x7f80_0000));
        }
        KvDtype::F16 => 0x7c00,
        KvDtype::Bf16 => 0x7f80,
    };
    // A pair's other token may be one that was never written: a false alarm only takes the slow way.
    let values: &[u16] = head(block.v, kv_head, layout.v_head_elements());
    let values = &values[tokens.start / 2 * width * 2..tokens.end.div_ceil(2) * width * 2];
    !values.iter().fold(false, |found, x| found | (x & exponent == exponent))
}
