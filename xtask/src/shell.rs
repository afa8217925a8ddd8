//! Running other programs from the root of the workspace.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use anyhow::{Context as _, Result, ensure};

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    // `cargo run` sets the variable at run time too, so a moved folder does no harm.
    let here =
        env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().map_or_else(|| here.clone(), Path::to_path_buf)
}

/// Where cargo builds.
pub(crate) fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Where the release build of a program is.
pub(crate) fn release_binary(name: &str) -> PathBuf {
    target_dir().join("release").join(format!("{name}{}", env::consts::EXE_SUFFIX))
}

/// Cargo, in the root, with `args`.
pub(crate) fn cargo<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(args);
    // Set for this program by `cargo run`; a nested cargo would take them for its own and build again.
    for name in ["CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH"] {
        command.env_remove(name);
    }
    command
}

/// Prints the command, runs it, and fails if it does.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = show(command);
    println!("$ {shown}");
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot start `{shown}`"))?;
    ensure!(status.success(), "`{shown}` failed ({status})");
    Ok(())
}

/// Runs the command and returns what it wrote to standard output; standard error goes through to the terminal.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{shown}`"))?;
    ensure!(output.status.success(), "`{shown}` failed ({})", output.status);
    String::from_utf8(output.stdout).with_context(|| format!("`{shown}` did not print UTF-8"))
}

/// The packages below `crates/`, as (package, folder), in alphabetical order of folders.
pub(crate) fn crates() -> Result<Vec<(String, PathBuf)>> {
    let dir = root().join("crates");
    let mut folders: Vec<PathBuf> = fs::read_dir(&dir)
        .with_context(|| format!("cannot list {}", dir.display()))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    folders.retain(|folder| folder.join("Cargo.toml").is_file());
    folders.sort();
    folders.into_iter().map(|folder| Ok((package_name(&folder.join("Cargo.toml"))?, folder))).collect()
}

fn package_name(manifest: &Path) -> Result<String> {
    let text = fs::read_to_string(manifest).with_context(|| format!("cannot read {}", manifest.display()))?;
    text.lines()
        .find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
        .map(str::to_owned)
        .with_context(|| format!("{} names no package", manifest.display()))
}

fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let mut shown = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    // Cargo passes itself on by its full path.
    if let Some(rest) = shown.split_once("/bin/cargo ").map(|(_, rest)| format!("cargo {rest}")) {
        shown = rest;
    }
    shown
}
