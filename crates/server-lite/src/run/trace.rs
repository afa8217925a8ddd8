//! `--trace-hashes` and `--memory-trace`: what the executor's loop tells when asked.

mod picture;

use crate::{cli::RunArgs, error::AppError, files};
use plimsoll_memguard::{Probe, system_probe};
use plimsoll_models::{CpuSession, HashSteps, StepEvent, StepObserver};
use plimsoll_program::{ChainId, Dims, StepBytes};
use std::{fmt::Write as _, path::Path, sync::Arc};

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
    /// For prompt and answer.
    pub(super) kv_bytes: u64,
    /// For the smallest chunk, and for decoding.
    pub(super) smallest_transient_bytes: u64,
    /// Absent where neither the user nor the machine sets a limit.
    pub(super) budget_bytes: Option<u64>,
}

/// One step of a prefill pass, with the memory of the process after it.
#[derive(Debug)]
struct Sample {
    pass: usize,
    step: usize,
    label: String,
    op: &'static str,
    footprint_bytes: Option<u64>,
}

/// Collects hashes and memory of prefill steps; decode passes are left out.
pub(super) struct Observers {
    hashes: Option<HashSteps>,
    /// A pass that ends past the prompt is one of decode.
    prompt_tokens: usize,
    /// Whether the memory of each step is wanted.
    memory: bool,
    probe: Option<Arc<dyn Probe>>,
    samples: Vec<Sample>,
    /// Sizes of each prefill pass.
    passes: Vec<Dims>,
}

impl Observers {
    pub(super) fn new(args: &RunArgs, prompt_tokens: usize) -> Self {
        Self {
            prompt_tokens,
            memory: args.memory_trace.is_some(),
            hashes: args.trace_hashes.is_some().then(HashSteps::default),
            probe: system_probe(),
            samples: Vec::new(),
            passes: Vec::new(),
        }
    }

    /// Writes the files that were asked for.
    pub(super) fn write(&self, args: &RunArgs, session: &CpuSession<Self>, reserved: Reserved) -> Result<(), AppError> {
        if let (Some(path), Some(hashes)) = (&args.trace_hashes, &self.hashes) {
            files::write_output(path, &hash_lines(hashes))?;
        }
        if let Some(path) = &args.memory_trace {
            let rows = self.rows(session, reserved);
            match Kind::of(path) {
                Some(Kind::Svg) => {
                    let fault = |message| AppError::Trace { path: path.clone(), message };
                    files::write_output(path, &picture::draw(&rows, reserved).map_err(fault)?)?;
                }
                _ => files::write_output(path, &csv(&rows))?,
            }
        }
        Ok(())
    }

    /// Planned beside measured, step by step.
    fn rows(&self, session: &CpuSession<Self>, reserved: Reserved) -> Vec<Row<'_>> {
        let executor = session.executor();
        let spec = executor.settings().kv_spec(executor.model().architecture());
        let program = &executor.model().architecture().program;
        let plans: Vec<_> = self.passes.iter().map(|dims| executor.plan(dims)).collect();
        // Samples are of the main chain's steps; a timeline holds those of nested chains too.
        let is_main = |step: &&StepBytes| program.position(step.step).0 == ChainId::MAIN;
        let timelines: Vec<Vec<_>> = plans.iter().map(|plan| plan.timeline.iter().filter(is_main).collect()).collect();
        let held_bytes = reserved.weights_bytes + reserved.overhead_bytes;
        let arenas = plans.iter().map(|plan| plan.peak_bytes).chain([reserved.smallest_transient_bytes]);
        let reserved_bytes = held_bytes + reserved.kv_bytes + arenas.max().unwrap_or(0);
        let rows = self.samples.iter().map(|sample| {
            let Sample { pass, step, .. } = *sample;
            let (plan, dims) = (&plans[pass], self.passes[pass]);
            let kv_bytes = spec.bytes(dims.kv_len);
            let resident = held_bytes + kv_bytes;
            let transient_bytes = timelines[pass].get(step).map_or(0, |step| step.live_bytes + step.scratch_bytes);
            Row {
                sample,
                dims,
                kv_bytes,
                arena_bytes: plan.peak_bytes,
                planned_bytes: resident + transient_bytes,
                planned_peak_bytes: resident + plan.peak_bytes,
                reserved_bytes,
            }
        });
        rows.collect()
    }
}

impl StepObserver for Observers {
    fn step(&mut self, event: &StepEvent<'_>) {
        if event.dims.kv_len > self.prompt_tokens || event.depth > 0 {
            return;
        }
        if event.step == 0 {
            self.passes.push(event.dims);
        }
        if let Some(hashes) = &mut self.hashes {
            hashes.step(event);
        }
        if self.memory {
            self.samples.push(Sample {
                pass: self.passes.len() - 1,
                step: event.step,
                label: event.label.to_owned(),
                op: event.op,
                footprint_bytes: self.probe.as_ref().and_then(|probe| probe.sample().footprint),
            });
        }
    }
}

struct Row<'a> {
    sample: &'a Sample,
    dims: Dims,
    /// Keys and values up to this pass.
    kv_bytes: u64,
    /// The pass's arena.
    arena_bytes: u64,
    /// Weights, overhead, keys and values up to this pass, and what is live at the step, by the plan.
    planned_bytes: u64,
    /// The same with the pass's whole arena: no step of it may be measured above.
    planned_peak_bytes: u64,
    /// What the run reserved, prompt and answer together.
    reserved_bytes: u64,
}

fn hash_lines(hashes: &HashSteps) -> String {
    let mut text = String::new();
    for entry in &hashes.hashes {
        let _ = write!(text, "{}\t{}\t{}\t", entry.step, entry.op, entry.label); // writing to a String cannot fail
        for byte in entry.sha256 {
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
    }
    text
}

fn csv(rows: &[Row<'_>]) -> String {
    let mut text =
        "pass,rows,kv_len,step,label,op,planned_bytes,planned_peak_bytes,reserved_bytes,footprint_bytes\n".to_owned();
    for row in rows {
        let Row { sample, dims, planned_bytes, planned_peak_bytes, reserved_bytes, .. } = row;
        let footprint = sample.footprint_bytes.map_or(String::new(), |bytes| bytes.to_string());
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{planned_bytes},{planned_peak_bytes},{reserved_bytes},{footprint}",
            sample.pass, dims.rows, dims.kv_len, sample.step, sample.label, sample.op
        );
    }
    text
}
