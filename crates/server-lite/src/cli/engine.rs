//! Arguments that a run and its estimate share: what decides routes, types and bytes.

use clap::{Args, ValueEnum};
use plimsoll_memguard::{ByteSize, Ceilings};
use std::num::NonZeroUsize;

/// What may be used.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct BudgetArgs {
    /// Memory that the process may use, like 512MiB or 4GiB; default: what the machine or its container allows.
    #[arg(long, env = "PLIMSOLL_MEMORY_BUDGET", value_name = "BYTES")]
    pub(crate) memory_budget: Option<ByteSize>,
}

impl BudgetArgs {
    /// The user's budget, or the lowest limit that the machine sets; `None` where neither says anything.
    pub(crate) fn limit_bytes(self) -> Option<u64> {
        let found = || Ceilings::detect().lowest_fixed().map(|ceiling| ceiling.bytes);
        self.memory_budget.map(ByteSize::bytes).or_else(found)
    }
}

/// What the model runs on, and in which types.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct EngineArgs {
    /// Threads; default: one per core that the process may use.
    #[arg(long, env = "PLIMSOLL_THREADS", value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Quantize matrices that are stored as f32, f16 or bf16 to this type while they are read.
    #[arg(long, env = "PLIMSOLL_QUANTIZE", value_enum)]
    pub(crate) quantize: Option<QuantizeArg>,
    /// Type in which keys and values are kept.
    #[arg(long, env = "PLIMSOLL_KV_DTYPE", value_enum, default_value_t = KvDtypeArg::Bf16)]
    pub(crate) kv_dtype: KvDtypeArg,
    /// Where to run.
    #[arg(long, env = "PLIMSOLL_DEVICE", value_enum, default_value_t = DeviceArg::Cpu)]
    pub(crate) device: DeviceArg,
    /// Force an attention route: `tiled` or `reference`; default: by shape.
    #[arg(long, env = "PLIMSOLL_ATTENTION", value_enum, hide = true)]
    pub(crate) attention: Option<AttentionArg>,
    /// Instruction set: `amx`, `avx512`, `avx2` or `scalar`; default: the best that this processor has. The results are the same.
    #[arg(long, alias = "isa", env = "PLIMSOLL_CPU", value_name = "SET")]
    pub(crate) cpu: Option<plimsoll_linear::Isa>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvDtypeArg {
    F32,
    F16,
    Bf16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum QuantizeArg {
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q4_k")]
    Q4K,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceArg {
    Cpu,
    Metal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AttentionArg {
    Tiled,
    Reference,
}
