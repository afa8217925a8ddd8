//! `--prefix-cache`: what a prompt has in common with earlier ones is read instead of computed.

use super::{answer::Job, budget::Budget};
use crate::{cli::RunArgs, error::AppError, interrupt::interruptible};
use plimsoll_kvcache::{DiskOptions, KvSpec, PrefixCache, Snapshots};
use plimsoll_models::{CpuSettings, ExecError, Model, Session};
use plimsoll_prefill::CancelToken;
use std::{num::NonZeroUsize, sync::Arc};

/// Refuses a path that cannot become a folder: what is there already, or the nearest of its parents that is, is something else.
pub(super) fn check(args: &RunArgs) -> Result<(), AppError> {
    let Some(folder) = &args.prefix.prefix_cache else { return Ok(()) };
    match folder.ancestors().find(|path| path.symlink_metadata().is_ok()) {
        Some(path) if !path.is_dir() => {
            let what = if path == folder { "it".to_owned() } else { path.display().to_string() };
            Err(AppError::Usage(format!("--prefix-cache {}: {what} is no folder", folder.display())))
        }
        _ => Ok(()),
    }
}

/// Refuses a limit under which not even one block could be kept.
pub(super) fn check_limit(args: &RunArgs, spec: &KvSpec) -> Result<(), AppError> {
    let (limit, needed_bytes) = (args.prefix.prefix_cache_limit, DiskOptions::block_file_bytes(spec));
    if args.prefix.prefix_cache.is_none() || limit.bytes() >= needed_bytes {
        return Ok(());
    }
    Err(AppError::Usage(format!(
        "--prefix-cache-limit {} bytes: a block of 64 tokens of this model takes {needed_bytes}, so that nothing would be kept",
        limit.bytes()
    )))
}

/// Recurrent states that a run keeps for the cache: the one at the end of the chunk that was computed last.
pub(super) fn snapshots(args: &RunArgs) -> Option<Snapshots> {
    let one = NonZeroUsize::MIN;
    args.prefix.prefix_cache.as_ref().map(|_| Snapshots { every_blocks: one, keep: one })
}

/// The cache in the folder that was named, if any. One prompt profits from files alone: nothing is kept in memory. Ctrl-C ends the hash over
/// all weights.
pub(super) fn open(
    args: &RunArgs,
    model: &Arc<Model>,
    budget: &Budget,
    settings: &CpuSettings,
    cancel: &CancelToken,
) -> Result<Option<PrefixCache>, AppError> {
    let args = &args.prefix;
    let Some(folder) = &args.prefix_cache else { return Ok(None) };
    let disk = DiskOptions { folder: folder.clone(), limit_bytes: args.prefix_cache_limit.bytes() };
    let spec = settings.kv_spec(model.architecture());
    let (model, settings) = (Arc::clone(model), *settings);
    let identity = interruptible(cancel, "hashing the weights", move || model.cache_identity(&settings))?;
    let fault = |source| AppError::File { doing: "use", path: folder.clone(), source };
    PrefixCache::with_disk(&budget.ledger, &spec, &identity, 0, &disk).map(Some).map_err(fault)
}

impl Job<'_> {
    /// Reads what the cache has of the prompt's beginning into `session`. Where something is wanted of every row, all are computed.
    pub(super) fn restore<S: Session>(&self, session: &mut S) -> Result<(), ExecError> {
        match &self.cache {
            Some(cache) if !self.args.all_logits() && self.args.trace_hashes.is_none() => {
                let cached = session.restore(cache, self.prompt)?;
                tracing::debug!(cached, prompt_tokens = self.prompt.len(), "prefix cache");
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
