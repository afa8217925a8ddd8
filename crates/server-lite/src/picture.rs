//! What the pictures of memory have in common: colors, areas and lines with what they mean, and the load line.

use plimsoll_memguard::ByteSize;
use plotters::{
    coord::{Shift, types::RangedCoordf64},
    prelude::*,
};
use std::fmt::Display;

pub(crate) const WEIGHTS: RGBColor = RGBColor(158, 173, 189);
pub(crate) const OVERHEAD: RGBColor = RGBColor(199, 207, 216);
pub(crate) const KEYS: RGBColor = RGBColor(120, 178, 124);
pub(crate) const ARENA: RGBColor = RGBColor(240, 190, 110);

/// A budget this many times what is taken would flatten everything else: it is named instead of drawn.
const FAR: f64 = 3.0;

/// How far above the highest value a picture goes.
const ROOM: f64 = 1.12;

/// Units of an axis: the first of which the height is at least two.
const UNITS: [(&str, f64); 3] = [("GiB", 1_073_741_824.0), ("MiB", 1_048_576.0), ("KiB", 1_024.0)];

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// A picture of this size, as SVG. In memory: the library's own file is written when it is dropped, where nobody learns of a full device.
pub(crate) fn svg(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Result<(), String>) -> Result<String, String> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    area.fill(&WHITE).map_err(text)?;
    draw(&area)?;
    area.present().map_err(text)?;
    // It holds the text until it is dropped.
    drop(area);
    Ok(svg)
}

/// Bytes against a budget: in which unit they are drawn, how high the picture goes, and where the load line is.
pub(crate) struct Scale {
    unit: (&'static str, f64),
    budget_bytes: Option<u64>,
    line: Option<f64>,
    pub(crate) top: f64,
}

impl Scale {
    /// `highest_bytes`: the most that is drawn.
    pub(crate) fn new(highest_bytes: u64, budget_bytes: Option<u64>) -> Self {
        let highest = highest_bytes.max(1) as f64;
        let line = budget_bytes.map(|bytes| bytes as f64).filter(|&budget| budget <= FAR * highest);
        let top = ROOM * line.unwrap_or(0.0).max(highest);
        let unit = UNITS.into_iter().find(|&(_, bytes)| top >= 2.0 * bytes).unwrap_or(("bytes", 1.0));
        Self { unit, budget_bytes, line: line.map(|line| line / unit.1), top: top / unit.1 }
    }

    /// The unit's name.
    pub(crate) fn unit(&self) -> &'static str {
        self.unit.0
    }

    /// Where so many bytes are drawn.
    pub(crate) fn height(&self, bytes: u64) -> f64 {
        bytes as f64 / self.unit.1
    }

    /// A number beside the axis: ticks are at most a tenth of the height apart.
    pub(crate) fn label(&self, height: f64) -> String {
        let decimals = if self.top >= 20.0 { 0 } else { 1 };
        format!("{height:.decimals$}")
    }

    /// The budget at the end of a title.
    pub(crate) fn title(&self) -> String {
        self.budget_bytes.map_or_else(String::new, |bytes| format!(", budget {}", ByteSize::new(bytes)))
    }

    /// Draws the load line from 0 to `end`, if it is near enough.
    pub(crate) fn draw<'a, 'b: 'a>(&self, chart: &mut Chart<'a, 'b>, end: f64) -> Result<(), String> {
        let (Some(line), Some(bytes)) = (self.line, self.budget_bytes) else { return Ok(()) };
        let name = format!("load line: {}", ByteSize::new(bytes));
        stroke(chart, [(0.0, line), (end, line)], &name, BLACK.stroke_width(3))
    }
}

/// A filled area below the points.
pub(crate) fn fill<'a, 'b: 'a>(
    chart: &mut Chart<'a, 'b>,
    points: impl IntoIterator<Item = (f64, f64)>,
    name: &str,
    color: RGBColor,
) -> Result<(), String> {
    chart
        .draw_series(AreaSeries::new(points, 0.0, color.filled()).border_style(color.stroke_width(1)))
        .map_err(text)?
        .label(name)
        .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 18, y + 5)], color.filled()));
    Ok(())
}

/// A line through the points.
pub(crate) fn stroke<'a, 'b: 'a>(
    chart: &mut Chart<'a, 'b>,
    points: impl IntoIterator<Item = (f64, f64)>,
    name: &str,
    style: ShapeStyle,
) -> Result<(), String> {
    chart
        .draw_series(LineSeries::new(points, style))
        .map_err(text)?
        .label(name)
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    Ok(())
}

/// What the colors mean.
pub(crate) fn legend<'a, 'b: 'a>(chart: &mut Chart<'a, 'b>, position: SeriesLabelPosition) -> Result<(), String> {
    chart
        .configure_series_labels()
        .position(position)
        .label_font(("sans-serif", 14))
        .background_style(WHITE.mix(0.88))
        .border_style(BLACK.mix(0.4))
        .draw()
        .map_err(text)
}

/// The library's error as text.
pub(crate) fn text(error: impl Display) -> String {
    error.to_string()
}
