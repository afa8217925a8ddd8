//! The parts of `tokenizer.json` that matter here, read without one allocation per token.

use std::{collections::HashSet, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

use super::super::{TokenizerError, foreign::json_error, merges::split_merge};

#[derive(Debug, Deserialize)]
pub(super) struct File {
    #[serde(default)]
    pub(super) added_tokens: Vec<Added>,
    #[serde(default)]
    pub(super) normalizer: Value,
    #[serde(default)]
    pub(super) pre_tokenizer: Value,
    #[serde(default)]
    pub(super) post_processor: Value,
    #[serde(default)]
    pub(super) decoder: Value,
    pub(super) model: Model,
}

/// A token that is cut out of the text before anything else.
#[derive(Debug, Deserialize)]
pub(super) struct Added {
    pub(super) id: u32,
    pub(super) content: String,
    #[serde(default)]
    pub(super) special: bool,
    #[serde(default)]
    pub(super) single_word: bool,
    #[serde(default)]
    pub(super) lstrip: bool,
    #[serde(default)]
    pub(super) rstrip: bool,
    #[serde(default)]
    pub(super) normalized: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct Model {
    #[serde(rename = "type", default)]
    pub(super) kind: Option<String>,
    #[serde(default)]
    pub(super) dropout: Option<f64>,
    #[serde(default)]
    pub(super) unk_token: Option<String>,
    #[serde(default)]
    pub(super) continuing_subword_prefix: Option<String>,
    #[serde(default)]
    pub(super) end_of_word_suffix: Option<String>,
    #[serde(default)]
    pub(super) fuse_unk: Option<bool>,
    #[serde(default)]
    pub(super) byte_fallback: Option<bool>,
    #[serde(default)]
    pub(super) ignore_merges: Option<bool>,
    pub(super) vocab: Words,
    #[serde(default)]
    pub(super) merges: Pairs,
}

impl File {
    /// Adds tokens that only `tokenizer_config.json` names: those whose ids are not taken.
    pub(super) fn add(&mut self, added: &[(u32, String, bool)]) {
        let mut taken: HashSet<u32> = self.model.vocab.ids().collect();
        taken.extend(self.added_tokens.iter().map(|token| token.id));
        for (id, content, special) in added.iter().filter(|(id, ..)| !taken.contains(id)) {
            self.added_tokens.push(Added {
                id: *id,
                content: content.clone(),
                special: *special,
                single_word: false,
                lstrip: false,
                rstrip: false,
                normalized: false,
            });
        }
    }

    /// The id of a token's text.
    pub(super) fn id_of(&self, text: &str) -> Option<u32> {
        let added = self.added_tokens.iter().find(|token| token.content == text).map(|token| token.id);
        added.or_else(|| self.model.vocab.iter().find(|(word, _)| *word == text).map(|(_, id)| id))
    }

    /// The ids that the post-processor puts before and after a text.
    pub(super) fn template(&self) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
        let mut ids = (Vec::new(), Vec::new());
        for processor in flatten(&self.post_processor, "processors") {
            match processor["type"].as_str() {
                Some("ByteLevel") => {}
                Some("TemplateProcessing") => {
                    let mut text_seen = false;
                    for piece in processor["single"].as_array().into_iter().flatten() {
                        text_seen |= piece.get("Sequence").is_some();
                        let Some(name) = piece["SpecialToken"]["id"].as_str() else { continue };
                        let listed = processor["special_tokens"][name]["ids"].as_array();
                        let listed = listed.ok_or_else(|| json_error(&format!("the template's {name} has no ids")))?;
                        for id in listed {
                            let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
                            let id = id.ok_or_else(|| json_error(&format!("the template's {name} has a bad id")))?;
                            if text_seen {
                                ids.1.push(id)
                            } else {
                                ids.0.push(id)
                            }
                            if ids.0.len() + ids.1.len() > MAX_TEMPLATE_IDS {
                                return Err(json_error(&format!(
                                    "the template adds more than {MAX_TEMPLATE_IDS} tokens"
                                )));
                            }
                        }
                    }
                }
                other => {
                    let other = other.unwrap_or("without a type");
                    return Err(json_error(&format!(
                        "post-processor {other} is not supported; supported: ByteLevel, TemplateProcessing"
                    )));
                }
            }
        }
        Ok(ids)
    }

    /// Refuses what the `tokenizers` crate would take from the file and then fail on, take any memory for, or do at random.
    pub(super) fn check_foreign(&self) -> Result<(), TokenizerError> {
        let refuse = |detail: String| Err(json_error(&detail));
        if let Some(dropout) = self.model.dropout.filter(|&dropout| dropout != 0.0) {
            return refuse(format!("a dropout of {dropout} gives other tokens each time; set it to null"));
        }
        let kind = self.model.kind.as_deref().unwrap_or("BPE");
        if kind == "BPE" && self.model.continuing_subword_prefix.as_ref().is_some_and(|prefix| !prefix.is_empty()) {
            return refuse("a continuing_subword_prefix is not supported for BPE".to_owned());
        }
        let unknown = match kind {
            "WordLevel" => Some("<unk>"),
            "WordPiece" => Some("[UNK]"),
            _ => None,
        };
        if let Some(default) = unknown {
            let token = self.model.unk_token.as_deref().unwrap_or(default);
            if !self.model.vocab.iter().any(|(word, _)| word == token) {
                return refuse(format!("the vocabulary lacks the unknown token {token:?}, which {kind} needs"));
            }
        }
        if flatten(&self.pre_tokenizer, "pretokenizers").iter().any(|step| step["type"] == "FixedLength") {
            return refuse("pre-tokenizer FixedLength is not supported".to_owned());
        }
        let mut growth = 1usize;
        for step in flatten(&self.normalizer, "normalizers") {
            let text = |key: &str| step[key].as_str().map_or(0, str::len);
            growth = growth.saturating_mul(match step["type"].as_str() {
                Some("Precompiled") => return refuse("normalizer Precompiled is not supported".to_owned()),
                // A pattern may match one character, or nothing.
                Some("Replace") => match step["pattern"]["String"].as_str() {
                    Some(pattern) if !pattern.is_empty() => text("content").div_ceil(pattern.len()).max(1),
                    _ => text("content") + 1,
                },
                Some("Prepend") => text("prepend") / 16 + 1,
                _ => 1,
            });
        }
        if growth > MAX_GROWTH {
            return refuse(format!("the normalizers may make a text more than {MAX_GROWTH} times as long"));
        }
        Ok(())
    }
}

/// Most tokens that a template may put around a text; known ones put one or two.
const MAX_TEMPLATE_IDS: usize = 64;

/// Most that normalizers may lengthen a text; known ones write three bytes for a space.
const MAX_GROWTH: usize = 64;

/// The steps of a part that may be absent, one step, or a sequence under the key `list`.
pub(super) fn flatten<'v>(value: &'v Value, list: &str) -> Vec<&'v Value> {
    match value[list].as_array() {
        Some(steps) if value["type"] == "Sequence" => steps.iter().flat_map(|step| flatten(step, list)).collect(),
        _ if value.is_null() => Vec::new(),
        _ => vec![value],
    }
}

/// Many short texts, one after another.
#[derive(Debug, Default)]
struct Texts {
    text: String,
    ends: Vec<usize>,
}

impl Texts {
    fn get(&self, index: usize) -> &str {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.text[start..self.ends[index]]
    }
}

/// Reads one string to the end of the texts.
impl<'de> DeserializeSeed<'de> for &mut Texts {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for &mut Texts {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        self.text.push_str(text);
        self.ends.push(self.text.len());
        Ok(())
    }
}

/// The vocabulary of a BPE model: texts and their ids. Of other models only that it is there.
#[derive(Debug, Default)]
pub(super) struct Words {
    texts: Texts,
    ids: Vec<u32>,
}

impl Words {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.ids.iter().enumerate().map(|(index, &id)| (self.texts.get(index), id))
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        self.ids.iter().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn text_bytes(&self) -> usize {
        self.texts.text.len()
    }
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Words;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a vocabulary")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Words, A::Error> {
                let mut words = Words::default();
                while map.next_key_seed(&mut words.texts)?.is_some() {
                    words.ids.push(map.next_value()?);
                }
                Ok(words)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Words, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Words::default())
            }
        }
        deserializer.deserialize_any(Read)
    }
}

/// Merges, written `"a b"` or `["a", "b"]`.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    texts: Texts,
    /// Whether each text is a whole merge, and not a half.
    joined: bool,
}

impl Pairs {
    pub(super) fn iter(&self) -> impl Iterator<Item = Result<(&str, &str), TokenizerError>> {
        let count = if self.joined { self.texts.ends.len() } else { self.texts.ends.len() / 2 };
        (0..count).map(|rank| match self.joined {
            true => split_merge(rank, self.texts.get(rank)),
            false => Ok((self.texts.get(2 * rank), self.texts.get(2 * rank + 1))),
        })
    }
}

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of merges")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Pairs, A::Error> {
                let mut pairs = Pairs::default();
                let mut count = 0;
                while let Some(joined) = seq.next_element_seed(One(&mut pairs.texts))? {
                    if count > 0 && joined != pairs.joined {
                        return Err(A::Error::custom("merges are written in two ways"));
                    }
                    pairs.joined = joined;
                    count += 1;
                }
                Ok(pairs)
            }
        }

        /// One merge; tells whether it was one string.
        struct One<'t>(&'t mut Texts);
        impl<'de> DeserializeSeed<'de> for One<'_> {
            type Value = bool;

            fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
                deserializer.deserialize_any(self)
            }
        }
        impl<'de> Visitor<'de> for One<'_> {
            type Value = bool;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<bool, E> {
                self.0.visit_str(text).map(|()| true)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<bool, A::Error> {
                let mut halves = 0;
                while seq.next_element_seed(&mut *self.0)?.is_some() {
                    halves += 1;
                }
                if halves == 2 { Ok(false) } else { Err(A::Error::custom(format!("a merge of {halves} parts"))) }
            }
        }
        deserializer.deserialize_seq(Read)
    }
}
