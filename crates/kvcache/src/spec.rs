//! What a model's KV costs.

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

/// KV of the layers that hold any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KvSpec {
    /// In the order of the model.
    pub layers: Vec<KvLayerSpec>,
}

impl KvSpec {
    /// Bytes of 64 tokens in all layers.
    pub fn block_bytes(&self) -> u64 {
        self.layers.iter().map(KvLayerSpec::block_bytes).sum()
    }

    /// Bytes a sequence of `context_tokens` holds: whole blocks in every layer, windowed ones too.
    pub fn bytes(&self, context_tokens: usize) -> u64 {
        (context_tokens.div_ceil(KV_BLOCK_TOKENS) as u64).saturating_mul(self.block_bytes())
    }
}
