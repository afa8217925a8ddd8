//! A long prefill over an allocator pool that hands idle memory back and takes it again, after a case reported for oMLX
//! (jundot/omlx): 245,327 tokens, cap 120 GiB, 89 releases; ended at 149,728 tokens without the charge, complete with it, with
//! 227 chunks cut. The sizes here are made up to that scale, and every number that is printed comes out of the run.

use plimsoll_memguard::{
    ChunkChoice, ChunkLimits, Pressure, PressureGauge, Sample, TrackerConfig, TransientTracker, Watermarks,
};

pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const PROMPT_TOKENS: usize = 245_327;
pub(crate) const CAP_BYTES: u64 = 120 * GIB;
pub(crate) const RELEASES: usize = 89;

const LIMITS: ChunkLimits = ChunkLimits { granule_rows: 32, floor_rows: 512, ceiling_rows: 2048 };

/// Weights and overhead.
const RESIDENT_BYTES: u64 = 84 * GIB;
/// What the runtime's pool holds beside a chunk's own transient. Idle parts of it come and go.
const POOL_BYTES: u64 = 33 * GIB / 2;
const SMALLEST_RELEASE_BYTES: u64 = GIB;
const KV_BYTES_PER_TOKEN: u64 = 24 << 10;

/// What the tracker is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Growth only: a release is forgotten.
    GrowthOnly,
    /// Everything, so that a release becomes a charge.
    ReclaimCharge,
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Tokens prefilled; fewer than the prompt if the run was ended.
    pub tokens: usize,
    pub chunks: usize,
    /// Chunks cut below the size that was wanted.
    pub reductions: usize,
    pub releases: usize,
    /// Polls at which not even the floor fitted.
    pub refusals: usize,
    pub hard_transitions: u64,
    pub peak_bytes: u64,
    /// The most by which a chunk grew past what was predicted for it.
    pub worst_overrun_bytes: u64,
}

/// Transient of a chunk: scores of all keys at once, so it rises with the position.
fn planned_bytes(start: usize, rows: usize) -> u64 {
    let at_2048 = 2 * GIB + start as u64 * (GIB / 10_000);
    at_2048 * rows as u64 / 2048
}

fn kv_bytes(tokens: usize) -> u64 {
    tokens as u64 * KV_BYTES_PER_TOKEN
}

/// The allocator: full after every chunk, less the idle memory it handed back.
struct Pool {
    held_bytes: u64,
    releases: usize,
}

impl Pool {
    /// A chunk ends at `position`: what was taken again for it is in use, so only a pool that was full before it has idle
    /// memory to hand back. Releases are spread over the prompt, and their sizes over the pool.
    fn end_chunk(&mut self, position: usize) {
        let was_full = self.held_bytes == POOL_BYTES;
        self.held_bytes = POOL_BYTES;
        let due = self.releases < RELEASES && position >= (self.releases + 1) * PROMPT_TOKENS / (RELEASES + 2);
        if was_full && due {
            let mut hash = (self.releases as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            hash ^= hash >> 31;
            self.held_bytes -= SMALLEST_RELEASE_BYTES + hash % (POOL_BYTES - SMALLEST_RELEASE_BYTES);
            self.releases += 1;
        }
    }
}

/// Prefills the prompt; ends early if a chunk passes the cap, or if nothing fits at a hundred polls in a row.
pub(crate) fn run(rule: Rule) -> Outcome {
    let watermarks = Watermarks::BALANCED;
    let limit_bytes = watermarks.begins_bytes(Pressure::Hard, CAP_BYTES) - 1;
    let mut gauge = PressureGauge::new(watermarks);
    let mut tracker = TransientTracker::new(TrackerConfig { min_chunk_rows: LIMITS.floor_rows });
    let mut pool = Pool { held_bytes: POOL_BYTES, releases: 0 };
    let mut outcome = Outcome {
        tokens: 0,
        chunks: 0,
        reductions: 0,
        releases: 0,
        refusals: 0,
        hard_transitions: 0,
        peak_bytes: 0,
        worst_overrun_bytes: 0,
    };
    let mut polls = 0;
    while outcome.tokens < PROMPT_TOKENS && polls < 100 {
        let start = outcome.tokens;
        let before_bytes = RESIDENT_BYTES + kv_bytes(start) + pool.held_bytes;
        // KV of the whole prompt was reserved at admission: what is not real yet is not headroom.
        let promised_bytes = before_bytes + kv_bytes(PROMPT_TOKENS) - kv_bytes(start);
        let headroom_bytes = limit_bytes.saturating_sub(promised_bytes);
        let plan = |rows: usize| planned_bytes(start, rows);
        let (rows, requested_rows, predicted_bytes) =
            match LIMITS.choose(PROMPT_TOKENS - start, headroom_bytes, &tracker, plan) {
                ChunkChoice::Run { rows, requested_rows, predicted_bytes } => (rows, requested_rows, predicted_bytes),
                ChunkChoice::Refuse { .. } => {
                    tracker.fade();
                    outcome.refusals += 1;
                    polls += 1;
                    continue;
                }
            };
        polls = 0;

        let end = start + rows;
        let inside_bytes = RESIDENT_BYTES + kv_bytes(end) + POOL_BYTES + planned_bytes(start, rows);
        let grown_bytes = inside_bytes - before_bytes - (kv_bytes(end) - kv_bytes(start));
        outcome.worst_overrun_bytes = outcome.worst_overrun_bytes.max(grown_bytes.saturating_sub(predicted_bytes));
        outcome.peak_bytes = outcome.peak_bytes.max(inside_bytes);
        gauge.read(inside_bytes, CAP_BYTES);
        if inside_bytes > CAP_BYTES {
            break;
        }
        pool.end_chunk(end);
        let after_bytes = RESIDENT_BYTES + kv_bytes(end) + pool.held_bytes;
        gauge.read(after_bytes, CAP_BYTES);

        let known_growth_bytes = i64::try_from(kv_bytes(rows)).unwrap_or(i64::MAX);
        let grew = after_bytes > before_bytes + kv_bytes(rows);
        if rule == Rule::ReclaimCharge || grew {
            tracker.record(Sample { rows, requested_rows, before_bytes, after_bytes, known_growth_bytes });
        }
        outcome.tokens = end;
        outcome.chunks += 1;
        outcome.reductions += usize::from(rows < requested_rows);
    }
    outcome.releases = pool.releases;
    outcome.hard_transitions = gauge.hard_transitions();
    outcome
}

/// One published case: a chunk's prediction without and with the charge, and what was observed, in hundredths of a GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub name: &'static str,
    pub without_charge: u64,
    pub with_charge: u64,
    pub observed: u64,
}

/// The single-chunk rows of the report, predicted anew.
pub(crate) fn cases() -> [Case; 3] {
    let case = |name, last: u64, released: u64, planned: u64, observed| {
        let hundredth = GIB / 100;
        let full = 3_000 * hundredth;
        let sample = |before_bytes, after_bytes| Sample {
            rows: 2048,
            requested_rows: 2048,
            before_bytes,
            after_bytes,
            known_growth_bytes: 0,
        };
        let mut tracker = TransientTracker::new(TrackerConfig { min_chunk_rows: 512 });
        if last > 0 {
            tracker.record(sample(full - last * hundredth, full));
        }
        let predict = |tracker: &TransientTracker| tracker.predict_bytes(2048, planned * hundredth) / hundredth;
        let without_charge = predict(&tracker);
        tracker.record(sample(full, full - released * hundredth));
        Case { name, without_charge, with_charge: predict(&tracker), observed }
    };
    [
        case("a release is remembered", 0, 634, 1118, 1716),
        case("not counted twice", 1183, 686, 411, 754),
        case("sizing (observed: 832 rows)", 0, 2133, 1058, 853),
    ]
}
