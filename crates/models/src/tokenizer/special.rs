//! Special and user-defined tokens written in a text.

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use super::{
    TokenizerError,
    vocab::{Literal, TokenKind},
};

/// Finds the tokens that are cut out of a text before anything else is done with it.
#[derive(Debug)]
pub(super) struct SpecialTokens {
    all: Matcher,
    special: Matcher,
    user_defined: Matcher,
}

/// Which tokens are cut out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// Special and user-defined tokens.
    All,
    /// Special tokens alone.
    Special,
    /// User-defined tokens alone.
    UserDefined,
    /// None.
    Nothing,
}

/// Leftmost first, the longest among those that start at one place.
#[derive(Debug)]
struct Matcher {
    automaton: AhoCorasick,
    /// Token id by pattern number.
    ids: Vec<u32>,
}

impl Matcher {
    fn new<'a>(literals: impl Iterator<Item = &'a Literal> + Clone) -> Result<Self, TokenizerError> {
        let ids: Vec<u32> = literals.clone().map(|literal| literal.id).collect();
        let automaton = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .match_kind(MatchKind::LeftmostLongest)
            .build(literals.map(|literal| literal.text.as_bytes()))
            .map_err(|_| TokenizerError::SpecialTokens { special_tokens: ids.len() })?;
        Ok(Self { automaton, ids })
    }
}

impl SpecialTokens {
    pub(super) fn new(literals: &[Literal]) -> Result<Self, TokenizerError> {
        let of = |kind| literals.iter().filter(move |literal| literal.kind == kind);
        Ok(Self {
            all: Matcher::new(literals.iter())?,
            special: Matcher::new(of(TokenKind::Special))?,
            user_defined: Matcher::new(of(TokenKind::UserDefined))?,
        })
    }

    /// Calls `emit` with the texts and the tokens in order.
    pub(super) fn split<'t>(&self, text: &'t str, cut: Cut, mut emit: impl FnMut(Part<'t>)) {
        let matcher = match cut {
            Cut::All => Some(&self.all),
            Cut::Special => Some(&self.special),
            Cut::UserDefined => Some(&self.user_defined),
            Cut::Nothing => None,
        };
        let mut at = 0;
        if let Some(matcher) = matcher.filter(|matcher| !matcher.ids.is_empty()) {
            for found in matcher.automaton.find_iter(text) {
                emit(Part::Text(&text[at..found.start()]));
                emit(Part::Token(matcher.ids[found.pattern().as_usize()]));
                at = found.end();
            }
        }
        emit(Part::Text(&text[at..]));
    }
}

pub(super) enum Part<'t> {
    /// Possibly empty.
    Text(&'t str),
    Token(u32),
}
