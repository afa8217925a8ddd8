//! The timeline as a picture: above, everything the pass takes against the load line; below, the arena by itself.

use super::{Step, Timeline};
use crate::error::AppError;
use plotters::{
    coord::{Shift, types::RangedCoordf64},
    prelude::*,
};
use std::{fmt::Display, path::Path};

const SIZE: (u32, u32) = (1100, 640);
/// Height of the upper panel.
const UPPER: i32 = 270;

const WEIGHTS: RGBColor = RGBColor(84, 110, 140);
const KV: RGBColor = RGBColor(120, 170, 130);
const OVERHEAD: RGBColor = RGBColor(190, 190, 190);
const LIVE: RGBColor = RGBColor(240, 160, 60);
const SCRATCH: RGBColor = RGBColor(205, 90, 60);

/// A budget this many times what is taken would flatten everything else: it is named instead of drawn.
const FAR: f64 = 3.0;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Draws the timeline as SVG.
pub(super) fn draw(path: &Path, timeline: &Timeline) -> Result<String, AppError> {
    let mut svg = String::new();
    draw_into(&mut svg, timeline).map_err(|message| AppError::Trace { path: path.to_owned(), message })?;
    Ok(svg)
}

fn draw_into(svg: &mut String, timeline: &Timeline) -> Result<(), String> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(text)?;
    let (upper, lower) = area.split_vertically(UPPER);
    everything(&upper, timeline)?;
    arena(&lower, timeline)?;
    area.present().map_err(text)
}

fn text(error: impl Display) -> String {
    error.to_string()
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / 1_048_576.0
}

/// Weights, KV, overhead and arena on top of each other, and the load line.
fn everything(area: &Area<'_>, timeline: &Timeline) -> Result<(), String> {
    let total = mib(timeline.total_bytes());
    let line = timeline.budget_bytes.map(mib).filter(|&budget| budget <= FAR * total);
    let top = 1.12 * line.unwrap_or(0.0).max(total);
    let budget = match timeline.budget_bytes {
        Some(bytes) => format!(", budget {:.0} MiB", mib(bytes)),
        None => String::new(),
    };
    let title = format!(
        "{}: {} rows up to token {}: {total:.0} MiB at the peak{budget}",
        timeline.model, timeline.rows, timeline.context
    );
    let mut chart = panel(area, title, timeline.steps.len(), top)?;
    chart
        .configure_mesh()
        .y_desc("MiB")
        .disable_x_mesh()
        .light_line_style(WHITE.mix(0.0))
        .x_labels(0)
        .draw()
        .map_err(text)?;
    // From the top down: each area is drawn over the one that reaches higher.
    let (weights, kv, overhead) = (mib(timeline.weights_bytes), mib(timeline.kv_bytes), mib(timeline.overhead_bytes));
    let below = weights + kv + overhead;
    let now = |step: &Step| below + mib(step.bytes());
    stack(&mut chart, timeline, &format!("arena, up to {:.1}", mib(timeline.arena_bytes)), LIVE, now)?;
    for (name, height, value, color) in
        [("overhead", below, overhead, OVERHEAD), ("KV", weights + kv, kv, KV), ("weights", weights, weights, WEIGHTS)]
    {
        stack(&mut chart, timeline, &format!("{name} {value:.1}"), color, move |_| height)?;
    }
    if let Some(budget) = line {
        let points = [(0.0, budget), (timeline.steps.len() as f64, budget)];
        chart
            .draw_series(LineSeries::new(points, BLACK.stroke_width(3)))
            .map_err(text)?
            .label(format!("load line {budget:.0}"))
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], BLACK.stroke_width(3)));
    }
    legend(&mut chart)
}

/// Values and scratch of the arena by themselves, and the step at which it is full.
fn arena(area: &Area<'_>, timeline: &Timeline) -> Result<(), String> {
    let top = 1.18 * mib(timeline.arena_bytes).max(1e-6);
    let title = format!("the arena, step by step: {:.2} MiB", mib(timeline.arena_bytes));
    let mut chart = panel(area, title, timeline.steps.len(), top)?;
    chart
        .configure_mesh()
        .x_desc("step")
        .y_desc("MiB")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .disable_x_mesh()
        .light_line_style(WHITE.mix(0.0))
        .draw()
        .map_err(text)?;
    stack(&mut chart, timeline, "scratch of kernels", SCRATCH, |step| mib(step.bytes()))?;
    stack(&mut chart, timeline, "values", LIVE, |step| mib(step.live_bytes))?;
    let reached = timeline.steps.iter().map(|step| (step.step as f64, mib(step.arena_bytes)));
    chart
        .draw_series(LineSeries::new(reached, BLACK.mix(0.6).stroke_width(1)))
        .map_err(text)?
        .label("arena so far, with gaps")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], BLACK.mix(0.6).stroke_width(1)));
    if let Some(step) = timeline.steps.get(timeline.peak_step) {
        let (x, y) = (step.step as f64 + 0.5, mib(timeline.arena_bytes));
        let title = format!("peak: step {}, {}", step.step, step.title());
        // Beside the mark, on the side that has more room.
        let shift =
            if x < timeline.steps.len() as f64 / 2.0 { 8 } else { -8 - 7 * i32::try_from(title.len()).unwrap_or(0) };
        let mark = EmptyElement::at((x, y))
            + Circle::new((0, 0), 5, RED.filled())
            + Text::new(title, (shift, -20), ("sans-serif", 14).into_font().color(&RED));
        chart.draw_series([mark]).map_err(text)?;
    }
    legend(&mut chart)
}

fn panel<'a, 'b>(area: &Area<'b>, title: String, steps: usize, top: f64) -> Result<Chart<'a, 'b>, String> {
    ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(34)
        .y_label_area_size(70)
        // Room on the right, for what the colors mean.
        .build_cartesian_2d(0.0..steps.max(1) as f64 * 1.28, 0.0..top)
        .map_err(text)
}

/// A filled area below `height`, each step as wide as the next.
fn stack<'a, 'b: 'a>(
    chart: &mut Chart<'a, 'b>,
    timeline: &Timeline,
    name: &str,
    color: RGBColor,
    height: impl Fn(&Step) -> f64,
) -> Result<(), String> {
    let edges = timeline.steps.iter().flat_map(|step| {
        let (start, height) = (step.step as f64, height(step));
        [(start, height), (start + 1.0, height)]
    });
    let series = AreaSeries::new(edges, 0.0, color.filled());
    chart
        .draw_series(series)
        .map_err(text)?
        .label(name)
        .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 18, y + 5)], color.filled()));
    Ok(())
}

fn legend<'a, 'b: 'a>(chart: &mut Chart<'a, 'b>) -> Result<(), String> {
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::MiddleRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.4))
        .draw()
        .map_err(text)
}
