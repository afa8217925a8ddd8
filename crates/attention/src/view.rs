//! A layer's keys and values as kernels read them: a table of borrowed blocks.

use crate::{Error, KV_BLOCK_TOKENS, KvLayout, KvValues};

/// Keys and values of 64 consecutive tokens; each part that is not empty starts at a multiple of 64 bytes.
#[derive(Debug, Clone, Copy)]
pub struct KvBlock<'a> {
    /// Keys, [`KvLayout::k_block_bytes`] long. As [`KvLayout::write_rows`] stores them: no bf16 number but zero is smaller than 2^-50 in
    /// magnitude, here and in the values.
    pub k: &'a [u8],
    /// Values, [`KvLayout::v_block_bytes`] long: empty where they are in the keys.
    pub v: &'a [u8],
}

/// The first `kv_len` tokens of one layer of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct KvView<'a> {
    layout: KvLayout,
    blocks: &'a [KvBlock<'a>],
    kv_len: usize,
    first_block: usize,
}

impl<'a> KvView<'a> {
    /// A view whose first block holds position 0. Bytes at and past `kv_len` may hold anything.
    ///
    /// # Errors
    /// [`Error::EmptyAxis`], [`Error::TooLarge`], [`Error::ValuesPastKeys`], [`Error::MissingBlocks`], [`Error::BlockBytes`],
    /// [`Error::BlockAlignment`].
    pub fn new(layout: KvLayout, blocks: &'a [KvBlock<'a>], kv_len: usize) -> Result<Self, Error> {
        Self::from_block(layout, blocks, kv_len, 0)
    }

    /// A view whose first block holds position `64 * first_block`: what a sliding window kept.
    ///
    /// # Errors
    /// As [`KvView::new`].
    pub fn from_block(
        layout: KvLayout,
        blocks: &'a [KvBlock<'a>],
        kv_len: usize,
        first_block: usize,
    ) -> Result<Self, Error> {
        for (axis, length) in
            [("kv_heads", layout.kv_heads), ("head_dim", layout.head_dim), ("v_head_dim", layout.v_head_dim)]
        {
            check_axis(axis, length)?;
        }
        check_values(layout.values, layout.head_dim, layout.v_head_dim)?;
        let needed = kv_len.div_ceil(KV_BLOCK_TOKENS).saturating_sub(first_block);
        if blocks.len() < needed {
            return Err(Error::MissingBlocks { kv_len, first_block, needed, actual: blocks.len() });
        }
        let (k_bytes, v_bytes) = (layout.k_block_bytes(), layout.v_block_bytes());
        for (i, block) in blocks[..needed].iter().enumerate() {
            check(first_block + i, "K", block.k, k_bytes)?;
            check(first_block + i, "V", block.v, v_bytes)?;
        }
        Ok(Self { layout, blocks: &blocks[..needed], kv_len, first_block })
    }

    /// Shape of the blocks.
    pub const fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Keys that hold data, counted from position 0.
    pub const fn kv_len(&self) -> usize {
        self.kv_len
    }

    /// Absolute index of the first block held.
    pub const fn first_block(&self) -> usize {
        self.first_block
    }

    /// The block of positions `64 * index ..`, by absolute index.
    pub(crate) fn block(&self, index: usize) -> KvBlock<'a> {
        self.blocks[index - self.first_block]
    }
}

/// Longest axis that is accepted: products of three axes, a block's tokens and an element's bytes then fit 64 bits.
const MAX_AXIS: usize = 1 << 17;

/// Refuses an axis of no elements, or of so many that lengths computed from it could wrap.
pub(crate) fn check_axis(axis: &'static str, length: usize) -> Result<(), Error> {
    match length {
        0 => Err(Error::EmptyAxis { axis }),
        1..=MAX_AXIS => Ok(()),
        _ => Err(Error::TooLarge { axis, length, maximum: MAX_AXIS }),
    }
}

/// Refuses values that are part of a key and longer than it.
pub(crate) fn check_values(values: KvValues, head_dim: usize, v_head_dim: usize) -> Result<(), Error> {
    match values {
        KvValues::InKeys if v_head_dim > head_dim => Err(Error::ValuesPastKeys { head_dim, v_head_dim }),
        KvValues::Own | KvValues::InKeys => Ok(()),
    }
}

fn check(block: usize, part: &'static str, bytes: &[u8], expected_bytes: usize) -> Result<(), Error> {
    if bytes.len() != expected_bytes {
        return Err(Error::BlockBytes { block, part, expected_bytes, actual_bytes: bytes.len() });
    }
    match bytes.as_ptr() as usize % 64 {
        0 => Ok(()),
        _ if bytes.is_empty() => Ok(()),
        offset => Err(Error::BlockAlignment { block, part, offset }),
    }
}
