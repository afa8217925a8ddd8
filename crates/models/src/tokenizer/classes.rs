//! Character classes of the pre-tokenizers, by code point.

use regex_syntax::hir::{Class as HirClass, HirKind};

/// What pre-tokenizers ask of a character. Unicode general categories, except that white space is the property `White_Space`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// `\p{L}`
    Letter,
    /// `\p{N}`
    Number,
    /// `\s`
    Space,
    /// `\p{P}`
    Punctuation,
    /// Marks, symbols, controls, unassigned code points.
    Other,
}

/// Classes of all characters as sorted ranges (about 1,100), with a table for ASCII.
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
            (r"\p{L}", Class::Letter),
            (r"\p{N}", Class::Number),
            (r"\s", Class::Space),
            (r"\p{P}", Class::Punctuation),
        ];
        let mut ranges = Vec::new();
        for (pattern, class) in patterns {
            let hir = regex_syntax::parse(pattern).expect("the four patterns are valid");
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
            [classes.of('é'), classes.of('٣'), classes.of('½'), classes.of('\u{3000}')],
            [Class::Letter, Class::Number, Class::Number, Class::Space]
        );
        assert_eq!(
            [classes.of('。'), classes.of('+'), classes.of('\u{301}'), classes.of('😀')],
            [Class::Punctuation, Class::Other, Class::Other, Class::Other]
        );
    }
}
