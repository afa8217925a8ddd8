//! Special tokens written in a text.

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use super::{TokenizerError, vocab::Vocabulary};

/// Finds special tokens in a text: the leftmost first, the longest among those that start at one place.
#[derive(Debug)]
pub(super) struct SpecialTokens {
    matcher: AhoCorasick,
    /// Token id by pattern number.
    ids: Vec<u32>,
}

impl SpecialTokens {
    pub(super) fn new(vocabulary: &Vocabulary) -> Result<Self, TokenizerError> {
        let text = |&id: &u32| vocabulary.get(id).filter(|text| !text.is_empty());
        let ids: Vec<u32> = vocabulary.special().iter().copied().filter(|id| text(id).is_some()).collect();
        let matcher = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .match_kind(MatchKind::LeftmostLongest)
            .build(ids.iter().filter_map(text))
            .map_err(|_| TokenizerError::SpecialTokens { special_tokens: ids.len() })?;
        Ok(Self { matcher, ids })
    }

    /// Calls `emit` with the texts and the special tokens in order.
    pub(super) fn split<'t>(&self, text: &'t str, mut emit: impl FnMut(Part<'t>)) {
        let mut at = 0;
        for found in self.matcher.find_iter(text) {
            emit(Part::Text(&text[at..found.start()]));
            emit(Part::Special(self.ids[found.pattern().as_usize()]));
            at = found.end();
        }
        emit(Part::Text(&text[at..]));
    }
}

pub(super) enum Part<'t> {
    /// Possibly empty.
    Text(&'t str),
    Special(u32),
}
