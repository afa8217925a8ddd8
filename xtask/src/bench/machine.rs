//! What a measurement was made on, and when.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, thread};

use crate::shell;

#[derive(Debug)]
pub(super) struct Machine {
    /// Short, for a folder's name.
    pub(super) name: String,
    pub(super) cpu: String,
    pub(super) cores: usize,
    /// Those of the instructions that kernels are written for, by the system's names.
    pub(super) instructions: String,
    pub(super) memory_bytes: Option<u64>,
    /// Name and release of the operating system.
    pub(super) system: String,
    pub(super) rustc: String,
    pub(super) commit: String,
    /// Of the start, in UTC: `2026-02-28`.
    pub(super) date: String,
}

impl Machine {
    pub(super) fn read(name: Option<&str>) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let name = name.map_or_else(
            || format!("{}-{}-{cores}core", std::env::consts::OS, std::env::consts::ARCH),
            |name| name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "-"),
        );
        let days = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs() / 86_400);
        Self {
            name,
            cpu: cpu(),
            cores,
            instructions: instructions(),
            memory_bytes: memory_bytes(),
            system: first_line("uname", &["-sr"]),
            rustc: first_line("rustc", &["--version"]),
            commit: commit(),
            date: date(days),
        }
    }
}

/// The machine's load over the last 1, 5 and 15 minutes.
pub(super) fn load_average() -> String {
    match fs::read_to_string("/proc/loadavg") {
        Ok(text) => text.split(' ').take(3).collect::<Vec<_>>().join(" "),
        Err(_) => first_line("sysctl", &["-n", "vm.loadavg"]),
    }
}

fn cpu() -> String {
    let Ok(text) = fs::read_to_string("/proc/cpuinfo") else {
        return first_line("sysctl", &["-n", "machdep.cpu.brand_string"]);
    };
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or_else(|| "unknown".to_owned(), |(_, model)| model.to_owned())
}

/// Names of the instructions that matter here, as `/proc/cpuinfo` spells them.
const INSTRUCTIONS: [&str; 14] = [
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimddp",
    "i8mm",
];

fn instructions() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let found = instructions_in(&text);
    if found.is_empty() { UNKNOWN.to_owned() } else { found }
}

fn instructions_in(cpuinfo: &str) -> String {
    let line = cpuinfo.lines().find(|line| line.starts_with("flags") || line.starts_with("Features"));
    let words: Vec<&str> = line.and_then(|line| line.split_once(':')).map_or_else(Vec::new, |(_, words)| {
        words.split_whitespace().filter(|word| INSTRUCTIONS.contains(word)).collect()
    });
    words.join(" ")
}

fn memory_bytes() -> Option<u64> {
    let Ok(text) = fs::read_to_string("/proc/meminfo") else {
        return first_line("sysctl", &["-n", "hw.memsize"]).parse().ok();
    };
    let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB"))?;
    Some(kib.trim().parse::<u64>().ok()? * 1024)
}

fn commit() -> String {
    let commit = first_line("git", &["rev-parse", "--short=12", "HEAD"]);
    let changed = first_line("git", &["status", "--porcelain", "--untracked-files=no"]);
    if changed == UNKNOWN { commit } else { format!("{commit}, with changes") }
}

const UNKNOWN: &str = "unknown";

fn first_line(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).current_dir(shell::root()).output().ok();
    let text = output.filter(|output| output.status.success()).and_then(|output| String::from_utf8(output.stdout).ok());
    let line = text.as_deref().and_then(|text| text.lines().next()).map(str::to_owned);
    line.unwrap_or_else(|| UNKNOWN.to_owned())
}

/// The day `days` days after 1970-01-01, in the proleptic Gregorian calendar.
/// Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
fn date(days: u64) -> String {
    // Years start in March here, so that the leap day is the last of its year.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        for (days, want) in [
            (0, "1970-01-01"),
            (58, "1970-02-28"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (19_722, "2023-12-31"),
            (19_782, "2024-02-29"),
        ] {
            assert_eq!(date(days), want);
        }
    }

    #[test]
    fn instructions_that_matter_are_named() {
        let text = "model name\t: x\nflags\t\t: fpu sse2 avx2 avx512f amx_bf16\n";
        assert_eq!(instructions_in(text), "avx2 avx512f amx_bf16");
        assert_eq!(instructions_in(""), "");
    }

    #[test]
    fn a_machines_name_is_safe_in_a_path() {
        assert_eq!(Machine::read(Some("my mac/2")).name, "my-mac-2");
        assert!(!Machine::read(None).name.contains(' '));
    }
}
