use proptest::prelude::*;

use super::*;
use crate::{Sample, TrackerConfig};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

const LIMITS: ChunkLimits = ChunkLimits { granule_rows: 64, floor_rows: 512, ceiling_rows: 2048 };

fn tracker() -> TransientTracker {
    TransientTracker::new(TrackerConfig { min_chunk_rows: LIMITS.floor_rows })
}

fn sample(rows: usize, requested_rows: usize, before_bytes: u64, after_bytes: u64) -> Sample {
    Sample { rows, requested_rows, before_bytes, after_bytes, known_growth_bytes: 0 }
}

/// Rows of a chunk that must run.
fn rows(choice: ChunkChoice) -> usize {
    match choice {
        ChunkChoice::Run { rows, .. } => rows,
        ChunkChoice::Refuse { .. } => panic!("{choice:?}"),
    }
}

fn mib_per_row(rows: usize) -> u64 {
    rows as u64 * MIB
}

#[test]
fn a_chunk_is_the_largest_multiple_of_the_granule_that_fits() {
    let choose = |remaining, headroom| LIMITS.choose(remaining, headroom, &tracker(), mib_per_row);
    assert_eq!(rows(choose(100_000, 4 * GIB)), 2048);
    assert_eq!(rows(choose(100_000, 1000 * MIB)), 960);
    assert_eq!(rows(choose(100_000, 960 * MIB)), 960);
    assert_eq!(rows(choose(100_000, 960 * MIB - 1)), 896);
    // The rest of a prompt is taken whole, whatever its size.
    assert_eq!(rows(choose(700, 700 * MIB)), 700);
    assert_eq!(rows(choose(700, 699 * MIB)), 640);
    assert_eq!(rows(choose(17, 17 * MIB)), 17);
}

#[test]
fn no_chunk_is_cut_below_the_floor() {
    let choose = |remaining, headroom| LIMITS.choose(remaining, headroom, &tracker(), mib_per_row);
    assert_eq!(rows(choose(100_000, 512 * MIB)), 512);
    let refused = ChunkChoice::Refuse { rows: 512, needed_bytes: 512 * MIB };
    assert_eq!(choose(100_000, 512 * MIB - 1), refused);
    assert_eq!(choose(17, 16 * MIB), ChunkChoice::Refuse { rows: 17, needed_bytes: 17 * MIB });
    // A floor that is no multiple of the granule is a size of its own.
    let odd = ChunkLimits { granule_rows: 64, floor_rows: 500, ceiling_rows: 2048 };
    assert_eq!(rows(odd.choose(9_000, 505 * MIB, &tracker(), mib_per_row)), 500);
}

/// Release 21.33, static 10.58 for 2,048 rows: plan and charge are 31.91, and 832 rows fit where 2,048 do not.
#[test]
fn the_reclaim_charge_cuts_the_chunk() {
    let hundredths = |gib: u64| gib * (GIB / 100);
    let mut tracker = tracker();
    tracker.record(sample(2048, 2048, hundredths(4000), hundredths(4000 - 2133)));
    let planned = |rows: usize| hundredths(1058) * rows as u64 / 2048;
    let headroom = hundredths(2133 + 430);
    let choice = LIMITS.choose(100_000, headroom, &tracker, planned);
    let predicted_bytes = hundredths(2133) + planned(832);
    assert_eq!(choice, ChunkChoice::Run { rows: 832, requested_rows: 2048, predicted_bytes });
    // The chunk grows by 8.53 and takes the charge with it.
    tracker.record(sample(832, 2048, hundredths(1867), hundredths(1867 + 853)));
    assert!(rows(LIMITS.choose(100_000, headroom, &tracker, planned)) > 832);
}

#[test]
fn chunks_grow_back_with_the_headroom() {
    let tracker = tracker();
    let sizes: Vec<_> = [4096, 600, 600, 1200, 4096]
        .into_iter()
        .map(|headroom| rows(LIMITS.choose(100_000, headroom * MIB, &tracker, mib_per_row)))
        .collect();
    assert_eq!(sizes, [2048, 576, 576, 1152, 2048]);
}

/// jundot/omlx#3450: every chunk pays a fixed cost, so small chunks look dear per row, and the next is made smaller still.
/// Here sizes rise to where fixed cost and rows fill the headroom, from wherever they start.
#[test]
fn a_fixed_cost_per_chunk_does_not_shrink_chunks_again_and_again() {
    let (fixed, per_row, headroom) = (600 * MIB, MIB, 2000 * MIB);
    for first in [512, 768, 1344] {
        let mut tracker = tracker();
        let mut size = first;
        let mut sizes = Vec::new();
        for _ in 0..40 {
            let grown = fixed + per_row * size as u64;
            tracker.record(sample(size, 2048, 0, grown));
            // The pool is emptied in between, and that is known.
            tracker.record(Sample { known_growth_bytes: -i64::try_from(grown).unwrap(), ..sample(0, 0, grown, 0) });
            size = rows(LIMITS.choose(100_000, headroom, &tracker, |_| 0));
            sizes.push(size);
        }
        assert!(sizes.is_sorted(), "{first}: {sizes:?}");
        // (2000 - 600) / 1 rows would fill the headroom; rounding down to a granule settles a little below.
        assert!((1152..=1400).contains(&size), "{first}: {sizes:?}");
    }
}

/// jundot/omlx#3381: 77,100 tokens at head_dim 256, scores of all keys at once, chosen again and again at one size.
#[test]
fn a_long_prompt_of_wide_heads_ends() {
    let mut tracker = tracker();
    let (mut start, mut chunks, mut footprint) = (0, 0, 20 * GIB);
    let total = 77_100;
    while start < total {
        let planned = |rows: usize| 24 * rows as u64 * (start + rows) as u64 * 4;
        let choice = LIMITS.choose(total - start, 4 * GIB, &tracker, planned);
        let ChunkChoice::Run { rows, requested_rows, .. } = choice else {
            panic!("at {start}: {choice:?}");
        };
        // The pool keeps what the chunk took, and takes nothing while it suffices.
        let after = footprint.max(20 * GIB + planned(rows));
        tracker.record(sample(rows, requested_rows, footprint, after));
        footprint = after;
        start += rows;
        chunks += 1;
        assert!(chunks <= total.div_ceil(512), "at {start} after {chunks} chunks");
    }
    assert_eq!(start, total);
}

/// jundot/omlx#2676: 163 tokens were charged 23 GB, and every prompt after them.
#[test]
fn one_dear_small_prompt_is_not_held_against_the_next() {
    let mut tracker = tracker();
    tracker.record(sample(163, 163, GIB, 24 * GIB));
    let choice = LIMITS.choose(163, GIB, &tracker, mib_per_row);
    assert_eq!(choice, ChunkChoice::Run { rows: 163, requested_rows: 163, predicted_bytes: 163 * MIB });
    // A full chunk is remembered, cuts the next ones to the floor, and is forgotten as they turn out cheap.
    tracker.record(sample(2048, 2048, GIB, 24 * GIB));
    let mut sizes = Vec::new();
    while sizes.last() != Some(&2048) {
        let size = rows(LIMITS.choose(100_000, 3 * GIB, &tracker, mib_per_row));
        tracker.record(sample(size, 2048, 24 * GIB, 24 * GIB));
        sizes.push(size);
        assert!(sizes.len() < 20, "{sizes:?}");
    }
    assert_eq!(sizes[0], 512);
}

/// jundot/omlx#3858: 27 hours of refusals on one stale reading.
#[test]
fn a_stale_release_refuses_for_a_few_polls_and_not_for_ever() {
    let mut tracker = tracker();
    tracker.record(sample(2048, 2048, 60 * GIB, 10 * GIB));
    let mut polls = 0;
    while let ChunkChoice::Refuse { needed_bytes, .. } = LIMITS.choose(100_000, GIB, &tracker, mib_per_row) {
        assert!(needed_bytes > GIB);
        tracker.fade();
        polls += 1;
        assert!(polls < 10, "{polls} polls");
    }
    // Room made elsewhere is seen at once.
    tracker.record(sample(2048, 2048, 60 * GIB, 10 * GIB));
    assert_eq!(rows(LIMITS.choose(100_000, 60 * GIB, &tracker, mib_per_row)), 2048);
}

fn trackers() -> impl Strategy<Value = TransientTracker> {
    let sample = (1..3_000usize, 0..3_000usize, 0..4 * GIB, 0..4 * GIB)
        .prop_map(|(rows, cut, before, after)| sample(rows, rows + cut, before, after));
    prop::collection::vec(sample, 0..20).prop_map(|samples| {
        let mut tracker = tracker();
        samples.into_iter().for_each(|sample| tracker.record(sample));
        tracker
    })
}

proptest! {
    #[test]
    fn whatever_is_chosen_is_in_range_and_covered(tracker in trackers(), remaining in 1..10_000usize, headroom in 0..8 * GIB, granule in 0..300usize, floor in 0..1_000usize, ceiling in 0..3_000usize, per_row in 0..4 * MIB) {
        let limits = ChunkLimits { granule_rows: granule, floor_rows: floor, ceiling_rows: ceiling };
        let planned = |rows: usize| per_row * rows as u64;
        match limits.choose(remaining, headroom, &tracker, planned) {
            ChunkChoice::Run { rows, requested_rows, predicted_bytes } => {
                prop_assert!(rows >= 1 && rows <= requested_rows && requested_rows <= remaining);
                prop_assert!(rows >= floor.min(requested_rows));
                let at_floor = rows == floor.max(1).min(requested_rows);
                prop_assert!(rows == requested_rows || at_floor || rows.is_multiple_of(granule.max(1)));
                prop_assert!(predicted_bytes <= headroom || at_floor);
                prop_assert!(planned(rows) + tracker.reclaim_charge_bytes() <= headroom);
                // One granule more would not have fitted.
                let next = rows + granule.max(1);
                if rows < requested_rows && next < requested_rows && predicted_bytes <= headroom && rows.is_multiple_of(granule.max(1)) {
                    prop_assert!(tracker.predict_bytes(next, planned(next)) > headroom);
                }
            }
            ChunkChoice::Refuse { needed_bytes, .. } => prop_assert!(needed_bytes > headroom),
        }
    }

    #[test]
    fn more_headroom_never_means_a_smaller_chunk(tracker in trackers(), remaining in 1..10_000usize, headroom in 0..8 * GIB, more in 0..8 * GIB) {
        let size = |headroom| match LIMITS.choose(remaining, headroom, &tracker, mib_per_row) {
            ChunkChoice::Run { rows, .. } => rows,
            ChunkChoice::Refuse { .. } => 0,
        };
        prop_assert!(size(headroom) <= size(headroom + more));
    }

    #[test]
    fn if_a_prompt_may_start_every_shorter_one_may(tracker in trackers(), remaining in 2..10_000usize, headroom in 0..4 * GIB) {
        let may = |remaining| matches!(LIMITS.choose(remaining, headroom, &tracker, mib_per_row), ChunkChoice::Run { .. });
        prop_assert!(!may(remaining) || may(remaining - 1));
    }
}
