//! `cargo xtask memory`: the memory tests in their long form, on real models and with the release build.

use std::env;

use anyhow::{Context as _, Result};

use crate::{models, shell};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Short names of the models to run; 32,000 tokens of Gemma take some minutes.
    #[arg(default_values = models::MODELS)]
    models: Vec<String>,
    /// Leave out the tests whose name does not hold one of these: `outside`, `limit`, `long`, `machine`.
    #[arg(long, default_values = ["outside", "limit", "long", "machine"])]
    only: Vec<String>,
    /// Vary rows, length and type of keys and values one at a time, and not all together.
    #[arg(long)]
    star: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    shell::run(&mut shell::cargo(["build", "--release", "--package", "plimsoll"]))?;
    let models = args.models.iter().map(|name| models::fetch_by_release_binary(name)).collect::<Result<Vec<_>>>()?;
    // The same packages and profile as `cargo xtask test`: only the program that is watched is another.
    let mut tests = shell::cargo(["test", "--workspace", "--test", "it", "--", "--nocapture", "--test-threads=1"]);
    tests.args(args.only.iter().map(|name| format!("memory::{name}")));
    tests.env("PLIMSOLL_MEMORY_BINARY", shell::release_binary("plimsoll"));
    tests.env(
        "PLIMSOLL_MEMORY_MODELS",
        env::join_paths(&models).context("a model's path holds the separator of lists")?,
    );
    if args.star {
        tests.env("PLIMSOLL_MEMORY_CASES", "star");
    }
    shell::run(&mut tests)
}
