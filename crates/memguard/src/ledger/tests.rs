use super::*;
use crate::ReserveError;
use proptest::prelude::*;

fn ledger(budget_bytes: u64) -> Ledger {
    Ledger::new(Budget::Bytes(budget_bytes))
}

#[test]
fn a_dropped_reservation_gives_its_bytes_back() {
    let ledger = ledger(100);
    let kv = ledger.reserve(Kind::Kv, 60).unwrap();
    assert_eq!((kv.bytes(), kv.kind(), ledger.usage().free_bytes()), (60, Kind::Kv, Some(40)));
    drop(kv);
    assert_eq!(ledger.usage().free_bytes(), Some(100));
    assert_eq!(ledger.usage().peak_bytes, 60);
}

#[test]
fn the_whole_budget_can_be_reserved_and_not_one_byte_more() {
    let ledger = ledger(100);
    let all = ledger.reserve(Kind::Transient, 100).unwrap();
    let refused = ledger.reserve(Kind::Kv, 1).unwrap_err();
    assert_eq!(refused, ReserveError::Later { needed_bytes: 1, free_bytes: 0, budget_bytes: 100 });
    assert!(ledger.reserve(Kind::Kv, 0).is_ok());
    drop(all);
}

#[test]
fn what_the_resident_kinds_leave_no_room_for_fits_never() {
    let ledger = ledger(100);
    let _weights = ledger.reserve(Kind::Weights, 50).unwrap();
    let _overhead = ledger.reserve(Kind::Overhead, 20).unwrap();
    let _kv = ledger.reserve(Kind::Kv, 20).unwrap();
    assert!(matches!(ledger.reserve(Kind::Kv, 30), Err(ReserveError::Later { free_bytes: 10, .. })));
    assert_eq!(
        ledger.reserve(Kind::Kv, 31).unwrap_err(),
        ReserveError::Never { needed_bytes: 31, budget_bytes: 100, resident_bytes: 70, max_context_tokens: None }
    );
}

#[test]
fn growth_counts_what_the_holder_keeps() {
    let ledger = ledger(100);
    let mut kv = ledger.reserve(Kind::Kv, 60).unwrap();
    let other = ledger.reserve(Kind::Transient, 30).unwrap();
    assert!(matches!(kv.grow(40), Err(ReserveError::Later { needed_bytes: 40, free_bytes: 10, .. })));
    // 60 + 41 bytes never fit, even with everything else gone.
    assert!(matches!(kv.grow(41), Err(ReserveError::Never { needed_bytes: 101, .. })));
    assert_eq!(kv.bytes(), 60);
    drop(other);
    kv.grow(40).unwrap();
    assert_eq!((kv.bytes(), ledger.usage().kv_bytes), (100, 100));
}

#[test]
fn a_growing_resident_reservation_is_not_counted_twice() {
    let ledger = ledger(100);
    let mut weights = ledger.reserve(Kind::Weights, 60).unwrap();
    let _kv = ledger.reserve(Kind::Kv, 30).unwrap();
    assert!(matches!(weights.grow(40), Err(ReserveError::Later { .. })));
    assert!(matches!(weights.grow(41), Err(ReserveError::Never { needed_bytes: 41, resident_bytes: 60, .. })));
}

#[test]
fn a_request_past_64_bits_is_refused() {
    let small = ledger(100);
    let _held = small.reserve(Kind::Kv, 1).unwrap();
    assert!(matches!(small.reserve(Kind::Kv, u64::MAX), Err(ReserveError::Never { .. })));

    let unlimited = Ledger::new(Budget::Unlimited);
    let _held = unlimited.reserve(Kind::Kv, 1).unwrap();
    assert!(matches!(unlimited.reserve(Kind::Kv, u64::MAX), Err(ReserveError::Uncountable { .. })));
    assert_eq!(unlimited.usage().free_bytes(), None);
}

#[test]
fn parts_and_moves_keep_the_sum() {
    let ledger = ledger(100);
    let mut kv = ledger.reserve(Kind::Kv, 80).unwrap();
    let mut part = kv.split(30);
    assert_eq!((kv.bytes(), part.bytes(), ledger.usage().kv_bytes), (50, 30, 80));
    part.move_to(Kind::PrefixCache);
    assert_eq!((ledger.usage().kv_bytes, ledger.usage().prefix_cache_bytes), (50, 30));
    kv.absorb(part);
    assert_eq!((kv.bytes(), ledger.usage().kv_bytes, ledger.usage().prefix_cache_bytes), (80, 80, 0));
    kv.shrink(80);
    assert_eq!((kv.bytes(), ledger.usage().reserved_bytes()), (0, 0));
}

#[test]
#[should_panic(expected = "cannot give back 11 of 10 reserved bytes")]
fn giving_back_more_than_held_is_a_fault_of_the_caller() {
    ledger(100).reserve(Kind::Kv, 10).unwrap().shrink(11);
}

#[test]
#[should_panic(expected = "reservations of two ledgers")]
fn reservations_of_two_ledgers_do_not_mix() {
    let mut kv = ledger(100).reserve(Kind::Kv, 10).unwrap();
    kv.absorb(ledger(100).reserve(Kind::Kv, 10).unwrap());
}

#[test]
fn a_panicking_holder_leaves_the_books_right() {
    let ledger = ledger(100);
    let handle = ledger.clone();
    let outcome = std::thread::spawn(move || {
        let _kv = handle.reserve(Kind::Kv, 40).unwrap();
        let _books = handle.lock();
        panic!("while the lock is held");
    })
    .join();
    assert!(outcome.is_err());
    assert_eq!(ledger.usage().free_bytes(), Some(100));
    assert!(ledger.reserve(Kind::Kv, 100).is_ok());
}

#[derive(Debug, Clone)]
enum Call {
    Reserve(usize, u64),
    Grow(usize, u64),
    Shrink(usize, u64),
    Split(usize, u64),
    Move(usize, usize),
    Absorb(usize, usize),
    Drop(usize),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let bytes = prop_oneof![0..400u64, Just(u64::MAX)];
    let call = prop_oneof![
        (0..5usize, bytes.clone()).prop_map(|(kind, bytes)| Call::Reserve(kind, bytes)),
        (any::<usize>(), bytes.clone()).prop_map(|(at, bytes)| Call::Grow(at, bytes)),
        (any::<usize>(), bytes.clone()).prop_map(|(at, bytes)| Call::Shrink(at, bytes)),
        (any::<usize>(), bytes).prop_map(|(at, bytes)| Call::Split(at, bytes)),
        (any::<usize>(), 0..5usize).prop_map(|(at, kind)| Call::Move(at, kind)),
        (any::<usize>(), any::<usize>()).prop_map(|(into, from)| Call::Absorb(into, from)),
        any::<usize>().prop_map(Call::Drop),
    ];
    prop::collection::vec(call, 0..120)
}

/// The whole of the model: a list of (kind, bytes), and a call succeeds exactly if the sum stays within the budget.
struct Model {
    budget: u128,
    held: Vec<(Kind, u64)>,
    peak: u128,
}

impl Model {
    fn total(&self) -> u128 {
        self.held.iter().map(|(_, bytes)| u128::from(*bytes)).sum()
    }

    fn fits(&self, bytes: u64) -> bool {
        self.total() + u128::from(bytes) <= self.budget
    }
}

proptest! {
    #[test]
    fn any_calls_leave_the_books_equal_to_a_plain_list(budget in 0..1_500u64, calls in calls()) {
        let ledger = ledger(budget);
        let mut real: Vec<Reservation> = Vec::new();
        let mut model = Model { budget: u128::from(budget), held: Vec::new(), peak: 0 };
        for call in calls {
            let len = model.held.len();
            match call {
                Call::Reserve(kind, bytes) => {
                    let fits = model.fits(bytes);
                    let got = ledger.reserve(Kind::ALL[kind], bytes);
                    prop_assert_eq!(got.is_ok(), fits);
                    if let Ok(reservation) = got {
                        real.push(reservation);
                        model.held.push((Kind::ALL[kind], bytes));
                    }
                }
                _ if len == 0 => {}
                Call::Grow(at, bytes) => {
                    let fits = model.fits(bytes);
                    prop_assert_eq!(real[at % len].grow(bytes).is_ok(), fits);
                    if fits {
                        model.held[at % len].1 += bytes;
                    }
                }
                Call::Shrink(at, bytes) => {
                    let bytes = bytes.min(model.held[at % len].1);
                    real[at % len].shrink(bytes);
                    model.held[at % len].1 -= bytes;
                }
                Call::Split(at, bytes) => {
                    let (kind, have) = model.held[at % len];
                    let bytes = bytes.min(have);
                    let part = real[at % len].split(bytes);
                    real.push(part);
                    model.held[at % len].1 -= bytes;
                    model.held.push((kind, bytes));
                }
                Call::Move(at, kind) => {
                    real[at % len].move_to(Kind::ALL[kind]);
                    model.held[at % len].0 = Kind::ALL[kind];
                }
                Call::Absorb(into, from) => {
                    if into % len != from % len {
                        let (kind, _) = model.held[into % len];
                        let (_, bytes) = model.held[from % len];
                        model.held[into % len] = (kind, model.held[into % len].1 + bytes);
                        model.held.remove(from % len);
                        let other = real.remove(from % len);
                        let at = into % len - usize::from(from % len < into % len);
                        real[at].absorb(other);
                    }
                }
                Call::Drop(at) => {
                    drop(real.remove(at % len));
                    model.held.remove(at % len);
                }
            }
            model.peak = model.peak.max(model.total());
            let usage = ledger.usage();
            for kind in Kind::ALL {
                let want: u64 = model.held.iter().filter(|(k, _)| *k == kind).map(|(_, bytes)| bytes).sum();
                prop_assert_eq!(usage.of(kind), want);
            }
            prop_assert_eq!(u128::from(usage.peak_bytes), model.peak);
            prop_assert!(usage.reserved_bytes() <= budget);
        }
        drop(real);
        prop_assert_eq!(ledger.usage().reserved_bytes(), 0);
    }

    #[test]
    fn never_means_that_an_empty_house_would_not_help(budget in 0..1_000u64, resident in 0..600u64, kv in 0..600u64, asked in 0..1_000u64) {
        let ledger = ledger(budget);
        let _resident = ledger.reserve(Kind::Weights, resident);
        let held = ledger.reserve(Kind::Kv, kv);
        if let Err(error) = ledger.reserve(Kind::Transient, asked) {
            drop(held);
            let fits_alone = ledger.reserve(Kind::Transient, asked).is_ok();
            prop_assert_eq!(matches!(error, ReserveError::Later { .. }), fits_alone, "{}", error);
        }
    }
}
