//! Finding the peers, and naming those that are absent.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::options::Peers;
use super::process;
use super::side::Side;
use crate::shell;

/// Peers that are there, and why the others are not.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) sides: Vec<Side>,
    pub(super) absent: Vec<String>,
}

/// Looks for each peer; nothing is looked for unless peers were asked for.
pub(super) fn find(args: &Peers) -> Found {
    let mut found = Found::default();
    if !args.peers {
        return found;
    }
    llama(args, env::var_os("PATH").unwrap_or_default().as_os_str().to_owned().into(), &mut found);
    torch(args, &mut found);
    candle(args, &mut found);
    found
}

fn llama(args: &Peers, search: SearchPath, found: &mut Found) {
    if args.llama_bench.is_empty() {
        match search.find("llama-bench") {
            Some(path) => found.sides.push(Side::Llama { label: None, path }),
            None => found.absent.push(
                "llama.cpp: no `llama-bench` in PATH; give --llama-bench PATH (docs/peers.md says how to build it)"
                    .to_owned(),
            ),
        }
    }
    for given in &args.llama_bench {
        let (label, path) = labelled(given);
        if path.is_file() {
            found.sides.push(Side::Llama { label, path });
        } else {
            found.absent.push(format!(
                "llama.cpp{}: no such file as was given",
                label.map_or_else(String::new, |label| format!(" {label}"))
            ));
        }
    }
}

fn torch(args: &Peers, found: &mut Found) {
    let python = args.torch.clone().unwrap_or_else(|| PathBuf::from("python3"));
    let mut probe = Command::new(&python);
    match process::run(probe.args(["-c", "import torch, transformers"])) {
        Ok(_) => {
            let limits: Vec<Option<String>> = match &args.torch_cpu[..] {
                [] => vec![None],
                sets => sets.iter().cloned().map(Some).collect(),
            };
            for &dtype in &args.torch_dtypes {
                let side = |cpu: &Option<String>| Side::Torch {
                    python: python.clone(),
                    dtype,
                    cpu: cpu.clone(),
                    most_tokens: args.torch_tokens,
                };
                found.sides.extend(limits.iter().map(side));
            }
        }
        Err(error) => {
            found.absent.push(format!("torch: {error:#}; give --torch PYTHON, one with torch and transformers"))
        }
    }
}

fn candle(args: &Peers, found: &mut Found) {
    if args.candle_tokens == 0 {
        found.absent.push("candle-transformers: left out (--candle-tokens 0)".to_owned());
        return;
    }
    let build = ["build", "--release", "--workspace", "--features", "plimsoll-tests/peers", "--bin", "peer-candle"];
    match shell::run(&mut shell::cargo(build)) {
        Ok(()) => found.sides.push(Side::Candle { most_tokens: args.candle_tokens }),
        Err(error) => found.absent.push(format!("candle-transformers: {error:#}")),
    }
}

/// `LABEL=PATH`, or a path alone.
fn labelled(given: &str) -> (Option<String>, PathBuf) {
    match given.split_once('=') {
        Some((label, path)) => (Some(label.to_owned()), PathBuf::from(path)),
        None => (None, PathBuf::from(given)),
    }
}

/// Folders that programs are looked for in.
struct SearchPath(std::ffi::OsString);

impl From<std::ffi::OsString> for SearchPath {
    fn from(path: std::ffi::OsString) -> Self {
        Self(path)
    }
}

impl SearchPath {
    fn find(&self, program: &str) -> Option<PathBuf> {
        let name = format!("{program}{}", env::consts::EXE_SUFFIX);
        env::split_paths(&self.0).map(|folder: PathBuf| folder.join(&name)).find(|path: &PathBuf| Path::is_file(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(llama_bench: &[&str]) -> Peers {
        Peers {
            peers: true,
            llama_bench: llama_bench.iter().map(|&given| given.to_owned()).collect(),
            torch: None,
            torch_dtypes: Vec::new(),
            torch_cpu: Vec::new(),
            torch_tokens: 8192,
            peer_runs: None,
            candle_tokens: 512,
        }
    }

    #[test]
    fn a_build_may_have_a_label() {
        assert_eq!(labelled("avx2=bin/llama-bench"), (Some("avx2".to_owned()), PathBuf::from("bin/llama-bench")));
        assert_eq!(labelled("bin/llama-bench"), (None, PathBuf::from("bin/llama-bench")));
    }

    #[test]
    fn peers_that_are_absent_are_named() {
        let mut found = Found::default();
        let folder = tempfile::tempdir().unwrap();
        let nowhere = || SearchPath(folder.path().into());
        llama(&args(&[]), nowhere(), &mut found);
        llama(&args(&["avx2=no/such/file"]), nowhere(), &mut found);
        torch(&Peers { torch: Some("no-such-python-anywhere".into()), ..args(&[]) }, &mut found);
        candle(&Peers { candle_tokens: 0, ..args(&[]) }, &mut found);
        let [path, file, python, candle] = &found.absent[..] else { panic!("{:?}", found.absent) };
        assert!(found.sides.is_empty());
        assert!(path.starts_with("llama.cpp: no `llama-bench` in PATH"), "{path}");
        assert!(file.starts_with("llama.cpp avx2: no such file"), "{file}");
        assert!(candle.starts_with("candle-transformers: left out"), "{candle}");
        assert!(python.starts_with("torch: cannot start no-such-python-anywhere"), "{python}");
    }

    #[test]
    fn builds_that_are_there_are_sides() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(format!("llama-bench{}", env::consts::EXE_SUFFIX));
        std::fs::write(&file, "").unwrap();
        let mut found = Found::default();
        llama(&args(&[]), SearchPath(folder.path().into()), &mut found);
        llama(&args(&[&format!("native={}", file.display())]), SearchPath("".into()), &mut found);
        let names: Vec<_> = found.sides.iter().map(Side::name).collect();
        assert_eq!(names, ["llama.cpp", "llama.cpp native"]);
        assert!(found.absent.is_empty());
    }

    #[test]
    fn without_the_flag_nobody_is_looked_for() {
        let found = find(&Peers { peers: false, ..args(&["x=y"]) });
        assert!(found.sides.is_empty() && found.absent.is_empty());
    }
}
