//! `tokenizer.json`: what is known here becomes one of our tokenizers, the rest goes to the `tokenizers` crate.

mod file;
mod recognize;

use file::{Added, File};
use recognize::{Decoding, Kind, Recipe};

use super::{
    Encoder, Foreign, Parts, Settings, Tokenizer, TokenizerError,
    bytes::ByteBpe,
    chars::CharBpe,
    foreign::json_error,
    merges::MergeTable,
    vocab::{Alphabet, Literal, TokenKind, Vocabulary, VocabularyBuilder, byte_of_literal},
};

/// What else the files beside `tokenizer.json` say, by the texts of tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JsonSettings {
    /// `bos_token`
    pub bos: Option<String>,
    /// `eos_token`
    pub eos: Option<String>,
    /// `unk_token`
    pub unknown: Option<String>,
    /// `pad_token`
    pub padding: Option<String>,
    /// `add_bos_token`; absent means what `tokenizer.json`'s own template does.
    pub add_bos: Option<bool>,
    /// `add_eos_token`; absent likewise.
    pub add_eos: Option<bool>,
    /// `added_tokens_decoder`: id, text, whether special. Those that `tokenizer.json` has, too, are ignored.
    pub added: Vec<(u32, String, bool)>,
    /// Rows of the model's embedding table: the vocabulary is cut or filled up to it, as tables are often longer than vocabularies
    /// and vocabularies name tokens (of images) that a text model lacks.
    pub vocab_size: Option<usize>,
}

/// Ids may have gaps, but a file must not ask for memory that it does not pay for.
pub(super) const MAX_GAPS: usize = 100_000;

impl Tokenizer {
    /// The tokenizer of a `tokenizer.json`, given as its bytes.
    ///
    /// Byte-level BPE with a known expression and BPE over characters become our own tokenizers; everything else is left to the
    /// `tokenizers` crate, which takes several times the memory and gives up on some long texts.
    ///
    /// # Errors
    /// [`TokenizerError::Json`] if the file is not one, [`TokenizerError::UnknownDecoder`], and those of inconsistent vocabularies.
    pub fn from_json(json: &[u8], settings: &JsonSettings) -> Result<Self, TokenizerError> {
        let mut file: File = serde_json::from_slice(json).map_err(|error| json_error(&error.to_string()))?;
        file.add(&settings.added);
        let decoding = Decoding::of(&file.decoder)?;
        let recipe = Recipe::of(&file, decoding);
        let mut parts = match &recipe {
            Some(recipe) => own(&file, recipe, decoding, settings.vocab_size)?,
            None => {
                tracing::debug!("tokenizer.json is of a kind that is left to the tokenizers crate");
                file.check_foreign()?;
                foreign(json, decoding, settings.vocab_size)?
            }
        };
        let id = |text: &Option<String>| text.as_ref().and_then(|text| file.id_of(text));
        parts.settings = Settings {
            bos: id(&settings.bos),
            eos: id(&settings.eos),
            unknown: id(&settings.unknown),
            padding: id(&settings.padding),
            ..Settings::default()
        };
        let (before, after) = file.template()?;
        parts.before = ends(settings.add_bos, "bos", parts.settings.bos, before)?;
        parts.after = ends(settings.add_eos, "eos", parts.settings.eos, after)?;
        let tokens = parts.vocabulary.len();
        if let Some(&id) = parts.before.iter().chain(&parts.after).find(|&&id| id as usize >= tokens) {
            return Err(TokenizerError::SpecialIdPastVocabulary { name: "added", id, tokens });
        }
        Self::from_parts(parts)
    }
}

/// What is added at an end of a text: as the settings say, else as the file's template does.
fn ends(
    wanted: Option<bool>,
    name: &'static str,
    id: Option<u32>,
    template: Vec<u32>,
) -> Result<Vec<u32>, TokenizerError> {
    match (wanted, id) {
        (None, _) => Ok(template),
        // The template may add more than this one token.
        (Some(true), Some(id)) if template.contains(&id) => Ok(template),
        (Some(true), Some(id)) => Ok(vec![id]),
        (Some(true), None) => Err(TokenizerError::MissingAddedToken { name }),
        (Some(false), id) => Ok(template.into_iter().filter(|&added| Some(added) != id).collect()),
    }
}

fn parts(encoder: Encoder, vocabulary: Vocabulary, literals: Vec<Literal>, decoding: Decoding) -> Parts {
    Parts {
        encoder,
        vocabulary,
        literals,
        settings: Settings::default(),
        before: Vec::new(),
        after: Vec::new(),
        space_prefix: None,
        strips_space: decoding.strips_space,
    }
}

fn own(file: &File, recipe: &Recipe, decoding: Decoding, vocab_size: Option<usize>) -> Result<Parts, TokenizerError> {
    // Merges may lead over tokens past the model's table, so that only a vocabulary without merges of these may be cut.
    let (vocabulary, literals) = vocabulary(file, decoding.alphabet, vocab_size)?;
    let merges = MergeTable::new(file.model.merges.iter(), &vocabulary, &literals)?;
    let unknown = file.model.unk_token.as_ref().and_then(|text| file.id_of(text));
    let encoder = match recipe.kind {
        Kind::Bytes(pre) => {
            Encoder::Bytes(ByteBpe::new(pre, merges, recipe.normalizes, file.model.ignore_merges.unwrap_or(false)))
        }
        Kind::Chars => {
            let fuse_unknown = file.model.fuse_unk.unwrap_or(false);
            Encoder::Chars(CharBpe::by_merges(&vocabulary, merges, unknown, fuse_unknown))
        }
    };
    Ok(Parts { space_prefix: recipe.space_prefix, ..parts(encoder, vocabulary, literals, decoding) })
}

fn foreign(json: &[u8], decoding: Decoding, vocab_size: Option<usize>) -> Result<Parts, TokenizerError> {
    let mut foreign = Foreign::new(json)?;
    let (vocabulary, literals) = foreign.vocabulary(decoding.alphabet, vocab_size)?;
    Ok(parts(Encoder::Foreign(Box::new(foreign)), vocabulary, literals, decoding))
}

fn vocabulary(
    file: &File,
    alphabet: Alphabet,
    vocab_size: Option<usize>,
) -> Result<(Vocabulary, Vec<Literal>), TokenizerError> {
    let too_large = |tokens| TokenizerError::VocabularyTooLarge { tokens, text_bytes: file.model.vocab.text_bytes() };
    let ids = || file.model.vocab.ids().chain(file.added_tokens.iter().map(|token| token.id));
    let end = ids().max().map_or(0, |id| id as usize + 1);
    if end > file.model.vocab.len() + file.added_tokens.len() + MAX_GAPS {
        return Err(too_large(end));
    }
    let mut words: Vec<Option<&str>> = vec![None; end];
    for (text, id) in file.model.vocab.iter() {
        words[id as usize] = Some(text);
    }
    let mut added: Vec<Option<&Added>> = vec![None; end];
    for token in &file.added_tokens {
        added[token.id as usize] = Some(token);
    }
    let mut builder = VocabularyBuilder::new(alphabet);
    for id in 0..vocab_size.unwrap_or(end) {
        let word = words.get(id).copied().flatten();
        match (added.get(id).copied().flatten(), word) {
            (Some(token), word) => {
                let kind = if token.special { TokenKind::Special } else { TokenKind::UserDefined };
                builder.push(&token.content, kind, word.is_some())?;
            }
            (None, Some(text)) => {
                let is_byte = file.model.byte_fallback.unwrap_or(false) && byte_of_literal(text).is_some();
                builder.push(text, if is_byte { TokenKind::Byte } else { TokenKind::Text }, false)?;
            }
            // A row of the model's table that no token names.
            (None, None) => builder.push("", TokenKind::Special, false)?,
        }
    }
    builder.finish()
}
