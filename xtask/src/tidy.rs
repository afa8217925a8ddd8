//! `cargo xtask tidy`: format, lints, and the rules of the tree that no compiler checks.

mod rules;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::shell;

#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Only the rules of the tree: no format check, no lints.
    #[arg(long)]
    tree_only: bool,
}

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    /// Printed; changes nothing.
    Note,
    /// Fails the chore.
    Error,
}

/// One place where the tree breaks a rule.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    level: Level,
    /// Relative to the root.
    path: String,
    /// Counted from one; `None` for the whole file.
    line: Option<usize>,
    text: String,
}

/// Folders that hold nothing of ours.
const SKIPPED_FOLDERS: [&str; 5] = [".git", "target", "__pycache__", ".venv", "node_modules"];

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut errors = check_tree(&shell::root())?;
    if !args.tree_only {
        let format = shell::run(&mut shell::cargo(["fmt", "--all", "--check"]));
        let lints = ["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"];
        for outcome in [format, shell::run(&mut shell::cargo(lints))] {
            if let Err(error) = outcome {
                println!("error: {error:#}");
                errors += 1;
            }
        }
    }
    if errors > 0 {
        bail!("{errors} things to tidy");
    }
    println!("tidy");
    Ok(())
}

/// Prints every finding and returns how many of them are errors.
fn check_tree(root: &Path) -> Result<usize> {
    let mut findings = Vec::new();
    for path in files(root)? {
        let shown = shown(root, &path);
        // What is not UTF-8 is data.
        if let Ok(text) = fs::read_to_string(&path) {
            rules::check_file(&shown, &text, &mut findings);
        }
    }
    for (package, folder) in shell::crates()? {
        rules::check_crate(root, &package, &folder, &mut findings);
    }
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    for finding in &findings {
        let level = match finding.level {
            Level::Note => "note",
            Level::Error => "error",
        };
        let line = finding.line.map_or_else(String::new, |line| format!(":{line}"));
        println!("{level}: {}{line}: {}", finding.path, finding.text);
    }
    Ok(findings.iter().filter(|finding| finding.level == Level::Error).count())
}

/// Every file below `root`, sorted, links to folders not followed.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            if !entry.file_type()?.is_dir() {
                found.push(entry.path());
            } else if !SKIPPED_FOLDERS.iter().any(|name| entry.file_name() == *name) {
                folders.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// `path` below `root`, with `/` between its parts on every system.
fn shown(root: &Path, path: &Path) -> String {
    let below = path.strip_prefix(root).unwrap_or(path);
    below.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/")
}
