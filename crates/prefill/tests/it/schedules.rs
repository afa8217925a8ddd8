//! Many prompts on one ledger, taking turns: whatever ends when, the budget holds and every byte comes back.

use std::sync::Arc;

use plimsoll_memguard::{Budget, FixedProbe, Kind, Ledger, Reservation};
use plimsoll_prefill::{Driver, DriverOptions, StepError};

use crate::Fake;

struct Request {
    fake: Fake,
    done: usize,
    tokens: usize,
    _kv: Reservation,
}

/// A small generator of numbers, the same for every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Admits, steps, cancels and finishes at random; returns how many of each there were.
fn schedule(random: &mut Random) -> [usize; 5] {
    let budget_bytes = 10_000 + random.below(60_000);
    let ledger = Ledger::new(Budget::Bytes(budget_bytes));
    let mut options = DriverOptions::new(ledger.clone());
    // Footprints that come and go: the tracker charges, and fades.
    let footprints: Vec<u64> = (0..40).map(|_| 1_000_000 + random.below(20_000)).collect();
    options.probe = Some(Arc::new(FixedProbe::footprints(footprints)));
    let driver = Driver::new(options);
    let mut requests: Vec<Request> = Vec::new();
    let mut counts = [0; 5];
    for _ in 0..24 {
        let at = usize::try_from(random.below(requests.len().max(1) as u64)).expect("below a length");
        let event = match (requests.is_empty(), random.below(8)) {
            (true, _) | (false, 0 | 1) => 0,
            (false, 2) => 1,
            _ => 2,
        };
        match event {
            0 => {
                let tokens = usize::try_from(1 + random.below(400)).expect("a small number");
                // A request that does not fit now goes away.
                if let Ok(kv) = ledger.reserve(Kind::Kv, 10 * tokens as u64) {
                    let fails_at = (random.below(6) == 0).then_some(tokens / 2);
                    let fake = Fake { fails_at, ..Fake::over(&ledger) };
                    requests.push(Request { fake, done: 0, tokens, _kv: kv });
                    counts[0] += 1;
                }
            }
            1 => {
                drop(requests.swap_remove(at));
                counts[1] += 1;
            }
            _ => {
                let request = &mut requests[at];
                match driver.step(&mut request.fake, request.done..request.tokens, None) {
                    Ok(Some(chunk)) => request.done += chunk.rows,
                    Ok(None) => {}
                    Err(StepError::Target { .. }) => {
                        requests.swap_remove(at);
                        counts[3] += 1;
                        continue;
                    }
                    // Waits for its next turn.
                    Err(error) => {
                        assert!(matches!(error, StepError::Reserve { .. }), "{error:?}");
                        counts[4] += 1;
                    }
                }
                if requests[at].done == requests[at].tokens {
                    requests.swap_remove(at);
                    counts[2] += 1;
                }
            }
        }
        let usage = ledger.usage();
        assert!(usage.reserved_bytes() <= budget_bytes, "{usage:?}");
        assert_eq!(usage.transient_bytes, 0, "between chunks nothing is transient");
    }
    drop(requests);
    let usage = ledger.usage();
    assert_eq!(usage.reserved_bytes(), 0, "{usage:?}");
    assert!(usage.peak_bytes <= budget_bytes, "{usage:?}");
    counts
}

#[test]
fn ten_thousand_random_schedules_stay_inside_the_budget_and_give_everything_back() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut sums = [0; 5];
    for _ in 0..10_000 {
        schedule(&mut random).iter().zip(&mut sums).for_each(|(count, sum)| *sum += count);
    }
    println!("admitted, cancelled, finished, failed, refused: {sums:?}");
    assert!(sums.iter().all(|&sum| sum > 1_000), "all of it happens: {sums:?}");
}
