//! How keys and values lie in a KV block.

use half::slice::{HalfBitsSliceExt as _, HalfFloatSliceExt as _};
use half::{bf16, f16};

use crate::KvBlock;
use crate::kernels::bf16_operand;

/// Tokens in one KV block, at absolute positions `64 * block ..`.
pub const KV_BLOCK_TOKENS: usize = 64;

/// Number format of stored keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// 32-bit; products in f32.
    F32,
    /// IEEE half; products on operands rounded to bf16.
    F16,
    /// bfloat16; products in bf16 with f32 sums.
    Bf16,
}

impl KvDtype {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// `f32`, `f16` or `bf16`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

/// Where the values of a layer are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvValues {
    /// In V blocks of their own.
    Own,
    /// In the keys: a token's value is the first `v_head_dim` elements of its key, at most all of them. Nothing else is stored for it.
    InKeys,
}

impl KvValues {
    /// `values of their own` or `values in the keys`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Own => "values of their own",
            Self::InKeys => "values in the keys",
        }
    }
}

/// Shape of the KV blocks of one layer.
///
/// A 16-bit K block is `[kv_heads][ceil(head_dim / 2)][64 tokens][2]`, a V block `[kv_heads][32 token pairs][v_head_dim][2]`:
/// one 32-bit load holds an even and an odd element of the summed axis, and outputs lie in SIMD lanes.
/// An f32 K block is `[kv_heads][head_dim][64]`, a V block `[kv_heads][64][v_head_dim]`. With [`KvValues::InKeys`] there is no V block: a call
/// transposes the values of one head of one block at a time into its scratch, where they lie as in a V block and give the same bits. That moves
/// `64 * v_head_dim` elements once per block and tile of query rows, all query heads of the KV head taken together: little beside the
/// products of a full tile, but it takes longer than those of a single row of a single head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvLayout {
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements of one key.
    pub head_dim: usize,
    /// Elements of one value.
    pub v_head_dim: usize,
    /// Stored number format.
    pub dtype: KvDtype,
    /// Where the values are.
    pub values: KvValues,
}

impl KvLayout {
    /// The layout of multi-head latent attention in its absorbed form: one KV head whose key is the compressed latent of `kv_lora_rank`
    /// elements and the rotated key of `qk_rope_head_dim` behind it, and whose value is the latent. DeepSeek V2, arXiv:2405.04434, section 2.1.
    pub const fn latent(kv_lora_rank: usize, qk_rope_head_dim: usize, dtype: KvDtype) -> Self {
        let head_dim = kv_lora_rank.saturating_add(qk_rope_head_dim);
        Self { kv_heads: 1, head_dim, v_head_dim: kv_lora_rank, dtype, values: KvValues::InKeys }
    }

    /// Elements that one token's keys are written from: `kv_heads * head_dim`.
    pub const fn k_row_elements(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Elements that one token's values are written from: `kv_heads * v_head_dim`, or none where they are in the keys.
    pub const fn v_row_elements(&self) -> usize {
        match self.values {
            KvValues::Own => self.kv_heads * self.v_head_dim,
            KvValues::InKeys => 0,
        }
    }

    /// Bytes of the keys of one block; a multiple of 64.
    pub const fn k_block_bytes(&self) -> usize {
        self.kv_heads * self.k_head_elements() * self.dtype.bytes()
    }

    /// Bytes of the values of one block; a multiple of 64, and 0 where they are in the keys.
    pub const fn v_block_bytes(&self) -> usize {
        match self.values {
            KvValues::Own => self.kv_heads * self.v_head_bytes(),
            KvValues::InKeys => 0,
        }
    }

    /// Bytes of one head as it lies in a V block, stored or transposed.
    pub(crate) const fn v_head_bytes(&self) -> usize {
        self.v_head_elements() * self.dtype.bytes()
    }

    /// Elements of one head in a K block, the padding of an odd `head_dim` included.
    pub(crate) const fn k_head_elements(&self) -> usize {
        match self.dtype {
            KvDtype::F32 => self.head_dim * KV_BLOCK_TOKENS,
            KvDtype::F16 | KvDtype::Bf16 => self.head_dim.next_multiple_of(2) * KV_BLOCK_TOKENS,
        }
    }

    /// Elements of one head in a V block.
    pub(crate) const fn v_head_elements(&self) -> usize {
        self.v_head_dim * KV_BLOCK_TOKENS
    }

    /// Index of element `dim` of `token`'s key in a head's part of a K block.
    pub(crate) const fn k_index(&self, token: usize, dim: usize) -> usize {
        match self.dtype {
            KvDtype::F32 => dim * KV_BLOCK_TOKENS + token,
            KvDtype::F16 | KvDtype::Bf16 => (dim / 2 * KV_BLOCK_TOKENS + token) * 2 + dim % 2,
        }
    }

    /// Index of element `dim` of `token`'s value in a head's part of a V block.
    pub(crate) const fn v_index(&self, token: usize, dim: usize) -> usize {
        match self.dtype {
            KvDtype::F32 => token * self.v_head_dim + dim,
            KvDtype::F16 | KvDtype::Bf16 => (token / 2 * self.v_head_dim + dim) * 2 + token % 2,
        }
    }

    /// Writes `rows` tokens into one block pair, from token `at` on.
    ///
    /// `k`: `[rows, kv_heads, head_dim]`, `v`: `[rows, kv_heads, v_head_dim]`, or empty as `v_block` is where the values are in the keys. The
    /// 16-bit formats round to nearest even; bf16 stores magnitudes below 2^-50 as zero, which is what a product would read them as.
    ///
    /// # Panics
    /// If a slice has the wrong length, a block is not aligned to its elements, or `at + rows > 64`.
    pub fn write_rows(&self, k_block: &mut [u8], v_block: &mut [u8], at: usize, k: &[f32], v: &[f32], rows: usize) {
        assert!(at + rows <= KV_BLOCK_TOKENS, "rows {at}..{at}+{rows} do not fit a KV block");
        assert_eq!(k_block.len(), self.k_block_bytes(), "K block bytes");
        assert_eq!(v_block.len(), self.v_block_bytes(), "V block bytes");
        assert_eq!(k.len(), rows * self.k_row_elements(), "K row elements");
        assert_eq!(v.len(), rows * self.v_row_elements(), "V row elements");
        match self.dtype {
            KvDtype::F32 => self.write_floats(elements(k_block), elements(v_block), at, k, v),
            KvDtype::F16 => {
                let encode = |x: &[f32], out: &mut [u16]| out.reinterpret_cast_mut::<f16>().convert_from_f32_slice(x);
                self.write_pairs(elements(k_block), elements(v_block), at, k, v, encode);
            }
            KvDtype::Bf16 => {
                let encode = |x: &[f32], out: &mut [u16]| {
                    for (out, x) in out.iter_mut().zip(x) {
                        *out = (bf16_operand(*x).to_bits() >> 16) as u16;
                    }
                };
                self.write_pairs(elements(k_block), elements(v_block), at, k, v, encode);
            }
        }
    }

    fn write_floats(&self, k_block: &mut [f32], v_block: &mut [f32], at: usize, k: &[f32], v: &[f32]) {
        let heads = self.kv_heads;
        for (i, key) in k.chunks_exact(self.head_dim).enumerate() {
            let (token, head) = (at + i / heads, i % heads);
            let part = &mut k_block[head * self.k_head_elements()..][..self.k_head_elements()];
            for (dim, &x) in key.iter().enumerate() {
                part[self.k_index(token, dim)] = x;
            }
        }
        for (i, value) in v.chunks_exact(self.v_head_dim).enumerate() {
            let (token, head) = (at + i / heads, i % heads);
            let part = &mut v_block[head * self.v_head_elements()..][..self.v_head_elements()];
            part[self.v_index(token, 0)..][..self.v_head_dim].copy_from_slice(value);
        }
    }

    /// As [`KvLayout::write_rows`] for the 16-bit formats: some elements of some tokens become words, side by side; words become pairs.
    fn write_pairs(
        &self,
        k_block: &mut [u16],
        v_block: &mut [u16],
        at: usize,
        k: &[f32],
        v: &[f32],
        encode: impl Fn(&[f32], &mut [u16]),
    ) {
        /// Tokens whose pairs fill a cache line of a K block.
        const TOKENS: usize = 16;
        /// Elements at a time.
        const DIMS: usize = 64;
        let mut words = [[0; DIMS]; TOKENS];
        for (head, part) in k_block.chunks_exact_mut(self.k_head_elements()).enumerate() {
            for (group, k) in k.chunks(TOKENS * self.k_row_elements()).enumerate() {
                let first = at + group * TOKENS;
                for dim in (0..self.head_dim).step_by(DIMS) {
                    let dims = dim..(dim + DIMS).min(self.head_dim);
                    let tokens = k.len() / self.k_row_elements();
                    for (words, k) in words.iter_mut().zip(k.chunks_exact(self.k_row_elements())) {
                        encode(&k[head * self.head_dim..][dims.clone()], &mut words[..dims.len()]);
                    }
                    for pair in 0..dims.len() / 2 {
                        let (to, _) = part[self.k_index(first, dim + 2 * pair)..].as_chunks_mut::<2>();
                        for (to, words) in to.iter_mut().zip(&words[..tokens]) {
                            *to = words.as_chunks::<2>().0[pair];
                        }
                    }
                    if dims.len() % 2 == 1 {
                        let last = dims.len() - 1;
                        let (to, _) = part[self.k_index(first, dim + last)..].as_chunks_mut::<2>();
                        for (to, words) in to.iter_mut().zip(&words[..tokens]) {
                            to[0] = words[last];
                        }
                    }
                }
            }
        }
        if v.is_empty() {
            return;
        }
        let row = |token: usize, head: usize| &v[(token - at) * self.v_row_elements() + head * self.v_head_dim..];
        let tokens = at..at + v.len() / self.v_row_elements();
        for (head, part) in v_block.chunks_exact_mut(self.v_head_elements()).enumerate() {
            for pair in tokens.start / 2..tokens.end.div_ceil(2) {
                // The other token of a pair that is cut keeps its words.
                let written = [2 * pair, 2 * pair + 1].map(|token| tokens.contains(&token));
                for dim in (0..self.v_head_dim).step_by(DIMS) {
                    let dims = dim..(dim + DIMS).min(self.v_head_dim);
                    for (odd, words) in words[..2].iter_mut().enumerate().filter(|(odd, _)| written[*odd]) {
                        encode(&row(2 * pair + odd, head)[dims.clone()], &mut words[..dims.len()]);
                    }
                    let to = &mut part[self.v_index(2 * pair, dim)..][..2 * dims.len()];
                    let (to, _) = to.as_chunks_mut::<2>();
                    for (i, to) in to.iter_mut().enumerate() {
                        match written {
                            [true, true] => *to = [words[0][i], words[1][i]],
                            [true, false] => to[0] = words[0][i],
                            _ => to[1] = words[1][i],
                        }
                    }
                }
            }
        }
    }

    /// Copies one token out of a block pair: `k`: `[kv_heads, head_dim]`, `v`: `[kv_heads, v_head_dim]`.
    ///
    /// # Panics
    /// If a slice has the wrong length or `token >= 64`.
    pub fn read_row(&self, k_block: &[u8], v_block: &[u8], token: usize, k: &mut [f32], v: &mut [f32]) {
        assert!(token < KV_BLOCK_TOKENS, "token {token} is not in a KV block");
        assert_eq!(k.len(), self.kv_heads * self.head_dim, "K row elements");
        assert_eq!(v.len(), self.kv_heads * self.v_head_dim, "V row elements");
        for (i, x) in k.iter_mut().enumerate() {
            *x = self.k_element(k_block, i / self.head_dim, token, i % self.head_dim);
        }
        for (i, x) in v.iter_mut().enumerate() {
            let block = KvBlock { k: k_block, v: v_block };
            *x = self.v_element(block, i / self.v_head_dim, token, i % self.v_head_dim);
        }
    }

    /// One stored key element, as f32.
    pub(crate) fn k_element(&self, block: &[u8], head: usize, token: usize, dim: usize) -> f32 {
        self.element(block, head * self.k_head_elements() + self.k_index(token, dim))
    }

    /// One element of a value, as f32, from where it is stored.
    pub(crate) fn v_element(&self, block: KvBlock<'_>, head: usize, token: usize, dim: usize) -> f32 {
        match self.values {
            KvValues::Own => self.element(block.v, head * self.v_head_elements() + self.v_index(token, dim)),
            KvValues::InKeys => self.k_element(block.k, head, token, dim),
        }
    }

    fn element(&self, block: &[u8], index: usize) -> f32 {
        match self.dtype {
            KvDtype::F32 => bytemuck::cast_slice::<u8, f32>(block)[index],
            KvDtype::F16 => bytemuck::cast_slice::<u8, f16>(block)[index].to_f32(),
            KvDtype::Bf16 => bytemuck::cast_slice::<u8, bf16>(block)[index].to_f32(),
        }
    }
}

/// The elements of a block; of none, wherever an empty slice points.
fn elements<T: bytemuck::Pod>(block: &mut [u8]) -> &mut [T] {
    if block.is_empty() { &mut [] } else { bytemuck::cast_slice_mut(block) }
}
