//! Values that are stored in the keys, brought into the form of a V block.

use crate::{KV_BLOCK_TOKENS, KvDtype, KvLayout};

/// Rows of a V block that are written side by side, from half a cache line of each row of keys or a whole one.
const ROWS: usize = 8;

/// Transposes the first `v_head_dim` elements of the first `tokens` keys of one head of a K block into one head of a V block; the tokens after
/// them become zero. Both start at a multiple of 8 bytes.
pub(crate) fn transpose_values(layout: &KvLayout, k: &[u8], v: &mut [u8], tokens: usize) {
    let (width, v) = (layout.v_head_dim, bytemuck::cast_slice_mut(v));
    match layout.dtype {
        KvDtype::F32 => {
            // `[head_dim][64]` to `[64][v_head_dim]`.
            let (keys, _) = bytemuck::cast_slice::<u8, u32>(k).as_chunks::<KV_BLOCK_TOKENS>();
            let (pairs, last) = keys[..width].as_chunks::<2>();
            let pair = |at: usize, token: usize| [pairs[at][0][token], pairs[at][1][token]];
            transpose(v, width, tokens, pair, |token| last[0][token]);
        }
        KvDtype::F16 | KvDtype::Bf16 => {
            // `[ceil(head_dim / 2)][64][2]` to `[32][v_head_dim][2]`: squares of two tokens and two elements.
            let (squares, _) = bytemuck::cast_slice::<u8, u64>(k).as_chunks::<{ KV_BLOCK_TOKENS / 2 }>();
            let pair = |at: usize, row: usize| transposed(squares[at][row]);
            transpose(v, width, tokens.div_ceil(2), pair, |row| transposed(squares[width / 2][row])[0]);
            if let (1, Some(last)) = (tokens % 2, v.chunks_exact_mut(width).nth(tokens / 2)) {
                last.iter_mut().for_each(|pair| *pair &= 0xffff);
            }
        }
    }
}

/// Writes the first `rows` rows of `[_][width]`, two elements at a time from `pair` and an odd last one from `last`; the other rows become zero.
fn transpose(
    to: &mut [u32],
    width: usize,
    rows: usize,
    pair: impl Fn(usize, usize) -> [u32; 2],
    last: impl Fn(usize) -> u32,
) {
    let (to, rest) = to.split_at_mut(rows * width);
    rest.fill(0);
    for (group, to) in to.chunks_mut(ROWS * width).enumerate() {
        let (first, count) = (group * ROWS, to.len() / width);
        // The keys are read in the order they lie in memory.
        for at in 0..width / 2 {
            for row in 0..count {
                to[row * width + 2 * at..][..2].copy_from_slice(&pair(at, first + row));
            }
        }
        if width % 2 == 1 {
            for row in 0..count {
                to[(row + 1) * width - 1] = last(first + row);
            }
        }
    }
}

/// Two tokens' pairs of elements as two elements' pairs of tokens: the two words in the middle of four change places.
fn transposed(square: u64) -> [u32; 2] {
    const OUTER: u64 = 0xffff_0000_0000_ffff;
    let square = (square & OUTER) | ((square >> 16) & 0xffff_0000) | ((square << 16) & 0xffff_0000_0000);
    bytemuck::cast(square)
}
