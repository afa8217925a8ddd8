//! Tokenizer and chat template of a folder as `transformers` writes it.

use std::{fs, path::Path};

use plimsoll_models::{
    TextError, TextModel,
    chat::Message,
    tokenizer::{AddSpecial, ParseSpecial, SkipSpecial},
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Byte-level, with `bos` in front by its own template; ids 7 and 8 are named nowhere.
fn tokenizer() -> Value {
    let added = |id: u32, content: &str, special: bool| {
        json!({"id": id, "content": content, "special": special, "normalized": false,
               "single_word": false, "lstrip": false, "rstrip": false})
    };
    json!({
        "added_tokens": [added(0, "<s>", true), added(5, "</s>", true), added(6, "<think>", false), added(9, "<image>", true)],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {"a": 1, "b": 2, "Ġ": 3, "ab": 4}, "merges": [["a", "b"]]},
    })
}

fn folder(files: &[(&str, Value)]) -> TempDir {
    let folder = TempDir::new().expect("a folder for temporary files");
    for (name, content) in files {
        let text = content.as_str().map_or_else(|| content.to_string(), str::to_owned);
        fs::write(folder.path().join(name), text).expect("a temporary file can be written");
    }
    folder
}

fn ids(text: &TextModel, add: AddSpecial) -> Vec<u32> {
    text.tokenizer.encode("ab a<think></s>", add, ParseSpecial::Yes).expect("our tokenizers do not give up")
}

fn rendered(text: &TextModel) -> String {
    let template = text.template.as_ref().expect("there is a template");
    template.render(&[Message::new("user", "u")], true).expect("it renders")
}

#[test]
fn a_tokenizer_json_alone_is_enough() {
    let folder = folder(&[("tokenizer.json", tokenizer())]);
    let text = TextModel::from_folder(folder.path(), &[], None).unwrap();
    assert!(text.template.is_none());
    assert_eq!(ids(&text, AddSpecial::Yes), [0, 4, 3, 1, 6, 5], "its own template puts bos in front");
    assert_eq!(ids(&text, AddSpecial::No), [4, 3, 1, 6, 5]);
    assert_eq!(text.tokenizer.decode(&[0, 4, 6, 5], SkipSpecial::Yes).unwrap(), "ab<think>");
    assert_eq!((text.tokenizer.vocab_size(), text.tokenizer.bos()), (10, None));
}

#[test]
fn the_configuration_names_tokens_and_decides_what_is_added() {
    let config = json!({
        "bos_token": "<s>", "eos_token": {"content": "</s>", "__type": "AddedToken"}, "add_bos_token": false, "add_eos_token": true,
        "added_tokens_decoder": {"7": {"content": "<x>", "special": true}, "6": {"content": "ignored", "special": true}},
        "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
    });
    let folder = folder(&[("tokenizer.json", tokenizer()), ("tokenizer_config.json", config)]);
    let text = TextModel::from_folder(folder.path(), &[2], None).unwrap();
    assert_eq!(ids(&text, AddSpecial::Yes), [4, 3, 1, 6, 5, 5]);
    assert_eq!(text.tokenizer.special_id("<x>"), Some(7));
    assert_eq!((text.tokenizer.bos(), text.tokenizer.eos()), (Some(0), Some(5)));
    assert_eq!(text.tokenizer.end_ids(), [2, 5], "those of the generation configuration, too");
    assert_eq!(rendered(&text), "<s>u</s>");
}

/// Some editors put one before every text that they save.
#[test]
fn a_mark_of_utf_8_before_a_file_is_no_part_of_it() {
    let marked = |text: String| Value::from(format!("\u{feff}{text}"));
    let config = json!({"bos_token": "<s>", "eos_token": "</s>"});
    let folder = folder(&[
        ("tokenizer.json", marked(tokenizer().to_string())),
        ("tokenizer_config.json", marked(config.to_string())),
        ("special_tokens_map.json", marked(config.to_string())),
        ("chat_template.jinja", marked("{{ messages[0].content }}".to_owned())),
    ]);
    let text = TextModel::from_folder(folder.path(), &[], None).unwrap();
    assert_eq!((text.tokenizer.bos(), text.tokenizer.eos()), (Some(0), Some(5)));
    assert_eq!(rendered(&text), "u");
}

#[test]
fn a_template_file_counts_more_than_the_configuration_and_default_is_the_name_of_the_plain_one() {
    let several =
        json!({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]});
    let map = json!({"bos_token": "<s>"});
    let mut files =
        vec![("tokenizer.json", tokenizer()), ("tokenizer_config.json", several), ("special_tokens_map.json", map)];
    let read = |files: &[(&str, Value)]| {
        let folder = folder(files);
        rendered(&TextModel::from_folder(folder.path(), &[], None).unwrap())
    };
    assert_eq!(read(&files), "d");
    files.push(("chat_template.json", json!({"chat_template": "j{{ bos_token }}"})));
    assert_eq!(read(&files), "j<s>");
    files.push(("chat_template.jinja", json!("x")));
    assert_eq!(read(&files), "x");
}

#[test]
fn the_vocabulary_is_cut_or_filled_up_to_the_models_table() {
    let folder = folder(&[("tokenizer.json", tokenizer())]);
    let cut = TextModel::from_folder(folder.path(), &[], Some(9)).unwrap().tokenizer;
    assert_eq!((cut.vocab_size(), cut.special_id("<image>")), (9, None));
    let filled = TextModel::from_folder(folder.path(), &[], Some(64)).unwrap().tokenizer;
    assert_eq!(filled.vocab_size(), 64);
    assert_eq!(filled.decode(&[63, 4, 8], SkipSpecial::No).unwrap(), "ab", "rows without a token have no text");
}

#[test]
fn faulty_folders_are_refused_in_one_line_that_names_the_file() {
    let check = |files: &[(&str, Value)], end_ids: &[u32], want: &str| {
        let folder = folder(files);
        let error = TextModel::from_folder(folder.path(), end_ids, None).unwrap_err().to_string();
        assert!(error.contains(want), "{error:?} should say {want:?}");
        assert!(!error.contains('\n') && error.len() < 600, "{error}");
    };
    let with = |key: &str, value: Value| {
        let mut file = tokenizer();
        file[key] = value;
        ("tokenizer.json", file)
    };
    check(&[], &[], "has no tokenizer.json; token ids can be given instead of text");
    check(&[("tokenizer.model", json!("x"))], &[], "only a tokenizer.model");
    check(&[("tokenizer.json", json!("{"))], &[], "tokenizer.json: EOF");
    check(&[("tokenizer.json", json!("[".repeat(100_000)))], &[], "tokenizer.json: ");
    check(&[("tokenizer.json", json!({}))], &[], "missing field `model`");
    check(&[with("decoder", json!({"type": "WordPiece"}))], &[], "decoder WordPiece is not supported");
    check(&[with("decoder", json!(null))], &[], "decoder none is not supported");
    check(&[with("post_processor", json!({"type": "BertProcessing"}))], &[], "post-processor BertProcessing");
    let model = json!({"type": "BPE", "vocab": {"a": 1, "b": 2}, "merges": [["a", "b"]]});
    check(&[with("model", model)], &[], "merge 0 (\"a b\") names or makes a token that the vocabulary does not have");
    check(
        &[with("model", json!({"type": "BPE", "vocab": {"a": 4_000_000_000_u32}}))],
        &[],
        "the vocabulary is too large",
    );
    check(
        &[with("model", json!({"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]}))],
        &[],
        "is not two tokens separated",
    );
    check(&[with("model", json!({"type": "BPE", "vocab": {"a": 0}, "merges": [["a"]]}))], &[], "a merge of 1 parts");
    check(&[("tokenizer.json", tokenizer())], &[10], "eos token id 10 is past the vocabulary of 10 tokens");
    let config = json!({"add_eos_token": true});
    check(&[("tokenizer.json", tokenizer()), ("tokenizer_config.json", config)], &[], "names no eos token");
    check(
        &[("tokenizer.json", tokenizer()), ("tokenizer_config.json", json!("{}}"))],
        &[],
        "tokenizer_config.json: trailing",
    );
    check(&[("tokenizer.json", tokenizer()), ("chat_template.jinja", json!("{% if %}"))], &[], "chat template, line 1");
    let missing = TextModel::from_folder(Path::new("/nonexistent"), &[], None).unwrap_err();
    assert!(matches!(missing, TextError::NoTokenizer { .. }), "{missing}");
}

#[test]
fn other_kinds_of_tokenizers_are_left_to_the_tokenizers_crate() {
    // Unigram: no byte pairs at all.
    let mut file = tokenizer();
    file["model"] = json!({"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁a", -1.0], ["a", -2.0], ["b", -2.5], ["▁", -3.0], ["ab", -2.0]]});
    file["pre_tokenizer"] = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    file["decoder"] = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    file["post_processor"] = json!(null);
    file["added_tokens"] = json!([{"id": 6, "content": "</s>", "special": true, "normalized": false,
        "single_word": false, "lstrip": false, "rstrip": false}]);
    let folder = folder(&[("tokenizer.json", file)]);
    let tokenizer = TextModel::from_folder(folder.path(), &[6], None).unwrap().tokenizer;
    let ids = tokenizer.encode("ab a</s>", AddSpecial::Yes, ParseSpecial::Yes).unwrap();
    assert_eq!(ids, [1, 3, 1, 6]);
    assert_eq!(tokenizer.decode(&ids, SkipSpecial::Yes).unwrap(), "ab a");
    assert!(!tokenizer.encode("</s>", AddSpecial::Yes, ParseSpecial::No).unwrap().contains(&6));
}

#[test]
fn what_is_no_regular_file_is_refused_and_not_waited_for() {
    for name in [
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "chat_template.json",
    ] {
        let refused = |make: &dyn Fn(&Path) -> bool| {
            let folder = folder(&[("tokenizer.json", tokenizer())]);
            let path = folder.path().join(name);
            let _ = fs::remove_file(&path);
            if !make(&path) {
                return;
            }
            // In a thread of its own: a reader that waits for the pipe's other end would wait for ever.
            let (sender, receiver) = std::sync::mpsc::channel();
            let read = folder.path().to_owned();
            std::thread::spawn(move || sender.send(TextModel::from_folder(&read, &[], None).map(drop)));
            let result = receiver.recv_timeout(std::time::Duration::from_secs(30)).expect("it does not wait");
            let text = result.unwrap_err().to_string();
            assert!(text.contains(name) && text.contains("not a regular file") && !text.contains('\n'), "{text}");
        };
        refused(&|path| fs::create_dir(path).is_ok());
        // Where there is no such program, the folder has to do.
        #[cfg(unix)]
        refused(&|path| std::process::Command::new("mkfifo").arg(path).status().is_ok_and(|status| status.success()));
    }
}

#[test]
fn one_id_far_beyond_the_others_does_not_take_memory() {
    let with_last = |last: u32| {
        let mut file = tokenizer();
        file["added_tokens"] = json!([]);
        file["post_processor"] = json!(null);
        file["pre_tokenizer"] = json!(null);
        file["decoder"] = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false});
        file["model"] = json!({"type": "WordLevel", "unk_token": "b", "vocab": {"a": 0, "b": last}});
        let folder = folder(&[("tokenizer.json", file)]);
        TextModel::from_folder(folder.path(), &[], None)
    };
    assert_eq!(with_last(90_000).unwrap().tokenizer.vocab_size(), 90_001);
    for last in [100_002, i32::MAX as u32, u32::MAX] {
        let text = with_last(last).unwrap_err().to_string();
        let tokens = u64::from(last) + 1;
        assert_eq!(text, format!("the vocabulary is too large: {tokens} tokens, 2 bytes of text"));
    }
}
