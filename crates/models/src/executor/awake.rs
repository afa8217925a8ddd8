//! Keeps the threads of a pool awake for the time of a pass.
//!
//! A decoded token has a hundred parallel sections of some ten microseconds. Between two of them a thread of the pool would fall asleep, and to
//! wake it takes longer than its share of the work: a call of the system, and an interrupt where the processor itself has gone idle.

use std::{
    cell::Cell,
    hint,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

/// Looks for work, one after the other, before the processor is offered to others in between.
const EAGER_LOOKS: usize = 64;
/// Looks for work without finding any after which a thread may sleep after all: some ten milliseconds.
const MOST_LOOKS: usize = 1 << 14;

thread_local! {
    /// Whether this thread watches, or does the work that is watched.
    static IS_TAKEN: Cell<bool> = const { Cell::new(false) };
}

/// Threads of a pool of `threads` that may be kept awake: none where they would take turns on the same cores.
pub(super) fn helpers(threads: usize) -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    if threads > cores { 0 } else { threads.saturating_sub(1) }
}

/// Runs `work`, and keeps `helpers` other threads of the current pool looking for what it spawns.
pub(super) fn keep_awake<R>(helpers: usize, work: impl FnOnce() -> R) -> R {
    if helpers == 0 {
        return work();
    }
    let is_done = AtomicBool::new(false);
    rayon::in_place_scope(|scope| {
        let _taken = Taken::new();
        for _ in 0..helpers {
            scope.spawn(|_| watch(&is_done));
        }
        // Also where the work panics: the scope waits for the helpers.
        let _done = Done(&is_done);
        work()
    })
}

/// Takes what work there is until `is_done`, or until there has been none for long.
///
/// A thread that waits for others may come by such a task as well, in the middle of its own work. It must not stay here, or they would wait for
/// each other. The thread that spawned it, and one that watches already, see that and go on; there is one helper less then. No third one comes
/// by it in the middle of work: what was spawned first is taken first. Were it otherwise, it would go on once there is nothing to take.
fn watch(is_done: &AtomicBool) {
    if IS_TAKEN.get() {
        return;
    }
    let _taken = Taken::new();
    let mut looks = 0;
    while looks < MOST_LOOKS && !is_done.load(Ordering::Acquire) {
        match rayon::yield_now() {
            Some(rayon::Yield::Executed) => looks = 0,
            Some(rayon::Yield::Idle) => {
                looks += 1;
                if looks < EAGER_LOOKS {
                    hint::spin_loop();
                } else {
                    thread::yield_now();
                }
            }
            None => return,
        }
    }
}

/// Marks this thread until dropped.
struct Taken(bool);

impl Taken {
    fn new() -> Self {
        Self(IS_TAKEN.replace(true))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        IS_TAKEN.set(self.0);
    }
}

/// Says so when dropped.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rayon::prelude::*;
    use std::{
        panic::{self, AssertUnwindSafe},
        sync::atomic::AtomicUsize,
    };

    fn pool(threads: usize) -> rayon::ThreadPool {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
    }

    #[test]
    fn nested_work_comes_to_its_end_however_tasks_are_taken() {
        for threads in 1..=5 {
            let pool = pool(threads);
            for round in 0..200 {
                let sum = pool.install(|| {
                    keep_awake(threads - 1, || {
                        (0..64_u64).into_par_iter().map(|i| (0..i + round).into_par_iter().sum::<u64>()).sum::<u64>()
                    })
                });
                assert_eq!(sum, (0..64).map(|i| (0..i + round).sum::<u64>()).sum::<u64>());
            }
        }
    }

    #[test]
    fn a_panic_in_the_work_releases_the_helpers() {
        let pool = pool(3);
        for _ in 0..50 {
            let work = AssertUnwindSafe(|| pool.install(|| keep_awake(2, || -> () { panic!("in the work") })));
            assert!(panic::catch_unwind(work).is_err());
        }
        let ran = AtomicUsize::new(0);
        pool.broadcast(|_| ran.fetch_add(1, Ordering::Relaxed));
        assert_eq!(ran.into_inner(), 3);
    }

    #[test]
    fn more_threads_than_cores_are_let_sleep() {
        assert_eq!(helpers(1), 0);
        assert_eq!(helpers(usize::MAX), 0);
    }
}
