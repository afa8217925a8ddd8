//! Ids equal to those of Hugging Face's `tokenizers`, and exact round trips.

use std::{fs, path::Path};

use plimsoll_models::tokenizer::{
    AddSpecial, BpeMetadata, Detokenizer, ParseSpecial, SkipSpecial, Tokenizer, TokenizerError,
};
use proptest::prelude::*;
use serde::{Deserialize, de::DeserializeOwned};

const PRE_TOKENIZERS: [&str; 4] = ["default", "gpt-2", "smollm", "llama-bpe"];

/// SmolLM2's vocabulary; `tests/golden/tokenizer/make.py` says what the fields mean.
#[derive(Deserialize)]
struct Vocabulary {
    special: Vec<usize>,
    first_merged: usize,
    splits: Vec<usize>,
    tokens: Vec<String>,
}

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    #[serde(flatten)]
    ids: std::collections::BTreeMap<String, Ids>,
}

#[derive(Deserialize)]
struct Ids {
    parsed: Vec<u32>,
    plain: Option<Vec<u32>>,
}

fn golden<T: DeserializeOwned>(name: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tokenizer").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn smollm2(pre: &str) -> Tokenizer {
    let vocabulary: Vocabulary = golden("vocab.json");
    let merges: Vec<String> = (vocabulary.tokens[vocabulary.first_merged..].iter().zip(&vocabulary.splits))
        .map(|(token, &split)| {
            let (at, _) = token.char_indices().nth(split).expect("a split lies inside its token");
            format!("{} {}", &token[..at], &token[at..])
        })
        .collect();
    let special = |id| if vocabulary.special.contains(&id) { 3 } else { 1 };
    let tokenizer = Tokenizer::new(BpeMetadata {
        model: "gpt2",
        pre: Some(pre),
        tokens: vocabulary.tokens.iter().map(String::as_str),
        token_types: (0..vocabulary.tokens.len()).map(special),
        merges: merges.iter().map(String::as_str),
        bos: Some(1),
        eos: Some(2),
        eot: None,
        eom: None,
        unknown: Some(0),
        padding: Some(2),
        add_bos: Some(false),
        add_eos: None,
        add_space_prefix: Some(false),
    });
    tokenizer.expect("SmolLM2's metadata are sound")
}

#[test]
fn ids_equal_the_reference_for_every_pre_tokenizer() {
    let golden: Golden = golden("case.json");
    assert!(golden.cases.len() >= 100, "{} cases", golden.cases.len());
    for pre in PRE_TOKENIZERS {
        let tokenizer = smollm2(pre);
        for Case { text, ids } in &golden.cases {
            let ids = &ids[pre];
            let parsed = tokenizer.encode(text, AddSpecial::Yes, ParseSpecial::Yes);
            assert_eq!(parsed, ids.parsed, "{pre}, special tokens parsed: {text:?}");
            let plain = tokenizer.encode(text, AddSpecial::No, ParseSpecial::No);
            assert_eq!(&plain, ids.plain.as_ref().unwrap_or(&ids.parsed), "{pre}, plain: {text:?}");
        }
    }
}

#[test]
fn decoding_gives_the_text_back_exactly_where_the_vocabulary_has_its_bytes() {
    let golden: Golden = golden("case.json");
    let mut incomplete = 0;
    for pre in PRE_TOKENIZERS {
        let tokenizer = smollm2(pre);
        for Case { text, .. } in &golden.cases {
            for parse in [ParseSpecial::Yes, ParseSpecial::No] {
                let ids = tokenizer.encode(text, AddSpecial::No, parse);
                let decoded = tokenizer.decode(&ids, SkipSpecial::No).unwrap();
                if tokenizer.missing_bytes(text) == 0 {
                    assert_eq!(&decoded, text, "{pre}");
                } else {
                    incomplete += 1;
                }
            }
        }
    }
    // Control characters and planes 4 to 14, which SmolLM2 has no bytes for: four texts, twice by four.
    assert_eq!(incomplete, 4 * 8);
}

#[test]
fn a_megabyte_of_one_character_takes_linear_time_and_has_the_reference_count() {
    let tokenizer = smollm2("smollm");
    let count = |text: &str| tokenizer.encode(text, AddSpecial::No, ParseSpecial::Yes).len();
    // Counts by tokenizers 0.22.2.
    assert_eq!(count(&"a".repeat(1 << 20)), 262_144);
    assert_eq!(count(&(" ".repeat(1 << 20) + "a")), 16_387);
    for pre in PRE_TOKENIZERS {
        let tokenizer = smollm2(pre);
        for unit in ["a", " ", "\n", "1", "<", "'", "²", "的", " \n", "<|im_start|"] {
            let text = unit.repeat((1 << 17) / unit.len());
            let ids = tokenizer.encode(&text, AddSpecial::No, ParseSpecial::Yes);
            assert_eq!(tokenizer.decode(&ids, SkipSpecial::No).unwrap(), text, "{pre}, {unit:?}");
        }
    }
}

#[test]
fn ids_past_the_vocabulary_are_refused() {
    let tokenizer = smollm2("smollm");
    let error = TokenizerError::UnknownId { id: 49_152, tokens: 49_152 };
    assert_eq!(tokenizer.decode(&[0, 49_152], SkipSpecial::No), Err(error.clone()));
    let mut stream = Detokenizer::new(SkipSpecial::No);
    assert_eq!(stream.push(&tokenizer, 49_152), Err(error));
    assert_eq!(stream.push(&tokenizer, 2), Ok("<|im_end|>"));
}

#[test]
fn a_stream_holds_back_unfinished_characters_only() {
    let tokenizer = smollm2("smollm");
    let bytes = |bytes: &[u8]| -> Vec<u32> {
        let id = |byte: &u8| (0..49_152).find(|&id| tokenizer.token_bytes(id) == Ok(&[*byte][..]));
        bytes.iter().map(|byte| id(byte).unwrap()).collect()
    };
    let check = |ids: &[u32], want: &[&str], end: &str| {
        let mut stream = Detokenizer::new(SkipSpecial::Yes);
        let got: Vec<String> = ids.iter().map(|&id| stream.push(&tokenizer, id).unwrap().to_owned()).collect();
        assert_eq!((got.iter().map(String::as_str).collect(), stream.flush()), (want.to_vec(), end));
        assert_eq!(stream.flush(), "");
    };
    check(&bytes("a€b".as_bytes()), &["a", "", "", "€", "b"], "");
    // The third byte shows that the first two were no character.
    check(&bytes(b"\xe2\x82b"), &["", "", "\u{fffd}b"], "");
    check(&bytes(b"\x80\xe2\x28\xf0\x9f"), &["\u{fffd}", "", "\u{fffd}(", "", ""], "\u{fffd}");
    // A skipped token does not part the bytes around it.
    let [first, second] = bytes("é".as_bytes())[..] else { panic!("two bytes") };
    check(&[first, 2, second], &["", "", "é"], "");
}

fn tokens() -> impl Strategy<Value = Vec<u32>> {
    // Single bytes, from id 17 on, make broken characters likely.
    proptest::collection::vec(prop_oneof![0..17u32, 17..252u32, 0..49_152u32], 0..40)
}

#[test]
fn a_stream_joined_equals_the_whole_decoded() {
    let tokenizer = smollm2("smollm");
    proptest!(|(ids in tokens())| {
        for skip in [SkipSpecial::Yes, SkipSpecial::No] {
            let mut stream = Detokenizer::new(skip);
            let mut joined = String::new();
            for &id in &ids {
                joined.push_str(stream.push(&tokenizer, id).unwrap());
            }
            joined.push_str(stream.flush());
            prop_assert_eq!(&joined, &tokenizer.decode(&ids, skip).unwrap());
        }
    });
}

#[test]
fn any_text_survives_a_round_trip() {
    let tokenizer = smollm2("llama-bpe");
    proptest!(|(text in "\\PC{0,40}|[ a-z'0-9\\n\\r]{0,60}")| {
        prop_assume!(tokenizer.missing_bytes(&text) == 0);
        let ids = tokenizer.encode(&text, AddSpecial::No, ParseSpecial::No);
        let mut stream = Detokenizer::new(SkipSpecial::No);
        let mut joined = String::new();
        for &id in &ids {
            joined.push_str(stream.push(&tokenizer, id).unwrap());
        }
        prop_assert_eq!(stream.flush(), "");
        prop_assert_eq!(joined, text);
    });
}
