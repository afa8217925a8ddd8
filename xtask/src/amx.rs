//! `cargo xtask amx`: the tests of the crates with AMX kernels, under an emulator of those instructions where the CPU has none of them.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use anyhow::{Context as _, Result, bail, ensure};

use crate::shell;

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Packages with AMX kernels.
const PACKAGES: [&str; 2] = ["plimsoll-linear", "plimsoll-attention"];

const EMULATOR: &str = "plimsoll-amx-emulator";

/// Names a file that each process under the emulator appends the number of its products to.
const COUNT_VARIABLE: &str = "PLIMSOLL_AMX_EMULATOR_COUNT";

/// Under this the kernels take for granted that there are tiles.
const EMULATED: [&str; 2] = ["--cfg", "plimsoll_emulated_amx"];

/// Flags of a CPU with which the kernels run as they are, and of one on which they run with the emulator: Linux's names.
const NATIVE: [&str; 3] = ["amx_tile", "amx_bf16", "avx512_bf16"];
const EMULATING: [&str; 1] = ["avx512_bf16"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Passed on to the tests: a filter, or options of the harness.
    #[arg(last = true, value_name = "ARGUMENTS")]
    tests: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let is_linux = cfg!(all(target_os = "linux", target_arch = "x86_64"));
    let cpu =
        if is_linux { fs::read_to_string("/proc/cpuinfo").context("cannot ask for the CPU")? } else { String::new() };
    let flags = flags(&cpu);
    if missing(&flags, &NATIVE).is_empty() {
        return PACKAGES.iter().try_for_each(|package| shell::run(&mut tests(package, args)));
    }
    let missing = missing(&flags, &EMULATING);
    if !missing.is_empty() {
        println!("\nSKIPPED: no test ran on AMX, and none can be emulated. Missing:");
        if !is_linux {
            println!("- Linux on x86-64");
        }
        missing.iter().for_each(|flag| println!("- the CPU's {flag}"));
        return Ok(());
    }
    // Built with other flags, so other files stay apart.
    let target_dir = shell::target_dir().join("amx");
    let mut build = shell::cargo(["build", "--package", EMULATOR]);
    shell::run(emulated(&mut build, &target_dir))?;
    let emulator = target_dir.join(TARGET).join("debug/libplimsoll_amx_emulator.so");
    ensure!(emulator.is_file(), "cargo did not build {}", emulator.display());
    let counts = PACKAGES.iter().map(|package| {
        let count = target_dir.join(format!("{package}.products"));
        if count.exists() {
            fs::remove_file(&count).with_context(|| format!("cannot remove {}", count.display()))?;
        }
        let mut tests = tests(package, args);
        // Only the tests run under the emulator: cargo and the compiler do not.
        let runner = format!("env LD_PRELOAD={}", emulator.display());
        tests.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", runner).env(COUNT_VARIABLE, &count);
        shell::run(emulated(&mut tests, &target_dir))?;
        products(&count)
    });
    let counts = counts.collect::<Result<Vec<u64>>>()?;
    println!("\nThe tests that were asked for passed. Products of tiles that were emulated:");
    PACKAGES.iter().zip(&counts).for_each(|(package, count)| println!("- {package}: {count}"));
    // A filter may leave one package without.
    let is_proof = if args.tests.is_empty() { counts.iter().all(|n| *n > 0) } else { counts.iter().any(|n| *n > 0) };
    if !is_proof {
        bail!("tests passed without AMX: it is not what they ran on");
    }
    Ok(())
}

/// The tests of a package, without the examples in documentation: another program compiles those, and has flags of its own.
fn tests(package: &str, args: &Args) -> Command {
    let mut tests = shell::cargo(["test", "--no-default-features", "--lib", "--tests", "--package", package]);
    tests.arg("--").args(&args.tests);
    tests
}

/// Makes the command build for the emulator. The target is named, so that the flags do not apply to build scripts.
fn emulated<'a>(command: &'a mut Command, target_dir: &Path) -> &'a mut Command {
    let (name, flags) = rust_flags(env::var_os("CARGO_ENCODED_RUSTFLAGS"), env::var_os("RUSTFLAGS"));
    command.env(name, flags).env("CARGO_BUILD_TARGET", TARGET).env("CARGO_TARGET_DIR", target_dir)
}

/// The flags for the compiler that are set anyway and our own, in the variable that cargo reads first.
fn rust_flags(encoded: Option<OsString>, plain: Option<OsString>) -> (&'static str, OsString) {
    let (name, flags, separator) = match (encoded, plain) {
        (Some(flags), _) => ("CARGO_ENCODED_RUSTFLAGS", flags, "\u{1f}"),
        (None, flags) => ("RUSTFLAGS", flags.unwrap_or_default(), " "),
    };
    let mut all = flags;
    for flag in EMULATED {
        if !all.is_empty() {
            all.push(separator);
        }
        all.push(flag);
    }
    (name, all)
}

/// What the first CPU of `/proc/cpuinfo` can do, as far as the system lets it.
fn flags(cpuinfo: &str) -> Vec<&str> {
    let line = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")?.split_once(':'));
    line.map_or_else(Vec::new, |(_, flags)| flags.split_whitespace().collect())
}

fn missing(flags: &[&str], wanted: &[&'static str]) -> Vec<&'static str> {
    wanted.iter().copied().filter(|wanted| !flags.contains(wanted)).collect()
}

/// The sum of the numbers in the file, one a line; 0 if no process wrote it.
fn products(count: &Path) -> Result<u64> {
    if !count.exists() {
        return Ok(0);
    }
    let text = fs::read_to_string(count).with_context(|| format!("cannot read {}", count.display()))?;
    let numbers = text.lines().map(|line| line.parse::<u64>().with_context(|| format!("not a number: {line}")));
    numbers.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPUINFO: &str =
        "processor\t: 0\nflags\t\t: fpu avx512_bf16 avx512_bf16x\nbugs\t\t: amx_tile\nflags\t\t: amx_bf16\n";

    #[test]
    fn a_cpu_is_asked_for_whole_flags() {
        let flags = flags(CPUINFO);
        assert_eq!(missing(&flags, &EMULATING), [""; 0]);
        assert_eq!(missing(&flags, &NATIVE), ["amx_tile", "amx_bf16"]);
        assert_eq!(missing(&[], &EMULATING), EMULATING);
    }

    #[test]
    fn flags_of_the_compiler_are_kept() {
        let flags = |encoded: Option<&str>, plain: Option<&str>| {
            let (name, flags) = rust_flags(encoded.map(Into::into), plain.map(Into::into));
            format!("{name}={}", flags.display())
        };
        assert_eq!(flags(None, None), "RUSTFLAGS=--cfg plimsoll_emulated_amx");
        assert_eq!(flags(None, Some("-D warnings")), "RUSTFLAGS=-D warnings --cfg plimsoll_emulated_amx");
        let encoded = flags(Some("-D\u{1f}warnings"), Some("-O"));
        assert_eq!(encoded, "CARGO_ENCODED_RUSTFLAGS=-D\u{1f}warnings\u{1f}--cfg\u{1f}plimsoll_emulated_amx");
    }

    #[test]
    fn products_of_all_processes_are_added_up() {
        let dir = tempfile::tempdir().unwrap();
        let count = dir.path().join("products");
        assert_eq!(products(&count).unwrap(), 0);
        fs::write(&count, "0\n40\n2\n").unwrap();
        assert_eq!(products(&count).unwrap(), 42);
        fs::write(&count, "many\n").unwrap();
        assert!(products(&count).is_err());
    }
}
