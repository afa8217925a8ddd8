//! `cargo xtask golden`: writes the golden data anew, or holds the binary to the reference in full. Tests read what is committed and never
//! need Python.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::{models, shell};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Scripts to run, by name; all of them if none is named.
    scripts: Vec<String>,
    /// Write nothing: print the mean KL divergence of the release binary from the f32 reference, over the full vocabulary.
    #[arg(long, conflicts_with = "scripts")]
    kl: bool,
}

/// A program below `tests/golden/` that writes golden data.
struct Script {
    name: &'static str,
    path: &'static str,
    /// Its arguments; `MODEL` stands for the default model's file.
    args: &'static [&'static str],
}

const SCRIPTS: &[Script] = &[
    Script { name: "tiny_llama", path: "tiny_llama.py", args: &[] },
    Script { name: "tiny_models", path: "tiny_models.py", args: &[] },
    Script { name: "smollm2", path: "smollm2.py", args: &["write", "--model", MODEL] },
    Script { name: "tokenizer", path: "tokenizer/make.py", args: &[MODEL] },
];

const MODEL: &str = "MODEL";

/// Contexts of the KL reference, 512 rows each.
const KL_CONTEXTS: usize = 2;

pub(crate) fn run(args: &Args) -> Result<()> {
    let dir = shell::root().join("tests/golden");
    let scripts = pick(&args.scripts)?;
    let python = environment(&dir.join("requirements.txt"))?;
    let model = models::fetch(models::DEFAULT_MODEL)?;
    if args.kl {
        return kl(&dir, &python, &model);
    }
    for script in scripts {
        let mut command = Command::new(&python);
        command.arg(script.path).current_dir(&dir);
        for &arg in script.args {
            if arg == MODEL {
                command.arg(&model)
            } else {
                command.arg(arg)
            };
        }
        shell::run(&mut command)?;
    }
    Ok(())
}

/// Runs the binary over the reference's contexts and lets the script compare every logit of every row.
fn kl(dir: &Path, python: &Path, model: &Path) -> Result<()> {
    shell::run(&mut shell::cargo(["build", "--release", "--package", "plimsoll"]))?;
    let binary = shell::target_dir().join("release").join(format!("plimsoll{}", env::consts::EXE_SUFFIX));
    let mut ours = Vec::new();
    for context in 0..KL_CONTEXTS {
        let ids = shell::target_dir().join(format!("kl-{context}.ids"));
        let list = ["smollm2.py", "ids", "--context", &context.to_string()];
        let text = shell::output(Command::new(python).args(list).current_dir(dir))?;
        std::fs::write(&ids, text).with_context(|| format!("cannot write {}", ids.display()))?;
        let logits = shell::target_dir().join(format!("kl-{context}.safetensors"));
        let mut command = Command::new(&binary);
        command.arg("run").arg("--model").arg(model).arg("--token-ids").arg(&ids);
        command.args(["--max-tokens", "0", "--json", "--logit-rows", "all", "--logits-out"]).arg(&logits);
        shell::output(&mut command)?;
        ours.push(logits);
    }
    let mut compare = Command::new(python);
    compare.args(["smollm2.py", "kl", "--model"]).arg(model).arg("--ours").args(&ours).current_dir(dir);
    shell::run(&mut compare)
}

fn pick(names: &[String]) -> Result<Vec<&'static Script>> {
    if names.is_empty() {
        return Ok(SCRIPTS.iter().collect());
    }
    let by_name = |name: &String| match SCRIPTS.iter().find(|script| script.name == name) {
        Some(script) => Ok(script),
        None => {
            let known: Vec<_> = SCRIPTS.iter().map(|script| script.name).collect();
            bail!("no golden script `{name}`; there are {}", known.join(", "))
        }
    };
    names.iter().map(by_name).collect()
}

/// The Python of a virtual environment that has `requirements`, made if need be.
fn environment(requirements: &Path) -> Result<PathBuf> {
    ensure!(requirements.is_file(), "{} is missing", requirements.display());
    let venv = shell::target_dir().join("golden-venv");
    let python = venv.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    if !python.exists() {
        let system = env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
        shell::run(Command::new(system).args(["-m", "venv"]).arg(&venv))?;
    }
    // Quick when nothing changed, and right when something did.
    shell::run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(requirements))?;
    Ok(python)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_exists_and_can_be_picked_by_name() {
        for script in SCRIPTS {
            assert!(shell::root().join("tests/golden").join(script.path).is_file(), "{} is missing", script.path);
            assert_eq!(pick(&[script.name.to_owned()]).unwrap()[0].path, script.path);
        }
        assert_eq!(pick(&[]).unwrap().len(), SCRIPTS.len());
    }

    #[test]
    fn an_unknown_script_is_an_error_that_names_the_known_ones() {
        let error = pick(&["lib".to_owned()]).err().unwrap().to_string();
        assert_eq!(error, "no golden script `lib`; there are tiny_llama, tiny_models, smollm2, tokenizer");
    }
}
