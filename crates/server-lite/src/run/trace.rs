//! `--trace-hashes` and `--memory-trace`: what the executor's loop tells when asked.

use super::report::Memory;
use crate::{cli::RunArgs, error::AppError, files};
use plimsoll_memguard::{Probe, system_probe};
use plimsoll_models::{CpuSession, HashSteps, StepEvent, StepObserver};
use plimsoll_program::{ChainId, Dims, StepBytes};
use plotters::prelude::*;
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
    pub(super) fn write(&self, args: &RunArgs, session: &CpuSession<Self>, memory: Memory) -> Result<(), AppError> {
        let write = |path: &Path, text: &str| {
            let fault = |source| AppError::File { doing: "write", path: path.to_owned(), source };
            files::write_whole(path, text.as_bytes()).map_err(fault)
        };
        if let (Some(path), Some(hashes)) = (&args.trace_hashes, &self.hashes) {
            write(path, &hash_lines(hashes))?;
        }
        if let Some(path) = &args.memory_trace {
            let rows = self.rows(session, memory);
            match Kind::of(path) {
                Some(Kind::Svg) => write(path, &draw(path, &rows, memory.budget_bytes)?)?,
                _ => write(path, &csv(&rows))?,
            }
        }
        Ok(())
    }

    /// Planned beside measured, step by step.
    fn rows(&self, session: &CpuSession<Self>, memory: Memory) -> Vec<Row<'_>> {
        let executor = session.executor();
        let spec = executor.model().architecture().kv_spec(executor.settings().kv_dtype);
        let program = &executor.model().architecture().program;
        let plans: Vec<_> = self.passes.iter().map(|dims| executor.plan(dims)).collect();
        // Samples are of the main chain's steps; a timeline holds those of nested chains too.
        let is_main = |step: &&StepBytes| program.position(step.step).0 == ChainId::MAIN;
        let timelines: Vec<Vec<_>> = plans.iter().map(|plan| plan.timeline.iter().filter(is_main).collect()).collect();
        let rows = self.samples.iter().map(|sample| {
            let Sample { pass, step, .. } = *sample;
            let (plan, dims) = (&plans[pass], self.passes[pass]);
            let resident = memory.weights_bytes + memory.overhead_bytes + spec.bytes(dims.kv_len);
            let transient_bytes = timelines[pass].get(step).map_or(0, |step| step.live_bytes + step.scratch_bytes);
            Row {
                sample,
                dims,
                planned_bytes: resident + transient_bytes,
                planned_peak_bytes: resident + plan.peak_bytes,
                reserved_bytes: memory.planned_peak_bytes,
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
        let Row { sample, dims, planned_bytes, planned_peak_bytes, reserved_bytes } = row;
        let footprint = sample.footprint_bytes.map_or(String::new(), |bytes| bytes.to_string());
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{planned_bytes},{planned_peak_bytes},{reserved_bytes},{footprint}",
            sample.pass, dims.rows, dims.kv_len, sample.step, sample.label, sample.op
        );
    }
    text
}

/// The timeline as a picture: planned, measured, and the line that neither may pass.
fn draw(path: &Path, rows: &[Row<'_>], budget_bytes: Option<u64>) -> Result<String, AppError> {
    let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
    let highest = rows.iter().map(|row| row.reserved_bytes.max(row.sample.footprint_bytes.unwrap_or(0))).max();
    let highest = mib(highest.unwrap_or(1));
    // A budget far above everything would flatten the curves: it is then named, not drawn.
    let line = budget_bytes.map(mib).filter(|&budget| budget <= 3.0 * highest);
    let top = 1.08 * line.unwrap_or(0.0).max(highest);
    let fault = |error: &dyn std::fmt::Display| AppError::Trace { path: path.to_owned(), message: error.to_string() };

    // In memory first: the library's own file is written when it is dropped, where nobody learns of a full device.
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (1000, 480)).into_drawing_area();
    area.fill(&WHITE).map_err(|error| fault(&error))?;
    let title = match budget_bytes {
        Some(bytes) => format!("memory of the prefill, budget {:.0} MiB", mib(bytes)),
        None => "memory of the prefill".to_owned(),
    };
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(0..rows.len().max(1), 0.0..top)
        .map_err(|error| fault(&error))?;
    chart
        .configure_mesh()
        .x_desc("steps of all chunks, in order")
        .y_desc("MiB")
        .light_line_style(WHITE.mix(0.0))
        .draw()
        .map_err(|error| fault(&error))?;
    type Value = fn(&Row<'_>) -> Option<u64>;
    let curves: [(&str, RGBColor, Value); 3] = [
        ("reserved for the run", RGBColor(150, 150, 150), |row| Some(row.reserved_bytes)),
        ("planned: weights, overhead, KV so far, arena", RGBColor(31, 119, 180), |row| Some(row.planned_peak_bytes)),
        ("measured footprint", RGBColor(214, 39, 40), |row| row.sample.footprint_bytes),
    ];
    for (name, color, value) in curves {
        let points = rows.iter().enumerate().filter_map(|(x, row)| Some((x, mib(value(row)?))));
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))
            .map_err(|error| fault(&error))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    if let Some(budget) = line {
        chart
            .draw_series(LineSeries::new([(0, budget), (rows.len().max(1), budget)], BLACK.stroke_width(2)))
            .map_err(|error| fault(&error))?
            .label("budget: the load line")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], BLACK.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.9))
        .border_style(BLACK)
        .draw()
        .map_err(|error| fault(&error))?;
    area.present().map_err(|error| fault(&error))?;
    // Both hold the text until they are dropped.
    drop(chart);
    drop(area);
    Ok(svg)
}
