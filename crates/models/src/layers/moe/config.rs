//! Sizes of a mixture of experts and which layers have one, from either kind of checkpoint.

use crate::{
    checkpoint::{Fields, Keys, weights::Weights},
    error::ModelError,
};
use plimsoll_program::{RouteSpec, Scoring};

/// The experts of a model, fields named as in `config.json`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MoeConfig {
    pub(crate) num_experts: usize,
    pub(crate) num_experts_per_tok: usize,
    pub(crate) moe_intermediate_size: usize,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub(crate) norm_topk_prob: bool,
    /// Of the expert that all rows share; `None` if there is none.
    pub(crate) shared_expert_intermediate_size: Option<usize>,
}

/// Where a layer's feed-forward block is one of experts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SparseLayers {
    /// As `config.json` has it: every `step`th layer but those listed.
    Stated {
        /// `decoder_sparse_step`.
        step: usize,
        /// `mlp_only_layers`.
        dense: Vec<usize>,
    },
    /// Where the file has a router: GGUF has no key for it.
    Found,
}

impl SparseLayers {
    /// `decoder_sparse_step` and `mlp_only_layers`.
    ///
    /// # Errors
    /// [`ModelError`] naming the field at fault.
    pub(crate) fn from_fields(fields: &Fields<'_>) -> Result<Self, ModelError> {
        let step = fields.find_size("decoder_sparse_step")?.unwrap_or(1);
        let dense = match fields.value("mlp_only_layers") {
            None => Vec::new(),
            Some(value) => value
                .as_array()
                .and_then(|layers| layers.iter().map(|layer| usize::try_from(layer.as_u64()?).ok()).collect())
                .ok_or_else(|| fields.unsupported("mlp_only_layers", "a list of layer numbers"))?,
        };
        Ok(Self::Stated { step, dense })
    }

    /// Whether `layer` has experts.
    pub(crate) fn contains(&self, layer: usize, weights: &Weights<'_>) -> bool {
        match self {
            Self::Stated { step, dense } => (layer + 1).is_multiple_of(*step) && !dense.contains(&layer),
            Self::Found => weights.has(&format!("blk.{layer}.ffn_gate_inp.weight")),
        }
    }
}

impl MoeConfig {
    /// Reads `config.json`; `None` if it says that there are no experts. `normalizes`: what the class takes where the file says nothing.
    ///
    /// # Errors
    /// [`ModelError`] naming a field that is missing, of the wrong type, out of range, or not supported.
    pub(crate) fn from_fields(fields: &Fields<'_>, normalizes: bool, shared: bool) -> Result<Option<Self>, ModelError> {
        // The name in files of transformers 5 is the other one.
        let key = if fields.contains("num_experts") { "num_experts" } else { "num_local_experts" };
        if fields.value(key).and_then(serde_json::Value::as_u64) == Some(0) {
            fields.skip(&[
                "num_experts_per_tok",
                "moe_intermediate_size",
                "norm_topk_prob",
                "shared_expert_intermediate_size",
            ]);
            return Ok(None);
        }
        let num_experts = fields.size(key)?;
        let num_experts_per_tok = fields.size("num_experts_per_tok")?;
        if num_experts_per_tok > num_experts {
            return Err(
                fields.unsupported("num_experts_per_tok", &format!("at most {num_experts}, the number of experts"))
            );
        }
        let shared = if shared { Some(fields.size("shared_expert_intermediate_size")?) } else { None };
        Ok(Some(Self {
            num_experts,
            num_experts_per_tok,
            moe_intermediate_size: fields.size("moe_intermediate_size")?,
            norm_topk_prob: fields.find_flag("norm_topk_prob")?.unwrap_or(normalizes),
            shared_expert_intermediate_size: shared,
        }))
    }

    /// Reads the metadata of a GGUF file. llama.cpp normalizes the weights of these architectures.
    ///
    /// # Errors
    /// [`ModelError`] naming a key that is missing, of the wrong type, out of range, or not supported.
    pub(crate) fn from_keys(keys: &Keys<'_>, shared: bool) -> Result<Self, ModelError> {
        keys.neutral(&[
            ("expert_weights_norm", &[1.0]),
            ("expert_weights_scale", &[0.0, 1.0]),
            // 1 is softmax, 0 "not set".
            ("expert_gating_func", &[0.0, 1.0]),
            ("expert_group_count", &[0.0, 1.0]),
            ("expert_group_used_count", &[0.0, 1.0]),
            ("expert_shared_count", &[0.0, 1.0]),
        ])?;
        let num_experts = keys.size("expert_count")?;
        let num_experts_per_tok = keys.size("expert_used_count")?;
        if num_experts_per_tok > num_experts {
            let supported = format!("at most {num_experts}, the number of experts");
            return Err(keys.unsupported("expert_used_count", num_experts_per_tok, supported));
        }
        let shared = if shared { Some(keys.size("expert_shared_feed_forward_length")?) } else { None };
        Ok(Self {
            num_experts,
            num_experts_per_tok,
            moe_intermediate_size: keys.size("expert_feed_forward_length")?,
            norm_topk_prob: true,
            shared_expert_intermediate_size: shared,
        })
    }

    /// How rows choose.
    pub(crate) fn route(&self) -> RouteSpec {
        RouteSpec { k: self.num_experts_per_tok, scoring: Scoring::Softmax, normalize: self.norm_topk_prob, scale: 1.0 }
    }
}
