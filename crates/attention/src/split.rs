//! Calls of a few rows: tasks share out the blocks of each KV head, and their results are folded in block order.
//!
//! Results wait in a ring of slots until those before them are folded, so the scratch does not grow with the keys. Whoever finds the fold
//! free does it; no task waits for another to start, only for a free slot. What a block gives does not depend on the others, so a row has
//! the bits that it has without the split.
#![expect(unsafe_code, reason = "tasks write disjoint slots of one buffer")]

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::kernels::{Kernels, RowState, RowsOut};
use crate::plan::{MAX_SLOTS, Plan};
use crate::tile::{Call, Tile, TileRows, Values, in_tasks, scratch};

/// Fewer bytes of keys and values than this are read sooner than another thread is woken.
const SHARED_BYTES: usize = 2 << 20;
/// Fewest items for each task where tasks take one ahead.
const AHEAD_ITEMS: usize = 8;

/// Runs a call whose plan is split: one tile of rows for each KV head.
pub(crate) fn run<K: Kernels>(kernels: K, plan: &Plan, call: &Call<'_>, out: RowsOut<'_>, mut floats: &mut [f32]) {
    let [q, o, states, products, block_states] = plan.shared_parts().map(|len| {
        let part;
        (part, floats) = std::mem::take(&mut floats).split_at_mut(len);
        part
    });
    let states: &mut [RowState] = bytemuck::cast_slice_mut(states);
    let rows = plan.tile_rows;
    let (q_len, o_len) = (rows * plan.head_dim, rows * plan.v_columns);
    let tile = |kv_head| Tile { kernels, plan, call, kv_head, rows: 0..plan.axis_rows };
    for head in 0..plan.kv_heads {
        let (q, o) = (&mut q[head * q_len..][..q_len], &mut o[head * o_len..][..o_len]);
        tile(head).start(&mut TileRows { q, o, states: &mut states[head * rows..][..rows] });
    }

    let blocks = tile(0).blocks();
    let ring = Ring::new(plan, blocks, RowsOut::new(products), RowsOut::new(block_states));
    let fold = Mutex::new(Fold { o: &mut *o, states: &mut *states });
    let q = &*q;
    let layout = call.keys.layout();
    // Values that are in the keys count as read: they are, to be transposed.
    let item_bytes = (layout.k_block_bytes() + layout.v_block_bytes()) / layout.kv_heads;
    let tasks = if ring.items() * item_bytes < SHARED_BYTES { 1 } else { plan.tasks };
    // With few items, one that waits for its task would be missed by another.
    let takes_ahead = ring.items() >= AHEAD_ITEMS * tasks;
    in_tasks(&mut floats[..plan.task_floats() * tasks], plan.task_floats(), |floats| {
        let (mut bench, _) = scratch(plan, floats);
        let _alarm = Alarm(&ring);
        let mut next = ring.take();
        while let Some(item) = next {
            // Taken one ahead: what is prefetched meanwhile comes to the core that will read it.
            next = if takes_ahead { ring.take() } else { None };
            if !ring.wait_for_slot(item, || ring.fold(&fold, tile)) {
                return;
            }
            let (block, head) = ring.place(item);
            // SAFETY: the item is this task's alone, and what its slot held before is folded.
            let (to, states) = unsafe { ring.slot(item) };
            states.fill(RowState::EMPTY);
            let ahead = next.map(|item| ring.place(item));
            let rows = (&q[head * q_len..][..q_len], states);
            tile(head).block(block, &mut bench, rows, ahead, |range, _, values| {
                let to = &mut to[range.start * plan.v_columns..];
                match values {
                    Values::Product { p, values, k, columns, ahead } => {
                        kernels.product_ahead(p, values, k, 0..columns, to, plan.v_columns, ahead);
                    }
                    Values::Row(values) => {
                        for (dim, to) in to.iter_mut().take(values.layout.v_head_dim).enumerate() {
                            *to = values.sum(dim);
                        }
                    }
                }
            });
            ring.finish(item);
            ring.fold(&fold, tile);
            if !takes_ahead {
                next = ring.take();
            }
        }
    });
    // The last results may have come while another task was about to leave the fold.
    ring.fold(&fold, tile);

    for head in 0..plan.kv_heads {
        let (o, states) = (&mut o[head * o_len..][..o_len], &mut states[head * rows..][..rows]);
        tile(head).finish(&TileRows { q: &mut [], o, states }, out);
    }
}

/// Outputs and states of all heads, as far as they are folded.
struct Fold<'a> {
    o: &'a mut [f32],
    states: &'a mut [RowState],
}

/// Blocks of heads, numbered block by block, on their way from a task to the fold.
struct Ring<'a> {
    plan: &'a Plan,
    blocks: Range<usize>,
    /// Items that tasks have taken.
    next: AtomicUsize,
    /// Items that are folded: all before this one.
    folded: AtomicUsize,
    /// Of each slot, one more than the item whose result it holds.
    done: [AtomicUsize; MAX_SLOTS],
    /// Whether a task has panicked. Not told by `folded`: a fold that is under way would write over it.
    failed: AtomicBool,
    products: RowsOut<'a>,
    states: RowsOut<'a>,
}

/// Lets the other tasks end when one of them panics: they would wait for its result. Every call has a ring of its own, so the next call does
/// not know of it.
struct Alarm<'a>(&'a Ring<'a>);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.store(true, Ordering::Release);
            self.0.next.store(usize::MAX / 2, Ordering::Relaxed);
        }
    }
}

impl<'a> Ring<'a> {
    fn new(plan: &'a Plan, blocks: Range<usize>, products: RowsOut<'a>, states: RowsOut<'a>) -> Self {
        Self {
            plan,
            blocks,
            next: AtomicUsize::new(0),
            folded: AtomicUsize::new(0),
            done: [const { AtomicUsize::new(0) }; MAX_SLOTS],
            failed: AtomicBool::new(false),
            products,
            states,
        }
    }

    fn items(&self) -> usize {
        self.blocks.len() * self.plan.kv_heads
    }

    fn take(&self) -> Option<usize> {
        Some(self.next.fetch_add(1, Ordering::Relaxed)).filter(|&item| item < self.items())
    }

    /// Block and KV head of an item.
    fn place(&self, item: usize) -> (usize, usize) {
        (self.blocks.start + item / self.plan.kv_heads, item % self.plan.kv_heads)
    }

    /// Product and states of an item's slot.
    ///
    /// # Safety
    /// No other task uses the slot meanwhile.
    #[expect(clippy::mut_from_ref, reason = "the safety contract keeps slots apart")]
    unsafe fn slot(&self, item: usize) -> (&mut [f32], &mut [RowState]) {
        let (rows, slot) = (self.plan.tile_rows, item % self.plan.slots());
        let (len, state_len) = (rows * self.plan.v_columns, rows * (size_of::<RowState>() / size_of::<f32>()));
        // SAFETY: the caller's promise.
        let (product, states) =
            unsafe { (self.products.range(slot * len, len), self.states.range(slot * state_len, state_len)) };
        (product, bytemuck::cast_slice_mut(states))
    }

    /// Waits until the item's slot is free; `false` if it never will be, because another task has panicked.
    fn wait_for_slot(&self, item: usize, help: impl Fn()) -> bool {
        while item >= self.folded.load(Ordering::Acquire) + self.plan.slots() {
            if self.failed.load(Ordering::Acquire) {
                return false;
            }
            help();
            std::thread::yield_now();
        }
        true
    }

    fn finish(&self, item: usize) {
        self.done[item % self.plan.slots()].store(item + 1, Ordering::Release);
    }

    /// Folds what has come, unless another task is at it.
    fn fold<'t, K: Kernels>(&self, fold: &Mutex<Fold<'_>>, tile: impl Fn(usize) -> Tile<'t, K>) {
        let Ok(mut fold) = fold.try_lock() else { return };
        let Fold { o, states } = &mut *fold;
        let (plan, rows) = (self.plan, self.plan.tile_rows);
        loop {
            let item = self.folded.load(Ordering::Relaxed);
            if item >= self.items() || self.done[item % plan.slots()].load(Ordering::Acquire) != item + 1 {
                return;
            }
            let (block, head) = self.place(item);
            let tile = tile(head);
            // SAFETY: the item's task is done with its slot, and none takes it before `folded` moves on.
            let (products, of_block) = unsafe { self.slot(item) };
            for r in (0..plan.axis_rows).filter(|&r| !tile.visible(r, block).is_empty()) {
                let state = &mut states[head * rows + r];
                state.fold(of_block[r].max, of_block[r].sum);
                let o = &mut o[(head * rows + r) * plan.v_columns..][..plan.v_head_dim];
                tile.kernels.fold(&products[r * plan.v_columns..][..plan.v_head_dim], *state, o);
            }
            self.folded.store(item + 1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AttnShape, KvDtype};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_panic_of_one_task_ends_the_wait_of_the_others_though_a_fold_was_under_way() {
        let (kv_dtype, window) = (KvDtype::Bf16, None);
        let shape = AttnShape {
            rows: 1,
            kv_len: 1 << 14,
            heads: 1,
            kv_heads: 1,
            head_dim: 64,
            v_head_dim: 64,
            kv_dtype,
            kv_values: crate::KvValues::Own,
            window,
        };
        let plan = Plan::new(&shape, 2);
        assert!(plan.split);
        let ring = Ring::new(&plan, 0..256, RowsOut::new(&mut []), RowsOut::new(&mut []));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _alarm = Alarm(&ring);
            panic!("a task fails");
        }));
        assert!(panicked.is_err());
        // The slot of an item within the ring is free whatever happened; the one behind it waits for what will not come.
        let slots = plan.slots();
        assert!(ring.wait_for_slot(slots - 1, || {}));
        // Another task had begun to fold the first item before, and ends after it.
        ring.folded.store(1, Ordering::Release);
        assert!(!ring.wait_for_slot(slots + 1, || {}));
    }
}
