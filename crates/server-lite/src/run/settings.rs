//! From flags to start-up settings: what decides routes is fixed here.

use crate::{
    cli::{AttentionArg, IsaArg, KvDtypeArg, RunArgs},
    error::AppError,
};
use plimsoll_attention::{KvDtype, RouteKind};
use plimsoll_models::CpuSettings;
use std::{num::NonZeroUsize, thread};

/// Most threads that can be asked for: far beyond any machine, and small enough that per-thread scratch stays countable.
const MAX_THREADS: usize = 1024;

/// Settings of the CPU executor.
pub(super) fn cpu(args: &RunArgs) -> Result<CpuSettings, AppError> {
    let threads = match args.threads {
        Some(threads) => threads.get(),
        None => thread::available_parallelism().map_or(1, NonZeroUsize::get),
    };
    if threads > MAX_THREADS {
        return Err(AppError::Usage(format!("--threads {threads} is more than {MAX_THREADS}")));
    }
    let kv_dtype = match args.kv_dtype {
        KvDtypeArg::F32 => KvDtype::F32,
        KvDtypeArg::F16 => KvDtype::F16,
        KvDtypeArg::Bf16 => KvDtype::Bf16,
    };
    let mut settings = CpuSettings::detect(threads, kv_dtype);
    settings.attention_route = args.attention.map(|route| match route {
        AttentionArg::Tiled => RouteKind::Tiled,
        AttentionArg::Reference => RouteKind::Reference,
    });
    if let Some(isa) = args.isa {
        let (linear, attention) = match isa {
            IsaArg::Scalar => (plimsoll_linear::Isa::Scalar, plimsoll_attention::Isa::Scalar),
            IsaArg::Avx2 => (plimsoll_linear::Isa::Avx2, plimsoll_attention::Isa::Avx2),
        };
        let has_attention = plimsoll_attention::Isa::available().any(|available| available == attention);
        if !has_attention || !linear.is_available() {
            return Err(AppError::Usage(format!("this processor does not have {isa:?}: leave --isa out")));
        }
        (settings.linear_isa, settings.attention_isa) = (linear, attention);
    }
    Ok(settings)
}
