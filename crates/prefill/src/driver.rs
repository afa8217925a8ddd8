//! Plan, reserve, run, measure, drain, release, report: chunk after chunk.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use plimsoll_memguard::{Kind, Ledger, MemorySample, Probe, Reservation};

use crate::{
    CancelToken, Chunk, ChunkReport, ChunkSize, ChunkTarget, Outcome, PrefillError, PrefillReport, Progress, StepError,
};

/// What a [`Driver`] works with.
#[derive(Clone)]
pub struct DriverOptions {
    /// Where transients are reserved.
    pub ledger: Ledger,
    /// How many rows a chunk gets.
    pub chunk: ChunkSize,
    /// What reads memory before and after each chunk; `None` reads nothing.
    pub probe: Option<Arc<dyn Probe>>,
    /// When the target is drained.
    pub drain: Drain,
}

/// When the target is drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Drain {
    /// After every chunk, failed ones included.
    #[default]
    EachChunk,
    /// Never by the driver: to measure what draining costs and saves.
    Never,
}

impl DriverOptions {
    /// Automatic chunks out of `ledger`, drained each, not probed.
    #[must_use]
    pub fn new(ledger: Ledger) -> Self {
        Self { ledger, chunk: ChunkSize::default(), probe: None, drain: Drain::default() }
    }
}

impl fmt::Debug for DriverOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverOptions")
            .field("ledger", &self.ledger)
            .field("chunk", &self.chunk)
            .field("has_probe", &self.probe.is_some())
            .field("drain", &self.drain)
            .finish()
    }
}

/// Runs prompts through a [`ChunkTarget`]. It keeps nothing between calls, so one driver serves any number of sequences.
#[derive(Debug, Clone)]
pub struct Driver {
    options: DriverOptions,
}

impl Driver {
    /// A driver that works with `options`.
    #[must_use]
    pub fn new(options: DriverOptions) -> Self {
        Self { options }
    }

    /// Runs the prompt positions `tokens` in chunks. An empty range completes without a chunk.
    ///
    /// `on_progress` hears of every finished chunk. `cancel` is looked at before each chunk; once set, the report says so and
    /// covers what was done.
    ///
    /// # Errors
    /// [`PrefillError`] if a chunk finds no memory or the target fails. All transients are given back by then.
    pub fn run<T: ChunkTarget>(
        &self,
        target: &mut T,
        tokens: Range<usize>,
        cancel: &CancelToken,
        on_progress: impl FnMut(&Progress<'_>),
    ) -> Result<PrefillReport, PrefillError<T::Error>> {
        self.drive(target, tokens, None, cancel, on_progress)
    }

    /// As [`Driver::run`], for a caller that holds a reservation for transients anyway: it pays for each chunk first, and the
    /// ledger is asked only for what a chunk needs beyond it. It is unchanged afterwards.
    ///
    /// # Errors
    /// As [`Driver::run`].
    ///
    /// # Panics
    /// If `held` came from another ledger than the driver's.
    pub fn run_holding<T: ChunkTarget>(
        &self,
        target: &mut T,
        tokens: Range<usize>,
        held: &mut Reservation,
        cancel: &CancelToken,
        on_progress: impl FnMut(&Progress<'_>),
    ) -> Result<PrefillReport, PrefillError<T::Error>> {
        self.drive(target, tokens, Some(held), cancel, on_progress)
    }

    /// Runs the first chunk of `tokens` and reports it; `None` if there are no tokens. For a scheduler that takes turns between
    /// sequences: the caller goes on from the end of the chunk.
    ///
    /// # Errors
    /// [`StepError`] if the chunk finds no memory or the target fails.
    ///
    /// # Panics
    /// If `held` came from another ledger than the driver's.
    pub fn step<T: ChunkTarget>(
        &self,
        target: &mut T,
        tokens: Range<usize>,
        held: Option<&mut Reservation>,
    ) -> Result<Option<ChunkReport>, StepError<T::Error>> {
        // Borrowed mutably by the caller's signature: no second chunk can be paid for by the same reservation meanwhile.
        let held_bytes = held.map_or(0, |held| {
            assert!(held.ledger().same_as(&self.options.ledger), "the reservation is of another ledger");
            held.bytes()
        });
        let Some(Admitted { chunk, planned_bytes, extra }) = self.admit(target, &tokens, held_bytes)? else {
            return Ok(None);
        };
        let span = tracing::debug_span!(
            "chunk",
            start = chunk.start,
            rows = chunk.rows,
            planned_bytes,
            reserved_bytes = held_bytes + extra.bytes(),
            measured_bytes = tracing::field::Empty,
        );
        let entered = span.enter();

        let before = self.sample();
        let started = Instant::now();
        let outcome = target.run(&chunk);
        let seconds = started.elapsed().as_secs_f64();
        let after = self.sample();
        let measured_bytes = target.measured_bytes().or_else(|| growth(before?, after?));
        if self.options.drain == Drain::EachChunk {
            target.drain();
        }
        // Only now: until the drain, the bytes are still in use.
        drop(extra);

        if let Some(measured_bytes) = measured_bytes {
            span.record("measured_bytes", measured_bytes);
        }
        drop(entered);
        let Chunk { start, rows, .. } = chunk;
        outcome.map_err(|source| StepError::Target { start, rows, source })?;
        Ok(Some(ChunkReport { start, rows, planned_bytes, measured_bytes, before, after, seconds }))
    }

    fn drive<T: ChunkTarget>(
        &self,
        target: &mut T,
        tokens: Range<usize>,
        mut held: Option<&mut Reservation>,
        cancel: &CancelToken,
        mut on_progress: impl FnMut(&Progress<'_>),
    ) -> Result<PrefillReport, PrefillError<T::Error>> {
        let started = Instant::now();
        let mut report =
            PrefillReport { tokens: tokens.clone(), chunks: Vec::new(), outcome: Outcome::Completed, seconds: 0.0 };
        let mut done_tokens = 0;
        let total_tokens = tokens.len();
        while done_tokens < total_tokens {
            if cancel.is_cancelled() {
                report.outcome = Outcome::Cancelled;
                break;
            }
            let step = self.step(target, tokens.start + done_tokens..tokens.end, held.as_deref_mut());
            report.seconds = started.elapsed().as_secs_f64();
            match step {
                Ok(None) => break,
                Ok(Some(chunk)) => {
                    done_tokens += chunk.rows;
                    on_progress(&Progress { chunk: &chunk, done_tokens, total_tokens, seconds: report.seconds });
                    report.chunks.push(chunk);
                }
                Err(source) => {
                    return Err(PrefillError { done_tokens, total_tokens, report: Box::new(report), source });
                }
            }
        }
        report.seconds = started.elapsed().as_secs_f64();
        Ok(report)
    }

    /// The largest chunk the ledger takes now.
    ///
    /// Each size is tried by reserving it. A size derived from the free bytes read beforehand could be gone by the time it is
    /// reserved.
    fn admit<T: ChunkTarget>(
        &self,
        target: &T,
        tokens: &Range<usize>,
        held_bytes: u64,
    ) -> Result<Option<Admitted>, StepError<T::Error>> {
        let start = tokens.start;
        let mut refused = None;
        let ledger = &self.options.ledger;
        let mut candidates = self.options.chunk.candidates(tokens.len()).peekable();
        while let Some(rows) = candidates.next() {
            let planned_bytes = target.transient_bytes(rows, start);
            let extra_bytes = planned_bytes.saturating_sub(held_bytes);
            // A larger chunk is only nice to have: caches are evicted for the smallest one alone.
            let reserved = match candidates.peek() {
                Some(_) => ledger.reserve_free(Kind::Transient, extra_bytes),
                None => ledger.reserve(Kind::Transient, extra_bytes),
            };
            match reserved {
                Ok(extra) => {
                    let chunk = Chunk { start, rows, last: rows == tokens.len() };
                    return Ok(Some(Admitted { chunk, planned_bytes, extra }));
                }
                Err(source) => refused = Some(StepError::Reserve { start, rows, planned_bytes, source }),
            }
        }
        refused.map_or(Ok(None), Err)
    }

    fn sample(&self) -> Option<MemorySample> {
        self.options.probe.as_ref().map(|probe| probe.sample())
    }
}

/// A chunk that may run.
struct Admitted {
    chunk: Chunk,
    planned_bytes: u64,
    /// What the caller's own reservation does not cover of `planned_bytes`.
    extra: Reservation,
}

fn growth(before: MemorySample, after: MemorySample) -> Option<u64> {
    Some(after.footprint?.saturating_sub(before.footprint?))
}
