//! `cargo xtask determinism`: the determinism matrix in the release build, as a table. Fails on a difference.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::{models, shell};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// `tiny` for all tiny models, the name of one, or the short name of a trained model.
    #[arg(long, value_delimiter = ',', default_value = "tiny,smollm2-135m,gemma3-270m")]
    models: Vec<String>,
    /// Axes, such as `chunk,threads`; all if none is named.
    #[arg(long)]
    axes: Option<String>,
    /// Lengths of the prompts, such as `31,513`; otherwise 1, 31, 513 and 3,000, and with Gemma 9,000.
    #[arg(long)]
    prompts: Option<String>,
    /// Types of keys and values.
    #[arg(long, default_value = "bf16")]
    kv: String,
    /// The file that the table is written to; below the target folder if not given.
    #[arg(long)]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    // The whole workspace selected, so that its crates are built with the features that every other chore uses.
    shell::run(&mut shell::cargo(["build", "--release", "--workspace", "--bin", "plimsoll", "--bin", "determinism"]))?;
    let out = args.out.clone().unwrap_or_else(|| shell::target_dir().join("determinism.md"));
    if let Some(folder) = out.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let mut command = Command::new(shell::release_binary("determinism"));
    command.arg("matrix").arg("--plimsoll").arg(shell::release_binary("plimsoll")).arg("--out").arg(&out);
    command.args(["--kv", &args.kv]);
    for (flag, value) in [("--axes", &args.axes), ("--prompts", &args.prompts)] {
        if let Some(value) = value {
            command.args([flag, value]);
        }
    }
    for name in &args.models {
        command.arg(model(name, models::fetch_by_release_binary)?);
    }
    let outcome = shell::run(&mut command);
    println!("the table is in {}", out.display());
    outcome
}

/// What the program is given for a model: tiny ones by name, others with their file.
fn model(name: &str, fetch: impl FnOnce(&str) -> Result<PathBuf>) -> Result<String> {
    if name.starts_with("tiny") {
        return Ok(name.to_owned());
    }
    Ok(format!("{name}={}", fetch(name)?.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_trained_models_are_fetched() {
        let fetch = |name: &str| Ok(PathBuf::from(format!("/models/{name}.gguf")));
        assert_eq!(model("tiny", fetch).unwrap(), "tiny");
        assert_eq!(model("tiny-gemma3", fetch).unwrap(), "tiny-gemma3");
        assert_eq!(model("gemma3-270m", fetch).unwrap(), "gemma3-270m=/models/gemma3-270m.gguf");
    }
}
