//! Flags that choose tokens, and stop strings.

use crate::{Folder, Golden, golden, run, run_ids};
use serde_json::Value;

fn tokens(golden: &Golden, more: &[&str]) -> Vec<u64> {
    let args = [&["--json", "-n", "30"][..], more].concat();
    let json = run_ids(&Folder::new(), &golden.model, &golden.ids, &args).json();
    json["tokens"].as_array().unwrap().iter().map(|token| token.as_u64().unwrap()).collect()
}

#[test]
fn biases_and_penalties_change_what_is_chosen() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let greedy = tokens(&golden, &[]);
    let banned = tokens(&golden, &["--logit-bias", &format!("{}=-inf", greedy[0])]);
    assert!(!banned.contains(&greedy[0]) && banned[0] != greedy[0]);
    let wanted = tokens(&golden, &["--logit-bias", "9=1000"]);
    assert_eq!(wanted, vec![9; wanted.len()]);
    for penalty in [["--presence-penalty", "1000"], ["--frequency-penalty", "1000"]] {
        let mut once = tokens(&golden, &penalty);
        let count = once.len();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), count, "{penalty:?}: a token came twice");
    }
    // Tokens of the prompt count for the repetition penalty, too.
    let bias = format!("{}=1000", golden.ids[0]);
    let said = u64::from(golden.ids[0]);
    assert_eq!(tokens(&golden, &["--logit-bias", &bias])[0], said);
    assert_ne!(tokens(&golden, &["--logit-bias", &bias, "--repetition-penalty", "1000000"])[0], said);
}

#[test]
fn filters_narrow_the_draw_and_a_seed_repeats_it() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let greedy = tokens(&golden, &[]);
    let hot = ["--temperature", "2", "--seed", "3"];
    let with = |more: &[&str]| tokens(&golden, &[&hot[..], more].concat());
    let free = with(&[]);
    assert_ne!(free, greedy);
    assert_eq!(with(&["--min-p", "1"]), greedy, "only the most likely token is as likely as it");
    for more in [["--min-p", "0.5"], ["--typical-p", "0.2"], ["--top-p", "0.2"]] {
        assert_ne!(with(&more), free, "{more:?}");
        assert_eq!(with(&more), with(&more), "{more:?}");
    }
}

#[test]
fn a_bias_past_the_vocabulary_is_refused_before_weights_are_read() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let error =
        run_ids(&Folder::new(), &golden.model, &[1], &["--logit-bias", "97=1", "--memory-budget", "0"]).fails(2);
    assert!(error.contains("token 97") && error.contains("97 tokens"), "{error}");
}

#[test]
fn a_stop_string_ends_the_text_before_it_wherever_tokens_end() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let model = golden.model.to_str().unwrap();
    let args = |more: &[&str]| {
        let common =
            ["run", "-m", model, "--prompt", "the thin thing", "-n", "40", "--temperature", "1.5", "--seed", "4"];
        [&common[..], more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let json = |more: &[&str]| -> Value { run(args(&[&["--json"], more].concat())).json() };
    let whole = json(&[]);
    let text = whole["text"].as_str().unwrap();
    let chars: Vec<char> = text.chars().collect();
    assert!(chars.len() > 20, "{text:?}");
    for (at, length) in [(0, 1), (5, 3), (11, 2), (chars.len() - 4, 4)] {
        let stop: String = chars[at..at + length].iter().collect();
        let want = &text[..text.find(&stop).unwrap()];
        let stopped = json(&["--stop", "never said", "--stop", &stop]);
        assert_eq!(stopped["text"].as_str().unwrap(), want, "{stop:?} of {text:?}");
        assert_eq!(stopped["finish_reason"], "stop");
        let (some, all) = (stopped["tokens"].as_array().unwrap(), whole["tokens"].as_array().unwrap());
        assert_eq!(some[..], all[..some.len()], "the tokens that the stop string came with are kept");
        assert_eq!(run(args(&["--stop", &stop])).ok(), format!("{want}\n"));
    }
    // What could have been the beginning of a stop string comes out at the end.
    let held = format!("{}\u{1}", chars.last().unwrap());
    let ended = json(&["--stop", &held]);
    assert_eq!((&ended["text"], &ended["finish_reason"]), (&whole["text"], &whole["finish_reason"]));
}

#[test]
fn a_stop_string_needs_a_tokenizer() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let mut file = crate::model_file::ModelFile::read(&golden.model);
    file.remove("tokenizer.ggml.tokens");
    let folder = Folder::new();
    let model = folder.file("bare.gguf", file.bytes());
    let error = run_ids(&folder, model.as_ref(), &[1, 2], &["--stop", "x"]).fails(2);
    assert!(error.contains("--stop") && error.contains("tokenizer"), "{error}");
}
