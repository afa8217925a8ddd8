//! The blocks of one group of layers: which it holds, and what is written to them.

use std::collections::VecDeque;

use plimsoll_attention::{KV_BLOCK_TOKENS, KvBlock, KvView};

use crate::slab::{Purse, SlabRef, is_mapped};
use crate::spec::{GroupLayer, GroupSpec};
use crate::{BlockTable, Error};

/// One table of slabs for all layers of the group: slab `i` holds tokens `64 * i ..` of each of them.
#[derive(Debug)]
pub(crate) struct KvGroup {
    spec: GroupSpec,
    max_chunk_rows: Option<usize>,
    /// Absolute number of the first block held.
    first_block: usize,
    blocks: VecDeque<SlabRef>,
    /// Tokens by layer of the group; inside a pass they differ.
    lens: Vec<usize>,
    /// Tokens at the last commit or cut.
    committed: usize,
}

impl KvGroup {
    pub(crate) fn new(spec: GroupSpec, max_tokens: usize, max_chunk_rows: Option<usize>) -> Self {
        let blocks = VecDeque::with_capacity(spec.most_blocks(max_tokens, max_chunk_rows));
        let lens = vec![0; spec.layers.len()];
        Self { spec, max_chunk_rows, first_block: 0, blocks, lens, committed: 0 }
    }

    pub(crate) fn spec(&self) -> &GroupSpec {
        &self.spec
    }

    /// Tokens of the layer at `index` of the group.
    pub(crate) fn layer_len(&self, index: usize) -> usize {
        self.lens[index]
    }

    pub(crate) fn lens(&self) -> impl Iterator<Item = (usize, usize)> {
        self.spec.layers.iter().map(|layer| layer.layer).zip(self.lens.iter().copied())
    }

    fn longest(&self) -> usize {
        self.lens.iter().copied().max().unwrap_or(0)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.blocks.len() as u64 * self.spec.slab_bytes as u64
    }

    pub(crate) fn mapped_bytes(&self) -> u64 {
        if is_mapped(self.spec.slab_bytes) { self.bytes() } else { 0 }
    }

    /// Bytes of the blocks that are missing up to `end`.
    pub(crate) fn growth_bytes(&self, end: usize) -> u64 {
        let held = self.first_block + self.blocks.len();
        (end.div_ceil(KV_BLOCK_TOKENS).saturating_sub(held) as u64).saturating_mul(self.spec.slab_bytes as u64)
    }

    /// The slab of an absolute block number, if it is held.
    pub(crate) fn block(&self, index: usize) -> Option<&SlabRef> {
        self.blocks.get(index.checked_sub(self.first_block)?)
    }

    /// Whether rows from `tokens` on find all keys that they see.
    pub(crate) fn can_go_on_from(&self, tokens: usize) -> bool {
        tokens == 0 || self.first_block <= self.spec.first_visible_block(tokens)
    }

    /// The layer at fault if the group cannot be cut to `tokens`.
    pub(crate) fn check_truncate(&self, tokens: usize) -> Result<(), (usize, usize)> {
        let len = self.longest();
        if tokens >= len || self.can_go_on_from(tokens) { Ok(()) } else { Err((self.spec.layers[0].layer, len)) }
    }

    pub(crate) fn truncate(&mut self, tokens: usize, purse: &mut Purse) {
        for len in &mut self.lens {
            *len = (*len).min(tokens);
        }
        self.committed = self.committed.min(tokens);
        self.shrink(purse);
    }

    /// Lets go of blocks that hold no token of any layer.
    fn shrink(&mut self, purse: &mut Purse) {
        let len = self.longest();
        let wanted = len.div_ceil(KV_BLOCK_TOKENS).saturating_sub(self.first_block);
        while self.blocks.len() > wanted {
            purse.put(self.blocks.pop_back().and_then(SlabRef::release));
        }
        if len == 0 {
            self.first_block = 0;
        }
    }

    /// Ends a pass: blocks that no later row sees are let go.
    pub(crate) fn commit(&mut self, purse: &mut Purse) {
        // A layer that lags behind has not had its rows of this pass.
        let len = self.lens.iter().copied().min().unwrap_or(0);
        self.committed = len;
        let first = self.spec.first_visible_block(len);
        while self.first_block < first && !self.blocks.is_empty() {
            purse.put(self.blocks.pop_front().and_then(SlabRef::release));
            self.first_block += 1;
        }
    }

    /// Stores rows of one layer; see [`Sequence::append`](crate::Sequence::append), which checks the end of the sequence.
    pub(crate) fn append(
        &mut self,
        index: usize,
        start: usize,
        (k, v): (&[f32], &[f32]),
        rows: usize,
        purse: &mut Purse,
    ) -> Result<(), Error> {
        let GroupLayer { layer, layout, offset } = self.spec.layers[index];
        let (k_row, v_row) = (layout.k_row_elements(), layout.v_row_elements());
        for (slice, actual, row) in [("k", k.len(), k_row), ("v", v.len(), v_row)] {
            let expected = rows.saturating_mul(row);
            if actual != expected {
                return Err(Error::SliceLength { slice, rows, expected, actual });
            }
        }
        let (len_tokens, end) = (self.lens[index], start + rows);
        if start > len_tokens {
            return Err(Error::Gap { layer, start, len_tokens });
        }
        if start < len_tokens && !self.can_go_on_from(start) {
            return Err(Error::NeedsPrefill { layer, tokens: start, len_tokens, from: 0 });
        }
        let committed = self.committed.min(start);
        if let (Some(_), Some(max_chunk_rows)) = (self.spec.window, self.max_chunk_rows)
            && end - committed > max_chunk_rows
        {
            return Err(Error::ChunkRows { layer, rows: end - committed, max_chunk_rows });
        }
        self.committed = committed;
        self.lens[index] = start;
        if start < self.first_block * KV_BLOCK_TOKENS {
            // The blocks of these positions are gone for every layer of the group.
            self.lens.iter_mut().for_each(|len| *len = start.min(*len));
        }
        self.shrink(purse);
        while self.first_block + self.blocks.len() < end.div_ceil(KV_BLOCK_TOKENS) {
            let bytes = self.spec.slab_bytes;
            match purse.pay(bytes as u64).and_then(|payment| SlabRef::zeroed(bytes, payment)) {
                Ok(slab) => self.blocks.push_back(slab),
                Err(error) => {
                    self.shrink(purse);
                    return Err(error);
                }
            }
        }
        let mut done = 0;
        while done < rows {
            let (block, at) = ((start + done) / KV_BLOCK_TOKENS, (start + done) % KV_BLOCK_TOKENS);
            let count = (KV_BLOCK_TOKENS - at).min(rows - done);
            let bytes = writable(&mut self.blocks[block - self.first_block], purse)?;
            let (k_block, v_block) = bytes[offset..].split_at_mut(layout.k_block_bytes());
            let v_block = &mut v_block[..layout.v_block_bytes()];
            let (k, v) = (&k[done * k_row..][..count * k_row], &v[done * v_row..][..count * v_row]);
            layout.write_rows(k_block, v_block, at, k, v, count);
            done += count;
        }
        self.lens[index] = end;
        Ok(())
    }

    pub(crate) fn with_view<R>(
        &self,
        index: usize,
        kv_len: usize,
        table: &mut BlockTable,
        f: impl FnOnce(&KvView<'_>) -> R,
    ) -> Result<R, Error> {
        let GroupLayer { layer, layout, offset } = self.spec.layers[index];
        let len_tokens = self.lens[index];
        if kv_len > len_tokens {
            return Err(Error::PastEnd { layer, kv_len, len_tokens });
        }
        let count = kv_len.div_ceil(KV_BLOCK_TOKENS).saturating_sub(self.first_block);
        let blocks = self.blocks.iter().take(count).map(|slab| {
            let (k, v) = slab.memory()[offset..].split_at(layout.k_block_bytes());
            KvBlock { k, v: &v[..layout.v_block_bytes()] }
        });
        table.with(blocks, |blocks| Ok(f(&KvView::from_block(layout, blocks, kv_len, self.first_block)?)))
    }

    /// The group of a fork at `len` tokens. A block that the fork will want to replace is deposited for.
    pub(crate) fn fork(&self, len: usize, max_tokens: usize, purse: &mut Purse) -> Result<Self, Error> {
        let mut fork = Self::new(self.spec.clone(), max_tokens, self.max_chunk_rows);
        fork.first_block = self.first_block;
        for index in self.first_block..len.div_ceil(KV_BLOCK_TOKENS) {
            let Some(block) = self.block(index) else { break };
            let is_replaced = self.spec.window.is_some() || (index + 1) * KV_BLOCK_TOKENS > len;
            let deposit = if is_replaced { Some(purse.pay(block.bytes())?) } else { None };
            fork.blocks.push_back(block.share(deposit));
        }
        fork.lens.fill(len);
        fork.committed = len;
        Ok(fork)
    }

    /// Takes over whole blocks from `first_block` on, for an empty group.
    pub(crate) fn adopt(&mut self, first_block: usize, blocks: impl Iterator<Item = SlabRef>) {
        self.first_block = first_block;
        self.blocks.extend(blocks);
        let len = (first_block + self.blocks.len()) * KV_BLOCK_TOKENS;
        self.lens.fill(len);
        self.committed = len;
    }
}

/// The bytes of a slab to write; one that others hold is replaced by a copy first.
fn writable<'a>(slab: &'a mut SlabRef, purse: &mut Purse) -> Result<&'a mut [u8], Error> {
    if slab.memory_mut().is_none() {
        let deposit = slab.withdraw();
        // Where there is none, the other owner may have let go since: then its deposit is free again, and the slab this table's alone.
        if deposit.is_some() || slab.memory_mut().is_none() {
            let payment = match deposit {
                Some(deposit) => deposit,
                None => match purse.pay(slab.bytes()) {
                    Ok(payment) => payment,
                    // The ledger has asked for bytes, and a cache's writer, which may have been the other owner, has let go for it.
                    Err(refusal) => return slab.memory_mut().ok_or(refusal),
                },
            };
            let mut copy = SlabRef::zeroed(slab.memory().len(), payment)?;
            copy.memory_mut().expect("nobody else has heard of it").copy_from_slice(slab.memory());
            *slab = copy;
        }
    }
    Ok(slab.memory_mut().expect("it is held by this table alone"))
}
