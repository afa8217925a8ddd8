//! The tokens of a vocabulary in one compact arena, and how to find one by its bytes.

use std::{borrow::Cow, collections::HashMap};

use super::{TokenizerError, alphabet};

/// What a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// Ordinary text, written in the vocabulary's alphabet.
    Text,
    /// One raw byte, written `<0x0A>`: for characters that have no token.
    Byte,
    /// Text that is always one token wherever it stands, and never the result of a merge.
    UserDefined,
    /// Written literally, matched in a text only on request, left out of decoded text on request.
    Special,
}

impl TokenKind {
    /// Of GGUF's `tokenizer.ggml.token_type`.
    pub(super) fn from_ggml(id: u32, value: i32) -> Result<Self, TokenizerError> {
        match value {
            // 0 is what converters write for "undefined", 1 normal, 5 unused.
            0 | 1 | 5 => Ok(Self::Text),
            // 2 unknown, 3 control.
            2 | 3 => Ok(Self::Special),
            4 => Ok(Self::UserDefined),
            6 => Ok(Self::Byte),
            _ => Err(TokenizerError::UnknownTokenType { id, value }),
        }
    }
}

/// How a vocabulary writes the bytes of ordinary tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// GPT-2's printable stand-ins for all 256 bytes.
    Bytes,
    /// Text as it is, but U+2581 for a space.
    Spaces,
}

/// SentencePiece's stand-in for a space.
pub(super) const SPACE_MARK: char = '\u{2581}';

impl Alphabet {
    /// Appends the bytes that `text` writes; leaves `out` as it was and returns `false` when `text` is not in the alphabet.
    pub(super) fn decode_into(self, text: &str, out: &mut Vec<u8>) -> bool {
        match self {
            Self::Bytes => alphabet::decode_into(text, out),
            Self::Spaces => {
                out.extend_from_slice(unmarked(text).as_bytes());
                true
            }
        }
    }
}

/// `text` with spaces for their marks.
pub(super) fn unmarked(text: &str) -> Cow<'_, str> {
    if text.contains(SPACE_MARK) { Cow::Owned(text.replace(SPACE_MARK, " ")) } else { Cow::Borrowed(text) }
}

/// The byte of a text such as `<0x0A>`.
pub(super) fn byte_of_literal(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// No token.
const NONE: u32 = u32::MAX;

/// The token texts as raw bytes in one arena, with a hash index over those that ordinary text can become.
#[derive(Debug)]
pub(super) struct Vocabulary {
    alphabet: Alphabet,
    text: Vec<u8>,
    /// Token `i` is `text[ends[i]..ends[i + 1]]`.
    ends: Vec<u32>,
    /// Ascending ids.
    special: Vec<u32>,
    /// Open addressing, a power of two long.
    index: Vec<u32>,
    byte_ids: [u32; 256],
    longest_bytes: usize,
}

/// A special or user-defined token and what stands for it in a text.
#[derive(Debug)]
pub(super) struct Literal {
    pub(super) id: u32,
    pub(super) text: Box<str>,
    pub(super) kind: TokenKind,
}

/// Takes the tokens of a vocabulary in id order.
#[derive(Debug)]
pub(super) struct VocabularyBuilder {
    alphabet: Alphabet,
    text: Vec<u8>,
    ends: Vec<u32>,
    special: Vec<u32>,
    /// Ids that no ordinary text leads to, ascending.
    unreachable: Vec<u32>,
    bytes: Vec<(u8, u32)>,
    literals: Vec<Literal>,
}

impl VocabularyBuilder {
    pub(super) fn new(alphabet: Alphabet) -> Self {
        Self {
            alphabet,
            text: Vec::new(),
            ends: vec![0],
            special: Vec::new(),
            unreachable: Vec::new(),
            bytes: Vec::new(),
            literals: Vec::new(),
        }
    }

    /// Adds the next token. `findable`: whether ordinary text can become this special or user-defined token by merging.
    pub(super) fn push(&mut self, token: &str, kind: TokenKind, findable: bool) -> Result<(), TokenizerError> {
        let tokens = self.ends.len();
        let too_large = |text_bytes| TokenizerError::VocabularyTooLarge { tokens, text_bytes };
        let id = u32::try_from(tokens - 1).ok().filter(|&id| id < NONE / 2);
        let id = id.ok_or_else(|| too_large(self.text.len()))?;
        // In a byte-level vocabulary a byte's token is one more text.
        let byte = byte_of_literal(token).filter(|_| kind == TokenKind::Byte && self.alphabet == Alphabet::Spaces);
        match kind {
            TokenKind::Byte | TokenKind::Text => match byte {
                Some(byte) => {
                    self.text.push(byte);
                    self.bytes.push((byte, id));
                    self.unreachable.push(id);
                }
                None => {
                    if !self.alphabet.decode_into(token, &mut self.text) {
                        self.text.extend_from_slice(token.as_bytes());
                        self.unreachable.push(id);
                    }
                }
            },
            TokenKind::UserDefined | TokenKind::Special => {
                if kind == TokenKind::Special || self.alphabet == Alphabet::Bytes {
                    self.text.extend_from_slice(token.as_bytes());
                } else {
                    self.text.extend_from_slice(unmarked(token).as_bytes());
                }
                if kind == TokenKind::Special {
                    self.special.push(id);
                }
                if !findable {
                    self.unreachable.push(id);
                }
                // An empty text stands everywhere.
                if !token.is_empty() {
                    self.literals.push(Literal { id, text: token.into(), kind });
                }
            }
        }
        self.ends.push(u32::try_from(self.text.len()).map_err(|_| too_large(self.text.len()))?);
        Ok(())
    }

    /// Number of tokens so far.
    pub(super) fn len(&self) -> usize {
        self.ends.len() - 1
    }

    /// The vocabulary, and its special and user-defined tokens by what stands for them.
    pub(super) fn finish(mut self) -> Result<(Vocabulary, Vec<Literal>), TokenizerError> {
        let tokens = self.len();
        if tokens == 0 {
            return Err(TokenizerError::EmptyVocabulary);
        }
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
        self.special.shrink_to_fit();
        let longest_bytes = self.ends.windows(2).map(|ends| (ends[1] - ends[0]) as usize).max().unwrap_or(0);
        let mut vocabulary = Vocabulary {
            alphabet: self.alphabet,
            text: self.text,
            ends: self.ends,
            special: self.special,
            index: vec![NONE; (tokens * 4 / 3 + 1).next_power_of_two()],
            byte_ids: [NONE; 256],
            longest_bytes,
        };
        vocabulary.fill_index(&self.unreachable);
        vocabulary.fill_byte_ids(&self.bytes);
        Ok((vocabulary, self.literals))
    }
}

impl Vocabulary {
    fn fill_index(&mut self, unreachable: &[u32]) {
        for id in self.ids() {
            if unreachable.binary_search(&id).is_ok() || self.bytes_of(id).is_empty() {
                continue;
            }
            // The first of equal texts wins.
            if let Err(slot) = self.find(self.bytes_of(id)) {
                self.index[slot] = id;
            }
        }
    }

    fn fill_byte_ids(&mut self, bytes: &[(u8, u32)]) {
        match self.alphabet {
            Alphabet::Bytes => {
                for byte in 0..=255u8 {
                    self.byte_ids[usize::from(byte)] = self.lookup(&[byte]).unwrap_or(NONE);
                }
            }
            Alphabet::Spaces => {
                for &(byte, id) in bytes.iter().rev() {
                    self.byte_ids[usize::from(byte)] = id;
                }
            }
        }
    }

    pub(super) fn ids(&self) -> std::ops::Range<u32> {
        let ids = u32::try_from(self.len()).expect("the builder checked that ids fit 32 bits");
        0..ids
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.ends.len() - 1
    }

    pub(super) fn alphabet(&self) -> Alphabet {
        self.alphabet
    }

    /// Bytes of the longest token.
    pub(super) fn longest_bytes(&self) -> usize {
        self.longest_bytes
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

    /// The token that ordinary text of these raw bytes may become.
    pub(super) fn lookup(&self, bytes: &[u8]) -> Option<u32> {
        self.find(bytes).ok().map(|slot| self.index[slot])
    }

    /// The special token of this literal text.
    pub(super) fn lookup_special(&self, text: &str) -> Option<u32> {
        self.special.iter().copied().find(|&id| self.bytes_of(id) == text.as_bytes())
    }

    /// The token of one raw byte; some vocabularies lack bytes that their training text never had.
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

/// Special and user-defined tokens by their text, of equal texts the lowest id.
pub(super) fn by_text(literals: &[Literal]) -> HashMap<&str, u32> {
    let mut ids = HashMap::with_capacity(literals.len());
    for literal in literals {
        ids.entry(&*literal.text).or_insert(literal.id);
    }
    ids
}

/// FNV-1a (Fowler, Noll, Vo) with the high half folded in, so that a mask keeps good bits.
fn hash(bytes: &[u8]) -> usize {
    let hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    ((hash ^ (hash >> 32)) & 0xffff_ffff) as usize
}
