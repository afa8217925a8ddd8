//! The peak of a backend that allocates by itself: a pool that rounds up and holds freed buffers until a flush.

use crate::layout::Moment;
use crate::liveness::Event;
use crate::plan::Recorder;
use crate::{CostModel, Dims, FlushMeter, MemoryPlan, Program, Slot};

/// How a pool rounds the size of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// Up to the next power of two, as candle's Metal pool.
    PowerOfTwo,
    /// Up to a multiple of this many bytes; 0 and 1 do not round.
    Multiple(u64),
}

impl Rounding {
    /// Bytes of the buffer for a request; no buffer for 0 bytes. Saturates.
    pub const fn round(self, bytes: u64) -> u64 {
        let rounded = match self {
            _ if bytes == 0 => Some(0),
            Self::PowerOfTwo => bytes.checked_next_power_of_two(),
            Self::Multiple(unit) if unit > 1 => bytes.checked_next_multiple_of(unit),
            Self::Multiple(_) => Some(bytes),
        };
        match rounded {
            Some(rounded) => rounded,
            None => u64::MAX,
        }
    }
}

/// An allocator that stands in for arena offsets where the executor has none.
///
/// A request takes the smallest free buffer that holds it, however large, else a new one; a released buffer stays in
/// the pool until a flush. That is candle's Metal pool (candle 0.11), with the flush of [`FlushMeter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolModel {
    /// How requests are rounded.
    pub rounding: Rounding,
    /// Threshold of the executor's [`FlushMeter`]; `None` if it never flushes within a pass.
    pub flush_threshold_bytes: Option<u64>,
}

impl Program {
    /// The memory of a pass in a pool: `peak_bytes` is all the pool holds, free buffers included, and the other figures
    /// are rounded as the pool rounds. The body of a scan is counted once: its buffers come back from the pool.
    pub fn pool_plan(&self, dims: &Dims, cost: &dyn CostModel, model: &PoolModel) -> MemoryPlan {
        let mut plan = MemoryPlan::default();
        let mut recorder = Recorder::new(self, &mut plan);
        let mut pool = Pool::default();
        let mut buffers = vec![0u64; self.slots.len()];
        let mut scratch = vec![0u64; self.step_count()];
        let mut meter = model.flush_threshold_bytes.map(FlushMeter::new);
        let mut flush = false;
        for (event, happens) in self.schedule.events.iter().enumerate() {
            // Run, account, release, flush: the releases of a step are behind us once anything else follows.
            if flush && !matches!(happens, Event::Free(_)) {
                pool.flush();
                flush = false;
            }
            match *happens {
                Event::Place(slot) => buffers[slot.index()] = pool.take(model.rounding.round(self.bytes(slot, dims))),
                Event::Enter(step) => {
                    let bytes = model.rounding.round(cost.scratch_bytes(self, &self.step(step).op, dims));
                    let live_bytes = pool.used_bytes;
                    let scratch_bytes = pool.take(bytes);
                    scratch[step.index()] = scratch_bytes;
                    let high_water_bytes = pool.high_water_bytes;
                    recorder.observe(Moment { event, step, live_bytes, scratch_bytes, high_water_bytes });
                }
                Event::Leave(step) => {
                    pool.give(scratch[step.index()]);
                    flush |= meter.as_mut().is_some_and(|meter| meter.account(self, step, dims));
                }
                Event::Free(slot) => pool.give(buffers[slot.index()]),
            }
        }
        recorder.finish(pool.high_water_bytes, |slot: Slot| buffers[slot.index()]);
        plan
    }
}

/// The pool while a pass is walked.
#[derive(Debug, Default)]
struct Pool {
    /// Sizes of free buffers, ascending.
    free: Vec<u64>,
    used_bytes: u64,
    held_bytes: u64,
    high_water_bytes: u64,
}

impl Pool {
    /// Takes a buffer of at least `bytes` and returns its size.
    fn take(&mut self, bytes: u64) -> u64 {
        if bytes == 0 {
            return 0;
        }
        let index = self.free.partition_point(|&size| size < bytes);
        let size = if index < self.free.len() {
            self.free.remove(index)
        } else {
            self.held_bytes = self.held_bytes.saturating_add(bytes);
            self.high_water_bytes = self.high_water_bytes.max(self.held_bytes);
            bytes
        };
        self.used_bytes = self.used_bytes.saturating_add(size);
        size
    }

    fn give(&mut self, size: u64) {
        if size == 0 {
            return;
        }
        self.used_bytes = self.used_bytes.saturating_sub(size);
        let index = self.free.partition_point(|&other| other < size);
        self.free.insert(index, size);
    }

    fn flush(&mut self) {
        let freed = self.free.drain(..).fold(0u64, u64::saturating_add);
        self.held_bytes = self.held_bytes.saturating_sub(freed);
    }
}
