//! The contract of the binary: what scripts may depend on, checked on the built program.
//!
//! Models come from `tests/golden` of the workspace, which the packaged crate does not hold: without it, tests say that they did not run.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod attention;
mod bad_models;
#[cfg(unix)]
mod cancel;
mod doctor;
mod estimate;
#[cfg(unix)]
mod fetch;
mod flags;
#[cfg(unix)]
mod hub;
mod json_page;
mod logits;
mod memory;
mod model_file;
mod model_folder;
mod output;
mod plan;
mod prefix_cache;
mod sampling;
mod traces;
mod usage;

use safetensors::SafeTensors;
use serde_json::Value;
use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use tempfile::TempDir;

/// A golden case: a model file, and what it answers.
pub(crate) struct Golden {
    pub(crate) model: PathBuf,
    pub(crate) ids: Vec<u32>,
    pub(crate) greedy: Vec<u32>,
    pub(crate) greedy_steps: usize,
}

/// Where the golden cases are; `None`, with a line on standard error, where the workspace's golden data are not there.
pub(crate) fn golden_folder() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    if !folder.is_dir() {
        eprintln!("NOT RUN: {} is missing (a packaged crate has no golden data)", folder.display());
        return None;
    }
    Some(folder)
}

/// The golden case `name`; `None` as [`golden_folder`].
pub(crate) fn golden(name: &str) -> Option<Golden> {
    let folder = golden_folder()?.join(name);
    let bytes = fs::read(folder.join("logits.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let ids = |name: &str| {
        let data = tensors.tensor(name).unwrap().data().to_vec();
        data.chunks_exact(8).map(|id| u32::try_from(i64::from_le_bytes(id.try_into().unwrap())).unwrap()).collect()
    };
    let case: Value = serde_json::from_slice(&fs::read(folder.join("case.json")).unwrap()).unwrap();
    Some(Golden {
        model: folder.join("model.gguf"),
        ids: ids("ids"),
        greedy: ids("greedy"),
        greedy_steps: usize::try_from(case["checks"]["greedy_steps"].as_u64().unwrap()).unwrap(),
    })
}

/// A finished run of the program.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Standard output of a run that went well.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        assert_eq!(self.stderr, "");
        self.stdout
    }

    /// The JSON object of a run that went well.
    #[track_caller]
    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    /// The message of a run that failed with `code`; checks the form of errors.
    #[track_caller]
    pub(crate) fn fails(self, code: i32) -> String {
        let Self { stdout, stderr, .. } = &self;
        assert_eq!(self.code, Some(code), "{stdout}{stderr}");
        assert_eq!(stdout, "", "an error prints nothing on standard output");
        assert!(stderr.ends_with('\n') && !stderr.contains("panicked"), "{stderr}");
        let mut lines = stderr.lines();
        let message = lines.next().and_then(|line| line.strip_prefix("error: "));
        assert!(message.is_some_and(|message| message.len() > 8), "{stderr}");
        assert!(lines.all(|line| line.starts_with("  hint: ") && line.len() > 12), "{stderr}");
        self.stderr
    }
}

/// The program, with none of the caller's settings.
pub(crate) fn plimsoll<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_setting(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    command.env("PLIMSOLL_LOG", "error").args(args).stdin(Stdio::null());
    command
}

/// What of the environment the program reads.
fn is_setting(name: &str) -> bool {
    ["PLIMSOLL_", "HF_", "HUGGINGFACE_"].iter().any(|prefix| name.starts_with(prefix))
}

pub(crate) fn finish(mut command: Command) -> Ran {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

pub(crate) fn run<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Ran {
    finish(plimsoll(args))
}

/// A folder for one test's files.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A file of `content`; its path as an argument.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        fs::write(self.path(name), content).unwrap();
        self.arg(name)
    }

    /// A file of token ids.
    pub(crate) fn ids(&self, ids: &[u32]) -> String {
        let words: Vec<String> = ids.iter().map(u32::to_string).collect();
        self.file("ids.txt", words.join(" "))
    }

    pub(crate) fn arg(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }
}

/// `run -m <model> --token-ids <ids>` and `more`.
pub(crate) fn run_ids(folder: &Folder, model: &Path, ids: &[u32], more: &[&str]) -> Ran {
    let ids = folder.ids(ids);
    let args = ["run", "-m", model.to_str().unwrap(), "--token-ids", &ids];
    run(args.iter().chain(more))
}
