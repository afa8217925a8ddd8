//! Character classes of the pre-tokenizers, by code point.

use regex_syntax::hir::{Class as HirClass, HirKind};

/// What pre-tokenizers ask of a character. Unicode general categories, except that white space is the property `White_Space`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// `[\p{Lu}\p{Lt}]`
    Upper,
    /// `\p{Ll}`
    Lower,
    /// `[\p{Lm}\p{Lo}]`: letters without case.
    Caseless,
    /// `\p{M}`
    Mark,
    /// `\p{N}`
    Number,
    /// `\s`
    Space,
    /// `\p{P}`
    Punctuation,
    /// `\p{S}`
    Symbol,
    /// Controls, private and unassigned code points.
    Other,
}

impl Class {
    /// `\p{L}`
    pub(super) const fn is_letter(self) -> bool {
        matches!(self, Self::Upper | Self::Lower | Self::Caseless)
    }

    /// `[\p{L}\p{M}]`
    pub(super) const fn is_letter_or_mark(self) -> bool {
        self.is_letter() || matches!(self, Self::Mark)
    }

    /// `[^\s\p{L}\p{N}]`
    pub(super) const fn is_sign(self) -> bool {
        matches!(self, Self::Mark | Self::Punctuation | Self::Symbol | Self::Other)
    }
}

/// Classes of all characters as sorted ranges (about 2,500), with a table for ASCII.
///
/// The data are `regex-syntax`'s, so that a class means here what it means in the regular expressions of the regex crates.
#[derive(Debug)]
pub(super) struct Classes {
    ascii: [Class; 128],
    ranges: Vec<(char, char, Class)>,
}

impl Classes {
    pub(super) fn new() -> Self {
        let patterns = [
            (r"[\p{Lu}\p{Lt}]", Class::Upper),
            (r"\p{Ll}", Class::Lower),
            (r"[\p{Lm}\p{Lo}]", Class::Caseless),
            (r"\p{M}", Class::Mark),
            (r"\p{N}", Class::Number),
            (r"\s", Class::Space),
            (r"\p{P}", Class::Punctuation),
            (r"\p{S}", Class::Symbol),
        ];
        let mut ranges = Vec::new();
        for (pattern, class) in patterns {
            let hir = regex_syntax::parse(pattern).expect("the patterns are valid");
            let HirKind::Class(HirClass::Unicode(set)) = hir.kind() else {
                unreachable!("{pattern} is a Unicode class");
            };
            ranges.extend(set.ranges().iter().map(|range| (range.start(), range.end(), class)));
        }
        ranges.sort_unstable_by_key(|&(start, ..)| start);
        ranges.shrink_to_fit();
        let mut classes = Self { ascii: [Class::Other; 128], ranges };
        for (byte, c) in (0..128u8).map(|byte| (usize::from(byte), char::from(byte))) {
            classes.ascii[byte] = classes.search(c);
        }
        classes
    }

    pub(super) fn of(&self, c: char) -> Class {
        match self.ascii.get(c as usize) {
            Some(&class) => class,
            None => self.search(c),
        }
    }

    fn search(&self, c: char) -> Class {
        let after = self.ranges.partition_point(|&(start, ..)| start <= c);
        match after.checked_sub(1).map(|at| self.ranges[at]) {
            Some((_, end, class)) if c <= end => class,
            _ => Class::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap_and_agree_with_the_standard_library() {
        let classes = Classes::new();
        assert!(classes.ranges.windows(2).all(|pair| pair[0].1 < pair[1].0));
        for c in '\0'..=char::MAX {
            // The standard library may know a newer or older Unicode: compare where both know the character.
            if c.is_alphanumeric() || c.is_whitespace() || c.is_ascii() {
                assert_eq!(classes.of(c) == Class::Space, c.is_whitespace(), "{:x}", u32::from(c));
            }
        }
        assert_eq!(
            ['é', 'É', 'ǅ', 'ª', '的', '٣', '½', '\u{3000}'].map(|c| classes.of(c)),
            [
                Class::Lower,
                Class::Upper,
                Class::Upper,
                Class::Caseless,
                Class::Caseless,
                Class::Number,
                Class::Number,
                Class::Space
            ]
        );
        assert_eq!(
            ['。', '+', '\u{301}', '😀', '\0'].map(|c| classes.of(c)),
            [Class::Punctuation, Class::Symbol, Class::Mark, Class::Symbol, Class::Other]
        );
    }
}
