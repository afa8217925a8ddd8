//! Cutting a text into the pieces that byte pair merges never cross.
//!
//! Each rule is defined by regular expressions; the scanners here find the same matches in one pass with no backtracking,
//! so that a megabyte of one letter or of spaces takes linear time and no memory. Expressions of the rules:
//!
//! - GPT-2: `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
//! - SmolLM: each `\p{N}` alone, then GPT-2 on what lies between.
//! - Llama 3: `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
//! - Qwen2: as Llama 3, but `\p{N}` for `\p{N}{1,3}`.
//! - Qwen3.5: as Qwen2, but `[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+` for words and ` ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*` for signs.
//! - o200k (GPT-4o): with `U` for `\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}`, `L` for `\p{Ll}\p{Lm}\p{Lo}\p{M}` and `C` for `(?i:'s|'t|'re|'ve|'m|'ll|'d)?`:
//!   `[^\r\n\p{L}\p{N}]?[U]*[L]+C|[^\r\n\p{L}\p{N}]?[U]+[L]*C|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
//! - Tekken: as o200k, but without `C` and with `\p{N}` for `\p{N}{1,3}`.
//! - DeepSeek V3: `\p{N}{1,3}`, then `[一-龥぀-ゟ゠-ヿ]+`, then `[!-/:-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
//!   (the first class without letters), each on the pieces of the one before; what matches nothing is a piece, too.
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
    /// `qwen2`: Qwen2, Qwen2.5, Qwen3 and what was distilled into them. Text is brought into normal form C first.
    Qwen2,
    /// `qwen35`: Qwen3.5. Text is brought into normal form C first.
    Qwen35,
    /// `gpt-4o`: OpenAI's o200k.
    O200k,
    /// `tekken`: Mistral NeMo. A piece that is a token as a whole is taken as it is, without merging.
    Tekken,
    /// `deepseek-v3`: DeepSeek V3 and R1.
    DeepSeek3,
}

/// The regular expressions in `tokenizer.json` of the rules that have one, as their publishers wrote them.
const EXPRESSIONS: [(PreTokenizer, &str); 5] = [
    (
        PreTokenizer::Llama3,
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    (
        PreTokenizer::Qwen2,
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    (
        PreTokenizer::Qwen35,
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    (
        PreTokenizer::O200k,
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    (
        PreTokenizer::Tekken,
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
];

/// The three expressions of DeepSeek V3. The last one has line breaks where others write `\r\n`.
const DEEPSEEK3: [&str; 3] = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
];

impl PreTokenizer {
    const ALL: [Self; 9] = [
        Self::Default,
        Self::Gpt2,
        Self::SmolLm,
        Self::Llama3,
        Self::Qwen2,
        Self::Qwen35,
        Self::O200k,
        Self::Tekken,
        Self::DeepSeek3,
    ];

    /// Other names of the same rules in GGUF metadata.
    const ALIASES: [(&str, Self); 4] = [
        ("llama3", Self::Llama3),
        ("llama-v3", Self::Llama3),
        ("deepseek-r1-qwen", Self::Qwen2),
        ("llama4", Self::O200k),
    ];

    /// The name in GGUF metadata.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Gpt2 => "gpt-2",
            Self::SmolLm => "smollm",
            Self::Llama3 => "llama-bpe",
            Self::Qwen2 => "qwen2",
            Self::Qwen35 => "qwen35",
            Self::O200k => "gpt-4o",
            Self::Tekken => "tekken",
            Self::DeepSeek3 => "deepseek-v3",
        }
    }

    pub(super) fn names() -> String {
        let aliases = Self::ALIASES.map(|(alias, _)| alias);
        Self::ALL.map(Self::name).into_iter().chain(aliases).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn from_name(name: &str) -> Result<Self, TokenizerError> {
        let alias = || Self::ALIASES.into_iter().find(|(alias, _)| *alias == name).map(|(_, pre)| pre);
        let found = Self::ALL.into_iter().find(|pre| pre.name() == name).or_else(alias);
        found.ok_or_else(|| TokenizerError::UnknownPreTokenizer { pre: name.to_owned() })
    }

    /// The rule that these expressions, each on the pieces of the one before, define.
    pub(super) fn from_expressions(expressions: &[&str]) -> Option<Self> {
        match expressions {
            [one] => EXPRESSIONS.into_iter().find(|(_, expression)| expression == one).map(|(pre, _)| pre),
            three => (three == DEEPSEEK3).then_some(Self::DeepSeek3),
        }
    }

    /// Whether the rule's models take a piece that is a token as a whole without merging.
    pub(super) const fn takes_whole_tokens(self) -> bool {
        matches!(self, Self::Llama3 | Self::Tekken)
    }

    /// Whether the rule's models begin each text with `bos` where the metadata do not say.
    pub(super) const fn adds_bos(self) -> bool {
        matches!(self, Self::Llama3 | Self::Tekken)
    }

    /// Whether the rule's models were trained on text in Unicode's normal form C.
    pub(super) const fn normalizes(self) -> bool {
        matches!(self, Self::Qwen2 | Self::Qwen35)
    }

    /// Calls `emit` with each piece in order; the pieces joined are `text`.
    pub(super) fn split<'t>(self, text: &'t str, classes: &Classes, emit: &mut impl FnMut(&'t str)) {
        let scan = |text| Scanner { text, classes };
        match self {
            Self::Gpt2 => scan(text).pieces(Scanner::gpt2_end, emit),
            Self::Llama3 => scan(text).pieces(|s, at| s.llama3_end(at, 3, Class::is_letter), emit),
            Self::Qwen2 => scan(text).pieces(|s, at| s.llama3_end(at, 1, Class::is_letter), emit),
            Self::Qwen35 => scan(text).pieces(|s, at| s.llama3_end(at, 1, Class::is_letter_or_mark), emit),
            Self::O200k => scan(text).pieces(|s, at| s.o200k_end(at, 3, true), emit),
            Self::Tekken => scan(text).pieces(|s, at| s.o200k_end(at, 1, false), emit),
            Self::DeepSeek3 => {
                let number = |c| classes.of(c) == Class::Number;
                scan(text).pieces(|s, at| s.groups_or_run_end(at, 3, number), &mut |piece| {
                    scan(piece).pieces(|s, at| s.alternating_end(at, is_han_or_kana), &mut |piece| {
                        scan(piece).pieces(Scanner::deepseek3_end, emit);
                    });
                });
            }
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

    fn class_run_end(&self, at: usize, keep: impl Fn(Class) -> bool) -> usize {
        self.run_end(at, |c| keep(self.classes.of(c)))
    }

    /// Up to `most` characters from `at` on that satisfy `keep`.
    fn group_end(&self, at: usize, most: usize, keep: impl Fn(char) -> bool) -> usize {
        at + self.text[at..].chars().take(most).take_while(|&c| keep(c)).map(char::len_utf8).sum::<usize>()
    }

    /// Up to `most` characters that satisfy `group`, or the text up to the next one.
    fn groups_or_run_end(&self, at: usize, most: usize, group: impl Fn(char) -> bool) -> usize {
        match self.group_end(at, most, &group) {
            end if end > at => end,
            _ => self.run_end(at, |c| !group(c)),
        }
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
        let end = self.class_run_end(at, |class| class == Class::Space);
        let last = self.text[at..end].chars().next_back().map_or(0, char::len_utf8);
        if end == self.text.len() || at + last == end { end } else { end - last }
    }

    /// `\s*[\r\n]+|\s+(?!\S)|\s+`
    fn lines_or_space_end(&self, at: usize) -> usize {
        let spaces = &self.text[at..self.class_run_end(at, |class| class == Class::Space)];
        match spaces.rfind(['\r', '\n']) {
            Some(newline) => at + newline + 1,
            None => self.space_end(at),
        }
    }

    fn gpt2_end(&self, at: usize) -> usize {
        if let Some(end) = self.contraction_end(at, |c| c) {
            return end;
        }
        let after_space = if self.text.as_bytes()[at] == b' ' { at + 1 } else { at };
        match self.class_at(after_space) {
            Some(class) if class.is_letter() => self.class_run_end(after_space, Class::is_letter),
            Some(Class::Number) => self.class_run_end(after_space, |class| class == Class::Number),
            Some(Class::Space) | None => self.space_end(at),
            Some(_) => self.class_run_end(after_space, Class::is_sign),
        }
    }

    /// Llama 3's rule with up to `most_digits` together and words of the classes that satisfy `in_word`.
    fn llama3_end(&self, at: usize, most_digits: usize, in_word: impl Fn(Class) -> bool) -> usize {
        if let Some(end) = self.contraction_end(at, fold) {
            return end;
        }
        let Some(first) = self.char_at(at) else { return self.text.len() };
        let class = self.classes.of(first);
        let second = at + first.len_utf8();
        if class == Class::Number {
            return self.group_end(at, most_digits, |c| self.classes.of(c) == Class::Number);
        }
        // A mark may be the sign before a word, which ends where the word does that begins with it.
        let starts_after = !matches!(first, '\r' | '\n') && self.class_at(second).is_some_and(&in_word);
        if in_word(class) || starts_after {
            return self.class_run_end(second, in_word);
        }
        let in_signs = |class: Class| class.is_sign() && !in_word(class);
        let signs = match class {
            Class::Space if first == ' ' && self.class_at(second).is_some_and(in_signs) => second,
            Class::Space => return self.lines_or_space_end(at),
            _ => at,
        };
        self.run_end(self.class_run_end(signs, in_signs), |c| matches!(c, '\r' | '\n'))
    }

    fn o200k_end(&self, at: usize, most_digits: usize, contractions: bool) -> usize {
        let Some(first) = self.char_at(at) else { return self.text.len() };
        let class = self.classes.of(first);
        if class == Class::Number {
            return self.group_end(at, most_digits, |c| self.classes.of(c) == Class::Number);
        }
        let second = at + first.len_utf8();
        // With and without the one character before a word, in the order of the expression's attempts.
        let before = (!class.is_letter() && !matches!(first, '\r' | '\n')).then_some(second);
        let starts = before.into_iter().chain([at]);
        let with_lower = starts.clone().find_map(|start| self.word_with_lower_end(start));
        if let Some(end) = with_lower.or_else(|| starts.clone().find_map(|start| self.word_with_upper_end(start))) {
            return contractions.then(|| self.contraction_end(end, fold)).flatten().unwrap_or(end);
        }
        let signs = match class {
            Class::Space if first == ' ' && self.class_at(second).is_some_and(Class::is_sign) => second,
            Class::Space => return self.lines_or_space_end(at),
            _ => at,
        };
        self.run_end(self.class_run_end(signs, Class::is_sign), |c| matches!(c, '\r' | '\n' | '/'))
    }

    /// `[U]*[L]+`
    fn word_with_lower_end(&self, at: usize) -> Option<usize> {
        let upper_end = self.class_run_end(at, is_upper);
        let lower_end = self.class_run_end(upper_end, is_lower);
        if lower_end > upper_end {
            return Some(lower_end);
        }
        // The run gives back characters until one of them counts as lower: after it comes none that does.
        let last = self.text[at..upper_end].char_indices().rfind(|&(_, c)| is_lower(self.classes.of(c)));
        last.map(|(distance, c)| at + distance + c.len_utf8())
    }

    /// `[U]+[L]*`
    fn word_with_upper_end(&self, at: usize) -> Option<usize> {
        let upper_end = self.class_run_end(at, is_upper);
        (upper_end > at).then(|| self.class_run_end(upper_end, is_lower))
    }

    fn deepseek3_end(&self, at: usize) -> usize {
        let unmatched = || {
            let starts = self.text[at..].char_indices().skip(1).map(|(distance, _)| at + distance);
            starts.into_iter().find(|&start| self.deepseek3_match(start).is_some()).unwrap_or(self.text.len())
        };
        self.deepseek3_match(at).unwrap_or_else(unmatched)
    }

    /// End of what DeepSeek V3's last expression matches at `at`.
    fn deepseek3_match(&self, at: usize) -> Option<usize> {
        let first = self.char_at(at)?;
        let class = self.classes.of(first);
        let second = at + first.len_utf8();
        let is_mark_of_text = |class| matches!(class, Class::Punctuation | Class::Symbol);
        if first.is_ascii_punctuation() && self.char_at(second).is_some_and(|c| c.is_ascii_alphabetic()) {
            return Some(self.run_end(second, |c| c.is_ascii_alphabetic()));
        }
        let may_precede = !class.is_letter() && !is_mark_of_text(class) && !matches!(first, '\r' | '\n');
        let starts_after = may_precede && self.class_at(second).is_some_and(Class::is_letter_or_mark);
        if class.is_letter_or_mark() || starts_after {
            return Some(self.class_run_end(second, Class::is_letter_or_mark));
        }
        let signs = match class {
            Class::Space if first == ' ' && self.class_at(second).is_some_and(is_mark_of_text) => second,
            Class::Space => return Some(self.lines_or_space_end(at)),
            class if is_mark_of_text(class) => at,
            _ => return None,
        };
        Some(self.run_end(self.class_run_end(signs, is_mark_of_text), |c| matches!(c, '\r' | '\n')))
    }
}

/// Simple case folding of what contractions are compared with: it also takes U+017F, the long s, to s.
const fn fold(c: char) -> char {
    if c == 'ſ' { 's' } else { c.to_ascii_lowercase() }
}

/// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
const fn is_upper(class: Class) -> bool {
    matches!(class, Class::Upper | Class::Caseless | Class::Mark)
}

/// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
const fn is_lower(class: Class) -> bool {
    matches!(class, Class::Lower | Class::Caseless | Class::Mark)
}

/// `[一-龥぀-ゟ゠-ヿ]`
const fn is_han_or_kana(c: char) -> bool {
    matches!(c, '\u{4e00}'..='\u{9fa5}' | '\u{3040}'..='\u{30ff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
    fn o200k_cuts_at_case_and_keeps_contractions() {
        check(
            PreTokenizer::O200k,
            "HelloWORLD camelCase's IT'S 12345 a/b\n/ x",
            &["Hello", "WORLD", " camel", "Case's", " IT'S", " ", "123", "45", " a", "/b", "\n", "/", " x"],
        );
        check(PreTokenizer::Tekken, "abcDEF's 12//\n", &["abc", "DEF", "'s", " ", "1", "2", "//\n"]);
    }

    #[test]
    fn deepseek3_parts_scripts_and_keeps_what_matches_nothing() {
        check(
            PreTokenizer::DeepSeek3,
            "abc你好カナdef1234.foo \0\u{1} x,\n",
            &["abc", "你好カナ", "def", "123", "4", ".foo", " ", "\0\u{1}", " x", ",\n"],
        );
    }

    /// The expressions themselves, by a backtracking engine.
    fn by_expression(expressions: &[fancy_regex::Regex], text: &str) -> Vec<String> {
        let mut pieces = vec![text.to_owned()];
        for regex in expressions {
            let cut = |piece: String| {
                let mut at = 0;
                let mut parts = Vec::new();
                for found in regex.find_iter(&piece) {
                    let found = found.unwrap();
                    parts.extend([piece[at..found.start()].to_owned(), found.as_str().to_owned()]);
                    at = found.end();
                }
                parts.push(piece[at..].to_owned());
                parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>()
            };
            pieces = pieces.into_iter().flat_map(cut).collect();
        }
        pieces
    }

    // Letters of all cases and none, marks, digits, signs, controls, and every kind of space and contraction.
    #[test]
    fn scanners_find_what_the_expressions_match() {
        let classes = Classes::new();
        let deepseek = (PreTokenizer::DeepSeek3, &DEEPSEEK3[..]);
        let others = EXPRESSIONS.iter().map(|(pre, expression)| (*pre, std::slice::from_ref(expression)));
        let rules: Vec<_> = others
            .chain([deepseek])
            .map(|(pre, expressions)| {
                assert_eq!(PreTokenizer::from_expressions(expressions), Some(pre));
                let compiled = expressions.iter().map(|one| fancy_regex::Regex::new(one).unwrap());
                (pre, compiled.collect::<Vec<_>>())
            })
            .collect();
        let text = "[aAbB'sStTlLdDmMrReEſǅʰªéÉ的あア가\u{301}\u{93f}1٣½ \t\n\r\u{a0}\u{3000}!/.$€+😀\0\u{7f}]{0,24}|\\PC{0,24}|('[sStTrReEvVmMlLdD]{1,2}|[aA ]){0,9}";
        proptest!(ProptestConfig::with_cases(1000), |(text in text)| {
            for (pre, expressions) in &rules {
                let mut pieces = Vec::new();
                pre.split(&text, &classes, &mut |piece| pieces.push(piece.to_owned()));
                prop_assert_eq!(pieces, by_expression(expressions, &text), "{:?} on {:?}", pre, text);
            }
        });
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
