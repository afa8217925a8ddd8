//! The tokens of a vocabulary in one compact arena, and how to find one by its bytes.

use std::collections::HashMap;

use super::{TokenizerError, alphabet};

/// What GGUF's `tokenizer.ggml.token_type` says of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// Ordinary text; the vocabulary writes its bytes in the GPT-2 alphabet.
    Text,
    /// Written literally, never the result of a merge, matched in a text only on request.
    Special,
}

impl TokenKind {
    fn from_ggml(id: u32, value: i32) -> Result<Self, TokenizerError> {
        match value {
            // 0 is what converters write for "undefined", 1 normal, 5 unused, 6 byte.
            0 | 1 | 5 | 6 => Ok(Self::Text),
            // 2 unknown, 3 control, 4 user-defined.
            2..=4 => Ok(Self::Special),
            _ => Err(TokenizerError::UnknownTokenType { id, value }),
        }
    }
}

/// No token.
const NONE: u32 = u32::MAX;

/// The token texts as raw bytes in one arena, with a hash index over the ordinary ones.
#[derive(Debug)]
pub(super) struct Vocabulary {
    text: Vec<u8>,
    /// Token `i` is `text[ends[i]..ends[i + 1]]`.
    ends: Vec<u32>,
    /// Ascending ids.
    special: Vec<u32>,
    /// Open addressing over ordinary tokens, a power of two long.
    index: Vec<u32>,
    byte_ids: [u32; 256],
}

impl Vocabulary {
    pub(super) fn new<'a>(
        tokens: impl Iterator<Item = &'a str>,
        types: impl Iterator<Item = i32>,
    ) -> Result<Self, TokenizerError> {
        let mut text = Vec::new();
        let mut ends = vec![0];
        let mut special = Vec::new();
        // Ordinary tokens whose text is not in the alphabet: decodable, but no text can lead to them.
        let mut unreachable = Vec::new();
        let mut types = types.fuse();
        let mut type_count = 0;
        for (i, token) in tokens.enumerate() {
            let too_large = |text_bytes| TokenizerError::VocabularyTooLarge { tokens: i + 1, text_bytes };
            let id = u32::try_from(i).ok().filter(|&id| id < NONE / 2).ok_or_else(|| too_large(text.len()))?;
            let kind = match types.next() {
                Some(value) => {
                    type_count += 1;
                    TokenKind::from_ggml(id, value)?
                }
                None => TokenKind::Text,
            };
            if kind == TokenKind::Special {
                text.extend_from_slice(token.as_bytes());
                special.push(id);
            } else if !alphabet::decode_into(token, &mut text) {
                text.extend_from_slice(token.as_bytes());
                unreachable.push(id);
            }
            ends.push(u32::try_from(text.len()).map_err(|_| too_large(text.len()))?);
        }
        let tokens = ends.len() - 1;
        type_count += types.count();
        if tokens == 0 {
            return Err(TokenizerError::EmptyVocabulary);
        }
        if type_count != 0 && type_count != tokens {
            return Err(TokenizerError::TypeCount { types: type_count, tokens });
        }
        text.shrink_to_fit();
        ends.shrink_to_fit();
        special.shrink_to_fit();
        let mut vocabulary = Self {
            text,
            ends,
            special,
            index: vec![NONE; (tokens * 4 / 3 + 1).next_power_of_two()],
            byte_ids: [NONE; 256],
        };
        vocabulary.fill_index(&unreachable);
        Ok(vocabulary)
    }

    fn fill_index(&mut self, unreachable: &[u32]) {
        for id in self.ids() {
            if self.is_special(id) || unreachable.binary_search(&id).is_ok() {
                continue;
            }
            // The first of equal texts wins.
            if let Err(slot) = self.find(self.bytes_of(id)) {
                self.index[slot] = id;
            }
        }
        for byte in 0..=255u8 {
            self.byte_ids[usize::from(byte)] = self.lookup(&[byte]).unwrap_or(NONE);
        }
    }

    fn ids(&self) -> std::ops::Range<u32> {
        let ids = u32::try_from(self.len()).expect("`new` checked that ids fit 32 bits");
        0..ids
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.ends.len() - 1
    }

    pub(super) fn get(&self, id: u32) -> Option<&[u8]> {
        ((id as usize) < self.len()).then(|| self.bytes_of(id))
    }

    fn bytes_of(&self, id: u32) -> &[u8] {
        let id = id as usize;
        &self.text[self.ends[id] as usize..self.ends[id + 1] as usize]
    }

    pub(super) fn is_special(&self, id: u32) -> bool {
        self.special.binary_search(&id).is_ok()
    }

    /// Ascending ids of the special tokens.
    pub(super) fn special(&self) -> &[u32] {
        &self.special
    }

    /// The ordinary token of these raw bytes.
    pub(super) fn lookup(&self, bytes: &[u8]) -> Option<u32> {
        self.find(bytes).ok().map(|slot| self.index[slot])
    }

    /// The special token of this literal text.
    pub(super) fn lookup_special(&self, text: &str) -> Option<u32> {
        self.special.iter().copied().find(|&id| self.bytes_of(id) == text.as_bytes())
    }

    /// Every special token by its text, of equal texts the lowest id: for many look-ups, where [`Self::lookup_special`] scans for one.
    pub(super) fn specials(&self) -> HashMap<&[u8], u32> {
        let mut specials = HashMap::with_capacity(self.special.len());
        for &id in &self.special {
            specials.entry(self.bytes_of(id)).or_insert(id);
        }
        specials
    }

    /// The one-byte token of `byte`; some vocabularies lack bytes that their training text never had.
    pub(super) fn byte_id(&self, byte: u8) -> Option<u32> {
        Some(self.byte_ids[usize::from(byte)]).filter(|&id| id != NONE)
    }

    /// The slot that holds `bytes`, or else the free slot where it belongs. One slot in four at least is free.
    fn find(&self, bytes: &[u8]) -> Result<usize, usize> {
        let mask = self.index.len() - 1;
        let mut slot = hash(bytes) & mask;
        loop {
            match self.index[slot] {
                NONE => return Err(slot),
                id if self.bytes_of(id) == bytes => return Ok(slot),
                _ => slot = (slot + 1) & mask,
            }
        }
    }
}

/// FNV-1a (Fowler, Noll, Vo) with the high half folded in, so that a mask keeps good bits.
fn hash(bytes: &[u8]) -> usize {
    let hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    ((hash ^ (hash >> 32)) & 0xffff_ffff) as usize
}
