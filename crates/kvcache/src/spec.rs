//! What a model's state costs: keys and values by the token, recurrent state by the sequence.

use std::num::NonZeroUsize;

use plimsoll_attention::{KV_BLOCK_TOKENS, KvLayout};

use crate::slab::slab_bytes;

/// KV of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvLayerSpec {
    /// Shape and number format of its blocks.
    pub layout: KvLayout,
    /// Keys a row sees, itself included; `None`: all before it. Blocks that no later row can see are given back by
    /// [`Sequence::commit`](crate::Sequence::commit).
    pub window: Option<usize>,
}

impl KvLayerSpec {
    /// Bytes of one block of 64 tokens, K and V; of a layer whose values are in the keys, K alone.
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
    /// Bytes of the state, padded to whole cache lines.
    pub const fn state_bytes(&self) -> usize {
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

/// Which recurrent states of the past a sequence keeps, so that it can go back to them and a prefix cache can hand them out.
///
/// A state is kept at each multiple of `64 * every_blocks` tokens, whether a pass ends there or runs over it. Where a prefix cache is to see
/// all of them, `keep` is as many as one pass can leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Snapshots {
    /// KV blocks between two snapshots.
    pub every_blocks: NonZeroUsize,
    /// Most snapshots kept; the oldest goes first.
    pub keep: NonZeroUsize,
}

impl Snapshots {
    pub(crate) fn every_tokens(&self) -> usize {
        self.every_blocks.get().saturating_mul(KV_BLOCK_TOKENS)
    }

    /// Snapshots that a sequence of `tokens` can hold.
    pub(crate) fn held(&self, tokens: usize) -> usize {
        self.keep.get().min(tokens / self.every_tokens())
    }
}

/// What a sequence holds, layer by layer.
///
/// Layers with the same window form a group, whose blocks of the same 64 tokens lie in one slab: one mapping, taken and given back as a
/// whole. What tells groups apart is when their blocks come and go, not what is in them: a layer of latents, which sees all before it, is
/// in the group of the full layers, and its blocks lie beside theirs. A slab of 64 KiB or more is rounded up to 16 KiB, a smaller one is
/// exact; all figures here count slabs as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KvSpec {
    /// By the layer's number in the model.
    pub layers: Vec<LayerSpec>,
    /// Most tokens between two commits. Layers with a window are then priced at the window and that many tokens;
    /// `None` sets no limit, and prices them at the whole context.
    pub max_chunk_rows: Option<usize>,
    /// Recurrent states of the past; `None` keeps none.
    pub snapshots: Option<Snapshots>,
}

/// Layers whose blocks come and go together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupSpec {
    pub(crate) window: Option<usize>,
    pub(crate) layers: Vec<GroupLayer>,
    pub(crate) slab_bytes: usize,
}

/// A layer's place in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupLayer {
    pub(crate) layer: usize,
    pub(crate) layout: KvLayout,
    /// Where its K starts in a slab; V follows.
    pub(crate) offset: usize,
}

impl GroupSpec {
    /// The first block that a row at `len` or later can see.
    pub(crate) fn first_visible_block(&self, len: usize) -> usize {
        self.window.map_or(0, |window| len.saturating_add(1).saturating_sub(window) / KV_BLOCK_TOKENS)
    }

    /// Most blocks held at any moment on the way to `tokens`.
    pub(crate) fn most_blocks(&self, tokens: usize, max_chunk_rows: Option<usize>) -> usize {
        let whole = tokens.div_ceil(KV_BLOCK_TOKENS);
        let (Some(window), Some(rows)) = (self.window, max_chunk_rows) else { return whole };
        // The first row of a chunk sees `window - 1` tokens before it; all these may straddle one block more than they fill.
        let reach = window.saturating_add(rows).saturating_sub(1);
        whole.min(reach.saturating_sub(1).div_ceil(KV_BLOCK_TOKENS).saturating_add(1))
    }

    fn held_blocks(&self, tokens: usize) -> usize {
        tokens.div_ceil(KV_BLOCK_TOKENS).saturating_sub(self.first_visible_block(tokens))
    }
}

impl KvSpec {
    /// These layers, chunks of any size, no snapshots.
    #[must_use]
    pub fn new(layers: Vec<LayerSpec>) -> Self {
        Self { layers, max_chunk_rows: None, snapshots: None }
    }

    /// The same with at most `rows` tokens between two commits.
    #[must_use]
    pub fn with_max_chunk_rows(self, rows: Option<usize>) -> Self {
        Self { max_chunk_rows: rows, ..self }
    }

    /// The same with these snapshots of recurrent state.
    #[must_use]
    pub fn with_snapshots(self, snapshots: Option<Snapshots>) -> Self {
        Self { snapshots, ..self }
    }

    /// Groups of layers with KV, in the order of their first layers.
    pub(crate) fn groups(&self) -> Vec<GroupSpec> {
        let mut groups: Vec<GroupSpec> = Vec::new();
        for (layer, spec) in self.layers.iter().enumerate() {
            let LayerSpec::Kv(KvLayerSpec { layout, window }) = *spec else { continue };
            let at = groups.iter().position(|group| group.window == window).unwrap_or_else(|| {
                groups.push(GroupSpec { window, layers: Vec::new(), slab_bytes: 0 });
                groups.len() - 1
            });
            let group = &mut groups[at];
            group.layers.push(GroupLayer { layer, layout, offset: group.slab_bytes });
            group.slab_bytes = group.slab_bytes.saturating_add(layout.k_block_bytes() + layout.v_block_bytes());
        }
        for group in &mut groups {
            group.slab_bytes = slab_bytes(group.slab_bytes);
        }
        groups
    }

    /// Bytes of 64 tokens in all layers that keep keys and values.
    pub fn block_bytes(&self) -> u64 {
        self.groups().iter().map(|group| group.slab_bytes as u64).sum()
    }

    /// Bytes of the recurrent layers, whatever the context: the state, and a second buffer that a pass writes. A pass that fails leaves
    /// the first as it was.
    pub fn recurrent_bytes(&self) -> u64 {
        (self.state_bytes() as u64).saturating_mul(2)
    }

    /// Bytes of one snapshot of all recurrent layers.
    pub fn snapshot_bytes(&self) -> u64 {
        self.state_bytes() as u64
    }

    /// Bytes of one slab with the states of all recurrent layers.
    pub(crate) fn state_bytes(&self) -> usize {
        let state = |layer: &LayerSpec| match layer {
            LayerSpec::Recurrent(spec) => spec.state_bytes(),
            LayerSpec::Kv(_) | LayerSpec::Stateless => 0,
        };
        slab_bytes(self.layers.iter().map(state).fold(0, usize::saturating_add))
    }

    /// Most bytes that a sequence holds at any moment on the way to `context_tokens`: what to reserve. Whole blocks in every layer with KV,
    /// a layer with a window at no more than the window and one chunk; all recurrent state and its snapshots.
    pub fn bytes(&self, context_tokens: usize) -> u64 {
        self.sum(context_tokens, |group| group.most_blocks(context_tokens, self.max_chunk_rows))
    }

    /// Bytes that a sequence of `tokens` holds between passes, all of them committed, if it was computed from its first token on.
    pub fn held_bytes(&self, tokens: usize) -> u64 {
        self.sum(tokens, |group| group.held_blocks(tokens))
    }

    fn sum(&self, tokens: usize, blocks: impl Fn(&GroupSpec) -> usize) -> u64 {
        let snapshots = self.snapshots.map_or(0, |snapshots| snapshots.held(tokens)) as u64;
        let state = self.recurrent_bytes().saturating_add(self.snapshot_bytes().saturating_mul(snapshots));
        let kv = |group: &GroupSpec| (blocks(group) as u64).saturating_mul(group.slab_bytes as u64);
        self.groups().iter().map(kv).fold(state, u64::saturating_add)
    }
}
