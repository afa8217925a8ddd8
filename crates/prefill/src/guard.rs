//! What keeps a prefill inside the machine: pressure, and the tracker of what no plan sees.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_memguard::{
    Machine, MemorySample, PressureGauge, Room, Sample, TrackerConfig, TransientTracker, Watermarks,
};

use crate::Held;
use crate::target::signed;

/// Bytes that stay free under the machine's limit, or 5% of it if that is less: no chunk is started that would take them.
pub const LAST_RESERVE_BYTES: u64 = 32 << 20;

/// How a [`Driver`](crate::Driver) keeps inside the machine, beside the ledger's budget.
#[derive(Clone)]
pub struct Guard {
    /// What tells the room that is left, before every chunk; `None` looks at the ledger alone.
    pub machine: Option<Arc<dyn Machine>>,
    /// Where soft and hard pressure begin.
    pub watermarks: Watermarks,
    /// Readings after the first one, before a prefill ends because the smallest chunk does not fit the machine.
    pub polls: u32,
    /// Time between them.
    pub poll_interval: Duration,
    /// Whether chunks pay for what the tracker expects beyond the plan. It needs a probe.
    pub tracks: bool,
    /// Bytes that the caller has reserved elsewhere for what chunks touch first, such as stacks and tables. As long as the process has not grown
    /// into them, they pay for what the tracker expects, before the ledger is asked.
    pub slack_bytes: u64,
}

impl Default for Guard {
    /// No machine, the tracker on; with a machine, three more readings within a tenth of a second.
    fn default() -> Self {
        Self {
            machine: None,
            watermarks: Watermarks::BALANCED,
            polls: 3,
            poll_interval: Duration::from_millis(30),
            tracks: true,
            slack_bytes: 0,
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("has_machine", &self.machine.is_some())
            .field("watermarks", &self.watermarks)
            .field("polls", &self.polls)
            .field("poll_interval", &self.poll_interval)
            .field("tracks", &self.tracks)
            .field("slack_bytes", &self.slack_bytes)
            .finish()
    }
}

/// Bytes of `room` that may be taken: what is left of it, less [`last_reserve_bytes`].
#[must_use]
pub fn usable_bytes(room: &Room) -> u64 {
    room.left_bytes().saturating_sub(last_reserve_bytes(room))
}

/// Bytes that stay free of `room`: [`LAST_RESERVE_BYTES`], or 5% of its limit if that is less.
#[must_use]
pub fn last_reserve_bytes(room: &Room) -> u64 {
    LAST_RESERVE_BYTES.min(room.ceiling_bytes / 20)
}

/// What a driver remembers from chunk to chunk.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) tracker: TransientTracker,
    pub(crate) gauge: PressureGauge,
    slack_bytes: u64,
    /// What the process has grown by, beyond all counts, since the driver was made.
    drift_bytes: i64,
}

impl Watch {
    pub(crate) fn new(guard: &Guard, min_chunk_rows: usize) -> Self {
        Self {
            tracker: TransientTracker::new(TrackerConfig { min_chunk_rows }),
            gauge: PressureGauge::new(guard.watermarks),
            slack_bytes: guard.slack_bytes,
            drift_bytes: 0,
        }
    }

    /// Learns from a sample of a chunk or of a drain.
    pub(crate) fn record(&mut self, sample: Sample) {
        let growth_bytes = signed(sample.before_bytes, sample.after_bytes).saturating_sub(sample.known_growth_bytes);
        self.drift_bytes = self.drift_bytes.saturating_add(growth_bytes);
        self.tracker.record(sample);
    }

    /// What is left of the slack.
    pub(crate) fn slack_bytes(&self) -> u64 {
        self.slack_bytes.saturating_sub(u64::try_from(self.drift_bytes).unwrap_or(0))
    }
}

/// What the tracker expects of a chunk, by all that was measured so far.
pub(crate) struct Forecast {
    tracker: Option<TransientTracker>,
    slack_bytes: u64,
    /// Whether the target counts the transients that it keeps: then the tracker has seen only what comes on top of them.
    is_on_top: bool,
}

impl Forecast {
    /// By what `watch` has learned; by plans alone without one.
    pub(crate) fn new(watch: Option<&Watch>, held: Held) -> Self {
        Self {
            tracker: watch.map(|watch| watch.tracker.clone()),
            slack_bytes: watch.map_or(0, Watch::slack_bytes),
            is_on_top: held.transient_bytes.is_some(),
        }
    }

    /// Bytes that a chunk of `rows` rows is expected to take of the ledger, its plan included.
    pub(crate) fn predicted_bytes(&self, rows: usize, planned_bytes: u64) -> u64 {
        let beyond_bytes = match &self.tracker {
            None => 0,
            Some(tracker) if self.is_on_top => tracker.predict_bytes(rows, 0),
            Some(tracker) => tracker.predict_bytes(rows, planned_bytes) - planned_bytes,
        };
        planned_bytes.saturating_add(beyond_bytes.saturating_sub(self.slack_bytes))
    }

    /// Bytes without which it is not tried: the plan and what the allocator gave back of late.
    pub(crate) fn needed_bytes(&self, planned_bytes: u64) -> u64 {
        let charge_bytes = self.tracker.as_ref().map_or(0, TransientTracker::reclaim_charge_bytes);
        planned_bytes.saturating_add(charge_bytes.saturating_sub(self.slack_bytes))
    }

    pub(crate) fn slack_bytes(&self) -> u64 {
        self.slack_bytes
    }
}

/// Two readings of memory, with what the target held at each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) before: Option<MemorySample>,
    pub(crate) after: Option<MemorySample>,
    pub(crate) held_before: Held,
    pub(crate) held_after: Held,
}

impl Span {
    /// Growth of the footprint beside keys and values; `None` where it cannot be read.
    pub(crate) fn growth_bytes(&self) -> Option<i64> {
        let kv = |held: Held| Held { transient_bytes: None, ..held };
        self.beyond(Held::bounds(kv(self.held_before), kv(self.held_after)))
    }

    /// Growth that no count explains.
    pub(crate) fn unexplained_bytes(&self) -> Option<i64> {
        self.beyond(Held::bounds(self.held_before, self.held_after))
    }

    /// What the tracker learns from a chunk of `rows` rows; of a release alone if `rows` is 0.
    pub(crate) fn sample(&self, rows: usize, requested_rows: usize) -> Option<Sample> {
        let (before_bytes, after_bytes) = (self.before?.footprint?, self.after?.footprint?);
        let known_growth_bytes = signed(before_bytes, after_bytes).saturating_sub(self.unexplained_bytes()?);
        Some(Sample { rows, requested_rows, before_bytes, after_bytes, known_growth_bytes })
    }

    /// Growth outside of what is known. Memory that was mapped is not in the footprint before it is touched, so a count that grew by so much
    /// explains any growth up to that.
    fn beyond(&self, (least, most): (i64, i64)) -> Option<i64> {
        let growth = signed(self.before?.footprint?, self.after?.footprint?);
        Some(growth.saturating_sub(growth.clamp(least, most)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(footprints: [u64; 2], kv: [u64; 2], transient: [u64; 2]) -> Span {
        let sample = |footprint| Some(MemorySample { footprint: Some(footprint), ..MemorySample::default() });
        let held = |at: usize| Held { kv_bytes: kv[at], transient_bytes: Some(transient[at]), ..Held::default() };
        Span { before: sample(footprints[0]), after: sample(footprints[1]), held_before: held(0), held_after: held(1) }
    }

    fn unexplained(footprints: [u64; 2], kv: [u64; 2], transient: [u64; 2]) -> i64 {
        span(footprints, kv, transient).unexplained_bytes().unwrap()
    }

    #[test]
    fn what_is_mapped_explains_growth_up_to_its_size() {
        assert_eq!(unexplained([1000, 1300], [0, 100], [0, 200]), 0);
        assert_eq!(unexplained([1000, 1250], [0, 100], [0, 200]), 0, "not all of it was touched");
        assert_eq!(unexplained([1000, 1310], [0, 100], [0, 200]), 10);
        assert_eq!(unexplained([1000, 990], [0, 100], [0, 200]), -10, "less than before, though more is held");
    }

    #[test]
    fn what_is_given_back_explains_a_release_up_to_its_size() {
        assert_eq!(unexplained([1000, 800], [0, 0], [200, 0]), 0);
        assert_eq!(unexplained([1000, 790], [0, 0], [200, 0]), -10);
        assert_eq!(unexplained([1000, 1010], [0, 0], [200, 0]), 10);
        assert_eq!(unexplained([1000, 900], [0, 50], [200, 0]), 0);
    }

    #[test]
    fn growth_of_a_chunk_has_the_arena_in_it_and_the_keys_not() {
        assert_eq!(span([1000, 1310], [0, 100], [0, 200]).growth_bytes(), Some(210));
        let sample = span([1000, 1310], [0, 100], [0, 200]).sample(64, 512).unwrap();
        assert_eq!((sample.known_growth_bytes, sample.rows, sample.requested_rows), (300, 64, 512));
    }

    #[test]
    fn nothing_is_learned_where_nothing_is_read() {
        let blind = Span { after: None, ..span([1000, 1310], [0, 100], [0, 200]) };
        assert_eq!((blind.growth_bytes(), blind.sample(64, 64)), (None, None));
    }

    #[test]
    fn a_forecast_adds_to_a_plan_that_was_taken_out_of_the_measurement_and_covers_one_that_was_not() {
        let mut watch = Watch::new(&Guard::default(), 64);
        watch.record(grown(0, 640));
        let forecast = |transient_bytes| {
            let held = Held { transient_bytes, ..Held::default() };
            Forecast::new(Some(&watch), held).predicted_bytes(64, 1000)
        };
        assert_eq!((forecast(Some(0)), forecast(None)), (1640, 1000));
        assert_eq!(Forecast::new(None, Held::default()).predicted_bytes(64, 1000), 1000);
    }

    fn grown(before_bytes: u64, after_bytes: u64) -> Sample {
        Sample { rows: 64, requested_rows: 64, before_bytes, after_bytes, known_growth_bytes: 0 }
    }

    #[test]
    fn slack_pays_until_the_process_has_grown_into_it() {
        let mut watch = Watch::new(&Guard { slack_bytes: 1000, ..Guard::default() }, 64);
        let held = Held { transient_bytes: Some(0), ..Held::default() };
        let charged = |watch: &Watch| Forecast::new(Some(watch), held).predicted_bytes(64, 50) - 50;
        watch.record(grown(0, 300));
        assert_eq!((watch.slack_bytes(), charged(&watch)), (700, 0));
        watch.record(grown(300, 900));
        assert_eq!((watch.slack_bytes(), charged(&watch)), (100, 500));
        watch.record(grown(900, 1900));
        assert_eq!((watch.slack_bytes(), charged(&watch)), (0, 1000));
        // What is given back is there again.
        watch.record(Sample { rows: 0, ..grown(1900, 200) });
        assert_eq!((watch.slack_bytes(), charged(&watch)), (800, 900));
    }
}
