//! The points of a star.

use super::{
    history::History,
    prefix::Cached,
    process::Process,
    request::{Cut, Money},
};
use crate::{
    cpu_path::{CpuPath, Pace},
    random::Random,
};
use anyhow::{Context, Result};
use plimsoll_models::CpuSettings;
use std::str::FromStr;

/// What a point changes of the base point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "described by `Axis::about`")]
pub enum Axis {
    Chunk,
    Partition,
    Threads,
    Cpu,
    Budget,
    History,
    Cancel,
    Beside,
    Rebuilt,
    Prefix,
    Fork,
    Process,
}

impl Axis {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 12] = [
        Self::Chunk,
        Self::Partition,
        Self::Threads,
        Self::Cpu,
        Self::Budget,
        Self::History,
        Self::Cancel,
        Self::Beside,
        Self::Rebuilt,
        Self::Prefix,
        Self::Fork,
        Self::Process,
    ];

    /// Its name on a command line and in the table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chunk => "chunk",
            Self::Partition => "partition",
            Self::Threads => "threads",
            Self::Cpu => "cpu",
            Self::Budget => "budget",
            Self::History => "history",
            Self::Cancel => "cancel",
            Self::Beside => "beside",
            Self::Rebuilt => "rebuilt",
            Self::Prefix => "prefix",
            Self::Fork => "fork",
            Self::Process => "process",
        }
    }

    /// What changes along it.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Chunk => "rows of a chunk",
            Self::Partition => "the prompt in random parts",
            Self::Threads => "threads of the executor",
            Self::Cpu => "instruction sets and attention routes",
            Self::Budget => "bytes that the ledger has, from just enough to no limit; the driver sizes the chunks",
            Self::History => "what the executor and the sequence did before",
            Self::Cancel => "after requests that were cancelled or failed",
            Self::Beside => "other sequences in the same passes",
            Self::Rebuilt => "decode over keys and values that a prefill of the decoded tokens wrote",
            Self::Prefix => "what a prefix cache held before, in memory and on disk",
            Self::Fork => "decode goes on in a fork, in turns with the sequence it was taken from",
            Self::Process => "fresh processes, of the library and of the binary",
        }
    }
}

impl FromStr for Axis {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        let names = Self::ALL.map(Self::name).join(", ");
        Self::ALL.into_iter().find(|axis| axis.name() == name).with_context(|| format!("axes are {names}"))
    }
}

/// How many points a star has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// A few of each axis.
    Short,
    /// All, for a model that runs a prompt in milliseconds.
    Tiny,
    /// All but those that would take hours on a trained model.
    Trained,
}

/// Longest prompt that plain code runs on trained models.
pub const PLAIN_CODE_ROWS: usize = 3000;
/// Longest prompt that attention by its definition runs on trained models: a head of a row at a time, on one thread.
pub const DEFINITION_ROWS: usize = 31;

/// How a point runs the prompt; what it does not name is as at the base point.
#[derive(Debug, Clone)]
pub enum How {
    /// In these parts.
    Cut(Cut),
    /// With these settings.
    Settings(CpuSettings),
    /// In a budget, with chunks of the driver's choice.
    Budget(Money),
    /// After something else.
    After(History),
    /// In passes with others, of which there are this many at any time.
    Beside {
        /// Other sequences.
        others: usize,
        /// Of their tokens and turns.
        seed: u64,
    },
    /// This many tokens are decoded, then written anew by a prefill, then the rest is decoded.
    Rebuilt(usize),
    /// With a prefix cache.
    Cached(Cached),
    /// In a fork, taken after this many decoded tokens.
    Forked(usize),
    /// In another process.
    Process(Process),
}

/// One point of a star.
#[derive(Debug, Clone)]
pub struct Point {
    /// What it changes.
    pub axis: Axis,
    /// To what.
    pub name: String,
    /// How it is run.
    pub how: How,
}

/// The points of `axes` for a prompt of `rows` tokens, around `base`.
#[must_use]
pub fn points(scale: Scale, axes: &[Axis], rows: usize, base: CpuSettings) -> Vec<Point> {
    let mut all = Vec::new();
    for &axis in axes {
        let mut add = |name: String, how: How| all.push(Point { axis, name, how });
        match axis {
            Axis::Chunk => {
                let sizes: &[usize] = if scale == Scale::Short { &[1, 7, 64] } else { &[1, 7, 64, 256, 512, 2048] };
                for &size in sizes.iter().filter(|&&size| size < rows) {
                    add(format!("{size} rows"), How::Cut(Cut::Chunk(size)));
                }
                add("whole".to_owned(), How::Cut(Cut::Parts(vec![rows])));
            }
            Axis::Partition if rows > 1 => {
                let count = match scale {
                    Scale::Short => 4,
                    Scale::Tiny => 200,
                    Scale::Trained => 8,
                };
                let mut random = Random::new(rows as u64);
                for _ in 0..count {
                    add("random parts".to_owned(), How::Cut(Cut::Parts(random.partition(rows))));
                }
            }
            Axis::Partition => {}
            Axis::Threads => {
                for threads in [1, 2, 4] {
                    add(threads.to_string(), How::Settings(CpuSettings { threads, ..base }));
                }
            }
            Axis::Cpu => {
                let paths = if scale == Scale::Short { CpuPath::forced(base) } else { CpuPath::all(base) };
                for path in paths {
                    let most = match path.pace {
                        Pace::PlainCode if scale == Scale::Trained => PLAIN_CODE_ROWS,
                        Pace::Definition if scale == Scale::Trained => DEFINITION_ROWS,
                        _ => usize::MAX,
                    };
                    if rows <= most {
                        add(path.name, How::Settings(path.settings));
                    }
                }
            }
            Axis::Budget => {
                add("just enough".to_owned(), How::Budget(Money::Chunk(64)));
                for more in [128, 192, 320, 512, 1024].into_iter().filter(|&more| scale != Scale::Short && more < rows)
                {
                    add(format!("a chunk of {more}"), How::Budget(Money::Chunk(more)));
                }
                add("unlimited".to_owned(), How::Budget(Money::Unlimited));
            }
            Axis::History => histories(&mut add, &[History::Others, History::NewArena, History::CutBack]),
            Axis::Cancel => {
                histories(&mut add, &[History::OtherCancelled, History::CancelledAndResumed, History::Failed]);
            }
            Axis::Beside => {
                let counts: &[usize] = match scale {
                    Scale::Short => &[1, 4],
                    Scale::Tiny => &[1, 2, 3, 4, 5, 6, 7],
                    Scale::Trained => &[1, 3, 7],
                };
                for &others in counts {
                    let name = if others == 1 { "1 other".to_owned() } else { format!("{others} others") };
                    add(name, How::Beside { others, seed: others as u64 });
                }
            }
            Axis::Rebuilt => {
                let counts: &[usize] = if scale == Scale::Short { &[9] } else { &[1, 16, 31] };
                for &count in counts {
                    add(format!("{count} tokens"), How::Rebuilt(count));
                }
            }
            Axis::Prefix => {
                for cached in Cached::ALL {
                    add(cached.about().to_owned(), How::Cached(cached));
                }
            }
            Axis::Fork => {
                let counts: &[usize] = if scale == Scale::Short { &[5] } else { &[0, 16] };
                for count in counts {
                    add(format!("after {count} tokens"), How::Forked(*count));
                }
            }
            Axis::Process => {
                for (name, process) in Process::all(scale == Scale::Short) {
                    add(name, How::Process(process));
                }
            }
        }
    }
    all
}

fn histories(add: &mut impl FnMut(String, How), all: &[History]) {
    for &history in all {
        add(history.about().to_owned(), How::After(history));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_attention::KvDtype;

    #[test]
    fn every_axis_has_points_and_a_name_that_is_read_back() {
        let base = CpuSettings::detect(2, KvDtype::Bf16);
        for scale in [Scale::Short, Scale::Tiny, Scale::Trained] {
            for axis in Axis::ALL {
                assert!(!points(scale, &[axis], 513, base).is_empty(), "{scale:?} {axis:?}");
                assert_eq!(axis.name().parse::<Axis>().unwrap(), axis);
            }
        }
        assert!("speed".parse::<Axis>().is_err());
    }

    #[test]
    fn plain_code_is_left_out_where_it_would_take_hours() {
        let base = CpuSettings::detect(2, KvDtype::Bf16);
        let has = |scale, rows, name: &str| points(scale, &[Axis::Cpu], rows, base).iter().any(|p| p.name == name);
        let (plain, definition) = ("scalar in products", "scalar, attention by definition");
        assert!(has(Scale::Trained, PLAIN_CODE_ROWS, plain) && !has(Scale::Trained, PLAIN_CODE_ROWS + 1, plain));
        assert!(has(Scale::Trained, 31, definition) && !has(Scale::Trained, 513, definition));
        assert!(
            has(Scale::Tiny, 3000, plain) && has(Scale::Tiny, 3000, definition) && has(Scale::Short, 130, "scalar")
        );
    }
}
