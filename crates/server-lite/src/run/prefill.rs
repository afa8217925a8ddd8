//! Prefill of the prompt, chunk by chunk, inside of budget and machine.

use super::{
    answer::{FirstLogits, Job, sha256_of},
    budget::Admission,
    memdbg::MemoryDebug,
};
use crate::{
    alloc,
    cli::SwitchArg,
    error::{AppError, Longest, MachineShortfall, Place},
    logits::LogitsFile,
    price::{ChunkPriced, RUN_HEAP_BYTES},
    progress,
};
use plimsoll_memguard::Room;
use plimsoll_models::{ExecError, LogitRows, PromptTarget, Session};
use plimsoll_prefill::{
    DEFAULT_MAX_ROWS, Drain, Driver, DriverOptions, Outcome, PrefillError, PrefillReport, StepError,
};
use std::{ops::Range, sync::Arc};

impl Job<'_> {
    /// Runs the prompt through `session`; its report, and the logits that decode starts from.
    pub(super) fn prefill<S: Session>(
        &self,
        driver: &Driver,
        session: &mut S,
        admission: &mut Admission,
        profile: &dyn ChunkPriced,
        memory_debug: &mut Option<MemoryDebug<'_>>,
    ) -> Result<(PrefillReport, FirstLogits), AppError> {
        let vocab_size = self.model.architecture().dimensions.vocab_size;
        let (total, cached) = (self.prompt.len(), session.len());
        let rows = if self.args.all_logits() { LogitRows::All } else { LogitRows::Last };
        let mut file = self
            .args
            .logits_out
            .as_deref()
            .map(|path| LogitsFile::create(path, self.prompt, rows == LogitRows::All, vocab_size))
            .transpose()?;
        let mut written = Ok(());
        let mut first = FirstLogits { values: Vec::with_capacity(vocab_size), sha256: String::new() };
        let mut sink = |rows: Range<usize>, logits: &[f32]| {
            if let Some(file) = file.as_mut().filter(|_| written.is_ok()) {
                written = file.append(logits);
            }
            if rows.end == total {
                first.values.extend_from_slice(&logits[logits.len() - vocab_size..]);
            }
        };
        // One chunk is done before a bar would say anything.
        let is_cut = total - cached > self.args.chunk.fixed_rows().unwrap_or(DEFAULT_MAX_ROWS);
        let bar = progress::Prefill::new(cached, total, is_cut && !self.args.json);
        let mut target = PromptTarget::new(session, self.prompt, rows, &mut sink);
        if let Some(cache) = &self.cache {
            target = target.publishing_to(cache);
        }
        let held = &mut admission.transient;
        let result = driver.run_holding(&mut target, cached..total, held, self.cancel, |progress| {
            bar.show(progress);
            if let Some(debug) = memory_debug {
                bar.suspend(|| debug.chunk(progress.chunk));
            }
        });
        bar.finish();
        let cancelled = |done| AppError::Cancelled { done, total };
        let report = match result {
            Ok(report) if report.outcome == Outcome::Cancelled => return Err(cancelled(cached + report.done_tokens())),
            Ok(report) => report,
            Err(PrefillError { done_tokens, source: StepError::Target { source, .. }, .. }) => {
                return Err(match source {
                    ExecError::Cancelled => cancelled(cached + done_tokens),
                    source => AppError::Exec(source),
                });
            }
            Err(PrefillError { source: StepError::Reserve { planned_bytes, .. }, .. }) => {
                // The ledger refused, so the budget is what is short. The smallest chunk's bytes are held, and would be part of these.
                let bytes = planned_bytes.saturating_sub(admission.transient.bytes());
                return Err(self.budget.shortfall_of_budget("a prefill chunk", bytes));
            }
            Err(PrefillError { source: StepError::Pressure { start, rows, needed_bytes, room, usage }, .. }) => {
                let longest = self.longest_in(session, &room, start + rows, profile);
                let (room, usage, place) = (*room, *usage, Place::Prompt { done: start, total, rows });
                let shortfall = MachineShortfall { place, needed_bytes, room, usage, longest };
                return Err(AppError::MachineFull(Box::new(shortfall)));
            }
            Err(error) => return Err(AppError::Prefill(error.to_string())),
        };
        written?;
        if let Some(file) = file {
            file.finish()?;
        }
        first.sha256 = sha256_of(&first.values);
        Ok((report, first))
    }

    /// What keeps this run inside of budget and machine, in prefill and in decode.
    pub(super) fn driver_options(&self, max_chunk_rows: usize) -> DriverOptions {
        let mut options = DriverOptions::new(self.budget.ledger.clone());
        options.chunk = self.args.chunk.size(max_chunk_rows);
        options.probe = Some(Arc::clone(&self.budget.probe));
        // Part of the overhead that was reserved: stacks and tables that the first chunks touch.
        options.guard.slack_bytes = RUN_HEAP_BYTES;
        match self.args.drain {
            SwitchArg::On => options.trim = Some(Arc::new(alloc::trim)),
            SwitchArg::Off => options.drain = Drain::Never,
        }
        options.guard.machine.clone_from(&self.budget.machine);
        options.guard.tracks = self.args.guard == SwitchArg::On;
        options
    }

    /// Longest context, prompt and answer together, that a run in `room` would be admitted with once this one has given back what it holds: less
    /// than `failed_tokens`, for which there was no memory.
    pub(super) fn longest_in<S: Session>(
        &self,
        session: &S,
        room: &Room,
        failed_tokens: usize,
        profile: &dyn ChunkPriced,
    ) -> Longest {
        let held_bytes = session.kv_bytes().saturating_add(session.kept_bytes().unwrap_or(0));
        self.budget.longest_in(room, held_bytes, &self.needs(), profile, failed_tokens)
    }
}
