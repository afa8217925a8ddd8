//! Stop strings in a stream of text.

/// Why stop strings were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "field names say what they hold")]
#[non_exhaustive]
pub enum StopError {
    /// An empty string is found at the start of every text.
    #[error("stop string {index} of {count} is empty")]
    Empty { index: usize, count: usize },
    /// More than anybody means to stop at.
    #[error("the stop strings have {bytes} bytes together, at most {max_bytes} are allowed")]
    TooLong { bytes: usize, max_bytes: usize },
    /// Each piece of text is compared with each stop string.
    #[error("{count} stop strings given, at most {max_count} are allowed")]
    TooMany { count: usize, max_count: usize },
}

/// Cuts a stream of text before the first stop string, wherever the pieces of the stream begin and end.
///
/// The text ends at the stop string that is complete first; of those complete at the same place, at the longest. That depends on
/// the text alone, never on how it was cut into pieces, and nothing after that place is needed to know it. What could be the
/// beginning of a stop string is held back until it is known not to be. Takes time for each byte and stop string (Knuth, Morris and
/// Pratt 1977, "Fast pattern matching in strings"), and memory for the longest stop string and the longest piece.
///
/// ```
/// use plimsoll_models::sampler::StopMatcher;
///
/// let mut matcher = StopMatcher::new(["\n\nUser:"])?;
/// assert_eq!(matcher.push("Yes.\n"), "Yes.");
/// assert_eq!(matcher.push("\nNo.\n"), "\n\nNo.");
/// assert_eq!(matcher.push("\nUser: and so on"), "");
/// assert_eq!(matcher.stopped(), Some(0));
/// # Ok::<(), plimsoll_models::sampler::StopError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    /// Text that is not given out yet, at its start some that was.
    text: String,
    /// Bytes at the start of `text` that were given out.
    given_bytes: usize,
    stopped: Option<usize>,
}

#[derive(Debug, Clone)]
struct Stop {
    pattern: Box<[u8]>,
    /// By length of a matched beginning, minus one: the longest shorter beginning that also ends there.
    shorter: Box<[u32]>,
    /// How much of the beginning the end of the text is.
    matched: usize,
}

impl StopMatcher {
    /// Stop strings together may have this many bytes.
    pub const MAX_BYTES: usize = 64 << 10;
    /// There may be this many stop strings.
    pub const MAX_COUNT: usize = 64;

    /// A matcher at the start of a text. Without stop strings it passes everything on.
    ///
    /// # Errors
    /// [`StopError`] for an empty string, or too many or too long ones.
    pub fn new<S: AsRef<str>>(stops: impl IntoIterator<Item = S>) -> Result<Self, StopError> {
        let stops: Vec<S> = stops.into_iter().collect();
        let count = stops.len();
        if count > Self::MAX_COUNT {
            return Err(StopError::TooMany { count, max_count: Self::MAX_COUNT });
        }
        if let Some(index) = stops.iter().position(|stop| stop.as_ref().is_empty()) {
            return Err(StopError::Empty { index, count });
        }
        let bytes = stops.iter().map(|stop| stop.as_ref().len()).sum();
        if bytes > Self::MAX_BYTES {
            return Err(StopError::TooLong { bytes, max_bytes: Self::MAX_BYTES });
        }
        Ok(Self { stops: stops.iter().map(|stop| Stop::new(stop.as_ref())).collect(), ..Self::default() })
    }

    /// Takes the next piece and returns the text that has become certain, often empty. After a stop string: always empty.
    pub fn push(&mut self, piece: &str) -> &str {
        if self.stopped.is_some() {
            return "";
        }
        // Only when that moves no more bytes than it frees: a long held back text is not moved at each push.
        if self.given_bytes * 2 >= self.text.len() {
            self.text.drain(..self.given_bytes);
            self.given_bytes = 0;
        }
        let from = self.given_bytes;
        let held_bytes = self.text.len();
        self.text.push_str(piece);
        for (at, &byte) in piece.as_bytes().iter().enumerate() {
            for stop in &mut self.stops {
                stop.advance(byte);
            }
            let complete = self.stops.iter().enumerate().filter(|(_, stop)| stop.is_complete());
            // Of equal lengths the first: `max_by_key` alone would take the last.
            if let Some((index, stop)) = complete.rev().max_by_key(|(_, stop)| stop.matched) {
                self.text.truncate(held_bytes + at + 1 - stop.matched);
                self.stopped = Some(index);
                self.given_bytes = self.text.len();
                return &self.text[from..];
            }
        }
        // A stop string starts with the first byte of a character, so that what is held back does, too.
        let possible_bytes = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        self.given_bytes = self.text.len() - possible_bytes;
        &self.text[from..self.given_bytes]
    }

    /// Ends the text: returns what was held back, as no stop string can follow. The matcher is then at the start of a text again.
    pub fn finish(&mut self) -> String {
        let held = self.text.split_off(self.given_bytes);
        self.text.clear();
        self.given_bytes = 0;
        self.stopped = None;
        for stop in &mut self.stops {
            stop.matched = 0;
        }
        held
    }

    /// The number of the stop string that ended the text.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }
}

impl Stop {
    fn new(text: &str) -> Self {
        let pattern: Box<[u8]> = text.as_bytes().into();
        let mut shorter = Vec::with_capacity(pattern.len());
        let mut length = 0;
        for (at, &byte) in pattern.iter().enumerate() {
            while length > 0 && pattern[length] != byte {
                length = shorter[length - 1] as usize;
            }
            if at > 0 && pattern[length] == byte {
                length += 1;
            }
            shorter.push(u32::try_from(length).expect("`StopMatcher::new` bounds the bytes"));
        }
        Self { pattern, shorter: shorter.into(), matched: 0 }
    }

    /// Precondition: not complete.
    fn advance(&mut self, byte: u8) {
        while self.matched > 0 && self.pattern[self.matched] != byte {
            self.matched = self.shorter[self.matched - 1] as usize;
        }
        if self.pattern[self.matched] == byte {
            self.matched += 1;
        }
    }

    fn is_complete(&self) -> bool {
        self.matched == self.pattern.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Straight from the definition: every stop string at every place of the whole text.
    fn search(text: &str, stops: &[String]) -> (String, Option<usize>) {
        let ends = stops.iter().enumerate().flat_map(|(index, stop)| {
            (0..=text.len())
                .filter(|&end| text.as_bytes()[..end].ends_with(stop.as_bytes()))
                .map(move |end| (end, index))
        });
        let first = ends.min_by_key(|&(end, index)| (end, std::cmp::Reverse(stops[index].len()), index));
        match first {
            Some((end, index)) => (text[..end - stops[index].len()].to_owned(), Some(index)),
            None => (text.to_owned(), None),
        }
    }

    /// Feeds `text` cut after the characters whose numbers are in `cuts`, and checks that nothing certain was held back.
    fn stream(text: &str, stops: &[String], cuts: &[usize]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops).unwrap();
        let mut out = String::new();
        let mut piece = String::new();
        let mut seen = String::new();
        for (number, c) in text.chars().enumerate() {
            piece.push(c);
            if cuts.contains(&number) || seen.len() + piece.len() == text.len() {
                seen.push_str(&piece);
                out.push_str(matcher.push(&piece));
                piece.clear();
                if matcher.stopped().is_none() {
                    let held = &seen[out.len()..];
                    let is_beginning = held.is_empty() || stops.iter().any(|stop| stop.starts_with(held));
                    assert!(is_beginning, "{held:?} held back after {seen:?}, stops {stops:?}");
                }
            }
        }
        let stopped = matcher.stopped();
        out.push_str(&matcher.finish());
        (out, stopped)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        // Few letters make overlaps likely; é, è, ê share their first byte, € and ₭ their first two.
        #[test]
        fn a_stream_is_cut_where_a_search_of_the_whole_text_says(
            text in "[abéèê€₭]{0,24}",
            stops in proptest::collection::vec("[abéèê€₭]{1,4}|a{1,5}|(ab){1,3}", 0..4),
            cuts in proptest::collection::vec(0..24usize, 0..24),
        ) {
            prop_assert_eq!(stream(&text, &stops, &cuts), search(&text, &stops));
        }
    }

    #[test]
    fn every_split_of_overlapping_stops_gives_the_same_text() {
        let text = "aabaabaaab€é";
        let stops = ["aabaaab".to_owned(), "aaab€".to_owned(), "b€".to_owned()];
        let want = search(text, &stops);
        assert_eq!(want, ("aab".to_owned(), Some(0)));
        let count = text.chars().count();
        for splits in 0..1u32 << count {
            let cuts: Vec<usize> = (0..count).filter(|&at| splits >> at & 1 == 1).collect();
            assert_eq!(stream(text, &stops, &cuts), want, "{cuts:?}");
        }
    }

    #[test]
    fn of_stops_complete_at_one_place_the_longest_cuts_and_of_equals_the_first() {
        let check = |stops: &[&str], want: (&str, Option<usize>)| {
            let mut matcher = StopMatcher::new(stops).unwrap();
            assert_eq!((matcher.push("xabc").to_owned().as_str(), matcher.stopped()), want, "{stops:?}");
        };
        check(&["c", "abc", "bc"], ("x", Some(1)));
        check(&["b", "abc"], ("xa", Some(0)));
        check(&["bc", "bc"], ("xa", Some(0)));
        check(&[], ("xabc", None));
    }

    #[test]
    fn a_matcher_can_be_used_again_and_gives_nothing_after_a_stop() {
        let mut matcher = StopMatcher::new(["ab"]).unwrap();
        assert_eq!(matcher.push("xa"), "x");
        assert_eq!(matcher.finish(), "a");
        assert_eq!(matcher.push("b"), "b", "the held back letter is forgotten");
        assert_eq!(matcher.push("yab"), "y");
        assert_eq!(matcher.push("more"), "");
        assert_eq!(matcher.stopped(), Some(0));
        assert_eq!(matcher.finish(), "");
        assert_eq!(matcher.push("more"), "more");
        assert_eq!(matcher.stopped(), None);
    }

    #[test]
    fn long_repetitions_take_linear_time() {
        let mut matcher = StopMatcher::new(["a".repeat(30_000) + "b"]).unwrap();
        let mut given_bytes = 0;
        for _ in 0..1 << 20 {
            given_bytes += matcher.push("a").len();
        }
        assert_eq!(given_bytes + 30_000, 1 << 20);
        assert_eq!(matcher.push("b"), "");
        assert_eq!(matcher.stopped(), Some(0));
    }

    #[test]
    fn stop_strings_that_cannot_be_meant_are_refused_with_numbers() {
        let check = |stops: Vec<String>, want: &str| {
            assert_eq!(StopMatcher::new(stops).unwrap_err().to_string(), want);
        };
        check(vec!["a".to_owned(), String::new()], "stop string 1 of 2 is empty");
        check(vec!["a".to_owned(); 65], "65 stop strings given, at most 64 are allowed");
        check(vec!["a".repeat(65_537)], "the stop strings have 65537 bytes together, at most 65536 are allowed");
    }
}
