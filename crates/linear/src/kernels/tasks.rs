//! Tasks that take numbered items from one counter.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Items per task: enough that a task that is late costs little.
pub(super) const ITEMS_PER_TASK: usize = 8;

/// The items left, none once `stop` is set; every task pulls from the same counter, so each item goes to one task once.
#[derive(Debug)]
pub(super) struct Items<'a> {
    next: &'a AtomicUsize,
    end: usize,
    stop: &'a AtomicBool,
}

impl Iterator for Items<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let item = self.next.fetch_add(1, Ordering::Relaxed);
        (item < self.end && !self.stop.load(Ordering::Relaxed)).then_some(item)
    }
}

/// Runs `task` `tasks` times at once (0 counts as 1; 1 runs inline), each with its own `slice` elements of `scratch`, until `items` items
/// are taken or `stop` is set.
pub(super) fn run(
    items: usize,
    tasks: usize,
    scratch: &mut [f32],
    slice: usize,
    stop: &AtomicBool,
    task: impl Fn(Items<'_>, &mut [f32]) + Sync,
) {
    let next = AtomicUsize::new(0);
    let task = |scratch: &mut [f32]| task(Items { next: &next, end: items, stop }, scratch);
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
