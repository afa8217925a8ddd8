//! Where results go: what is wrong with a path is told before anything runs.

use super::trace;
use crate::{cli::RunArgs, error::AppError, files};
use std::path::{Path, PathBuf};

/// Refuses a trace file of an unknown kind, a folder that is not there or cannot be written to, and outputs that would write over a device, a link, an
/// input or each other.
pub(super) fn check(args: &RunArgs) -> Result<(), AppError> {
    match args.memory_trace.as_deref() {
        Some(path) if trace::Kind::of(path).is_none() => {
            let message = format!("--memory-trace {}: the name must end in .csv or .svg", path.display());
            return Err(AppError::Usage(message));
        }
        _ => {}
    }
    let given = |path: &Option<PathBuf>| path.as_deref().and_then(|path| path.canonicalize().ok());
    let mut taken = vec![given(&Some(PathBuf::from(&args.model))), given(&args.prompt_file), given(&args.token_ids)];
    for (flag, path) in outputs(args) {
        let refused = |why: &str| Err(AppError::Usage(format!("{flag} {}: {why}", path.display())));
        files::check_output(flag, path)?;
        let real = real_path(path);
        if taken.iter().flatten().any(|taken| *taken == real) {
            return refused("another argument names the same file");
        }
        taken.push(Some(real));
    }
    Ok(())
}

/// Refuses outputs that would write over a file of the model, which is a GGUF file, one part of several, or a folder.
pub(super) fn spare_model(args: &RunArgs, model: &Path) -> Result<(), AppError> {
    let (Ok(model), whole_folder) = (model.canonicalize(), model.is_dir()) else { return Ok(()) };
    let folder = if whole_folder { model.as_path() } else { files::folder_of(&model) };
    for (flag, path) in outputs(args) {
        let real = real_path(path);
        // Other parts of a split model are GGUF files beside the one that was named.
        let of_model = real == model || whole_folder || real.extension() == model.extension();
        if real.exists() && real.parent() == Some(folder) && of_model {
            return Err(AppError::Usage(format!("{flag} {}: it is a file of the model", path.display())));
        }
    }
    Ok(())
}

/// The outputs that are asked for, by their flags.
fn outputs(args: &RunArgs) -> impl Iterator<Item = (&'static str, &Path)> {
    let all = [
        ("--logits-out", &args.logits_out),
        ("--trace-hashes", &args.trace_hashes),
        ("--memory-trace", &args.memory_trace),
    ];
    all.into_iter().filter_map(|(flag, path)| Some((flag, path.as_deref()?)))
}

/// The path with its folder resolved, whether the file exists or not.
fn real_path(path: &Path) -> PathBuf {
    match (files::folder_of(path).canonicalize(), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}
