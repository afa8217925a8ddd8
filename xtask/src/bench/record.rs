//! What a bench keeps: every measurement in the order it was made, and the circumstances.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::machine::Machine;
use super::roofline::Peak;
use super::summary::{Row, rows};

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    TokensPerSecond,
    /// 10^9 multiply-adds per second.
    GigaMacsPerSecond,
    Seconds,
}

impl Unit {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::TokensPerSecond => "tokens/s",
            Self::GigaMacsPerSecond => "GMAC/s",
            Self::Seconds => "s",
        }
    }

    pub(super) fn more_is_better(self) -> bool {
        self != Self::Seconds
    }

    /// Places after the point that say something of `value`.
    pub(super) fn decimals(self, value: f64) -> usize {
        match self {
            Self::Seconds => 3,
            _ if value < 10.0 => 2,
            _ => 1,
        }
    }
}

/// One side at one point, once.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Measurement {
    /// Counted from 0.
    pub(super) round: usize,
    pub(super) point: Point,
    pub(super) seconds: f64,
    /// Tokens done.
    pub(super) tokens: f64,
    /// Multiply-adds done, where they can be counted.
    pub(super) macs: Option<f64>,
    /// Peak resident memory, or a kernel's workspace.
    pub(super) bytes: Option<u64>,
    /// What the side chose: routes, or the best of its settings.
    pub(super) detail: String,
}

/// What was measured, and by whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Point {
    /// The model, or the shape.
    pub(super) group: String,
    /// Tokens, rows or keys.
    pub(super) x: usize,
    pub(super) side: String,
    /// Whether the side is one of plimsoll's that peers are compared with.
    pub(super) ours: bool,
    /// The peak of the instruction that it lives on, by name.
    pub(super) own_peak: Option<String>,
}

impl Measurement {
    pub(super) fn value(&self, unit: Unit) -> f64 {
        match unit {
            Unit::TokensPerSecond => self.tokens / self.seconds,
            Unit::GigaMacsPerSecond => self.macs.unwrap_or(f64::NAN) / self.seconds / 1e9,
            Unit::Seconds => self.seconds,
        }
    }
}

/// All that one run of the chore found.
#[derive(Debug)]
pub(super) struct Record {
    /// The subcommand.
    pub(super) what: &'static str,
    pub(super) title: String,
    /// How it was measured, in a sentence or two.
    pub(super) method: String,
    pub(super) command: String,
    /// What [`Point::group`], [`Point::x`] and [`Point::side`] are.
    pub(super) group_name: &'static str,
    pub(super) x_name: &'static str,
    pub(super) side_name: &'static str,
    pub(super) bytes_name: &'static str,
    pub(super) unit: Unit,
    pub(super) threads: usize,
    /// In the order they were made.
    pub(super) measurements: Vec<Measurement>,
    /// Who or what was not measured, and why.
    pub(super) absent: Vec<String>,
    pub(super) peaks: Vec<Peak>,
    pub(super) load_before: String,
    pub(super) load_after: String,
}

impl Record {
    /// One line per measurement, in the order they were made.
    pub(super) fn csv(&self) -> String {
        let column = |name: &str| name.replace(' ', "_");
        let mut csv = format!(
            "round,{},{},{},seconds,tokens,macs,{}_bytes,detail\n",
            column(self.group_name),
            column(self.x_name),
            column(self.side_name),
            column(self.bytes_name),
        );
        for Measurement { round, point, seconds, tokens, macs, bytes, detail } in &self.measurements {
            let _ = writeln!(
                csv,
                "{},{},{},{},{seconds:.9},{tokens},{},{},{}",
                round + 1,
                quoted(&point.group),
                point.x,
                quoted(&point.side),
                macs.map_or_else(String::new, |macs| format!("{macs:.0}")),
                bytes.map_or_else(String::new, |bytes| bytes.to_string()),
                quoted(detail),
            );
        }
        csv
    }

    /// The summary and the circumstances, for programs.
    pub(super) fn json(&self, machine: &Machine) -> Value {
        let peaks: Vec<Value> = self
            .peaks
            .iter()
            .map(|peak| json!({ "name": peak.name, "macs_per_second": peak.macs_per_second }))
            .collect();
        let rows: Vec<Value> = rows(self).iter().map(|row| self.row_json(row)).collect();
        json!({
            "what": self.what,
            "title": self.title,
            "command": self.command,
            "unit": self.unit.name(),
            "threads": self.threads,
            "machine": {
                "name": machine.name,
                "cpu": machine.cpu,
                "instructions": machine.instructions,
                "cores": machine.cores,
                "memory_bytes": machine.memory_bytes,
                "system": machine.system,
            },
            "rustc": machine.rustc,
            "commit": machine.commit,
            "date": machine.date,
            "load_average": { "before": self.load_before, "after": self.load_after },
            "rows": rows,
            "peaks": peaks,
            "absent": self.absent,
        })
    }

    fn row_json(&self, row: &Row) -> Value {
        json!({
            self.group_name: row.point.group,
            self.x_name: row.point.x,
            self.side_name: row.point.side,
            "median": row.median,
            "min": row.min,
            "max": row.max,
            "spread": row.spread(),
            "runs": row.runs,
            format!("{}_bytes", self.bytes_name.replace(' ', "_")): row.bytes,
            "share_of_own_peak": row.share_of_own,
            "share_of_bf16_peak": row.share_of_bf16,
            "own_peak": row.point.own_peak,
            "detail": row.detail,
        })
    }
}

/// A field as CSV wants it.
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field.to_owned() }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A measurement of 100 tokens.
    pub(crate) fn measurement(round: usize, side: &str, ours: bool, x: usize, seconds: f64) -> Measurement {
        let own_peak = ours.then(|| "avx2-f32".to_owned());
        let point = Point { group: "model".to_owned(), x, side: side.to_owned(), ours, own_peak };
        Measurement { round, point, seconds, tokens: 100.0, macs: None, bytes: None, detail: String::new() }
    }

    pub(crate) fn record(measurements: Vec<Measurement>) -> Record {
        Record {
            what: "prefill",
            title: "Title".to_owned(),
            method: "Method.".to_owned(),
            command: "cargo xtask bench prefill".to_owned(),
            group_name: "model",
            x_name: "tokens",
            side_name: "side",
            bytes_name: "peak resident",
            unit: Unit::TokensPerSecond,
            threads: 2,
            measurements,
            absent: Vec::new(),
            peaks: Vec::new(),
            load_before: "0.1".to_owned(),
            load_after: "0.2".to_owned(),
        }
    }

    #[test]
    fn the_table_of_numbers_keeps_the_order_of_the_runs() {
        let mut second = measurement(1, "plimsoll, KV f32", true, 512, 0.5);
        second.bytes = Some(4096);
        second.detail = "a \"b\"".to_owned();
        let csv = record(vec![measurement(0, "peer", false, 512, 2.0), second]).csv();
        let want = "round,model,tokens,side,seconds,tokens,macs,peak_resident_bytes,detail\n\
            1,model,512,peer,2.000000000,100,,,\n2,model,512,\"plimsoll, KV f32\",0.500000000,100,,4096,\"a \"\"b\"\"\"\n";
        assert_eq!(csv, want);
    }

    #[test]
    fn programs_find_medians_and_circumstances() {
        let mut record = record(vec![measurement(0, "plimsoll", true, 512, 0.5)]);
        record.absent.push("torch: no python3".to_owned());
        let json = record.json(&Machine::read(Some("mine")));
        assert_eq!(json["rows"][0]["median"], 200.0);
        assert_eq!(json["rows"][0]["tokens"], 512);
        assert_eq!(json["machine"]["name"], "mine");
        assert_eq!(json["absent"][0], "torch: no python3");
        assert_eq!(json["load_average"]["after"], "0.2");
    }
}
