//! Where results go: what is wrong with a path is told before anything runs.

use super::trace;
use crate::{cli::RunArgs, error::AppError, files::Outputs};
use std::path::Path;

/// Refuses a trace file of an unknown kind, and outputs that cannot be written or would write over something else.
pub(super) fn check(args: &RunArgs) -> Result<(), AppError> {
    match args.memory_trace.as_deref() {
        Some(path) if trace::Kind::of(path).is_none() => {
            let message = format!("--memory-trace {}: the name must end in .csv or .svg", path.display());
            return Err(AppError::Usage(message));
        }
        _ => {}
    }
    let files = [&args.prompt_file, &args.token_ids].into_iter().filter_map(|path| path.as_deref());
    let inputs: Vec<&Path> = files.chain([Path::new(&args.model)]).collect();
    outputs(args).check(&inputs)
}

/// Refuses outputs that would write over a file of the model.
pub(super) fn spare_model(args: &RunArgs, model: &Path) -> Result<(), AppError> {
    outputs(args).spare_model(model)
}

fn outputs(args: &RunArgs) -> Outputs<'_> {
    let all = [
        ("--logits-out", &args.logits_out),
        ("--trace-hashes", &args.trace_hashes),
        ("--memory-trace", &args.memory_trace),
    ];
    Outputs::new(all.map(|(flag, path)| (flag, path.as_deref())))
}
