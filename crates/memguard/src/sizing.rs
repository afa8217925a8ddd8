//! How many rows the next chunk gets.

use crate::TransientTracker;

/// What is fixed about chunk sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkLimits {
    /// A chunk that is cut has a multiple of this many rows.
    pub granule_rows: usize,
    /// No chunk is cut below this many rows.
    pub floor_rows: usize,
    /// The size of a chunk where memory is no concern; at least the floor.
    pub ceiling_rows: usize,
}

/// What [`ChunkLimits::choose`] decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkChoice {
    /// Run this many rows.
    Run {
        /// Rows of the chunk: all that were wanted, a multiple of the granule, or the floor.
        rows: usize,
        /// Rows that were wanted: the ceiling, or the rest of the prompt. Goes into the tracker's sample.
        requested_rows: usize,
        /// Bytes by which the chunk may grow the footprint, as the tracker predicts.
        predicted_bytes: u64,
    },
    /// Not even the smallest chunk fits. Make room, or [fade](TransientTracker::fade) the tracker and choose again.
    Refuse {
        /// Rows of the smallest chunk.
        rows: usize,
        /// Bytes it needs: plan and reclaim charge.
        needed_bytes: u64,
    },
}

impl ChunkLimits {
    /// The largest chunk whose predicted growth, reclaim charge included, is at most `headroom_bytes`.
    ///
    /// A pure function: what is chosen now does not depend on what was chosen before, so chunks grow back with the
    /// headroom. `planned_bytes` gives the plan's transient for a number of rows and must not fall when rows rise.
    ///
    /// Growth that was observed shrinks a chunk down to the floor and never refuses it: an observation that refuses would
    /// never be replaced by a newer one. Only plan and reclaim charge refuse.
    #[must_use]
    pub fn choose(
        &self,
        remaining_rows: usize,
        headroom_bytes: u64,
        tracker: &TransientTracker,
        planned_bytes: impl Fn(usize) -> u64,
    ) -> ChunkChoice {
        let predicted_bytes = |rows: usize| tracker.predict_bytes(rows, planned_bytes(rows));
        let needed_bytes = |rows: usize| planned_bytes(rows).saturating_add(tracker.reclaim_charge_bytes());
        self.choose_by(remaining_rows, headroom_bytes, predicted_bytes, needed_bytes)
    }

    /// As [`ChunkLimits::choose`], for a caller that predicts by other means: `predicted_bytes` cuts a chunk, and
    /// `needed_bytes`, of the smallest chunk, refuses it.
    #[must_use]
    pub fn choose_by(
        &self,
        remaining_rows: usize,
        headroom_bytes: u64,
        predicted_bytes: impl Fn(usize) -> u64,
        needed_bytes: impl Fn(usize) -> u64,
    ) -> ChunkChoice {
        let granule = self.granule_rows.max(1);
        let requested_rows = remaining_rows.min(self.ceiling_rows.max(self.floor_rows).max(1));
        let floor = self.floor_rows.max(1).min(requested_rows);
        let run = |rows: usize| ChunkChoice::Run { rows, requested_rows, predicted_bytes: predicted_bytes(rows) };
        let fits = |rows: usize| predicted_bytes(rows) <= headroom_bytes;

        if fits(requested_rows) {
            return run(requested_rows);
        }
        // Multiples of the granule from the floor up to below what was wanted: the last one that fits, by bisection.
        let (mut low, mut high) = (floor.div_ceil(granule), requested_rows.div_ceil(granule));
        if low < high && fits(low * granule) {
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if fits(middle * granule) {
                    low = middle;
                } else {
                    high = middle;
                }
            }
            return run(low * granule);
        }
        let needed_bytes = needed_bytes(floor);
        if needed_bytes <= headroom_bytes { run(floor) } else { ChunkChoice::Refuse { rows: floor, needed_bytes } }
    }
}

#[cfg(test)]
mod tests;
