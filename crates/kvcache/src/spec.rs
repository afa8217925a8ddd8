//! What a model's state costs: keys and values by the token, recurrent state by the sequence.

use plimsoll_attention::{KV_BLOCK_TOKENS, KvLayout};

/// KV of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvLayerSpec {
    /// Shape and number format of its blocks.
    pub layout: KvLayout,
    /// Keys a row sees, itself included. Blocks behind the window are kept, so it changes no figure here.
    pub window: Option<usize>,
}

impl KvLayerSpec {
    /// Bytes of one block of 64 tokens, K and V.
    pub const fn block_bytes(&self) -> u64 {
        (self.layout.k_block_bytes() + self.layout.v_block_bytes()) as u64
    }
}

/// State of one recurrent layer: f32 elements whose number does not depend on the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecurrentSpec {
    /// Elements of the state, everything that the layer carries from token to token taken together.
    pub elements: usize,
}

impl RecurrentSpec {
    /// Bytes that a sequence holds: the state, and a second buffer that a pass writes, both padded to cache lines. A pass that
    /// fails leaves the first as it was.
    pub const fn bytes(&self) -> u64 {
        2 * self.buffer_bytes() as u64
    }

    pub(crate) const fn buffer_bytes(&self) -> usize {
        self.elements.saturating_mul(size_of::<f32>()).saturating_add(63) / 64 * 64
    }
}

/// What a sequence holds for one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LayerSpec {
    /// Keys and values of every token.
    Kv(KvLayerSpec),
    /// A state of constant size.
    Recurrent(RecurrentSpec),
    /// Nothing.
    Stateless,
}

impl From<KvLayerSpec> for LayerSpec {
    fn from(spec: KvLayerSpec) -> Self {
        Self::Kv(spec)
    }
}

impl From<RecurrentSpec> for LayerSpec {
    fn from(spec: RecurrentSpec) -> Self {
        Self::Recurrent(spec)
    }
}

/// What a sequence holds, layer by layer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KvSpec {
    /// By the layer's number in the model.
    pub layers: Vec<LayerSpec>,
}

impl KvSpec {
    /// Bytes of 64 tokens in all layers that keep keys and values.
    pub fn block_bytes(&self) -> u64 {
        let kv = |layer: &LayerSpec| match layer {
            LayerSpec::Kv(spec) => spec.block_bytes(),
            LayerSpec::Recurrent(_) | LayerSpec::Stateless => 0,
        };
        self.layers.iter().map(kv).sum()
    }

    /// Bytes of the recurrent layers, whatever the context: both buffers of each.
    pub fn recurrent_bytes(&self) -> u64 {
        let recurrent = |layer: &LayerSpec| match layer {
            LayerSpec::Recurrent(spec) => spec.bytes(),
            LayerSpec::Kv(_) | LayerSpec::Stateless => 0,
        };
        self.layers.iter().map(recurrent).fold(0, u64::saturating_add)
    }

    /// Bytes a sequence of `context_tokens` holds: whole blocks in every layer with KV, windowed ones too, and all recurrent state.
    pub fn bytes(&self, context_tokens: usize) -> u64 {
        (context_tokens.div_ceil(KV_BLOCK_TOKENS) as u64)
            .saturating_mul(self.block_bytes())
            .saturating_add(self.recurrent_bytes())
    }
}
