//! Byte-level BPE tokenizers from GGUF metadata: text to token ids, ids to text, whole or as a stream.
//!
//! Ids equal those of Hugging Face's `tokenizers` for the same vocabulary, merges and pre-tokenizer. The tokenizer is our own
//! because of its size: SmolLM2's 49,152 tokens take 2.1 MB of heap here, against 7 MB there (11 MB after the first text).

mod alphabet;
mod classes;
mod detokenizer;
mod error;
mod merges;
mod pre;
mod special;
#[cfg(test)]
mod tests;
mod vocab;

pub use detokenizer::{Detokenizer, SkipSpecial};
pub use error::TokenizerError;
pub use pre::PreTokenizer;

use classes::Classes;
use merges::{MergeTable, MergeWork};
use special::{Part, SpecialTokens};
use vocab::Vocabulary;

/// Texts that end a generation in the chat formats of known models, where the metadata may name only one of several.
const END_TEXTS: [&str; 7] =
    ["<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>"];

/// Longest piece that is merged as one. Longer ones (no known text has them) are cut here, to keep positions in 30 bits.
const MAX_PIECE_BYTES: usize = 1 << 30;

/// The tokenizer part of a model's metadata; comments give the GGUF keys (after `tokenizer.ggml.`).
///
/// `tokens`, `token_types` and `merges` are read once and not kept.
#[derive(Debug, Clone)]
pub struct BpeMetadata<'a, Tokens, Types, Merges> {
    /// `model`: only `gpt2` is supported.
    pub model: &'a str,
    /// `pre`
    pub pre: Option<&'a str>,
    /// `tokens`, yielding `&str` in id order.
    pub tokens: Tokens,
    /// `token_type`, yielding `i32` in id order; nothing at all if the file has none (all tokens are then ordinary).
    pub token_types: Types,
    /// `merges`, yielding `&str`, best first.
    pub merges: Merges,
    /// `bos_token_id`
    pub bos: Option<u32>,
    /// `eos_token_id`
    pub eos: Option<u32>,
    /// `eot_token_id`: end of turn.
    pub eot: Option<u32>,
    /// `eom_token_id`: end of message.
    pub eom: Option<u32>,
    /// `unknown_token_id`
    pub unknown: Option<u32>,
    /// `padding_token_id`
    pub padding: Option<u32>,
    /// `add_bos_token`; absent means what the pre-tokenizer's models do: yes for `llama-bpe`, no for the others.
    pub add_bos: Option<bool>,
    /// `add_eos_token`; absent means no.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`; absent means no. A text, or what follows a special token, then gets a space in front if it has none.
    pub add_space_prefix: Option<bool>,
}

/// Whether the tokens that the model wants around every text (`bos`, `eos`) are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddSpecial {
    /// As the model's metadata says.
    Yes,
    /// Never.
    No,
}

/// Whether special tokens written in the text, such as `<|im_end|>`, become those tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParseSpecial {
    /// Leftmost first, longest first: for text made by a chat template.
    Yes,
    /// They are ordinary text: for text that comes from outside.
    No,
}

/// A byte-level BPE tokenizer.
///
/// ```
/// use plimsoll_models::tokenizer::{AddSpecial, BpeMetadata, ParseSpecial, SkipSpecial, Tokenizer};
///
/// let tokenizer = Tokenizer::new(BpeMetadata {
///     model: "gpt2",
///     pre: Some("gpt-2"),
///     tokens: ["<|end|>", "a", "b", "Ġ", "ab"].into_iter(),
///     token_types: [3, 1, 1, 1, 1].into_iter(),
///     merges: ["a b"].into_iter(),
///     bos: None,
///     eos: Some(0),
///     eot: None,
///     eom: None,
///     unknown: None,
///     padding: None,
///     add_bos: None,
///     add_eos: None,
///     add_space_prefix: None,
/// })?;
/// let ids = tokenizer.encode("ab ba<|end|>", AddSpecial::No, ParseSpecial::Yes);
/// assert_eq!(ids, [4, 3, 2, 1, 0]);
/// assert_eq!(tokenizer.decode(&ids, SkipSpecial::Yes)?, "ab ba");
/// # Ok::<(), plimsoll_models::tokenizer::TokenizerError>(())
/// ```
#[derive(Debug)]
pub struct Tokenizer {
    pre: PreTokenizer,
    vocabulary: Vocabulary,
    merges: MergeTable,
    special: SpecialTokens,
    classes: Classes,
    bos: Option<u32>,
    eos: Option<u32>,
    unknown: Option<u32>,
    padding: Option<u32>,
    /// Ascending.
    ends: Vec<u32>,
    add_bos: Option<u32>,
    add_eos: Option<u32>,
    add_space_prefix: bool,
}

impl Tokenizer {
    /// Builds a tokenizer; heap: about 16 bytes per token and 21 to 43 per merge, and the token texts.
    ///
    /// # Errors
    /// Every variant of [`TokenizerError`] but `UnknownId`: an unknown model family or pre-tokenizer, or inconsistent metadata.
    pub fn new<'a, Tokens, Types, Merges>(
        metadata: BpeMetadata<'a, Tokens, Types, Merges>,
    ) -> Result<Self, TokenizerError>
    where
        Tokens: IntoIterator<Item = &'a str>,
        Types: IntoIterator<Item = i32>,
        Merges: IntoIterator<Item = &'a str>,
    {
        if metadata.model != "gpt2" {
            return Err(TokenizerError::UnknownModel { model: metadata.model.to_owned() });
        }
        let pre = PreTokenizer::from_name(metadata.pre.ok_or(TokenizerError::MissingPreTokenizer)?)?;
        let vocabulary = Vocabulary::new(metadata.tokens.into_iter(), metadata.token_types.into_iter())?;
        let checked = |name, id: Option<u32>| match id {
            Some(id) if id as usize >= vocabulary.len() => {
                Err(TokenizerError::SpecialIdPastVocabulary { name, id, tokens: vocabulary.len() })
            }
            _ => Ok(id),
        };
        let bos = checked("bos", metadata.bos)?;
        let eos = checked("eos", metadata.eos)?;
        let named_ends = [eos, checked("eot", metadata.eot)?, checked("eom", metadata.eom)?];
        let added = |name, wanted, id: Option<u32>| match (wanted, id) {
            (true, None) => Err(TokenizerError::MissingAddedToken { name }),
            (true, id) => Ok(id),
            (false, _) => Ok(None),
        };
        let known_ends = END_TEXTS.iter().filter_map(|text| vocabulary.lookup_special(text));
        let mut ends: Vec<u32> = named_ends.into_iter().flatten().chain(known_ends).collect();
        ends.sort_unstable();
        ends.dedup();
        Ok(Self {
            merges: MergeTable::new(metadata.merges.into_iter(), &vocabulary)?,
            special: SpecialTokens::new(&vocabulary)?,
            classes: Classes::new(),
            unknown: checked("unknown", metadata.unknown)?,
            padding: checked("padding", metadata.padding)?,
            add_bos: added("bos", metadata.add_bos.unwrap_or(pre == PreTokenizer::Llama3), bos)?,
            add_eos: added("eos", metadata.add_eos.unwrap_or(false), eos)?,
            add_space_prefix: metadata.add_space_prefix.unwrap_or(false),
            pre,
            vocabulary,
            bos,
            eos,
            ends,
        })
    }

    /// The ids of `text`.
    ///
    /// Bytes for which the vocabulary has no token are left out, as the reference does ([`missing_bytes`](Self::missing_bytes)
    /// counts them). Time is linear in the text but for `n log n` in its longest piece; working memory is about 40 bytes per
    /// byte of the longest piece.
    pub fn encode(&self, text: &str, add: AddSpecial, parse: ParseSpecial) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 4 + 2);
        let mut work = MergeWork::default();
        let added = |id: Option<u32>| id.filter(|_| add == AddSpecial::Yes);
        ids.extend(added(self.add_bos));
        match parse {
            ParseSpecial::No => self.encode_text(text, &mut work, &mut ids),
            ParseSpecial::Yes => self.special.split(text, |part| match part {
                Part::Text(text) => self.encode_text(text, &mut work, &mut ids),
                Part::Special(id) => ids.push(id),
            }),
        }
        ids.extend(added(self.add_eos));
        ids
    }

    fn encode_text(&self, text: &str, work: &mut MergeWork, ids: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let prefixed = (self.add_space_prefix && !text.starts_with(' ')).then(|| format!(" {text}"));
        self.pre.split(prefixed.as_deref().unwrap_or(text), &self.classes, &mut |piece| {
            for piece in piece.as_bytes().chunks(MAX_PIECE_BYTES) {
                match self.pre.takes_whole_tokens().then(|| self.vocabulary.lookup(piece)).flatten() {
                    Some(id) => ids.push(id),
                    None => {
                        work.ids.reserve(piece.len());
                        work.ids.extend(piece.iter().filter_map(|&byte| self.vocabulary.byte_id(byte)));
                        self.merges.apply(work, ids);
                    }
                }
            }
        });
    }

    /// How many bytes of `text` have no token and would be left out by [`encode`](Self::encode).
    ///
    /// SmolLM2 lacks six control characters and the first byte of planes 4 to 15; most vocabularies lack none.
    pub fn missing_bytes(&self, text: &str) -> usize {
        text.bytes().filter(|&byte| self.vocabulary.byte_id(byte).is_none()).count()
    }

    /// The text of `ids`. Bytes that are not UTF-8 become U+FFFD, as in [`String::from_utf8_lossy`].
    ///
    /// Without `add_space_prefix` and [`missing_bytes`](Self::missing_bytes), decoding an encoded text gives it back exactly.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`] if an id is past the vocabulary.
    pub fn decode(&self, ids: &[u32], skip_special: SkipSpecial) -> Result<String, TokenizerError> {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            let token = self.token_bytes(id)?;
            if skip_special == SkipSpecial::No || !self.is_special(id) {
                bytes.extend_from_slice(token);
            }
        }
        Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// The raw bytes of one token, for an ordinary token possibly a part of a character.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`] if `id` is past the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Result<&[u8], TokenizerError> {
        self.vocabulary.get(id).ok_or(TokenizerError::UnknownId { id, tokens: self.vocabulary.len() })
    }

    /// The special token with this literal text, such as `<|im_end|>`.
    pub fn special_id(&self, text: &str) -> Option<u32> {
        self.vocabulary.lookup_special(text)
    }

    /// Whether `id` is a special token (control, user-defined or unknown).
    pub fn is_special(&self, id: u32) -> bool {
        self.vocabulary.is_special(id)
    }

    /// Tokens that end a generation, ascending: those that the metadata names (`eos`, `eot`, `eom`), and special tokens with
    /// a text known to end a turn or a text.
    pub fn end_ids(&self) -> &[u32] {
        &self.ends
    }

    /// Whether a generation ends at `id`.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// Number of tokens.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// The rule by which texts are cut before merging.
    pub fn pre_tokenizer(&self) -> PreTokenizer {
        self.pre
    }

    /// Beginning of text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// End of text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The unknown token. Byte-level BPE never makes it.
    pub fn unknown(&self) -> Option<u32> {
        self.unknown
    }

    /// Padding.
    pub fn padding(&self) -> Option<u32> {
        self.padding
    }

    /// Whether [`AddSpecial::Yes`] puts `bos` in front.
    pub fn adds_bos(&self) -> bool {
        self.add_bos.is_some()
    }
}
