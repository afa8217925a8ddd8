//! BPE over characters, as SentencePiece and what was converted from it do: no cutting before merging, bytes for unknown characters.
//!
//! Kudo and Richardson 2018, arXiv:1808.06226; the merging is `bpe_model.cc` of `google/sentencepiece` with its scores, or that of
//! Hugging Face's `tokenizers` with its list of merges.

use smallvec::SmallVec;

use super::{
    MAX_PIECE_BYTES, TokenizerError,
    merges::{FREE, Merge, MergeTable, MergeWork, Merges, NONE},
    vocab::Vocabulary,
};

/// Merges characters to tokens.
#[derive(Debug)]
pub(super) struct CharBpe {
    rule: Rule,
    /// Stands for characters that have neither a token nor tokens of their bytes.
    unknown: Option<u32>,
    /// Whether one unknown token stands for a run of such characters.
    fuse_unknown: bool,
    /// Characters that stand before a space inside of some token, ascending. Before every other one a text can be cut.
    before_space: Vec<char>,
}

#[derive(Debug)]
enum Rule {
    /// By token: place in the order of scores, 0 best, equal for equal scores. Any two neighbours that make a token may merge.
    Scores(Vec<u32>),
    Merges(MergeTable),
}

impl CharBpe {
    /// Merges whatever makes the token with the best score.
    pub(super) fn by_scores(
        vocabulary: &Vocabulary,
        scores: &[f32],
        unknown: Option<u32>,
    ) -> Result<Self, TokenizerError> {
        if scores.len() != vocabulary.len() {
            return Err(TokenizerError::ScoreCount { scores: scores.len(), tokens: vocabulary.len() });
        }
        if let Some(id) = scores.iter().position(|score| score.is_nan()) {
            return Err(TokenizerError::NanScore { id, tokens: scores.len() });
        }
        let mut order: Vec<u32> = vocabulary.ids().collect();
        order.sort_unstable_by(|&a, &b| scores[b as usize].total_cmp(&scores[a as usize]));
        let mut ranks = vec![0; order.len()];
        let mut rank = 0;
        for (place, &id) in order.iter().enumerate() {
            if place > 0 && scores[order[place - 1] as usize] != scores[id as usize] {
                rank += 1;
            }
            ranks[id as usize] = rank;
        }
        Ok(Self { rule: Rule::Scores(ranks), unknown, fuse_unknown: true, before_space: before_space(vocabulary) })
    }

    /// Merges what the list says.
    pub(super) fn by_merges(
        vocabulary: &Vocabulary,
        merges: MergeTable,
        unknown: Option<u32>,
        fuse_unknown: bool,
    ) -> Self {
        Self { rule: Rule::Merges(merges), unknown, fuse_unknown, before_space: before_space(vocabulary) }
    }

    /// Whether it merges as SentencePiece does.
    pub(super) fn is_by_scores(&self) -> bool {
        matches!(self.rule, Rule::Scores(_))
    }

    /// Appends the ids of `text`, in which spaces are spaces.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, work: &mut MergeWork, ids: &mut Vec<u32>) {
        let mut at = 0;
        while at < text.len() {
            let end = self.piece_end(text, at);
            self.encode_piece(vocabulary, &text[at..end], work, ids);
            at = end;
        }
    }

    /// Up to the next space that no token reaches over from its left: words are merged one by one, which is much less work at once.
    fn piece_end(&self, text: &str, at: usize) -> usize {
        let mut longest = (at + MAX_PIECE_BYTES).min(text.len());
        while !text.is_char_boundary(longest) {
            longest -= 1;
        }
        let spaces = text.as_bytes()[at..longest].iter().enumerate().skip(1).filter(|&(_, &byte)| byte == b' ');
        let can_cut = |&end: &usize| {
            let before = text[at..end].chars().next_back();
            before.is_some_and(|c| c != ' ' && self.before_space.binary_search(&c).is_err())
        };
        spaces.map(|(distance, _)| at + distance).find(can_cut).unwrap_or(longest)
    }

    fn encode_piece(&self, vocabulary: &Vocabulary, piece: &str, work: &mut MergeWork, ids: &mut Vec<u32>) {
        work.ids.reserve(piece.len());
        let mut unknown = false;
        for (at, c) in piece.char_indices() {
            let bytes = &piece.as_bytes()[at..at + c.len_utf8()];
            match vocabulary.lookup(bytes) {
                Some(id) => work.ids.push(id),
                None if bytes.iter().all(|&byte| vocabulary.byte_id(byte).is_some()) => {
                    work.ids.extend(bytes.iter().filter_map(|&byte| vocabulary.byte_id(byte)));
                }
                None => {
                    work.ids.push(NONE);
                    unknown = true;
                }
            }
        }
        let start = ids.len();
        match &self.rule {
            Rule::Scores(ranks) => ByScore { vocabulary, ranks }.apply(work, ids),
            Rule::Merges(table) => table.apply(work, ids),
        }
        if unknown {
            self.name_unknown(ids, start);
        }
    }

    /// Puts the unknown token where characters have none.
    fn name_unknown(&self, ids: &mut Vec<u32>, start: usize) {
        let merged = ids.split_off(start);
        let mut after_unknown = false;
        for id in merged {
            let is_unknown = id == NONE;
            if !is_unknown {
                ids.push(id);
            } else if !(after_unknown && self.fuse_unknown) {
                ids.extend(self.unknown);
            }
            after_unknown = is_unknown;
        }
    }

    /// How many bytes of `text` get neither a token of their own nor the unknown token.
    pub(super) fn missing_bytes(&self, vocabulary: &Vocabulary, text: &str) -> usize {
        if self.unknown.is_some() {
            return 0;
        }
        let has_token = |c: &str| {
            vocabulary.lookup(c.as_bytes()).is_some() || c.bytes().all(|byte| vocabulary.byte_id(byte).is_some())
        };
        let mut buffer = [0; 4];
        text.chars().filter(|c| !has_token(c.encode_utf8(&mut buffer))).map(char::len_utf8).sum()
    }
}

/// Merges of any two tokens whose texts together are a token.
struct ByScore<'v> {
    vocabulary: &'v Vocabulary,
    ranks: &'v [u32],
}

impl Merges for ByScore<'_> {
    fn get(&self, left: u32, right: u32) -> Merge {
        // No token for either symbol: nothing to join.
        let (Some(left_bytes), Some(right_bytes)) = (self.vocabulary.get(left), self.vocabulary.get(right)) else {
            return FREE;
        };
        if left_bytes.len() + right_bytes.len() > self.vocabulary.longest_bytes() {
            return FREE;
        }
        let mut joined = SmallVec::<[u8; 64]>::from_slice(left_bytes);
        joined.extend_from_slice(right_bytes);
        match self.vocabulary.lookup(&joined) {
            Some(id) => Merge::new(left, right, self.ranks[id as usize], id),
            None => FREE,
        }
    }
}

fn before_space(vocabulary: &Vocabulary) -> Vec<char> {
    let mut found = Vec::new();
    for text in vocabulary.ids().filter_map(|id| vocabulary.get(id)) {
        // Only what ordinary text can become is ever the result of a merge.
        if !text.contains(&b' ') || vocabulary.lookup(text).is_none() {
            continue;
        }
        let Ok(text) = std::str::from_utf8(text) else { continue };
        let after = text.chars().skip(1);
        found.extend(text.chars().zip(after).filter(|&(c, next)| c != ' ' && next == ' ').map(|(c, _)| c));
    }
    found.sort_unstable();
    found.dedup();
    found.shrink_to_fit();
    found
}
