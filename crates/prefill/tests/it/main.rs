//! The driver over a target that writes down what it is asked to do.

mod guard;
mod schedules;

use std::num::NonZeroUsize;
use std::sync::Arc;

use plimsoll_memguard::{Budget, FixedProbe, Kind, Ledger, MemorySample, ReserveError};
use plimsoll_prefill::{
    CancelToken, Chunk, ChunkSize, ChunkTarget, Drain, Driver, DriverOptions, Held, Outcome, Progress, StepError,
    conformance,
};
use proptest::prelude::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the fake fails at token {0}")]
struct Fault(usize);

/// Hashes the positions it is given; a row costs 100 bytes and a chunk 1,000 on top.
#[derive(Debug, Default)]
struct Fake {
    ledger: Option<Ledger>,
    chunks: Vec<Chunk>,
    /// Transient bytes that the ledger held while each chunk ran.
    reserved_bytes: Vec<u64>,
    drains: usize,
    fails_at: Option<usize>,
    cancels: Option<CancelToken>,
    measured_bytes: Option<u64>,
    held: Held,
    state: u64,
}

impl Fake {
    fn over(ledger: &Ledger) -> Self {
        Self { ledger: Some(ledger.clone()), ..Self::default() }
    }

    fn rows(&self) -> Vec<usize> {
        self.chunks.iter().map(|chunk| chunk.rows).collect()
    }
}

impl ChunkTarget for Fake {
    type Error = Fault;

    fn transient_bytes(&self, rows: usize, _start: usize) -> u64 {
        1_000 + 100 * rows as u64
    }

    fn run(&mut self, chunk: &Chunk) -> Result<(), Fault> {
        if let Some(ledger) = &self.ledger {
            self.reserved_bytes.push(ledger.usage().of(Kind::Transient));
        }
        if let Some(at) = self.fails_at.filter(|at| (chunk.start..chunk.end()).contains(at)) {
            return Err(Fault(at));
        }
        for position in chunk.start..chunk.end() {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(position as u64 + 1);
        }
        self.chunks.push(*chunk);
        if let Some(cancel) = &self.cancels {
            cancel.cancel();
        }
        Ok(())
    }

    fn drain(&mut self) {
        self.drains += 1;
    }

    fn measured_bytes(&self) -> Option<u64> {
        self.measured_bytes
    }

    fn held(&self) -> Held {
        self.held
    }

    fn kv_growth_bytes(&self, rows: usize, _start: usize) -> u64 {
        10 * rows as u64
    }
}

fn ledger(budget_bytes: u64) -> Ledger {
    Ledger::new(Budget::Bytes(budget_bytes))
}

fn fixed(ledger: &Ledger, rows: usize) -> DriverOptions {
    let mut options = DriverOptions::new(ledger.clone());
    options.chunk = ChunkSize::Fixed(NonZeroUsize::new(rows).expect("a chunk has rows"));
    options
}

#[test]
fn the_fake_target_conforms() {
    conformance::check(300, Fake::default, |fake| fake.state);
}

#[test]
#[should_panic(expected = "gave another result")]
fn a_target_whose_result_depends_on_the_partition_does_not_conform() {
    conformance::check(300, Fake::default, |fake| fake.chunks.len());
}

#[test]
#[should_panic(expected = "bytes used")]
fn a_target_that_uses_more_than_it_priced_does_not_conform() {
    let greedy = || Fake { measured_bytes: Some(1_000_000), ..Fake::default() };
    conformance::check(300, greedy, |fake| fake.state);
}

#[test]
fn fixed_chunks_cover_the_range_and_only_the_final_one_is_last() {
    let ledger = ledger(1 << 20);
    let mut fake = Fake::over(&ledger);
    let report = Driver::new(fixed(&ledger, 100)).run(&mut fake, 40..290, &CancelToken::new(), |_| ()).unwrap();
    let want = [
        Chunk { start: 40, rows: 100, last: false },
        Chunk { start: 140, rows: 100, last: false },
        Chunk { start: 240, rows: 50, last: true },
    ];
    assert_eq!(fake.chunks, want);
    assert_eq!(report.outcome, Outcome::Completed);
    assert_eq!((report.done_tokens(), report.total_tokens()), (250, 250));
    let planned: Vec<_> = report.chunks.iter().map(|chunk| (chunk.start, chunk.rows, chunk.planned_bytes)).collect();
    assert_eq!(planned, [(40, 100, 11_000), (140, 100, 11_000), (240, 50, 6_000)]);
}

#[test]
fn each_chunk_runs_under_its_own_reservation_which_ends_with_it() {
    let ledger = ledger(20_000);
    let mut fake = Fake::over(&ledger);
    Driver::new(fixed(&ledger, 100))
        .run(&mut fake, 0..250, &CancelToken::new(), |_| {
            assert_eq!(ledger.usage().of(Kind::Transient), 0);
        })
        .unwrap();
    assert_eq!(fake.reserved_bytes, [11_000, 11_000, 6_000]);
    assert_eq!((ledger.usage().peak_bytes, fake.drains), (11_000, 3));
}

#[test]
fn automatic_chunks_are_the_largest_multiples_of_64_that_fit_and_grow_back() {
    let ledger = ledger(60_000);
    let mut fake = Fake::over(&ledger);
    let mut held = Some(ledger.reserve(Kind::Kv, 35_000).unwrap());
    let driver = Driver::new(DriverOptions::new(ledger.clone()));
    let report = driver
        .run(&mut fake, 0..1_000, &CancelToken::new(), |progress| {
            // 25,000 bytes pay for 240 rows, 60,000 for 590.
            if progress.done_tokens >= 384 {
                held = None;
            }
        })
        .unwrap();
    assert_eq!(fake.rows(), [192, 192, 512, 104]);
    assert_eq!(report.done_tokens(), 1_000);
}

#[test]
fn no_room_for_the_smallest_chunk_is_an_error_that_counts_what_was_done() {
    let ledger = ledger(30_000);
    let mut fake = Fake::over(&ledger);
    let mut held = None;
    let driver = Driver::new(DriverOptions::new(ledger.clone()));
    let error = driver
        .run(&mut fake, 0..1_000, &CancelToken::new(), |_| held = ledger.reserve(Kind::Kv, 25_000).ok())
        .unwrap_err();
    assert_eq!((error.done_tokens, error.total_tokens, error.report.chunks.len()), (256, 1_000, 1));
    assert_eq!(error.to_string(), "prefill ended after 256 of 1000 tokens");
    let StepError::Reserve { start: 256, rows: 64, planned_bytes: 7_400, source } = error.source else {
        panic!("{:?}", error.source)
    };
    assert!(matches!(source, ReserveError::Later { free_bytes: 5_000, .. }), "{source}");
    assert_eq!(ledger.usage().of(Kind::Transient), 0);
}

#[test]
fn a_fixed_chunk_is_never_cut_to_fit() {
    let ledger = ledger(10_000);
    let error =
        Driver::new(fixed(&ledger, 100)).run(&mut Fake::default(), 0..1_000, &CancelToken::new(), |_| ()).unwrap_err();
    assert!(matches!(error.source, StepError::Reserve { rows: 100, source: ReserveError::Never { .. }, .. }));
}

#[test]
fn a_failed_chunk_is_drained_given_back_and_leaves_the_ones_before_usable() {
    let ledger = ledger(1 << 20);
    let mut fake = Fake { fails_at: Some(130), ..Fake::over(&ledger) };
    let driver = Driver::new(fixed(&ledger, 50));
    let error = driver.run(&mut fake, 0..250, &CancelToken::new(), |_| ()).unwrap_err();
    assert_eq!(error.done_tokens, 100);
    assert_eq!(error.source, StepError::Target { start: 100, rows: 50, source: Fault(130) });
    assert_eq!((fake.drains, ledger.usage().reserved_bytes()), (3, 0));
    // Going on from there equals a run without the fault.
    fake.fails_at = None;
    driver.run(&mut fake, error.done_tokens..250, &CancelToken::new(), |_| ()).unwrap();
    let mut whole = Fake::default();
    driver.run(&mut whole, 0..250, &CancelToken::new(), |_| ()).unwrap();
    assert_eq!(fake.state, whole.state);
}

#[test]
fn the_causes_of_an_error_can_be_walked() {
    let ledger = ledger(1 << 20);
    let mut fake = Fake { fails_at: Some(0), ..Fake::default() };
    let error = Driver::new(fixed(&ledger, 50)).run(&mut fake, 0..250, &CancelToken::new(), |_| ()).unwrap_err();
    let mut lines = vec![error.to_string()];
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        lines.push(error.to_string());
        cause = error.source();
    }
    assert_eq!(
        lines,
        ["prefill ended after 0 of 250 tokens", "chunk of 50 tokens at position 0 failed", "the fake fails at token 0"]
    );
}

#[test]
fn cancelling_ends_between_chunks_with_a_report_of_what_was_done() {
    let ledger = ledger(1 << 20);
    let cancel = CancelToken::new();
    let mut fake = Fake { cancels: Some(cancel.clone()), ..Fake::over(&ledger) };
    let report = Driver::new(fixed(&ledger, 100)).run(&mut fake, 0..250, &cancel, |_| ()).unwrap();
    assert_eq!((report.outcome, report.done_tokens(), fake.rows()), (Outcome::Cancelled, 100, vec![100]));
    let report = Driver::new(fixed(&ledger, 100)).run(&mut fake, 100..250, &cancel, |_| ()).unwrap();
    assert_eq!((report.outcome, report.chunks.len()), (Outcome::Cancelled, 0));
    assert_eq!(ledger.usage().reserved_bytes(), 0);
}

#[test]
fn cancelling_during_the_last_chunk_changes_nothing() {
    let ledger = ledger(1 << 20);
    let cancel = CancelToken::new();
    let mut fake = Fake { cancels: Some(cancel.clone()), ..Fake::over(&ledger) };
    let report = Driver::new(fixed(&ledger, 100)).run(&mut fake, 0..100, &cancel, |_| ()).unwrap();
    assert_eq!(report.outcome, Outcome::Completed);
}

#[test]
#[expect(clippy::reversed_empty_ranges, reason = "a backwards range is what is tested")]
fn an_empty_range_completes_without_a_chunk() {
    let ledger = ledger(0);
    for range in [5..5, 5..3] {
        let mut fake = Fake::default();
        let report = Driver::new(fixed(&ledger, 10)).run(&mut fake, range, &CancelToken::new(), |_| ()).unwrap();
        assert_eq!((report.outcome, report.chunks.len(), fake.drains), (Outcome::Completed, 0, 0));
    }
}

#[test]
fn the_probe_measures_what_the_target_does_not_count() {
    let ledger = ledger(1 << 20);
    let mut options = fixed(&ledger, 100);
    options.probe = Some(Arc::new(FixedProbe::footprints([1_000, 4_000, 4_100, 4_100, 3_500])));
    let driver = Driver::new(options);
    let report = driver.run(&mut Fake::default(), 0..200, &CancelToken::new(), |_| ()).unwrap();
    let measured: Vec<_> = report.chunks.iter().map(|chunk| chunk.measured_bytes).collect();
    assert_eq!(measured, [Some(3_000), Some(0)]);
    let footprint = |sample: Option<plimsoll_memguard::MemorySample>| sample.and_then(|sample| sample.footprint);
    let first = &report.chunks[0];
    assert_eq!((footprint(first.after), footprint(first.drained)), (Some(4_000), Some(4_100)));
    assert_eq!((first.growth_bytes, report.chunks[1].growth_bytes), (Some(3_000), Some(-600)));

    let mut counting = Fake { measured_bytes: Some(77), ..Fake::default() };
    let report = driver.run(&mut counting, 0..100, &CancelToken::new(), |_| ()).unwrap();
    assert_eq!(report.chunks[0].measured_bytes, Some(77));
}

#[test]
fn nothing_is_measured_where_nothing_can_be_read() {
    let ledger = ledger(1 << 20);
    let mut options = fixed(&ledger, 100);
    options.probe = Some(Arc::new(FixedProbe::new([MemorySample::default()])));
    let report = Driver::new(options).run(&mut Fake::default(), 0..100, &CancelToken::new(), |_| ()).unwrap();
    assert_eq!(report.chunks[0].measured_bytes, None);
}

#[test]
fn draining_can_be_left_out() {
    let ledger = ledger(1 << 20);
    let mut options = fixed(&ledger, 100);
    options.drain = Drain::Never;
    let mut fake = Fake::default();
    Driver::new(options).run(&mut fake, 0..250, &CancelToken::new(), |_| ()).unwrap();
    assert_eq!(fake.drains, 0);
}

#[test]
fn a_held_reservation_pays_first_and_is_unchanged_afterwards() {
    let ledger = ledger(12_000);
    let mut held = ledger.reserve(Kind::Transient, 8_000).unwrap();
    let mut fake = Fake::over(&ledger);
    let driver = Driver::new(fixed(&ledger, 100));
    driver.run_holding(&mut fake, 0..150, &mut held, &CancelToken::new(), |_| ()).unwrap();
    // 11,000 for the first chunk; the second needs 6,000, fewer than are held.
    assert_eq!(fake.reserved_bytes, [11_000, 8_000]);
    assert_eq!((held.bytes(), ledger.usage().reserved_bytes()), (8_000, 8_000));
}

#[test]
#[should_panic(expected = "of another ledger")]
fn a_reservation_of_another_ledger_cannot_pay() {
    let mut held = ledger(12_000).reserve(Kind::Transient, 8_000).unwrap();
    let driver = Driver::new(fixed(&ledger(12_000), 100));
    let _ = driver.run_holding(&mut Fake::default(), 0..150, &mut held, &CancelToken::new(), |_| ());
}

#[test]
fn a_panicking_target_gives_its_reservation_back() {
    struct Panics;
    impl ChunkTarget for Panics {
        type Error = Fault;
        fn transient_bytes(&self, _rows: usize, _start: usize) -> u64 {
            10
        }
        fn run(&mut self, _chunk: &Chunk) -> Result<(), Fault> {
            panic!("inside a chunk")
        }
        fn drain(&mut self) {}
    }
    let ledger = ledger(100);
    let driver = Driver::new(fixed(&ledger, 1));
    let run = || driver.run(&mut Panics, 0..1, &CancelToken::new(), |_| ()).is_ok();
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
    assert_eq!(ledger.usage().reserved_bytes(), 0);
}

#[test]
fn progress_counts_tokens_and_estimates_the_rest() {
    let ledger = ledger(1 << 20);
    let resident = ledger.reserve(Kind::Kv, 77).unwrap();
    let mut seen = Vec::new();
    Driver::new(fixed(&ledger, 100))
        .run(&mut Fake::default(), 30..280, &CancelToken::new(), |progress| {
            assert!(progress.seconds_left() >= 0.0);
            let Progress { done_tokens, total_tokens, cached_tokens, reserved_bytes, .. } = *progress;
            seen.push((done_tokens, total_tokens, cached_tokens, reserved_bytes, progress.chunk.rows));
        })
        .unwrap();
    drop(resident);
    assert_eq!(seen, [(100, 250, 30, 77, 100), (200, 250, 30, 77, 100), (250, 250, 30, 77, 50)]);
}

proptest! {
    #[test]
    fn any_budget_ends_in_the_same_state_or_in_a_refusal(budget in 0..80_000u64, start in 0..100usize, tokens in 0..2_000usize, max_rows in 1..700usize) {
        let ledger = ledger(budget);
        let mut fake = Fake::over(&ledger);
        let mut options = DriverOptions::new(ledger.clone());
        options.chunk = ChunkSize::Auto { max_rows: NonZeroUsize::new(max_rows).unwrap() };
        let outcome = Driver::new(options).run(&mut fake, start..start + tokens, &CancelToken::new(), |_| ());
        prop_assert!(ledger.usage().peak_bytes <= budget);
        prop_assert_eq!(ledger.usage().reserved_bytes(), 0);
        // The smallest chunk ever needed costs this much; with it there is always a way on.
        let floor = fake.transient_bytes(tokens.min(max_rows).min(64), start);
        match outcome {
            Ok(report) => {
                prop_assert_eq!(report.done_tokens(), tokens);
                let mut whole = Fake::default();
                let unlimited = Driver::new(DriverOptions::new(Ledger::new(Budget::Unlimited)));
                unlimited.run(&mut whole, start..start + tokens, &CancelToken::new(), |_| ()).unwrap();
                prop_assert_eq!(fake.state, whole.state);
                prop_assert!(fake.rows().iter().all(|rows| *rows <= max_rows));
            }
            Err(error) => {
                prop_assert!(budget < floor, "{:?} with {} bytes", error, budget);
                prop_assert_eq!(error.done_tokens, fake.rows().iter().sum::<usize>());
            }
        }
    }
}
