//! What a run may use, and whether it fits: decided before the first token.

use super::memory_probe::ProcessProbe;
use crate::{
    alloc,
    cli::{RunArgs, SwitchArg},
    error::{AppError, Bound, Longest, Shortfall},
    price::{self, ChunkPriced, DEFAULT_MAX_TOKENS, MAX_CONTEXT_TOKENS, Needs, RUN_HEAP_BYTES, longest_that_fits},
};
use plimsoll_memguard::{
    Budget as Limit, ByteSize, Ceilings, Kind, Ledger, LinuxProbe, Machine, Probe, Reservation, Room, RunsOn,
    SystemMachine,
};
use plimsoll_models::arch::Architecture;
use plimsoll_prefill::{last_reserve_bytes, usable_bytes};
use std::sync::Arc;

/// One byte of page tables maps so many bytes.
const BYTES_PER_PAGE_TABLE_BYTE: u64 = 512;

/// What reading a model's header, recording its program and starting threads take.
const SETTING_OUT_BYTES: u64 = 1 << 20;

/// One ledger, the machine under it, and what is held of them for as long as the process runs.
pub(super) struct Budget {
    pub(super) ledger: Ledger,
    pub(super) probe: Arc<dyn Probe>,
    /// What tells the room that is left; `None` looks at the ledger alone.
    pub(super) machine: Option<Arc<dyn Machine>>,
    /// What the system counted as resident after load, file pages included; `None` where it does not tell.
    pub(super) resident_after_load_bytes: Option<u64>,
    /// Of the footprint after load, what is no live allocation: stacks, data of the program, the allocator's own.
    pub(super) unallocated_bytes: u64,
    /// What is reserved for good and was not touched yet: the machine still counts it as free.
    untouched_bytes: u64,
    held: Vec<Reservation>,
}

/// What more may be taken at one moment: the less of what budget and machine have.
#[derive(Debug, Clone)]
struct Left {
    bytes: u64,
    /// The machine's, if it is the one that has less.
    room: Option<Room>,
}

/// What a prompt and its answer were promised.
pub(super) struct Admission {
    pub(super) max_tokens: usize,
    /// Whether memory alone keeps the answer from the length that it would have had.
    pub(super) is_cut: bool,
    /// No chunk may have more rows: layers with a window were paid for so.
    pub(super) max_chunk_rows: usize,
    pub(super) kv_bytes: u64,
    /// Pays for the smallest chunk and for every decode step.
    pub(super) transient: Reservation,
    /// Tokens whose keys and values are paid for: prompt and answer without its last, which no pass reads.
    pub(super) kv_tokens: usize,
    kv: Option<Reservation>,
}

impl Admission {
    /// The reservation for keys and values, for their owner.
    pub(super) fn take_kv(&mut self) -> Reservation {
        self.kv.take().expect("taken once, by the sequence")
    }
}

impl Budget {
    /// The budget of the arguments on this machine. With the guard off nothing bounds the run.
    pub(super) fn of(args: &RunArgs) -> Self {
        if args.guard == SwitchArg::Off {
            return Self::new(None, None);
        }
        let ceilings = Ceilings::detect().binding(RunsOn::Cpu);
        let given_bytes = args.budget.memory_budget.map(ByteSize::bytes);
        if let Some(warning) = warning(given_bytes, &ceilings) {
            tracing::warn!("{warning}");
        }
        let machine = SystemMachine { runs_on: RunsOn::Cpu };
        Self::new(args.budget.limit(&ceilings).bytes, Some(Arc::new(machine)))
    }

    /// A budget of so many bytes; `None`: without a limit.
    fn new(limit_bytes: Option<u64>, machine: Option<Arc<dyn Machine>>) -> Self {
        Self {
            ledger: Ledger::new(limit_bytes.map_or(Limit::Unlimited, Limit::Bytes)),
            probe: Arc::new(ProcessProbe::new()),
            machine,
            resident_after_load_bytes: None,
            unallocated_bytes: 0,
            untouched_bytes: 0,
            held: Vec::new(),
        }
    }

    pub(super) fn budget_bytes(&self) -> Option<u64> {
        match self.ledger.budget() {
            Limit::Bytes(bytes) => Some(bytes),
            Limit::Unlimited => None,
        }
    }

    /// Refuses a machine that has no room even for a model's header. The budget pays for it once it is measured.
    pub(super) fn set_out(&self) -> Result<(), AppError> {
        let Some(room) = self.machine.as_ref().and_then(|machine| machine.room()) else { return Ok(()) };
        let left = Left { bytes: self.left_in(&room, 0), room: Some(room) };
        if left.bytes < SETTING_OUT_BYTES {
            return Err(self.shortfall_of(&left, "reading the model", SETTING_OUT_BYTES, Longest::Unknown));
        }
        Ok(())
    }

    /// Reserves the weights, before they are read.
    pub(super) fn reserve_weights(&mut self, bytes: u64) -> Result<(), AppError> {
        let weights = self.reserve(Kind::Weights, bytes, LOADING, Longest::Nothing)?;
        self.held.push(weights);
        self.untouched_bytes = bytes;
        Ok(())
    }

    /// Reserves, for as long as the weights are read, what is resident beside them already and what reading them takes. Asks the machine once
    /// more: what was read since the weights were reserved is resident by now.
    pub(super) fn reserve_loading(&self, threads: usize, quantizes: bool) -> Result<Reservation, AppError> {
        let resident_bytes = self.resident_bytes();
        let bytes = price::loading_bytes(resident_bytes, threads, quantizes);
        let (left, heap_bytes) = (self.left(), bytes - resident_bytes);
        if left.room.is_some() && heap_bytes > left.bytes {
            return Err(self.shortfall_of(&left, LOADING, heap_bytes, Longest::Nothing));
        }
        self.reserve_of_budget(Kind::Overhead, bytes, LOADING, Longest::Nothing)
    }

    /// Measures what is resident beside the weights and reserves it, with what the run's own heap will take.
    pub(super) fn measure_overhead(&mut self, weights_bytes: u64, sampling_bytes: u64) -> Result<(), AppError> {
        // What loading has freed is not held: without this, the next allocations would be paid for twice.
        alloc::trim();
        let live = self.probe.sample().live.unwrap_or(0);
        let resident = self.resident_bytes().max(live);
        self.unallocated_bytes = resident - live;
        self.resident_after_load_bytes = LinuxProbe::new().memory().rss_bytes;
        let overhead_bytes = price::overhead_bytes(resident, weights_bytes, sampling_bytes);
        self.untouched_bytes = RUN_HEAP_BYTES.saturating_add(sampling_bytes);
        // The machine has given most of it already.
        let what = "what is resident after load";
        let overhead = self.reserve_of_budget(Kind::Overhead, overhead_bytes, what, Longest::Nothing)?;
        self.held.push(overhead);
        Ok(())
    }

    /// What the process has now beside file pages, exactly; the reading takes some milliseconds.
    fn resident_bytes(&self) -> u64 {
        let exact = LinuxProbe::new().memory().footprint_bytes();
        exact.or_else(|| self.probe.sample().footprint).unwrap_or(0)
    }

    /// Reserves bytes for as long as the caller keeps the reservation.
    pub(super) fn borrow(&self, kind: Kind, bytes: u64, what: &'static str) -> Result<Reservation, AppError> {
        self.reserve(kind, bytes, what, Longest::Unknown)
    }

    /// Reserves bytes that both the budget and the machine have.
    fn reserve(&self, kind: Kind, bytes: u64, what: &'static str, longest: Longest) -> Result<Reservation, AppError> {
        let left = self.left();
        if bytes > 0 && bytes > left.bytes {
            return Err(self.shortfall_of(&left, what, bytes, longest));
        }
        self.ledger.reserve(kind, bytes).map_err(|_| self.shortfall_of(&left, what, bytes, longest))
    }

    /// Reserves bytes of the budget alone, for what the machine has given or was asked for already.
    fn reserve_of_budget(
        &self,
        kind: Kind,
        bytes: u64,
        what: &'static str,
        longest: Longest,
    ) -> Result<Reservation, AppError> {
        self.ledger.reserve(kind, bytes).map_err(|_| self.shortfall_of(&self.left_of_budget(), what, bytes, longest))
    }

    /// What more may be taken now; `None` without a limit.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        Some(self.left().bytes).filter(|&bytes| bytes < u64::MAX)
    }

    /// What budget and machine have left, whichever is less.
    fn left(&self) -> Left {
        let of_budget = self.left_of_budget();
        match self.machine.as_ref().and_then(|machine| machine.room()) {
            Some(room) if self.left_in(&room, 0) < of_budget.bytes => {
                Left { bytes: self.left_in(&room, 0), room: Some(room) }
            }
            _ => of_budget,
        }
    }

    fn left_of_budget(&self) -> Left {
        Left { bytes: self.ledger.usage().free_bytes().unwrap_or(u64::MAX), room: None }
    }

    /// What of `room` is there for more than what is promised, page tables taken off, once `returned_bytes` are given back.
    fn left_in(&self, room: &Room, returned_bytes: u64) -> u64 {
        // What comes back fills up what always stays free before more of it may be taken.
        let used_bytes = room.used_bytes.saturating_sub(returned_bytes);
        let usable_bytes = usable_bytes(&Room { used_bytes, ..room.clone() });
        usable_bytes.saturating_sub(usable_bytes / BYTES_PER_PAGE_TABLE_BYTE).saturating_sub(self.untouched_bytes)
    }

    pub(super) fn shortfall(&self, what: &'static str, bytes: u64, longest: Longest) -> AppError {
        self.shortfall_of(&self.left(), what, bytes, longest)
    }

    /// What the budget is short of, whatever the machine has: its ledger refused `bytes`.
    pub(super) fn shortfall_of_budget(&self, what: &'static str, bytes: u64) -> AppError {
        self.shortfall_of(&self.left_of_budget(), what, bytes, Longest::Unknown)
    }

    fn shortfall_of(&self, left: &Left, what: &'static str, bytes: u64, longest: Longest) -> AppError {
        let (needed_bytes, bound) = match &left.room {
            None => {
                let needed_bytes = self.ledger.usage().reserved_bytes().saturating_add(bytes);
                (needed_bytes, Bound::Budget { bytes: self.budget_bytes().unwrap_or(u64::MAX) })
            }
            Some(room) => {
                let bytes = bytes.saturating_add(self.untouched_bytes);
                let tables_bytes = bytes.div_ceil(BYTES_PER_PAGE_TABLE_BYTE);
                let needed_bytes = bytes.saturating_add(tables_bytes).saturating_add(last_reserve_bytes(room));
                (needed_bytes, Bound::Machine(room.clone()))
            }
        };
        AppError::DoesNotFit(Box::new(Shortfall { what, needed_bytes, bound, longest, chunk_rows: None }))
    }

    /// Refuses what can never fit: the prompt with the shortest answer that was asked for.
    pub(super) fn refuse_if_too_long(&self, needs: &Needs, profile: &dyn ChunkPriced) -> Result<(), AppError> {
        self.refuse_past(&self.left(), needs, profile)
    }

    fn refuse_past(&self, left: &Left, needs: &Needs, profile: &dyn ChunkPriced) -> Result<(), AppError> {
        let at_least = needs.prompt_tokens.saturating_add(needs.max_tokens.unwrap_or(1));
        if at_least > MAX_CONTEXT_TOKENS {
            let message = format!("prompt and answer are {at_least} tokens, more than {MAX_CONTEXT_TOKENS}");
            return Err(AppError::Usage(message));
        }
        let fits = |context| fits(needs, profile, context, left.bytes);
        if fits(at_least) {
            return Ok(());
        }
        let needed_bytes = needs.total(profile, at_least).unwrap_or(u64::MAX);
        let longest = longest(needs, longest_that_fits(at_least, fits));
        Err(match self.shortfall_of(left, PROMPT, needed_bytes, longest) {
            AppError::DoesNotFit(shortfall) => {
                let chunk_rows = needs.largest_chunk(profile, at_least, left.bytes);
                AppError::DoesNotFit(Box::new(Shortfall { chunk_rows, ..*shortfall }))
            }
            other => other,
        })
    }

    /// Reserves keys and values for prompt and answer, transients for the smallest chunk and for decoding, and what grows on the heap: all that
    /// budget and machine must have, by one reading of both.
    pub(super) fn admit(&mut self, needs: &Needs, profile: &dyn ChunkPriced) -> Result<Admission, AppError> {
        let left = self.left();
        self.refuse_past(&left, needs, profile)?;
        let trained_tokens = needs.context_length.saturating_sub(needs.prompt_tokens).max(1);
        let wanted_tokens = needs.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS.min(trained_tokens));
        let max_tokens = needs.max_tokens.unwrap_or_else(|| {
            let fits = |context| fits(needs, profile, context, left.bytes);
            longest_that_fits(needs.prompt_tokens + wanted_tokens, fits) - needs.prompt_tokens
        });
        let context = needs.prompt_tokens + max_tokens;
        if context > needs.context_length {
            let trained = needs.context_length;
            tracing::warn!(
                "prompt and answer are {context} tokens, the model was trained for {trained}: expect nonsense"
            );
        }
        let kv_tokens = needs.kv_tokens(context);
        let max_chunk_rows = needs.max_chunk_rows(profile, context, left.bytes);
        let kv_bytes = profile.kv_bytes_in_chunks(kv_tokens, max_chunk_rows);
        let kv = self.reserve_of_budget(Kind::Kv, kv_bytes, PROMPT, Longest::Unknown)?;
        let transient_bytes = needs.smallest_transient(profile, context);
        let transient =
            self.reserve_of_budget(Kind::Transient, transient_bytes, "the smallest chunk", Longest::Unknown)?;
        let heap_bytes = needs.heap_bytes(context);
        let heap = self.reserve_of_budget(Kind::Overhead, heap_bytes, PROMPT, Longest::Unknown)?;
        self.held.push(heap);
        self.untouched_bytes = self.untouched_bytes.saturating_add(heap_bytes);
        let is_cut = max_tokens < wanted_tokens;
        Ok(Admission { max_tokens, is_cut, max_chunk_rows, kv_bytes, transient, kv: Some(kv), kv_tokens })
    }

    /// The longest context with keys and values of less than `failed_kv_tokens` that admission would take in `room` once `held_bytes` of this
    /// run are given back.
    pub(super) fn longest_in(
        &self,
        room: &Room,
        held_bytes: u64,
        needs: &Needs,
        profile: &dyn ChunkPriced,
        failed_kv_tokens: usize,
    ) -> Longest {
        let free_bytes = self.left_in(room, held_bytes);
        let fits = |context| fits(needs, profile, context, free_bytes);
        longest(needs, longest_that_fits(needs.context_of(failed_kv_tokens.saturating_sub(1)), fits))
    }
}

/// What is refused where the weights do not fit.
const LOADING: &str = "loading the weights";

/// What is refused at admission.
const PROMPT: &str = "the prompt with its answer";

/// Whether `free_bytes` pay for a context, in chunks of the fewest rows.
fn fits(needs: &Needs, profile: &dyn ChunkPriced, context_tokens: usize, free_bytes: u64) -> bool {
    needs.total(profile, context_tokens).is_some_and(|bytes| bytes <= free_bytes)
}

/// The longest context that fits; one without keys and values holds no prompt.
fn longest(needs: &Needs, context_tokens: usize) -> Longest {
    Longest::of(if needs.kv_tokens(context_tokens) == 0 { 0 } else { context_tokens })
}

/// What a user should know of a budget before the run, in a sentence; `None` if there is nothing.
fn warning(given_bytes: Option<u64>, ceilings: &Ceilings) -> Option<String> {
    let size = |bytes: u64| format!("{bytes} bytes ({})", ByteSize::new(bytes));
    let Some(lowest) = ceilings.lowest_fixed() else {
        return Some(match given_bytes {
            Some(given) => {
                format!(
                    "no memory limit of this machine can be read: --memory-budget {} alone bounds the run",
                    size(given)
                )
            }
            None => {
                "no memory limit of this machine can be read, and there is no --memory-budget: nothing bounds the run"
                    .to_owned()
            }
        });
    };
    let given = given_bytes.filter(|&given| given > lowest.bytes)?;
    let (given, lowest, source) = (size(given), size(lowest.bytes), &lowest.source);
    Some(format!(
        "--memory-budget {given} is more than this machine allows, {lowest} by {source}: what is left of that bounds the run"
    ))
}

/// What a prompt of `prompt_tokens` wants with these arguments.
pub(super) fn needs(args: &RunArgs, prompt_tokens: usize, architecture: &Architecture) -> Needs {
    Needs {
        prompt_tokens,
        max_tokens: args.max_tokens,
        context_length: architecture.dimensions.context_length,
        chunk_rows: args.chunk.fixed_rows(),
        all_logits: args.all_logits(),
        synthetic_tokens: args.synthetic_kv,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_memguard::{Ceiling, CeilingSource, FixedMachine, FixedProbe, Pass, Profile};
    use plimsoll_prefill::LAST_RESERVE_BYTES;

    fn budget(bytes: u64) -> Budget {
        Budget { probe: Arc::new(FixedProbe::footprints([0])), ..Budget::new(Some(bytes), None) }
    }

    /// A budget without a limit on a machine of 1 GiB with so much left beside what always stays free.
    fn machine(usable_bytes: u64) -> Budget {
        let ceiling_bytes = 1 << 30;
        let used_bytes = ceiling_bytes - usable_bytes - LAST_RESERVE_BYTES;
        Budget { machine: Some(Arc::new(FixedMachine::new(ceiling_bytes, [used_bytes]))), ..budget(u64::MAX) }
    }

    fn needs(prompt_tokens: usize, max_tokens: Option<usize>) -> Needs {
        Needs {
            prompt_tokens,
            max_tokens,
            context_length: 8192,
            chunk_rows: None,
            all_logits: false,
            synthetic_tokens: 0,
        }
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

    impl ChunkPriced for Plain {
        fn kv_bytes_in_chunks(&self, context_tokens: usize, _max_rows: usize) -> u64 {
            self.kv_bytes(context_tokens)
        }
    }

    #[test]
    fn an_answer_without_limit_gets_the_smaller_of_1024_and_what_fits() {
        let max_tokens = |bytes, prompt| budget(bytes).admit(&needs(prompt, None), &Plain).map(|a| a.max_tokens).ok();
        assert_eq!(max_tokens(1 << 30, 100), Some(1024));
        assert_eq!(max_tokens(1 << 30, 8000), Some(192)); // the trained context ends
        // The last token of an answer has no keys and values.
        assert_eq!(max_tokens(6400 + 10 * 300, 100), Some(201));
        assert_eq!(max_tokens(6400 + 10 * 100, 100), Some(1));
        assert_eq!(max_tokens(6400 + 10 * 100 - 1, 100), None);
    }

    #[test]
    fn a_refusal_names_the_longest_context_that_fits() {
        let admit = |bytes, prompt, max| budget(bytes).admit(&needs(prompt, Some(max)), &Plain).map(|a| a.max_tokens);
        let refused = |bytes, prompt, max| match admit(bytes, prompt, max) {
            Err(AppError::DoesNotFit(shortfall)) => (shortfall.needed_bytes, shortfall.longest),
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(6400 + 10 * 150, 100, 100), (6400 + 10 * 199, Longest::Tokens(151)));
        assert_eq!(refused(6400 + 10 * 150, 200, 0), (6400 + 10 * 200, Longest::Tokens(150)));
        assert_eq!(refused(6400, 100, 1), (6400 + 10 * 100, Longest::Nothing));
    }

    #[test]
    fn what_was_admitted_is_reserved_and_comes_back() {
        let mut budget = budget(100_000);
        let admission = budget.admit(&needs(100, Some(100)), &Plain).unwrap();
        assert_eq!(budget.ledger.usage().reserved_bytes(), 1990 + 6400);
        drop(admission);
        assert_eq!(budget.ledger.usage().reserved_bytes(), 0);
    }

    #[test]
    fn the_machine_is_asked_as_well_as_the_budget_and_the_less_of_both_counts() {
        let refused = |mut budget: Budget| match budget.admit(&needs(100, Some(100)), &Plain) {
            Err(AppError::DoesNotFit(shortfall)) => *shortfall,
            other => panic!("{:?}", other.map(|admission| admission.max_tokens)),
        };
        // Keys and values of 150 tokens fit, and what page tables take.
        let bytes = 6400 + 10 * 150;
        let shortfall = refused(machine(bytes + bytes / 512 + 1));
        assert_eq!(shortfall.longest, Longest::Tokens(151));
        let Bound::Machine(room) = &shortfall.bound else { panic!("{shortfall:?}") };
        assert!(shortfall.needed_bytes > room.left_bytes(), "{shortfall:?}");
        assert_eq!(shortfall.needed_bytes, 6400 + 1990 + 17 + LAST_RESERVE_BYTES);

        let both =
            |budget_bytes, usable_bytes| Budget { machine: machine(usable_bytes).machine, ..budget(budget_bytes) };
        assert_eq!(refused(both(bytes, 1 << 20)).bound, Bound::Budget { bytes });
        assert!(both(1 << 20, 1 << 20).admit(&needs(100, Some(100)), &Plain).is_ok());
        // An open answer takes what the machine has.
        let open = machine(bytes + bytes / 512 + 1).admit(&needs(100, None), &Plain).unwrap();
        assert_eq!((open.max_tokens, open.is_cut), (51, true));
        let whole = machine(1 << 20).admit(&needs(100, None), &Plain).unwrap();
        assert_eq!((whole.max_tokens, whole.is_cut), (1024, false));
    }

    #[test]
    fn what_is_promised_and_not_touched_yet_is_taken_off_the_machine() {
        let mut budget = machine(100 << 20);
        budget.reserve_weights(60 << 20).unwrap();
        let error = budget.borrow(Kind::Overhead, 50 << 20, "reading the tokenizer").unwrap_err();
        let AppError::DoesNotFit(shortfall) = &error else { panic!("{error}") };
        // Both, their page tables, and what stays free.
        assert_eq!(shortfall.needed_bytes, (110 << 20) + (110 << 11) + LAST_RESERVE_BYTES);
        assert!(error.to_string().contains("left of 1073741824 bytes (1024.0 MiB) (limit)"), "{error}");
        assert!(budget.borrow(Kind::Overhead, 30 << 20, "reading the tokenizer").is_ok());
        assert!(machine(50 << 20).reserve_weights(60 << 20).is_err());
        assert!(machine(2 << 20).set_out().is_ok() && machine(1 << 20).set_out().is_err());
    }

    #[test]
    fn the_longest_context_in_a_full_machine_is_one_that_admission_takes_and_less_than_what_failed() {
        let budget = machine(10_000);
        let room = budget.machine.as_ref().and_then(|machine| machine.room()).unwrap();
        let longest = |held_bytes, failed| budget.longest_in(&room, held_bytes, &needs(1_000, Some(1)), &Plain, failed);
        let Longest::Tokens(tokens) = longest(2_000, 900) else { panic!("{:?}", longest(2_000, 900)) };
        assert!(machine(12_100).admit(&needs(tokens - 1, Some(1)), &Plain).is_ok(), "{tokens}");
        assert_eq!(longest(1 << 20, 900), Longest::Tokens(900), "keys and values of 899 tokens");
        assert_eq!((longest(0, 1), longest(0, 0)), (Longest::Nothing, Longest::Nothing));
    }

    /// What comes back to a machine that has less than what always stays free fills that up first.
    #[test]
    fn the_longest_context_in_a_machine_without_its_last_reserve_is_admitted_once_this_run_has_given_back() {
        let (left_bytes, held_bytes) = (1 << 20, 40 << 20);
        let with_left = |left_bytes: u64| {
            let fixed = FixedMachine::new(1 << 30, [(1 << 30) - left_bytes]);
            Budget { machine: Some(Arc::new(fixed)), ..budget(u64::MAX) }
        };
        let full = with_left(left_bytes);
        let room = full.machine.as_ref().and_then(|machine| machine.room()).unwrap();
        let longest = full.longest_in(&room, held_bytes, &needs(1_000, Some(1)), &Plain, 10_000_000);
        let Longest::Tokens(tokens) = longest else { panic!("{longest:?}") };
        let admits =
            |tokens: usize| with_left(left_bytes + held_bytes).admit(&needs(tokens - 1, Some(1)), &Plain).is_ok();
        assert!(admits(tokens) && !admits(tokens + 1), "{tokens}");
    }

    #[test]
    fn what_the_ledger_refuses_names_the_budget_however_little_the_machine_has() {
        let budget = Budget { machine: machine(1_000).machine, ..budget(100_000) };
        let AppError::DoesNotFit(shortfall) = budget.shortfall_of_budget("a prefill chunk", 200_000) else { panic!() };
        assert_eq!((&shortfall.bound, shortfall.needed_bytes), (&Bound::Budget { bytes: 100_000 }, 200_000));
    }

    #[test]
    fn a_fixed_chunk_that_does_not_fit_names_the_largest_that_does() {
        let refused = |chunk_rows, bytes| {
            let needs = Needs { chunk_rows, ..needs(400, Some(100)) };
            match budget(bytes).admit(&needs, &Plain) {
                Err(error @ AppError::DoesNotFit(_)) => error.hints(),
                other => panic!("{:?}", other.map(|admission| admission.max_tokens)),
            }
        };
        // 500 tokens of context, and chunks of 100 rows.
        let hints = refused(Some(256), 5_000 + 10_000);
        assert_eq!(hints[0], "lower --chunk to 100, or leave it out");
        assert_eq!(refused(Some(256), 5_000 + 1_000)[0], "lower --chunk to 10");
        for hints in [refused(Some(256), 5_000), refused(None, 5_000)] {
            assert!(hints.iter().all(|hint| !hint.contains("--chunk")), "{hints:?}");
        }
    }

    #[test]
    fn a_budget_above_the_machine_and_a_machine_that_says_nothing_are_told() {
        let ceilings =
            Ceilings::default().with(Ceiling { source: CeilingSource::Ram, bytes: 8 << 30, used_bytes: None });
        assert_eq!(warning(Some(8 << 30), &ceilings), None);
        assert_eq!(warning(None, &ceilings), None);
        let above = warning(Some(9 << 30), &ceilings).unwrap();
        assert!(above.contains("9663676416 bytes (9 GiB)") && above.contains("8589934592 bytes (8 GiB)"), "{above}");
        assert!(above.contains("RAM of the machine"), "{above}");
        for (given, part) in [(None, "nothing bounds the run"), (Some(9 << 30), "9663676416 bytes (9 GiB) alone")] {
            let nothing = warning(given, &Ceilings::default()).unwrap();
            assert!(nothing.contains("no memory limit") && nothing.contains(part), "{nothing}");
        }
    }
}
