//! `cargo xtask models`: fetches models through the binary itself, so that there is one way of fetching.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};
use clap::Subcommand;

use crate::shell;

/// The model that the README's first command runs.
pub(crate) const DEFAULT_MODEL: &str = "smollm2-135m";

/// Every model that tests and benches may want, by short name.
pub(crate) const MODELS: [&str; 2] = [DEFAULT_MODEL, "gemma3-270m"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Put models into the user's cache folder, if they are not there, and print their paths.
    Fetch {
        /// Short names; all that tests and benches may want if none is given.
        #[arg(default_values = MODELS)]
        names: Vec<String>,
    },
    /// Print the short names that the binary knows.
    List,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.what {
        What::Fetch { names } => {
            for name in names {
                println!("{}", fetch(name)?.display());
            }
        }
        What::List => print!("{}", shell::output(dev_binary().args(["models", "list"]))?),
    }
    Ok(())
}

/// The file of a model by short name, fetched if it is not there, by a binary built for it.
pub(crate) fn fetch(name: &str) -> Result<PathBuf> {
    fetch_by(dev_binary(), name)
}

/// The binary, built in the dev profile first where that is due.
fn dev_binary() -> Command {
    shell::cargo(["run", "--quiet", "--package", "plimsoll", "--"])
}

/// The same by the release binary, which must be there: for chores that have built it anyway.
pub(crate) fn fetch_by_release_binary(name: &str) -> Result<PathBuf> {
    fetch_by(Command::new(shell::release_binary("plimsoll")), name)
}

/// The same by the debug binary that `cargo test --workspace` has built: building it alone would build candle a second time, with other features.
pub(crate) fn fetch_by_tested_binary(name: &str) -> Result<PathBuf> {
    let binary = shell::target_dir().join("debug").join(format!("plimsoll{}", std::env::consts::EXE_SUFFIX));
    if binary.is_file() { fetch_by(Command::new(binary), name) } else { fetch(name) }
}

fn fetch_by(mut plimsoll: Command, name: &str) -> Result<PathBuf> {
    let printed = shell::output(plimsoll.args(["models", "fetch", name]))?;
    let Some(path) = printed.lines().map(str::trim).rfind(|line| !line.is_empty()).map(PathBuf::from) else {
        bail!("`plimsoll models fetch {name}` printed no path");
    };
    if !path.is_file() {
        bail!("`plimsoll models fetch {name}` printed {}, which is no file", path.display());
    }
    Ok(path)
}
