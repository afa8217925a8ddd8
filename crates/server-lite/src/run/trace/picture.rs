//! The memory timeline as a picture: what was planned, layer upon layer, what was measured over it, and the line that neither may pass.

use super::{Reserved, Row};
use crate::picture::{ARENA, Area, KEYS, OVERHEAD, Scale, WEIGHTS, fill, legend, stroke, svg, text};
use plotters::prelude::*;

const SIZE: (u32, u32) = (1000, 520);

/// The measured curve has one point for each of these parts of the width: the highest of its samples.
const PARTS: usize = 900;

const MEASURED: RGBColor = RGBColor(200, 30, 40);

/// Draws the rows of a run, as SVG.
pub(super) fn draw(rows: &[Row<'_>], reserved: Reserved) -> Result<String, String> {
    svg(SIZE, |area| draw_into(area, rows, reserved))
}

fn draw_into(area: &Area<'_>, rows: &[Row<'_>], reserved: Reserved) -> Result<(), String> {
    let measured_highest = rows.iter().filter_map(|row| row.sample.footprint_bytes).max();
    let planned_highest = rows.iter().map(|row| row.planned_peak_bytes).max();
    let scale = Scale::new(planned_highest.max(measured_highest).unwrap_or(0), reserved.budget_bytes);
    let tokens = rows.last().map_or(1, |row| row.dims.kv_len) as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(format!("memory of the prefill{}", scale.title()), ("sans-serif", 22))
        .margin(14)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..tokens, 0.0..scale.top)
        .map_err(text)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_desc("tokens of the prompt")
        .y_desc(scale.unit())
        .x_label_formatter(&|tokens| format!("{tokens:.0}"))
        .y_label_formatter(&|height| scale.label(*height))
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 15))
        .light_line_style(WHITE.mix(0.0))
        .draw()
        .map_err(text)?;

    // The highest layer first: each one after it covers what is below.
    type Height = fn(&Row<'_>, &Reserved) -> u64;
    let layers: [(&str, RGBColor, Height); 4] = [
        ("planned: arena of the chunk", ARENA, |row, reserved| {
            reserved.weights_bytes + reserved.overhead_bytes + row.kv_bytes + row.arena_bytes
        }),
        ("planned: keys and values so far", KEYS, |row, reserved| {
            reserved.weights_bytes + reserved.overhead_bytes + row.kv_bytes
        }),
        ("planned: overhead", OVERHEAD, |_, reserved| reserved.weights_bytes + reserved.overhead_bytes),
        ("planned: weights", WEIGHTS, |_, reserved| reserved.weights_bytes),
    ];
    for (name, color, height) in layers {
        let points = passes(rows).flat_map(|(first, row)| {
            let height = scale.height(height(row, &reserved));
            [(first, height), (row.dims.kv_len as f64, height)]
        });
        fill(&mut chart, points, name, color)?;
    }
    stroke(&mut chart, measured(rows, tokens, &scale), "measured footprint", MEASURED.stroke_width(2))?;
    scale.draw(&mut chart, tokens)?;
    legend(&mut chart, SeriesLabelPosition::LowerRight)
}

/// Each pass once: its first position and its first row.
fn passes<'r>(rows: &'r [Row<'r>]) -> impl Iterator<Item = (f64, &'r Row<'r>)> {
    let firsts = rows.iter().enumerate().filter(|(at, row)| *at == 0 || rows[at - 1].sample.pass != row.sample.pass);
    firsts.map(|(_, row)| ((row.dims.kv_len - row.dims.rows) as f64, row))
}

/// The measured curve: a step's place in its pass is as far into the chunk.
fn measured(rows: &[Row<'_>], tokens: f64, scale: &Scale) -> Vec<(f64, f64)> {
    let mut steps = vec![0; rows.last().map_or(0, |row| row.sample.pass + 1)];
    rows.iter().for_each(|row| steps[row.sample.pass] += 1);
    let mut points: Vec<(f64, f64)> = Vec::new();
    let mut part = usize::MAX;
    for row in rows {
        let Some(bytes) = row.sample.footprint_bytes else { continue };
        let done = (row.sample.step + 1) as f64 / f64::from(steps[row.sample.pass]);
        let x = (row.dims.kv_len - row.dims.rows) as f64 + done * row.dims.rows as f64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of the width")]
        let at = (x / tokens * PARTS as f64) as usize;
        match points.last_mut() {
            Some(last) if at == part => last.1 = last.1.max(scale.height(bytes)),
            _ => points.push((x, scale.height(bytes))),
        }
        part = at;
    }
    points
}
