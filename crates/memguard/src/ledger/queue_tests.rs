//! Waiting, fairness and eviction.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::ReserveError;

/// Long enough that only a lost wake-up reaches it.
const PATIENT: Duration = Duration::from_secs(30);

fn ledger(budget_bytes: u64) -> Ledger {
    Ledger::new(Budget::Bytes(budget_bytes))
}

fn served(ticket: Ticket) -> Option<Reservation> {
    ticket.poll().unwrap().ok()
}

fn waits(ticket: Ticket) -> Ticket {
    ticket.poll().unwrap().unwrap_err()
}

/// Both chunks read the free bytes at the same moment, and each would fit alone.
#[test]
fn two_chunks_admitted_on_one_snapshot_cannot_both_pass() {
    for _ in 0..200 {
        let ledger = ledger(100);
        let snapshot = ledger.usage().free_bytes().unwrap();
        let start = Barrier::new(2);
        let chunk = || {
            start.wait();
            assert!(60 <= snapshot);
            ledger.reserve(Kind::Transient, 60)
        };
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let threads = [scope.spawn(chunk), scope.spawn(chunk)];
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
        assert_eq!(ledger.usage().peak_bytes, 60);
    }
}

#[test]
fn a_waiting_chunk_runs_when_the_other_ends() {
    let ledger = ledger(100);
    let first = ledger.reserve(Kind::Transient, 60).unwrap();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| ledger.reserve_within(Kind::Transient, 60, PATIENT));
        while ledger.waiting() == 0 {
            std::thread::yield_now();
        }
        drop(first);
        assert_eq!(second.join().unwrap().unwrap().bytes(), 60);
    });
    assert_eq!((ledger.usage().peak_bytes, ledger.usage().reserved_bytes()), (60, 0));
}

#[test]
fn later_requests_stand_behind_a_large_one() {
    let ledger = ledger(100);
    let held = ledger.reserve(Kind::Kv, 60).unwrap();
    let large = waits(ledger.enqueue(Kind::Kv, 80).unwrap());
    // 40 bytes are free, but they are the large request's.
    let behind = ReserveError::Behind { needed_bytes: 10, free_bytes: 40, waiting: 1 };
    assert_eq!(ledger.reserve(Kind::Kv, 10).unwrap_err(), behind);
    let small = waits(ledger.enqueue(Kind::Kv, 10).unwrap());
    drop(held);
    let large = served(large).unwrap();
    let small = served(small).unwrap();
    assert_eq!((large.bytes(), small.bytes(), ledger.usage().kv_bytes, ledger.waiting()), (80, 10, 90, 0));
}

#[test]
fn a_stream_of_small_requests_does_not_starve_a_large_one() {
    let ledger = ledger(100);
    let (done, small_runs) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while done.load(Ordering::Relaxed) == 0 {
                    drop(ledger.reserve_within(Kind::Kv, 30, PATIENT).unwrap());
                    small_runs.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while small_runs.load(Ordering::Relaxed) < 100 {
            std::thread::yield_now();
        }
        let large = ledger.reserve_within(Kind::Kv, 100, PATIENT);
        done.store(1, Ordering::Relaxed);
        assert_eq!(large.unwrap().bytes(), 100);
    });
    assert_eq!(ledger.usage().reserved_bytes(), 0);
}

/// Whoever waits, waits for admitted work to end: holding that up would hold up everybody.
#[test]
fn admitted_work_goes_before_those_who_wait_for_it() {
    let ledger = ledger(100);
    let mut running = ledger.reserve(Kind::Kv, 50).unwrap();
    let large = waits(ledger.enqueue(Kind::Kv, 80).unwrap());
    let chunk = ledger.reserve(Kind::Transient, 40).unwrap();
    running.grow(10).unwrap();
    let next_chunk = waits(ledger.enqueue(Kind::Transient, 30).unwrap());
    // Transients stand in a line of their own.
    assert!(matches!(ledger.reserve(Kind::Transient, 1), Err(ReserveError::Behind { waiting: 1, .. })));
    drop(chunk);
    let next_chunk = served(next_chunk).unwrap();
    let large = waits(large);
    drop((next_chunk, running));
    assert!(served(large).is_some());
}

#[test]
fn a_cache_does_not_grow_past_those_who_wait() {
    let ledger = ledger(100);
    let mut cache = ledger.reserve(Kind::PrefixCache, 30).unwrap();
    let large = waits(ledger.enqueue(Kind::Kv, 80).unwrap());
    assert!(matches!(cache.grow(10), Err(ReserveError::Behind { .. })));
    assert!(matches!(ledger.reserve(Kind::PrefixCache, 10), Err(ReserveError::Behind { .. })));
    drop(cache);
    assert!(served(large).is_some());
}

#[test]
fn a_wait_that_runs_out_says_so_and_lets_the_next_one_through() {
    let ledger = ledger(100);
    let _held = ledger.reserve(Kind::Kv, 60).unwrap();
    let began = Instant::now();
    std::thread::scope(|scope| {
        let large = scope.spawn(|| ledger.reserve_within(Kind::Kv, 80, Duration::from_millis(40)));
        while ledger.waiting() == 0 {
            std::thread::yield_now();
        }
        let small = ledger.reserve_within(Kind::Kv, 40, PATIENT).unwrap();
        assert_eq!(small.bytes(), 40);
        let error = large.join().unwrap().unwrap_err();
        assert!(
            matches!(error, ReserveError::TimedOut { needed_bytes: 80, budget_bytes: 100, waited_ms: 40.., .. }),
            "{error}"
        );
    });
    assert!(began.elapsed() < PATIENT / 2);
    assert_eq!(ledger.waiting(), 0);
}

#[test]
fn no_time_at_all_still_takes_what_is_free() {
    let ledger = ledger(100);
    assert_eq!(ledger.reserve_within(Kind::Kv, 100, Duration::ZERO).unwrap().bytes(), 100);
    assert_eq!(ledger.reserve_within(Kind::Kv, 100, Duration::MAX).unwrap().bytes(), 100);
    assert!(matches!(ledger.reserve_within(Kind::Kv, 101, PATIENT), Err(ReserveError::Never { .. })));
}

#[test]
fn a_cancelled_wait_ends_and_lets_the_next_one_through() {
    let ledger = ledger(100);
    let held = ledger.reserve(Kind::Kv, 60).unwrap();
    let large = ledger.enqueue(Kind::Kv, 80).unwrap();
    let canceller = large.canceller();
    std::thread::scope(|scope| {
        let large = scope.spawn(|| large.wait(PATIENT));
        let small = scope.spawn(|| ledger.reserve_within(Kind::Kv, 40, PATIENT));
        canceller.cancel();
        assert_eq!(large.join().unwrap().unwrap_err(), ReserveError::Cancelled { needed_bytes: 80 });
        assert_eq!(small.join().unwrap().unwrap().bytes(), 40);
    });
    // Too late: the request is over.
    canceller.cancel();
    drop(held);
    assert_eq!((ledger.usage().reserved_bytes(), ledger.waiting()), (0, 0));
}

#[test]
fn a_dropped_ticket_leaves_the_queue_and_returns_what_it_was_granted() {
    let ledger = ledger(100);
    let held = ledger.reserve(Kind::Kv, 60).unwrap();
    let (first, second) = (ledger.enqueue(Kind::Kv, 80).unwrap(), ledger.enqueue(Kind::Kv, 90).unwrap());
    drop(held);
    // Granted, though nobody has fetched it.
    assert_eq!((ledger.usage().kv_bytes, ledger.waiting()), (80, 1));
    first.canceller().cancel();
    assert_eq!(ledger.usage().kv_bytes, 80);
    drop(first);
    assert_eq!(served(second).unwrap().bytes(), 90);
    assert_eq!(ledger.usage().reserved_bytes(), 0);
}

#[test]
fn who_waits_in_vain_is_told() {
    let ledger = ledger(100);
    let _held = ledger.reserve(Kind::Kv, 60).unwrap();
    let large = waits(ledger.enqueue(Kind::Kv, 80).unwrap());
    let _weights = ledger.reserve(Kind::Weights, 30).unwrap_err();
    let mut overhead = ledger.reserve(Kind::Overhead, 0).unwrap();
    overhead.grow(30).unwrap();
    let never =
        ReserveError::Never { needed_bytes: 80, budget_bytes: 100, resident_bytes: 30, max_context_tokens: None };
    assert_eq!(large.poll().unwrap_err(), never);
}

/// A cache of reservations of 10 bytes, which counts how often it is asked and for what.
struct Cache {
    blocks: Mutex<Vec<Reservation>>,
    asked: Mutex<Vec<u64>>,
}

impl Cache {
    fn new(ledger: &Ledger, blocks: usize) -> Arc<Self> {
        let blocks = (0..blocks).map(|_| ledger.reserve(Kind::PrefixCache, 10).unwrap()).collect();
        let cache = Arc::new(Self { blocks: Mutex::new(blocks), asked: Mutex::default() });
        ledger.add_evictable(&cache);
        cache
    }
}

impl Evict for Cache {
    fn evict(&self, wanted_bytes: u64) {
        self.asked.lock().unwrap().push(wanted_bytes);
        let mut blocks = self.blocks.lock().unwrap();
        let count = usize::try_from(wanted_bytes.div_ceil(10)).unwrap().min(blocks.len());
        let rest = blocks.len() - count;
        let gone = blocks.split_off(rest);
        drop(blocks);
        drop(gone);
    }
}

#[test]
fn evictable_holders_are_asked_for_what_is_missing_and_no_more() {
    let ledger = ledger(100);
    let cache = Cache::new(&ledger, 8);
    let _fits = ledger.reserve(Kind::Kv, 20).unwrap();
    assert!(matches!(ledger.reserve_free(Kind::Kv, 25), Err(ReserveError::Later { .. })));
    assert!(cache.asked.lock().unwrap().is_empty());
    let mut kv = ledger.reserve(Kind::Kv, 25).unwrap();
    assert_eq!((&*cache.asked.lock().unwrap(), ledger.usage().prefix_cache_bytes), (&vec![25], 50));
    kv.grow(15).unwrap();
    assert_eq!(ledger.usage().prefix_cache_bytes, 40);
    // Not even the whole cache would do.
    assert!(matches!(ledger.reserve(Kind::Kv, 50), Err(ReserveError::Later { .. })));
    assert!(matches!(ledger.reserve(Kind::Kv, 101), Err(ReserveError::Never { .. })));
}

#[test]
fn holders_are_asked_in_turn_and_forgotten_when_gone() {
    let ledger = ledger(100);
    let (first, second) = (Cache::new(&ledger, 4), Cache::new(&ledger, 4));
    let kv = ledger.reserve(Kind::Kv, 40).unwrap();
    assert_eq!((first.blocks.lock().unwrap().len(), second.blocks.lock().unwrap().len()), (2, 4));
    drop(first);
    let more = ledger.reserve(Kind::Kv, 50).unwrap();
    assert_eq!((&*second.asked.lock().unwrap(), ledger.usage().prefix_cache_bytes), (&vec![30], 10));
    drop((kv, more));
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let closure = Arc::new(move |wanted: u64| {
        counted.fetch_add(wanted, Ordering::Relaxed);
    });
    ledger.add_evictable(&closure);
    drop(second);
    let _all = ledger.reserve(Kind::Kv, 100).unwrap();
    assert!(ledger.reserve(Kind::Kv, 5).is_err());
    assert_eq!(calls.load(Ordering::Relaxed), 5);
}

#[test]
fn those_who_wait_get_what_becomes_evictable() {
    let ledger = ledger(100);
    let cache = Cache::new(&ledger, 0);
    let mut finished = ledger.reserve(Kind::Kv, 90).unwrap();
    std::thread::scope(|scope| {
        let next = scope.spawn(|| ledger.reserve_within(Kind::Kv, 60, PATIENT));
        while ledger.waiting() == 0 {
            std::thread::yield_now();
        }
        // The finished request leaves its KV to the cache.
        let mut blocks: Vec<_> = (0..8).map(|_| finished.split(10)).collect();
        blocks.push(finished);
        let mut cached = cache.blocks.lock().unwrap();
        for mut block in blocks {
            block.move_to(Kind::PrefixCache);
            cached.push(block);
        }
        drop(cached);
        // A release wakes those who wait, even where it serves nobody.
        drop(ledger.reserve(Kind::Transient, 1));
        assert_eq!(next.join().unwrap().unwrap().bytes(), 60);
    });
    assert!(ledger.usage().peak_bytes <= 100);
}

#[test]
fn ten_thousand_random_schedules_return_every_byte() {
    const BUDGET: u64 = 1_000;
    let ledger = ledger(BUDGET);
    let held = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for seed in 1..=4u64 {
            let (ledger, held) = (&ledger, &held);
            scope.spawn(move || {
                let mut state = 0x9E37_79B9_7F4A_7C15u64.wrapping_mul(seed);
                let mut random = move |end: u64| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state % end
                };
                for _ in 0..2_500 {
                    let bytes = 1 + random(600);
                    let kind = if random(3) == 0 { Kind::Transient } else { Kind::Kv };
                    let ticket = ledger.enqueue(kind, bytes).unwrap();
                    let outcome = match random(4) {
                        0 => ledger.reserve(kind, bytes / 8),
                        1 => {
                            ticket.canceller().cancel();
                            ticket.wait(PATIENT)
                        }
                        2 => ticket.wait(Duration::from_micros(random(50))),
                        _ => ticket.wait(PATIENT),
                    };
                    if let Ok(reservation) = outcome {
                        let now = held.fetch_add(reservation.bytes(), Ordering::SeqCst) + reservation.bytes();
                        assert!(now <= BUDGET, "{now} bytes held");
                        held.fetch_sub(reservation.bytes(), Ordering::SeqCst);
                    }
                }
            });
        }
    });
    let usage = ledger.usage();
    assert_eq!((usage.reserved_bytes(), ledger.waiting()), (0, 0));
    assert!(usage.peak_bytes <= BUDGET && usage.peak_bytes > BUDGET / 2, "peak {}", usage.peak_bytes);
}

#[derive(Debug, Clone)]
enum Call {
    Enqueue(bool, u64),
    Reserve(bool, u64),
    Fetch(usize),
    Cancel(usize),
    Leave(usize),
    Drop(usize),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        3 => (any::<bool>(), 0..120u64).prop_map(|(transient, bytes)| Call::Enqueue(transient, bytes)),
        1 => (any::<bool>(), 0..120u64).prop_map(|(transient, bytes)| Call::Reserve(transient, bytes)),
        2 => any::<usize>().prop_map(Call::Fetch),
        1 => any::<usize>().prop_map(Call::Cancel),
        1 => any::<usize>().prop_map(Call::Leave),
        2 => any::<usize>().prop_map(Call::Drop),
    ];
    prop::collection::vec(call, 0..150)
}

/// The queue as a list of (transient, bytes, granted, cancelled), and the sum of all that is booked.
#[derive(Default)]
struct Model {
    queue: Vec<(bool, u64, bool, bool)>,
    booked: u64,
}

impl Model {
    fn waits(entry: &(bool, u64, bool, bool)) -> bool {
        !entry.2 && !entry.3
    }

    fn serve(&mut self) {
        for transient in [true, false] {
            for entry in self.queue.iter_mut().filter(|entry| entry.0 == transient) {
                if !Self::waits(entry) {
                    continue;
                }
                if self.booked + entry.1 > 100 {
                    // The first that does not fit holds up its own line, and admitted work holds up admissions.
                    return;
                }
                entry.2 = true;
                self.booked += entry.1;
            }
        }
    }
}

proptest! {
    #[test]
    fn any_schedule_serves_in_order_and_as_early_as_it_can(calls in calls()) {
        let ledger = ledger(100);
        let kind = |transient| if transient { Kind::Transient } else { Kind::Kv };
        let mut model = Model::default();
        let (mut tickets, mut held): (Vec<Ticket>, Vec<Reservation>) = (Vec::new(), Vec::new());
        for call in calls {
            match call {
                Call::Enqueue(transient, bytes) => match ledger.enqueue(kind(transient), bytes) {
                    Ok(ticket) => {
                        tickets.push(ticket);
                        model.queue.push((transient, bytes, false, false));
                    }
                    Err(error) => prop_assert!(bytes > 100, "{}", error),
                },
                Call::Reserve(transient, bytes) => {
                    let behind = model.queue.iter().any(|entry| Model::waits(entry) && (entry.0 || !transient));
                    let fits = model.booked + bytes <= 100;
                    let got = ledger.reserve(kind(transient), bytes);
                    prop_assert_eq!(got.is_ok(), fits && (bytes == 0 || !behind));
                    if let Ok(reservation) = got {
                        model.booked += bytes;
                        held.push(reservation);
                    }
                }
                Call::Fetch(at) if !tickets.is_empty() => {
                    let at = at % tickets.len();
                    let (_, bytes, granted, cancelled) = model.queue[at];
                    match tickets.remove(at).poll() {
                        Ok(Ok(reservation)) => {
                            prop_assert!(granted);
                            prop_assert_eq!(reservation.bytes(), bytes);
                            model.queue.remove(at);
                            held.push(reservation);
                        }
                        Ok(Err(ticket)) => {
                            prop_assert!(!granted && !cancelled);
                            tickets.insert(at, ticket);
                        }
                        Err(error) => {
                            prop_assert!(cancelled);
                            prop_assert_eq!(error, ReserveError::Cancelled { needed_bytes: bytes });
                            model.queue.remove(at);
                        }
                    }
                }
                Call::Cancel(at) if !tickets.is_empty() => {
                    let at = at % tickets.len();
                    tickets[at].canceller().cancel();
                    model.queue[at].3 = !model.queue[at].2;
                }
                Call::Leave(at) if !tickets.is_empty() => {
                    let at = at % tickets.len();
                    drop(tickets.remove(at));
                    let (_, bytes, granted, _) = model.queue.remove(at);
                    model.booked -= if granted { bytes } else { 0 };
                }
                Call::Drop(at) if !held.is_empty() => {
                    let reservation = held.remove(at % held.len());
                    model.booked -= reservation.bytes();
                    drop(reservation);
                }
                _ => {}
            }
            model.serve();
            prop_assert_eq!(ledger.usage().reserved_bytes(), model.booked);
            prop_assert_eq!(ledger.waiting(), model.queue.iter().filter(|entry| Model::waits(entry)).count());
        }
        drop((tickets, held));
        prop_assert_eq!((ledger.usage().reserved_bytes(), ledger.waiting()), (0, 0));
    }
}
