//! `--trace-hashes` and `--memory-trace`: what the executor's loop tells when asked.
//!
//! What is told goes to a file at once: a run of many steps keeps none of them in memory, which is reserved for other things.

mod picture;
mod samples;

use crate::{cli::RunArgs, error::AppError, files::Output};
use plimsoll_memguard::{Probe, system_probe};
use plimsoll_models::{CpuExecutor, HashSteps, StepEvent, StepObserver};
use plimsoll_program::{ChainId, MemoryPlan, Program, StepBytes};
use samples::{Pass, Samples};
use std::{
    io::{self, Write},
    path::Path,
    sync::Arc,
};

/// What a trace file is, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Csv,
    Svg,
}

impl Kind {
    pub(super) fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "csv" => Some(Self::Csv),
            "svg" => Some(Self::Svg),
            _ => None,
        }
    }
}

/// What a run has reserved, apart from the chunks that took more than the smallest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reserved {
    pub(super) weights_bytes: u64,
    pub(super) overhead_bytes: u64,
    /// For all tokens of prompt and answer but the last.
    pub(super) kv_bytes: u64,
    /// For the smallest chunk, and for decoding.
    pub(super) smallest_transient_bytes: u64,
    /// Absent where neither the user nor the machine sets a limit.
    pub(super) budget_bytes: Option<u64>,
}

impl Reserved {
    /// What is held from the load on: weights and overhead.
    fn held_bytes(&self) -> u64 {
        self.weights_bytes + self.overhead_bytes
    }
}

/// Writes hashes and memory of prefill steps; decode passes are left out.
pub(super) struct Observers {
    hashes: Option<Hashes>,
    memory: Option<Memory>,
    /// A pass that ends past the prompt is one of decode.
    prompt_tokens: usize,
}

struct Hashes {
    steps: HashSteps,
    file: Output,
    written: io::Result<()>,
}

struct Memory {
    samples: Samples,
    probe: Option<Arc<dyn Probe>>,
    file: Output,
    written: io::Result<()>,
}

impl Observers {
    /// The files that were asked for, begun.
    pub(super) fn new(args: &RunArgs, prompt_tokens: usize) -> Result<Self, AppError> {
        let hashes = |path: &Path| {
            Ok::<_, AppError>(Hashes { steps: HashSteps::default(), file: Output::create(path)?, written: Ok(()) })
        };
        let memory = |path: &Path| {
            let (samples, file) = (Samples::beside(path)?, Output::create(path)?);
            Ok::<_, AppError>(Memory { samples, probe: system_probe(), file, written: Ok(()) })
        };
        Ok(Self {
            hashes: args.trace_hashes.as_deref().map(hashes).transpose()?,
            memory: args.memory_trace.as_deref().map(memory).transpose()?,
            prompt_tokens,
        })
    }

    /// Ends the files that were asked for. `executor`: the one that ran.
    pub(super) fn write(self, executor: &CpuExecutor, reserved: Reserved) -> Result<(), AppError> {
        if let Some(Hashes { file, written, .. }) = self.hashes {
            file.finish(written)?;
        }
        let Some(Memory { mut samples, mut file, written, .. }) = self.memory else { return Ok(()) };
        if written.is_err() {
            return file.finish(written);
        }
        let timeline = Timeline { executor, reserved };
        let done = match Kind::of(file.path()) {
            Some(Kind::Svg) => match timeline.picture(&mut samples) {
                Ok(Ok(svg)) => file.out().write_all(svg.as_bytes()),
                Ok(Err(message)) => return Err(AppError::Trace { path: file.path().to_owned(), message }),
                Err(error) => Err(error),
            },
            _ => timeline.csv(&mut samples, file.out()),
        };
        file.finish(done)
    }
}

impl StepObserver for Observers {
    fn step(&mut self, event: &StepEvent<'_>) {
        if event.dims.kv_len > self.prompt_tokens || event.depth > 0 {
            return;
        }
        if let Some(Hashes { steps, file, written: written @ Ok(()) }) = &mut self.hashes {
            steps.step(event);
            *written = steps.hashes.drain(..).try_for_each(|entry| {
                let out = file.out();
                write!(out, "{}\t{}\t{}\t", entry.step, entry.op, entry.label)?;
                entry.sha256.iter().try_for_each(|byte| write!(out, "{byte:02x}"))?;
                writeln!(out)
            });
        }
        if let Some(Memory { samples, probe, written: written @ Ok(()), .. }) = &mut self.memory {
            let footprint_bytes = probe.as_ref().and_then(|probe| probe.sample().footprint);
            *written = samples.push(event.step, &event.dims, footprint_bytes);
        }
    }
}

/// Planned beside measured.
struct Timeline<'a> {
    executor: &'a CpuExecutor,
    reserved: Reserved,
}

/// What was planned for a pass.
struct Planned {
    /// Keys and values up to this pass.
    kv_bytes: u64,
    /// The pass's arena.
    arena_bytes: u64,
}

impl Timeline<'_> {
    fn program(&self) -> &Program {
        &self.executor.model().architecture().program
    }

    fn plan(&self, pass: &Pass) -> (Planned, MemoryPlan) {
        let spec = self.executor.settings().kv_spec(self.executor.model().architecture());
        let plan = self.executor.plan(&pass.dims);
        (Planned { kv_bytes: spec.bytes(pass.dims.kv_len), arena_bytes: plan.peak_bytes }, plan)
    }

    /// A line for every step.
    fn csv(&self, samples: &mut Samples, out: &mut impl Write) -> io::Result<()> {
        let mut most_arena_bytes = self.reserved.smallest_transient_bytes;
        samples.each_pass(|pass| {
            most_arena_bytes = most_arena_bytes.max(self.plan(pass).0.arena_bytes);
            Ok(())
        })?;
        let reserved_bytes = self.reserved.held_bytes() + self.reserved.kv_bytes + most_arena_bytes;
        writeln!(
            out,
            "pass,rows,kv_len,step,label,op,planned_bytes,planned_peak_bytes,reserved_bytes,footprint_bytes"
        )?;
        let program = self.program();
        // Samples are of the main chain's steps; a timeline holds those of nested chains too.
        let is_main = |step: &&StepBytes| program.position(step.step).0 == ChainId::MAIN;
        let steps = program.chain(ChainId::MAIN).steps();
        samples.each_pass(|pass| {
            let (planned, plan) = self.plan(pass);
            let resident_bytes = self.reserved.held_bytes() + planned.kv_bytes;
            let planned_peak_bytes = resident_bytes + planned.arena_bytes;
            let timeline = plan.timeline.iter().filter(is_main);
            for (((number, footprint), live), step) in pass.footprints.iter().enumerate().zip(timeline).zip(steps) {
                let planned_bytes = resident_bytes + live.live_bytes + live.scratch_bytes;
                let footprint = footprint.map_or(String::new(), |bytes| bytes.to_string());
                writeln!(
                    out,
                    "{},{},{},{number},{},{},{planned_bytes},{planned_peak_bytes},{reserved_bytes},{footprint}",
                    pass.number,
                    pass.dims.rows,
                    pass.dims.kv_len,
                    program.label(step.label),
                    step.op.name()
                )?;
            }
            Ok(())
        })
    }

    fn picture(&self, samples: &mut Samples) -> io::Result<Result<String, String>> {
        let mut tokens = 0;
        samples.each_pass(|pass| {
            tokens = pass.dims.kv_len;
            Ok(())
        })?;
        let mut curves = picture::Curves::new(tokens);
        samples.each_pass(|pass| {
            curves.add(pass, &self.plan(pass).0);
            Ok(())
        })?;
        Ok(picture::draw(&curves, self.reserved))
    }
}
