//! What the machine allows, and where each number came from.

mod cgroup;
#[cfg(any(target_os = "macos", test))]
mod macos;
mod policy;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::probe::field_bytes;

pub use policy::{Policy, PolicyBudget, UnknownPolicy};

/// One limit on the memory of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ceiling {
    /// Where the number came from.
    pub source: CeilingSource,
    /// The limit.
    pub bytes: u64,
    /// What of it is used already, by whomever it counts; `None` where the source does not say.
    pub used_bytes: Option<u64>,
}

/// Where a [`Ceiling`] came from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CeilingSource {
    /// All RAM of the machine (`MemTotal`, `hw.memsize`).
    Ram,
    /// RAM that could be had now without swapping (`MemAvailable`). Moves from one moment to the next.
    RamAvailable,
    /// What the system lets the GPU wire down (`iogpu.wired_limit_mb`), where somebody set it.
    WiredLimit,
    /// What a device says it can use at once (Metal's `recommendedMaxWorkingSetSize`). Told by whoever holds the device:
    /// see [`Ceilings::with`].
    WorkingSet {
        /// The device's name.
        device: String,
    },
    /// A control group of version 1; the kernel kills what passes it.
    CgroupV1 {
        /// The file that holds the limit.
        file: PathBuf,
    },
    /// A control group of version 2. Past `memory.max` the kernel kills, past `memory.high` it brakes hard.
    CgroupV2 {
        /// The file that holds the limit.
        file: PathBuf,
    },
}

impl CeilingSource {
    /// Whether the number is a reading that moves by itself. Such a ceiling gates what is admitted next; it is no budget.
    #[must_use]
    pub fn is_momentary(&self) -> bool {
        matches!(self, Self::RamAvailable)
    }

    /// Whether the limit binds what a run takes. What a GPU may wire down or use at once is no limit on memory that only the CPU works in.
    #[must_use]
    pub fn binds(&self, runs_on: RunsOn) -> bool {
        match self {
            Self::WiredLimit | Self::WorkingSet { .. } => runs_on == RunsOn::Gpu,
            Self::Ram | Self::RamAvailable | Self::CgroupV1 { .. } | Self::CgroupV2 { .. } => true,
        }
    }
}

/// What a run computes on: it decides which limits bind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RunsOn {
    /// The processor, in memory of the process.
    #[default]
    Cpu,
    /// A GPU, in memory that is wired down for it.
    Gpu,
}

impl fmt::Display for CeilingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ram => f.write_str("RAM of the machine"),
            Self::RamAvailable => f.write_str("RAM available now"),
            Self::WiredLimit => f.write_str("wired limit of the GPU, iogpu.wired_limit_mb"),
            Self::WorkingSet { device } => write!(f, "working set of {device}"),
            Self::CgroupV1 { file } => write!(f, "cgroup v1, {}", file.display()),
            Self::CgroupV2 { file } => write!(f, "cgroup v2, {}", file.display()),
        }
    }
}

/// Every limit found at one moment. Ask again for the next moment: a reading is never kept by this crate.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ceilings {
    found: Vec<Ceiling>,
}

impl Ceilings {
    /// The limits on this process now. Empty where nothing can be read: then nothing is known, and nothing is guessed.
    #[must_use]
    pub fn detect() -> Self {
        #[cfg(target_os = "macos")]
        return Self { found: macos::read().ceilings() };
        #[cfg(not(target_os = "macos"))]
        Self::read_linux(Path::new("/"))
    }

    /// The limits that the files below `root` state (`root/proc/meminfo`, `root/proc/self/cgroup`, the mounted control
    /// groups): `/` for this process, another folder for a test.
    #[must_use]
    pub fn read_linux(root: &Path) -> Self {
        let mut found = Vec::new();
        if let Ok(meminfo) = fs::read_to_string(root.join("proc/meminfo")) {
            let mut push = |source, bytes: Option<u64>| {
                found.extend(bytes.map(|bytes| Ceiling { source, bytes, used_bytes: None }));
            };
            push(CeilingSource::Ram, field_bytes(&meminfo, "MemTotal"));
            push(CeilingSource::RamAvailable, field_bytes(&meminfo, "MemAvailable"));
        }
        found.extend(cgroup::ceilings(root));
        Self { found }
    }

    /// The same limits and one more, as a device states it.
    #[must_use]
    pub fn with(mut self, ceiling: Ceiling) -> Self {
        self.found.push(ceiling);
        self
    }

    /// Those of the limits that bind a run on `runs_on`.
    #[must_use]
    pub fn binding(mut self, runs_on: RunsOn) -> Self {
        self.found.retain(|ceiling| ceiling.source.binds(runs_on));
        self
    }

    /// All limits, in the order RAM, available RAM, control groups from the innermost outwards, those added by the caller.
    pub fn iter(&self) -> impl Iterator<Item = &Ceiling> {
        self.found.iter()
    }

    /// The lowest limit that stands still: the one to derive a budget from.
    #[must_use]
    pub fn lowest_fixed(&self) -> Option<&Ceiling> {
        self.iter().filter(|ceiling| !ceiling.source.is_momentary()).min_by_key(|ceiling| ceiling.bytes)
    }

    /// The lowest limit of all, momentary ones included.
    #[must_use]
    pub fn lowest(&self) -> Option<&Ceiling> {
        self.iter().min_by_key(|ceiling| ceiling.bytes)
    }
}

#[cfg(test)]
mod tests;
