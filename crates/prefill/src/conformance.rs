//! The suite that every [`ChunkTarget`] runs in its own tests.

use std::fmt::Debug;
use std::num::NonZeroUsize;
use std::ops::Range;

use plimsoll_memguard::{Budget, Kind, Ledger};

use crate::{CancelToken, ChunkSize, ChunkTarget, Driver, DriverOptions, GRANULE_ROWS};

/// Checks what [`ChunkTarget`] promises, over a prompt of `tokens` tokens from position 0.
///
/// `make` gives a fresh target; `digest` reads from it what a partition must not change, such as the logits of the last row.
/// Checked: a price is the same before and after a run; draining early, often and never does no harm; every partition ends in
/// the same digest; a count kept by the target stays within the price; a prefill continued by a second run equals one run.
///
/// # Panics
/// At the first promise that does not hold, with what was seen.
pub fn check<T, D>(tokens: usize, mut make: impl FnMut() -> T, digest: impl Fn(&T) -> D)
where
    T: ChunkTarget,
    T::Error: Debug,
    D: PartialEq + Debug,
{
    assert!(tokens > 0, "the suite needs at least one token");
    let mut whole = make();
    let priced: Vec<u64> = prices(&whole, tokens);
    assert_eq!(prices(&whole, tokens), priced, "the price changed between two questions");
    whole.drain();
    whole.drain();
    run(&mut whole, 0..tokens, tokens);
    assert_eq!(prices(&whole, tokens), priced, "the price changed by running");
    let want = digest(&whole);

    for rows in [1, 2, 7, GRANULE_ROWS - 1, GRANULE_ROWS, GRANULE_ROWS + 1, 3 * GRANULE_ROWS] {
        let mut target = make();
        run(&mut target, 0..tokens, rows);
        assert_eq!(digest(&target), want, "chunks of {rows} rows gave another result than one of {tokens}");
    }
    for cut in [1, tokens / 3, tokens - 1] {
        let mut target = make();
        run(&mut target, 0..cut, tokens);
        run(&mut target, cut..tokens, tokens);
        assert_eq!(digest(&target), want, "a run continued at token {cut} gave another result");
    }
    tight(&mut make(), tokens);
}

fn prices<T: ChunkTarget>(target: &T, tokens: usize) -> Vec<u64> {
    (1..=tokens).map(|rows| target.transient_bytes(rows, tokens - rows)).collect()
}

fn run<T: ChunkTarget>(target: &mut T, tokens: Range<usize>, rows: usize)
where
    T::Error: Debug,
{
    let Some(rows) = NonZeroUsize::new(rows) else { return };
    let mut options = DriverOptions::new(Ledger::new(Budget::Unlimited));
    options.chunk = ChunkSize::Fixed(rows);
    let outcome = Driver::new(options).run(target, tokens.clone(), &CancelToken::new(), |progress| {
        let chunk = progress.chunk;
        if let Some(measured_bytes) = chunk.measured_bytes {
            let planned_bytes = chunk.planned_bytes;
            assert!(measured_bytes <= planned_bytes, "{measured_bytes} bytes used, {planned_bytes} planned: {chunk:?}");
        }
    });
    assert!(outcome.is_ok(), "tokens {tokens:?} in chunks of {rows}: {outcome:?}");
}

/// One byte less than the first chunk costs must end in a refusal that leaves the ledger and the target as they were.
fn tight<T: ChunkTarget>(target: &mut T, tokens: usize)
where
    T::Error: Debug,
{
    let Some(budget_bytes) = target.transient_bytes(1, 0).checked_sub(1) else { return };
    let ledger = Ledger::new(Budget::Bytes(budget_bytes));
    let mut options = DriverOptions::new(ledger.clone());
    options.chunk = ChunkSize::Fixed(NonZeroUsize::MIN);
    let outcome = Driver::new(options).run(target, 0..tokens, &CancelToken::new(), |_| ());
    assert!(outcome.is_err(), "a chunk ran with one byte too few");
    assert_eq!(ledger.usage().of(Kind::Transient), 0, "a refused chunk kept its reservation");
}
