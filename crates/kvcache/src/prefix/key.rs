//! Names of prefixes: a chain of hashes, so that a block is found only behind all blocks before it.

use std::fmt;

use plimsoll_attention::{KV_BLOCK_TOKENS, KvValues};
use sha2::{Digest, Sha256};

use crate::{KvSpec, LayerSpec};

/// Version of what is hashed and of the files on disk.
pub(super) const FORMAT_VERSION: u32 = 1;

/// What besides tokens and layers decides the bits of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheIdentity {
    /// A hash of the model: its weights, and all settings that enter the arithmetic.
    pub model: [u8; 32],
    /// Version of the kernels' contract on the order of sums; another version may give other bits.
    pub contract: u32,
}

/// The hash of everything up to the end of one block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key(pub(super) [u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hex())
    }
}

impl Key {
    /// The start of all chains of one model, KV type and contract.
    pub(super) fn root(identity: &CacheIdentity, spec: &KvSpec) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"plimsoll prefix");
        hash.update(FORMAT_VERSION.to_le_bytes());
        hash.update(identity.contract.to_le_bytes());
        hash.update(identity.model);
        let mut put = |values: &[usize]| values.iter().for_each(|value| hash.update((*value as u64).to_le_bytes()));
        put(&[KV_BLOCK_TOKENS, spec.layers.len()]);
        for layer in &spec.layers {
            match layer {
                LayerSpec::Stateless => put(&[0]),
                LayerSpec::Recurrent(state) => put(&[1, state.elements]),
                LayerSpec::Kv(kv) => {
                    let layout = kv.layout;
                    let dtype = usize::from(layout.dtype.name().as_bytes()[0]) * 64 + layout.dtype.bytes();
                    let window = kv.window.map_or([0, 0], |window| [1, window]);
                    // Blocks without values are of another form, though all axes agree.
                    let kind = match layout.values {
                        KvValues::Own => 2,
                        KvValues::InKeys => 3,
                    };
                    put(&[kind, layout.kv_heads, layout.head_dim, layout.v_head_dim, dtype, window[0], window[1]]);
                }
            }
        }
        Self(hash.finalize().into())
    }

    /// The key of the block of `ids` behind this one.
    fn next(self, ids: &[u32]) -> Self {
        let mut hash = Sha256::new();
        hash.update(self.0);
        ids.iter().for_each(|id| hash.update(id.to_le_bytes()));
        Self(hash.finalize().into())
    }

    /// Keys of the first `blocks` whole blocks of `tokens`.
    pub(super) fn chain(self, tokens: &[u32], blocks: usize) -> Vec<Self> {
        let mut key = self;
        let next = |ids: &[u32]| {
            key = key.next(ids);
            key
        };
        tokens.chunks_exact(KV_BLOCK_TOKENS).take(blocks).map(next).collect()
    }

    /// The key of [`Key::hex`]; nothing for any other text.
    pub(super) fn from_hex(text: &str) -> Option<Self> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let mut key = [0; 32];
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != key.len() || !rest.is_empty() {
            return None;
        }
        for (to, [high, low]) in key.iter_mut().zip(pairs) {
            *to = digit(*high)? << 4 | digit(*low)?;
        }
        Some(Self(key))
    }

    pub(super) fn hex(&self) -> String {
        self.0
            .iter()
            .flat_map(|byte| [byte >> 4, byte & 15])
            .map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)]))
            .collect()
    }
}
