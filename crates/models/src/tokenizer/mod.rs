//! Tokenizers from GGUF metadata and from `tokenizer.json`: text to token ids, ids to text, whole or as a stream.
//!
//! Byte-level BPE (GPT-2 and most models since) and BPE over characters (SentencePiece: Llama 2, Gemma). Ids equal those of Hugging
//! Face's `tokenizers` for the same vocabulary, merges and pre-tokenizer. The tokenizers are our own because of their size:
//! SmolLM2's 49,152 tokens take 2.1 MB of heap here, against 7 MB there (11 MB after the first text). A `tokenizer.json` of
//! another kind is handed to `tokenizers`.

mod alphabet;
mod bytes;
mod chars;
mod classes;
mod detokenizer;
mod error;
mod foreign;
mod json;
mod merges;
mod pre;
mod special;
#[cfg(test)]
mod tests;
mod vocab;

pub use detokenizer::{Detokenizer, SkipSpecial};
pub use error::TokenizerError;
pub use json::JsonSettings;
pub use pre::PreTokenizer;

use std::borrow::Cow;

use bytes::ByteBpe;
use chars::CharBpe;
use foreign::Foreign;
use merges::{MergeTable, MergeWork, split_merge};
use special::{Cut, Part, SpecialTokens};
use vocab::{Alphabet, Literal, TokenKind, Vocabulary, VocabularyBuilder, byte_of_literal};

/// Texts that end a generation in the chat formats of known models, where the metadata may name only one of several.
const END_TEXTS: [&str; 7] =
    ["<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>"];

/// Longest piece that is merged as one. Longer ones (no known text has them) are cut here, to keep positions in 30 bits.
const MAX_PIECE_BYTES: usize = 1 << 30;

/// Named tokens, and what is added to a text; comments give the GGUF keys (after `tokenizer.ggml.`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
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
    /// `add_bos_token`; absent means what the models of the kind do: yes for SentencePiece, `llama-bpe` and `tekken`, else no.
    pub add_bos: Option<bool>,
    /// `add_eos_token`; absent means no.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`: a text, or what follows a special token, gets a space in front; with byte-level BPE only if it has none.
    /// Absent means yes for SentencePiece, else no.
    pub add_space_prefix: Option<bool>,
}

/// A byte-level BPE vocabulary (`tokenizer.ggml.model` is `gpt2`). `tokens`, `token_types` and `merges` are read once and not kept.
#[derive(Debug, Clone)]
pub struct BpeMetadata<'a, Tokens, Types, Merges> {
    /// `pre`
    pub pre: Option<&'a str>,
    /// `tokens`, yielding `&str` in id order.
    pub tokens: Tokens,
    /// `token_type`, yielding `i32` in id order; nothing at all if the file has none (all tokens are then ordinary).
    pub token_types: Types,
    /// `merges`, yielding `&str`, best first.
    pub merges: Merges,
    /// Named tokens.
    pub settings: Settings,
}

/// A SentencePiece BPE vocabulary (`tokenizer.ggml.model` is `llama`). All three are read once and not kept.
#[derive(Debug, Clone)]
pub struct SentencePieceMetadata<Tokens, Types, Scores> {
    /// `tokens`, yielding `&str` in id order.
    pub tokens: Tokens,
    /// `token_type`, yielding `i32` in id order; nothing at all if the file has none (texts such as `<0x0A>` are then bytes).
    pub token_types: Types,
    /// `scores`, yielding `f32` in id order; the best is merged first.
    pub scores: Scores,
    /// Named tokens; `bos`, `eos` and `unknown` are 1, 2 and 0 if these are special and no other is named.
    pub settings: Settings,
}

/// Whether the tokens that the model wants around every text (`bos`, `eos`) are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddSpecial {
    /// As the model's metadata says.
    Yes,
    /// Never.
    No,
}

/// Whether special tokens written in the text, such as `<|im_end|>`, become those tokens. User-defined tokens, such as Qwen's
/// `<think>` or Gemma's line breaks, are part of ordinary text and always become themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParseSpecial {
    /// Leftmost first, longest first: for text made by a chat template.
    Yes,
    /// They are ordinary text: for text that comes from outside.
    No,
}

/// Where a space is put in front of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SpacePrefix {
    /// Only at the very start, not after special tokens.
    first_only: bool,
    /// Only if the text has none.
    unless_there: bool,
}

#[derive(Debug)]
enum Encoder {
    Bytes(ByteBpe),
    Chars(CharBpe),
    Foreign(Box<Foreign>),
}

/// What the constructors of all kinds have in common.
#[derive(Debug)]
struct Parts {
    encoder: Encoder,
    vocabulary: Vocabulary,
    literals: Vec<Literal>,
    settings: Settings,
    /// Added at both ends of a text.
    before: Vec<u32>,
    after: Vec<u32>,
    space_prefix: Option<SpacePrefix>,
    /// Whether a space at the start of decoded text is the tokenizer's own.
    strips_space: bool,
}

/// A tokenizer of any kind.
///
/// ```
/// use plimsoll_models::tokenizer::{AddSpecial, BpeMetadata, ParseSpecial, Settings, SkipSpecial, Tokenizer};
///
/// let tokenizer = Tokenizer::bpe(BpeMetadata {
///     pre: Some("gpt-2"),
///     tokens: ["<|end|>", "a", "b", "Ġ", "ab"],
///     token_types: [3, 1, 1, 1, 1],
///     merges: ["a b"],
///     settings: Settings { eos: Some(0), ..Settings::default() },
/// })?;
/// let ids = tokenizer.encode("ab ba<|end|>", AddSpecial::No, ParseSpecial::Yes)?;
/// assert_eq!(ids, [4, 3, 2, 1, 0]);
/// assert_eq!(tokenizer.decode(&ids, SkipSpecial::Yes)?, "ab ba");
/// # Ok::<(), plimsoll_models::tokenizer::TokenizerError>(())
/// ```
#[derive(Debug)]
pub struct Tokenizer {
    encoder: Encoder,
    vocabulary: Vocabulary,
    special: SpecialTokens,
    settings: Settings,
    /// Ascending.
    ends: Vec<u32>,
    before: Vec<u32>,
    after: Vec<u32>,
    space_prefix: Option<SpacePrefix>,
    strips_space: bool,
}

impl Tokenizer {
    /// A byte-level BPE tokenizer; heap: about 16 bytes per token and 21 to 43 per merge, and the token texts.
    ///
    /// # Errors
    /// [`TokenizerError`] for an unknown pre-tokenizer or inconsistent metadata.
    pub fn bpe<'a, Tokens, Types, Merges>(
        metadata: BpeMetadata<'a, Tokens, Types, Merges>,
    ) -> Result<Self, TokenizerError>
    where
        Tokens: IntoIterator<Item = &'a str>,
        Types: IntoIterator<Item = i32>,
        Merges: IntoIterator<Item = &'a str>,
    {
        let pre = PreTokenizer::from_name(metadata.pre.ok_or(TokenizerError::MissingPreTokenizer)?)?;
        let (vocabulary, literals) = read_tokens(Alphabet::Bytes, metadata.tokens, metadata.token_types)?;
        let merges = metadata.merges.into_iter().enumerate().map(|(rank, merge)| split_merge(rank, merge));
        let merges = MergeTable::new(merges, &vocabulary, &literals)?;
        let settings = metadata.settings;
        let unless_there = SpacePrefix { first_only: false, unless_there: true };
        Self::from_parts(Parts {
            encoder: Encoder::Bytes(ByteBpe::new(pre, merges, pre.normalizes(), pre.takes_whole_tokens())),
            vocabulary,
            literals,
            before: added("bos", settings.add_bos.unwrap_or(pre.adds_bos()), settings.bos)?,
            after: added("eos", settings.add_eos.unwrap_or(false), settings.eos)?,
            space_prefix: settings.add_space_prefix.unwrap_or(false).then_some(unless_there),
            strips_space: false,
            settings,
        })
    }

    /// A SentencePiece BPE tokenizer; heap: about 17 bytes per token, and the token texts.
    ///
    /// # Errors
    /// [`TokenizerError`] for inconsistent metadata.
    pub fn sentencepiece<'a, Tokens, Types, Scores>(
        metadata: SentencePieceMetadata<Tokens, Types, Scores>,
    ) -> Result<Self, TokenizerError>
    where
        Tokens: IntoIterator<Item = &'a str>,
        Types: IntoIterator<Item = i32>,
        Scores: IntoIterator<Item = f32>,
    {
        let (vocabulary, literals) = read_tokens(Alphabet::Spaces, metadata.tokens, metadata.token_types)?;
        let mut settings = metadata.settings;
        let usual = |id: u32| Some(id).filter(|&id| vocabulary.is_special(id));
        settings.bos = settings.bos.or_else(|| usual(1));
        settings.eos = settings.eos.or_else(|| usual(2));
        settings.unknown = settings.unknown.or_else(|| usual(0));
        let scores: Vec<f32> = metadata.scores.into_iter().collect();
        let prefixes = settings.add_space_prefix.unwrap_or(true);
        let each = SpacePrefix { first_only: false, unless_there: false };
        Self::from_parts(Parts {
            encoder: Encoder::Chars(CharBpe::by_scores(&vocabulary, &scores, settings.unknown)?),
            vocabulary,
            literals,
            before: added("bos", settings.add_bos.unwrap_or(true), settings.bos)?,
            after: added("eos", settings.add_eos.unwrap_or(false), settings.eos)?,
            space_prefix: prefixes.then_some(each),
            strips_space: prefixes,
            settings,
        })
    }

    fn from_parts(parts: Parts) -> Result<Self, TokenizerError> {
        let Parts { encoder, vocabulary, literals, settings, before, after, space_prefix, strips_space } = parts;
        let Settings { bos, eos, eot, eom, unknown, padding, .. } = settings;
        let named =
            [("bos", bos), ("eos", eos), ("eot", eot), ("eom", eom), ("unknown", unknown), ("padding", padding)];
        for (name, id) in named {
            if let Some(id) = id.filter(|&id| id as usize >= vocabulary.len()) {
                return Err(TokenizerError::SpecialIdPastVocabulary { name, id, tokens: vocabulary.len() });
            }
        }
        let known_ends = END_TEXTS.iter().filter_map(|text| vocabulary.lookup_special(text));
        let mut ends: Vec<u32> = [eos, eot, eom].into_iter().flatten().chain(known_ends).collect();
        ends.sort_unstable();
        ends.dedup();
        let special = SpecialTokens::new(&literals)?;
        Ok(Self { encoder, vocabulary, special, settings, ends, before, after, space_prefix, strips_space })
    }

    /// Adds tokens that end a generation, such as those of `generation_config.json`.
    ///
    /// # Errors
    /// [`TokenizerError::SpecialIdPastVocabulary`].
    pub fn add_end_ids(&mut self, ids: &[u32]) -> Result<(), TokenizerError> {
        let tokens = self.vocabulary.len();
        if let Some(&id) = ids.iter().find(|&&id| id as usize >= tokens) {
            return Err(TokenizerError::SpecialIdPastVocabulary { name: "eos", id, tokens });
        }
        self.ends.extend_from_slice(ids);
        self.ends.sort_unstable();
        self.ends.dedup();
        Ok(())
    }

    /// The ids of `text`.
    ///
    /// Bytes for which the vocabulary has no token are left out, as the reference does ([`missing_bytes`](Self::missing_bytes)
    /// counts them). Time is linear in the text but for `n log n` in its longest piece; working memory is about 40 bytes per
    /// byte of the longest piece. A piece is what the pre-tokenizer cuts, or with SentencePiece a word.
    ///
    /// # Errors
    /// [`TokenizerError::Foreign`] if a tokenizer that is not one of ours gives up; ours never do.
    pub fn encode(&self, text: &str, add: AddSpecial, parse: ParseSpecial) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::with_capacity(text.len() / 4 + 2);
        let mut work = MergeWork::default();
        if add == AddSpecial::Yes {
            ids.extend_from_slice(&self.before);
        }
        match &self.encoder {
            Encoder::Bytes(bpe) => self.encode_parts(text, parse, &mut ids, |text, ids| {
                bpe.encode(&self.vocabulary, text, &mut work, ids);
            }),
            // SentencePiece knows no U+2581 but the space.
            Encoder::Chars(bpe) if bpe.is_by_scores() => {
                self.encode_segments(&vocab::unmarked(text), parse, &mut ids, |text, ids| {
                    bpe.encode(&self.vocabulary, text, &mut work, ids);
                });
            }
            // In a `tokenizer.json` added tokens are looked for before spaces are marked.
            Encoder::Chars(bpe) => self.encode_parts(text, parse, &mut ids, |text, ids| {
                bpe.encode(&self.vocabulary, &vocab::unmarked(text), &mut work, ids);
            }),
            Encoder::Foreign(foreign) => ids.extend(foreign.encode(text, parse)?),
        }
        if add == AddSpecial::Yes {
            ids.extend_from_slice(&self.after);
        }
        Ok(ids)
    }

    /// Added tokens of both kinds are found at once, and each text between them may get a space in front, as in `tokenizers`.
    fn encode_parts(
        &self,
        text: &str,
        parse: ParseSpecial,
        ids: &mut Vec<u32>,
        mut encode: impl FnMut(&str, &mut Vec<u32>),
    ) {
        let cut = if parse == ParseSpecial::Yes { Cut::All } else { Cut::UserDefined };
        let mut is_first = true;
        self.special.split(text, cut, |part| match part {
            // Before a token at the very start, and between tokens: not the first text.
            Part::Text("") => {}
            Part::Text(text) => {
                let wants_space = |prefix: SpacePrefix| {
                    let has_space = text.starts_with([' ', vocab::SPACE_MARK]);
                    (is_first || !prefix.first_only) && !(prefix.unless_there && has_space)
                };
                match self.space_prefix.is_some_and(wants_space) {
                    true => encode(&format!(" {text}"), ids),
                    false => encode(text, ids),
                }
                is_first = false;
            }
            Part::Token(id) => {
                ids.push(id);
                is_first = false;
            }
        });
    }

    /// Each text between special tokens gets its space before user-defined tokens are found in it, as in SentencePiece.
    fn encode_segments(
        &self,
        text: &str,
        parse: ParseSpecial,
        ids: &mut Vec<u32>,
        mut encode: impl FnMut(&str, &mut Vec<u32>),
    ) {
        let cut = if parse == ParseSpecial::Yes { Cut::Special } else { Cut::Nothing };
        self.special.split(text, cut, |part| match part {
            Part::Text("") => {}
            Part::Text(text) => {
                let text = if self.space_prefix.is_some() { Cow::Owned(format!(" {text}")) } else { text.into() };
                self.special.split(&text, Cut::UserDefined, |part| match part {
                    Part::Text(text) => encode(text, ids),
                    Part::Token(id) => ids.push(id),
                });
            }
            Part::Token(id) => ids.push(id),
        });
    }

    /// How many bytes of `text` have no token and would be left out by [`encode`](Self::encode).
    ///
    /// SmolLM2 lacks six control characters and the first byte of planes 4 to 15; most vocabularies lack none.
    pub fn missing_bytes(&self, text: &str) -> usize {
        match &self.encoder {
            Encoder::Bytes(bpe) => bpe.missing_bytes(&self.vocabulary, text),
            Encoder::Chars(bpe) => bpe.missing_bytes(&self.vocabulary, text),
            Encoder::Foreign(_) => 0,
        }
    }

    /// The text of `ids`. Bytes that are not UTF-8 become U+FFFD, as in [`String::from_utf8_lossy`].
    ///
    /// Decoding an encoded text gives it back exactly, unless the tokenizer changes text: by a space in front that is kept, by normal
    /// form C (`qwen2`), by U+2581 as a space (SentencePiece), or by [`missing_bytes`](Self::missing_bytes).
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`] if an id is past the vocabulary.
    pub fn decode(&self, ids: &[u32], skip_special: SkipSpecial) -> Result<String, TokenizerError> {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            let token = self.token_bytes(id)?;
            if skip_special == SkipSpecial::No || !self.is_special(id) {
                bytes.extend_from_slice(if bytes.is_empty() { self.without_added_space(token) } else { token });
            }
        }
        Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// The bytes of a text's first token without the space that only the tokenizer put there.
    fn without_added_space<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        match bytes {
            [b' ', rest @ ..] if self.strips_space => rest,
            bytes => bytes,
        }
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

    /// Whether `id` is a special token (control or unknown), which [`SkipSpecial::Yes`] leaves out.
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

    /// Beginning of text.
    pub fn bos(&self) -> Option<u32> {
        self.settings.bos
    }

    /// End of text.
    pub fn eos(&self) -> Option<u32> {
        self.settings.eos
    }

    /// The unknown token. Byte-level BPE never makes it.
    pub fn unknown(&self) -> Option<u32> {
        self.settings.unknown
    }

    /// Padding.
    pub fn padding(&self) -> Option<u32> {
        self.settings.padding
    }

    /// Whether [`AddSpecial::Yes`] puts `bos` in front.
    pub fn adds_bos(&self) -> bool {
        self.settings.bos.is_some_and(|bos| self.before.contains(&bos))
    }
}

/// The token that the model wants at an end of every text.
fn added(name: &'static str, wanted: bool, id: Option<u32>) -> Result<Vec<u32>, TokenizerError> {
    match (wanted, id) {
        (true, None) => Err(TokenizerError::MissingAddedToken { name }),
        (true, Some(id)) => Ok(vec![id]),
        (false, _) => Ok(Vec::new()),
    }
}

/// Reads GGUF's lists of tokens and types.
fn read_tokens<'a>(
    alphabet: Alphabet,
    tokens: impl IntoIterator<Item = &'a str>,
    types: impl IntoIterator<Item = i32>,
) -> Result<(Vocabulary, Vec<Literal>), TokenizerError> {
    let mut types = types.into_iter().fuse();
    let mut type_count = 0;
    let mut builder = VocabularyBuilder::new(alphabet);
    for (id, token) in (0..).zip(tokens) {
        let kind = match types.next() {
            Some(value) => {
                type_count += 1;
                TokenKind::from_ggml(id, value)?
            }
            None if byte_of_literal(token).is_some() => TokenKind::Byte,
            None => TokenKind::Text,
        };
        match alphabet {
            // Converters write spaces in user-defined tokens either way; they are looked for in text without marks.
            Alphabet::Spaces => builder.push(&vocab::unmarked(token), kind, false)?,
            Alphabet::Bytes => builder.push(token, kind, false)?,
        }
    }
    type_count += types.count();
    if builder.len() > 0 && type_count != 0 && type_count != builder.len() {
        return Err(TokenizerError::TypeCount { types: type_count, tokens: builder.len() });
    }
    builder.finish()
}
