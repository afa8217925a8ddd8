//! Measurements of the same thing drawn together: median, spread, memory, and shares of the machine's peak.

use super::record::{Point, Record, Unit};
use super::roofline;

/// One side at one point, over all rounds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) point: Point,
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) runs: usize,
    /// The most of any run.
    pub(super) bytes: Option<u64>,
    /// Of the peak of the instruction it lives on, from 0 to 1.
    pub(super) share_of_own: Option<f64>,
    /// Of the machine's peak in bf16.
    pub(super) share_of_bf16: Option<f64>,
    pub(super) detail: String,
}

impl Row {
    /// Largest minus smallest, as a part of the median.
    pub(super) fn spread(&self) -> f64 {
        (self.max - self.min) / self.median
    }

    /// How many times as good this is as `other`.
    pub(super) fn times(&self, other: &Self, unit: Unit) -> f64 {
        if unit.more_is_better() { self.median / other.median } else { other.median / self.median }
    }
}

/// One row per side and point: groups and sides in the order of their first appearance, the points of a group ascending.
pub(super) fn rows(record: &Record) -> Vec<Row> {
    let mut groups: Vec<&str> = Vec::new();
    let mut sides: Vec<&str> = Vec::new();
    let mut points: Vec<&Point> = Vec::new();
    for measurement in &record.measurements {
        let point = &measurement.point;
        if !groups.contains(&point.group.as_str()) {
            groups.push(&point.group);
        }
        if !sides.contains(&point.side.as_str()) {
            sides.push(&point.side);
        }
        if !points.contains(&point) {
            points.push(point);
        }
    }
    let place = |all: &[&str], name: &str| all.iter().position(|known| *known == name);
    points.sort_by_key(|point| (place(&groups, &point.group), point.x, place(&sides, &point.side)));
    points.into_iter().map(|point| row(record, point)).collect()
}

fn row(record: &Record, point: &Point) -> Row {
    let of_point: Vec<_> = record.measurements.iter().filter(|measurement| measurement.point == *point).collect();
    let mut values: Vec<f64> = of_point.iter().map(|measurement| measurement.value(record.unit)).collect();
    values.sort_by(f64::total_cmp);
    // The rate of work is compared with the peak, whatever the table shows.
    let mut rates: Vec<f64> = of_point.iter().filter_map(|m| m.macs.map(|macs| macs / m.seconds)).collect();
    rates.sort_by(f64::total_cmp);
    let share = |name: Option<&str>| {
        let peak = record.peaks.iter().find(|peak| Some(peak.name.as_str()) == name)?;
        (!rates.is_empty()).then(|| median(&rates) / peak.macs_per_second)
    };
    // In the last round a side has settled on the best of its settings.
    let detail = of_point.last().map(|measurement| measurement.detail.clone()).unwrap_or_default();
    Row {
        point: point.clone(),
        median: median(&values),
        min: values.first().copied().unwrap_or(f64::NAN),
        max: values.last().copied().unwrap_or(f64::NAN),
        runs: values.len(),
        bytes: of_point.iter().filter_map(|measurement| measurement.bytes).max(),
        share_of_own: share(point.own_peak.as_deref()),
        share_of_bf16: share(roofline::bf16(&record.peaks)),
        detail,
    }
}

/// The middle one of sorted values, or the mean of the two in the middle; NaN of none.
pub(super) fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => f64::NAN,
        count => (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::{measurement, record};
    use super::super::roofline::Peak;
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_the_two_in_the_middle() {
        assert_eq!(median(&[1.0, 2.0, 9.0]), 2.0);
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), 3.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn rows_keep_the_order_of_sides_and_sort_the_points() {
        let measurements = vec![
            measurement(0, "plimsoll", true, 2048, 1.0),
            measurement(0, "peer", false, 2048, 4.0),
            measurement(0, "plimsoll", true, 512, 0.5),
            measurement(0, "peer", false, 512, 1.0),
            // Who goes first changes with every round.
            measurement(1, "peer", false, 2048, 2.0),
            measurement(1, "plimsoll", true, 2048, 1.0),
        ];
        let rows = rows(&record(measurements));
        let shown: Vec<_> =
            rows.iter().map(|row| (row.point.x, row.point.side.as_str(), row.median, row.runs)).collect();
        let want = [
            (512, "plimsoll", 200.0, 1),
            (512, "peer", 100.0, 1),
            (2048, "plimsoll", 100.0, 2),
            (2048, "peer", 37.5, 2),
        ];
        assert_eq!(shown, want);
        assert_eq!((rows[3].min, rows[3].max), (25.0, 50.0));
        assert!((rows[3].spread() - 25.0 / 37.5).abs() < 1e-12);
    }

    #[test]
    fn times_say_how_much_better_in_either_unit() {
        let rows =
            rows(&record(vec![measurement(0, "plimsoll", true, 512, 0.5), measurement(0, "peer", false, 512, 2.0)]));
        assert_eq!(rows[0].times(&rows[1], Unit::TokensPerSecond), 4.0);
        // The same numbers as seconds: less is better.
        assert_eq!(rows[0].times(&rows[1], Unit::Seconds), 0.25);
    }

    #[test]
    fn memory_is_the_most_of_any_run_and_shares_are_of_the_named_peak() {
        let mut measurements =
            vec![measurement(0, "plimsoll", true, 512, 0.5), measurement(1, "plimsoll", true, 512, 1.0)];
        measurements[0].bytes = Some(10);
        measurements[1].bytes = Some(7);
        for measurement in &mut measurements {
            measurement.macs = Some(3e9);
        }
        let mut record = record(measurements);
        let peak = |name: &str, macs_per_second| Peak { name: name.to_owned(), macs_per_second };
        record.peaks = vec![peak("avx2-f32", 9e9), peak("avx512-bf16", 45e9)];
        let row = &rows(&record)[0];
        assert_eq!(row.bytes, Some(10));
        // 6 and 3 GMAC/s.
        assert_eq!((row.share_of_own, row.share_of_bf16), (Some(0.5), Some(0.1)));
    }
}
