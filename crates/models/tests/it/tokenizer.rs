//! Ids equal to those of Hugging Face's `tokenizers`, and exact round trips.

use std::{fs, path::Path};

use plimsoll_models::tokenizer::{
    AddSpecial, BpeMetadata, Detokenizer, JsonSettings, ParseSpecial, SentencePieceMetadata, Settings, SkipSpecial,
    Tokenizer, TokenizerError,
};
use proptest::prelude::*;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

const PRE_TOKENIZERS: [&str; 9] =
    ["default", "gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "gpt-4o", "tekken", "deepseek-v3"];

/// Rules under which text is brought into normal form C first.
const NORMALIZING: [&str; 2] = ["qwen2", "qwen35"];

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
    parts: std::collections::BTreeMap<String, Parts>,
    cases: Vec<Case>,
}

/// What differs between the `tokenizer.json` of the pre-tokenizers.
#[derive(Deserialize)]
struct Parts {
    normalizer: Value,
    pre_tokenizer: Value,
    ignore_merges: bool,
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

impl Vocabulary {
    fn merges(&self) -> Vec<String> {
        let pairs = self.tokens[self.first_merged..].iter().zip(&self.splits);
        pairs
            .map(|(token, &split)| {
                let (at, _) = token.char_indices().nth(split).expect("a split lies inside its token");
                format!("{} {}", &token[..at], &token[at..])
            })
            .collect()
    }

    /// The same vocabulary as a `tokenizer.json`.
    fn json(&self, parts: &Parts) -> Vec<u8> {
        let vocab: Map<String, Value> =
            self.tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
        let added = |&id: &usize| {
            json!({
                "id": id, "content": self.tokens[id], "special": true, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            })
        };
        let file = json!({
            "version": "1.0",
            "added_tokens": self.special.iter().map(added).collect::<Vec<_>>(),
            "normalizer": parts.normalizer,
            "pre_tokenizer": parts.pre_tokenizer,
            "post_processor": null,
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false, "byte_fallback": false,
                "ignore_merges": parts.ignore_merges, "vocab": vocab, "merges": self.merges(),
            },
        });
        serde_json::to_vec(&file).expect("values can be written")
    }
}

fn smollm2(pre: &str) -> Tokenizer {
    let vocabulary: Vocabulary = golden("vocab.json");
    let merges = vocabulary.merges();
    let special = |id| if vocabulary.special.contains(&id) { 3 } else { 1 };
    let tokenizer = Tokenizer::bpe(BpeMetadata {
        pre: Some(pre),
        tokens: vocabulary.tokens.iter().map(String::as_str),
        token_types: (0..vocabulary.tokens.len()).map(special),
        merges: merges.iter().map(String::as_str),
        settings: Settings {
            bos: Some(1),
            eos: Some(2),
            unknown: Some(0),
            padding: Some(2),
            add_bos: Some(false),
            add_space_prefix: Some(false),
            ..Settings::default()
        },
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
            let parsed = tokenizer.encode(text, AddSpecial::Yes, ParseSpecial::Yes).unwrap();
            assert_eq!(parsed, ids.parsed, "{pre}, special tokens parsed: {text:?}");
            let plain = tokenizer.encode(text, AddSpecial::No, ParseSpecial::No).unwrap();
            assert_eq!(&plain, ids.plain.as_ref().unwrap_or(&ids.parsed), "{pre}, plain: {text:?}");
        }
    }
}

#[test]
fn a_tokenizer_json_of_the_same_vocabulary_gives_the_same_ids() {
    let golden: Golden = self::golden("case.json");
    let vocabulary: Vocabulary = self::golden("vocab.json");
    for (pre, parts) in &golden.parts {
        let tokenizer = Tokenizer::from_json(&vocabulary.json(parts), &JsonSettings::default()).unwrap();
        // llama.cpp's default is none that a publisher uses: it takes the road through the tokenizers crate.
        for Case { text, ids } in &golden.cases {
            let ids = &ids[pre];
            let parsed = tokenizer.encode(text, AddSpecial::Yes, ParseSpecial::Yes).unwrap();
            assert_eq!(parsed, ids.parsed, "{pre}, special tokens parsed: {text:?}");
            let plain = tokenizer.encode(text, AddSpecial::No, ParseSpecial::No).unwrap();
            assert_eq!(&plain, ids.plain.as_ref().unwrap_or(&ids.parsed), "{pre}, plain: {text:?}");
        }
    }
}

/// `make.py` says what the fields mean.
#[derive(Deserialize)]
struct SentencePiece {
    pieces: Vec<(String, f32, i32)>,
    merges: Vec<(String, String)>,
    cases: Vec<SentencePieceCase>,
}

#[derive(Deserialize)]
struct SentencePieceCase {
    text: String,
    prefixed: Vec<u32>,
    bare: Vec<u32>,
    json_prefixed: Option<Vec<u32>>,
    json_bare: Option<Vec<u32>>,
}

#[test]
fn sentencepiece_ids_equal_its_own_with_and_without_a_space_in_front() {
    let golden: SentencePiece = golden("sentencepiece.json");
    assert!(golden.cases.len() >= 100, "{} cases", golden.cases.len());
    for prefixed in [true, false] {
        let tokenizer = Tokenizer::sentencepiece(SentencePieceMetadata {
            tokens: golden.pieces.iter().map(|(text, ..)| text.as_str()),
            token_types: golden.pieces.iter().map(|&(.., kind)| kind),
            scores: golden.pieces.iter().map(|&(_, score, _)| score),
            settings: Settings { add_space_prefix: Some(prefixed), ..Settings::default() },
        })
        .unwrap();
        for case in &golden.cases {
            let want = if prefixed { &case.prefixed } else { &case.bare };
            let ids = tokenizer.encode(&case.text, AddSpecial::No, ParseSpecial::Yes).unwrap();
            assert_eq!(&ids, want, "prefixed {prefixed}: {:?}", case.text);
            let decoded = tokenizer.decode(&ids, SkipSpecial::No).unwrap();
            assert_eq!(decoded, case.text.replace('\u{2581}', " "), "prefixed {prefixed}");
        }
    }
}

#[test]
fn a_tokenizer_json_made_from_sentencepiece_gives_the_ids_of_tokenizers() {
    let golden: SentencePiece = golden("sentencepiece.json");
    let vocab: Map<String, Value> =
        golden.pieces.iter().enumerate().map(|(id, (text, ..))| (text.clone(), json!(id))).collect();
    let user_defined = golden.pieces.iter().enumerate().filter(|(_, (.., kind))| *kind == 4);
    let added: Vec<Value> = user_defined
        .map(|(id, (text, ..))| json!({"id": id, "content": text, "special": false, "normalized": false}))
        .collect();
    for prefixed in [true, false] {
        let mut steps = vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})];
        if prefixed {
            steps.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
        }
        let file = json!({
            "added_tokens": added,
            "normalizer": {"type": "Sequence", "normalizers": steps},
            "pre_tokenizer": null,
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": u8::from(prefixed), "stop": 0},
            ]},
            "model": {
                "type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
                "vocab": vocab, "merges": golden.merges,
            },
        });
        let tokenizer = Tokenizer::from_json(&serde_json::to_vec(&file).unwrap(), &JsonSettings::default()).unwrap();
        for case in &golden.cases {
            let want = match prefixed {
                true => case.json_prefixed.as_ref().unwrap_or(&case.prefixed),
                false => case.json_bare.as_ref().unwrap_or(&case.bare),
            };
            let ids = tokenizer.encode(&case.text, AddSpecial::No, ParseSpecial::Yes).unwrap();
            assert_eq!(&ids, want, "prefixed {prefixed}: {:?}", case.text);
        }
    }
}

#[test]
fn a_megabyte_of_one_character_is_no_burden_to_sentencepiece() {
    let golden: SentencePiece = golden("sentencepiece.json");
    let tokenizer = Tokenizer::sentencepiece(SentencePieceMetadata {
        tokens: golden.pieces.iter().map(|(text, ..)| text.as_str()),
        token_types: golden.pieces.iter().map(|&(.., kind)| kind),
        scores: golden.pieces.iter().map(|&(_, score, _)| score),
        settings: Settings { add_space_prefix: Some(false), ..Settings::default() },
    })
    .unwrap();
    for unit in ["a", " ", "的", "ab ", "\n", "\u{10ffff}"] {
        let text = unit.repeat((1 << 20) / unit.len());
        let ids = tokenizer.encode(&text, AddSpecial::No, ParseSpecial::Yes).unwrap();
        assert_eq!(tokenizer.decode(&ids, SkipSpecial::No).unwrap(), text, "{unit:?}");
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
                let ids = tokenizer.encode(text, AddSpecial::No, parse).unwrap();
                let decoded = tokenizer.decode(&ids, SkipSpecial::No).unwrap();
                if tokenizer.missing_bytes(text) != 0 {
                    incomplete += 1;
                } else if !NORMALIZING.contains(&pre) {
                    assert_eq!(&decoded, text, "{pre}");
                }
            }
        }
    }
    // Control characters and planes 4 to 14, which SmolLM2 has no bytes for: four texts, twice each.
    assert_eq!(incomplete, 4 * 2 * PRE_TOKENIZERS.len());
}

#[test]
fn a_megabyte_of_one_character_takes_linear_time_and_has_the_reference_count() {
    let tokenizer = smollm2("smollm");
    let count = |text: &str| tokenizer.encode(text, AddSpecial::No, ParseSpecial::Yes).unwrap().len();
    // Counts by tokenizers 0.22.2.
    assert_eq!(count(&"a".repeat(1 << 20)), 262_144);
    assert_eq!(count(&(" ".repeat(1 << 20) + "a")), 16_387);
    for pre in PRE_TOKENIZERS {
        let tokenizer = smollm2(pre);
        for unit in ["a", " ", "\n", "1", "<", "'", "²", "的", " \n", "<|im_start|"] {
            let text = unit.repeat((1 << 15) / unit.len());
            let ids = tokenizer.encode(&text, AddSpecial::No, ParseSpecial::Yes).unwrap();
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
        let ids = tokenizer.encode(&text, AddSpecial::No, ParseSpecial::No).unwrap();
        let mut stream = Detokenizer::new(SkipSpecial::No);
        let mut joined = String::new();
        for &id in &ids {
            joined.push_str(stream.push(&tokenizer, id).unwrap());
        }
        prop_assert_eq!(stream.flush(), "");
        prop_assert_eq!(joined, text);
    });
}

#[test]
fn a_tokenizer_json_that_would_fail_or_take_all_memory_later_is_refused_when_it_is_read() {
    let file = |key: &str, value: serde_json::Value| {
        let mut file = json!({
            "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            ]},
            "model": {"type": "BPE", "vocab": {"h": 0, "e": 1, "he": 2}, "merges": ["h e"]},
        });
        *file.pointer_mut(key).unwrap() = value;
        Tokenizer::from_json(&serde_json::to_vec(&file).unwrap(), &JsonSettings::default())
    };
    // The file itself is taken.
    file("/normalizer", json!({"type": "Lowercase"})).unwrap();
    let replace = |content: &str| json!({"type": "Replace", "pattern": {"String": "h"}, "content": content});
    let thousand = "h".repeat(1000);
    let template = json!({
        "type": "TemplateProcessing", "single": vec![json!({"SpecialToken": {"id": "q", "type_id": 0}}); 50],
        "pair": [], "special_tokens": {"q": {"id": "q", "ids": vec![1; 50], "tokens": vec!["e"; 50]}},
    });
    let model = |more: serde_json::Value| {
        let mut model = json!({"type": "BPE", "vocab": {"h": 0, "e": 1, "he": 2}, "merges": ["h e"]});
        model.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        model
    };
    let lowercase =
        json!({"type": "Sequence", "normalizers": [replace("hh"), replace(&thousand), {"type": "Lowercase"}]});
    for (key, value, want) in [
        ("/normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "!!"}), "Precompiled"),
        ("/normalizer", replace(&thousand), "64 times"),
        ("/normalizer", lowercase, "64 times"),
        ("/pre_tokenizer", json!({"type": "FixedLength", "length": 0}), "FixedLength"),
        ("/post_processor", template, "more than 64 tokens"),
        ("/model", model(json!({"dropout": 0.5})), "dropout of 0.5"),
        ("/model", model(json!({"continuing_subword_prefix": "##########"})), "continuing_subword_prefix"),
        ("/model", json!({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}), "unknown token"),
    ] {
        let error = file(key, value).expect_err(want).to_string();
        assert!(error.contains(want) && !error.contains('\n') && error.len() < 400, "{want}: {error}");
    }
}
