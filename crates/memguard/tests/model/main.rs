//! The ledger's own source over loom's primitives: every interleaving of a few threads, with at most three preemptions.
//!
//! Loom reports a deadlock where a thread sleeps for ever, so a lost wake-up fails these tests.
#![allow(
    dead_code,
    unreachable_pub,
    unfulfilled_lint_expectations,
    reason = "the ledger's source is included, and only part of it is called"
)]

use std::sync::Arc;
use std::time::Duration;

use loom::sync::Mutex;
use loom::thread;

#[path = "../../src/error.rs"]
mod error;

#[path = "../../src/ledger"]
mod ledger {
    #[path = "books.rs"]
    mod books;
    #[path = "handle.rs"]
    mod handle;
    #[path = "reservation.rs"]
    mod reservation;
    #[path = "ticket.rs"]
    mod ticket;

    pub(crate) use books::{Budget, Kind};
    pub(crate) use handle::{Evict, Ledger};
    pub(crate) use reservation::Reservation;
}

mod sync {
    pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
}

use error::ReserveError;
use ledger::{Budget, Evict, Kind, Ledger, Reservation};

/// Loom's clock stands still: a wait ends by what other threads do, or never.
const FOR_EVER: Duration = Duration::MAX;

fn check(body: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(body);
}

fn finished(ledger: &Ledger, budget_bytes: u64) {
    let usage = ledger.usage();
    assert!(usage.peak_bytes <= budget_bytes, "{usage:?}");
    assert_eq!((usage.reserved_bytes(), ledger.waiting()), (0, 0));
}

#[test]
fn two_chunks_on_one_snapshot_never_both_pass() {
    check(|| {
        let ledger = Ledger::new(Budget::Bytes(100));
        let other = ledger.clone();
        let thread = thread::spawn(move || other.reserve(Kind::Transient, 60));
        let mine = ledger.reserve(Kind::Transient, 60);
        let other = thread.join().unwrap();
        assert!(mine.is_ok() != other.is_ok());
        drop((mine, other));
        finished(&ledger, 100);
    });
}

#[test]
fn a_release_always_wakes_who_waits_for_it() {
    check(|| {
        let ledger = Ledger::new(Budget::Bytes(100));
        let held = ledger.reserve(Kind::Kv, 60).unwrap();
        let waiter = ledger.clone();
        let thread = thread::spawn(move || drop(waiter.reserve_within(Kind::Kv, 80, FOR_EVER).unwrap()));
        drop(held);
        thread.join().unwrap();
        finished(&ledger, 100);
    });
}

#[test]
fn two_who_wait_are_both_served() {
    check(|| {
        let ledger = Ledger::new(Budget::Bytes(100));
        let held = ledger.reserve(Kind::Kv, 60).unwrap();
        let threads = [60, 70].map(|bytes| {
            let waiter = ledger.clone();
            thread::spawn(move || drop(waiter.reserve_within(Kind::Kv, bytes, FOR_EVER).unwrap()))
        });
        drop(held);
        for thread in threads {
            thread.join().unwrap();
        }
        finished(&ledger, 100);
    });
}

#[test]
fn a_cancelled_head_of_the_queue_lets_the_next_one_through() {
    check(|| {
        let ledger = Ledger::new(Budget::Bytes(100));
        let held = ledger.reserve(Kind::Kv, 60).unwrap();
        let large = ledger.enqueue(Kind::Kv, 80).unwrap();
        let canceller = large.canceller();
        let small = ledger.clone();
        let thread = thread::spawn(move || drop(small.reserve_within(Kind::Kv, 40, FOR_EVER).unwrap()));
        let cancelling = thread::spawn(move || canceller.cancel());
        assert_eq!(large.wait(FOR_EVER).unwrap_err(), ReserveError::Cancelled { needed_bytes: 80 });
        thread.join().unwrap();
        cancelling.join().unwrap();
        drop(held);
        finished(&ledger, 100);
    });
}

#[test]
fn growth_races_with_a_release_and_a_waiting_request() {
    check(|| {
        let ledger = Ledger::new(Budget::Bytes(100));
        let mut running = ledger.reserve(Kind::Kv, 40).unwrap();
        let other = ledger.reserve(Kind::Kv, 40).unwrap();
        let waiter = ledger.clone();
        let waiting = thread::spawn(move || drop(waiter.reserve_within(Kind::Kv, 50, FOR_EVER).unwrap()));
        let releasing = thread::spawn(move || drop(other));
        let grown = running.grow(30).is_ok();
        assert_eq!(running.bytes(), if grown { 70 } else { 40 });
        drop(running);
        waiting.join().unwrap();
        releasing.join().unwrap();
        finished(&ledger, 100);
    });
}

struct Cache(Mutex<Option<Reservation>>);

impl Evict for Cache {
    fn evict(&self, _wanted_bytes: u64) {
        // Let go of the lock first: dropping the reservation enters the ledger.
        let taken = self.0.lock().expect("no test panics with the lock held").take();
        drop(taken);
    }
}

#[test]
fn what_moves_to_the_cache_can_be_had_by_who_waits() {
    check(|| {
        let ledger = Ledger::new(Budget::Bytes(100));
        let cache = Arc::new(Cache(Mutex::new(None)));
        ledger.add_evictable(&cache);
        let running = ledger.reserve(Kind::Kv, 60).unwrap();
        let last_chunk = ledger.reserve(Kind::Transient, 1).unwrap();
        let waiter = ledger.clone();
        let thread = thread::spawn(move || drop(waiter.reserve_within(Kind::Kv, 80, FOR_EVER).unwrap()));
        let mut finished_kv = running;
        finished_kv.move_to(Kind::PrefixCache);
        *cache.0.lock().unwrap() = Some(finished_kv);
        drop(last_chunk);
        thread.join().unwrap();
        finished(&ledger, 100);
    });
}

#[test]
fn two_who_evict_the_same_cache_never_share_its_bytes() {
    check(|| {
        let ledger = Ledger::new(Budget::Bytes(100));
        let cache = Arc::new(Cache(Mutex::new(Some(ledger.reserve(Kind::PrefixCache, 90).unwrap()))));
        ledger.add_evictable(&cache);
        let other = ledger.clone();
        let thread = thread::spawn(move || other.reserve(Kind::Transient, 60));
        let mine = ledger.reserve(Kind::Transient, 60);
        let other = thread.join().unwrap();
        assert!(mine.is_ok() != other.is_ok());
        drop((mine, other));
        finished(&ledger, 100);
    });
}
