use super::*;
use proptest::prelude::*;

/// Hundredths of a GiB, so that the published figures are whole numbers.
fn gib(hundredths: u64) -> u64 {
    hundredths * ((1 << 30) / 100)
}

fn tracker() -> TransientTracker {
    TransientTracker::new(TrackerConfig { min_chunk_rows: 512 })
}

fn sample(rows: usize, before_bytes: u64, after_bytes: u64) -> Sample {
    Sample { rows, requested_rows: rows.max(512), before_bytes, after_bytes, known_growth_bytes: 0 }
}

#[test]
fn release_on_a_tail_chunk_below_min_chunk_is_remembered() {
    let mut tracker = tracker();
    tracker.record(sample(17, gib(1000), gib(400)));
    assert_eq!(tracker.reclaim_charge_bytes(), gib(600));
}

#[test]
fn growth_on_a_sample_the_gates_skip_clears_the_charge() {
    let mut tracker = tracker();
    tracker.record(sample(512, gib(1000), gib(400)));
    tracker.record(sample(17, gib(400), gib(401)));
    assert_eq!(tracker.reclaim_charge_bytes(), 0);
    assert_eq!((tracker.ewma_bytes_per_row(), tracker.predict_bytes(2048, 0)), (None, 0));
}

#[test]
fn a_release_is_charged_on_top_of_the_plan() {
    let mut tracker = tracker();
    tracker.record(sample(512, gib(2000), gib(2000 - 634)));
    assert_eq!(tracker.predict_bytes(2048, gib(1118)), gib(1752));
}

#[test]
fn a_release_is_not_added_to_an_observation_that_covers_it() {
    let mut tracker = tracker();
    tracker.record(sample(2048, gib(1000), gib(2183)));
    tracker.record(sample(2048, gib(2183), gib(2183 - 686)));
    assert_eq!(tracker.predict_bytes(2048, gib(411)), gib(1183));
}

#[test]
fn the_charge_is_used_once() {
    let mut tracker = tracker();
    tracker.record(sample(2048, gib(4000), gib(4000 - 2133)));
    assert_eq!(tracker.predict_bytes(2048, gib(1058)), gib(3191));
    // The chunk cut to 832 rows grows by 8.53 and takes the charge with it.
    let cut = Sample { requested_rows: 2048, ..sample(832, gib(1867), gib(1867 + 853)) };
    tracker.record(cut);
    assert_eq!(tracker.reclaim_charge_bytes(), 0);
    assert_eq!(tracker.predict_bytes(832, gib(430)), gib(853));
}

#[test]
fn a_dear_tail_leaves_the_average_where_it_was() {
    let mut tracker = TransientTracker::new(TrackerConfig { min_chunk_rows: 64 });
    let kib = |tenths: u64| tenths * 1024 / 10;
    tracker.record(sample(1000, 0, 1000 * kib(7733)));
    let average = tracker.ewma_bytes_per_row().unwrap();
    assert!((average - 773.3 * 1024.0).abs() < 1.0);
    tracker.record(Sample { requested_rows: 1000, ..sample(185, 0, 185 * kib(104_970)) });
    assert_eq!(tracker.ewma_bytes_per_row(), Some(average));
    // It is still the last thing that was seen.
    assert_eq!(tracker.predict_bytes(185, 0), 185 * kib(104_970));
}

#[test]
fn an_outlier_stays_out_of_the_average_but_is_the_last_sample() {
    let mut tracker = tracker();
    tracker.record(sample(512, 0, 512_000));
    tracker.record(sample(512, 0, 512_000 * 9));
    assert_eq!(tracker.ewma_bytes_per_row(), Some(1000.0));
    assert_eq!(tracker.predict_bytes(512, 0), 512_000 * 9);
}

#[test]
fn the_first_full_sample_seeds_the_average_and_the_next_is_blended() {
    let mut tracker = tracker();
    tracker.record(sample(512, 0, 512_000));
    tracker.record(sample(512, 0, 1_024_000));
    assert_eq!(tracker.ewma_bytes_per_row(), Some(0.3 * 2000.0 + 0.7 * 1000.0));
}

#[test]
fn a_cut_chunk_lowers_the_average_and_never_raises_it() {
    let cut = |per_row: u64| Sample { requested_rows: 2048, ..sample(600, 0, 600 * per_row) };
    let mut tracker = tracker();
    tracker.record(cut(5_000));
    assert_eq!(tracker.ewma_bytes_per_row(), None);
    tracker.record(sample(2048, 0, 2_048_000));
    tracker.record(cut(5_000));
    assert_eq!(tracker.ewma_bytes_per_row(), Some(1000.0));
    tracker.record(cut(500));
    assert_eq!(tracker.ewma_bytes_per_row(), Some(0.3 * 500.0 + 0.7 * 1000.0));
}

#[test]
fn releases_in_a_row_are_charged_by_the_gap_to_high_water() {
    let mut tracker = tracker();
    tracker.record(sample(512, gib(900), gib(1000)));
    tracker.record(sample(512, gib(1000), gib(700)));
    tracker.record(sample(512, gib(700), gib(500)));
    assert_eq!(tracker.reclaim_charge_bytes(), gib(500));
}

/// A pool that releases 1.02 in each chunk and takes it again between two samples: the sum of releases reached 22.97.
#[test]
fn a_pool_that_breathes_is_charged_for_one_breath() {
    let mut tracker = tracker();
    for _ in 0..22 {
        tracker.record(sample(512, gib(1102), gib(1000)));
    }
    assert_eq!(tracker.reclaim_charge_bytes(), gib(102));
}

#[test]
fn known_growth_is_neither_growth_nor_hides_a_release() {
    let mut tracker = tracker();
    let known = |growth: u64, sample: Sample| Sample { known_growth_bytes: growth as i64, ..sample };
    tracker.record(known(gib(100), sample(512, gib(1000), gib(1100))));
    assert_eq!((tracker.reclaim_charge_bytes(), tracker.predict_bytes(512, 0)), (0, 0));
    // 2 GiB released under 1 GiB of new KV, twice: the reading fell by 2 in all, the pool gave back 4.
    tracker.record(known(gib(100), sample(512, gib(1100), gib(1000))));
    tracker.record(known(gib(100), sample(512, gib(1000), gib(900))));
    assert_eq!(tracker.reclaim_charge_bytes(), gib(400));
}

#[test]
fn an_evicted_cache_is_not_a_release_of_the_pool() {
    let mut tracker = tracker();
    tracker.record(Sample { known_growth_bytes: -1_000, ..sample(512, 5_000, 4_000) });
    assert_eq!(tracker.reclaim_charge_bytes(), 0);
    tracker.record(Sample { known_growth_bytes: -1_000, ..sample(512, 5_000, 4_512) });
    assert_eq!(tracker.predict_bytes(512, 0), 512);
}

#[test]
fn only_floor_size_chunks_after_the_first_growth_set_the_observed_maximum() {
    let mut tracker = tracker();
    tracker.record(sample(512, 0, 9_000));
    assert_eq!(tracker.observed_max_bytes(), 0);
    tracker.record(sample(1024, 0, 8_000));
    tracker.record(sample(100, 0, 7_000));
    assert_eq!(tracker.observed_max_bytes(), 0);
    tracker.record(sample(512, 0, 3_000));
    tracker.record(sample(512, 0, 2_000));
    assert_eq!(tracker.observed_max_bytes(), 3_000);
}

#[test]
fn reset_drops_the_charge_and_all_that_was_learned() {
    let mut tracker = tracker();
    tracker.record(sample(512, 0, 1_000_000));
    tracker.record(sample(512, 1_000_000, 400_000));
    tracker.reset();
    assert_eq!(tracker.predict_bytes(2048, 5), 5);
    assert_eq!((tracker.reclaim_charge_bytes(), tracker.observed_max_bytes()), (0, 0));
}

#[test]
fn chunks_that_do_not_grow_make_old_growth_fade() {
    let mut tracker = tracker();
    tracker.record(sample(2048, 0, gib(2300)));
    tracker.record(sample(2048, gib(2300), gib(2300)));
    // The last growth is forgotten at once, the average by and by.
    assert!(tracker.predict_bytes(2048, 0).abs_diff(gib(2300) * 7 / 10) <= 1);
    for _ in 0..60 {
        tracker.record(sample(2048, gib(2300), gib(2300)));
    }
    assert_eq!((tracker.predict_bytes(2048, 0), tracker.ewma_bytes_per_row()), (0, None));
    tracker.record(sample(2048, 0, 2_048_000));
    assert_eq!(tracker.ewma_bytes_per_row(), Some(1000.0));
}

#[test]
fn a_release_between_two_chunks_is_told_by_a_sample_of_no_rows() {
    let mut tracker = tracker();
    tracker.record(sample(512, gib(900), gib(1000)));
    tracker.record(sample(0, gib(1000), gib(700)));
    assert_eq!(tracker.predict_bytes(512, gib(50)), gib(350));
}

#[test]
fn fading_ends_every_refusal() {
    let mut tracker = tracker();
    tracker.record(sample(2048, 0, gib(4000)));
    tracker.record(sample(2048, gib(4000), gib(1000)));
    for _ in 0..60 {
        tracker.fade();
    }
    assert_eq!(tracker.predict_bytes(2048, 7), 7);
}

fn samples() -> impl Strategy<Value = Vec<Sample>> {
    let sample = (0..3_000usize, 0..3_000usize, 0..1_000_000u64, 0..1_000_000u64, -100_000..100_000i64).prop_map(
        |(rows, cut, before_bytes, after_bytes, known_growth_bytes)| Sample {
            rows,
            requested_rows: rows + cut,
            before_bytes,
            after_bytes,
            known_growth_bytes,
        },
    );
    prop::collection::vec(sample, 0..40)
}

proptest! {
    #[test]
    fn the_charge_never_exceeds_what_went_since_the_last_growth(samples in samples()) {
        let mut tracker = tracker();
        let (mut gone, mut last_after) = (0i128, None);
        for sample in samples {
            let known = i128::from(sample.known_growth_bytes);
            let delta = i128::from(sample.after_bytes) - i128::from(sample.before_bytes) - known;
            // Between two samples memory goes unseen as well.
            let between = last_after.map_or(0, |after: u64| i128::from(after) - i128::from(sample.before_bytes));
            gone = if delta > 0 { 0 } else { gone + between.max(0) - delta };
            last_after = Some(sample.after_bytes);
            tracker.record(sample);
            prop_assert!(i128::from(tracker.reclaim_charge_bytes()) <= gone);
        }
    }

    #[test]
    fn predictions_rise_with_rows_and_cover_plan_and_charge(samples in samples(), rows in 0..4_000usize, more in 0..4_000usize, per_row in 0..5_000u64) {
        let mut tracker = tracker();
        samples.into_iter().for_each(|sample| tracker.record(sample));
        let planned = |rows: usize| per_row * rows as u64;
        let (few, many) = (rows, rows + more);
        prop_assert!(tracker.predict_bytes(few, planned(few)) <= tracker.predict_bytes(many, planned(many)));
        prop_assert!(tracker.predict_bytes(few, planned(few)) >= planned(few) + tracker.reclaim_charge_bytes());
    }

    #[test]
    fn a_charge_covered_by_what_was_observed_adds_nothing(samples in samples(), rows in 1..4_000usize) {
        let mut tracker = tracker();
        samples.into_iter().for_each(|sample| tracker.record(sample));
        let mut uncharged = tracker.clone();
        uncharged.reclaim_charge_bytes = 0;
        let observed = uncharged.predict_bytes(rows, 0);
        prop_assert_eq!(tracker.predict_bytes(rows, 0), observed.max(tracker.reclaim_charge_bytes()));
    }
}
