//! Tiles of query rows against KV blocks: the loop around the kernels.
//!
//! The rows of all query heads that share a KV head form one axis, position by position: row `r` of a KV head is head `r % group_size` of
//! the group at position `start + r / group_size`. A tile is a range of that axis, so a tile reads each K and V block once for the whole group.
#![expect(unsafe_code, reason = "tasks write disjoint rows of one output")]

use std::mem;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::kernels::{BlockOperands, Kernels, LINE, Operand, PANEL, PREFETCH_ROWS, RowState, Rows, RowsOut, Softmax};
use crate::keys::Keys;
use crate::plain::RowValues;
use crate::plan::Plan;
use crate::{AttnParams, AttnShape, KV_BLOCK_TOKENS, KvBlock, KvDtype, KvLayout, KvView, plain};

/// Rows of a tile that is cut by the diagonal or the window go so many at a time: hidden tokens cost little, registers are full.
const CUT_ROWS: usize = 12;
/// Up to so many rows are done with a block sooner than the next one comes: more of it is prefetched between the columns of the scores too.
const SPLIT_SCORES_ROWS: usize = 15;

/// One call, checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) shape: &'a AttnShape,
    pub(crate) q: &'a [f32],
    pub(crate) keys: Keys<'a>,
    pub(crate) start: usize,
    pub(crate) params: &'a AttnParams<'a>,
    /// Whether `q` and the output are `[heads, rows, ..]` instead of `[rows, heads, ..]`.
    pub(crate) heads_first: bool,
    /// Once set, nobody wants the result.
    pub(crate) stop: &'a AtomicBool,
}

/// What is never set.
pub(crate) static NEVER: AtomicBool = AtomicBool::new(false);

impl Call<'_> {
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Index of a row of a head among all of `q` or of the output.
    fn index(&self, row: usize, head: usize) -> usize {
        if self.heads_first { head * self.shape.rows + row } else { row * self.shape.heads + head }
    }
}

/// Where one task computes a block.
pub(crate) struct Bench<'a> {
    packed: &'a mut [f32],
    /// Panels of keys, then of values; or the queries, for kernels that take blocks as they are.
    panels: &'a mut [f32],
    /// Elements of the panels of keys.
    k_panels: usize,
    /// Whether the queries are there.
    has_queries: bool,
    p: &'a mut [f32],
}

/// What a tile has of its rows.
pub(crate) struct TileRows<'a> {
    pub(crate) q: &'a mut [f32],
    pub(crate) o: &'a mut [f32],
    pub(crate) states: &'a mut [RowState],
}

/// Cuts the scratch of one task.
pub(crate) fn scratch<'a>(plan: &Plan, mut floats: &'a mut [f32]) -> (Bench<'a>, TileRows<'a>) {
    let [packed, k_panels, v_panels, q, p, o, states] = plan.parts();
    let [packed, panels, q, p, o, states] = [packed, k_panels + v_panels, q, p, o, states].map(|len| {
        let part;
        (part, floats) = std::mem::take(&mut floats).split_at_mut(len);
        part
    });
    (
        Bench { packed, panels, k_panels, has_queries: false, p },
        TileRows { q, o, states: bytemuck::cast_slice_mut(states) },
    )
}

/// Runs the call with tiles.
pub(crate) fn run<K: Kernels>(kernels: K, plan: &Plan, call: &Call<'_>, out: &mut [f32], scratch: &mut [u8]) {
    let out = RowsOut::new(out);
    if plan.split {
        return crate::split::run(kernels, plan, call, out, bytemuck::cast_slice_mut(scratch));
    }
    let floats: &mut [f32] =
        bytemuck::cast_slice_mut(&mut scratch[..plan.task_floats() * plan.tasks * size_of::<f32>()]);
    let items = plan.tiles * call.shape.kv_heads;
    let next = AtomicUsize::new(0);
    let work = |floats: &mut [f32]| {
        let (mut bench, mut rows) = self::scratch(plan, floats);
        loop {
            let item = next.fetch_add(1, Ordering::Relaxed);
            if item >= items {
                return;
            }
            // Late tiles see the most keys: longest work first.
            let tile = plan.tiles - 1 - item / call.shape.kv_heads;
            let range = tile * plan.tile_rows..((tile + 1) * plan.tile_rows).min(plan.axis_rows);
            let tile = Tile { kernels, plan, call, kv_head: item % call.shape.kv_heads, rows: range };
            tile.start(&mut rows);
            tile.pack_queries(&mut bench, &rows);
            for index in tile.blocks() {
                if call.is_stopped() {
                    return;
                }
                tile.fold_block(index, &mut bench, &mut rows);
            }
            tile.finish(&rows, out);
        }
    };
    in_tasks(floats, plan.task_floats(), work);
}

/// Runs `work` in one task for each `len` of the scratch, the first in this thread.
pub(crate) fn in_tasks(floats: &mut [f32], len: usize, work: impl Fn(&mut [f32]) + Sync) {
    let (first, others) = floats.split_at_mut(len);
    if others.is_empty() {
        return work(first);
    }
    rayon::in_place_scope(|scope| {
        for floats in others.chunks_exact_mut(len) {
            let work = &work;
            scope.spawn(move |_| work(floats));
        }
        work(first);
    });
}

/// Runs the call by the definition.
pub(crate) fn run_plain(call: &Call<'_>, view: &KvView<'_>, out: &mut [f32]) {
    let AttnShape { heads, kv_heads, head_dim, v_head_dim, .. } = *call.shape;
    for (i, (q, out)) in call.q.chunks_exact(head_dim).zip(out.chunks_exact_mut(v_head_dim)).enumerate() {
        if call.is_stopped() {
            return;
        }
        let (row, head) = (i / heads, i % heads);
        let sink = call.params.sinks.map(|sinks| sinks[head]);
        plain::row(q, view, head / (heads / kv_heads), call.start + row, call.params, sink, out);
    }
}

/// One work item.
pub(crate) struct Tile<'a, K> {
    pub(crate) kernels: K,
    pub(crate) plan: &'a Plan,
    pub(crate) call: &'a Call<'a>,
    pub(crate) kv_head: usize,
    /// Rows of the KV head's axis.
    pub(crate) rows: Range<usize>,
}

/// A block that some of a tile's rows see: which rows, and where its values are.
struct Seen<'b> {
    block: KvBlock<'b>,
    head: usize,
    first: usize,
    last: usize,
    /// Tokens that any of the rows sees.
    tokens: Range<usize>,
    /// Whether all of the rows see all tokens.
    whole: bool,
}

impl Seen<'_> {
    /// Whether so many rows see it that the next block comes sooner than they are done.
    fn has_many_rows(&self) -> bool {
        self.last - self.first > SPLIT_SCORES_ROWS
    }

    /// Columns of the scores that are computed in one call: all, where many rows see the whole block.
    fn score_columns(&self, kernels: impl Kernels) -> usize {
        match (self.whole, self.has_many_rows()) {
            (true, false) => kernels.score_columns(self.last - self.first),
            (true, true) => KV_BLOCK_TOKENS,
            // Those that only hidden tokens would fill are left out.
            (false, _) => PANEL,
        }
    }
}

/// Keys and values of the block that comes next, prefetched a little at a time: they take their time to come.
struct Prefetch<'b>([std::slice::Chunks<'b, u8>; 2]);

impl<'b> Prefetch<'b> {
    /// Each of them in so many parts.
    fn new(bytes: [&'b [u8]; 2], parts: [usize; 2]) -> Self {
        let [k, v] = bytes;
        let chunks =
            |bytes: &'b [u8], parts| bytes.chunks(bytes.len().div_ceil(parts).next_multiple_of(LINE).max(LINE));
        Self([chunks(k, parts[0]), chunks(v, parts[1])])
    }

    /// The next part of the keys.
    fn keys(&mut self) -> &'b [u8] {
        self.0[0].next().unwrap_or_default()
    }

    /// The next part of the values.
    fn values(&mut self) -> &'b [u8] {
        self.0[1].next().unwrap_or_default()
    }

    /// Asks for the next part of both.
    fn both(&mut self, kernels: impl Kernels) {
        kernels.prefetch(self.keys());
        kernels.prefetch(self.values());
    }
}

impl<K: Kernels> Tile<'_, K> {
    /// Takes the queries and clears outputs and states.
    pub(crate) fn start(&self, to: &mut TileRows<'_>) {
        let shape = self.call.shape;
        let count = self.rows.len();
        for (r, to) in to.q.chunks_exact_mut(shape.head_dim).take(count).enumerate() {
            let from = &self.call.q[self.row_of_call(r).0 * shape.head_dim..][..shape.head_dim];
            if shape.kv_dtype == KvDtype::F32 {
                to.copy_from_slice(from);
            } else {
                self.kernels.round(from, to);
            }
        }
        to.o[..count * self.plan.v_columns].fill(0.0);
        to.states[..count].fill(RowState::EMPTY);
    }

    /// Lays the queries out for kernels that take a block in one call, where they have room. Only what reads pairs as they are stored leaves the
    /// panels alone afterwards.
    fn pack_queries(&self, bench: &mut Bench<'_>, rows: &TileRows<'_>) {
        let layout = self.call.keys.layout();
        let q = Rows { data: rows.q, stride: layout.head_dim, rows: self.rows.len() };
        bench.has_queries = self.kernels.folds_blocks(&layout, q.rows)
            && self.kernels.reads_pairs(&layout)
            && self.kernels.pack_queries(q, layout.head_dim, bench.panels);
    }

    /// The KV blocks that the tile's rows see.
    pub(crate) fn blocks(&self) -> Range<usize> {
        let first_key = self.call.params.window.map_or(0, |window| (self.position(0) + 1).saturating_sub(window));
        first_key / KV_BLOCK_TOKENS..self.position(self.rows.len() - 1) / KV_BLOCK_TOKENS + 1
    }

    /// Writes the results.
    pub(crate) fn finish(&self, from: &TileRows<'_>, out: RowsOut<'_>) {
        let shape = self.call.shape;
        for r in 0..self.rows.len() {
            let (row, head) = self.row_of_call(r);
            let sink = self.call.params.sinks.map(|sinks| sinks[head]);
            // SAFETY: each row of each head belongs to one tile of one KV head, and no range outlives this iteration.
            let out = unsafe { out.range(row * shape.v_head_dim, shape.v_head_dim) };
            let accumulated = &from.o[r * self.plan.v_columns..][..shape.v_head_dim];
            self.kernels.finish(accumulated, from.states[r], sink, out);
        }
    }

    /// Absolute position of the tile's row `r`.
    fn position(&self, r: usize) -> usize {
        self.call.start + (self.rows.start + r) / self.plan.group_size
    }

    /// Index of the tile's row `r` among all rows of all heads of the call, and its head.
    fn row_of_call(&self, r: usize) -> (usize, usize) {
        let r = self.rows.start + r;
        let group_size = self.plan.group_size;
        let head = self.kv_head * group_size + r % group_size;
        (self.call.index(r / group_size, head), head)
    }

    /// The tokens of a block that the tile's row `r` sees.
    pub(crate) fn visible(&self, r: usize, index: usize) -> Range<usize> {
        plain::visible(self.position(r), self.call.params.window, index * KV_BLOCK_TOKENS)
    }

    /// Folds a block into the outputs of the rows that see any of it.
    fn fold_block(&self, index: usize, bench: &mut Bench<'_>, rows: &mut TileRows<'_>) {
        let columns = self.plan.v_columns;
        let next = (index + 1 < self.blocks().end).then_some((index + 1, self.kv_head));
        if self.fold_at_once(index, bench, rows, next) {
            return;
        }
        self.block(index, bench, (rows.q, rows.states), next, |range, states, how| match how {
            Values::Product { p, values, k, columns: width, ahead } => {
                self.kernels.prefetch(ahead);
                let o = &mut rows.o[range.start * columns..];
                self.kernels.product_fold(p, values, k, width, states, o, columns);
            }
            Values::Row(values) => {
                values.fold(states[0], &mut rows.o[range.start * columns..][..values.layout.v_head_dim])
            }
        });
    }

    /// The rows that see any of a block: neighbours, since positions only grow.
    fn seeing(&self, index: usize) -> Range<usize> {
        let count = self.rows.len();
        let sees = |r: &usize| !self.visible(*r, index).is_empty();
        if sees(&0) && sees(&(count - 1)) {
            return 0..count;
        }
        let first = (0..count).find(sees).unwrap_or(count);
        first..(first..count).find(|r| !sees(r)).unwrap_or(count)
    }

    /// Whether these rows, which see some of a block, see all of it.
    fn see_all(&self, rows: &Range<usize>, index: usize) -> bool {
        // What later rows see begins later and ends later.
        [rows.start, rows.end - 1].iter().all(|&r| self.visible(r, index) == (0..KV_BLOCK_TOKENS))
    }

    /// [`Tile::fold_block`] by kernels that take a block in one call; `false` where there is none for this block, and nothing was done.
    fn fold_at_once(
        &self,
        index: usize,
        bench: &mut Bench<'_>,
        rows: &mut TileRows<'_>,
        next: Option<(usize, usize)>,
    ) -> bool {
        let layout = self.call.keys.layout();
        if !self.kernels.folds_blocks(&layout, self.rows.len()) {
            return false;
        }
        let range = self.seeing(index);
        if !self.kernels.folds_blocks(&layout, range.len()) {
            return false;
        }
        let is_whole = self.see_all(&range, index);
        let (block, head) = self.call.keys.block(index, self.kv_head, bench.packed);
        // The probability of a hidden token is 0, and 0 times infinity would be NaN. Tokens that no row sees are multiplied as well.
        if !is_whole && !all_finite(&layout, block, head, 0..KV_BLOCK_TOKENS) {
            return false;
        }
        let block = BlockOperands {
            q: Rows { data: &rows.q[range.start * layout.head_dim..], stride: layout.head_dim, rows: range.len() },
            packed_q: (bench.has_queries && range.start.is_multiple_of(PREFETCH_ROWS))
                .then(|| &bench.panels[range.start * layout.head_dim / 2..]),
            k: operand(&layout, block.k, head, layout.k_head_elements(), KV_BLOCK_TOKENS),
            v: operand(&layout, block.v, head, layout.v_head_elements(), layout.v_head_dim),
            how: &self.softmax(),
            head_dim: layout.head_dim,
            v_head_dim: layout.v_head_dim,
            is_whole,
        };
        let mut prefetch = Prefetch::new(self.stored(next), [range.len().div_ceil(PREFETCH_ROWS); 2]);
        let visible = |r| self.visible(range.start + r, index);
        let out = (&mut rows.o[range.start * self.plan.v_columns..], self.plan.v_columns);
        let states = &mut rows.states[range.clone()];
        self.kernels.fold_block(&block, visible, states, out, || prefetch.both(self.kernels));
        true
    }

    fn softmax(&self) -> Softmax {
        let AttnParams { scale, softcap, .. } = *self.call.params;
        Softmax { scale, softcap, bf16: self.call.shape.kv_dtype != KvDtype::F32 }
    }

    /// What is stored of a block and a KV head.
    fn stored(&self, place: Option<(usize, usize)>) -> [&[u8]; 2] {
        place.map_or([&[]; 2], |(index, head)| self.call.keys.stored(index, head))
    }

    /// Takes a block's scores into the states of the rows that see any of it, and hands what their values add to `add`: rows of the tile,
    /// their states, and the product. Meanwhile the keys and values of the block and KV head that come `next` are
    /// fetched.
    pub(crate) fn block(
        &self,
        index: usize,
        bench: &mut Bench<'_>,
        (q, states): (&[f32], &mut [RowState]),
        next: Option<(usize, usize)>,
        mut add: impl FnMut(Range<usize>, &[RowState], Values<'_>),
    ) {
        let layout = self.call.keys.layout();
        let visible = |r| self.visible(r, index);
        let range = self.seeing(index);
        if range.is_empty() {
            return;
        }
        let Range { start: first, end: last } = range;
        let tokens = visible(first).start.min(visible(last - 1).start)..visible(last - 1).end.max(visible(first).end);
        let whole = self.see_all(&range, index);
        let (block, head) = self.call.keys.block(index, self.kv_head, bench.packed);
        let seen = Seen { block, head, first, last, tokens, whole };

        let score_parts = KV_BLOCK_TOKENS / seen.score_columns(self.kernels);
        // Few rows read keys and values as fast as they come: the next ones are asked for while these are read, keys with keys.
        let parts = match seen.has_many_rows() {
            false => [score_parts, 1],
            true => [score_parts + range.len().div_ceil(PREFETCH_ROWS); 2],
        };
        let mut prefetch = Prefetch::new(self.stored(next), parts);
        let (k, v) = bench.panels.split_at_mut(bench.k_panels);
        self.scores(index, &layout, &seen, (k, bench.p), q, &mut prefetch);
        self.probabilities(index, &seen, bench.p, states, &self.softmax(), &mut prefetch);
        let ahead = if seen.has_many_rows() { &[] } else { prefetch.values() };
        self.values(index, &seen, (v, bench.p), states, ahead, &mut add);
    }

    fn scores(
        &self,
        index: usize,
        layout: &KvLayout,
        seen: &Seen<'_>,
        (k, p): (&mut [f32], &mut [f32]),
        q: &[f32],
        prefetch: &mut Prefetch<'_>,
    ) {
        let &Seen { first, last, whole, .. } = seen;
        let keys = operand(layout, seen.block.k, seen.head, layout.k_head_elements(), KV_BLOCK_TOKENS);
        let keys = self.unpacked(keys, layout.head_dim, KV_BLOCK_TOKENS, layout.head_dim, k);
        let width = seen.score_columns(self.kernels);
        for columns in (0..KV_BLOCK_TOKENS).step_by(width).map(|c| c..c + width) {
            let sees = |r: &usize| {
                let visible = self.visible(*r, index);
                visible.start < columns.end && columns.start < visible.end
            };
            let from = if whole { first } else { (first..last).find(sees).unwrap_or(last) };
            let to = if whole { last } else { (from..last).rev().find(sees).map_or(from, |r| r + 1) };
            let q = Rows { data: &q[from * layout.head_dim..], stride: layout.head_dim, rows: to - from };
            let p = &mut p[from * KV_BLOCK_TOKENS..];
            let ahead = prefetch.keys();
            self.kernels.product_ahead(q, keys, 0..layout.head_dim, columns, p, KV_BLOCK_TOKENS, ahead);
            if seen.has_many_rows() {
                self.kernels.prefetch(prefetch.values());
            }
        }
    }

    fn probabilities(
        &self,
        index: usize,
        seen: &Seen<'_>,
        p: &mut [f32],
        states: &mut [RowState],
        how: &Softmax,
        prefetch: &mut Prefetch<'_>,
    ) {
        for first in (seen.first..seen.last).step_by(PREFETCH_ROWS) {
            let rows = first..(first + PREFETCH_ROWS).min(seen.last);
            let scores = &mut p[rows.start * KV_BLOCK_TOKENS..rows.end * KV_BLOCK_TOKENS];
            if seen.whole {
                self.kernels.softmax_whole(scores, how, &mut states[rows]);
            } else {
                for (r, scores) in rows.zip(scores.chunks_exact_mut(KV_BLOCK_TOKENS)) {
                    self.kernels.softmax(scores, self.visible(r, index), how, &mut states[r]);
                }
            }
            if seen.has_many_rows() {
                prefetch.both(self.kernels);
            }
        }
    }

    fn values(
        &self,
        index: usize,
        seen: &Seen<'_>,
        (v, p): (&mut [f32], &[f32]),
        states: &[RowState],
        mut ahead: &[u8],
        add: &mut impl FnMut(Range<usize>, &[RowState], Values<'_>),
    ) {
        let layout = &self.call.keys.layout();
        let &Seen { block, head, first, last, ref tokens, whole } = seen;
        let visible = |r| self.visible(r, index);
        if !whole && !all_finite(layout, block, head, tokens.clone()) {
            // A hidden token's 0 times infinity would be NaN: take each row's own tokens only.
            for r in first..last {
                let p = &p[r * KV_BLOCK_TOKENS..][..KV_BLOCK_TOKENS];
                let values = RowValues { layout, block, head, visible: visible(r), p };
                add(r..r + 1, &states[r..=r], Values::Row(values));
            }
            return;
        }
        let values = operand(layout, block.v, head, layout.v_head_elements(), layout.v_head_dim);
        let (values, columns) = match self.unpacked(values, tokens.end, layout.v_head_dim, KV_BLOCK_TOKENS, v) {
            panels @ Operand::Panels { .. } => (panels, self.plan.v_columns),
            direct => (direct, layout.v_head_dim),
        };
        let step = if whole { last - first } else { CUT_ROWS };
        for from in (first..last).step_by(step) {
            let to = (from + step).min(last);
            let k_start = visible(from).start.min(visible(to - 1).start);
            let k_end = visible(from).end.max(visible(to - 1).end);
            let p = Rows { data: &p[from * KV_BLOCK_TOKENS..], stride: KV_BLOCK_TOKENS, rows: to - from };
            let k = k_start - k_start % 2..k_end;
            add(from..to, &states[from..to], Values::Product { p, values, k, columns, ahead: mem::take(&mut ahead) });
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
        if !self.plan.unpack || self.kernels.reads_pairs(&self.call.keys.layout()) {
            return operand;
        }
        let panels = &mut panels[..columns.next_multiple_of(PANEL) * panel_k];
        self.kernels.unpack(operand, k, columns, panel_k, panels);
        Operand::Panels { data: panels, k: panel_k }
    }
}

/// What the values of a block add to some rows.
pub(crate) enum Values<'a> {
    /// `p` times `values`; the bytes `ahead` are read soon.
    Product { p: Rows<'a>, values: Operand<'a>, k: Range<usize>, columns: usize, ahead: &'a [u8] },
    /// Those of the tokens that one row sees, by the definition.
    Row(RowValues<'a>),
}

/// One head's part of a block as stored, `[k, stride]`.
fn operand<'b>(layout: &KvLayout, bytes: &'b [u8], at: usize, len: usize, stride: usize) -> Operand<'b> {
    match layout.dtype {
        KvDtype::F32 => Operand::F32 { data: head(bytes, at, len), stride },
        KvDtype::F16 => Operand::F16 { data: head(bytes, at, len / 2), stride },
        KvDtype::Bf16 => Operand::Bf16 { data: head(bytes, at, len / 2), stride },
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
