//! Where a call's keys and values come from: KV blocks, whose values may have to be transposed from the keys, or plain rows that are packed into
//! one block at a time.

use crate::transpose::transpose_values;
use crate::{KV_BLOCK_TOKENS, KvBlock, KvDtype, KvLayout, KvValues, KvView};

/// The keys and values of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Keys<'a> {
    /// Blocks in the layout kernels read.
    Blocks(&'a KvView<'a>),
    /// Rows of plain tensors.
    #[cfg_attr(not(feature = "candle"), expect(dead_code, reason = "only the tensor API has plain rows"))]
    Rows(&'a KvRows<'a>),
}

/// One half of plain keys and values: element `dim` of `token` of `head` is at `head * head_stride + token * token_stride + dim`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlainRows<'a> {
    /// Elements of the layout's number format.
    pub(crate) bytes: &'a [u8],
    pub(crate) head_stride: usize,
    pub(crate) token_stride: usize,
}

/// Keys and values of one sequence as plain tensors hold them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KvRows<'a> {
    /// Shape of a block that holds one head.
    layout: KvLayout,
    k: PlainRows<'a>,
    v: PlainRows<'a>,
    kv_len: usize,
}

impl<'a> Keys<'a> {
    /// Shape of the blocks that [`Keys::block`] gives; they always have values of their own.
    pub(crate) fn layout(&self) -> KvLayout {
        match self {
            Self::Blocks(view) => match view.layout().values {
                KvValues::Own => *view.layout(),
                KvValues::InKeys => KvLayout { kv_heads: 1, values: KvValues::Own, ..*view.layout() },
            },
            Self::Rows(rows) => rows.layout,
        }
    }

    /// The block of positions `64 * index ..` and the place of a KV head in it. Plain rows are packed into `packed`, and values that are in the
    /// keys are transposed into it.
    pub(crate) fn block<'b>(&self, index: usize, kv_head: usize, packed: &'b mut [f32]) -> (KvBlock<'b>, usize)
    where
        'a: 'b,
    {
        match self {
            Self::Blocks(view) if view.layout().values == KvValues::Own => (view.block(index), kv_head),
            Self::Blocks(view) => {
                let [k, _] = self.stored(index, kv_head);
                let v: &mut [u8] = &mut bytemuck::cast_slice_mut(packed)[..view.layout().v_head_bytes()];
                let tokens = (view.kv_len() - index * KV_BLOCK_TOKENS).min(KV_BLOCK_TOKENS);
                transpose_values(view.layout(), k, v, tokens);
                (KvBlock { k, v }, 0)
            }
            Self::Rows(rows) => (rows.pack(index, kv_head, bytemuck::cast_slice_mut(packed)), 0),
        }
    }

    /// The stored keys and values of one head of a block that comes next, to be fetched early.
    pub(crate) fn stored(&self, index: usize, kv_head: usize) -> [&'a [u8]; 2] {
        match self {
            Self::Blocks(view) => {
                let (layout, block) = (view.layout(), view.block(index));
                let part = |bytes: &'a [u8], head_bytes| &bytes[kv_head * head_bytes..][..head_bytes];
                [
                    part(block.k, layout.k_block_bytes() / layout.kv_heads),
                    part(block.v, layout.v_block_bytes() / layout.kv_heads),
                ]
            }
            Self::Rows(_) => [&[], &[]],
        }
    }
}

impl<'a> KvRows<'a> {
    /// Rows of `kv_heads` heads; `layout` is that of one of them.
    ///
    /// # Panics
    /// If the last row of the last head lies outside the bytes, or they are not aligned to their elements.
    #[cfg_attr(not(feature = "candle"), expect(dead_code, reason = "only the tensor API has plain rows"))]
    pub(crate) fn new(layout: KvLayout, k: PlainRows<'a>, v: PlainRows<'a>, kv_heads: usize, kv_len: usize) -> Self {
        assert_eq!(layout.kv_heads, 1, "a block of plain rows holds one head");
        for (rows, dim) in [(k, layout.head_dim), (v, layout.v_head_dim)] {
            let end = (kv_heads - 1) * rows.head_stride + kv_len.saturating_sub(1) * rows.token_stride + dim;
            assert!(end * layout.dtype.bytes() <= rows.bytes.len(), "{end} elements are addressed");
        }
        Self { layout, k, v, kv_len }
    }

    fn pack<'b>(&self, index: usize, head: usize, to: &'b mut [u8]) -> KvBlock<'b> {
        let (k, rest) = to.split_at_mut(self.layout.k_block_bytes());
        let v = &mut rest[..self.layout.v_block_bytes()];
        let first = index * KV_BLOCK_TOKENS;
        let tokens = KV_BLOCK_TOKENS.min(self.kv_len - first);
        let part = |rows, dim| BlockRows { rows, head, first, tokens, dim };
        let (k_rows, v_rows) = (part(&self.k, self.layout.head_dim), part(&self.v, self.layout.v_head_dim));
        match self.layout.dtype {
            KvDtype::F32 => {
                k_rows.pack_k32(bytemuck::cast_slice_mut(k));
                v_rows.pack_v32(bytemuck::cast_slice_mut(v));
            }
            KvDtype::F16 => {
                k_rows.pack_k16(bytemuck::cast_slice_mut(k), |x| x);
                v_rows.pack_v16(bytemuck::cast_slice_mut(v), |x| x);
            }
            KvDtype::Bf16 => {
                k_rows.pack_k16(bytemuck::cast_slice_mut(k), bf16_operand);
                v_rows.pack_v16(bytemuck::cast_slice_mut(v), bf16_operand);
            }
        }
        KvBlock { k, v }
    }
}

impl<'a> PlainRows<'a> {
    fn row<T: bytemuck::Pod>(&self, head: usize, token: usize, len: usize) -> &'a [T] {
        &bytemuck::cast_slice(self.bytes)[head * self.head_stride + token * self.token_stride..][..len]
    }
}

/// [`crate::kernels::bf16_operand`] of a stored bf16 number, which no rounding can change.
fn bf16_operand(x: u16) -> u16 {
    /// 2^-50.
    const FLOOR: u16 = 77 << 7;
    const INFINITY: u16 = 0xff << 7;
    match x & 0x7fff {
        ..FLOOR => 0,
        FLOOR..=INFINITY => x,
        _ => x | 0x40,
    }
}

/// The rows of one head that a block holds, `tokens` of them from `first` on, each of `dim` elements.
#[derive(Debug, Clone, Copy)]
struct BlockRows<'r, 'a> {
    rows: &'r PlainRows<'a>,
    head: usize,
    first: usize,
    tokens: usize,
    dim: usize,
}

impl<'a> BlockRows<'_, 'a> {
    fn row<T: bytemuck::Pod>(&self, token: usize) -> &'a [T] {
        self.rows.row(self.head, self.first + token, self.dim)
    }

    /// `[head_dim][64]`, the tokens after the last zero.
    fn pack_k32(&self, to: &mut [u32]) {
        for token in 0..self.tokens {
            for (to, &x) in to.chunks_exact_mut(KV_BLOCK_TOKENS).zip(self.row(token)) {
                to[token] = x;
            }
        }
        self.clear_rest(to);
    }

    /// `[ceil(head_dim / 2)][64][2]`, the tokens after the last and the element after an odd last one zero.
    fn pack_k16(&self, to: &mut [u32], read: impl Fn(u16) -> u16) {
        for token in 0..self.tokens {
            let row: &[u16] = self.row(token);
            let (pairs, rest) = row.as_chunks::<2>();
            let mut to = to.chunks_exact_mut(KV_BLOCK_TOKENS);
            for (&[even, odd], to) in pairs.iter().zip(&mut to) {
                to[token] = u32::from(read(even)) | (u32::from(read(odd)) << 16);
            }
            if let ([last], Some(to)) = (rest, to.next()) {
                to[token] = u32::from(read(*last));
            }
        }
        self.clear_rest(to);
    }

    /// Zeros for the tokens of a block of keys after the last.
    fn clear_rest(&self, to: &mut [u32]) {
        for to in to.chunks_exact_mut(KV_BLOCK_TOKENS) {
            to[self.tokens..].fill(0);
        }
    }

    /// `[64][v_head_dim]`, the tokens after the last zero.
    fn pack_v32(&self, to: &mut [u32]) {
        for (token, to) in to.chunks_exact_mut(self.dim).enumerate() {
            match token < self.tokens {
                true => to.copy_from_slice(self.row(token)),
                false => to.fill(0),
            }
        }
    }

    /// `[32][v_head_dim][2]`, the tokens after the last zero.
    fn pack_v16(&self, to: &mut [u32], read: impl Fn(u16) -> u16) {
        for (pair, to) in to.chunks_exact_mut(self.dim).enumerate() {
            match self.tokens.saturating_sub(2 * pair) {
                0 => to.fill(0),
                1 => {
                    for (to, &x) in to.iter_mut().zip(self.row(2 * pair)) {
                        *to = u32::from(read(x));
                    }
                }
                _ => {
                    let (even, odd): (&[u16], &[u16]) = (self.row(2 * pair), self.row(2 * pair + 1));
                    for ((to, &x), &y) in to.iter_mut().zip(even).zip(odd) {
                        *to = u32::from(read(x)) | (u32::from(read(y)) << 16);
                    }
                }
            }
        }
    }
}
