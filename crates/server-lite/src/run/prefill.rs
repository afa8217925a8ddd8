//! Prefill of the prompt, chunk by chunk, inside of budget and machine.

use super::{
    answer::{FirstLogits, Job, sha256_of},
    budget::{Admission, needs},
    memdbg::MemoryDebug,
};
use crate::{
    alloc,
    cli::{ChunkArg, SwitchArg},
    error::{AppError, Longest, MachineShortfall},
    logits::LogitsFile,
    price::{RUN_HEAP_BYTES, longest_that_fits},
    progress,
};
use plimsoll_memguard::{Profile, Room, SystemMachine};
use plimsoll_models::{ExecError, LogitRows, PromptTarget, Session};
use plimsoll_prefill::{
    ChunkSize, Drain, Driver, DriverOptions, LAST_RESERVE_BYTES, Outcome, PrefillError, PrefillReport, StepError,
};
use std::{ops::Range, sync::Arc};

impl Job<'_> {
    /// Runs the prompt through `session`; its report, and the logits that decode starts from.
    pub(super) fn prefill<S: Session>(
        &self,
        session: &mut S,
        admission: &mut Admission,
        profile: &dyn Profile,
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
        let driver = Driver::new(self.driver_options());
        let bar = progress::Prefill::new(cached, total);
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
                return Err(self.budget.shortfall("a prefill chunk", planned_bytes, Longest::Unknown));
            }
            Err(PrefillError { source: StepError::Pressure { start, rows, needed_bytes, room, usage }, .. }) => {
                let longest = self.longest_in(session, &room, profile);
                let (room, usage) = (*room, *usage);
                let shortfall = MachineShortfall { done: start, total, rows, needed_bytes, room, usage, longest };
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

    fn driver_options(&self) -> DriverOptions {
        let mut options = DriverOptions::new(self.budget.ledger.clone());
        options.chunk = match self.args.chunk {
            ChunkArg::Auto => ChunkSize::default(),
            ChunkArg::Rows(rows) => ChunkSize::Fixed(rows),
        };
        options.probe = Some(Arc::clone(&self.budget.probe));
        // Part of the overhead that was reserved: stacks and tables that the first chunks touch.
        options.guard.slack_bytes = RUN_HEAP_BYTES;
        match self.args.drain {
            SwitchArg::On => options.trim = Some(Arc::new(alloc::trim)),
            SwitchArg::Off => options.drain = Drain::Never,
        }
        match self.args.guard {
            SwitchArg::On => options.guard.machine = Some(Arc::new(SystemMachine::default())),
            SwitchArg::Off => options.guard.tracks = false,
        }
        options
    }

    /// Longest context, prompt and answer together, that fits what `room` leaves beside what the session gives back at its end.
    fn longest_in<S: Session>(&self, session: &S, room: &Room, profile: &dyn Profile) -> Longest {
        let needs = needs(self.args, self.prompt.len(), self.model.architecture());
        let held_bytes = session.kv_bytes().saturating_add(session.kept_bytes().unwrap_or(0));
        let free_bytes = room.left_bytes().saturating_sub(LAST_RESERVE_BYTES).saturating_add(held_bytes);
        let fits = |context| needs.total(profile, context).is_some_and(|bytes| bytes <= free_bytes);
        match longest_that_fits(self.prompt.len(), fits) {
            0 => Longest::Nothing,
            tokens => Longest::Tokens(tokens),
        }
    }
}
