//! The thread that writes, and the queue before it.
//!
//! The queue holds slabs, not copies: whoever publishes has seen to it that they stay paid for, or waits until they are written. A full
//! queue waits too: a block left out would make all blocks behind it worthless, and waiting costs no more than writing at once would.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{io, mem};

use super::super::key::Key;
use super::Files;
use crate::slab::CachedSlab;

/// Most bytes of blocks that wait to be written, unless a single one has more.
pub(super) const QUEUE_BYTES: u64 = 64 << 20;

/// How often a wait looks whether it was given up.
const CANCEL_INTERVAL: Duration = Duration::from_millis(10);

/// A block on its way to the disk.
#[derive(Debug)]
pub(in super::super) struct Block {
    pub(in super::super) key: Key,
    /// The first key of its chain, and how many blocks are between.
    pub(in super::super) first: Key,
    pub(in super::super) place: usize,
    pub(in super::super) parts: Vec<(usize, CachedSlab)>,
}

impl Block {
    fn bytes(&self) -> u64 {
        self.parts.iter().map(|(_, slab)| slab.bytes()).sum()
    }
}

#[derive(Debug)]
enum Job {
    Write(Block),
    /// A chain was used.
    Touch(Vec<Key>),
}

/// Jobs are done in the order in which they came: "the first `n`" is a number of jobs since the start.
#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Jobs that ever came.
    added: u64,
    /// The first so many are done and will last.
    lasting: u64,
    /// If more than `lasting`, the first so many are waited for: the folder is flushed as soon as they are done, whatever came after them.
    wanted: u64,
    /// Blocks in `jobs` and the one being written, how often each.
    pending: HashMap<Key, usize>,
    bytes: u64,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        // Counts change together, with nothing between that may panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of blocks that the caller has let go of.
    fn forget(&self, blocks: &[(Key, u64)]) {
        let mut state = self.state();
        for (key, bytes) in blocks {
            state.bytes -= bytes;
            if let Some(count) = state.pending.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    state.pending.remove(key);
                }
            }
        }
        self.changed.notify_all();
    }
}

impl State {
    fn add(&mut self, job: Job) {
        self.jobs.push_back(job);
        self.added += 1;
    }

    /// Those that are done or under way.
    fn begun(&self) -> u64 {
        self.added - self.jobs.len() as u64
    }
}

/// The writer; dropping it waits until all is written.
#[derive(Debug)]
pub(super) struct Writer {
    files: Arc<Files>,
    queue: Arc<Queue>,
    limit_bytes: u64,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(files: Arc<Files>, limit_bytes: u64) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let (of_thread, queue_of_thread) = (Arc::clone(&files), Arc::clone(&queue));
        // What it has to tell goes where its maker's words go.
        let log = tracing::dispatcher::get_default(Clone::clone);
        let work = move || {
            tracing::dispatcher::with_default(&log, || {
                Worker { queue: &queue_of_thread, files: &of_thread }.run();
            })
        };
        let thread = Some(thread::Builder::new().name("plimsoll-prefix-cache".to_owned()).spawn(work)?);
        Ok(Self { files, queue, limit_bytes, thread })
    }

    /// Hands blocks of one chain over, in its order. Waits while the queue is full.
    pub(super) fn write(&self, blocks: Vec<Block>) {
        let mut state = self.queue.state();
        let mut has_waited = false;
        for block in blocks {
            let bytes = block.bytes();
            while !state.is_closed && state.bytes > 0 && state.bytes.saturating_add(bytes) > self.limit_bytes {
                if !mem::replace(&mut has_waited, true) {
                    self.files.folder.count(|stats| stats.waits_for_queue += 1);
                }
                state = self.queue.wait(state);
            }
            if state.is_closed {
                // The thread has failed.
                self.files.left_out(block.key, |stats| stats.left_out_for_fault += 1);
                continue;
            }
            state.bytes += bytes;
            *state.pending.entry(block.key).or_default() += 1;
            state.add(Job::Write(block));
            self.queue.changed.notify_all();
        }
    }

    /// Marks the files of a chain as used, some time soon.
    pub(super) fn touch(&self, chain: Vec<Key>) {
        let mut state = self.queue.state();
        if !state.is_closed {
            state.add(Job::Touch(chain));
            self.queue.changed.notify_all();
        }
    }

    /// Waits until none of these blocks is on its way.
    pub(super) fn wait_for(&self, keys: &[Key]) {
        let mut state = self.queue.state();
        while !state.pending.is_empty() && keys.iter().any(|key| state.pending.contains_key(key)) {
            state = self.queue.wait(state);
        }
    }

    /// Waits until all that came before the call is written and will last; once `is_cancelled`, what of it is not begun is dropped. What
    /// others hand over in the meantime is not waited for.
    pub(super) fn finish(&self, is_cancelled: &dyn Fn() -> bool) {
        let mut state = self.queue.state();
        let wanted = state.added;
        while state.lasting < wanted {
            if state.wanted <= state.lasting {
                state.wanted = wanted;
            }
            if state.begun() < wanted && is_cancelled() {
                let kept = usize::try_from(state.added - wanted).unwrap_or(usize::MAX).min(state.jobs.len());
                let count = state.jobs.len() - kept;
                let jobs: Vec<Job> = state.jobs.drain(..count).collect();
                drop(state);
                self.cancel(jobs);
                state = self.queue.state();
                continue;
            }
            let timed = self.queue.changed.wait_timeout(state, CANCEL_INTERVAL).unwrap_or_else(PoisonError::into_inner);
            state = timed.0;
        }
    }

    fn cancel(&self, jobs: Vec<Job>) {
        let blocks: Vec<Block> = jobs
            .into_iter()
            .filter_map(|job| match job {
                Job::Write(block) => Some(block),
                Job::Touch(_) => None,
            })
            .collect();
        let held: Vec<(Key, u64)> = blocks.iter().map(|block| (block.key, block.bytes())).collect();
        self.files.cancelled(held.iter().map(|(key, _)| *key));
        drop(blocks);
        self.queue.forget(&held);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.queue.state().is_closed = true;
        self.queue.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It told of its panic when that happened.
            let _ = thread.join();
        }
    }
}

/// The thread's side: when it ends, nobody waits for it any more.
struct Worker<'a> {
    queue: &'a Queue,
    files: &'a Files,
}

impl Worker<'_> {
    fn run(&self) {
        let mut has_new_names = false;
        while let Some(job) = self.next(&mut has_new_names) {
            match job {
                Job::Touch(chain) => self.files.touch(&chain),
                Job::Write(block) => {
                    has_new_names |= self.files.write(&block);
                    let held = (block.key, block.bytes());
                    // First: a queue that says that it has room holds no more.
                    drop(block);
                    self.queue.forget(&[held]);
                }
            }
        }
    }

    /// The next job. Before the thread rests, and where someone waits for what is done, the folder is written to the device: once for all
    /// files since.
    fn next(&self, has_new_names: &mut bool) -> Option<Job> {
        let mut state = self.queue.state();
        loop {
            // None is under way.
            let done = state.begun();
            let is_waited_for = (state.lasting + 1..=done).contains(&state.wanted);
            if state.lasting < done && (is_waited_for || state.jobs.is_empty()) {
                if mem::take(has_new_names) {
                    drop(state);
                    self.files.folder.sync();
                    state = self.queue.state();
                }
                state.lasting = done;
                self.queue.changed.notify_all();
            } else if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            } else if state.is_closed {
                return None;
            } else {
                state = self.queue.wait(state);
            }
        }
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.is_closed = true;
        let (jobs, pending) = (mem::take(&mut state.jobs), mem::take(&mut state.pending));
        (state.bytes, state.lasting) = (0, state.added);
        drop(state);
        drop(jobs);
        // None, but where it failed.
        for (key, count) in pending {
            self.files.left_out(key, |stats| stats.left_out_for_fault += count as u64);
        }
        self.queue.changed.notify_all();
    }
}
