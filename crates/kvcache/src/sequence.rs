//! The KV of one sequence.

use plimsoll_attention::{KV_BLOCK_TOKENS, KvBlock, KvView};
use plimsoll_memguard::Reservation;

use crate::aligned::AlignedBytes;
use crate::{BlockTable, Error, KvLayerSpec, KvSpec};

/// KV blocks of one sequence, allocated as tokens arrive and never past what was reserved.
///
/// Dropping it frees the blocks, then the reservation.
#[derive(Debug)]
pub struct Sequence {
    layers: Vec<Layer>,
    max_tokens: usize,
    // Declared last: fields drop in order, and bytes are given back only once they are free.
    reservation: Reservation,
}

#[derive(Debug)]
struct Layer {
    spec: KvLayerSpec,
    /// K, then V, of 64 tokens each.
    blocks: Vec<AlignedBytes>,
    len: usize,
}

impl Layer {
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
    /// An empty sequence of at most `max_tokens`. Allocates no KV yet.
    ///
    /// # Errors
    /// [`Error::Reservation`] if `reservation` is smaller than [`KvSpec::bytes`] of `max_tokens`.
    pub fn new(spec: &KvSpec, max_tokens: usize, reservation: Reservation) -> Result<Self, Error> {
        let (needed_bytes, reserved_bytes) = (spec.bytes(max_tokens), reservation.bytes());
        if reserved_bytes < needed_bytes {
            return Err(Error::Reservation { max_tokens, needed_bytes, reserved_bytes });
        }
        let blocks = max_tokens.div_ceil(KV_BLOCK_TOKENS);
        let layers = spec.layers.iter().map(|&spec| Layer { spec, blocks: Vec::with_capacity(blocks), len: 0 });
        Ok(Self { layers: layers.collect(), max_tokens, reservation })
    }

    /// Stores `rows` tokens of one layer from position `start` on; tokens stored at or past `start` are forgotten first.
    ///
    /// `k`: `[rows, kv_heads, head_dim]`, `v`: `[rows, kv_heads, v_head_dim]`. Nothing stored before is copied.
    ///
    /// # Errors
    /// [`Error::NoSuchLayer`], [`Error::SliceLength`], [`Error::Gap`] if `start` is past the stored tokens, [`Error::Capacity`],
    /// [`Error::OutOfMemory`].
    pub fn append(&mut self, layer: usize, start: usize, k: &[f32], v: &[f32], rows: usize) -> Result<(), Error> {
        let layers = self.layers.len();
        let max_tokens = self.max_tokens;
        let stored = self.layers.get_mut(layer).ok_or(Error::NoSuchLayer { layer, layers })?;
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
    /// [`Error::NoSuchLayer`], [`Error::PastEnd`], [`Error::View`].
    pub fn with_view<R>(
        &self,
        layer: usize,
        kv_len: usize,
        table: &mut BlockTable,
        f: impl FnOnce(&KvView<'_>) -> R,
    ) -> Result<R, Error> {
        let layers = self.layers.len();
        let stored = self.layers.get(layer).ok_or(Error::NoSuchLayer { layer, layers })?;
        if kv_len > stored.len {
            return Err(Error::PastEnd { layer, kv_len, len_tokens: stored.len });
        }
        table.with(stored.blocks(kv_len.div_ceil(KV_BLOCK_TOKENS)), |blocks| {
            Ok(f(&KvView::new(stored.spec.layout, blocks, kv_len)?))
        })
    }

    /// Forgets all tokens from `tokens` on and frees the blocks that hold none any more; does nothing past the end.
    pub fn truncate(&mut self, tokens: usize) {
        for layer in &mut self.layers {
            layer.truncate(tokens);
        }
    }

    /// Tokens stored in every layer.
    pub fn len(&self) -> usize {
        self.layers.iter().map(|layer| layer.len).min().unwrap_or(0)
    }

    /// Whether some layer stores no token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens stored in one layer; inside a pass, layers differ. 0 for a layer that does not exist.
    pub fn layer_len(&self, layer: usize) -> usize {
        self.layers.get(layer).map_or(0, |layer| layer.len)
    }

    /// Most tokens it may hold.
    pub const fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// KV bytes allocated now; [`KvSpec::bytes`] of the length between passes.
    pub fn bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.blocks.len() as u64 * layer.spec.block_bytes()).sum()
    }

    /// KV bytes reserved.
    pub fn reserved_bytes(&self) -> u64 {
        self.reservation.bytes()
    }
}
