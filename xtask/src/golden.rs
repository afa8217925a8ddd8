//! `cargo xtask golden`: writes the golden data anew. Tests read what is committed and never need Python.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context as _, Result, ensure};

use crate::{models, shell, test};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Scripts of `tests/golden/`, without `.py`; all of them if none is named.
    scripts: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let dir = shell::root().join("tests/golden");
    let scripts = pick(all_scripts(&dir)?, &args.scripts)?;
    let python = environment(&dir.join("requirements.txt"))?;
    let model = models::fetch(models::DEFAULT_MODEL)?;
    for script in scripts {
        shell::run(Command::new(&python).arg(&script).current_dir(&dir).env(test::MODEL_VARIABLE, &model))?;
    }
    Ok(())
}

/// The Python files that are programs; the others are modules they import.
fn all_scripts(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut scripts = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let path = entry?.path();
        if path.extension() == Some(OsStr::new("py")) && fs::read_to_string(&path)?.contains("__main__") {
            scripts.push(path);
        }
    }
    scripts.sort();
    ensure!(!scripts.is_empty(), "no scripts in {}", dir.display());
    Ok(scripts)
}

fn pick(scripts: Vec<PathBuf>, names: &[String]) -> Result<Vec<PathBuf>> {
    if names.is_empty() {
        return Ok(scripts);
    }
    let by_name = |name: &String| {
        let found = scripts.iter().find(|script| script.file_stem() == Some(OsStr::new(name)));
        found.cloned().with_context(|| format!("no script `{name}` in tests/golden"))
    };
    names.iter().map(by_name).collect()
}

/// The Python of a virtual environment that has `requirements`, made if need be.
fn environment(requirements: &Path) -> Result<PathBuf> {
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
    fn only_programs_are_scripts_and_they_can_be_picked_by_name() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in
            [("b.py", "if __name__ == '__main__':"), ("a.py", "__main__"), ("lib.py", ""), ("c.txt", "__main__")]
        {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let all = all_scripts(dir.path()).unwrap();
        assert_eq!(all, [dir.path().join("a.py"), dir.path().join("b.py")]);
        assert_eq!(pick(all.clone(), &["b".to_owned()]).unwrap(), [dir.path().join("b.py")]);
        assert!(pick(all.clone(), &["lib".to_owned()]).is_err());
        assert_eq!(pick(all, &[]).unwrap().len(), 2);
    }

    #[test]
    fn a_folder_without_scripts_is_an_error() {
        assert!(all_scripts(tempfile::tempdir().unwrap().path()).is_err());
    }
}
