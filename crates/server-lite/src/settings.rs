//! From flags to start-up settings: what decides routes is fixed here.

use crate::{
    cli::{AttentionArg, EngineArgs, KvDtypeArg, QuantizeArg},
    error::AppError,
};
use plimsoll_attention::{KvDtype, RouteKind};
use plimsoll_linear::WeightType;
use plimsoll_models::{CpuSettings, LoadOptions};
use plimsoll_prefill::DEFAULT_MAX_ROWS;
use std::{num::NonZeroUsize, thread};

/// Most threads that can be asked for: far beyond any machine, and small enough that per-thread scratch stays countable.
const MAX_THREADS: usize = 1024;

/// Settings of the CPU executor. `chunk_rows`: rows of a chunk if the user fixed them.
pub(crate) fn cpu(args: &EngineArgs, chunk_rows: Option<usize>) -> Result<CpuSettings, AppError> {
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
    // Layers with a sliding window cost no more than the window and the largest chunk that prefill may run.
    settings.max_chunk_rows = Some(chunk_rows.unwrap_or(DEFAULT_MAX_ROWS));
    settings.attention_route = args.attention.map(|route| match route {
        AttentionArg::Tiled => RouteKind::Tiled,
        AttentionArg::Reference => RouteKind::Reference,
    });
    if let Some(isa) = args.cpu {
        let isa = isa.require().map_err(|error| AppError::Usage(format!("--cpu {isa}: {error}")))?;
        settings = settings.with_isa(isa);
    }
    tell_routes(args, &settings);
    Ok(settings)
}

/// Says why attention runs as it does: once, for it holds for every pass.
fn tell_routes(args: &EngineArgs, settings: &CpuSettings) {
    let isa = settings.attention_isa.name();
    match settings.attention_route {
        Some(RouteKind::Reference) => {
            tracing::warn!(
                "attention is forced to the reference route, which is slow, by --attention or PLIMSOLL_ATTENTION"
            );
        }
        Some(_) => tracing::warn!(isa, "attention is forced to the tiled route by --attention or PLIMSOLL_ATTENTION"),
        None if args.cpu.is_some() => {
            tracing::info!(isa, "attention takes the route of the shape on the instruction set of --cpu")
        }
        None => tracing::info!(isa, "attention takes the route of the shape on the best instruction set of this CPU"),
    }
}

/// How weights are read.
pub(crate) fn loading(args: &EngineArgs) -> LoadOptions {
    LoadOptions::quantized(args.quantize.map(|wanted| match wanted {
        QuantizeArg::Q8_0 => WeightType::Q8_0,
        QuantizeArg::Q4K => WeightType::Q4K,
    }))
}
