//! The public API under threads, and as a stranger would use it.

mod contexts;
mod replay;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use plimsoll_memguard::{Budget, Kind, Ledger, Pass, Profile, Reservation};

/// A small generator, so that the schedules of a failing run can be repeated.
struct XorShift(u64);

impl XorShift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).expect("a remainder is below a `usize`")
    }
}

#[test]
fn handles_and_reservations_go_to_other_threads() {
    fn sendable<T: Send + Sync + std::fmt::Debug>() {}
    sendable::<Ledger>();
    sendable::<Reservation>();
}

#[test]
fn two_chunks_are_never_admitted_on_the_same_free_bytes() {
    for _ in 0..200 {
        let ledger = Ledger::new(Budget::Bytes(100));
        let start = Barrier::new(2);
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let chunk = || {
                start.wait();
                ledger.reserve(Kind::Transient, 60)
            };
            let threads = [scope.spawn(chunk), scope.spawn(chunk)];
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
        assert_eq!(ledger.usage().peak_bytes, 60);
    }
}

/// What the threads believe to hold is counted beside the ledger; it must never pass the budget either.
#[test]
fn random_threads_never_hold_more_than_the_budget() {
    const BUDGET: u64 = 10_000;
    let ledger = Ledger::new(Budget::Bytes(BUDGET));
    let held = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in 1..=4u64 {
            let (ledger, held) = (ledger.clone(), Arc::clone(&held));
            scope.spawn(move || {
                let mut random = XorShift(0x9E37_79B9_7F4A_7C15 ^ seed);
                let mut mine: Vec<Reservation> = Vec::new();
                for _ in 0..20_000 {
                    let bytes = random.next() % 3_000;
                    match random.next() % 5 {
                        0 | 1 => {
                            if let Ok(reservation) = ledger.reserve(Kind::ALL[random.below(5)], bytes) {
                                let now = held.fetch_add(bytes, Ordering::SeqCst) + bytes;
                                assert!(now <= BUDGET, "{now} bytes held");
                                mine.push(reservation);
                            }
                        }
                        2 if !mine.is_empty() => {
                            let at = random.below(mine.len());
                            if mine[at].grow(bytes).is_ok() {
                                let now = held.fetch_add(bytes, Ordering::SeqCst) + bytes;
                                assert!(now <= BUDGET, "{now} bytes held");
                            }
                        }
                        3 if !mine.is_empty() => {
                            let at = random.below(mine.len());
                            let half = mine[at].bytes() / 2;
                            let mut part = mine[at].split(half);
                            part.move_to(Kind::PrefixCache);
                            mine.push(part);
                        }
                        4 if !mine.is_empty() => {
                            let reservation = mine.swap_remove(random.below(mine.len()));
                            // Counted down first: the ledger may hold more than the count, never less.
                            held.fetch_sub(reservation.bytes(), Ordering::SeqCst);
                            drop(reservation);
                        }
                        _ => {}
                    }
                }
                for reservation in &mine {
                    held.fetch_sub(reservation.bytes(), Ordering::SeqCst);
                }
            });
        }
    });
    let usage = ledger.usage();
    assert_eq!(usage.reserved_bytes(), 0);
    assert!(usage.peak_bytes <= BUDGET && usage.peak_bytes > BUDGET / 2, "peak {}", usage.peak_bytes);
}

#[test]
fn a_profile_can_be_kept_behind_a_pointer() {
    struct Linear;
    impl Profile for Linear {
        fn weights_bytes(&self) -> u64 {
            1_000
        }
        fn kv_bytes(&self, context_tokens: usize) -> u64 {
            10 * context_tokens as u64
        }
        fn transient_bytes(&self, pass: &Pass) -> u64 {
            (pass.rows + 3 * pass.logit_rows) as u64
        }
    }
    let profile: Box<dyn Profile> = Box::new(Linear);
    assert_eq!(profile.transient_bytes(&Pass { rows: 64, start: 0, logit_rows: 1 }), 67);
    assert_eq!(profile.weights_bytes() + profile.kv_bytes(5), 1_050);
}
