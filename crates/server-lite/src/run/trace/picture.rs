//! The memory timeline as a picture: what was planned, layer upon layer, what was measured over it, and the line that neither may pass.

use super::{Pass, Planned, Reserved};
use crate::picture::{ARENA, Area, KEYS, OVERHEAD, Scale, WEIGHTS, fill, legend, stroke, svg, text};
use plotters::prelude::*;

const SIZE: (u32, u32) = (1000, 520);

/// The curves have at most about one point for each of these parts of the width: the highest of what is in it.
const PARTS: usize = 900;

const MEASURED: RGBColor = RGBColor(200, 30, 40);

/// What is drawn of a prompt, however many steps it had.
#[derive(Debug)]
pub(super) struct Curves {
    tokens: usize,
    /// From which to which token, and how much for keys and values and for the arena: the highest of the passes that begin in one part.
    stretches: Vec<Stretch>,
    /// Tokens done, and bytes.
    measured: Vec<(f64, u64)>,
}

#[derive(Debug)]
struct Stretch {
    start: usize,
    end: usize,
    kv_bytes: u64,
    arena_bytes: u64,
}

impl Curves {
    /// Of `tokens` tokens, without a pass yet.
    pub(super) fn new(tokens: usize) -> Self {
        Self { tokens: tokens.max(1), stretches: Vec::new(), measured: Vec::new() }
    }

    /// The part of the width in which a place in the prompt lies.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of the width")]
    fn part(&self, tokens: f64) -> usize {
        (tokens / self.tokens as f64 * PARTS as f64) as usize
    }

    /// The next pass. A step's place in it is as far into the chunk.
    pub(super) fn add(&mut self, pass: &Pass, planned: &Planned) {
        let Planned { kv_bytes, arena_bytes } = *planned;
        let (start, end) = (pass.dims.kv_len - pass.dims.rows, pass.dims.kv_len);
        let part = self.part(start as f64);
        let last = self.stretches.last().map(|last| self.part(last.start as f64));
        match self.stretches.last_mut() {
            Some(stretch) if last == Some(part) => {
                stretch.end = end;
                stretch.kv_bytes = stretch.kv_bytes.max(kv_bytes);
                stretch.arena_bytes = stretch.arena_bytes.max(arena_bytes);
            }
            _ => self.stretches.push(Stretch { start, end, kv_bytes, arena_bytes }),
        }
        let steps = pass.footprints.len() as f64;
        for (step, footprint) in pass.footprints.iter().enumerate() {
            let Some(bytes) = *footprint else { continue };
            let x = start as f64 + (step + 1) as f64 / steps * pass.dims.rows as f64;
            let is_same = self.measured.last().is_some_and(|&(last, _)| self.part(last) == self.part(x));
            match self.measured.last_mut() {
                Some(last) if is_same => last.1 = last.1.max(bytes),
                _ => self.measured.push((x, bytes)),
            }
        }
    }
}

/// Draws the curves of a run, as SVG.
pub(super) fn draw(curves: &Curves, reserved: Reserved) -> Result<String, String> {
    svg(SIZE, |area| draw_into(area, curves, reserved))
}

fn draw_into(area: &Area<'_>, curves: &Curves, reserved: Reserved) -> Result<(), String> {
    let held_bytes = reserved.held_bytes();
    let measured_highest = curves.measured.iter().map(|&(_, bytes)| bytes).max();
    let planned_highest =
        curves.stretches.iter().map(|stretch| held_bytes + stretch.kv_bytes + stretch.arena_bytes).max();
    let scale = Scale::new(planned_highest.max(measured_highest).unwrap_or(0), reserved.budget_bytes);
    let tokens = curves.tokens as f64;
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
    type Height = fn(&Stretch, &Reserved) -> u64;
    let layers: [(&str, RGBColor, Height); 4] = [
        ("planned: arena of the chunk", ARENA, |stretch, reserved| {
            reserved.held_bytes() + stretch.kv_bytes + stretch.arena_bytes
        }),
        ("planned: keys and values so far", KEYS, |stretch, reserved| reserved.held_bytes() + stretch.kv_bytes),
        ("planned: overhead", OVERHEAD, |_, reserved| reserved.held_bytes()),
        ("planned: weights", WEIGHTS, |_, reserved| reserved.weights_bytes),
    ];
    for (name, color, height) in layers {
        let points = curves.stretches.iter().flat_map(|stretch| {
            let height = scale.height(height(stretch, &reserved));
            [(stretch.start as f64, height), (stretch.end as f64, height)]
        });
        fill(&mut chart, points, name, color)?;
    }
    let measured = curves.measured.iter().map(|&(x, bytes)| (x, scale.height(bytes)));
    stroke(&mut chart, measured, "measured footprint", MEASURED.stroke_width(2))?;
    scale.draw(&mut chart, tokens)?;
    legend(&mut chart, SeriesLabelPosition::LowerRight)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_program::Dims;

    #[test]
    fn curves_of_many_passes_have_points_for_the_width_and_keep_the_highest() {
        const TOKENS: usize = 10_000;
        let mut curves = Curves::new(TOKENS);
        for number in 0..TOKENS {
            let bytes = if number == 1_234 { 9_999_999 } else { number as u64 };
            let dims = Dims { rows: 1, logit_rows: 0, kv_len: number + 1 };
            let pass = Pass { number, dims, footprints: vec![Some(1), Some(bytes), None] };
            curves.add(&pass, &Planned { kv_bytes: bytes, arena_bytes: 7 });
        }
        assert!((PARTS..=PARTS + 1).contains(&curves.stretches.len()), "{}", curves.stretches.len());
        assert!((PARTS..=PARTS + 1).contains(&curves.measured.len()), "{}", curves.measured.len());
        assert_eq!(curves.measured.iter().map(|point| point.1).max(), Some(9_999_999));
        assert_eq!(curves.stretches.iter().map(|stretch| stretch.kv_bytes).max(), Some(9_999_999));
        assert!(curves.stretches.windows(2).all(|pair| pair[0].end == pair[1].start));
    }
}
