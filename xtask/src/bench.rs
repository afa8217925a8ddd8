//! `cargo xtask bench`: measures, and keeps the record in `benches/runs/<date>-<machine>/`.

mod machine;
mod record;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, num::NonZeroUsize};

use anyhow::{Context as _, Result, ensure};
use clap::Subcommand;
use serde_json::Value;

use crate::{models, shell};
use machine::Machine;
use record::{Comparison, Measurement, Side};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Prefill of the default model, against `quantized_llama` of candle-transformers, taking turns in one run.
    Prefill(PrefillArgs),
}

#[derive(Debug, clap::Args)]
struct PrefillArgs {
    /// Prompt length.
    #[arg(long, default_value = "512")]
    tokens: NonZeroUsize,
    /// Measurements of each side.
    #[arg(long, default_value = "7")]
    runs: NonZeroUsize,
    /// Threads of both sides; as many as there are cores if not given.
    #[arg(long)]
    threads: Option<NonZeroUsize>,
    /// A short name for this machine in the record's folder.
    #[arg(long)]
    machine: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.what {
        What::Prefill(args) => prefill(args),
    }
}

fn prefill(args: &PrefillArgs) -> Result<()> {
    let build = ["build", "--release", "--package", "plimsoll", "--package", "plimsoll-tests"];
    shell::run(shell::cargo(build).args([
        "--features",
        "plimsoll-tests/peers",
        "--bin",
        "plimsoll",
        "--bin",
        "peer-candle",
    ]))?;
    // By the program just built: a dev build for this alone would take minutes.
    let model = models::fetch_by_release_binary(models::DEFAULT_MODEL)?;
    let ids = shell::target_dir().join("bench-ids.txt");
    fs::write(&ids, prompt_ids(args.tokens.get())).with_context(|| format!("cannot write {}", ids.display()))?;

    let machine = Machine::read(args.machine.as_deref());
    let threads = args.threads.map_or(machine.cores, NonZeroUsize::get);
    let load_before = machine::load_average();
    let mut measurements = Vec::new();
    for round in 0..args.runs.get() {
        // Who goes first changes with every round, so that neither always finds the warmer or the colder machine.
        let order = if round % 2 == 0 { [Side::Ours, Side::Peer] } else { [Side::Peer, Side::Ours] };
        for side in order {
            let mut command = command(side, &model, &ids, threads);
            let measurement = measure(side, round, args.tokens.get(), &mut command)?;
            println!("{}: {:.3} s, {:.1} tokens/s", side.name(), measurement.seconds, measurement.tokens_per_second());
            measurements.push(measurement);
        }
    }
    let comparison = Comparison {
        title: format!("Prefill of {} tokens, {}", args.tokens, models::DEFAULT_MODEL),
        command: format!("cargo xtask bench prefill --tokens {} --runs {} --threads {threads}", args.tokens, args.runs),
        measurements,
        load_before,
        load_after: machine::load_average(),
    };
    let markdown = comparison.markdown(&machine)?;
    let folder = free_folder(&shell::root().join("benches/runs"), &format!("{}-{}", machine.date, machine.name))?;
    fs::write(folder.join("README.md"), &markdown)?;
    fs::write(folder.join("raw.csv"), comparison.csv())?;
    println!("\n{markdown}\nwritten to {}", folder.display());
    Ok(())
}

fn command(side: Side, model: &Path, ids: &Path, threads: usize) -> Command {
    let mut command;
    match side {
        Side::Ours => {
            command = Command::new(shell::release_binary("plimsoll"));
            command.args(["run", "--raw", "--json", "--max-tokens", "1", "--temperature", "0"]);
            command.arg("--threads").arg(threads.to_string()).arg("--model").arg(model).arg("--token-ids").arg(ids);
        }
        Side::Peer => {
            command = Command::new(shell::release_binary("peer-candle"));
            command.arg(model).arg(ids);
        }
    }
    command.env("RAYON_NUM_THREADS", threads.to_string());
    command
}

fn measure(side: Side, round: usize, tokens: usize, command: &mut Command) -> Result<Measurement> {
    let printed = shell::output(command)?;
    let (seen_tokens, seconds) =
        parse(side, &printed).with_context(|| format!("{} printed: {printed}", side.name()))?;
    ensure!(seen_tokens == tokens as u64, "{} ran {seen_tokens} tokens instead of {tokens}", side.name());
    ensure!(seconds > 0.0, "{} took no time", side.name());
    Ok(Measurement { side, round, tokens, seconds })
}

/// Tokens and seconds of the prefill, from the JSON object that either program prints last.
fn parse(side: Side, printed: &str) -> Result<(u64, f64)> {
    let line = printed.lines().rfind(|line| line.trim_start().starts_with('{'));
    let object: Value = match serde_json::from_str(printed) {
        Ok(object) => object,
        Err(_) => serde_json::from_str(line.context("no JSON object")?)?,
    };
    let figures = match side {
        Side::Ours => object.get("prefill").context("no `prefill`")?,
        Side::Peer => &object,
    };
    let tokens = figures.get("tokens").and_then(Value::as_u64).context("no `tokens`")?;
    let seconds = figures.get("seconds").and_then(Value::as_f64).context("no `seconds`")?;
    Ok((tokens, seconds))
}

/// Ids of no meaning: dense products cost the same for every token. All of them are in the vocabulary of any model.
fn prompt_ids(tokens: usize) -> String {
    let ids = (0..tokens).map(|index| (1_000 + index * 7_919 % 20_011).to_string());
    ids.collect::<Vec<_>>().join(" ")
}

/// Makes `parent/name`, or `parent/name-2` and so on: a record is never overwritten.
fn free_folder(parent: &Path, name: &str) -> Result<PathBuf> {
    fs::create_dir_all(parent)?;
    let mut folder = parent.join(name);
    let mut number = 1;
    while folder.exists() {
        number += 1;
        folder = parent.join(format!("{name}-{number}"));
    }
    fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_both_sides_are_found() {
        let ours = "{\n  \"prompt_tokens\": 512,\n  \"prefill\": {\"tokens\": 512, \"seconds\": 0.5}\n}\n";
        assert_eq!(parse(Side::Ours, ours).unwrap(), (512, 0.5));
        let peer = "loading\n{\"tokens\": 512, \"seconds\": 2.0, \"tokens_per_second\": 256.0}\n";
        assert_eq!(parse(Side::Peer, peer).unwrap(), (512, 2.0));
        assert!(parse(Side::Ours, peer).is_err());
        assert!(parse(Side::Peer, "no figures").is_err());
    }

    #[test]
    fn the_prompt_has_the_length_asked_for_and_differing_ids() {
        let text = prompt_ids(512);
        let mut ids: Vec<u32> = text.split_whitespace().map(|id| id.parse().unwrap()).collect();
        assert!(ids.iter().all(|id| (1_000..21_011).contains(id)));
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 512);
    }

    #[test]
    fn a_record_is_never_overwritten() {
        let parent = tempfile::tempdir().unwrap();
        let names: Vec<_> = (0..3).map(|_| free_folder(parent.path(), "day").unwrap()).collect();
        assert_eq!(names, ["day", "day-2", "day-3"].map(|name| parent.path().join(name)));
    }
}
