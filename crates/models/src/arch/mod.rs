//! Model architectures, one file each, and the registry that finds them by name.

use plimsoll_attention::{KvDtype, KvLayout, KvValues};
use plimsoll_kvcache::{KvLayerSpec, KvSpec, LayerSpec, RecurrentSpec};
use plimsoll_program::{Program, Slot};

pub mod gemma3;
pub mod llama;
pub mod olmo2;
pub mod phi3;
pub mod qwen2;
pub mod qwen3;
mod qwen3_5;
mod qwen3_moe;
mod qwen3_next;
mod registry;
mod sizes;

pub(crate) use registry::{Recorded, name_of, record};
pub use registry::{known_architectures, known_model_types};
pub use sizes::Sizes;

/// What an architecture makes of a model file: the program and all that the executors must know to feed it.
#[derive(Debug)]
pub struct Architecture {
    /// The steps of one pass.
    pub program: Program,
    /// Input and output slots of [`Architecture::program`].
    pub ports: Ports,
    /// Constants that are computed instead of read, by slot.
    pub computed: Vec<(Slot, Vec<f32>)>,
    /// What a sequence holds for each layer, by the layer's number: the `layer` of `Attend` and of the recurrent steps.
    pub layers: Vec<LayerState>,
    /// Sizes that callers ask for.
    pub dimensions: Dimensions,
}

/// What a sequence holds for one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerState {
    /// Keys and values, for the `Attend` step of this layer.
    Kv(KvLayerShape),
    /// A state of constant size, for the recurrent steps of this layer.
    Recurrent(RecurrentSpec),
    /// Nothing.
    Stateless,
}

/// KV of one layer, but for the type it is stored in, which is chosen at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayerShape {
    /// Heads of K and V.
    pub kv_heads: usize,
    /// Width of a K head.
    pub head_dim: usize,
    /// Width of a V head.
    pub v_head_dim: usize,
    /// Keys a row sees at most; absent: all.
    pub window: Option<usize>,
}

impl Architecture {
    /// What a sequence holds for all layers, KV stored as `dtype`: priced for passes of any size, without snapshots of recurrent state.
    #[must_use]
    pub fn kv_spec(&self, dtype: KvDtype) -> KvSpec {
        let layers = self.layers.iter().map(|layer| match *layer {
            LayerState::Kv(shape) => LayerSpec::Kv(KvLayerSpec {
                layout: KvLayout {
                    kv_heads: shape.kv_heads,
                    head_dim: shape.head_dim,
                    v_head_dim: shape.v_head_dim,
                    dtype,
                    values: KvValues::Own,
                },
                window: shape.window,
            }),
            LayerState::Recurrent(spec) => LayerSpec::Recurrent(spec),
            LayerState::Stateless => LayerSpec::Stateless,
        });
        KvSpec::new(layers.collect())
    }
}

/// The slots through which a pass enters and leaves a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// Token ids, u32 `[rows]`.
    pub ids: Slot,
    /// Absolute positions, u32 `[rows]`.
    pub positions: Slot,
    /// Rows of the pass whose logits are wanted, u32 `[logit_rows]`.
    pub logit_rows: Slot,
    /// f32 `[logit_rows, vocab_size]`.
    pub logits: Slot,
}

/// Sizes of a loaded model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dimensions {
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Longest context the model was trained for, tokens.
    pub context_length: usize,
}
