//! Exit code 2: what the user can put right.

use crate::{Folder, golden, run, run_ids};

#[test]
fn faults_of_the_command_line_are_one_line_with_hints() {
    for (args, part) in [
        (&[][..], "no command"),
        (&["serv"], "serv"),
        (&["run"], "--prompt"),
        (&["run", "--bogus", "--prompt", "x"], "--bogus"),
        (&["run", "--prompt", "x", "--token-ids", "f"], "one of --prompt"),
        (&["run", "--prompt"], "--prompt"),
        (&["run", "--prompt", "x", "--chunk", "0"], "\"0\" is neither auto nor a number of rows"),
        (&["run", "--prompt", "x", "--chunk", "-3"], "-3"),
        (&["run", "--prompt", "x", "--chunk", "many"], "many"),
        (&["run", "--prompt", "x", "--threads", "0"], "--threads"),
        (&["run", "--prompt", "x", "--threads", "5000"], "5000"),
        (&["run", "--prompt", "x", "--max-tokens", "-1"], "-1"),
        (&["run", "--prompt", "x", "--memory-budget", "1GB"], "1GB"),
        (&["run", "--prompt", "x", "--memory-budget", "-1"], "-1"),
        (&["run", "--prompt", "x", "--memory-budget", "99999999TiB"], "99999999TiB"),
        (&["run", "--prompt", "x", "--kv-dtype", "q8"], "q8"),
        (&["run", "--prompt", "x", "--logit-rows", "some"], "some"),
        (&["run", "--prompt", "x", "--temperature", "-1"], "temperature is -1"),
        (&["run", "--prompt", "x", "--temperature", "nan"], "temperature is NaN"),
        (&["run", "--prompt", "x", "--temperature", "inf"], "temperature is inf"),
        (&["run", "--prompt", "x", "--top-p", "0"], "top_p is 0"),
        (&["run", "--prompt", "x", "--top-p", "1.5"], "top_p is 1.5"),
        (&["run", "--prompt", "x", "--top-p", "nan"], "top_p is NaN"),
        (&["run", "--prompt", "x", "--top-k", "0"], "top_k is 0"),
        (&["run", "--prompt", "x", "--seed", "abc"], "abc"),
        (&["run", "--prompt", "x", "--min-p", "1.5"], "min_p is 1.5"),
        (&["run", "--prompt", "x", "--typical-p", "0"], "typical_p is 0"),
        (&["run", "--prompt", "x", "--repetition-penalty", "-1"], "repetition_penalty is -1"),
        (&["run", "--prompt", "x", "--presence-penalty", "nan"], "presence_penalty is NaN"),
        (&["run", "--prompt", "x", "--frequency-penalty", "inf"], "frequency_penalty is inf"),
        (&["run", "--prompt", "x", "--logit-bias", "5:1"], "\"5:1\" is not a token id"),
        (&["run", "--prompt", "x", "--logit-bias", "5=inf"], "logit_bias of token 5 is inf"),
        (&["run", "--prompt", "x", "--stop", ""], "stop string 0 of 1 is empty"),
        (&["run", "--prompt", "x", "--memory-trace", "t.png"], ".csv or .svg"),
        (&["run", "--prompt", "x", "-m", "no-such-model"], "smollm2-135m"),
        (&["run", "--prompt", "x", "-m", "line\nend"], "line\\nend"),
        (&["run", "--prompt", "x", "-m", "."], "folder"),
        (&["run", "--prompt", ""], "prompt is empty"),
        (&["models", "fetch", "nothing"], "smollm2-135m, gemma3-270m"),
        (&["run", "--prompt", "x", "-m", "hf:repo"], "hf:org/repo[@revision]"),
        (&["run", "--prompt", "x", "-m", "hf:org/repo:../x.gguf"], "not inside"),
        (&["models", "fetch", "hf:org/repo@"], "revision"),
    ] {
        let error = run(args).fails(2);
        assert!(error.contains(part), "{args:?}: {error}");
    }
}

#[test]
fn a_flag_that_means_nothing_without_another_is_refused_and_from_the_environment_it_is_silent() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let folder = Folder::new();
    let ids = folder.ids(&golden.ids);
    let args = ["run", "-m", golden.model.to_str().unwrap(), "--token-ids", &ids, "-n", "1"];
    for (flag, name, value, other) in [
        ("--prefix-cache-limit", "PLIMSOLL_PREFIX_CACHE_LIMIT", "1GiB", "--prefix-cache DIR"),
        ("--logit-rows", "PLIMSOLL_LOGIT_ROWS", "all", "--logits-out OUT"),
    ] {
        let error = run(args.iter().chain(&[flag, value])).fails(2);
        assert!(error.contains(&format!("{flag} means nothing without {other}")), "{error}");
        let mut command = crate::plimsoll(args);
        command.env(name, value);
        crate::finish(command).ok();
    }
}

/// A negative number is the value of the flag before it, and no flag that nobody knows.
#[test]
fn a_negative_number_is_refused_in_the_words_of_its_flag() {
    let folder = Folder::new();
    let config = folder.file("config.json", "{}");
    let run_flags = ["--threads", "--max-tokens", "-n", "--chunk", "--memory-budget", "--top-k", "--seed", "--memdbg"];
    let run_flags = run_flags.into_iter().chain(["--prefix-cache-limit", "--synthetic-kv"]);
    let of_run = run_flags.map(|flag| (vec!["run", "--prompt", "x"], flag));
    let priced = ["--context", "--threads", "--chunk", "--memory-budget"];
    let of_estimate = priced.into_iter().chain(["-n"]).map(|flag| (vec!["estimate", "--config", &config], flag));
    let of_plan = priced.map(|flag| (vec!["plan", "--config", &config], flag));
    for (mut args, flag) in of_run.chain(of_estimate).chain(of_plan).chain([(vec!["doctor"], "--threads")]) {
        args.extend([flag, "-1"]);
        let error = run(&args).fails(2);
        let name = if flag == "-n" { "--max-tokens" } else { flag };
        assert!(error.contains("invalid value '-1' for ") && error.contains(name), "{args:?}: {error}");
        assert!(!error.contains("unexpected argument") && !error.contains("invalid digit"), "{args:?}: {error}");
    }
    let error = run(["estimate", "--config", &config, "--context", "-5"]).fails(2);
    assert!(error.contains("expected a whole number from 1 on"), "{error}");
}

#[test]
fn a_device_that_is_not_supported_is_refused_with_those_that_are() {
    let error = run(["run", "--prompt", "x", "--device", "metal"]).fails(2);
    assert!(error.contains("--device metal") && error.contains("supported: cpu"), "{error}");
}

#[test]
#[cfg(unix)]
fn a_device_is_no_model() {
    let error = run(["run", "--prompt", "x", "-m", "/dev/null"]).fails(2);
    assert!(error.contains("/dev/null") && error.contains(".gguf"), "{error}");
}

#[test]
fn ids_that_are_none_are_named_with_their_place() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let folder = Folder::new();
    let model = golden.model.to_str().unwrap();
    for (content, part) in [
        ("1 2 x3", "word 3 is \"x3\""),
        ("-1", "word 1 is \"-1\""),
        ("4294967296", "4294967296"),
        ("1.5", "1.5"),
        ("", "prompt is empty"),
        (" \n\t", "prompt is empty"),
        ("\u{feff}", "prompt is empty"),
        ("5 97", "token id 97 at place 2 is outside of the vocabulary: the model has ids 0 to 96"),
    ] {
        let file = folder.file("bad.txt", content);
        let error = run(["run", "-m", model, "--token-ids", &file]).fails(2);
        assert!(error.contains(part), "{content:?}: {error}");
    }
}

#[test]
fn prompts_that_are_no_text_are_refused() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let (folder, model) = (Folder::new(), golden.model.to_str().unwrap());
    let binary = folder.file("prompt.bin", b"good so far\xff\xfe");
    let error = run(["run", "-m", model, "--prompt-file", &binary]).fails(2);
    assert!(error.contains(&binary) && error.contains("byte 11"), "{error}");
    let error = run(["run", "-m", model, "--token-ids", &binary]).fails(2);
    assert!(error.contains("byte 11"), "{error}");
    // Standard input is empty here.
    let error = run(["run", "-m", model, "--prompt-file", "-"]).fails(2);
    assert!(error.contains("prompt is empty"), "{error}");
}

#[test]
fn more_tokens_than_positions_are_refused() {
    let Some(golden) = golden("tiny-one-row") else { return };
    for max_tokens in ["4294967295", "18446744073709551615"] {
        let error = run_ids(&Folder::new(), &golden.model, &[1], &["-n", max_tokens]).fails(2);
        assert!(error.contains("more than 4294967295"), "{error}");
    }
}

#[test]
fn files_that_cannot_be_read_are_exit_code_1() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let (folder, model) = (Folder::new(), golden.model.to_str().unwrap());
    let missing = folder.arg("missing.txt");
    for flag in ["--prompt-file", "--token-ids"] {
        let error = run(["run", "-m", model, flag, &missing]).fails(1);
        assert!(error.contains(&missing), "{error}");
    }
}

/// Names of files need not be text.
#[test]
#[cfg(unix)]
fn a_model_path_that_is_not_utf8_is_a_path_like_any_other() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};
    let Some(golden) = golden("tiny-one-row") else { return };
    let folder = Folder::new();
    let (path, ids) = (folder.path("").join(OsStr::from_bytes(b"m\xff.gguf")), folder.ids(&[1, 2]));
    let args = |path: &std::path::Path| {
        let words = ["run", "--token-ids", &ids, "-n", "1", "-m"].map(std::ffi::OsString::from);
        words.into_iter().chain([path.as_os_str().to_owned()]).collect::<Vec<_>>()
    };
    let error = run(args(&path)).fails(2);
    assert!(error.contains("no model \"") && error.contains("m\u{fffd}.gguf"), "{error}");
    std::fs::copy(&golden.model, &path).unwrap();
    run(args(&path)).ok();
    let mut command = crate::plimsoll(["run", "--token-ids", &ids, "-n", "1"]);
    command.env("PLIMSOLL_MODEL", &path);
    crate::finish(command).ok();
}

#[test]
fn an_error_stays_one_short_line_whatever_it_quotes() {
    let long = format!("no\u{202e}such{}", "x".repeat(100_000));
    let error = run(["run", "--prompt", "x", "-m", &long]).fails(2);
    let line = error.lines().next().unwrap();
    assert!(line.chars().count() < 520 && line.contains("characters left out"), "{line}");
    assert!(line.contains("no\\u{202e}such"), "{line}");
}
