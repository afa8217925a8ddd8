//! `--prefix-cache`: what a prompt has in common with earlier ones is read instead of computed.

use super::{answer::Job, budget::Budget};
use crate::{cli::RunArgs, error::AppError, interrupt::interruptible};
use plimsoll_attention::KV_BLOCK_TOKENS;
use plimsoll_kvcache::{DiskOptions, KvSpec, PrefixCache, Snapshots};
use plimsoll_memguard::is_in_memory;
use plimsoll_models::{CpuSettings, ExecError, Model, Session, arch::Architecture};
use plimsoll_prefill::{CancelToken, DEFAULT_MAX_ROWS};
use std::{num::NonZeroUsize, ops::Deref, sync::Arc};

/// Most blocks between two recurrent states in the cache.
const MOST_BLOCKS_BETWEEN: u64 = 8;

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

/// Refuses a limit under which nothing of use could be kept.
pub(super) fn check_limit(args: &RunArgs, spec: &KvSpec) -> Result<(), AppError> {
    let (limit, needed_bytes) = (args.prefix.prefix_cache_limit, DiskOptions::least_bytes(spec));
    if args.prefix.prefix_cache.is_none() || limit.bytes() >= needed_bytes {
        return Ok(());
    }
    Err(AppError::Usage(format!(
        "--prefix-cache-limit {} bytes: the least that a prompt of this model can go on from takes {needed_bytes}, so that nothing would be kept",
        limit.bytes()
    )))
}

/// Recurrent states that a run hands to the cache. They are as far apart as keys and values of their size are long, and 512 tokens at the most,
/// whatever the chunks: what a later prompt finds does not depend on how this one was cut. A chunk's states are kept until it is published.
pub(super) fn snapshots(args: &RunArgs, architecture: &Architecture, settings: &CpuSettings) -> Option<Snapshots> {
    args.prefix.prefix_cache.as_ref()?;
    let spec = settings.kv_spec(architecture);
    let blocks = spec.snapshot_bytes().div_ceil(spec.block_bytes().max(1)).clamp(1, MOST_BLOCKS_BETWEEN);
    let every_blocks = usize::try_from(blocks).ok().and_then(NonZeroUsize::new)?;
    let chunk_rows = args.chunk.fixed_rows().unwrap_or(DEFAULT_MAX_ROWS);
    let keep = NonZeroUsize::new(chunk_rows.div_ceil(KV_BLOCK_TOKENS * every_blocks.get()))?;
    Some(Snapshots { every_blocks, keep })
}

/// The prefix cache of a run, whose end waits until everything is on disk: Ctrl-C drops what is not begun.
#[derive(Debug)]
pub(super) struct RunCache {
    cache: PrefixCache,
    cancel: CancelToken,
}

impl Deref for RunCache {
    type Target = PrefixCache;

    fn deref(&self) -> &PrefixCache {
        &self.cache
    }
}

impl Drop for RunCache {
    fn drop(&mut self) {
        self.cache.finish(|| self.cancel.is_cancelled());
        tracing::debug!(stats = ?self.cache.disk_stats(), "prefix cache");
    }
}

/// The cache in the folder that was named, if any. One prompt profits from files alone: nothing is kept in memory. Ctrl-C ends the hash over
/// all weights.
pub(super) fn open(
    args: &RunArgs,
    model: &Arc<Model>,
    budget: &Budget,
    settings: &CpuSettings,
    cancel: &CancelToken,
) -> Result<Option<RunCache>, AppError> {
    let args = &args.prefix;
    let Some(folder) = &args.prefix_cache else { return Ok(None) };
    let disk = DiskOptions { folder: folder.clone(), limit_bytes: args.prefix_cache_limit.bytes() };
    let spec = settings.kv_spec(model.architecture());
    let (model, settings) = (Arc::clone(model), *settings);
    let identity = interruptible(cancel, "hashing the weights", move || model.cache_identity(&settings))?;
    let fault = |source| AppError::File { doing: "use", path: folder.clone(), source };
    let cache = PrefixCache::with_disk(&budget.ledger, &spec, &identity, 0, &disk).map_err(fault)?;
    if is_in_memory(folder) {
        tracing::warn!(
            "the files of --prefix-cache {} are memory, up to {} bytes that no budget counts: name a folder on a disk",
            folder.display(),
            disk.limit_bytes
        );
    }
    Ok(Some(RunCache { cache, cancel: cancel.clone() }))
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
