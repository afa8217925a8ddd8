//! Grouped-query attention with what real models add to it: biases, norms of q and k, windows, soft-caps.

use super::mlp::LinearWeights;
use crate::{
    arch::Sizes,
    checkpoint::{
        source::Rows,
        weights::{Bias, Weights},
    },
};
use plimsoll_program::{Activation, AttendSpec, DType, Extent, ProgramBuilder, RopeLayout, Slot};

/// Weights of one attention block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionWeights {
    pub(crate) q: LinearWeights,
    pub(crate) k: LinearWeights,
    pub(crate) v: LinearWeights,
    pub(crate) o: LinearWeights,
    /// What `q_norm` and `k_norm` are of.
    pub(crate) norms: QkNorms,
    /// RMS norm of q before RoPE: `[head_dim]` or `[heads * head_dim]`.
    pub(crate) q_norm: Option<Slot>,
    /// As `q_norm`, of k.
    pub(crate) k_norm: Option<Slot>,
    /// What the result is multiplied by the sigmoid of, `[heads * head_dim, hidden_size]`.
    pub(crate) gate: Option<LinearWeights>,
}

/// Norms of q and k before RoPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QkNorms {
    None,
    /// Of each head alone, one weight for all heads.
    Heads,
    /// Of all heads together.
    Whole,
}

/// Which optional weights an attention block has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionParts {
    pub(crate) qkv_bias: Bias,
    pub(crate) output_bias: Bias,
    pub(crate) norms: QkNorms,
    /// A gate of the result, in one tensor with q: the rows of each head's query before those of its gate.
    pub(crate) gated: bool,
}

/// How one attention block computes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionSpec {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    /// Factor on scores.
    pub(crate) scale: f32,
    /// Keys a row sees, itself included.
    pub(crate) window: Option<usize>,
    /// `cap * tanh(score / cap)` after the scale.
    pub(crate) softcap: Option<f32>,
    pub(crate) layout: RopeLayout,
    /// Of the norms of q and k.
    pub(crate) eps: f32,
}

impl AttentionSpec {
    /// Causal attention over all keys with a scale of `1 / sqrt(head_dim)`.
    pub(crate) fn usual(sizes: &Sizes, layout: RopeLayout) -> Self {
        Self {
            heads: sizes.num_attention_heads,
            kv_heads: sizes.num_key_value_heads,
            scale: sizes.attention_scale(),
            window: None,
            softcap: None,
            layout,
            eps: sizes.rms_norm_eps,
        }
    }
}

impl AttentionWeights {
    /// Declares the block of `layer` under GGUF's names.
    pub(crate) fn declare(
        b: &mut ProgramBuilder,
        w: &mut Weights<'_>,
        sizes: &Sizes,
        layer: usize,
        parts: AttentionParts,
    ) -> Self {
        let (hidden, q_width, kv_width) = (sizes.hidden_size, sizes.q_width(), sizes.kv_width());
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (q, gate) = if parts.gated {
            let stored = w.stored_name(&name("attn_q.weight"));
            let stored = stored.strip_suffix(".weight").unwrap_or(&stored);
            let mut half = |stem: &str, start: usize| {
                let rows = Rows::Groups { group_rows: 2 * sizes.head_dim, start, len: sizes.head_dim };
                w.linear_rows(b, &name(stem), [q_width, hidden], (stored, 2 * q_width, rows), parts.qkv_bias)
            };
            (half("attn_q", 0), Some(half("attn_q_gate", sizes.head_dim)))
        } else {
            (w.linear(b, &name("attn_q"), [q_width, hidden], parts.qkv_bias), None)
        };
        let k = w.linear(b, &name("attn_k"), [kv_width, hidden], parts.qkv_bias);
        let v = w.linear(b, &name("attn_v"), [kv_width, hidden], parts.qkv_bias);
        let o = w.linear(b, &name("attn_output"), [hidden, q_width], parts.output_bias);
        let mut norm = |part: &str, whole: usize| {
            let width = match parts.norms {
                QkNorms::None => return None,
                QkNorms::Heads => sizes.head_dim,
                QkNorms::Whole => whole,
            };
            Some(w.norm(b, &name(&format!("{part}.weight")), width))
        };
        let (q_norm, k_norm) = (norm("attn_q_norm", q_width), norm("attn_k_norm", kv_width));
        Self { q, k, v, o, norms: parts.norms, q_norm, k_norm, gate }
    }
}

/// Records one block. `x`: `[rows, hidden_size]`, same shape out. `rope_table`: `[rows, rotary_dim]`. KV belongs to the sequence, never to
/// the model.
pub(crate) fn attention(
    b: &mut ProgramBuilder,
    layer: usize,
    x: Slot,
    rope_table: Slot,
    w: &AttentionWeights,
    spec: &AttentionSpec,
) -> Slot {
    let mut projections = vec![w.q, w.k, w.v];
    projections.extend(w.gate);
    let projections: Vec<_> = projections.into_iter().map(|linear| (linear.weight, linear.bias)).collect();
    let qkv = b.linear_many(x, &projections);
    let rotated = |b: &mut ProgramBuilder, x: Slot, heads: usize, norm: Option<Slot>| {
        let x = match norm {
            Some(norm) if w.norms == QkNorms::Whole => b.rms_norm_assign(x, norm, spec.eps),
            _ => x,
        };
        let x = b.split_heads(x, heads); // [rows, heads, head_dim]
        let x = match norm {
            Some(norm) if w.norms == QkNorms::Heads => b.rms_norm_assign(x, norm, spec.eps),
            _ => x,
        };
        b.rope_assign(x, rope_table, spec.layout)
    };
    let q = rotated(b, qkv[0], spec.heads, w.q_norm);
    let k = rotated(b, qkv[1], spec.kv_heads, w.k_norm);
    let v = b.split_heads(qkv[2], spec.kv_heads); // [rows, kv_heads, head_dim]
    let attend = AttendSpec { scale: spec.scale, window: spec.window, softcap: spec.softcap, sinks: None };
    let kv = b.state(format!("blk.{layer}.kv"), Extent::Fixed(0), DType::F32);
    let out = b.attend(layer, q, k, v, kv, attend); // [rows, heads, head_dim]
    let out = b.merge_heads(out); // [rows, heads * head_dim]
    let out = match qkv.get(3) {
        Some(&gate) => b.glu_assign(gate, out, Activation::Sigmoid),
        None => out,
    };
    w.o.apply(b, out)
}
