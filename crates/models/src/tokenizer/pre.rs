//! Cutting a text into the pieces that byte pair merges never cross.
//!
//! Each rule is defined by regular expressions; the scanners here find the same matches in one pass with no backtracking,
//! so that a megabyte of one letter or of spaces takes linear time and no memory. Expressions of the rules:
//!
//! - GPT-2: `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
//! - SmolLM: each `\p{N}` alone, then GPT-2 on what lies between.
//! - Llama 3: `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
//! - default (llama.cpp's name for it): `[\p{P}\$\+<=>\^~\|]+`, GPT-2, `\p{N}+` and `[0-9][0-9][0-9]`, each on the pieces of the one before.

use super::{
    TokenizerError,
    classes::{Class, Classes},
};

/// How a text is cut before merging, as `tokenizer.ggml.pre` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PreTokenizer {
    /// `default`: what llama.cpp converters wrote before pre-tokenizers had names.
    Default,
    /// `gpt-2`
    Gpt2,
    /// `smollm`
    SmolLm,
    /// `llama-bpe`: Llama 3. A piece that is a token as a whole is taken as it is, without merging.
    Llama3,
}

impl PreTokenizer {
    const ALL: [Self; 4] = [Self::Default, Self::Gpt2, Self::SmolLm, Self::Llama3];

    /// The name in GGUF metadata.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Gpt2 => "gpt-2",
            Self::SmolLm => "smollm",
            Self::Llama3 => "llama-bpe",
        }
    }

    pub(super) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    pub(super) fn from_name(name: &str) -> Result<Self, TokenizerError> {
        let found = Self::ALL.into_iter().find(|pre| pre.name() == name);
        found.ok_or_else(|| TokenizerError::UnknownPreTokenizer { pre: name.to_owned() })
    }

    pub(super) const fn takes_whole_tokens(self) -> bool {
        matches!(self, Self::Llama3)
    }

    /// Calls `emit` with each piece in order; the pieces joined are `text`.
    pub(super) fn split<'t>(self, text: &'t str, classes: &Classes, emit: &mut impl FnMut(&'t str)) {
        let scan = |text| Scanner { text, classes };
        match self {
            Self::Gpt2 => scan(text).pieces(Scanner::gpt2_end, emit),
            Self::Llama3 => scan(text).pieces(Scanner::llama3_end, emit),
            Self::SmolLm => {
                let number = |c| classes.of(c) == Class::Number;
                scan(text).pieces(|s, at| s.alone_or_run_end(at, number), &mut |piece| {
                    scan(piece).pieces(Scanner::gpt2_end, emit);
                });
            }
            Self::Default => {
                let number = |c| classes.of(c) == Class::Number;
                scan(text).pieces(|s, at| s.alternating_end(at, |c| s.is_default_punctuation(c)), &mut |piece| {
                    scan(piece).pieces(Scanner::gpt2_end, &mut |piece| {
                        scan(piece).pieces(|s, at| s.alternating_end(at, number), &mut |piece| {
                            scan(piece).pieces(Scanner::three_digits_end, emit);
                        });
                    });
                });
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Scanner<'t, 'c> {
    text: &'t str,
    classes: &'c Classes,
}

impl<'t> Scanner<'t, '_> {
    /// Cuts the text where `end` says: it maps the start of a piece to its end, which is further on.
    fn pieces(self, end: impl Fn(&Self, usize) -> usize, emit: &mut impl FnMut(&'t str)) {
        let mut at = 0;
        while at < self.text.len() {
            let next = end(&self, at);
            emit(&self.text[at..next]);
            at = next;
        }
    }

    fn char_at(&self, at: usize) -> Option<char> {
        self.text[at..].chars().next()
    }

    fn class_at(&self, at: usize) -> Option<Class> {
        match self.text.as_bytes().get(at) {
            Some(&byte) if byte < 128 => Some(self.classes.of(char::from(byte))),
            _ => self.char_at(at).map(|c| self.classes.of(c)),
        }
    }

    /// End of the longest run of characters from `at` on that satisfy `keep`.
    fn run_end(&self, at: usize, keep: impl Fn(char) -> bool) -> usize {
        let rest = &self.text[at..];
        rest.find(|c| !keep(c)).map_or(self.text.len(), |length| at + length)
    }

    fn class_run_end(&self, at: usize, class: Class) -> usize {
        self.run_end(at, |c| self.classes.of(c) == class)
    }

    /// `[^\s\p{L}\p{N}]*`
    fn symbols_end(&self, at: usize) -> usize {
        self.run_end(at, |c| matches!(self.classes.of(c), Class::Punctuation | Class::Other))
    }

    /// A single character that satisfies `alone`, or the text up to the next one.
    fn alone_or_run_end(&self, at: usize, alone: impl Fn(char) -> bool) -> usize {
        match self.char_at(at) {
            Some(c) if alone(c) => at + c.len_utf8(),
            _ => self.run_end(at, |c| !alone(c)),
        }
    }

    /// The longest run of characters that all satisfy `matches`, or that all do not.
    fn alternating_end(&self, at: usize, matches: impl Fn(char) -> bool) -> usize {
        let first = self.char_at(at).is_some_and(&matches);
        self.run_end(at, |c| matches(c) == first)
    }

    /// `[\p{P}\$\+<=>\^~\|]`
    fn is_default_punctuation(&self, c: char) -> bool {
        self.classes.of(c) == Class::Punctuation || matches!(c, '$' | '+' | '<' | '=' | '>' | '^' | '~' | '|')
    }

    /// `[0-9][0-9][0-9]`, or the text up to the next three digits.
    fn three_digits_end(&self, at: usize) -> usize {
        let bytes = &self.text.as_bytes()[at..];
        let digits = |three: &[u8]| three.iter().all(u8::is_ascii_digit);
        match bytes.windows(3).position(digits) {
            Some(0) => at + 3,
            Some(distance) => at + distance,
            None => self.text.len(),
        }
    }

    /// `'s|'t|'re|'ve|'m|'ll|'d` at `at`, letters compared after `fold`.
    fn contraction_end(&self, at: usize, fold: impl Fn(char) -> char) -> Option<usize> {
        let mut rest = self.text[at..].strip_prefix('\'')?.chars();
        let first = rest.next()?;
        let one = at + 1 + first.len_utf8();
        match fold(first) {
            's' | 't' | 'm' | 'd' => Some(one),
            letter @ ('r' | 'v' | 'l') => {
                let second = rest.next()?;
                let wanted = if letter == 'l' { 'l' } else { 'e' };
                (fold(second) == wanted).then_some(one + second.len_utf8())
            }
            _ => None,
        }
    }

    /// `\s+(?!\S)|\s+`: the last space before a word is left to the word.
    fn space_end(&self, at: usize) -> usize {
        let end = self.class_run_end(at, Class::Space);
        let last = self.text[at..end].chars().next_back().map_or(0, char::len_utf8);
        if end == self.text.len() || at + last == end { end } else { end - last }
    }

    fn gpt2_end(&self, at: usize) -> usize {
        if let Some(end) = self.contraction_end(at, |c| c) {
            return end;
        }
        let after_space = if self.text.as_bytes()[at] == b' ' { at + 1 } else { at };
        match self.class_at(after_space) {
            Some(Class::Letter) => self.class_run_end(after_space, Class::Letter),
            Some(Class::Number) => self.class_run_end(after_space, Class::Number),
            Some(Class::Punctuation | Class::Other) => self.symbols_end(after_space),
            Some(Class::Space) | None => self.space_end(at),
        }
    }

    fn llama3_end(&self, at: usize) -> usize {
        // Simple case folding also takes U+017F, the long s, to s.
        let fold = |c: char| if c == 'ſ' { 's' } else { c.to_ascii_lowercase() };
        if let Some(end) = self.contraction_end(at, fold) {
            return end;
        }
        let Some(first) = self.char_at(at) else { return self.text.len() };
        let class = self.classes.of(first);
        let second = at + first.len_utf8();
        match class {
            Class::Letter => return self.class_run_end(at, Class::Letter),
            Class::Number => {
                let digits = self.text[at..].chars().take(3).take_while(|&c| self.classes.of(c) == Class::Number);
                return at + digits.map(char::len_utf8).sum::<usize>();
            }
            _ if !matches!(first, '\r' | '\n') && self.class_at(second) == Some(Class::Letter) => {
                return self.class_run_end(second, Class::Letter);
            }
            Class::Space => {}
            Class::Punctuation | Class::Other => return self.symbols_and_newlines_end(at),
        }
        if first == ' ' && matches!(self.class_at(second), Some(Class::Punctuation | Class::Other)) {
            return self.symbols_and_newlines_end(second);
        }
        let spaces = &self.text[at..self.class_run_end(at, Class::Space)];
        match spaces.rfind(['\r', '\n']) {
            Some(newline) => at + newline + 1,
            None => self.space_end(at),
        }
    }

    /// `[^\s\p{L}\p{N}]+[\r\n]*`
    fn symbols_and_newlines_end(&self, at: usize) -> usize {
        self.run_end(self.symbols_end(at), |c| matches!(c, '\r' | '\n'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pre: PreTokenizer, text: &str, want: &[&str]) {
        let mut got = Vec::new();
        pre.split(text, &Classes::new(), &mut |piece| got.push(piece));
        assert_eq!(got, want, "{pre:?} on {text:?}");
    }

    #[test]
    fn gpt2_gives_words_their_space_and_keeps_contractions_apart() {
        check(
            PreTokenizer::Gpt2,
            "It's  12ab, x\n\n y ",
            &["It", "'s", " ", " 12", "ab", ",", " x", "\n\n", " y", " "],
        );
        check(PreTokenizer::Gpt2, "\u{a0}a 'RE 'll", &["\u{a0}", "a", " '", "RE", " '", "ll"]);
    }

    #[test]
    fn smollm_isolates_digits_of_every_script() {
        check(PreTokenizer::SmolLm, "a 12  ٣", &["a", " ", "1", "2", "  ", "٣"]);
    }

    #[test]
    fn llama3_groups_three_digits_and_swallows_newlines() {
        check(
            PreTokenizer::Llama3,
            "1234.\n\nI'VE  x\t\n  y",
            &["123", "4", ".\n\n", "I", "'VE", " ", " x", "\t\n", " ", " y"],
        );
        check(PreTokenizer::Llama3, "(a \"b\"\u{a0}c", &["(a", " \"", "b", "\"", "\u{a0}c"]);
    }

    #[test]
    fn default_isolates_punctuation_and_threes_of_digits() {
        check(PreTokenizer::Default, "a+b 12345!? 1²345", &["a", "+", "b", " ", "123", "45", "!?", " ", "1²", "345"]);
    }

    #[test]
    fn pieces_join_to_the_text() {
        let text = "\u{feff} \r\n'\u{17f} '\u{301}' \u{2028}😀 x’s $$ ½ \u{10ffff}";
        for pre in PreTokenizer::ALL {
            let mut joined = String::new();
            pre.split(text, &Classes::new(), &mut |piece| joined.push_str(piece));
            assert_eq!(joined, text);
        }
    }
}
