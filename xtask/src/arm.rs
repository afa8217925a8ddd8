//! `cargo xtask arm`: the tests of the crates with vector kernels on AArch64, under an emulator where the machine is another.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::Result;

use crate::shell;

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// Packages with NEON kernels.
const PACKAGES: [&str; 2] = ["plimsoll-linear", "plimsoll-attention"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A compiler that has the standard library of aarch64-unknown-linux-gnu, or the source of its own; default: the one cargo uses.
    #[arg(long, env = "PLIMSOLL_ARM_RUSTC", value_name = "PATH")]
    rustc: Option<PathBuf>,
    /// The linker for AArch64.
    #[arg(long, env = "PLIMSOLL_ARM_LINKER", value_name = "PATH", default_value = "aarch64-linux-gnu-gcc")]
    linker: PathBuf,
    /// The emulator.
    #[arg(long, env = "PLIMSOLL_ARM_QEMU", value_name = "PATH", default_value = "qemu-aarch64")]
    qemu: PathBuf,
    /// The folder with the C library for AArch64.
    #[arg(long, env = "PLIMSOLL_ARM_SYSROOT", value_name = "DIR", default_value = "/usr/aarch64-linux-gnu")]
    sysroot: PathBuf,
    /// The CPU that is emulated. The default has the instructions that every AArch64 CPU has and no others.
    #[arg(long, env = "PLIMSOLL_ARM_CPU", value_name = "NAME", default_value = "cortex-a57")]
    cpu: String,
    /// Passed on to the tests: a filter, or options of the harness.
    #[arg(last = true, value_name = "ARGUMENTS")]
    tests: Vec<String>,
}

/// Where the standard library for the target comes from.
#[derive(Debug, PartialEq, Eq)]
enum Library {
    /// The compiler has it.
    Installed,
    /// It is built from the source that the compiler has.
    Source,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut tests = shell::cargo(["test", "--no-default-features"]);
    tests.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
    if cfg!(target_arch = "aarch64") {
        return shell::run(tests.arg("--").args(&args.tests));
    }
    let rustc = args.rustc.clone().or_else(|| env::var_os("RUSTC").map(Into::into)).unwrap_or_else(|| "rustc".into());
    let library = library(&rustc);
    let missing = missing(args, library.as_ref());
    if !missing.is_empty() {
        println!("\nSKIPPED: no test ran on AArch64. Missing:");
        missing.iter().for_each(|missing| println!("- {missing}"));
        return Ok(());
    }
    let runner = format!("{} -cpu {} -L {}", args.qemu.display(), args.cpu, args.sysroot.display());
    // Without the examples in documentation: another program compiles those, and may be of another version.
    tests.args(["--lib", "--tests", "--target", TARGET]).env("RUSTC", &rustc);
    tests.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", &args.linker);
    tests.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
    // Other compilers' files stay apart, or each run of either would build all anew.
    tests.env("CARGO_TARGET_DIR", shell::target_dir().join("arm"));
    if library == Some(Library::Source) {
        // A released compiler builds its own library only if it is told that it may.
        tests.arg("-Zbuild-std=std,panic_unwind,test").env("RUSTC_BOOTSTRAP", "1");
    }
    shell::run(tests.arg("--").args(&args.tests))?;
    println!("\nThe tests of {} that were asked for passed on an emulated {}.", PACKAGES.join(" and "), args.cpu);
    Ok(())
}

/// What the chore cannot do without, each with how to get it or to say where it is.
fn missing(args: &Args, library: Option<&Library>) -> Vec<String> {
    let mut missing = Vec::new();
    if library.is_none() {
        missing.push(format!(
            "the standard library: `rustup target add {TARGET}`, or `rustup component add rust-src`, or --rustc with a compiler that has either"
        ));
    }
    if !is_program(&args.linker) {
        missing.push(format!(
            "the linker {}: Debian's gcc-aarch64-linux-gnu, or --linker with its path",
            args.linker.display()
        ));
    }
    if !args.sysroot.join("lib").is_dir() {
        missing.push(format!(
            "a C library in {}: Debian's libc6-dev-arm64-cross, or --sysroot with its folder",
            args.sysroot.display()
        ));
    }
    if !is_program(&args.qemu) {
        missing.push(format!("the emulator {}: Debian's qemu-user, or --qemu with its path", args.qemu.display()));
    }
    missing
}

/// Where `rustc` has the library of the target from; `None` if nowhere, or if there is no such compiler.
fn library(rustc: &Path) -> Option<Library> {
    let printed = |args: &[&str]| {
        let output = Command::new(rustc).args(args).output().ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok().map(|path| PathBuf::from(path.trim()))
    };
    let is_std = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libstd-"));
    let installed = printed(&["--print", "target-libdir", "--target", TARGET])
        .and_then(|dir| fs::read_dir(dir).ok())
        .is_some_and(|mut files| files.any(|file| file.is_ok_and(|file| is_std(&file.path()))));
    if installed {
        return Some(Library::Installed);
    }
    let source = printed(&["--print", "sysroot"])?.join("lib/rustlib/src/rust/library/std/Cargo.toml");
    source.is_file().then_some(Library::Source)
}

/// Whether a program of this name is found where it is said to be, or in a folder of `PATH`.
fn is_program(name: &Path) -> bool {
    let folders = || env::var_os("PATH").is_some_and(|folders| is_in(&folders, name));
    if name.components().count() > 1 { name.is_file() } else { folders() }
}

fn is_in(folders: &OsStr, name: &Path) -> bool {
    env::split_paths(folders).any(|folder| folder.join(name).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn what_is_missing_is_named_with_the_option_that_says_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let nowhere = dir.path().join("nowhere");
        let nowhere = nowhere.to_str().unwrap();
        let line = ["arm", "--linker", nowhere, "--qemu", nowhere, "--sysroot", nowhere];
        let args = Line::parse_from(line).args;
        let missing = missing(&args, None);
        for (missing, option) in missing.iter().zip(["--rustc", "--linker", "--sysroot", "--qemu"]) {
            assert!(missing.contains(option), "{missing} does not name {option}");
        }
        assert_eq!(missing.len(), 4);
    }

    #[test]
    fn nothing_is_missing_where_all_is_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        fs::write(&program, "").unwrap();
        fs::create_dir(dir.path().join("lib")).unwrap();
        let (program, sysroot) = (program.to_str().unwrap(), dir.path().to_str().unwrap());
        let args = Line::parse_from(["arm", "--linker", program, "--qemu", program, "--sysroot", sysroot]).args;
        assert!(missing(&args, Some(&Library::Source)).is_empty());
    }

    #[test]
    fn a_compiler_that_is_not_there_has_no_library() {
        assert_eq!(library(Path::new("no-such-compiler")), None);
    }

    #[test]
    fn programs_are_looked_for_in_every_folder_of_the_path() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("program"), "").unwrap();
        let folders = env::join_paths([&dir.path().join("empty"), dir.path()]).unwrap();
        assert!(is_in(&folders, Path::new("program")) && !is_in(&folders, Path::new("other")));
    }
}
