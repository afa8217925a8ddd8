//! Whole numbers of the command line, with words for what is none.

use std::{
    num::{IntErrorKind, ParseIntError},
    str::FromStr,
};

/// A number that may be 0.
///
/// # Errors
/// What is wrong with the text, for the end of clap's message.
pub(super) fn count<T: FromStr<Err = ParseIntError>>(text: &str) -> Result<T, String> {
    whole(text, 0)
}

/// A number of at least 1: `T` is one of the types that hold no 0.
///
/// # Errors
/// As [`count`].
pub(super) fn size<T: FromStr<Err = ParseIntError>>(text: &str) -> Result<T, String> {
    whole(text, 1)
}

fn whole<T: FromStr<Err = ParseIntError>>(text: &str, least: u8) -> Result<T, String> {
    text.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow => "the number is too large".to_owned(),
        _ => format!("expected a whole number from {least} on"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;

    #[test]
    fn what_is_no_number_is_told_what_is() {
        assert_eq!((count("0"), count::<u64>("77")), (Ok(0_usize), Ok(77)));
        assert_eq!(size::<NonZeroUsize>("1").map(NonZeroUsize::get), Ok(1));
        for text in ["-1", "", "1.5", "1e3", "many", "-0", " 1"] {
            assert_eq!(count::<usize>(text), Err("expected a whole number from 0 on".to_owned()), "{text}");
        }
        assert_eq!(size::<NonZeroUsize>("0"), Err("expected a whole number from 1 on".to_owned()));
        assert_eq!(count::<u64>("18446744073709551616"), Err("the number is too large".to_owned()));
    }
}
