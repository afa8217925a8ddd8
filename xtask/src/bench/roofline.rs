//! The machine's own peaks, measured from registers alone.

use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::process;
use crate::shell;

/// What one instruction reaches on all threads of the bench together.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Peak {
    /// `{instruction set}-{type}`.
    pub(super) name: String,
    pub(super) macs_per_second: f64,
}

/// Peaks in bf16, best first.
const BF16: [&str; 2] = ["amx-bf16", "avx512-bf16"];

/// The name of the machine's best peak in bf16, if it multiplies in it.
pub(super) fn bf16(peaks: &[Peak]) -> Option<&'static str> {
    BF16.into_iter().find(|name| peaks.iter().any(|peak| peak.name == *name))
}

/// The peak that kernels of an instruction set live on; that of the best one for `None`.
pub(super) fn own(cpu: Option<&str>, peaks: &[Peak]) -> Option<String> {
    let names: &[&str] = match cpu {
        None => &["amx-bf16", "avx512-f32", "avx2-f32", "neon-f32"],
        Some("amx") => &["amx-bf16"],
        Some("avx512") => &["avx512-f32"],
        Some("avx2") => &["avx2-f32"],
        Some("neon") => &["neon-f32"],
        // Plain code has no instruction of its own.
        Some(_) => &[],
    };
    names.iter().find(|name| peaks.iter().any(|peak| peak.name == **name)).map(|name| (*name).to_owned())
}

/// Builds the example that measures peaks and products; candle is no part of it.
pub(super) fn build() -> Result<()> {
    let build =
        ["build", "--release", "--package", "plimsoll-linear", "--no-default-features", "--example", "roofline"];
    shell::run(&mut shell::cargo(build))
}

/// Measures every peak of this machine. [`build`] comes first.
pub(super) fn measure(threads: usize) -> Result<Vec<Peak>> {
    let mut command = Command::new(shell::release_binary("examples/roofline"));
    command.args(["auto", &threads.to_string(), "--peaks", "--ms", "300", "--json"]);
    parse(&process::run(&mut command)?.stdout)
}

/// The better of two looks at each peak: whatever disturbs can only make it slower.
pub(super) fn better(first: &[Peak], second: &[Peak]) -> Vec<Peak> {
    let best = |peak: &Peak| {
        let other = second.iter().find(|other| other.name == peak.name).map_or(0.0, |other| other.macs_per_second);
        Peak { name: peak.name.clone(), macs_per_second: peak.macs_per_second.max(other) }
    };
    first.iter().map(best).collect()
}

fn parse(printed: &str) -> Result<Vec<Peak>> {
    printed
        .lines()
        .map(|line| {
            let object: Value = serde_json::from_str(line).with_context(|| format!("no peak: {line}"))?;
            let name = object["peak"].as_str().with_context(|| format!("no name: {line}"))?;
            let rate = object["macs_per_second"].as_f64().with_context(|| format!("no rate: {line}"))?;
            Ok(Peak { name: name.to_owned(), macs_per_second: rate })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peak(name: &str, macs_per_second: f64) -> Peak {
        Peak { name: name.to_owned(), macs_per_second }
    }

    #[test]
    fn peaks_are_read_line_by_line() {
        let printed = "{\"peak\": \"avx2-f32\", \"threads\": 2, \"macs_per_second\": 135}\n\
                       {\"peak\": \"avx512-bf16\", \"threads\": 2, \"macs_per_second\": 503}\n";
        assert_eq!(parse(printed).unwrap(), [peak("avx2-f32", 135.0), peak("avx512-bf16", 503.0)]);
        assert!(parse("{\"peak\": \"x\"}").is_err());
    }

    #[test]
    fn an_instruction_set_is_held_against_its_own_peak() {
        let peaks = [peak("avx2-f32", 1.0), peak("avx512-f32", 2.0), peak("avx512-bf16", 4.0)];
        assert_eq!(own(None, &peaks).as_deref(), Some("avx512-f32"));
        assert_eq!(own(Some("avx2"), &peaks).as_deref(), Some("avx2-f32"));
        assert_eq!(own(Some("scalar"), &peaks), None);
        assert_eq!(own(Some("amx"), &peaks), None);
        assert_eq!(bf16(&peaks), Some("avx512-bf16"));
        assert_eq!(bf16(&peaks[..2]), None);
    }

    #[test]
    fn the_better_look_counts() {
        let best = better(&[peak("a", 1.0), peak("b", 5.0)], &[peak("b", 4.0), peak("a", 2.0)]);
        assert_eq!(best, [peak("a", 2.0), peak("b", 5.0)]);
    }
}
