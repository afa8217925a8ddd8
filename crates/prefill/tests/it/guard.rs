//! Pressure of the machine, and what the tracker adds to a plan.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use plimsoll_memguard::{Budget, FixedMachine, FixedProbe, Kind, Ledger, Machine, Pressure, Reservation, Room, Usage};
use plimsoll_prefill::{
    CancelToken, Driver, DriverOptions, Held, LAST_RESERVE_BYTES, MachineFull, PrefillReport, StepError,
    last_reserve_bytes, usable_bytes,
};

use crate::{Fake, Fault, fixed, ledger};

const MIB: u64 = 1 << 20;

/// A machine of 1,000 MiB that counts how often it is asked.
struct Counted {
    machine: FixedMachine,
    readings: AtomicUsize,
}

impl Counted {
    fn new(used_mib: &[u64]) -> Arc<Self> {
        let machine = FixedMachine::new(1000 * MIB, used_mib.iter().map(|mib| mib * MIB));
        Arc::new(Self { machine, readings: AtomicUsize::new(0) })
    }

    fn readings(&self) -> usize {
        self.readings.load(Ordering::Relaxed)
    }
}

impl Machine for Counted {
    fn room(&self) -> Option<Room> {
        self.readings.fetch_add(1, Ordering::Relaxed);
        self.machine.room()
    }
}

/// Automatic chunks in a budget without limit.
fn on(machine: &Arc<Counted>, ledger: &Ledger) -> DriverOptions {
    let mut options = DriverOptions::new(ledger.clone());
    options.guard.machine = Some(Arc::clone(machine) as Arc<dyn Machine>);
    options.guard.poll_interval = Duration::ZERO;
    options
}

fn run(driver: &Driver, fake: &mut Fake, tokens: usize) -> Result<PrefillReport, StepError<Fault>> {
    driver.run(fake, 0..tokens, &CancelToken::new(), |_| ()).map_err(|error| error.source)
}

#[test]
fn chunks_shrink_under_pressure_with_hysteresis_and_grow_back() {
    let machine = Counted::new(&[100, 910, 890, 870, 960, 940, 925, 100]);
    let ledger = Ledger::new(Budget::Unlimited);
    let mut fake = Fake::default();
    let report = run(&Driver::new(on(&machine, &ledger)), &mut fake, 3 * 512 + 3 * 256 + 2 * 64).unwrap();
    use Pressure::{Hard, Nominal, Soft};
    let seen: Vec<_> = report.chunks.iter().map(|chunk| (chunk.pressure, chunk.rows)).collect();
    // Soft from 900 to below 880, hard from 950 to below 930.
    let want =
        [(Nominal, 512), (Soft, 256), (Soft, 256), (Nominal, 512), (Hard, 64), (Hard, 64), (Soft, 256), (Nominal, 512)];
    assert_eq!(seen, want);
    assert_eq!(report.chunks[1].requested_rows, 512);
    assert_eq!(machine.readings(), 8, "read for every chunk, and no more often than that");
}

/// A cache of one reservation that is dropped as a whole.
fn cache(ledger: &Ledger, bytes: u64) -> Arc<impl Fn(u64) + Send + Sync + 'static> {
    let held = std::sync::Mutex::new(Some(ledger.reserve(Kind::PrefixCache, bytes).expect("room for the cache")));
    let holder =
        Arc::new(move |_wanted: u64| drop::<Option<Reservation>>(held.lock().expect("no holder panics").take()));
    ledger.add_evictable(&holder);
    holder
}

#[test]
fn soft_pressure_evicts_caches_and_reads_again_at_once() {
    let machine = Counted::new(&[910, 100]);
    let ledger = Ledger::new(Budget::Unlimited);
    let _cache = cache(&ledger, 5 * MIB);
    let mut fake = Fake::default();
    run(&Driver::new(on(&machine, &ledger)), &mut fake, 512).unwrap();
    assert_eq!(
        (ledger.usage().prefix_cache_bytes, fake.rows()),
        (0, vec![512]),
        "the cache went, and with it the pressure"
    );
}

#[test]
fn nominal_pressure_leaves_caches_alone() {
    let ledger = Ledger::new(Budget::Unlimited);
    let _cache = cache(&ledger, 5 * MIB);
    run(&Driver::new(on(&Counted::new(&[100]), &ledger)), &mut Fake::default(), 512).unwrap();
    assert_eq!(ledger.usage().prefix_cache_bytes, 5 * MIB);
}

#[test]
fn a_machine_that_stays_full_ends_the_prefill_with_numbers_after_a_few_readings() {
    let machine = Counted::new(&[100, 990]);
    let ledger = Ledger::new(Budget::Unlimited);
    let weights = ledger.reserve(Kind::Weights, 700 * MIB).unwrap();
    let mut fake = Fake::default();
    let error = run(&Driver::new(on(&machine, &ledger)), &mut fake, 2000).unwrap_err();
    let StepError::Pressure { start: 512, rows: 64, needed_bytes, room, usage } = &error else { panic!("{error:?}") };
    // 64 rows: 7,400 bytes of transients, 640 of keys and values.
    assert_eq!(*needed_bytes, 7_400 + 640 + LAST_RESERVE_BYTES);
    assert_eq!((room.left_bytes(), room.ceiling_bytes), (10 * MIB, 1000 * MIB));
    let Usage { weights_bytes, transient_bytes, .. } = **usage;
    assert_eq!((weights_bytes, transient_bytes), (700 * MIB, 0));
    assert_eq!(
        error.to_string(),
        "the machine has no memory for a chunk of 64 tokens at position 512: it adds 33562472 bytes, 10485760 are left of 1048576000"
    );
    assert_eq!(machine.readings(), 1 + 1 + 3, "one for the first chunk, one and three more for the second");
    assert_eq!((fake.rows(), ledger.usage().reserved_bytes()), (vec![512], 700 * MIB));
    drop(weights);
}

#[test]
fn a_machine_that_recovers_in_time_lets_the_prefill_go_on() {
    let machine = Counted::new(&[990, 990, 985, 100]);
    let mut fake = Fake::default();
    run(&Driver::new(on(&machine, &Ledger::new(Budget::Unlimited))), &mut fake, 600).unwrap();
    assert_eq!(fake.rows(), [512, 88]);
    assert_eq!(machine.readings(), 5);
}

#[test]
fn an_ended_prefill_is_not_held_against_the_next() {
    let machine = Counted::new(&[990, 990, 990, 990, 100]);
    let driver = Driver::new(on(&machine, &Ledger::new(Budget::Unlimited)));
    let mut fake = Fake::default();
    assert!(matches!(run(&driver, &mut fake, 600), Err(StepError::Pressure { start: 0, .. })));
    assert_eq!(run(&driver, &mut fake, 600).unwrap().done_tokens(), 600);
    assert_eq!(fake.rows(), [512, 88]);
}

#[test]
fn a_chunk_is_cut_to_what_the_machine_leaves_even_where_the_budget_has_more() {
    // 5% of the machine stay free. What is left pays for 256 rows and for the keys of 512, and not for 320.
    let left_bytes = 1_000 + 256 * 100 + 512 * 10;
    let machine = FixedMachine::new(1_000_000, [1_000_000 - 50_000 - left_bytes]);
    let mut options = DriverOptions::new(Ledger::new(Budget::Unlimited));
    options.guard.machine = Some(Arc::new(machine));
    options.guard.watermarks.soft_permille = 990;
    options.guard.watermarks.hard_permille = 999;
    let mut fake = Fake::default();
    run(&Driver::new(options), &mut fake, 512).unwrap();
    assert_eq!(fake.rows(), [256, 256]);
}

#[test]
fn the_arena_of_a_larger_chunk_pays_for_a_smaller_one_and_its_keys() {
    let rows = |held_bytes| {
        let machine = FixedMachine::new(1_000_000, [1_000_000 - 50_000 - 100]);
        let mut options = DriverOptions::new(Ledger::new(Budget::Unlimited));
        options.guard.machine = Some(Arc::new(machine));
        options.guard.poll_interval = Duration::ZERO;
        let held = Held { transient_bytes: Some(held_bytes), ..Held::default() };
        let mut fake = Fake { held, ..Fake::default() };
        run(&Driver::new(options), &mut fake, 64).map(|_| fake.rows())
    };
    // 7,400 bytes of transients and 640 of keys, of which 100 are left.
    assert_eq!(rows(7_940).unwrap(), [64]);
    assert!(matches!(rows(7_939), Err(StepError::Pressure { rows: 64, .. })));
}

fn decode_on(machine: &Arc<Counted>, ledger: &Ledger, growth_bytes: u64) -> Result<Pressure, MachineFull> {
    Driver::new(on(machine, ledger)).make_room(growth_bytes)
}

#[test]
fn decode_asks_for_the_room_of_a_block_and_hears_of_the_pressure() {
    let ledger = Ledger::new(Budget::Unlimited);
    for (used_mib, want) in [(100, Pressure::Nominal), (910, Pressure::Soft), (950, Pressure::Hard)] {
        let machine = Counted::new(&[used_mib]);
        assert_eq!(decode_on(&machine, &ledger, 4 * MIB), Ok(want), "hard pressure alone ends nothing: a block fits");
        assert_eq!(machine.readings(), 1);
    }
    let without = Driver::new(DriverOptions::new(ledger)).make_room(u64::MAX);
    assert_eq!(without, Ok(Pressure::Nominal), "without a machine there is nobody to ask");
}

#[test]
fn decode_evicts_caches_under_soft_pressure_before_it_counts_the_machine_as_full() {
    let ledger = Ledger::new(Budget::Unlimited);
    let _cache = cache(&ledger, 5 * MIB);
    let machine = Counted::new(&[990, 100]);
    assert_eq!(decode_on(&machine, &ledger, 4 * MIB), Ok(Pressure::Nominal));
    assert_eq!((ledger.usage().prefix_cache_bytes, machine.readings()), (0, 2));
}

#[test]
fn decode_waits_some_readings_for_a_block_and_then_ends_with_numbers() {
    let ledger = Ledger::new(Budget::Unlimited);
    let machine = Counted::new(&[970, 970, 970, 900]);
    assert_eq!(decode_on(&machine, &ledger, 4 * MIB), Ok(Pressure::Soft), "it recovered in time");
    assert_eq!(machine.readings(), 4);

    let kv = ledger.reserve(Kind::Kv, 300 * MIB).unwrap();
    let machine = Counted::new(&[970]);
    let full = decode_on(&machine, &ledger, 4 * MIB).unwrap_err();
    assert_eq!((full.needed_bytes, full.room.left_bytes()), (4 * MIB + LAST_RESERVE_BYTES, 30 * MIB));
    assert_eq!((full.usage.kv_bytes, machine.readings()), (300 * MIB, 4));
    assert_eq!(full.to_string(), "the machine is full: 37748736 bytes are needed, 31457280 are left of 1048576000");
    drop(kv);
}

#[test]
fn what_stays_free_of_a_machine_is_5_percent_and_at_most_32_mib() {
    let room = |ceiling_bytes, used_bytes| Room { ceiling_bytes, used_bytes, source: None };
    let of = |room: Room| (last_reserve_bytes(&room), usable_bytes(&room));
    assert_eq!(of(room(100 * MIB, 40 * MIB)), (5 * MIB, 55 * MIB));
    assert_eq!(of(room(1000 * MIB, 100 * MIB)), (32 * MIB, 868 * MIB));
    assert_eq!(of(room(100 * MIB, 97 * MIB)), (5 * MIB, 0));
}

#[test]
fn a_fixed_chunk_that_the_machine_cannot_hold_is_refused_and_not_cut() {
    let ledger = Ledger::new(Budget::Unlimited);
    let mut options = fixed(&ledger, 1_000_000);
    options.guard.machine = Some(Counted::new(&[910]) as Arc<dyn Machine>);
    options.guard.poll_interval = Duration::ZERO;
    let error = run(&Driver::new(options), &mut Fake::default(), 2_000_000).unwrap_err();
    assert!(matches!(error, StepError::Pressure { rows: 1_000_000, .. }), "{error:?}");
}

#[test]
fn what_the_allocator_gave_back_is_reserved_on_top_of_the_plan_once() {
    let ledger = Ledger::new(Budget::Unlimited);
    let mut options = fixed(&ledger, 100);
    // Before, after and drained, chunk by chunk: the drain of the first gives 60,000 back, the second takes them again.
    let footprints =
        [0, 100_000, 40_000, 40_000, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000];
    options.probe = Some(Arc::new(FixedProbe::footprints(footprints)));
    let mut fake = Fake { held: Held { transient_bytes: Some(0), ..Held::default() }, ..Fake::over(&ledger) };
    let report = run(&Driver::new(options), &mut fake, 400).unwrap();
    let charged: Vec<_> = report.chunks.iter().map(|chunk| chunk.charged_bytes).collect();
    // First nothing is known. Then what the last chunk grew by, which covers the charge; then the fading average of it.
    assert_eq!(charged[0], 0);
    assert_eq!(charged[1], 100_000);
    let grown: Vec<_> = report.chunks.iter().map(|chunk| chunk.growth_bytes.unwrap()).collect();
    assert_eq!(grown, [100_000, 60_000, 0, 0]);
    for (chunk, reserved) in report.chunks.iter().zip(&fake.reserved_bytes).skip(1) {
        assert_eq!(chunk.predicted_bytes(), chunk.planned_bytes + chunk.charged_bytes);
        assert_eq!(chunk.predicted_bytes(), *reserved, "all of it is reserved while the chunk runs");
        assert!(i128::from(chunk.predicted_bytes()) >= i128::from(chunk.growth_bytes.unwrap()), "{chunk:?}");
    }
}

#[test]
fn a_release_alone_is_charged_and_cleared_by_the_next_growth() {
    let ledger = Ledger::new(Budget::Unlimited);
    let mut options = fixed(&ledger, 100);
    // Nothing grows in the first chunk, and its drain gives 60,000 back.
    let footprints = [100_000, 100_000, 40_000, 40_000, 100_000, 100_000, 100_000];
    options.probe = Some(Arc::new(FixedProbe::footprints(footprints)));
    let mut fake = Fake { held: Held { transient_bytes: Some(0), ..Held::default() }, ..Fake::over(&ledger) };
    let report = run(&Driver::new(options), &mut fake, 300).unwrap();
    assert_eq!(report.chunks[1].charged_bytes, 60_000);
    assert_eq!(fake.reserved_bytes, [11_000, 71_000, report.chunks[2].predicted_bytes()]);
}

#[test]
fn nothing_is_charged_with_the_tracker_off() {
    let ledger = Ledger::new(Budget::Unlimited);
    let mut options = fixed(&ledger, 100);
    options.probe = Some(Arc::new(FixedProbe::footprints([100_000, 100_000, 40_000])));
    options.guard.tracks = false;
    let report = run(&Driver::new(options), &mut Fake::over(&ledger), 300).unwrap();
    assert!(report.chunks.iter().all(|chunk| chunk.charged_bytes == 0));
}

#[test]
fn the_smallest_chunk_runs_on_its_plan_whatever_the_tracker_expects() {
    // Room for the plan of 64 rows and 600 bytes more.
    let ledger = ledger(8_000);
    let mut options = DriverOptions::new(ledger.clone());
    options.probe = Some(Arc::new(FixedProbe::footprints([900_000, 900_000, 100_000])));
    let mut fake = Fake { held: Held { transient_bytes: Some(0), ..Held::default() }, ..Fake::over(&ledger) };
    let report = run(&Driver::new(options), &mut fake, 640).unwrap();
    assert_eq!(fake.rows(), [64; 10]);
    assert!(report.chunks.iter().all(|chunk| chunk.predicted_bytes() <= 8_000));
    assert!(report.chunks[1].charged_bytes == 0, "800,000 bytes were given back, and there is no room for them");
}

#[test]
fn keys_and_values_are_no_growth_of_the_chunk() {
    struct Growing(Fake);
    impl plimsoll_prefill::ChunkTarget for Growing {
        type Error = Fault;
        fn transient_bytes(&self, rows: usize, start: usize) -> u64 {
            self.0.transient_bytes(rows, start)
        }
        fn run(&mut self, chunk: &plimsoll_prefill::Chunk) -> Result<(), Fault> {
            self.0.held.kv_bytes += 50_000;
            self.0.run(chunk)
        }
        fn drain(&mut self) {}
        fn held(&self) -> Held {
            self.0.held
        }
    }
    let ledger = Ledger::new(Budget::Unlimited);
    let mut options = fixed(&ledger, 100);
    let footprints = [0, 50_000, 50_000, 50_000, 103_000, 103_000];
    options.probe = Some(Arc::new(FixedProbe::footprints(footprints)));
    let driver = Driver::new(options);
    let mut growing = Growing(Fake { held: Held { transient_bytes: Some(0), ..Held::default() }, ..Fake::default() });
    let report = driver.run(&mut growing, 0..200, &CancelToken::new(), |_| ()).unwrap();
    let grown: Vec<_> = report.chunks.iter().map(|chunk| (chunk.growth_bytes, chunk.charged_bytes)).collect();
    assert_eq!(grown, [(Some(0), 0), (Some(3_000), 0)]);
    assert_eq!((report.chunks[1].held_before.kv_bytes, report.chunks[1].held_after.kv_bytes), (50_000, 100_000));
}

#[test]
fn the_allocator_is_trimmed_with_every_drain_and_not_without() {
    for (drain, want) in [(plimsoll_prefill::Drain::EachChunk, 3), (plimsoll_prefill::Drain::Never, 0)] {
        let ledger = ledger(1 << 20);
        let trims = Arc::new(AtomicUsize::new(0));
        let mut options = fixed(&ledger, 100);
        options.drain = drain;
        let count = Arc::clone(&trims);
        options.trim = Some(Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }));
        run(&Driver::new(options), &mut Fake::default(), 250).unwrap();
        assert_eq!(trims.load(Ordering::Relaxed), want);
    }
}
