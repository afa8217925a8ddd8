//! A record as people read it.

use std::fmt::Write as _;

use super::machine::Machine;
use super::record::{Record, Unit};
use super::summary::{Row, rows};

/// The whole page; `plots` are file names beside it.
pub(super) fn page(record: &Record, machine: &Machine, plots: &[String]) -> String {
    let rows = rows(record);
    let mut text = format!("# {}\n\n{}\n\n", record.title, record.method);
    text.push_str(&medians(record, &rows));
    text.push_str(&comparison(record, &rows));
    for plot in plots {
        let _ = write!(text, "\n![{}]({plot})\n", record.title);
    }
    if !record.peaks.is_empty() {
        text.push_str("\n## Peaks of this machine\n\nFrom registers alone, the best of two looks.\n\n| instruction | GMAC/s |\n|---|---|\n");
        for peak in &record.peaks {
            let _ = writeln!(text, "| {} | {:.1} |", peak.name, peak.macs_per_second / 1e9);
        }
    }
    text.push_str(&absent(record));
    let memory = machine.memory_bytes.map_or_else(String::new, |bytes| format!(", {} of memory", gib(bytes)));
    let _ = write!(
        text,
        "\n## Circumstances\n\n- Command: `{}`\n- Machine: {}, {} cores{memory}, {}\n- Instructions: {}\n- {}, commit {}, {}\n\
         - Threads: {}\n- Load average before: {}; after: {}\n",
        record.command,
        machine.cpu,
        machine.cores,
        machine.system,
        machine.instructions,
        machine.rustc,
        machine.commit,
        machine.date,
        record.threads,
        record.load_before,
        record.load_after,
    );
    text
}

fn medians(record: &Record, rows: &[Row]) -> String {
    let Record { unit, group_name, x_name, side_name, bytes_name, .. } = record;
    let shares = rows.iter().any(|row| row.share_of_own.is_some() || row.share_of_bf16.is_some());
    let mut text = format!(
        "| {group_name} | {x_name} | {side_name} | {}, median | min | max | spread | runs | {bytes_name} |{} detail |\n\
         |---|---|---|---|---|---|---|---|---|{}---|\n",
        unit.name(),
        if shares { " of its own peak | of the bf16 peak |" } else { "" },
        if shares { "---|---|" } else { "" },
    );
    let percent = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), |share| format!("{:.1}%", 100.0 * share));
    for row in rows {
        let decimals = unit.decimals(row.median);
        let _ = write!(
            text,
            "| {} | {} | {} | {:.decimals$} | {:.decimals$} | {:.decimals$} | {:.1}% | {} | {} |",
            row.point.group,
            thousands(row.point.x),
            row.point.side,
            row.median,
            row.min,
            row.max,
            100.0 * row.spread(),
            row.runs,
            row.bytes.map_or_else(|| "-".to_owned(), bytes),
        );
        if shares {
            let own = row.point.own_peak.as_ref().map_or_else(String::new, |peak| format!(" ({peak})"));
            let own = if row.share_of_own.is_some() { own } else { String::new() };
            let _ = write!(text, " {}{own} | {} |", percent(row.share_of_own), percent(row.share_of_bf16));
        }
        let _ = writeln!(text, " {} |", row.detail);
    }
    text
}

/// Each of our rows against each of the others at the same point; nothing without others.
fn comparison(record: &Record, rows: &[Row]) -> String {
    let mut others: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| !row.point.ours) {
        if !others.contains(&row.point.side.as_str()) {
            others.push(&row.point.side);
        }
    }
    if others.is_empty() {
        return String::new();
    }
    let word = if record.unit == Unit::Seconds { "as short" } else { "as fast" };
    let mut text = format!(
        "\n## How many times {word}\n\nRatio of the medians, and in brackets the {} as a part of the other's.\n\n| {} | {} | side |",
        record.bytes_name, record.group_name, record.x_name,
    );
    for other in &others {
        let _ = write!(text, " as {other} |");
    }
    let _ = writeln!(text, "\n|---|---|---|{}", "---|".repeat(others.len()));
    for ours in rows.iter().filter(|row| row.point.ours) {
        let same = |row: &&Row| row.point.group == ours.point.group && row.point.x == ours.point.x;
        let met: Vec<_> =
            others.iter().map(|other| rows.iter().filter(same).find(|row| row.point.side == **other)).collect();
        if met.iter().all(Option::is_none) {
            continue;
        }
        let _ = write!(text, "| {} | {} | {} |", ours.point.group, thousands(ours.point.x), ours.point.side);
        for other in met {
            match other {
                None => text.push_str(" - |"),
                Some(other) => {
                    let _ = write!(text, " **{:.2}**", ours.times(other, record.unit));
                    if let (Some(ours), Some(other @ 1..)) = (ours.bytes, other.bytes) {
                        let _ = write!(text, " ({:.2})", ratio(ours, other));
                    }
                    text.push_str(" |");
                }
            }
        }
        text.push('\n');
    }
    text
}

fn absent(record: &Record) -> String {
    let mut text = String::new();
    if !record.absent.is_empty() {
        text.push_str("\n## Not measured\n\n");
        for absent in &record.absent {
            let _ = writeln!(text, "- {absent}");
        }
    }
    text
}

#[expect(clippy::cast_precision_loss, reason = "memory is far below 2^53 bytes")]
fn ratio(ours: u64, other: u64) -> f64 {
    ours as f64 / other as f64
}

/// As MiB, or KiB below one of them.
#[expect(clippy::cast_precision_loss, reason = "memory is far below 2^53 bytes")]
pub(super) fn bytes(bytes: u64) -> String {
    let kib = bytes as f64 / 1024.0;
    match bytes {
        0 => "0".to_owned(),
        1..0x10_0000 => format!("{kib:.1} KiB"),
        _ => format!("{:.1} MiB", kib / 1024.0),
    }
}

#[expect(clippy::cast_precision_loss, reason = "memory is far below 2^53 bytes")]
fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1u32 << 30))
}

/// `32,768`.
pub(super) fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::{measurement, record};
    use super::super::roofline::Peak;
    use super::*;

    #[test]
    fn the_page_states_medians_ratios_and_circumstances() {
        let mut ours = measurement(0, "plimsoll", true, 8192, 0.5);
        let mut peer = measurement(0, "llama.cpp", false, 8192, 2.0);
        (ours.bytes, peer.bytes) = (Some(100 << 20), Some(200 << 20));
        peer.detail = "flash attention on".to_owned();
        let mut record = record(vec![ours, peer]);
        record.absent.push("torch: python3 has no torch".to_owned());
        let page = page(&record, &Machine::read(None), &["prefill.svg".to_owned()]);
        for part in [
            "| model | tokens | side | tokens/s, median |",
            "| model | 8,192 | plimsoll | 200.0 | 200.0 | 200.0 | 0.0% | 1 | 100.0 MiB |  |",
            "| model | 8,192 | llama.cpp | 50.0 | 50.0 | 50.0 | 0.0% | 1 | 200.0 MiB | flash attention on |",
            "| model | 8,192 | plimsoll | **4.00** (0.50) |",
            "![Title](prefill.svg)",
            "- torch: python3 has no torch",
            "`cargo xtask bench prefill`",
            "before: 0.1; after: 0.2",
        ] {
            assert!(page.contains(part), "no {part:?} in {page}");
        }
        assert!(!page.contains("Peaks"), "{page}");
    }

    #[test]
    fn shares_are_shown_where_peaks_were_measured() {
        let mut ours = measurement(0, "plimsoll", true, 512, 1.0);
        ours.macs = Some(5e9);
        let mut record = record(vec![ours]);
        record.peaks = vec![Peak { name: "avx2-f32".to_owned(), macs_per_second: 10e9 }];
        let page = page(&record, &Machine::read(None), &[]);
        assert!(page.contains("| 50.0% (avx2-f32) | - |"), "{page}");
        assert!(page.contains("| avx2-f32 | 10.0 |"), "{page}");
        // Nobody to compare with.
        assert!(!page.contains("How many times"), "{page}");
    }

    #[test]
    fn numbers_are_written_for_reading() {
        assert_eq!([16, 8192, 1_048_576].map(thousands), ["16", "8,192", "1,048,576"]);
        assert_eq!([0, 512, 0x10_0000].map(bytes), ["0", "0.5 KiB", "1.0 MiB"]);
        assert_eq!(bytes(3 << 20), "3.0 MiB");
    }
}
