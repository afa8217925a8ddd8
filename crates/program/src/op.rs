//! Steps: what a program can do, and the one walk over the slots an operation names.

mod params;

pub use params::{
    Activation, AttendSpec, Carry, Condition, HeadOrder, LinearPart, RopeLayout, RouteSpec, ScanInput, ScanOutput,
    Scoring, Unary,
};

use crate::{ChainId, Slot};

/// One operation over slots.
///
/// Matched without a wildcard everywhere, on purpose: an operation added here does not compile until liveness, pricing
/// and every executor know it. "Row" is a row of [`Extent`](crate::Extent): a `Fixed` slot is one row. `out` is a fresh
/// slot, or, for the in-place forms of the builder, a view of the operand's memory (compare their roots).
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// `out[r] = table[ids[r]]`.
    Embed {
        /// U32, `[rows, 1]`.
        ids: Slot,
        /// Constant `[vocabulary, width]`.
        table: Slot,
        /// `[rows, width]`.
        out: Slot,
    },
    /// `out = x weight^T + bias` for each part; the parts share one pass over `x`.
    Linear {
        /// `[.., in_features]`.
        x: Slot,
        /// At least one.
        parts: Vec<LinearPart>,
    },
    /// `out = x / sqrt(mean(x^2) + eps) * weight`, the mean over `width / groups` elements.
    RmsNorm {
        /// `[.., width]`, in groups.
        x: Slot,
        /// Constant `[width / groups]`.
        weight: Slot,
        /// Added to the mean of squares.
        eps: f32,
        /// As `x`.
        out: Slot,
    },
    /// Angles `positions[r] * inv_freq[i]`: `rotated / 2` cosines, then as many sines, both times `scale`.
    RopeTable {
        /// U32, `[rows, 1]`.
        positions: Slot,
        /// Constant F32 `[rotated / 2]`.
        inv_freq: Slot,
        /// Factor on cosine and sine (YaRN's attention factor); 1 otherwise.
        scale: f32,
        /// F32 `[rows, rotated]`.
        out: Slot,
    },
    /// Rotates the first `rotated` elements of each head, copies the rest.
    Rope {
        /// `[.., heads * head_dim]`, in `heads` groups.
        x: Slot,
        /// `[.., rotated]`, from [`Op::RopeTable`].
        table: Slot,
        /// Which elements rotate together.
        layout: RopeLayout,
        /// As `x`.
        out: Slot,
    },
    /// Appends `k` and `v` to the layer's KV, then lets every row attend to the keys it sees.
    Attend {
        /// Layer number, for the KV of the sequence.
        layer: usize,
        /// `[rows, heads * head_dim]`, in `heads` groups.
        q: Slot,
        /// `[rows, kv_heads * head_dim]`, in `kv_heads` groups.
        k: Slot,
        /// `[rows, kv_heads * v_head_dim]`, in `kv_heads` groups.
        v: Slot,
        /// The layer's KV.
        state: Slot,
        /// Scale, window and the like.
        spec: AttendSpec,
        /// `[rows, heads * v_head_dim]`, in `heads` groups.
        out: Slot,
    },
    /// `out = activation(gate) * up`.
    Glu {
        /// Any float extent.
        gate: Slot,
        /// As `gate`.
        up: Slot,
        /// Applied to `gate`.
        activation: Activation,
        /// As `gate`.
        out: Slot,
    },
    /// `out = function(x)`, element by element.
    Unary {
        /// Any float extent.
        x: Slot,
        /// The function.
        function: Unary,
        /// As `x`.
        out: Slot,
    },
    /// `out = a + b`; a `Fixed` `b` of one row's width is added to every row.
    Add {
        /// Any float extent.
        a: Slot,
        /// As `a`, or `[width]`.
        b: Slot,
        /// As `a`.
        out: Slot,
    },
    /// `out = a * b`; a `Fixed` `b` of one row's width multiplies every row.
    Mul {
        /// Any float extent.
        a: Slot,
        /// As `a`, or `[width]`.
        b: Slot,
        /// As `a`.
        out: Slot,
    },
    /// `out = x * factor`.
    Scale {
        /// Any float extent.
        x: Slot,
        /// The factor.
        factor: f32,
        /// As `x`.
        out: Slot,
    },
    /// `out = cap * tanh(x / cap)`.
    Softcap {
        /// Any float extent.
        x: Slot,
        /// Bound of the result's magnitude.
        cap: f32,
        /// As `x`.
        out: Slot,
    },
    /// `out[i] = x[rows[i]]`.
    SelectRows {
        /// `[rows, width]`.
        x: Slot,
        /// U32, `[logit_rows, 1]`.
        rows: Slot,
        /// `[logit_rows, width]`.
        out: Slot,
    },
    /// `out = x`; `out` may be state.
    Copy {
        /// Anything.
        x: Slot,
        /// As `x`.
        out: Slot,
    },
    /// Every element of `out` is `value`.
    Fill {
        /// The value.
        value: f32,
        /// F32, any extent.
        out: Slot,
    },
    /// The sum of all elements.
    Sum {
        /// Any float extent.
        x: Slot,
        /// F32 `[1]`.
        out: Slot,
    },
    /// Chooses experts: scores over all of a row, the `k` largest in descending order, ties to the lowest number, NaN last.
    TopK {
        /// `[.., experts]`.
        logits: Slot,
        /// Number of experts, scores, weights.
        spec: RouteSpec,
        /// U32 `[.., k]`: the experts, none twice.
        ids: Slot,
        /// F32 `[.., k]`: their scores, divided by their sum (in the order of `ids`) if so asked, times the scale.
        weights: Slot,
    },
    /// One product per chosen expert: slot `j` of `out` is `x_j weight[ids[j]]^T`.
    ExpertLinear {
        /// `[.., in_features]`, which every slot sees, or `[.., k * in_features]`, a part for each slot.
        x: Slot,
        /// U32 `[.., k]`, below the number of experts.
        ids: Slot,
        /// Constant `[experts, out_features, in_features]`.
        weight: Slot,
        /// `[.., k * out_features]`, in `k` groups.
        out: Slot,
    },
    /// `out = sum over j of weights[j] * x_j`, in ascending `j`.
    CombineExperts {
        /// `[.., k * width]`.
        x: Slot,
        /// `[.., k]`.
        weights: Slot,
        /// `[.., width]`.
        out: Slot,
    },
    /// `out[r] = x[r] * factor[r]`.
    ScaleRows {
        /// `[.., width]`.
        x: Slot,
        /// `[.., 1]`.
        factor: Slot,
        /// As `x`.
        out: Slot,
    },
    /// Elements `offset..offset + n` of each group of a row.
    SelectColumns {
        /// `[.., width]`, in groups.
        x: Slot,
        /// First element of each group.
        offset: usize,
        /// `[.., groups * n]`, in as many groups.
        out: Slot,
    },
    /// Depthwise convolution over the rows of a sequence: `out[t, c] = sum over j of weight[c, j] * x[t - (kernel - 1) + j, c]`
    /// in ascending `j`, plus `bias[c]` at the end. Rows before the pass are the state, which becomes the last `kernel - 1` rows.
    CausalConv {
        /// Layer number, for the state of the sequence.
        layer: usize,
        /// `[rows, channels]`.
        x: Slot,
        /// Constant `[channels * kernel]`, the taps of a channel side by side.
        weight: Slot,
        /// Constant `[channels]`.
        bias: Option<Slot>,
        /// F32 state `[(kernel - 1) * channels]`: rows, oldest first; zero before the first token.
        state: Slot,
        /// `[rows, channels]`.
        out: Slot,
    },
    /// Gated delta rule, token by token, for each value head with its key head:
    /// `S = S * e^decay`, `d = (v - S^T k) * beta`, `S = S + k d^T`, `out = S^T q`; sums over `head_dim` ascend.
    ///
    /// Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464.
    GatedDelta {
        /// Layer number, for the state of the sequence.
        layer: usize,
        /// `[rows, key_heads * head_dim]`, in `key_heads` groups, normalized and scaled as the model wants them.
        q: Slot,
        /// As `q`.
        k: Slot,
        /// `[rows, value_heads * v_head_dim]`, in `value_heads` groups.
        v: Slot,
        /// `[rows, value_heads]`: logarithm of what is kept of the state.
        decay: Slot,
        /// `[rows, value_heads]`: how much of the difference is written.
        beta: Slot,
        /// Which key head a value head works with.
        order: HeadOrder,
        /// F32 state `[value_heads * head_dim * v_head_dim]`, one matrix `[head_dim, v_head_dim]` per value head; zero before the
        /// first token.
        state: Slot,
        /// As `v`.
        out: Slot,
    },
    /// Runs one of two chains. Both write the same slots, which a chain around them owns.
    If {
        /// Chooses the branch.
        condition: Condition,
        /// Runs if the condition holds.
        then_chain: ChainId,
        /// Runs if it does not.
        else_chain: ChainId,
    },
    /// Runs `body` once for each row of the pass, in ascending order.
    Scan {
        /// The chain to run.
        body: ChainId,
        /// Before each iteration, `row` becomes row `i` of `source`.
        inputs: Vec<ScanInput>,
        /// After each iteration, and after the outputs, `carry` becomes `next`.
        carries: Vec<Carry>,
        /// After each iteration, row `i` of `stacked` becomes `row`.
        outputs: Vec<ScanOutput>,
    },
}

/// How an operation uses a slot it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read.
    Read,
    /// Written, without a look at what was there.
    Write,
    /// Read and written.
    Update,
    /// Written at the start of each run of a nested chain, which owns it.
    BodyStart,
    /// Read at the end of each run of a nested chain.
    BodyEnd,
}

impl Op {
    /// Stable lower-case name for spans, hashes and messages.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Embed { .. } => "embed",
            Self::Linear { .. } => "linear",
            Self::RmsNorm { .. } => "rms_norm",
            Self::RopeTable { .. } => "rope_table",
            Self::Rope { .. } => "rope",
            Self::Attend { .. } => "attend",
            Self::Glu { .. } => "glu",
            Self::Unary { .. } => "unary",
            Self::Add { .. } => "add",
            Self::Mul { .. } => "mul",
            Self::Scale { .. } => "scale",
            Self::Softcap { .. } => "softcap",
            Self::SelectRows { .. } => "select_rows",
            Self::Copy { .. } => "copy",
            Self::Fill { .. } => "fill",
            Self::Sum { .. } => "sum",
            Self::TopK { .. } => "top_k",
            Self::ExpertLinear { .. } => "expert_linear",
            Self::CombineExperts { .. } => "combine_experts",
            Self::ScaleRows { .. } => "scale_rows",
            Self::SelectColumns { .. } => "select_columns",
            Self::CausalConv { .. } => "causal_conv",
            Self::GatedDelta { .. } => "gated_delta",
            Self::If { .. } => "if",
            Self::Scan { .. } => "scan",
        }
    }

    /// Calls `f` for every slot the operation names, operands first, results last. Slots named by the steps of nested
    /// chains are not included.
    ///
    /// The only place that lists an operation's slots: liveness, scope checks, flush accounting and pricing all use it.
    /// No pattern here has a `..`, so neither a new operation nor a new field can be left out without a compile error.
    pub fn visit(&self, mut f: impl FnMut(Slot, Access)) {
        use Access::{BodyEnd, BodyStart, Read, Update, Write};
        match self {
            Self::Embed { ids, table, out } => {
                f(*ids, Read);
                f(*table, Read);
                f(*out, Write);
            }
            Self::Linear { x, parts } => {
                f(*x, Read);
                for LinearPart { weight, bias, out: _ } in parts {
                    f(*weight, Read);
                    if let Some(bias) = bias {
                        f(*bias, Read);
                    }
                }
                for LinearPart { weight: _, bias: _, out } in parts {
                    f(*out, Write);
                }
            }
            Self::RmsNorm { x, weight, eps: _, out } => {
                f(*x, Read);
                f(*weight, Read);
                f(*out, Write);
            }
            Self::RopeTable { positions, inv_freq, scale: _, out } => {
                f(*positions, Read);
                f(*inv_freq, Read);
                f(*out, Write);
            }
            Self::Rope { x, table, layout: _, out } => {
                f(*x, Read);
                f(*table, Read);
                f(*out, Write);
            }
            Self::Attend { layer: _, q, k, v, state, spec, out } => {
                let AttendSpec { scale: _, window: _, softcap: _, sinks } = spec;
                f(*q, Read);
                f(*k, Read);
                f(*v, Read);
                if let Some(sinks) = sinks {
                    f(*sinks, Read);
                }
                f(*state, Update);
                f(*out, Write);
            }
            Self::Glu { gate, up, activation: _, out } => {
                f(*gate, Read);
                f(*up, Read);
                f(*out, Write);
            }
            Self::Unary { x, function: _, out }
            | Self::Scale { x, factor: _, out }
            | Self::Softcap { x, cap: _, out }
            | Self::Copy { x, out }
            | Self::Sum { x, out } => {
                f(*x, Read);
                f(*out, Write);
            }
            Self::Add { a, b, out } | Self::Mul { a, b, out } => {
                f(*a, Read);
                f(*b, Read);
                f(*out, Write);
            }
            Self::SelectRows { x, rows, out } => {
                f(*x, Read);
                f(*rows, Read);
                f(*out, Write);
            }
            Self::Fill { value: _, out } => f(*out, Write),
            Self::TopK { logits, spec: _, ids, weights } => {
                f(*logits, Read);
                f(*ids, Write);
                f(*weights, Write);
            }
            Self::ExpertLinear { x, ids, weight, out } => {
                f(*x, Read);
                f(*ids, Read);
                f(*weight, Read);
                f(*out, Write);
            }
            Self::CombineExperts { x, weights, out } => {
                f(*x, Read);
                f(*weights, Read);
                f(*out, Write);
            }
            Self::ScaleRows { x, factor, out } => {
                f(*x, Read);
                f(*factor, Read);
                f(*out, Write);
            }
            Self::SelectColumns { x, offset: _, out } => {
                f(*x, Read);
                f(*out, Write);
            }
            Self::CausalConv { layer: _, x, weight, bias, state, out } => {
                f(*x, Read);
                f(*weight, Read);
                if let Some(bias) = bias {
                    f(*bias, Read);
                }
                f(*state, Update);
                f(*out, Write);
            }
            Self::GatedDelta { layer: _, q, k, v, decay, beta, order: _, state, out } => {
                for slot in [q, k, v, decay, beta] {
                    f(*slot, Read);
                }
                f(*state, Update);
                f(*out, Write);
            }
            Self::If { condition, then_chain: _, else_chain: _ } => match condition {
                Condition::RowsAtMost(_) => {}
                Condition::Nonzero(slot) => f(*slot, Read),
            },
            Self::Scan { body: _, inputs, carries, outputs } => {
                for ScanInput { source, row } in inputs {
                    f(*source, Read);
                    f(*row, BodyStart);
                }
                for Carry { carry, next } in carries {
                    f(*carry, Update);
                    f(*next, BodyEnd);
                }
                for ScanOutput { row, stacked } in outputs {
                    f(*row, BodyEnd);
                    f(*stacked, Write);
                }
            }
        }
    }

    /// The nested chains the operation runs, in order.
    pub fn chains(&self) -> impl Iterator<Item = ChainId> + use<> {
        let chains = match self {
            Self::If { condition: _, then_chain, else_chain } => [Some(*then_chain), Some(*else_chain)],
            Self::Scan { body, inputs: _, carries: _, outputs: _ } => [Some(*body), None],
            Self::Embed { .. }
            | Self::Linear { .. }
            | Self::RmsNorm { .. }
            | Self::RopeTable { .. }
            | Self::Rope { .. }
            | Self::Attend { .. }
            | Self::Glu { .. }
            | Self::Unary { .. }
            | Self::Add { .. }
            | Self::Mul { .. }
            | Self::Scale { .. }
            | Self::Softcap { .. }
            | Self::SelectRows { .. }
            | Self::Copy { .. }
            | Self::Fill { .. }
            | Self::Sum { .. }
            | Self::TopK { .. }
            | Self::ExpertLinear { .. }
            | Self::CombineExperts { .. }
            | Self::ScaleRows { .. }
            | Self::SelectColumns { .. }
            | Self::CausalConv { .. }
            | Self::GatedDelta { .. } => [None, None],
        };
        chains.into_iter().flatten()
    }
}
