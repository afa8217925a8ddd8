//! `--synthetic-kv`: keys and values made up instead of computed, to measure memory at lengths that would take long.

use crate::{cli::RunArgs, error::AppError};
use plimsoll_kvcache::{Error, KvSpec, LayerSpec, Sequence};
use plimsoll_models::ExecError;

/// Rows that are written at once.
const ROWS: usize = 256;

/// Refuses to make up the whole prompt, whose last row is to have logits, logits of rows that are not computed, and blocks that a prefix cache
/// would hand to later runs as computed ones.
pub(super) fn check(args: &RunArgs, prompt_tokens: usize) -> Result<(), AppError> {
    let tokens = args.synthetic_kv;
    match tokens {
        0 => Ok(()),
        _ if tokens >= prompt_tokens => Err(AppError::Usage(format!(
            "--synthetic-kv {tokens}: the prompt has {prompt_tokens} tokens, and the last is to be computed"
        ))),
        _ if args.all_logits() => {
            Err(AppError::Usage("--synthetic-kv leaves rows without logits: ask for those of the last".to_owned()))
        }
        _ if args.prefix.prefix_cache.is_some() => {
            Err(AppError::Usage("--synthetic-kv makes up what --prefix-cache would keep: give one of them".to_owned()))
        }
        _ => Ok(()),
    }
}

/// Fills the first `tokens` of `sequence`, as if a prefill had.
pub(super) fn fill(sequence: &mut Sequence, spec: &KvSpec, tokens: usize) -> Result<(), AppError> {
    // Windows are priced for chunks of so many rows.
    let most_rows = spec.max_chunk_rows.map_or(ROWS, |rows| rows.min(ROWS));
    for start in (0..tokens).step_by(most_rows) {
        let rows = most_rows.min(tokens - start);
        for (layer, of) in spec.layers.iter().enumerate() {
            append(sequence, layer, of, start, rows).map_err(|source| ExecError::Kv { layer, source })?;
        }
        sequence.commit();
    }
    Ok(())
}

fn append(sequence: &mut Sequence, layer: usize, of: &LayerSpec, start: usize, rows: usize) -> Result<(), Error> {
    match of {
        LayerSpec::Kv(of) => {
            let (k, v) = (values(rows * of.layout.k_row_elements()), values(rows * of.layout.v_row_elements()));
            sequence.append(layer, start, &k, &v, rows)
        }
        LayerSpec::Recurrent(_) => sequence.advance(layer, start, rows, |step| step.after.copy_from_slice(step.before)),
        LayerSpec::Stateless => Ok(()),
    }
}

/// Numbers between -0.5 and 0.5.
fn values(count: usize) -> Vec<f32> {
    (0..count).map(|index| (index * 7919 % 1024) as f32 / 1024.0 - 0.5).collect()
}
