//! Which of our tokenizers a `tokenizer.json` describes.

use serde_json::Value;

use super::{
    super::{PreTokenizer, SpacePrefix, TokenizerError, vocab::Alphabet},
    file::{File, flatten},
};

/// How token texts become text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decoding {
    pub(super) alphabet: Alphabet,
    pub(super) strips_space: bool,
}

impl Decoding {
    pub(super) fn of(decoder: &Value) -> Result<Self, TokenizerError> {
        let unknown = |found: &Value| {
            let found =
                found["type"].as_str().map_or_else(|| "none".to_owned(), |name| name.chars().take(80).collect());
            TokenizerError::UnknownDecoder { found }
        };
        let steps = flatten(decoder, "decoders");
        let mut alphabet = None;
        let mut strips_space = false;
        for step in &steps {
            match step["type"].as_str() {
                Some("ByteLevel") => alphabet = Some(Alphabet::Bytes),
                Some("Metaspace") if step["replacement"].as_str().is_none_or(|mark| mark == "▁") => {
                    alphabet = Some(Alphabet::Spaces);
                    strips_space = step["prepend_scheme"] != "never" && step["add_prefix_space"] != false;
                }
                Some("Replace") if step["pattern"]["String"] == "▁" && step["content"] == " " => {
                    alphabet = Some(Alphabet::Spaces);
                }
                Some("ByteFallback" | "Fuse") => {}
                Some("Strip") if step["content"] == " " && step["stop"] == 0 => {
                    strips_space = match step["start"].as_u64() {
                        Some(0) => false,
                        Some(1) => true,
                        _ => return Err(unknown(step)),
                    };
                }
                _ => return Err(unknown(step)),
            }
        }
        let alphabet = alphabet.ok_or_else(|| unknown(steps.first().copied().unwrap_or(&Value::Null)))?;
        Ok(Self { alphabet, strips_space })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Bytes(PreTokenizer),
    Chars,
}

/// One of our tokenizers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Recipe {
    pub(super) kind: Kind,
    pub(super) normalizes: bool,
    pub(super) space_prefix: Option<SpacePrefix>,
}

impl Recipe {
    /// `None` if any part of the file is not exactly one that is known.
    pub(super) fn of(file: &File, decoding: Decoding) -> Option<Self> {
        let model = &file.model;
        let is_bpe = model.kind.as_deref().is_none_or(|kind| kind == "BPE") && model.vocab.len() > 0;
        let is_plain = model.dropout.is_none_or(|dropout| dropout == 0.0)
            && model.continuing_subword_prefix.as_deref().unwrap_or("").is_empty()
            && model.end_of_word_suffix.as_deref().unwrap_or("").is_empty();
        let added_plainly = |normalizes: bool| {
            file.added_tokens
                .iter()
                .all(|token| !(token.single_word || token.lstrip || token.rstrip || token.normalized && normalizes))
        };
        if !is_bpe || !is_plain {
            return None;
        }
        let normalizers = flatten(&file.normalizer, "normalizers");
        let pre_tokenizers = flatten(&file.pre_tokenizer, "pretokenizers");
        let recipe = match decoding.alphabet {
            Alphabet::Bytes => Self::bytes(&normalizers, &pre_tokenizers),
            Alphabet::Spaces => Self::chars(&normalizers, &pre_tokenizers, model.ignore_merges.unwrap_or(false)),
        };
        // A token that is looked for in normalized text would have to be normalized, too.
        let changes_text = |recipe: &Self| recipe.normalizes || recipe.kind == Kind::Chars && !normalizers.is_empty();
        recipe.filter(|recipe| added_plainly(changes_text(recipe)))
    }

    fn bytes(normalizers: &[&Value], pre_tokenizers: &[&Value]) -> Option<Self> {
        let normalizes = match normalizers {
            [] => false,
            [one] => (one["type"] == "NFC").then_some(true)?,
            _ => return None,
        };
        let (last, before) = pre_tokenizers.split_last()?;
        if last["type"] != "ByteLevel" {
            return None;
        }
        let kind = match (before, last["use_regex"] != false) {
            ([], true) => PreTokenizer::Gpt2,
            ([digits], true) => {
                let alone = digits["type"] == "Digits" && digits["individual_digits"] == true;
                alone.then_some(PreTokenizer::SmolLm)?
            }
            (splits, false) => {
                let expressions: Option<Vec<&str>> = splits.iter().map(|split| isolating_expression(split)).collect();
                PreTokenizer::from_expressions(&expressions?)?
            }
            _ => return None,
        };
        let unless_there = SpacePrefix { first_only: false, unless_there: true };
        let space_prefix = match (last["add_prefix_space"] == true, before) {
            (false, _) => None,
            (true, []) => Some(unless_there),
            // Each piece of the split before it would get a space.
            (true, _) => return None,
        };
        Some(Self { kind: Kind::Bytes(kind), normalizes, space_prefix })
    }

    fn chars(normalizers: &[&Value], pre_tokenizers: &[&Value], ignore_merges: bool) -> Option<Self> {
        let replaces =
            |step: &Value| step["type"] == "Replace" && step["pattern"]["String"] == " " && step["content"] == "▁";
        let prepends = |step: &Value| step["type"] == "Prepend" && step["prepend"] == "▁";
        let each = SpacePrefix { first_only: false, unless_there: false };
        let space_prefix = match (normalizers, pre_tokenizers) {
            ([replace], []) if replaces(replace) => None,
            // Gemma's: after the replacement there is no space left to split at.
            ([replace], [split])
                if replaces(replace) && split["type"] == "Split" && split["pattern"]["String"] == " " =>
            {
                None
            }
            ([prepend, replace], []) if prepends(prepend) && replaces(replace) => Some(each),
            ([], [space]) if space["type"] == "Metaspace" && space["replacement"] == "▁" && space["split"] == false => {
                match space["prepend_scheme"].as_str() {
                    Some("never") => None,
                    Some("first") => Some(SpacePrefix { first_only: true, unless_there: true }),
                    Some("always") => Some(SpacePrefix { first_only: false, unless_there: true }),
                    _ => return None,
                }
            }
            _ => return None,
        };
        (!ignore_merges).then_some(Self { kind: Kind::Chars, normalizes: false, space_prefix })
    }
}

/// The expression of a split that makes its matches and what lies between them pieces of their own.
fn isolating_expression(split: &Value) -> Option<&str> {
    let isolates = split["type"] == "Split" && split["behavior"] == "Isolated" && split["invert"] != true;
    split["pattern"]["Regex"].as_str().filter(|_| isolates)
}
