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
const LOOK: Duration = Duration::from_millis(10);

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

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Blocks in `jobs` and the one being written, how often each.
    pending: HashMap<Key, usize>,
    bytes: u64,
    is_busy: bool,
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

    /// What is not begun; the caller lets go of it without the lock.
    fn take_all(&self) -> VecDeque<Job> {
        let mut state = self.state();
        let jobs = mem::take(&mut state.jobs);
        for job in &jobs {
            if let Job::Write(block) = job {
                state.forget(block);
            }
        }
        self.changed.notify_all();
        jobs
    }
}

impl State {
    fn forget(&mut self, block: &Block) {
        self.bytes -= block.bytes();
        if let Some(count) = self.pending.get_mut(&block.key) {
            *count -= 1;
            if *count == 0 {
                self.pending.remove(&block.key);
            }
        }
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
        let work = move || tracing::dispatcher::with_default(&log, || Ended(&queue_of_thread).run(&of_thread));
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
                has_waited = true;
                state = self.queue.wait(state);
            }
            if state.is_closed {
                break;
            }
            state.bytes += bytes;
            *state.pending.entry(block.key).or_default() += 1;
            state.jobs.push_back(Job::Write(block));
            self.queue.changed.notify_all();
        }
        drop(state);
        self.files.folder.count(|stats| stats.waits_for_queue += u64::from(has_waited));
    }

    /// Marks the files of a chain as used, some time soon.
    pub(super) fn touch(&self, chain: Vec<Key>) {
        let mut state = self.queue.state();
        if !state.is_closed {
            state.jobs.push_back(Job::Touch(chain));
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

    /// Waits until all is written and will last; once `is_cancelled`, what is not begun is dropped.
    pub(super) fn finish(&self, is_cancelled: &dyn Fn() -> bool) {
        let mut state = self.queue.state();
        while state.is_busy || !state.jobs.is_empty() {
            if !state.jobs.is_empty() && is_cancelled() {
                drop(state);
                let dropped = self.queue.take_all();
                self.files.dropped(dropped.iter().filter_map(|job| match job {
                    Job::Write(block) => Some(block.key),
                    Job::Touch(_) => None,
                }));
                drop(dropped);
                state = self.queue.state();
                continue;
            }
            let timed = self.queue.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner);
            state = timed.0;
        }
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
struct Ended<'a>(&'a Queue);

impl Ended<'_> {
    fn run(&self, files: &Files) {
        let mut has_new_names = false;
        while let Some(job) = self.next(&mut has_new_names, files) {
            match job {
                Job::Touch(chain) => files.touch(&chain),
                Job::Write(block) => {
                    has_new_names |= files.write(&block);
                    self.0.state().forget(&block);
                    drop(block);
                    self.0.changed.notify_all();
                }
            }
        }
    }

    /// The next job. Where there is none, the folder is written to the device: once for all files since.
    fn next(&self, has_new_names: &mut bool, files: &Files) -> Option<Job> {
        let mut state = self.0.state();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                state.is_busy = true;
                return Some(job);
            }
            if mem::take(has_new_names) {
                drop(state);
                files.folder.sync();
                state = self.0.state();
                continue;
            }
            state.is_busy = false;
            self.0.changed.notify_all();
            if state.is_closed {
                return None;
            }
            state = self.0.wait(state);
        }
    }
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        (state.is_closed, state.is_busy) = (true, false);
        state.pending.clear();
        let jobs = mem::take(&mut state.jobs);
        state.bytes = 0;
        drop(state);
        drop(jobs);
        self.0.changed.notify_all();
    }
}
