//! `cargo xtask ci`: all that continuous integration runs.

use anyhow::{Context as _, Result, ensure};

use crate::{shell, test, tidy};

/// Packages that count and plan, and never see a tensor.
const WITHOUT_CANDLE: [&str; 3] = ["plimsoll-program", "plimsoll-memguard", "plimsoll-prefill"];

/// Never published, so they need not be packages.
const UNPUBLISHED: [&str; 4] = ["xtask", "plimsoll-tests", "plimsoll-amx-emulator", "plimsoll-foreign"];

const LICENCES: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];

pub(crate) fn run() -> Result<()> {
    tidy::run(&tidy::Args::default())?;
    test::run(&test::Args::default())?;
    let crates = shell::crates()?;
    for (package, _) in &crates {
        each_alone(package).with_context(|| format!("{package} does not stand alone"))?;
    }
    for package in WITHOUT_CANDLE {
        no_candle(package)?;
    }
    for (package, _) in &crates {
        licences_are_packaged(package)?;
    }
    let mut package = shell::cargo(["package", "--workspace", "--allow-dirty"]);
    package.args(UNPUBLISHED.iter().flat_map(|package| ["--exclude", package]));
    shell::run(&mut package)
}

fn each_alone(package: &str) -> Result<()> {
    shell::run(&mut shell::cargo(["test", "--package", package]))?;
    shell::run(&mut shell::cargo(["build", "--package", package, "--no-default-features"]))
}

fn no_candle(package: &str) -> Result<()> {
    let tree = shell::output(&mut shell::cargo(["tree", "--package", package, "--all-features", "--prefix", "none"]))?;
    let candle: Vec<&str> = candle_lines(&tree).collect();
    ensure!(candle.is_empty(), "{package} depends on candle: {}", candle.join(", "));
    println!("{package} does not depend on candle");
    Ok(())
}

fn candle_lines(tree: &str) -> impl Iterator<Item = &str> {
    tree.lines().filter(|line| line.starts_with("candle"))
}

fn licences_are_packaged(package: &str) -> Result<()> {
    let list = shell::output(&mut shell::cargo(["package", "--package", package, "--allow-dirty", "--list"]))?;
    for licence in LICENCES {
        ensure!(list.lines().any(|file| file == licence), "the package of {package} lacks {licence}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candle_is_found_anywhere_in_a_tree() {
        let tree = "plimsoll-prefill v0.1.0 (/x/candle)\nthiserror v2.0.0\ncandle-core v0.11.1\nlibc v0.2.0 (*)\n";
        assert_eq!(candle_lines(tree).collect::<Vec<_>>(), ["candle-core v0.11.1"]);
    }
}
