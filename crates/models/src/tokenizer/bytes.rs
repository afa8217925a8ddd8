//! Byte-level BPE, as GPT-2 and most models since: a text is cut into pieces, and bytes are merged within each.

use std::borrow::Cow;

use unicode_normalization_alignments::UnicodeNormalization;

use super::{
    MAX_PIECE_BYTES, PreTokenizer,
    classes::Classes,
    merges::{MergeTable, MergeWork, Merges},
    vocab::Vocabulary,
};

/// Merges bytes to tokens.
#[derive(Debug)]
pub(super) struct ByteBpe {
    pre: PreTokenizer,
    merges: MergeTable,
    classes: Classes,
    /// Whether text is brought into Unicode's normal form C first.
    normalizes: bool,
    /// Whether a piece that is a token is taken without merging.
    takes_whole_tokens: bool,
}

impl ByteBpe {
    pub(super) fn new(pre: PreTokenizer, merges: MergeTable, normalizes: bool, takes_whole_tokens: bool) -> Self {
        Self { pre, merges, classes: Classes::new(), normalizes, takes_whole_tokens }
    }

    /// Appends the ids of `text`.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, work: &mut MergeWork, ids: &mut Vec<u32>) {
        self.pre.split(&self.normalized(text), &self.classes, &mut |piece| {
            for piece in piece.as_bytes().chunks(MAX_PIECE_BYTES) {
                match self.takes_whole_tokens.then(|| vocabulary.lookup(piece)).flatten() {
                    Some(id) => ids.push(id),
                    None => {
                        work.ids.reserve(piece.len());
                        work.ids.extend(piece.iter().filter_map(|&byte| vocabulary.byte_id(byte)));
                        self.merges.apply(work, ids);
                    }
                }
            }
        });
    }

    /// The tables are those that Hugging Face's `tokenizers` uses, so that newer characters are treated alike.
    fn normalized<'t>(&self, text: &'t str) -> Cow<'t, str> {
        // Below U+0300 every text is in the normal form.
        match self.normalizes && text.chars().any(|c| c >= '\u{300}') {
            true => Cow::Owned(text.nfc().map(|(c, _)| c).collect()),
            false => Cow::Borrowed(text),
        }
    }

    /// How many bytes of `text` have no token.
    pub(super) fn missing_bytes(&self, vocabulary: &Vocabulary, text: &str) -> usize {
        self.normalized(text).bytes().filter(|&byte| vocabulary.byte_id(byte).is_none()).count()
    }
}
