//! Where KV blocks of earlier prompts are kept.

use clap::Args;
use plimsoll_memguard::ByteSize;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct PrefixArgs {
    /// Folder of keys and values of earlier prompts: what a prompt has in common with them is read instead of computed, with the same result.
    #[arg(long, env = "PLIMSOLL_PREFIX_CACHE", value_name = "DIR")]
    pub(crate) prefix_cache: Option<PathBuf>,
    /// Most bytes of that folder; what was used longest ago goes first.
    #[arg(long, env = "PLIMSOLL_PREFIX_CACHE_LIMIT", value_name = "BYTES", default_value = "4GiB")]
    pub(crate) prefix_cache_limit: ByteSize,
}
