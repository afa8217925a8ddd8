//! The timeline as a picture: above, everything the pass takes against the load line; below, the arena by itself.

use super::{Step, Timeline};
use crate::{
    error::AppError,
    picture::{ARENA, Area, Chart, KEYS, OVERHEAD, Scale, WEIGHTS, fill, legend, stroke, svg, text},
};
use plimsoll_memguard::ByteSize;
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (1100, 640);
/// Height of the upper panel.
const UPPER: i32 = 270;

const SCRATCH: RGBColor = RGBColor(205, 90, 60);

/// Draws the timeline as SVG.
pub(super) fn draw(path: &Path, timeline: &Timeline) -> Result<String, AppError> {
    let drawn = svg(SIZE, |area| {
        let (upper, lower) = area.split_vertically(UPPER);
        everything(&upper, timeline)?;
        arena(&lower, timeline)
    });
    drawn.map_err(|message| AppError::Trace { path: path.to_owned(), message })
}

/// Weights, KV, overhead and arena on top of each other, and the load line.
fn everything(area: &Area<'_>, timeline: &Timeline) -> Result<(), String> {
    let scale = Scale::new(timeline.total_bytes(), timeline.budget_bytes);
    let title = format!(
        "{}: {} rows up to token {}: {} at the peak{}",
        timeline.model,
        timeline.rows,
        timeline.context,
        ByteSize::new(timeline.total_bytes()),
        scale.title()
    );
    let mut chart = panel(area, title, timeline.steps.len(), scale.top)?;
    chart
        .configure_mesh()
        .y_desc(scale.unit())
        .y_label_formatter(&|height| scale.label(*height))
        .disable_x_mesh()
        .light_line_style(WHITE.mix(0.0))
        .x_labels(0)
        .draw()
        .map_err(text)?;
    // From the top down: each area is drawn over the one that reaches higher.
    let Timeline { weights_bytes, kv_bytes, overhead_bytes, arena_bytes, .. } = *timeline;
    let named = |name: &str, bytes: u64| format!("{name}: {}", ByteSize::new(bytes));
    let now = |step: &Step| scale.height(timeline.resident_bytes().saturating_add(step.bytes()));
    stack(&mut chart, timeline, &named("arena, up to", arena_bytes), ARENA, now)?;
    for (name, height_bytes, bytes, color) in [
        ("overhead", timeline.resident_bytes(), overhead_bytes, OVERHEAD),
        ("KV", weights_bytes.saturating_add(kv_bytes), kv_bytes, KEYS),
        ("weights", weights_bytes, weights_bytes, WEIGHTS),
    ] {
        stack(&mut chart, timeline, &named(name, bytes), color, |_| scale.height(height_bytes))?;
    }
    scale.draw(&mut chart, timeline.steps.len() as f64)?;
    legend(&mut chart, SeriesLabelPosition::MiddleRight)
}

/// Values and scratch of the arena by themselves, and the step at which it is full.
fn arena(area: &Area<'_>, timeline: &Timeline) -> Result<(), String> {
    let scale = Scale::new(timeline.arena_bytes, None);
    let title = format!("the arena, step by step: {}", ByteSize::new(timeline.arena_bytes));
    // The axis goes on below the legend.
    let last = timeline.steps.len() as f64;
    // Room for the words at the peak.
    let mut chart = panel(area, title, timeline.steps.len(), 1.06 * scale.top)?;
    chart
        .configure_mesh()
        .x_desc("step")
        .y_desc(scale.unit())
        .x_label_formatter(&|x| if *x <= last { format!("{x:.0}") } else { String::new() })
        .y_label_formatter(&|height| scale.label(*height))
        .disable_x_mesh()
        .light_line_style(WHITE.mix(0.0))
        .draw()
        .map_err(text)?;
    stack(&mut chart, timeline, "scratch of kernels", SCRATCH, |step| scale.height(step.bytes()))?;
    stack(&mut chart, timeline, "values", ARENA, |step| scale.height(step.live_bytes))?;
    let reached = timeline.steps.iter().map(|step| (step.step as f64, scale.height(step.arena_bytes)));
    stroke(&mut chart, reached, "arena so far, with gaps", BLACK.mix(0.6).stroke_width(1))?;
    if let Some(step) = timeline.steps.get(timeline.peak_step) {
        let (x, y) = (step.step as f64 + 0.5, scale.height(timeline.arena_bytes));
        let title = format!("peak: step {}, {}", step.step, step.title());
        // Beside the mark, on the side that has more room.
        let shift =
            if x < timeline.steps.len() as f64 / 2.0 { 8 } else { -8 - 7 * i32::try_from(title.len()).unwrap_or(0) };
        let mark = EmptyElement::at((x, y))
            + Circle::new((0, 0), 5, RED.filled())
            + Text::new(title, (shift, -20), ("sans-serif", 14).into_font().color(&RED));
        chart.draw_series([mark]).map_err(text)?;
    }
    legend(&mut chart, SeriesLabelPosition::MiddleRight)
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
    fill(chart, edges, name, color)
}
