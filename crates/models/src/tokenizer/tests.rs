use proptest::prelude::*;

use super::{
    merges::{MergeTable, MergeWork},
    vocab::Vocabulary,
    *,
};

const TOKENS: [&str; 12] = ["a", "b", "c", "ab", "bc", "abc", "aa", "aaa", "aaaa", "ca", "<s>", "<s>x"];
/// Overlapping on purpose; `abc` has two makings.
const MERGES: [&str; 8] = ["a b", "b c", "a a", "ab c", "aa aa", "a bc", "aa a", "c a"];

fn metadata<'a>(
    pre: &'a str,
) -> BpeMetadata<'a, std::array::IntoIter<&'a str, 12>, std::vec::IntoIter<i32>, std::array::IntoIter<&'a str, 8>> {
    BpeMetadata {
        model: "gpt2",
        pre: Some(pre),
        tokens: TOKENS.into_iter(),
        token_types: vec![1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 4].into_iter(),
        merges: MERGES.into_iter(),
        bos: Some(10),
        eos: Some(11),
        eot: None,
        eom: None,
        unknown: None,
        padding: None,
        add_bos: None,
        add_eos: None,
        add_space_prefix: None,
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
        let vocabulary = Vocabulary::new(TOKENS.into_iter(), types.into_iter()).unwrap();
        let merges = MergeTable::new(MERGES.into_iter(), &vocabulary).unwrap();
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
fn special_tokens_are_read_only_when_asked_and_longest_first() {
    let tokenizer = Tokenizer::new(metadata("gpt-2")).unwrap();
    let encode = |parse| tokenizer.encode("a<s>xb<s>", AddSpecial::No, parse);
    assert_eq!(encode(ParseSpecial::Yes), [0, 11, 1, 10]);
    // `<`, `s`, `>` and `x` are bytes that this vocabulary lacks.
    assert_eq!(encode(ParseSpecial::No), [0, 1]);
    assert_eq!(tokenizer.missing_bytes("a<s>xb<s>"), 7);
    assert_eq!(tokenizer.decode(&[0, 11, 1], SkipSpecial::Yes).unwrap(), "ab");
    assert_eq!(tokenizer.decode(&[0, 11, 1], SkipSpecial::No).unwrap(), "a<s>xb");
}

#[test]
fn added_tokens_follow_the_metadata_and_else_the_pre_tokenizer() {
    let ids = |metadata| Tokenizer::new(metadata).unwrap().encode("a", AddSpecial::Yes, ParseSpecial::No);
    assert_eq!(ids(metadata("gpt-2")), [0]);
    assert_eq!(ids(metadata("llama-bpe")), [10, 0]);
    assert_eq!(ids(BpeMetadata { add_bos: Some(false), ..metadata("llama-bpe") }), [0]);
    assert_eq!(ids(BpeMetadata { add_bos: Some(true), add_eos: Some(true), ..metadata("gpt-2") }), [10, 0, 11]);
    let missing = Tokenizer::new(BpeMetadata { bos: None, ..metadata("llama-bpe") });
    assert_eq!(missing.unwrap_err(), TokenizerError::MissingAddedToken { name: "bos" });
}

#[test]
fn llama_bpe_takes_a_whole_token_where_merges_lead_elsewhere() {
    // By merges `ca` and `b` never become one; as a token of its own, `cab` is taken directly.
    let tokens = ["a", "b", "c", "ca", "cab"];
    let ids = |pre| {
        let tokenizer = Tokenizer::new(BpeMetadata {
            model: "gpt2",
            pre: Some(pre),
            tokens,
            token_types: [],
            merges: ["c a"],
            bos: None,
            eos: None,
            eot: None,
            eom: None,
            unknown: None,
            padding: None,
            add_bos: Some(false),
            add_eos: None,
            add_space_prefix: None,
        });
        tokenizer.unwrap().encode("cab", AddSpecial::No, ParseSpecial::No)
    };
    assert_eq!(ids("gpt-2"), [3, 1]);
    assert_eq!(ids("llama-bpe"), [4]);
}

#[test]
fn faulty_metadata_is_refused_with_one_clear_line() {
    let check = |metadata, want: &str| {
        let error = Tokenizer::new::<Vec<&str>, Vec<i32>, Vec<&str>>(metadata).unwrap_err();
        assert_eq!(error.to_string(), want);
    };
    let base = || BpeMetadata {
        model: "gpt2",
        pre: Some("gpt-2"),
        tokens: vec!["a", "b"],
        token_types: vec![1, 1],
        merges: vec![],
        bos: None,
        eos: None,
        eot: None,
        eom: None,
        unknown: None,
        padding: None,
        add_bos: None,
        add_eos: None,
        add_space_prefix: None,
    };
    check(BpeMetadata { model: "llama", ..base() }, "tokenizer model \"llama\" is not supported; supported: gpt2");
    check(
        BpeMetadata { pre: Some("qwen2"), ..base() },
        "pre-tokenizer \"qwen2\" is not supported; supported: default, gpt-2, smollm, llama-bpe",
    );
    check(
        BpeMetadata { pre: None, ..base() },
        "the tokenizer names no pre-tokenizer; supported: default, gpt-2, smollm, llama-bpe",
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
    check(BpeMetadata { eos: Some(2), ..base() }, "eos token id 2 is past the vocabulary of 2 tokens");
}

#[test]
fn space_prefix_is_added_once_before_each_text() {
    let tokenizer = Tokenizer::new(BpeMetadata {
        model: "gpt2",
        pre: Some("gpt-2"),
        tokens: ["Ġ", "a", "<s>"],
        token_types: [1, 1, 3],
        merges: [],
        bos: None,
        eos: None,
        eot: None,
        eom: None,
        unknown: None,
        padding: None,
        add_bos: None,
        add_eos: None,
        add_space_prefix: Some(true),
    });
    let tokenizer = tokenizer.unwrap();
    assert_eq!(tokenizer.encode("a<s> a", AddSpecial::No, ParseSpecial::Yes), [0, 1, 2, 0, 1]);
    assert_eq!(tokenizer.encode("", AddSpecial::No, ParseSpecial::Yes), [0; 0]);
}

#[test]
fn ends_are_what_the_metadata_names_and_known_texts() {
    let tokenizer = Tokenizer::new(BpeMetadata {
        model: "gpt2",
        pre: Some("gpt-2"),
        tokens: ["a", "<|im_end|>", "<|endoftext|>", "</x>", "<|end|>"],
        token_types: [1, 3, 3, 3, 1],
        merges: [],
        bos: None,
        eos: Some(3),
        eot: Some(1),
        eom: None,
        unknown: None,
        padding: None,
        add_bos: None,
        add_eos: None,
        add_space_prefix: None,
    });
    let tokenizer = tokenizer.unwrap();
    assert_eq!(tokenizer.end_ids(), [1, 2, 3], "an ordinary token ends nothing");
    assert!(tokenizer.is_end(2) && !tokenizer.is_end(4));
    assert_eq!(tokenizer.special_id("<|im_end|>"), Some(1));
    assert_eq!(tokenizer.special_id("<|end|>"), None);
}
