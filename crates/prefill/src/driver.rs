//! Plan, reserve, run, measure, drain, release, report: chunk after chunk.

use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use plimsoll_memguard::{ChunkChoice, ChunkLimits, Kind, Ledger, MemorySample, Pressure, Probe, Reservation, Room};

use crate::guard::{Forecast, Span, Watch, last_reserve_bytes, usable_bytes};
use crate::{
    CancelToken, Chunk, ChunkReport, ChunkSize, ChunkTarget, Guard, MachineFull, Outcome, PrefillError, PrefillReport,
    Progress, StepError,
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
    /// Runs with every drain, after the target's own: what gives back free memory of the allocator.
    pub trim: Option<Arc<dyn Fn() + Send + Sync>>,
    /// What keeps chunks inside the machine.
    pub guard: Guard,
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
        Self {
            ledger,
            chunk: ChunkSize::default(),
            probe: None,
            drain: Drain::default(),
            trim: None,
            guard: Guard::default(),
        }
    }
}

impl fmt::Debug for DriverOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverOptions")
            .field("ledger", &self.ledger)
            .field("chunk", &self.chunk)
            .field("has_probe", &self.probe.is_some())
            .field("drain", &self.drain)
            .field("has_trim", &self.trim.is_some())
            .field("guard", &self.guard)
            .finish()
    }
}

/// Runs prompts through a [`ChunkTarget`]. Between calls it keeps only what it has learned of the process's memory, so one driver, or clones of
/// it, serves any number of sequences. Chunks that run at the same time find each other's growth in their readings.
#[derive(Debug, Clone)]
pub struct Driver {
    options: DriverOptions,
    watch: Arc<Mutex<Watch>>,
}

impl Driver {
    /// A driver that works with `options`.
    #[must_use]
    pub fn new(options: DriverOptions) -> Self {
        let floor_rows = options.chunk.limits(Pressure::Nominal).floor_rows;
        let watch = Arc::new(Mutex::new(Watch::new(&options.guard, floor_rows)));
        Self { options, watch }
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
        let Some(admitted) = self.admit(target, &tokens, held_bytes)? else {
            return Ok(None);
        };
        let Admitted { chunk, requested_rows, planned_bytes, charged_bytes, slack_bytes, pressure, extra } = admitted;
        let span = tracing::debug_span!(
            "chunk",
            start = chunk.start,
            rows = chunk.rows,
            planned_bytes,
            charged_bytes,
            reserved_bytes = held_bytes + extra.bytes(),
            measured_bytes = tracing::field::Empty,
        );
        let entered = span.enter();

        let (before, held_before) = (self.sample(), target.held());
        let started = Instant::now();
        let outcome = target.run(&chunk);
        let seconds = started.elapsed().as_secs_f64();
        let (after, held_after) = (self.sample(), target.held());
        let measured_bytes = target.measured_bytes().or_else(|| growth(before?, after?));
        let drained = self.drain(target);
        // Only now: until the drain, the bytes are still in use.
        drop(extra);

        let of_chunk = Span { before, after, held_before, held_after };
        // A chunk that failed in the middle says nothing about the price of a whole one.
        let learned = outcome.is_ok().then(|| of_chunk.sample(chunk.rows, requested_rows)).flatten();
        let of_drain = Span { before: after, after: drained, held_before: held_after, held_after: target.held() };
        let released = of_drain.sample(0, 0);
        if self.options.guard.tracks {
            let mut watch = self.watch();
            learned.into_iter().chain(released).for_each(|sample| watch.record(sample));
        }
        if let Some(measured_bytes) = measured_bytes {
            span.record("measured_bytes", measured_bytes);
        }
        drop(entered);
        let Chunk { start, rows, .. } = chunk;
        outcome.map_err(|source| StepError::Target { start, rows, source })?;
        Ok(Some(ChunkReport {
            start,
            rows,
            requested_rows,
            planned_bytes,
            charged_bytes,
            slack_bytes,
            measured_bytes,
            growth_bytes: of_chunk.growth_bytes(),
            unexplained_bytes: of_chunk.unexplained_bytes(),
            before,
            after,
            drained,
            held_before,
            held_after,
            pressure,
            seconds,
        }))
    }

    /// Makes sure that the machine has room for `growth_bytes` more than the process has now: for a decode loop, each time that it is about to
    /// touch a new block of keys and values. Under soft pressure caches are evicted first; where there is no room even so, the machine is read
    /// a few times more before it counts as full. Returns the pressure; nominal without a machine.
    ///
    /// It reads the machine, which takes some tenths of a millisecond: ask per block, not per token.
    ///
    /// # Errors
    /// [`MachineFull`], with what is needed and what is left.
    pub fn make_room(&self, growth_bytes: u64) -> Result<Pressure, MachineFull> {
        self.room_for(|| growth_bytes).map(|(pressure, _)| pressure)
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
        // As priced by `PrefillReport::most_bytes`: a vector that doubles would take up to three times as much. Where there are no addresses
        // for so many, it grows.
        let _ = report.chunks.try_reserve_exact(self.options.chunk.most_chunks(total_tokens));
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
                    on_progress(&Progress {
                        chunk: &chunk,
                        done_tokens,
                        total_tokens,
                        cached_tokens: tokens.start,
                        reserved_bytes: self.options.ledger.usage().reserved_bytes(),
                        seconds: report.seconds,
                    });
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

    /// The largest chunk that ledger and machine take now.
    ///
    /// Each size is tried by reserving it: a size derived from the free bytes read beforehand could be gone by the time it is reserved.
    fn admit<T: ChunkTarget>(
        &self,
        target: &T,
        tokens: &Range<usize>,
        held_bytes: u64,
    ) -> Result<Option<Admitted>, StepError<T::Error>> {
        if tokens.is_empty() {
            return Ok(None);
        }
        let (start, remaining) = (tokens.start, tokens.len());
        let (pressure, room) = self.wait_for_room(target, tokens)?;
        let (held, ledger) = (target.held(), &self.options.ledger);
        let forecast = Forecast::new(self.options.guard.tracks.then(|| self.watch()).as_deref(), held);
        // A price is asked for several times in a row, and is a walk over the whole program.
        let last_price = Cell::new((0, 0));
        let planned_bytes = |rows: usize| {
            if last_price.get().0 != rows {
                last_price.set((rows, target.transient_bytes(rows, start)));
            }
            last_price.get().1
        };
        let predicted_bytes = |rows: usize| forecast.predicted_bytes(rows, planned_bytes(rows));
        let admitted = |rows: usize, requested_rows, predicted_bytes: u64, extra| Admitted {
            chunk: Chunk { start, rows, last: rows == remaining },
            requested_rows,
            planned_bytes: planned_bytes(rows),
            charged_bytes: predicted_bytes.saturating_sub(planned_bytes(rows)),
            slack_bytes: forecast.slack_bytes(),
            pressure,
            extra,
        };

        let mut limits = self.options.chunk.limits(pressure);
        let floor_rows = limits.floor_rows.min(remaining);
        let requested_rows = self.options.chunk.limits(Pressure::Nominal).ceiling_rows.min(remaining);
        // What the machine leaves is there beside what the target holds already, and keys and values come out of it too.
        let kv_bytes = target.kv_growth_bytes(limits.ceiling_rows.min(remaining), start);
        let machine_bytes = room.as_ref().map_or(u64::MAX, |room| {
            usable_bytes(room).saturating_add(held.transient_bytes.unwrap_or(0)).saturating_sub(kv_bytes)
        });
        loop {
            let free_bytes = ledger.usage().free_bytes().unwrap_or(u64::MAX).saturating_add(held_bytes);
            let needed_bytes = |rows: usize| forecast.needed_bytes(planned_bytes(rows));
            let choice = limits.choose_by(remaining, free_bytes.min(machine_bytes), predicted_bytes, needed_bytes);
            let ChunkChoice::Run { rows, predicted_bytes, .. } = choice else { break };
            if rows <= floor_rows {
                break;
            }
            // A larger chunk is only nice to have: caches are evicted for the smallest one alone.
            match ledger.reserve_free(Kind::Transient, predicted_bytes.saturating_sub(held_bytes)) {
                Ok(extra) => return Ok(Some(admitted(rows, requested_rows, predicted_bytes, extra))),
                Err(_) => limits.ceiling_rows = below(rows, &limits),
            }
        }

        // The smallest chunk was promised when the prompt was admitted: it gets what the tracker expects if that can be had, and what is planned
        // in any case. What was expected and not given is old evidence: it counts half the next time.
        let (planned_bytes, predicted_bytes) = (planned_bytes(floor_rows), predicted_bytes(floor_rows));
        let reserve = |bytes: u64| ledger.reserve(Kind::Transient, bytes.saturating_sub(held_bytes));
        let reserved = match reserve(predicted_bytes) {
            Err(_) if predicted_bytes > planned_bytes => {
                self.watch().tracker.fade();
                reserve(planned_bytes).map(|extra| (held_bytes.clamp(planned_bytes, predicted_bytes), extra))
            }
            reserved => reserved.map(|extra| (predicted_bytes, extra)),
        };
        match reserved {
            Ok((bytes, extra)) => Ok(Some(admitted(floor_rows, requested_rows, bytes, extra))),
            Err(source) => Err(StepError::Reserve { start, rows: floor_rows, planned_bytes, source }),
        }
    }

    /// Reads the machine until the growth of the smallest chunk fits, and says how close it is to its limit.
    fn wait_for_room<T: ChunkTarget>(
        &self,
        target: &T,
        tokens: &Range<usize>,
    ) -> Result<(Pressure, Option<Room>), StepError<T::Error>> {
        // The smallest chunk is the same under any pressure.
        let rows = self.options.chunk.limits(Pressure::Hard).floor_rows.min(tokens.len());
        let growth_bytes = || {
            let kv_bytes = target.kv_growth_bytes(rows, tokens.start);
            let wanted_bytes = target.transient_bytes(rows, tokens.start).saturating_add(kv_bytes);
            // What a larger chunk has left behind is there for this one, keys and values included.
            wanted_bytes.saturating_sub(target.held().transient_bytes.unwrap_or(0))
        };
        self.room_for(growth_bytes).map_err(|MachineFull { needed_bytes, room, usage }| StepError::Pressure {
            start: tokens.start,
            rows,
            needed_bytes,
            room,
            usage,
        })
    }

    /// Reads the machine until so many bytes fit. Nothing is kept from an earlier call but the level, for its hysteresis. The bytes are asked for
    /// only where there is a machine.
    fn room_for(&self, growth_bytes: impl FnOnce() -> u64) -> Result<(Pressure, Option<Room>), MachineFull> {
        let Guard { machine: Some(machine), watermarks, polls, poll_interval, .. } = &self.options.guard else {
            return Ok((Pressure::Nominal, None));
        };
        let ledger = &self.options.ledger;
        let growth_bytes = growth_bytes();
        let (mut polls, mut evicts) = (*polls, true);
        loop {
            let Some(room) = machine.room() else { return Ok((Pressure::Nominal, None)) };
            let pressure = self.watch().gauge.read(room.used_bytes, room.ceiling_bytes);
            let calm_bytes = watermarks.begins_bytes(Pressure::Soft, room.ceiling_bytes);
            if pressure > Pressure::Nominal && evicts {
                evicts = false;
                if ledger.evict(room.used_bytes.saturating_sub(calm_bytes)) > 0 {
                    continue;
                }
            }
            if growth_bytes <= usable_bytes(&room) {
                return Ok((pressure, Some(room)));
            }
            if polls == 0 {
                let needed_bytes = growth_bytes.saturating_add(last_reserve_bytes(&room));
                return Err(MachineFull { needed_bytes, room: Box::new(room), usage: Box::new(ledger.usage()) });
            }
            polls -= 1;
            thread::sleep(*poll_interval);
        }
    }

    /// Drains the target and the allocator, and reads what came of it.
    fn drain<T: ChunkTarget>(&self, target: &mut T) -> Option<MemorySample> {
        if self.options.drain == Drain::Never {
            return None;
        }
        target.drain();
        if let Some(trim) = &self.options.trim {
            trim();
        }
        self.sample()
    }

    fn sample(&self) -> Option<MemorySample> {
        self.options.probe.as_ref().map(|probe| probe.sample())
    }

    fn watch(&self) -> MutexGuard<'_, Watch> {
        // Every change of it is one call that cannot panic.
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A chunk that may run.
struct Admitted {
    chunk: Chunk,
    requested_rows: usize,
    planned_bytes: u64,
    charged_bytes: u64,
    slack_bytes: u64,
    pressure: Pressure,
    /// What the caller's own reservation does not cover of plan and charge.
    extra: Reservation,
}

/// The next size to try after `rows`, which is more than the floor.
fn below(rows: usize, limits: &ChunkLimits) -> usize {
    ((rows - 1) / limits.granule_rows * limits.granule_rows).max(limits.floor_rows)
}

fn growth(before: MemorySample, after: MemorySample) -> Option<u64> {
    Some(after.footprint?.saturating_sub(before.footprint?))
}
