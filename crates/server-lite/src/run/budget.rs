//! What a run may use, and whether it fits: decided before the first token.

use super::memory_probe::ProcessProbe;
use crate::{
    alloc,
    cli::RunArgs,
    error::{AppError, Longest, Shortfall},
    price::{self, DEFAULT_MAX_TOKENS, MAX_CONTEXT_TOKENS, Needs, longest_that_fits},
};
use plimsoll_memguard::{Budget as Limit, Kind, Ledger, LinuxProbe, Probe, Profile, Reservation};
use plimsoll_models::arch::Architecture;
use std::sync::Arc;

/// One ledger, and what is held of it for as long as the process runs.
pub(super) struct Budget {
    pub(super) ledger: Ledger,
    pub(super) probe: Arc<dyn Probe>,
    /// What the system counted as resident after load, file pages included; `None` where it does not tell.
    pub(super) resident_after_load_bytes: Option<u64>,
    /// Of the footprint after load, what is no live allocation: stacks, data of the program, the allocator's own.
    pub(super) unallocated_bytes: u64,
    held: Vec<Reservation>,
}

/// What a prompt and its answer were promised.
pub(super) struct Admission {
    pub(super) max_tokens: usize,
    pub(super) kv_bytes: u64,
    /// Pays for the smallest chunk and for every decode step.
    pub(super) transient: Reservation,
    kv: Option<Reservation>,
    context_tokens: usize,
}

impl Admission {
    /// Prompt and answer together.
    pub(super) fn context_tokens(&self) -> usize {
        self.context_tokens
    }

    /// The reservation for keys and values, for their owner.
    pub(super) fn take_kv(&mut self) -> Reservation {
        self.kv.take().expect("taken once, by the sequence")
    }
}

impl Budget {
    /// A budget of so many bytes; `None`: without a limit.
    pub(super) fn new(limit_bytes: Option<u64>) -> Self {
        Self {
            ledger: Ledger::new(limit_bytes.map_or(Limit::Unlimited, Limit::Bytes)),
            probe: Arc::new(ProcessProbe::new()),
            resident_after_load_bytes: None,
            unallocated_bytes: 0,
            held: Vec::new(),
        }
    }

    pub(super) fn budget_bytes(&self) -> Option<u64> {
        match self.ledger.budget() {
            Limit::Bytes(bytes) => Some(bytes),
            Limit::Unlimited => None,
        }
    }

    /// Reserves the weights, before they are read.
    pub(super) fn reserve_weights(&mut self, bytes: u64) -> Result<(), AppError> {
        self.hold(Kind::Weights, bytes, "loading the weights")
    }

    /// Measures what is resident beside the weights and reserves it, with what the run's own heap will take.
    pub(super) fn measure_overhead(&mut self, weights_bytes: u64, sampling_bytes: u64) -> Result<(), AppError> {
        // What loading has freed is not held: without this, the next allocations would be paid for twice.
        alloc::trim();
        let sample = self.probe.sample();
        // Once, and exactly.
        let memory = LinuxProbe::new().memory();
        let live = sample.live.unwrap_or(0);
        let resident = memory.footprint_bytes().or(sample.footprint).unwrap_or(0).max(live);
        self.unallocated_bytes = resident - live;
        self.resident_after_load_bytes = memory.rss_bytes;
        let overhead_bytes = price::overhead_bytes(resident, weights_bytes, sampling_bytes);
        self.hold(Kind::Overhead, overhead_bytes, "what is resident after load")
    }

    fn hold(&mut self, kind: Kind, bytes: u64, what: &'static str) -> Result<(), AppError> {
        match self.ledger.reserve(kind, bytes) {
            Ok(reservation) => {
                self.held.push(reservation);
                Ok(())
            }
            Err(_) => Err(self.shortfall(what, bytes, Longest::Nothing)),
        }
    }

    /// Reserves bytes for as long as the caller keeps the reservation.
    pub(super) fn borrow(&self, kind: Kind, bytes: u64, what: &'static str) -> Result<Reservation, AppError> {
        self.ledger.reserve(kind, bytes).map_err(|_| self.shortfall(what, bytes, Longest::Unknown))
    }

    /// What is not reserved yet; `None` without a limit.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        self.ledger.usage().free_bytes()
    }

    pub(super) fn shortfall(&self, what: &'static str, bytes: u64, longest: Longest) -> AppError {
        AppError::DoesNotFit(Box::new(Shortfall {
            what,
            needed_bytes: self.ledger.usage().reserved_bytes().saturating_add(bytes),
            budget_bytes: self.budget_bytes().unwrap_or(u64::MAX),
            longest,
        }))
    }

    /// Refuses what can never fit: the prompt with the shortest answer that was asked for.
    pub(super) fn refuse_if_too_long(&self, needs: &Needs, profile: &dyn Profile) -> Result<(), AppError> {
        let at_least = needs.prompt_tokens.saturating_add(needs.max_tokens.unwrap_or(1));
        if at_least > MAX_CONTEXT_TOKENS {
            let message = format!("prompt and answer are {at_least} tokens, more than {MAX_CONTEXT_TOKENS}");
            return Err(AppError::Usage(message));
        }
        let fits = |context| self.fits(needs, profile, context);
        if fits(at_least) {
            return Ok(());
        }
        let longest = longest_that_fits(at_least, fits);
        Err(self.shortfall(
            "the prompt with its answer",
            needs.total(profile, at_least).unwrap_or(u64::MAX),
            if longest > 0 { Longest::Tokens(longest) } else { Longest::Nothing },
        ))
    }

    fn fits(&self, needs: &Needs, profile: &dyn Profile, context_tokens: usize) -> bool {
        let free = self.free_bytes().unwrap_or(u64::MAX);
        needs.total(profile, context_tokens).is_some_and(|bytes| bytes <= free)
    }

    /// Reserves keys and values for prompt and answer, and transients for the smallest chunk and for decoding.
    pub(super) fn admit(&mut self, needs: &Needs, profile: &dyn Profile) -> Result<Admission, AppError> {
        self.refuse_if_too_long(needs, profile)?;
        let max_tokens = needs.max_tokens.unwrap_or_else(|| {
            let left = needs.context_length.saturating_sub(needs.prompt_tokens).max(1);
            let wanted = DEFAULT_MAX_TOKENS.min(left);
            let fits = |context| self.fits(needs, profile, context);
            longest_that_fits(needs.prompt_tokens + wanted, fits) - needs.prompt_tokens
        });
        let context = needs.prompt_tokens + max_tokens;
        if context > needs.context_length {
            let trained = needs.context_length;
            tracing::warn!(
                "prompt and answer are {context} tokens, the model was trained for {trained}: expect nonsense"
            );
        }
        // The last token of an answer is never fed back, but its place is cheap and the arithmetic plain.
        let context_tokens = context;
        let kv_bytes = profile.kv_bytes(context_tokens);
        let kv = self.borrow(Kind::Kv, kv_bytes, "the prompt with its answer")?;
        let transient_bytes = needs.smallest_transient(profile, context_tokens);
        let transient = self.borrow(Kind::Transient, transient_bytes, "the smallest chunk")?;
        Ok(Admission { max_tokens, kv_bytes, transient, kv: Some(kv), context_tokens })
    }
}

/// What a prompt of `prompt_tokens` wants with these arguments.
pub(super) fn needs(args: &RunArgs, prompt_tokens: usize, architecture: &Architecture) -> Needs {
    Needs {
        prompt_tokens,
        max_tokens: args.max_tokens,
        context_length: architecture.dimensions.context_length,
        chunk_rows: args.chunk.fixed_rows(),
        all_logits: args.all_logits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_memguard::{FixedProbe, Pass};

    fn budget(bytes: u64) -> Budget {
        Budget {
            ledger: Ledger::new(Limit::Bytes(bytes)),
            probe: Arc::new(FixedProbe::footprints([0])),
            resident_after_load_bytes: None,
            unallocated_bytes: 0,
            held: Vec::new(),
        }
    }

    fn needs(prompt_tokens: usize, max_tokens: Option<usize>) -> Needs {
        Needs { prompt_tokens, max_tokens, context_length: 8192, chunk_rows: None, all_logits: false }
    }

    /// 10 bytes a token of context, 100 a row of a pass.
    struct Plain;

    impl Profile for Plain {
        fn weights_bytes(&self) -> u64 {
            0
        }

        fn kv_bytes(&self, context_tokens: usize) -> u64 {
            10 * context_tokens as u64
        }

        fn transient_bytes(&self, pass: &Pass) -> u64 {
            100 * pass.rows as u64
        }
    }

    #[test]
    fn an_answer_without_limit_gets_the_smaller_of_1024_and_what_fits() {
        let max_tokens = |bytes, prompt| budget(bytes).admit(&needs(prompt, None), &Plain).map(|a| a.max_tokens).ok();
        assert_eq!(max_tokens(1 << 30, 100), Some(1024));
        assert_eq!(max_tokens(1 << 30, 8000), Some(192)); // the trained context ends
        assert_eq!(max_tokens(6400 + 10 * 300, 100), Some(200));
        assert_eq!(max_tokens(6400 + 10 * 100, 100), None);
    }

    #[test]
    fn a_refusal_names_the_longest_context_that_fits() {
        let admit = |bytes, prompt, max| budget(bytes).admit(&needs(prompt, Some(max)), &Plain).map(|a| a.max_tokens);
        let refused = |bytes, prompt, max| match admit(bytes, prompt, max) {
            Err(AppError::DoesNotFit(shortfall)) => (shortfall.needed_bytes, shortfall.longest),
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(6400 + 10 * 150, 100, 100), (6400 + 10 * 200, Longest::Tokens(150)));
        assert_eq!(refused(6400, 100, 1), (6400 + 10 * 101, Longest::Nothing));
    }

    #[test]
    fn what_was_admitted_is_reserved_and_comes_back() {
        let mut budget = budget(100_000);
        let admission = budget.admit(&needs(100, Some(100)), &Plain).unwrap();
        assert_eq!(budget.ledger.usage().reserved_bytes(), 2000 + 6400);
        drop(admission);
        assert_eq!(budget.ledger.usage().reserved_bytes(), 0);
    }
}
