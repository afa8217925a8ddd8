//! Linux: `/proc/self/smaps_rollup`, and `/proc/self/status` where it cannot be read.

use std::fs;
use std::path::{Path, PathBuf};

use super::{MemorySample, Probe};

/// Samples `/proc/self`. The footprint is anonymous memory plus what of it was swapped out; file pages are not in it.
#[derive(Debug, Clone)]
pub struct LinuxProbe {
    process_dir: PathBuf,
}

/// What Linux says about one process. A field the kernel did not print is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessMemory {
    /// Pages in RAM, file pages included.
    pub rss_bytes: Option<u64>,
    /// The same, shared pages divided by the number of sharers.
    pub pss_bytes: Option<u64>,
    /// Pages in RAM that no file backs: heap, stacks, private copies of file pages.
    pub anonymous_bytes: Option<u64>,
    /// Anonymous pages written to swap.
    pub swap_bytes: Option<u64>,
    /// The highest `rss_bytes` since the process started (or since the mark was reset).
    pub peak_rss_bytes: Option<u64>,
}

impl LinuxProbe {
    /// A probe of this process.
    #[must_use]
    pub fn new() -> Self {
        Self::of("/proc/self")
    }

    /// A probe that reads `process_dir/smaps_rollup` and `process_dir/status`: another process's, or a fixture's.
    #[must_use]
    pub fn of(process_dir: impl AsRef<Path>) -> Self {
        Self { process_dir: process_dir.as_ref().to_owned() }
    }

    /// Everything the two files say. `smaps_rollup` is exact and wins; `status` fills what it lacks.
    #[must_use]
    pub fn memory(&self) -> ProcessMemory {
        let read = |name: &str| fs::read_to_string(self.process_dir.join(name)).unwrap_or_default();
        let rollup = ProcessMemory::from_smaps_rollup(&read("smaps_rollup"));
        let status = ProcessMemory::from_status(&read("status"));
        ProcessMemory {
            rss_bytes: rollup.rss_bytes.or(status.rss_bytes),
            pss_bytes: rollup.pss_bytes,
            anonymous_bytes: rollup.anonymous_bytes.or(status.anonymous_bytes),
            swap_bytes: rollup.swap_bytes.or(status.swap_bytes),
            peak_rss_bytes: status.peak_rss_bytes,
        }
    }
}

impl Default for LinuxProbe {
    fn default() -> Self {
        Self::new()
    }
}

impl Probe for LinuxProbe {
    fn sample(&self) -> MemorySample {
        MemorySample { footprint: self.memory().footprint_bytes(), ..MemorySample::default() }
    }
}

impl ProcessMemory {
    /// Reads the text of a `smaps_rollup` file.
    #[must_use]
    pub fn from_smaps_rollup(text: &str) -> Self {
        Self {
            rss_bytes: field_bytes(text, "Rss"),
            pss_bytes: field_bytes(text, "Pss"),
            anonymous_bytes: field_bytes(text, "Anonymous"),
            swap_bytes: field_bytes(text, "Swap"),
            peak_rss_bytes: None,
        }
    }

    /// Reads the text of a `status` file. Its counters are batched per thread and may lag by some pages.
    #[must_use]
    pub fn from_status(text: &str) -> Self {
        Self {
            rss_bytes: field_bytes(text, "VmRSS"),
            pss_bytes: None,
            anonymous_bytes: field_bytes(text, "RssAnon"),
            swap_bytes: field_bytes(text, "VmSwap"),
            peak_rss_bytes: field_bytes(text, "VmHWM"),
        }
    }

    /// Anonymous bytes in RAM and in swap.
    #[must_use]
    pub fn footprint_bytes(&self) -> Option<u64> {
        self.anonymous_bytes.map(|bytes| bytes.saturating_add(self.swap_bytes.unwrap_or(0)))
    }
}

/// The value of the line `name:   123 kB`, in bytes.
pub(crate) fn field_bytes(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| field_kib(line, name))
}

/// The value of `line` in bytes if it is `name:   123 kB`.
pub(super) fn field_kib(line: &str, name: &str) -> Option<u64> {
    let value = line.strip_prefix(name)?.strip_prefix(':')?.trim().strip_suffix(" kB")?;
    value.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLLUP: &str = "5652fb2ed000-7ffed75c5000 ---p 00000000 00:00 0    [rollup]\n\
        Rss:                1600 kB\nPss:                 252 kB\nPss_Anon:            112 kB\n\
        Anonymous:           113 kB\nAnonHugePages:         0 kB\nSwap:                  7 kB\nSwapPss:               5 kB\n";
    const STATUS: &str = "Name:\tplimsoll\nVmPeak:\t  9000 kB\nVmHWM:\t  4000 kB\nVmRSS:\t  3000 kB\n\
        RssAnon:\t  1000 kB\nRssFile:\t  2000 kB\nVmSwap:\t    12 kB\n";

    #[test]
    fn the_rollup_gives_anonymous_memory_and_swap_as_footprint() {
        let memory = ProcessMemory::from_smaps_rollup(ROLLUP);
        assert_eq!(memory.rss_bytes, Some(1600 << 10));
        assert_eq!(memory.pss_bytes, Some(252 << 10));
        assert_eq!(memory.anonymous_bytes, Some(113 << 10));
        assert_eq!(memory.footprint_bytes(), Some(120 << 10));
    }

    #[test]
    fn status_stands_in_where_the_rollup_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("status"), STATUS).unwrap();
        let probe = LinuxProbe::of(dir.path());
        assert_eq!(probe.sample().footprint, Some(1012 << 10));
        std::fs::write(dir.path().join("smaps_rollup"), ROLLUP).unwrap();
        assert_eq!(probe.sample().footprint, Some(120 << 10));
        assert_eq!(probe.memory().peak_rss_bytes, Some(4000 << 10));
    }

    #[test]
    fn what_cannot_be_read_is_absent_and_not_zero() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(LinuxProbe::of(dir.path()).sample(), MemorySample::default());
        let garbled = ProcessMemory::from_smaps_rollup("Anonymous: many kB\nRss: 5\nSwap: 99999999999999999999 kB\n");
        assert_eq!(garbled, ProcessMemory::default());
    }
}
