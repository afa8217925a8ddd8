//! A decoder of the llama family, as a model crate would record it. Shared with the bench.

use plimsoll_program::{AttendSpec, CostModel, DType, Dims, Extent, Op, Program, ProgramBuilder, RopeLayout, Slot};

/// Sizes of a decoder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Config {
    pub(crate) layers: usize,
    pub(crate) hidden_size: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) intermediate_size: usize,
    pub(crate) vocab_size: usize,
}

impl Config {
    /// Shapes of an 8B model with a given number of layers.
    pub(crate) fn with_layers(layers: usize) -> Self {
        Self {
            layers,
            hidden_size: 4096,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            intermediate_size: 14_336,
            vocab_size: 128_256,
        }
    }
}

/// Records the whole decoder: 15 steps per layer.
pub(crate) fn decoder(config: &Config) -> Program {
    let c = config;
    let mut b = ProgramBuilder::new();
    let ids = b.input("ids", Extent::PerRow(1), DType::U32);
    let positions = b.input("positions", Extent::PerRow(1), DType::U32);
    let logit_rows = b.input("logit_rows", Extent::PerLogitRow(1), DType::U32);
    let table = b.constant("token_embd.weight", &[c.vocab_size, c.hidden_size], DType::F32);
    let inv_freq = b.constant("rope.inv_freq", &[c.head_dim / 2], DType::F32);
    let mut x = b.embed(ids, table);
    let angles = b.rope_table(positions, inv_freq, 1.0);
    for layer in 0..c.layers {
        b.set_layer(Some(layer));
        x = block(&mut b, c, layer, x, angles);
    }
    b.set_layer(None);
    let x = b.select_rows(x, logit_rows);
    let norm = b.constant("output_norm.weight", &[c.hidden_size], DType::F32);
    let x = b.rms_norm(x, norm, 1e-5);
    let logits = b.linear(x, table);
    b.named(logits, "logits");
    b.mark_output(logits);
    b.build().expect("the decoder is well formed")
}

fn block(b: &mut ProgramBuilder, c: &Config, layer: usize, x: Slot, angles: Slot) -> Slot {
    let weight = |b: &mut ProgramBuilder, name: &str, shape: &[usize]| {
        b.constant(format!("blk.{layer}.{name}.weight"), shape, DType::F32)
    };
    let (q_dim, kv_dim) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
    let attn_norm = weight(b, "attn_norm", &[c.hidden_size]);
    let wq = weight(b, "attn_q", &[q_dim, c.hidden_size]);
    let wk = weight(b, "attn_k", &[kv_dim, c.hidden_size]);
    let wv = weight(b, "attn_v", &[kv_dim, c.hidden_size]);
    let wo = weight(b, "attn_output", &[c.hidden_size, q_dim]);
    let ffn_norm = weight(b, "ffn_norm", &[c.hidden_size]);
    let gate = weight(b, "ffn_gate", &[c.intermediate_size, c.hidden_size]);
    let up = weight(b, "ffn_up", &[c.intermediate_size, c.hidden_size]);
    let down = weight(b, "ffn_down", &[c.hidden_size, c.intermediate_size]);
    let kv = b.state(format!("kv.{layer}"), Extent::Fixed(0), DType::F32);

    let x = b.scope("attention", |b| {
        let h = b.rms_norm(x, attn_norm, 1e-5);
        let q = b.linear(h, wq);
        let k = b.linear(h, wk);
        let v = b.linear(h, wv);
        let q = b.split_heads(q, c.heads);
        let k = b.split_heads(k, c.kv_heads);
        let v = b.split_heads(v, c.kv_heads);
        let q = b.rope_assign(q, angles, RopeLayout::Halves);
        let k = b.rope_assign(k, angles, RopeLayout::Halves);
        let out = b.attend(layer, q, k, v, kv, AttendSpec::causal(0.088));
        let out = b.merge_heads(out);
        let out = b.linear(out, wo);
        b.add_assign(x, out)
    });
    b.scope("mlp", |b| {
        let h = b.rms_norm(x, ffn_norm, 1e-5);
        let gate = b.linear(h, gate);
        let up = b.linear(h, up);
        let h = b.glu_assign(gate, up, plimsoll_program::Activation::Silu);
        let out = b.linear(h, down);
        b.add_assign(x, out)
    })
}

/// Scratch memory much as real kernels ask for it.
#[derive(Debug)]
pub(crate) struct KernelScratch;

impl CostModel for KernelScratch {
    fn scratch_bytes(&self, program: &Program, op: &Op, dims: &Dims) -> u64 {
        match op {
            Op::Linear { x, .. } => 2 * program.elements(*x, dims) as u64 + 65_536,
            Op::Attend { q, .. } => program.slot(*q).extent.width() as u64 * 4 * 64,
            Op::If { .. } | Op::Scan { .. } => 1_000,
            _ => 0,
        }
    }
}
