use proptest::prelude::*;

use super::{merges::Merges as _, *};

const TOKENS: [&str; 12] = ["a", "b", "c", "ab", "bc", "abc", "aa", "aaa", "aaaa", "ca", "<s>", "<s>x"];
/// Overlapping on purpose; `abc` has two makings.
const MERGES: [&str; 8] = ["a b", "b c", "a a", "ab c", "aa aa", "a bc", "aa a", "c a"];

fn metadata<'a>(
    pre: &'a str,
) -> BpeMetadata<'a, std::array::IntoIter<&'a str, 12>, std::vec::IntoIter<i32>, std::array::IntoIter<&'a str, 8>> {
    BpeMetadata {
        pre: Some(pre),
        tokens: TOKENS.into_iter(),
        token_types: vec![1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 4].into_iter(),
        merges: MERGES.into_iter(),
        settings: Settings { bos: Some(10), eos: Some(11), ..Settings::default() },
    }
}

/// The definition, word for word: find the best pair anywhere, leftmost among equals, merge it, start again.
fn merge_by_definition(text: &str) -> Vec<String> {
    let mut parts: Vec<String> = text.chars().map(String::from).collect();
    for _ in 0..text.len() {
        let rank = |pair: &[String]| MERGES.iter().position(|merge| *merge == pair.join(" "));
        let best = parts.windows(2).enumerate().filter_map(|(at, pair)| Some((rank(pair)?, at))).min();
        let Some((_, at)) = best else { break };
        let right = parts.remove(at + 1);
        parts[at].push_str(&right);
    }
    parts
}

proptest! {
    // 48 symbols is where the scan gives way to the heap.
    #[test]
    fn merging_equals_its_definition_on_short_and_long_pieces(text in "[abc]{0,120}|a{0,70}|[abc]{46,51}") {
        let types = [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 4];
        let (vocabulary, literals) = read_tokens(Alphabet::Bytes, TOKENS, types).unwrap();
        let merges = MERGES.into_iter().enumerate().map(|(rank, merge)| split_merge(rank, merge));
        let merges = MergeTable::new(merges, &vocabulary, &literals).unwrap();
        let mut work = MergeWork::default();
        let mut ids = Vec::new();
        work.ids.extend(text.bytes().filter_map(|byte| vocabulary.byte_id(byte)));
        merges.apply(&mut work, &mut ids);
        let got: Vec<&str> = ids.iter().map(|&id| TOKENS[id as usize]).collect();
        prop_assert_eq!(got, merge_by_definition(&text));
        prop_assert!(work.ids.is_empty());
    }
}

#[test]
fn special_tokens_are_read_only_when_asked_and_user_defined_ones_always_longest_first() {
    let tokenizer = Tokenizer::bpe(metadata("gpt-2")).unwrap();
    let encode = |parse| tokenizer.encode("a<s>xb<s>", AddSpecial::No, parse).unwrap();
    assert_eq!(encode(ParseSpecial::Yes), [0, 11, 1, 10]);
    // `<`, `s` and `>` are bytes that this vocabulary lacks.
    assert_eq!(encode(ParseSpecial::No), [0, 11, 1]);
    assert_eq!(tokenizer.missing_bytes("<s>b<s>"), 6);
    assert_eq!(tokenizer.decode(&[0, 11, 1, 10], SkipSpecial::Yes).unwrap(), "a<s>xb");
    assert_eq!(tokenizer.decode(&[0, 11, 1, 10], SkipSpecial::No).unwrap(), "a<s>xb<s>");
}

#[test]
fn added_tokens_follow_the_metadata_and_else_the_pre_tokenizer() {
    let ids = |pre, change: fn(&mut Settings)| {
        let mut metadata = metadata(pre);
        change(&mut metadata.settings);
        Tokenizer::bpe(metadata).unwrap().encode("a", AddSpecial::Yes, ParseSpecial::No).unwrap()
    };
    assert_eq!(ids("gpt-2", |_| {}), [0]);
    assert_eq!(ids("llama-bpe", |_| {}), [10, 0]);
    assert_eq!(ids("llama-bpe", |settings| settings.add_bos = Some(false)), [0]);
    let both = |settings: &mut Settings| (settings.add_bos, settings.add_eos) = (Some(true), Some(true));
    assert_eq!(ids("gpt-2", both), [10, 0, 11]);
    let missing = Tokenizer::bpe(BpeMetadata { settings: Settings::default(), ..metadata("llama-bpe") });
    assert_eq!(missing.unwrap_err(), TokenizerError::MissingAddedToken { name: "bos" });
}

#[test]
fn llama_bpe_takes_a_whole_token_where_merges_lead_elsewhere() {
    // By merges `ca` and `b` never become one; as a token of its own, `cab` is taken directly.
    let tokens = ["a", "b", "c", "ca", "cab"];
    let ids = |pre| {
        let tokenizer = Tokenizer::bpe(BpeMetadata {
            pre: Some(pre),
            tokens,
            token_types: [],
            merges: ["c a"],
            settings: Settings { add_bos: Some(false), ..Settings::default() },
        });
        tokenizer.unwrap().encode("cab", AddSpecial::No, ParseSpecial::No).unwrap()
    };
    assert_eq!(ids("gpt-2"), [3, 1]);
    assert_eq!(ids("llama-bpe"), [4]);
}

#[test]
fn faulty_metadata_is_refused_with_one_clear_line() {
    let check = |metadata, want: &str| {
        let error = Tokenizer::bpe::<Vec<&str>, Vec<i32>, Vec<&str>>(metadata).unwrap_err();
        assert_eq!(error.to_string(), want);
    };
    let base = || BpeMetadata {
        pre: Some("gpt-2"),
        tokens: vec!["a", "b"],
        token_types: vec![1, 1],
        merges: vec![],
        settings: Settings::default(),
    };
    check(
        BpeMetadata { pre: Some("bloom"), ..base() },
        "pre-tokenizer \"bloom\" is not supported; supported: default, gpt-2, smollm, llama-bpe, qwen2, qwen35, gpt-4o, tekken, deepseek-v3, llama3, llama-v3, deepseek-r1-qwen, llama4",
    );
    check(
        BpeMetadata { pre: None, ..base() },
        "the tokenizer names no pre-tokenizer; supported: default, gpt-2, smollm, llama-bpe, qwen2, qwen35, gpt-4o, tekken, deepseek-v3, llama3, llama-v3, deepseek-r1-qwen, llama4",
    );
    check(BpeMetadata { tokens: vec![], token_types: vec![], ..base() }, "the tokenizer has no tokens");
    check(BpeMetadata { token_types: vec![1], ..base() }, "1 token types for 2 tokens");
    check(BpeMetadata { token_types: vec![1, 1, 1], ..base() }, "3 token types for 2 tokens");
    check(BpeMetadata { token_types: vec![1, 9], ..base() }, "token 1 has unknown type 9; GGUF defines 1 to 6");
    check(BpeMetadata { merges: vec!["ab"], ..base() }, "merge 0 (\"ab\") is not two tokens separated by one space");
    check(
        BpeMetadata { merges: vec!["a b"], ..base() },
        "merge 0 (\"a b\") names or makes a token that the vocabulary does not have",
    );
    check(
        BpeMetadata { settings: Settings { eos: Some(2), ..Settings::default() }, ..base() },
        "eos token id 2 is past the vocabulary of 2 tokens",
    );
}

#[test]
fn space_prefix_is_added_once_before_each_text() {
    let tokenizer = Tokenizer::bpe(BpeMetadata {
        pre: Some("gpt-2"),
        tokens: ["Ġ", "a", "<s>"],
        token_types: [1, 1, 3],
        merges: [],
        settings: Settings { add_space_prefix: Some(true), ..Settings::default() },
    });
    let tokenizer = tokenizer.unwrap();
    assert_eq!(tokenizer.encode("a<s> a", AddSpecial::No, ParseSpecial::Yes).unwrap(), [0, 1, 2, 0, 1]);
    assert_eq!(tokenizer.encode("", AddSpecial::No, ParseSpecial::Yes).unwrap(), [0; 0]);
}

#[test]
fn ends_are_what_the_metadata_names_and_known_texts() {
    let tokenizer = Tokenizer::bpe(BpeMetadata {
        pre: Some("gpt-2"),
        tokens: ["a", "<|im_end|>", "<|endoftext|>", "</x>", "<|end|>"],
        token_types: [1, 3, 3, 3, 1],
        merges: [],
        settings: Settings { eos: Some(3), eot: Some(1), ..Settings::default() },
    });
    let tokenizer = tokenizer.unwrap();
    assert_eq!(tokenizer.end_ids(), [1, 2, 3], "an ordinary token ends nothing");
    assert!(tokenizer.is_end(2) && !tokenizer.is_end(4));
    assert_eq!(tokenizer.special_id("<|im_end|>"), Some(1));
    assert_eq!(tokenizer.special_id("<|end|>"), None);
}

/// A vocabulary whose words begin with a space; `<0x41>` is the byte of `A`.
const WORDS: [(&str, i32, f32); 15] = [
    ("<unk>", 2, 0.0),
    ("<s>", 3, 0.0),
    ("</s>", 3, 0.0),
    ("<0x41>", 6, 0.0),
    ("<0xC3>", 6, 0.0),
    ("<0xA9>", 6, 0.0),
    ("▁▁", 4, 0.0),
    ("\n", 4, 0.0),
    ("▁", 1, -5.0),
    ("a", 1, -6.0),
    ("b", 1, -7.0),
    ("ab", 1, -1.0),
    ("▁a", 1, -2.0),
    ("ba", 1, -1.0),
    ("▁ab", 1, -3.0),
];

fn words(settings: Settings) -> Tokenizer {
    let metadata = SentencePieceMetadata {
        tokens: WORDS.map(|(text, ..)| text),
        token_types: WORDS.map(|(_, kind, _)| kind),
        scores: WORDS.map(|(.., score)| score),
        settings,
    };
    Tokenizer::sentencepiece(metadata).unwrap()
}

#[test]
fn sentencepiece_merges_by_score_and_falls_back_to_bytes_and_then_to_unknown() {
    let bare = Settings { add_bos: Some(false), add_space_prefix: Some(false), ..Settings::default() };
    let tokenizer = words(bare);
    let check = |text: &str, want: &[u32]| {
        let ids = tokenizer.encode(text, AddSpecial::Yes, ParseSpecial::Yes).unwrap();
        assert_eq!(ids, want, "{text:?}");
    };
    // Of equal scores the leftmost merges first.
    check("aba", &[11, 9]);
    check("bab", &[13, 10]);
    // `ab` has a better score than ` a`.
    check(" ab", &[14]);
    check("a ab", &[9, 14]);
    check("a▁ab", &[9, 14]);
    check("a  ab\n", &[9, 6, 11, 7]);
    check("Aé", &[3, 4, 5]);
    // A run of characters without tokens is one unknown token.
    check("axyb\u{e8}a", &[9, 0, 10, 0, 9]);
    check("<s>a</s>", &[1, 9, 2]);
    assert_eq!(tokenizer.missing_bytes("xyz"), 0);
    assert_eq!(tokenizer.decode(&[9, 6, 11, 7, 4, 5], SkipSpecial::Yes).unwrap(), "a  ab\né");
}

#[test]
fn sentencepiece_puts_a_space_in_front_and_takes_it_away_again() {
    let tokenizer = words(Settings::default());
    let ids = tokenizer.encode("ab</s>ab", AddSpecial::Yes, ParseSpecial::Yes).unwrap();
    assert_eq!(ids, [1, 14, 2, 14], "before the text and after a special token");
    assert_eq!(tokenizer.decode(&[1, 14, 14], SkipSpecial::Yes).unwrap(), "ab ab");
    assert_eq!(tokenizer.decode(&[1, 14], SkipSpecial::No).unwrap(), "<s> ab");
    assert_eq!(tokenizer.encode(" ab", AddSpecial::No, ParseSpecial::No).unwrap(), [6, 11], "even if there is one");
    assert_eq!(tokenizer.encode("", AddSpecial::No, ParseSpecial::No).unwrap(), [0; 0]);
    let mut answer = Detokenizer::new(SkipSpecial::Yes);
    assert_eq!([1, 14, 14].map(|id| answer.push(&tokenizer, id).unwrap().to_owned()), ["", "ab", " ab"]);
    let mut rest = Detokenizer::continuing(SkipSpecial::Yes);
    assert_eq!(rest.push(&tokenizer, 14).unwrap(), " ab");
}

#[test]
fn faulty_scores_are_refused() {
    let check = |scores: Vec<f32>, want: &str| {
        let metadata = SentencePieceMetadata {
            tokens: ["a", "b"],
            token_types: [1, 1],
            scores,
            settings: Settings { add_bos: Some(false), ..Settings::default() },
        };
        assert_eq!(Tokenizer::sentencepiece(metadata).unwrap_err().to_string(), want);
    };
    check(vec![1.0], "1 token scores for 2 tokens");
    check(vec![1.0, f32::NAN], "the score of token 1 of 2 is not a number");
}

/// SentencePiece's definition on the characters of the whole text: best score anywhere, leftmost among equals, nothing cut.
fn sentencepiece_by_definition(text: &str) -> Vec<u32> {
    let id = |text: &str| WORDS.iter().position(|&(word, kind, _)| kind == 1 && word.replace('▁', " ") == text);
    let mut parts: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let mut best: Option<(f32, usize)> = None;
        for at in 1..parts.len() {
            if let Some(id) = id(&[parts[at - 1].as_str(), &parts[at]].concat())
                && best.is_none_or(|(score, _)| WORDS[id].2 > score)
            {
                best = Some((WORDS[id].2, at));
            }
        }
        let Some((_, at)) = best else { break };
        let right = parts.remove(at);
        parts[at - 1].push_str(&right);
    }
    parts.iter().map(|part| u32::try_from(id(part).unwrap()).unwrap()).collect()
}

proptest! {
    #[test]
    fn sentencepiece_equals_its_definition(text in "[ab]{0,60}|( ?[ab]{0,3}){0,40}|(ab){40,60}") {
        // Two spaces are a token of their own kind.
        let text = text.replace("  ", " ");
        prop_assume!(!text.contains("  "));
        let bare = Settings { add_bos: Some(false), add_space_prefix: Some(false), ..Settings::default() };
        let ids = words(bare).encode(&text, AddSpecial::No, ParseSpecial::No).unwrap();
        prop_assert_eq!(ids, sentencepiece_by_definition(&text));
    }
}
