//! Predicts what the next chunk will add to the footprint beyond what is known, from the chunks before it.
//!
//! A runtime's allocator can hand pooled memory back after one chunk and take it again in the next. A tracker that only
//! learns from growth forgets the release, and the next chunk overruns the guard; so a release is remembered as a
//! one-shot *reclaim charge* until the next growth. The rules follow oMLX (jundot/omlx), pull requests 2521, 2573 and 3417.

/// Weight of the newest sample in the moving average.
const ALPHA: f64 = 0.3;

/// A sample this many times the average is an outlier and stays out of it.
const OUTLIER_FACTOR: f64 = 8.0;

/// What is fixed for the life of a [`TransientTracker`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrackerConfig {
    /// The floor of chunk sizes. Chunks with fewer rows are tails: their fixed costs would read as a high price per row.
    pub min_chunk_rows: usize,
}

/// The memory around one chunk, all from one source (a footprint, or a device's counter).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Tokens in the chunk.
    pub rows: usize,
    /// Tokens the chunk would have had with more prompt left or more memory free; at least `rows`.
    pub requested_rows: usize,
    /// The reading before the chunk.
    pub before_bytes: u64,
    /// The reading after the chunk.
    pub after_bytes: u64,
    /// Growth explained otherwise: KV that became real (positive), caches evicted (negative). The tracker sees the rest.
    pub known_growth_bytes: i64,
}

/// Growth per chunk, learned from [`Sample`]s; `O(1)` memory, no allocation after `new`.
///
/// Predictions never fall when rows rise, given that the caller's static estimate does not.
#[derive(Debug, Clone)]
pub struct TransientTracker {
    config: TrackerConfig,
    last: Option<Growth>,
    ewma_bytes_per_row: Option<f64>,
    observed_max_bytes: u64,
    reclaim_charge_bytes: u64,
    /// The highest reading since the last growth, less all known growth up to then.
    high_water: Option<i128>,
    /// Known growth of all samples so far: subtracted from readings to compare them across chunks.
    known_growth_sum: i128,
}

#[derive(Debug, Clone, Copy)]
struct Growth {
    bytes: u64,
    rows: usize,
}

impl Growth {
    #[expect(clippy::cast_precision_loss, reason = "bytes of one chunk stay far below 2^53")]
    fn bytes_per_row(self) -> f64 {
        self.bytes as f64 / self.rows as f64
    }

    /// The growth of `rows` rows at the same price per row, rounded up.
    fn scaled_to(self, rows: usize) -> u64 {
        let scaled = (u128::from(self.bytes) * rows as u128).div_ceil(self.rows as u128);
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }
}

impl TransientTracker {
    /// A tracker that has seen nothing.
    #[must_use]
    pub fn new(config: TrackerConfig) -> Self {
        Self {
            config,
            last: None,
            ewma_bytes_per_row: None,
            observed_max_bytes: 0,
            reclaim_charge_bytes: 0,
            high_water: None,
            known_growth_sum: 0,
        }
    }

    /// Learns from one finished chunk. One that neither grew nor released counts as growth of zero: what was learned before
    /// fades. A release between two chunks is told by a sample of no rows.
    pub fn record(&mut self, sample: Sample) {
        // Before any gate: a tail too short to learn from may still have made the allocator give back or take again.
        let delta = self.follow_footprint(&sample);
        let Ok(grown) = u64::try_from(delta) else {
            return;
        };
        if sample.rows == 0 {
            return;
        }
        let growth = Growth { bytes: grown, rows: sample.rows };
        let is_tail = sample.rows < self.config.min_chunk_rows;
        let is_short = is_tail || sample.rows < sample.requested_rows;
        self.blend(growth.bytes_per_row(), is_short);
        if is_tail {
            return;
        }
        if sample.rows == self.config.min_chunk_rows && self.last.is_some() {
            self.observed_max_bytes = self.observed_max_bytes.max(grown);
        }
        self.last = Some(growth);
    }

    /// Bytes by which a chunk of `rows` may grow the footprint, beyond known growth.
    ///
    /// `static_bytes` is the plan's figure for that chunk: the result is never below it. The reclaim charge counts on top of
    /// the plan, not of what was observed, which has the pool's growth in it already.
    #[must_use]
    pub fn predict_bytes(&self, rows: usize, static_bytes: u64) -> u64 {
        let last = self.last.map_or(0, |last| last.scaled_to(rows));
        let average = self.ewma_bytes_per_row.map_or(0, |average| scaled(average, rows));
        let charged = static_bytes.saturating_add(self.reclaim_charge_bytes);
        last.max(average).max(charged)
    }

    /// Bytes the allocator gave back since the last growth and may take again in the next chunk.
    #[must_use]
    pub fn reclaim_charge_bytes(&self) -> u64 {
        self.reclaim_charge_bytes
    }

    /// The largest growth of a floor-size chunk; the first growth, which fills the pools, does not count.
    #[must_use]
    pub fn observed_max_bytes(&self) -> u64 {
        self.observed_max_bytes
    }

    /// The moving average of growth per row; `None` before the first full chunk that grew.
    #[must_use]
    pub fn ewma_bytes_per_row(&self) -> Option<f64> {
        self.ewma_bytes_per_row
    }

    /// Halves all that was learned, the reclaim charge too: for a chunk that was refused on old evidence. What refuses lets
    /// nothing run, and so nothing newer would ever be learned.
    pub fn fade(&mut self) {
        self.reclaim_charge_bytes /= 2;
        self.last = self.last.map(|last| Growth { bytes: last.bytes / 2, ..last });
        self.ewma_bytes_per_row =
            self.ewma_bytes_per_row.map(|average| average / 2.0).filter(|average| *average >= 1.0);
    }

    /// Forgets everything, the reclaim charge too: for a new model or an emptied pool.
    pub fn reset(&mut self) {
        *self = Self::new(self.config);
    }

    /// Keeps high water and charge, and returns the growth (or, negative, the release) of the sample.
    fn follow_footprint(&mut self, sample: &Sample) -> i128 {
        let known = i128::from(sample.known_growth_bytes);
        let before = i128::from(sample.before_bytes) - self.known_growth_sum;
        let after = i128::from(sample.after_bytes) - known - self.known_growth_sum;
        self.known_growth_sum += known;
        let delta = after - before;
        let high_water = self.high_water.map_or(before, |high| high.max(before));
        if delta > 0 {
            self.reclaim_charge_bytes = 0;
            self.high_water = Some(after);
        } else {
            self.high_water = Some(high_water);
            if delta < 0 {
                // The gap, not the sum of releases: memory taken again between two samples must not count twice.
                self.reclaim_charge_bytes = u64::try_from(high_water - after).unwrap_or(0);
            }
        }
        delta
    }

    fn blend(&mut self, bytes_per_row: f64, is_short: bool) {
        self.ewma_bytes_per_row = match self.ewma_bytes_per_row {
            // Fixed costs make a short chunk dear per row: learning from that would make the next chunk shorter still.
            None => (!is_short && bytes_per_row > 0.0).then_some(bytes_per_row),
            Some(average) if is_short && bytes_per_row > average => Some(average),
            Some(average) if bytes_per_row > OUTLIER_FACTOR * average => Some(average),
            // An average of nothing would make an outlier of everything: it is forgotten instead.
            Some(average) => Some(ALPHA * bytes_per_row + (1.0 - ALPHA) * average).filter(|average| *average >= 1.0),
        };
    }
}

/// `bytes_per_row * rows`, rounded up: a prediction errs on the high side.
#[expect(clippy::cast_precision_loss, reason = "rows of a chunk stay far below 2^53")]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float-to-integer cast saturates, and the product is never negative"
)]
fn scaled(bytes_per_row: f64, rows: usize) -> u64 {
    (bytes_per_row * rows as f64).ceil() as u64
}

#[cfg(test)]
mod tests;
