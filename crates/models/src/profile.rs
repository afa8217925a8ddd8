//! What a model costs on the CPU executor, before or after its weights are loaded: the planner's own numbers.

use crate::{
    arch::Architecture,
    executor::cost::{CpuCost, CpuSettings},
    model::{LoadPlan, Model, WeightTypes},
};
use plimsoll_memguard::{Pass, Profile};
use plimsoll_program::Dims;

/// Prices a model on the CPU executor: KV by its layers, transients by planning its program. No weight is needed.
#[derive(Debug, Clone, Copy)]
pub struct CpuProfile<'a> {
    architecture: &'a Architecture,
    weight_types: &'a WeightTypes,
    weights_bytes: u64,
    settings: CpuSettings,
}

impl<'a> CpuProfile<'a> {
    /// Of a model that is not loaded yet.
    #[must_use]
    pub fn of_plan(plan: &'a LoadPlan, settings: CpuSettings) -> Self {
        Self {
            architecture: plan.architecture(),
            weight_types: plan.weight_types(),
            weights_bytes: plan.weights_bytes(),
            settings,
        }
    }

    /// Of a loaded model; the same numbers.
    #[must_use]
    pub fn of_model(model: &'a Model, settings: CpuSettings) -> Self {
        Self {
            architecture: model.architecture(),
            weight_types: model.weight_types(),
            weights_bytes: model.weights_bytes(),
            settings,
        }
    }
}

impl Profile for CpuProfile<'_> {
    fn weights_bytes(&self) -> u64 {
        self.weights_bytes
    }

    fn kv_bytes(&self, context_tokens: usize) -> u64 {
        self.architecture.kv_spec(self.settings.kv_dtype).bytes(context_tokens)
    }

    /// The peak of the pass by the program's plan: exactly the arena that the executor makes.
    fn transient_bytes(&self, pass: &Pass) -> u64 {
        let dims = Dims { rows: pass.rows, logit_rows: pass.logit_rows, kv_len: pass.start.saturating_add(pass.rows) };
        let cost = CpuCost { weight_types: self.weight_types, settings: self.settings };
        self.architecture.program.plan(&dims, &cost).peak_bytes
    }
}
