//! Plots of a record: one panel per group, a line per side where there are three points or more, else bars.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::markdown::thousands;
use super::record::{Record, Unit};
use super::summary::{Row, rows};

/// Okabe and Ito's colours, which everybody can tell apart.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(128, 128, 128),
];

const PANEL_WIDTH: u32 = 640;
const LINES_HEIGHT: u32 = 380;
/// Of a line of text, a bar, or an entry of the legend.
const ENTRY_HEIGHT: u32 = 22;
/// Panels beside each other.
const COLUMNS: usize = 2;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// One group of a record.
struct Panel {
    title: String,
    y_name: String,
    x_name: &'static str,
    /// A side and its points, ascending.
    lines: Vec<(String, Vec<(f64, f64)>)>,
    /// Of the numbers beside lines and bars.
    unit: Unit,
}

/// Every plot of a record, as (what to add to the file's stem, SVG).
pub(super) fn all(record: &Record) -> Result<Vec<(&'static str, String)>> {
    let rows = rows(record);
    let mut plots = Vec::new();
    let unit = record.unit;
    let speed = panels(record, &rows, unit.name().to_owned(), unit, |row| Some(row.median));
    if !speed.is_empty() {
        plots.push(("", draw(&speed)?));
    }
    let mib = |row: &Row| row.bytes.map(mib);
    let memory = panels(record, &rows, format!("{}, MiB", record.bytes_name), Unit::TokensPerSecond, mib);
    // Workspaces of kernels are in the table; whole programs' memory is worth a look.
    if !memory.is_empty() && record.bytes_name.contains("resident") {
        plots.push(("-memory", draw(&memory)?));
    }
    Ok(plots)
}

#[expect(clippy::cast_precision_loss, reason = "memory is far below 2^53 bytes")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1u32 << 20)
}

#[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^53")]
fn panels(
    record: &Record,
    rows: &[Row],
    y_name: String,
    unit: Unit,
    value: impl Fn(&Row) -> Option<f64>,
) -> Vec<Panel> {
    let mut panels: Vec<Panel> = Vec::new();
    for row in rows {
        let Some(y) = value(row).filter(|y| y.is_finite() && *y > 0.0) else { continue };
        let title = &row.point.group;
        if panels.last().is_none_or(|panel| panel.title != *title) {
            let (title, y_name) = (title.clone(), y_name.clone());
            panels.push(Panel { title, y_name, x_name: record.x_name, lines: Vec::new(), unit });
        }
        let Some(panel) = panels.last_mut() else { continue };
        let point = (row.point.x as f64, y);
        match panel.lines.iter_mut().find(|(side, _)| *side == row.point.side) {
            Some((_, points)) => points.push(point),
            None => panel.lines.push((row.point.side.clone(), vec![point])),
        }
    }
    panels
}

impl Panel {
    fn has_lines(&self) -> bool {
        self.lines.iter().any(|(_, points)| points.len() > 2)
    }

    fn bars(&self) -> u32 {
        u32::try_from(self.lines.iter().map(|(_, points)| points.len()).sum::<usize>()).unwrap_or(u32::MAX)
    }

    fn height(&self) -> u32 {
        let sides = u32::try_from(self.lines.len()).unwrap_or(u32::MAX);
        if self.has_lines() { LINES_HEIGHT + ENTRY_HEIGHT * sides } else { 60 + ENTRY_HEIGHT * self.bars() }
    }
}

fn draw(panels: &[Panel]) -> Result<String> {
    let columns = panels.len().min(COLUMNS);
    let height: u32 = panels.chunks(columns).map(|row| row.iter().map(Panel::height).max().unwrap_or(0)).sum();
    let width = PANEL_WIDTH * u32::try_from(columns)?;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let mut rest = root;
        for row in panels.chunks(columns) {
            let row_height = row.iter().map(Panel::height).max().unwrap_or(0);
            let (areas, below) = rest.split_vertically(row_height);
            for (panel, area) in row.iter().zip(areas.split_evenly((1, columns))) {
                if panel.has_lines() { lines(panel, &area)? } else { bars(panel, &area)? }
            }
            rest = below;
        }
        rest.present().map_err(failed)?;
    }
    Ok(svg)
}

/// plotters' errors carry the backend's type; only their words are of use.
fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}

/// Lengths in powers of two, and values from zero on, so that heights compare as the numbers do.
fn lines(panel: &Panel, area: &Area<'_>) -> Result<()> {
    let (chart_area, legend) = area.split_vertically(LINES_HEIGHT);
    let points = || panel.lines.iter().flat_map(|(_, points)| points);
    let (x_low, x_high) =
        points().fold((f64::INFINITY, 0.0f64), |(low, high), point| (low.min(point.0), high.max(point.0)));
    let y_high = points().map(|point| point.1).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(&chart_area)
        .caption(&panel.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d((x_low / 1.15..x_high * 1.15).log_scale().base(2.0), 0.0..y_high * 1.08)
        .map_err(failed)?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "token counts")]
    chart
        .configure_mesh()
        .x_desc(panel.x_name)
        .y_desc(&panel.y_name)
        .x_label_formatter(&|x| thousands(x.round() as usize))
        .y_label_formatter(&|y| if *y < 10.0 { format!("{y:.1}") } else { thousands(y.round() as usize) })
        .light_line_style(TRANSPARENT)
        .axis_desc_style(("sans-serif", 14))
        .label_style(("sans-serif", 13))
        .draw()
        .map_err(failed)?;
    for ((_, points), colour) in panel.lines.iter().zip(COLOURS.iter().cycle()) {
        chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2))).map_err(failed)?;
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 4, colour.filled()))).map_err(failed)?;
    }
    for ((index, (side, points)), colour) in (0i32..).zip(&panel.lines).zip(COLOURS.iter().cycle()) {
        let y = index * i32::try_from(ENTRY_HEIGHT)?;
        legend.draw(&Rectangle::new([(84, y), (98, y + 14)], colour.filled())).map_err(failed)?;
        let last = points.last().map_or(0.0, |point| point.1);
        let (decimals, end) = (panel.unit.decimals(last), points.last().map_or(0.0, |point| point.0));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "token counts")]
        let text = format!("{side}: {last:.decimals$} at {}", thousands(end as usize));
        legend.draw(&Text::new(text, (106, y), ("sans-serif", 14))).map_err(failed)?;
    }
    Ok(())
}

/// Horizontal bars from zero, each with its number.
fn bars(panel: &Panel, area: &Area<'_>) -> Result<()> {
    const LEFT: i32 = 250;
    const ROOM: f64 = 290.0;
    let title = format!("{}, {}", panel.title, panel.y_name);
    area.draw(&Text::new(title, (16, 14), ("sans-serif", 18))).map_err(failed)?;
    let mut xs: Vec<f64> = panel.lines.iter().flat_map(|(_, points)| points.iter().map(|point| point.0)).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let longest = panel.lines.iter().flat_map(|(_, points)| points).map(|point| point.1).fold(0.0, f64::max);
    let right = ("sans-serif", 13).into_text_style(area).pos(Pos::new(HPos::Right, VPos::Center));
    let left = right.pos(Pos::new(HPos::Left, VPos::Center));
    let mut y = 48;
    for x in &xs {
        for ((side, points), colour) in panel.lines.iter().zip(COLOURS.iter().cycle()) {
            let Some((_, value)) = points.iter().find(|point| point.0 == *x) else { continue };
            #[expect(clippy::cast_possible_truncation, reason = "at most ROOM")]
            let end = LEFT + (ROOM * value / longest).round() as i32;
            area.draw(&Rectangle::new([(LEFT, y), (end, y + 16)], colour.filled())).map_err(failed)?;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "token counts")]
            let name = if xs.len() > 1 { format!("{side} at {}", thousands(*x as usize)) } else { side.clone() };
            area.draw(&Text::new(name, (LEFT - 8, y + 8), right.clone())).map_err(failed)?;
            let decimals = panel.unit.decimals(*value);
            area.draw(&Text::new(format!("{value:.decimals$}"), (end + 8, y + 8), left.clone())).map_err(failed)?;
            y += i32::try_from(ENTRY_HEIGHT)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::{measurement, record};
    use super::*;

    #[test]
    fn three_points_make_lines_and_fewer_make_bars() {
        let lines: Vec<_> = [512, 2048, 8192].map(|x| measurement(0, "plimsoll", true, x, 0.5)).to_vec();
        let svg = &all(&record(lines)).unwrap()[0].1;
        assert!(
            svg.contains("<polyline") && svg.contains("8,192") && svg.contains("plimsoll: 200.0 at 8,192"),
            "{svg}"
        );
        let svg = &all(&record(vec![measurement(0, "plimsoll", true, 16, 0.5)])).unwrap()[0].1;
        assert!(!svg.contains("<circle") && svg.contains("plimsoll") && svg.contains("200.0"), "{svg}");
    }

    #[test]
    fn memory_is_drawn_where_it_was_seen() {
        let mut measurements = vec![measurement(0, "plimsoll", true, 16, 0.5)];
        assert_eq!(all(&record(measurements.clone())).unwrap().len(), 1);
        measurements[0].bytes = Some(7 << 20);
        let plots = all(&record(measurements)).unwrap();
        assert_eq!(plots[1].0, "-memory");
        assert!(plots[1].1.contains("7.0"), "{}", plots[1].1);
        // Nothing measured, nothing drawn.
        assert!(all(&record(Vec::new())).unwrap().is_empty());
    }
}
