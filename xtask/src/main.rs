//! `cargo xtask`: every chore of the workspace, one file per subcommand.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a chore speaks to the terminal")]

mod amx;
mod arm;
mod bench;
mod ci;
mod determinism;
mod golden;
mod memory;
mod models;
mod shell;
mod test;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The chores of the plimsoll workspace.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// All tests; those that need the default model too, if it can be fetched.
    Test(test::Args),
    /// Format, lints, and the rules of the tree that no compiler checks.
    Tidy(tidy::Args),
    /// The tests of the vector kernels on AArch64, emulated where need be; says what is missing if they cannot run.
    Arm(arm::Args),
    /// The tests of the kernels for AMX, emulated on a CPU that has AVX-512 alone; says what is missing if they cannot run.
    Amx(amx::Args),
    /// All that continuous integration runs: tidy, test, each crate alone, packages.
    Ci,
    /// Fetch the models that tests and benches use.
    Models(models::Args),
    /// Write the golden data anew, with Python, in a virtual environment below `target/`.
    Golden(golden::Args),
    /// The memory tests in their long form: plan, count and system on real models, in control groups, at great lengths.
    Memory(memory::Args),
    /// Every way to cut and run a prompt that must change no bit, as a table.
    Determinism(determinism::Args),
    /// Measure, and keep the record in `benches/runs/`.
    Bench(Box<bench::Args>),
}

fn main() -> ExitCode {
    let outcome = match Args::parse().chore {
        Chore::Test(args) => test::run(&args),
        Chore::Tidy(args) => tidy::run(&args),
        Chore::Arm(args) => arm::run(&args),
        Chore::Amx(args) => amx::run(&args),
        Chore::Ci => ci::run(),
        Chore::Models(args) => models::run(&args),
        Chore::Golden(args) => golden::run(&args),
        Chore::Memory(args) => memory::run(&args),
        Chore::Determinism(args) => determinism::run(&args),
        Chore::Bench(args) => bench::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
