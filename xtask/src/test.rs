//! `cargo xtask test`: all tests that can run on this machine.

use anyhow::Result;

use crate::{models, shell};

/// The file of the default model, for the tests that need it.
pub(crate) const MODEL_VARIABLE: &str = "PLIMSOLL_TEST_MODEL";

#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Leave out the tests that need the default model.
    #[arg(long)]
    fast: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    shell::run(&mut shell::cargo(["test", "--workspace"]))?;
    if args.fast {
        println!("\nSKIPPED: the tests that need the model {}, because of --fast.", models::DEFAULT_MODEL);
        return Ok(());
    }
    let model = match models::fetch_by_tested_binary(models::DEFAULT_MODEL) {
        Ok(model) => model,
        // There the network is expected: a silent skip would hide half of what is claimed.
        Err(error) if std::env::var_os("CI").is_some() => {
            return Err(error.context("the default model is needed in CI"));
        }
        Err(error) => {
            println!("\nSKIPPED: the tests that need the model {}: {error:#}.", models::DEFAULT_MODEL);
            println!("All other tests passed.");
            return Ok(());
        }
    };
    // The same packages and profile as above: nothing is built twice. One at a time: each uses all cores.
    let slow = ["test", "--workspace", "--tests", "--", "--ignored", "--test-threads=1"];
    shell::run(shell::cargo(slow).env(MODEL_VARIABLE, &model))?;
    println!("\nAll tests passed, those with {} included.", models::DEFAULT_MODEL);
    Ok(())
}
