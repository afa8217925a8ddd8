//! Arguments that a run and its estimate share: what decides routes, types and bytes.

use super::number;
use crate::error::AppError;
use clap::{Args, ValueEnum};
use plimsoll_memguard::{ByteSize, Ceilings, Policy, RunsOn};
use std::num::NonZeroUsize;

/// What may be used.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct BudgetArgs {
    /// Memory that the process may use, like 512MiB or 4GiB; default: what the machine or its container allows.
    #[arg(long, env = "PLIMSOLL_MEMORY_BUDGET", value_name = "BYTES")]
    pub(crate) memory_budget: Option<ByteSize>,
    /// What stays free for others where no budget is given: `safe` (8 GiB of RAM, a quarter of small machines), `balanced` (6 GiB, three sixteenths),
    /// `aggressive` (4 GiB, an eighth), or `custom:2GiB`. Of a control group that allows less, 64 MiB stay free under every policy, or a sixteenth if
    /// that is less.
    #[arg(long, env = "PLIMSOLL_MEMORY_POLICY", value_name = "POLICY", default_value = "balanced")]
    pub(crate) memory_policy: Policy,
}

/// A budget, and who says so.
#[derive(Debug, Clone)]
pub(crate) struct Limit {
    /// `None` where neither the user nor the machine sets one.
    pub(crate) bytes: Option<u64>,
    pub(crate) source: String,
}

/// A budget that is above what the machine has.
#[derive(Debug)]
pub(crate) struct Beyond {
    pub(crate) given: ByteSize,
    pub(crate) lowest: ByteSize,
    /// Who says so.
    pub(crate) source: String,
}

impl BudgetArgs {
    /// Whether the user's budget is above the lowest of these limits.
    pub(crate) fn beyond(self, ceilings: &Ceilings) -> Option<Beyond> {
        let binding = ceilings.clone().binding(RunsOn::Cpu);
        let (given, lowest) = (self.memory_budget?, binding.lowest_fixed()?);
        let beyond = || Beyond { given, lowest: ByteSize::new(lowest.bytes), source: lowest.source.to_string() };
        (given.bytes() > lowest.bytes).then(beyond)
    }

    /// The user's budget, or what the policy leaves of the lowest of these limits, with its source.
    pub(crate) fn limit(self, ceilings: &Ceilings) -> Limit {
        if let Some(budget) = self.memory_budget {
            return Limit { bytes: Some(budget.bytes()), source: "--memory-budget".to_owned() };
        }
        let policy = self.memory_policy;
        match ceilings.clone().binding(RunsOn::Cpu).budget(policy) {
            Some(budget) => {
                let source = match budget.reserve_bytes {
                    0 => budget.limited_by.source.to_string(),
                    reserve => format!("{}, less {} ({policy})", budget.limited_by.source, ByteSize::new(reserve)),
                };
                Limit { bytes: Some(budget.bytes), source }
            }
            None => Limit { bytes: None, source: "no limit is known".to_owned() },
        }
    }

    /// Refuses a policy that leaves nothing of this machine, unless a budget goes before it.
    pub(super) fn check(self) -> Result<(), AppError> {
        let limit = self.limit(&Ceilings::detect());
        if limit.bytes != Some(0) || self.memory_budget.is_some() {
            return Ok(());
        }
        let message = format!("--memory-policy {} leaves nothing: {}", self.memory_policy, limit.source);
        Err(AppError::Usage(message))
    }
}

/// What the model runs on, and in which types.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct EngineArgs {
    /// Threads; default: one per core that the process may use.
    #[arg(long, env = "PLIMSOLL_THREADS", value_name = "N", value_parser = number::size::<NonZeroUsize>)]
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
    /// Instruction set: `amx`, `avx512`, `avx2`, `neon` or `scalar`; default: the best that this processor has. The results are the same.
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
