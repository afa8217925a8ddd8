//! The memory timeline as a picture: what was planned, layer upon layer, what was measured over it, and the line that neither may pass.

use super::{Memory, Row};
use plotters::prelude::*;
use std::fmt::Display;

const SIZE: (u32, u32) = (1000, 520);

/// The measured curve has one point for each of these parts of the width: the highest of its samples.
const PARTS: usize = 900;

const WEIGHTS: RGBColor = RGBColor(158, 173, 189);
const OVERHEAD: RGBColor = RGBColor(199, 207, 216);
const KEYS: RGBColor = RGBColor(120, 178, 124);
const ARENA: RGBColor = RGBColor(240, 190, 110);
const MEASURED: RGBColor = RGBColor(200, 30, 40);

/// Draws the rows of a run, as SVG.
pub(super) fn draw(rows: &[Row<'_>], memory: Memory) -> Result<String, String> {
    let measured_highest = rows.iter().filter_map(|row| row.sample.footprint_bytes).max();
    let planned_highest = rows.iter().map(|row| row.planned_peak_bytes).max();
    let highest = mib(planned_highest.max(measured_highest).unwrap_or(1));
    // A budget far above everything would flatten the picture: it is then named, not drawn.
    let line = memory.budget_bytes.map(mib).filter(|&budget| budget <= 3.0 * highest);
    let top = 1.10 * line.unwrap_or(0.0).max(highest);
    let tokens = rows.last().map_or(1, |row| row.dims.kv_len) as f64;

    // In memory first: the library's own file is written when it is dropped, where nobody learns of a full device.
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(text)?;
    let title = match memory.budget_bytes {
        Some(bytes) => format!("memory of the prefill, budget {:.0} MiB", mib(bytes)),
        None => "memory of the prefill".to_owned(),
    };
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 22))
        .margin(14)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..tokens, 0.0..top)
        .map_err(text)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_desc("tokens of the prompt")
        .y_desc("MiB")
        .x_label_formatter(&|tokens| format!("{tokens:.0}"))
        .y_label_formatter(&|mib| format!("{mib:.0}"))
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 15))
        .light_line_style(WHITE.mix(0.0))
        .draw()
        .map_err(text)?;

    // The highest layer first: each one after it covers what is below.
    type Height = fn(&Row<'_>, &Memory) -> u64;
    let layers: [(&str, RGBColor, Height); 4] = [
        ("planned: arena of the chunk", ARENA, |row, memory| {
            memory.weights_bytes + memory.overhead_bytes + row.kv_bytes + row.arena_bytes
        }),
        ("planned: keys and values so far", KEYS, |row, memory| {
            memory.weights_bytes + memory.overhead_bytes + row.kv_bytes
        }),
        ("planned: overhead", OVERHEAD, |_, memory| memory.weights_bytes + memory.overhead_bytes),
        ("planned: weights", WEIGHTS, |_, memory| memory.weights_bytes),
    ];
    for (name, color, height) in layers {
        let points = passes(rows).flat_map(|(first, row)| {
            let height = mib(height(row, &memory));
            [(first, height), (row.dims.kv_len as f64, height)]
        });
        chart
            .draw_series(AreaSeries::new(points, 0.0, color).border_style(color.stroke_width(1)))
            .map_err(text)?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 18, y + 5)], color.filled()));
    }
    chart
        .draw_series(LineSeries::new(measured(rows, tokens), MEASURED.stroke_width(2)))
        .map_err(text)?
        .label("measured footprint")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], MEASURED.stroke_width(2)));
    if let Some(budget) = line {
        chart
            .draw_series(LineSeries::new([(0.0, budget), (tokens, budget)], BLACK.stroke_width(3)))
            .map_err(text)?
            .label("budget: the load line")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], BLACK.stroke_width(3)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .label_font(("sans-serif", 14))
        .background_style(WHITE.mix(0.88))
        .border_style(BLACK.mix(0.4))
        .draw()
        .map_err(text)?;
    area.present().map_err(text)?;
    // Both hold the text until they are dropped.
    drop(chart);
    drop(area);
    Ok(svg)
}

/// Each pass once: its first position and its first row.
fn passes<'r>(rows: &'r [Row<'r>]) -> impl Iterator<Item = (f64, &'r Row<'r>)> {
    let firsts = rows.iter().enumerate().filter(|(at, row)| *at == 0 || rows[at - 1].sample.pass != row.sample.pass);
    firsts.map(|(_, row)| ((row.dims.kv_len - row.dims.rows) as f64, row))
}

/// The measured curve: a step's place in its pass is as far into the chunk.
fn measured(rows: &[Row<'_>], tokens: f64) -> Vec<(f64, f64)> {
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
            Some(last) if at == part => last.1 = last.1.max(mib(bytes)),
            _ => points.push((x, mib(bytes))),
        }
        part = at;
    }
    points
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / 1_048_576.0
}

fn text(error: impl Display) -> String {
    error.to_string()
}
