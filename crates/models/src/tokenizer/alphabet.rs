//! The printable alphabet in which GPT-2 style vocabularies write raw bytes (`openai/gpt-2`, `bytes_to_unicode`).
//!
//! Bytes that print as themselves in Latin-1 keep their code point; the other 68 take U+0100 and up, in byte order.

/// Whether a byte stands for itself in the alphabet.
const fn prints(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

/// The bytes written as U+0100, U+0101 and so on.
const SHIFTED: [u8; 68] = {
    let mut shifted = [0; 68];
    let (mut byte, mut at) = (0u8, 0);
    loop {
        if !prints(byte) {
            shifted[at] = byte;
            at += 1;
        }
        if byte == u8::MAX {
            break shifted;
        }
        byte += 1;
    }
};

/// The byte that `c` writes, or `None` for a character outside the alphabet.
pub(super) fn byte_of(c: char) -> Option<u8> {
    match u8::try_from(u32::from(c)) {
        Ok(byte) => prints(byte).then_some(byte),
        Err(_) => SHIFTED.get(u32::from(c).checked_sub(0x100)? as usize).copied(),
    }
}

/// Appends the bytes that `text` writes; leaves `out` as it was and returns `false` when a character is outside the alphabet.
pub(super) fn decode_into(text: &str, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    for c in text.chars() {
        let Some(byte) = byte_of(c) else {
            out.truncate(start);
            return false;
        };
        out.push(byte);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_exactly_one_character() {
        let mut bytes: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn space_and_newline_are_the_well_known_letters() {
        let mut out = vec![b'x'];
        assert!(decode_into("ĠaĊ", &mut out));
        assert_eq!(out, b"x a\n");
        assert!(!decode_into("a b", &mut out), "a space is written as Ġ");
        assert_eq!(out, b"x a\n");
    }
}
