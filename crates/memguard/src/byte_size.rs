//! A number of bytes as people write it: `512MiB`, `4GiB`, `1048576`.

use std::fmt;
use std::str::FromStr;

/// A number of bytes, parsed from and printed in binary units.
///
/// Parses plain bytes (`1048576`) and `KiB`, `MiB`, `GiB`, `TiB`, `PiB`, `EiB` in any case, with an optional fraction and space (`1.5 GiB`;
/// a part of a byte is dropped). `GB` and `G` are refused: they mean two different numbers to different readers.
/// Prints the largest unit that leaves at least one, with two decimals unless the value is whole: `4 GiB`, `1.50 MiB`. Sums of
/// bytes stay at the largest number where they would pass it: that one prints as `over 15 EiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

/// A text that is no [`ByteSize`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a size in bytes: write it like 512MiB, 4GiB, 1.5GiB or 1048576")]
pub struct ByteSizeError {
    text: String,
}

/// Largest first: printing takes the first that fits.
const UNITS: [(&str, u32); 6] = [("EiB", 60), ("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

impl ByteSize {
    /// A size of `bytes` bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl From<u64> for ByteSize {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl From<ByteSize> for u64 {
    fn from(size: ByteSize) -> Self {
        size.0
    }
}

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, ByteSizeError> {
        parse(text.trim()).map(Self).ok_or_else(|| ByteSizeError { text: text.to_owned() })
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == u64::MAX {
            return f.write_str("over 15 EiB");
        }
        let Some((unit, shift)) = UNITS.into_iter().find(|(_, shift)| self.0 >> shift > 0) else {
            return write!(f, "{} bytes", self.0);
        };
        let whole = self.0 >> shift;
        let rest = self.0 - (whole << shift);
        if rest == 0 {
            return write!(f, "{whole} {unit}");
        }
        // Rounded down, so that a printed limit is never above the real one.
        let hundredths = (u128::from(rest) * 100) >> shift;
        write!(f, "{whole}.{hundredths:02} {unit}")
    }
}

fn parse(text: &str) -> Option<u64> {
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    let unit = unit.trim_start();
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (number, None),
    };
    let whole: u64 = parse_digits(whole)?;
    if unit.is_empty() {
        return fraction.is_none().then_some(whole);
    }
    let shift = UNITS.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?.1;
    let whole_bytes = whole.checked_mul(1 << shift)?;
    match fraction {
        None => Some(whole_bytes),
        Some(digits) => whole_bytes.checked_add(fraction_bytes(digits, shift)?),
    }
}

fn parse_digits(digits: &str) -> Option<u64> {
    // `u64::from_str` takes a sign; a size has none.
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// Bytes of `0.<digits>` units of `1 << shift` bytes, rounded down.
fn fraction_bytes(digits: &str, shift: u32) -> Option<u64> {
    if digits.len() > 18 {
        return None;
    }
    let value = parse_digits(digits)?;
    let scale = 10u128.pow(u32::try_from(digits.len()).ok()?);
    u64::try_from((u128::from(value) << shift) / scale).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(text: &str) -> Option<u64> {
        text.parse::<ByteSize>().ok().map(ByteSize::bytes)
    }

    #[test]
    fn sizes_parse_in_binary_units() {
        for (text, want) in [
            ("0", 0),
            ("1048576", 1 << 20),
            ("3KiB", 3 << 10),
            ("512MiB", 512 << 20),
            ("4GiB", 4 << 30),
            (" 2 tib ", 2 << 40),
            ("1.5 EiB", 3 << 59),
            ("1.5gib", 3 << 29),
            ("0.001KiB", 1),
        ] {
            assert_eq!(bytes(text), Some(want), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_in_one_line_with_examples() {
        for text in
            ["", "GiB", "-1", "+1", "4GB", "4G", "1.5", "1.GiB", ".5GiB", "1..5GiB", "4GiBs", "17179869184GiB", "one"]
        {
            assert_eq!(bytes(text), None, "{text}");
        }
        let error = "4GB".parse::<ByteSize>().unwrap_err().to_string();
        assert_eq!(error, "`4GB` is not a size in bytes: write it like 512MiB, 4GiB, 1.5GiB or 1048576");
    }

    #[test]
    fn sizes_print_in_the_largest_unit_rounded_down() {
        for (value, want) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1 << 20, "1 MiB"),
            (3 << 19, "1.50 MiB"),
            ((4 << 30) - 1, "3.99 GiB"),
            (4 << 30, "4 GiB"),
            (3 << 50, "3 PiB"),
            (u64::MAX - 1, "15.99 EiB"),
            (u64::MAX, "over 15 EiB"),
        ] {
            assert_eq!(ByteSize::new(value).to_string(), want);
        }
    }

    proptest! {
        #[test]
        fn printing_and_parsing_loses_under_a_hundredth_of_the_unit(value in 0..u64::MAX) {
            let printed = ByteSize::new(value).to_string();
            let back = bytes(printed.trim_end_matches(" bytes")).unwrap();
            prop_assert!(back <= value);
            prop_assert!(u128::from(value - back) * 50 <= u128::from(value), "{} -> {}", value, printed);
        }
    }
}
