//! `cargo xtask bench`: measures, and keeps the record in `benches/runs/<date>-<machine>/`.

mod folder;
mod kernels;
mod machine;
mod markdown;
mod model;
mod options;
mod peers;
mod plot;
mod process;
mod record;
mod roofline;
mod side;
mod summary;
mod whole;

use std::num::NonZeroUsize;
use std::path::Path;
use std::{env, fs};

use anyhow::Result;

use crate::shell;
use machine::Machine;
use options::{Common, What};
use record::{Record, Unit};
use roofline::Peak;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.what {
        What::Prefill(args) => whole::prefill(args),
        What::Decode(args) => whole::decode(args),
        What::Load(args) => whole::load(args),
        What::Linear(args) => kernels::linear(args),
        What::Attention(args) => kernels::attention(args),
    }
}

/// What is the same for every bench: the machine before and after, and where the record goes.
struct Circumstances {
    machine: Machine,
    threads: usize,
    /// Empty unless asked for.
    peaks: Vec<Peak>,
    load_before: String,
}

impl Circumstances {
    fn begin(common: &Common) -> Result<Self> {
        let machine = Machine::read(common.machine.as_deref());
        let threads = common.threads.map_or(machine.cores, NonZeroUsize::get);
        let load_before = machine::load_average();
        let mut peaks = Vec::new();
        if common.roofline {
            roofline::build()?;
            peaks = roofline::measure(threads)?;
        }
        Ok(Self { machine, threads, peaks, load_before })
    }

    /// Completes the record, writes it and prints its page.
    fn end(self, record: Record) -> Result<()> {
        let load_after = machine::load_average();
        let mut peaks = self.peaks;
        if !peaks.is_empty() {
            peaks = roofline::better(&peaks, &roofline::measure(self.threads)?);
        }
        let command = shown_command(env::args().skip(1));
        let record =
            Record { command, threads: self.threads, peaks, load_before: self.load_before, load_after, ..record };
        let page = folder::write(&record, &self.machine, &shell::root().join("benches/runs"))?;
        println!("\n{}\nwritten to {}", fs::read_to_string(&page)?, page.display());
        Ok(())
    }
}

impl Record {
    /// A record of nothing yet, of sides that run a whole model.
    fn of_program(what: &'static str, unit: Unit) -> Self {
        Self {
            what,
            title: String::new(),
            method: String::new(),
            command: String::new(),
            group_name: "model",
            x_name: "tokens",
            side_name: "side",
            bytes_name: "peak resident",
            unit,
            threads: 0,
            measurements: Vec::new(),
            absent: Vec::new(),
            peaks: Vec::new(),
            load_before: String::new(),
            load_after: String::new(),
        }
    }
}

/// The order of `sides` in a round: another one goes first each time, so that none always finds the warmer or the colder machine.
fn turns(round: usize, sides: usize) -> impl Iterator<Item = usize> {
    (0..sides).map(move |index| (index + round) % sides)
}

/// The command as a reader may repeat it: paths of this machine are cut down to their last part.
fn shown_command(args: impl Iterator<Item = String>) -> String {
    let shown = args.map(|arg| {
        let (label, path) = arg.split_once('=').map_or((None, arg.as_str()), |(label, path)| (Some(label), path));
        let path = Path::new(path);
        let name = if path.is_absolute() { path.file_name().unwrap_or_default() } else { path.as_os_str() };
        let name = name.to_string_lossy();
        label.map_or_else(|| name.clone().into_owned(), |label| format!("{label}={name}"))
    });
    format!("cargo xtask {}", shown.collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_side_goes_first_in_every_round() {
        let orders: Vec<Vec<usize>> = (0..4).map(|round| turns(round, 3).collect()).collect();
        assert_eq!(orders, [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]);
    }

    #[test]
    fn the_command_names_no_folder_of_this_machine() {
        let args = [
            "bench",
            "prefill",
            "--llama-bench",
            "avx2=/opt/x/llama-bench",
            "--torch=/opt/y/python",
            "--model",
            "/m/a.gguf",
        ];
        let shown = shown_command(args.into_iter().map(str::to_owned));
        assert_eq!(shown, "cargo xtask bench prefill --llama-bench avx2=llama-bench --torch=python --model a.gguf");
    }
}
