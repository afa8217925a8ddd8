//! What a run prints: the JSON object, plain text, token ids.

use crate::{
    Folder, finish, golden,
    model_file::{ModelFile, Setting},
    plimsoll, run, run_ids,
};
use serde_json::Value;
use std::{collections::BTreeSet, io::Write, process::Stdio};

#[track_caller]
fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn tokens(json: &Value) -> Vec<u64> {
    json["tokens"].as_array().unwrap().iter().map(|token| token.as_u64().unwrap()).collect()
}

#[test]
fn the_json_object_has_every_field_of_the_contract() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let folder = Folder::new();
    let more = ["--json", "--max-tokens", "9", "--chunk", "40", "--kv-dtype", "f32", "--memory-budget", "1GiB"];
    let json = run_ids(&folder, &golden.model, &golden.ids, &more).json();
    let want =
        "chunks decode finish_reason first_logits_sha256 load memory model prefill prompt_tokens routes text tokens";
    assert_eq!(keys(&json), want.split(' ').collect());
    assert_eq!(json["prompt_tokens"], 65);
    assert_eq!(tokens(&json), golden.greedy[..9].iter().map(|&id| id.into()).collect::<Vec<u64>>());
    assert!(json["text"].is_string() && json["model"].is_string());
    assert_eq!(json["finish_reason"], "length");
    let sum = json["first_logits_sha256"].as_str().unwrap();
    assert!(sum.len() == 64 && sum.bytes().all(|b| b.is_ascii_hexdigit()), "{sum}");
    let chunks = json["chunks"].as_array().unwrap();
    let parts: Vec<_> = chunks.iter().map(|c| (c["start"].as_u64().unwrap(), c["rows"].as_u64().unwrap())).collect();
    assert_eq!(parts, [(0, 40), (40, 25)]);
    for chunk in chunks {
        let want = "charged_bytes footprint_bytes growth_bytes kv_bytes measured_bytes planned_bytes predicted_bytes pressure rows seconds \
                    slack_bytes start unexplained_bytes";
        assert_eq!(keys(chunk), want.split(' ').collect());
        let (planned, measured) = (chunk["planned_bytes"].as_u64().unwrap(), chunk["measured_bytes"].as_u64().unwrap());
        assert!(planned > 0 && measured == planned, "the arena's high water is its plan: {chunk}");
        assert!(chunk["seconds"].as_f64().unwrap() > 0.0);
    }
    assert!(json["load"]["seconds"].as_f64().unwrap() > 0.0);
    assert_eq!(json["prefill"]["cached_tokens"], 0);
    for (part, count, want) in [
        ("prefill", 65, "cached_tokens seconds tokens tokens_per_second"),
        ("decode", 8, "seconds tokens tokens_per_second"),
    ] {
        assert_eq!(keys(&json[part]), want.split(' ').collect());
        assert_eq!(json[part]["tokens"], count, "{part}");
        assert!(
            json[part]["seconds"].as_f64().unwrap() > 0.0 && json[part]["tokens_per_second"].as_f64().unwrap() > 0.0
        );
    }
    let memory = &json["memory"];
    let want = "budget_bytes footprint_peak_bytes kv_bytes measured_peak_bytes overhead_bytes planned_peak_bytes \
                resident_after_load_bytes weights_bytes";
    assert_eq!(keys(memory), want.split(' ').collect());
    let bytes = |name: &str| memory[name].as_u64().unwrap_or_else(|| panic!("{name}: {memory}"));
    assert_eq!(bytes("budget_bytes"), 1 << 30);
    let may_be_unknown = ["footprint_peak_bytes", "resident_after_load_bytes"];
    for name in want.split(' ').filter(|name| cfg!(target_os = "linux") || !may_be_unknown.contains(name)) {
        assert!(bytes(name) > 0, "{name}");
    }
    assert!(bytes("planned_peak_bytes") >= bytes("weights_bytes") + bytes("kv_bytes") + bytes("overhead_bytes"));
    assert!(bytes("planned_peak_bytes") <= bytes("budget_bytes"));
    let routes: Vec<&str> = json["routes"].as_array().unwrap().iter().map(|route| route.as_str().unwrap()).collect();
    assert!(
        routes.iter().any(|r| r.starts_with("attention:")) && routes.iter().any(|r| r.starts_with("linear:")),
        "{routes:?}"
    );
}

#[test]
fn greedy_tokens_are_the_goldens() {
    for name in ["tiny-one-row", "tiny-gqa-3x1", "tiny-mha-5", "tiny-biases", "tiny-rope-yarn-mscale", "tiny-q8_0"] {
        let Some(golden) = golden(name) else { return };
        let steps = golden.greedy_steps;
        let more = ["--json", "--kv-dtype", "f32", "-n", &steps.to_string()];
        let json = run_ids(&Folder::new(), &golden.model, &golden.ids, &more).json();
        let want: Vec<u64> = golden.greedy[..steps].iter().map(|&id| id.into()).collect();
        assert_eq!(tokens(&json), want, "{name}");
    }
}

#[test]
fn an_answer_that_continues_a_text_keeps_its_first_space_and_a_turn_of_a_chat_does_not() {
    let folder = Folder::new();
    let mut file = ModelFile::sentencepiece();
    let plain = folder.file("plain.gguf", file.bytes());
    file.set("tokenizer.chat_template", Setting::Text("{{ messages[0].content }} b".to_owned()));
    let chat = folder.file("chat.gguf", file.bytes());
    // The bias leaves no other token than ` c`.
    let answer = |model: &str, more: &[&str]| {
        let args = ["run", "-m", model, "-n", "3", "--logit-bias", "5=1000", "--json"];
        let json = run(args.iter().chain(more)).json();
        assert_eq!(tokens(&json), [5, 5, 5]);
        (json["prompt_tokens"].as_u64().unwrap(), json["text"].as_str().unwrap().to_owned())
    };
    let prompt = ["--prompt", "a"];
    assert_eq!(answer(&chat, &prompt), (2, "c c c".to_owned()));
    assert_eq!(answer(&chat, &["--prompt", "a", "--raw"]), (2, " c c c".to_owned()));
    assert_eq!(answer(&plain, &prompt), (2, " c c c".to_owned()));
    let ids = folder.ids(&[1, 3]);
    assert_eq!(answer(&chat, &["--token-ids", &ids]), (2, " c c c".to_owned()));
}

#[test]
fn no_tokens_are_generated_where_none_are_wanted() {
    let Some(golden) = golden("tiny-gqa-3x1") else { return };
    let folder = Folder::new();
    let json = run_ids(&folder, &golden.model, &golden.ids, &["--json", "--max-tokens", "0"]).json();
    assert_eq!((&json["tokens"], &json["text"]), (&serde_json::json!([]), &serde_json::json!("")));
    assert_eq!((&json["finish_reason"], &json["decode"]["tokens"]), (&"length".into(), &0.into()));
    assert_eq!(json["prefill"]["tokens"], 7);
    assert_eq!(run_ids(&folder, &golden.model, &golden.ids, &["--max-tokens", "0"]).ok(), "\n");
}

#[test]
fn an_answer_without_limit_ends_with_the_trained_context() {
    let Some(golden) = golden("tiny-mha-5") else { return };
    let json = run_ids(&Folder::new(), &golden.model, &golden.ids, &["--json"]).json();
    let end = json["finish_reason"].as_str().unwrap();
    let count = tokens(&json).len();
    // 700 of 1,024 tokens are the prompt; the end token may come first.
    assert!(end == "length" && count == 324 || end == "stop" && count < 324, "{end} after {count}");
}

#[test]
fn text_goes_in_and_comes_out_the_same_way_from_each_source() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let (folder, model) = (Folder::new(), golden.model.to_str().unwrap());
    let text = "the thin thing\n";
    let file = folder.file("prompt.txt", text);
    let plain = run(["run", "-m", model, "-n", "5", "--prompt", text]).ok();
    assert!(plain.ends_with('\n') && plain.len() > 1, "{plain:?}");
    assert_eq!(run(["run", "-m", model, "-n", "5", "--prompt-file", &file]).ok(), plain);
    let json = run(["run", "-m", model, "-n", "5", "--json", "--prompt", text]).json();
    assert_eq!(format!("{}\n", json["text"].as_str().unwrap()), plain);

    let mut child = plimsoll(["run", "-m", model, "-n", "5", "--prompt-file", "-"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stdout).unwrap()), (Some(0), plain));
}

#[test]
fn a_reader_that_goes_away_is_told_of_in_one_line() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let (folder, model) = (Folder::new(), golden.model.to_str().unwrap().to_owned());
    let ids = folder.ids(&[1, 2, 3]);
    for more in [&["-n", "100000"][..], &["-n", "2", "--json"]] {
        let mut child = plimsoll(["run", "-m", &model, "--token-ids", &ids].iter().chain(more));
        let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.starts_with("error: cannot write to standard output: ") && stderr.lines().count() == 1,
            "{stderr}"
        );
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_device_is_told_of() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let folder = Folder::new();
    let (model, ids) = (golden.model.to_str().unwrap(), folder.ids(&[1, 2, 3]));
    for args in [
        &["run", "-m", model, "--token-ids", &ids, "-n", "2"][..],
        &["run", "-m", model, "--token-ids", &ids, "-n", "2", "--json"],
        &["models", "list"],
        &["--help"],
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = plimsoll(args);
        let output = command.stdout(full).stderr(Stdio::piped()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
        assert!(stderr.starts_with("error: cannot write to standard output: "), "{args:?}: {stderr}");
    }
}

#[test]
fn a_seed_gives_one_text_and_another_seed_another() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let folder = Folder::new();
    let sampled = |seed: &str| {
        let more = ["--json", "-n", "40", "--temperature", "0.8", "--top-k", "50", "--top-p", "0.95", "--seed", seed];
        tokens(&run_ids(&folder, &golden.model, &golden.ids, &more).json())
    };
    assert_eq!(sampled("7"), sampled("7"));
    assert_ne!(sampled("7"), sampled("8"));
}

#[test]
fn models_are_listed_by_short_name() {
    let list = run(["models", "list"]).ok();
    assert!(list.lines().any(|line| line.starts_with("smollm2-135m\tApache-2.0\t98362432 bytes\t8192 ")), "{list}");
    let gemma = "gemma3-270m\tGemma Terms of Use\t253113024 bytes\t32768 tokens of context";
    assert!(list.lines().any(|line| line == gemma), "{list}");
}

#[test]
fn help_and_version_are_printed_and_are_no_errors() {
    let version = run(["--version"]).ok();
    assert_eq!(version, format!("plimsoll {}\n", env!("CARGO_PKG_VERSION")));
    for args in [&["--help"][..], &["run", "--help"], &["help"], &["models", "fetch", "--help"]] {
        assert!(finish(plimsoll(args)).ok().contains("Usage: "), "{args:?}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_warning_that_cannot_be_written_costs_no_answer() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let folder = Folder::new();
    // More tokens than the model was trained for, which it warns of.
    let ids: Vec<u32> = (0..1500).map(|i| i % 60).collect();
    let ids = folder.ids(&ids);
    let args = ["run", "-m", golden.model.to_str().unwrap(), "--token-ids", &ids, "-n", "2", "--json"];
    let mut command = plimsoll(args);
    command.env("PLIMSOLL_LOG", "warn").stderr(std::fs::File::options().write(true).open("/dev/full").unwrap());
    let output = command.stdout(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(tokens(&json).len(), 2);
}
