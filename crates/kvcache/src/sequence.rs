//! The state of one sequence: KV and recurrent state.

use plimsoll_attention::{KV_BLOCK_TOKENS, KvBlock, KvView};
use plimsoll_memguard::Reservation;

use crate::aligned::AlignedBytes;
use crate::recurrent::{Recurrent, StateStep};
use crate::{BlockTable, Error, KvLayerSpec, KvSpec, LayerSpec};

/// KV blocks of one sequence, allocated as tokens arrive and never past what was reserved, and its recurrent state.
///
/// A pass appends to the layers with KV and [advances](Self::advance) the recurrent ones; then it [commits](Self::commit), or is undone by
/// [`truncate`](Self::truncate) to where it started. Dropping a sequence frees its memory, then the reservation.
#[derive(Debug)]
pub struct Sequence {
    layers: Vec<Layer>,
    max_tokens: usize,
    // Declared last: fields drop in order, and bytes are given back only once they are free.
    reservation: Reservation,
}

#[derive(Debug)]
enum Layer {
    Kv(KvLayer),
    Recurrent(Recurrent),
    Stateless,
}

impl Layer {
    const fn holds(&self) -> &'static str {
        match self {
            Self::Kv(_) => "keys and values",
            Self::Recurrent(_) => "recurrent state",
            Self::Stateless => "nothing",
        }
    }

    /// Tokens held; `None` for a layer that holds nothing.
    fn len(&self) -> Option<usize> {
        match self {
            Self::Kv(kv) => Some(kv.len),
            Self::Recurrent(state) => Some(state.len()),
            Self::Stateless => None,
        }
    }
}

#[derive(Debug)]
struct KvLayer {
    spec: KvLayerSpec,
    /// K, then V, of 64 tokens each.
    blocks: Vec<AlignedBytes>,
    len: usize,
}

impl KvLayer {
    fn blocks(&self, count: usize) -> impl Iterator<Item = KvBlock<'_>> {
        self.blocks[..count].iter().map(|bytes| {
            let (k, v) = bytes.split_at(self.spec.layout.k_block_bytes());
            KvBlock { k, v }
        })
    }

    /// Allocates blocks until `tokens` fit.
    fn grow(&mut self, tokens: usize) -> Result<(), Error> {
        let layout = &self.spec.layout;
        let bytes = layout.k_block_bytes() + layout.v_block_bytes();
        while self.blocks.len() < tokens.div_ceil(KV_BLOCK_TOKENS) {
            self.blocks.push(AlignedBytes::zeroed(bytes).ok_or(Error::OutOfMemory { bytes })?);
        }
        Ok(())
    }

    fn truncate(&mut self, tokens: usize) {
        self.len = self.len.min(tokens);
        self.blocks.truncate(self.len.div_ceil(KV_BLOCK_TOKENS));
    }
}

impl Sequence {
    /// An empty sequence of at most `max_tokens`. Allocates its recurrent state, and no KV yet.
    ///
    /// # Errors
    /// [`Error::Reservation`] if `reservation` is smaller than [`KvSpec::bytes`] of `max_tokens`; [`Error::OutOfMemory`].
    pub fn new(spec: &KvSpec, max_tokens: usize, reservation: Reservation) -> Result<Self, Error> {
        let (needed_bytes, reserved_bytes) = (spec.bytes(max_tokens), reservation.bytes());
        if reserved_bytes < needed_bytes {
            return Err(Error::Reservation { max_tokens, needed_bytes, reserved_bytes });
        }
        let blocks = max_tokens.div_ceil(KV_BLOCK_TOKENS);
        let layer = |spec: &LayerSpec| match *spec {
            LayerSpec::Kv(spec) => Ok(Layer::Kv(KvLayer { spec, blocks: Vec::with_capacity(blocks), len: 0 })),
            LayerSpec::Recurrent(spec) => Recurrent::new(spec).map(Layer::Recurrent),
            LayerSpec::Stateless => Ok(Layer::Stateless),
        };
        Ok(Self { layers: spec.layers.iter().map(layer).collect::<Result<_, _>>()?, max_tokens, reservation })
    }

    /// Stores `rows` tokens of one layer from position `start` on; tokens stored at or past `start` are forgotten first.
    ///
    /// `k`: `[rows, kv_heads, head_dim]`, `v`: `[rows, kv_heads, v_head_dim]`. Nothing stored before is copied.
    ///
    /// # Errors
    /// [`Error::NoSuchLayer`], [`Error::LayerKind`], [`Error::SliceLength`], [`Error::Gap`] if `start` is past the stored tokens,
    /// [`Error::Capacity`], [`Error::OutOfMemory`].
    pub fn append(&mut self, layer: usize, start: usize, k: &[f32], v: &[f32], rows: usize) -> Result<(), Error> {
        let max_tokens = self.max_tokens;
        let stored = match self.layer_mut(layer)? {
            Layer::Kv(stored) => stored,
            other => return Err(wrong_kind(layer, "keys and values", other)),
        };
        let layout = stored.spec.layout;
        let (k_row, v_row) = (layout.kv_heads * layout.head_dim, layout.kv_heads * layout.v_head_dim);
        for (slice, actual, row) in [("k", k.len(), k_row), ("v", v.len(), v_row)] {
            let expected = rows.saturating_mul(row);
            if actual != expected {
                return Err(Error::SliceLength { slice, rows, expected, actual });
            }
        }
        if start > stored.len {
            return Err(Error::Gap { layer, start, len_tokens: stored.len });
        }
        let end_tokens = start.saturating_add(rows);
        if end_tokens > max_tokens {
            return Err(Error::Capacity { layer, end_tokens, max_tokens });
        }
        stored.truncate(start);
        stored.grow(end_tokens)?;
        let mut done = 0;
        while done < rows {
            let (index, at) = ((start + done) / KV_BLOCK_TOKENS, (start + done) % KV_BLOCK_TOKENS);
            let count = (KV_BLOCK_TOKENS - at).min(rows - done);
            let (k_block, v_block) = stored.blocks[index].split_at_mut(layout.k_block_bytes());
            let (k, v) = (&k[done * k_row..][..count * k_row], &v[done * v_row..][..count * v_row]);
            layout.write_rows(k_block, v_block, at, k, v, count);
            done += count;
        }
        stored.len = end_tokens;
        Ok(())
    }

    /// Runs `f` on the first `kv_len` tokens of a layer; allocates nothing once `table` has grown to the sequence.
    ///
    /// # Errors
    /// [`Error::NoSuchLayer`], [`Error::LayerKind`], [`Error::PastEnd`], [`Error::View`].
    pub fn with_view<R>(
        &self,
        layer: usize,
        kv_len: usize,
        table: &mut BlockTable,
        f: impl FnOnce(&KvView<'_>) -> R,
    ) -> Result<R, Error> {
        let layers = self.layers.len();
        let stored = match self.layers.get(layer).ok_or(Error::NoSuchLayer { layer, layers })? {
            Layer::Kv(stored) => stored,
            other => return Err(wrong_kind(layer, "keys and values", other)),
        };
        if kv_len > stored.len {
            return Err(Error::PastEnd { layer, kv_len, len_tokens: stored.len });
        }
        table.with(stored.blocks(kv_len.div_ceil(KV_BLOCK_TOKENS)), |blocks| {
            Ok(f(&KvView::new(stored.spec.layout, blocks, kv_len)?))
        })
    }

    /// The state of a recurrent layer for a pass over `rows` tokens from position `start` on: what holds before them, and where to
    /// write what holds after them. Several steps of a pass may ask, each for its own part of the state. Nothing is kept until
    /// [`commit`](Self::commit).
    ///
    /// `start` is the length held, or 0, which forgets what is held.
    ///
    /// # Errors
    /// [`Error::NoSuchLayer`], [`Error::LayerKind`], [`Error::Gap`], [`Error::NeedsPrefill`], [`Error::Capacity`].
    pub fn advance(&mut self, layer: usize, start: usize, rows: usize) -> Result<StateStep<'_>, Error> {
        let max_tokens = self.max_tokens;
        let state = match self.layer_mut(layer)? {
            Layer::Recurrent(state) => state,
            other => return Err(wrong_kind(layer, "recurrent state", other)),
        };
        let end_tokens = start.saturating_add(rows);
        if end_tokens > max_tokens {
            return Err(Error::Capacity { layer, end_tokens, max_tokens });
        }
        state.advance(layer, start, end_tokens)
    }

    /// Ends a pass: the states that it wrote take the place of those before it. KV needs no such call.
    pub fn commit(&mut self) {
        for layer in &mut self.layers {
            match layer {
                Layer::Recurrent(state) => state.commit(),
                Layer::Kv(_) | Layer::Stateless => {}
            }
        }
    }

    /// Forgets all tokens from `tokens` on, and what a pass has written to recurrent state without a commit; frees the blocks that hold
    /// no token any more. Past the end there is nothing to forget.
    ///
    /// # Errors
    /// [`Error::NeedsPrefill`] if a recurrent layer would have to go back to a length other than 0; nothing is changed then.
    pub fn truncate(&mut self, tokens: usize) -> Result<(), Error> {
        for (index, layer) in self.layers.iter().enumerate() {
            match layer {
                Layer::Recurrent(state) => state.check_truncate(index, tokens)?,
                Layer::Kv(_) | Layer::Stateless => {}
            }
        }
        for layer in &mut self.layers {
            match layer {
                Layer::Kv(kv) => kv.truncate(tokens),
                Layer::Recurrent(state) => state.truncate(tokens),
                Layer::Stateless => {}
            }
        }
        Ok(())
    }

    /// Tokens held by every layer that holds any: KV as appended, recurrent state as committed.
    pub fn len(&self) -> usize {
        self.layers.iter().filter_map(Layer::len).min().unwrap_or(0)
    }

    /// Whether some layer stores no token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens stored in one layer; inside a pass, layers differ. 0 for a layer that does not exist or holds nothing.
    pub fn layer_len(&self, layer: usize) -> usize {
        self.layers.get(layer).and_then(Layer::len).unwrap_or(0)
    }

    /// Most tokens it may hold.
    pub const fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Bytes allocated now; [`KvSpec::bytes`] of the length between passes.
    pub fn bytes(&self) -> u64 {
        let bytes = |layer: &Layer| match layer {
            Layer::Kv(kv) => kv.blocks.len() as u64 * kv.spec.block_bytes(),
            Layer::Recurrent(state) => state.bytes(),
            Layer::Stateless => 0,
        };
        self.layers.iter().map(bytes).sum()
    }

    /// Bytes reserved.
    pub fn reserved_bytes(&self) -> u64 {
        self.reservation.bytes()
    }

    fn layer_mut(&mut self, layer: usize) -> Result<&mut Layer, Error> {
        let layers = self.layers.len();
        self.layers.get_mut(layer).ok_or(Error::NoSuchLayer { layer, layers })
    }
}

fn wrong_kind(layer: usize, expected: &'static str, found: &Layer) -> Error {
    Error::LayerKind { layer, expected, found: found.holds() }
}
