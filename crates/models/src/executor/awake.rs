//! Keeps the threads of a pool awake for the time of a pass.
//!
//! A decoded token has a hundred parallel sections of some ten microseconds. Between two of them a thread of the pool would fall asleep, and to
//! wake it takes longer than its share of the work: a call of the system, and an interrupt where the processor itself has gone idle. The thread
//! that runs the pass waits as rayon does; its waits are short.

use std::{
    hint,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Looks for work, one after the other, before the processor is offered to others in between.
const EAGER_LOOKS: u32 = 64;
/// A thread that finds no work for so long may sleep after all, for the rest of the pass.
const MOST_IDLE: Duration = Duration::from_millis(10);

/// Whether the threads of a pool of this size may be kept awake: not where they would take turns on the same processors.
pub(super) fn is_affordable(threads: usize) -> bool {
    threads > 1 && thread::available_parallelism().is_ok_and(|processors| threads <= processors.get())
}

/// Runs `work` on this thread of a pool, and keeps the others looking for what it spawns.
pub(super) fn keep_awake<R>(work: impl FnOnce() -> R) -> R {
    let is_done = AtomicBool::new(false);
    let owner = rayon::current_thread_index();
    rayon::in_place_scope(|scope| {
        // To each thread one task of its own, which it comes by before it takes work from others: never in the middle of any, where those who
        // wait for that work would wait for the end of the pass.
        scope.spawn_broadcast(|_, context| {
            if Some(context.index()) != owner {
                watch(&is_done);
            }
        });
        // Also where the work panics: the scope waits for the others.
        let _done = Done(&is_done);
        work()
    })
}

/// Takes what work there is until `is_done`, or until there has been none for [`MOST_IDLE`].
fn watch(is_done: &AtomicBool) {
    let (mut looks, mut idle_since) = (0, Instant::now());
    while !is_done.load(Ordering::Acquire) {
        match rayon::yield_now() {
            Some(rayon::Yield::Executed) => looks = 0,
            Some(rayon::Yield::Idle) => {
                if looks == 0 {
                    idle_since = Instant::now();
                } else if looks % EAGER_LOOKS == 0 && idle_since.elapsed() > MOST_IDLE {
                    return;
                }
                if looks < EAGER_LOOKS {
                    hint::spin_loop();
                } else {
                    thread::yield_now();
                }
                looks += 1;
            }
            None => return,
        }
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
        sync::{Barrier, atomic::AtomicUsize},
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
                    keep_awake(|| {
                        (0..64_u64).into_par_iter().map(|i| (0..i + round).into_par_iter().sum::<u64>()).sum::<u64>()
                    })
                });
                assert_eq!(sum, (0..64).map(|i| (0..i + round).sum::<u64>()).sum::<u64>());
            }
        }
    }

    #[test]
    fn every_other_thread_takes_work() {
        const THREADS: usize = 4;
        let together = Barrier::new(THREADS);
        // It would not end if one of the threads did not come.
        pool(THREADS).install(|| {
            keep_awake(|| {
                rayon::in_place_scope(|scope| {
                    for _ in 1..THREADS {
                        scope.spawn(|_| {
                            together.wait();
                        });
                    }
                    together.wait();
                });
            });
        });
    }

    #[test]
    fn threads_without_work_sleep_after_a_while() {
        let pool = pool(2);
        let is_done = AtomicBool::new(false);
        // Nobody sets `is_done`.
        pool.install(|| watch(&is_done));
    }

    #[test]
    fn a_panic_in_the_work_releases_the_threads() {
        let pool = pool(3);
        for _ in 0..50 {
            let work = AssertUnwindSafe(|| pool.install(|| keep_awake(|| -> () { panic!("in the work") })));
            assert!(panic::catch_unwind(work).is_err());
        }
        let ran = AtomicUsize::new(0);
        pool.broadcast(|_| ran.fetch_add(1, Ordering::Relaxed));
        assert_eq!(ran.into_inner(), 3);
    }

    #[test]
    fn one_thread_and_more_than_there_are_processors_are_let_sleep() {
        assert!(!is_affordable(1));
        assert!(!is_affordable(usize::MAX));
    }
}
