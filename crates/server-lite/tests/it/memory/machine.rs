//! The machine is asked first: what it has no room for is refused with numbers, whatever the budget says, and nothing is killed.

use super::limit::{Prompt, heavy};
use super::named_context;
use super::watch::{Group, program, signal, watch};
use crate::{Folder, golden, model_file::ModelFile, plimsoll, run, run_ids};
use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::Stdio,
};

const MIB: u64 = 1 << 20;

/// Runs three tokens in groups of the given sizes, with budgets that bind, that are the group's limit, and that are far above it. Each is
/// answered or refused. Returns a line of each, that of an answer beginning with "answered".
#[track_caller]
fn outcomes_in_groups(folder: &Folder, model: &str, limits: &[u64]) -> Vec<String> {
    let ids = folder.ids(&[1, 2, 3]);
    let mut outcomes = Vec::new();
    for &limit_bytes in limits {
        let Some(group) = Group::new(limit_bytes) else { continue };
        // Where the program cannot even say its version, nothing is to be learned.
        let started = group.watch(&program(&["--version"]));
        if started.signal.is_some() {
            outcomes.push(format!("{limit_bytes} bytes: the process does not start"));
            continue;
        }
        let limit = limit_bytes.to_string();
        for budget in [None, Some(&*limit), Some("1TiB")] {
            let mut args = vec!["run", "-m", model, "--token-ids", &ids, "-n", "1", "--threads", "2", "--json"];
            args.extend(budget.into_iter().flat_map(|budget| ["--memory-budget", budget]));
            let watched = group.watch(&program(&args));
            assert_eq!((watched.signal, group.kills()), (None, 0), "{limit} bytes, budget {budget:?}");
            if watched.ran.code == Some(0) {
                outcomes.push(format!("answered in {limit} bytes, budget {budget:?}"));
                continue;
            }
            let error = watched.ran.fails(3);
            assert!(error.contains("does not fit: ") && error.contains(" bytes ("), "{error}");
            if budget == Some("1TiB") {
                assert!(error.contains("this machine has ") && error.contains("(cgroup v"), "{error}");
                assert!(!error.contains("--memory-budget"), "a higher budget is no help: {error}");
            }
            outcomes.push(format!("{limit} bytes, budget {budget:?}: {}", error.lines().next().unwrap()));
        }
    }
    outcomes
}

#[test]
fn a_run_in_a_group_of_any_size_is_answered_or_refused_and_never_killed() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", ModelFile::wide(1).bytes());
    let limits = [2, 3, 4, 6, 8, 16, 24].map(|mib| mib * MIB);
    println!("{:#?}", outcomes_in_groups(&folder, &tiny, &limits));
}

#[test]
fn weights_near_the_size_of_the_group_are_read_only_if_there_is_room_for_them() {
    let folder = Folder::new();
    let file = heavy(32_768).bytes();
    let weights_bytes = file.len() as u64;
    let model = folder.file("large.gguf", file);
    let steps = [-10, -6, -2, 0, 2, 4, 6, 8, 10, 14, 64_i64];
    let limits = steps.map(|mib| weights_bytes.checked_add_signed(mib * (1 << 20)).unwrap());
    let outcomes = outcomes_in_groups(&folder, &model, &limits);
    println!("{outcomes:#?}");
    let answered = outcomes.iter().filter(|line| line.starts_with("answered")).count();
    assert!(outcomes.is_empty() || answered >= 3, "there is room in the largest group");
}

/// The overhead is measured after the load; what of it is there before is paid for before.
#[test]
fn a_budget_just_above_the_weights_is_refused_before_they_are_read() {
    let folder = Folder::new();
    let file = heavy(32_768).bytes();
    let budget = (file.len() as u64 + MIB).to_string();
    let model = folder.file("large.gguf", file);
    let ids = folder.ids(&[1, 2, 3]);
    let watched = watch(program(&["run", "-m", &model, "--token-ids", &ids, "--memory-budget", &budget]));
    assert!(watched.peak_anonymous_bytes < 50 * MIB, "{} bytes were touched", watched.peak_anonymous_bytes);
    let error = watched.ran.fails(3);
    assert!(
        error.contains("loading the weights needs ") && error.contains(&format!("the budget is {budget} ")),
        "{error}"
    );
}

/// Nothing stands above the budget for a moment either, such as what loading takes beside the weights.
#[test]
fn the_load_of_a_small_model_stays_within_the_smallest_budget() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let folder = Folder::new();
    let (model, ids) = (golden.model.to_str().unwrap(), folder.ids(&[1, 2, 3]));
    let settings = ["--threads", "2", "--json", "-n", "1"];
    let estimate = ["estimate", "-m", model, "--context", "3"];
    let answer = run(estimate.iter().chain(&settings)).json();
    let budget_bytes = answer["smallest_budget_bytes"].as_u64().unwrap();
    let budget = budget_bytes.to_string();
    let args = ["run", "-m", model, "--token-ids", &ids, "--memory-budget", &budget];
    let mut peak_bytes = 0;
    for _ in 0..10 {
        let watched = watch(program(&[&args[..], &settings].concat()));
        peak_bytes = peak_bytes.max(watched.peak_anonymous_bytes);
        watched.ran.json();
    }
    println!("budget {budget_bytes} bytes, at most {peak_bytes} seen from outside");
    assert!(peak_bytes <= budget_bytes, "{peak_bytes} bytes in a budget of {budget_bytes}");
}

#[test]
fn admission_asks_the_machine_and_names_a_context_that_fits() {
    // A block of 64 tokens of KV is 4 MiB: far above what the resident size differs by between two runs.
    let folder = Folder::new();
    let model = folder.file("wide.gguf", ModelFile::wide(128).bytes());
    let prompt: Vec<u32> = (0..64).map(|i| i % 16).collect();
    let settings = ["--json", "--kv-dtype", "f32", "--threads", "1"];
    let roomy = run_ids(&folder, model.as_ref(), &prompt, &[&settings[..], &["-n", "64"]].concat()).json();
    let two_blocks = roomy["memory"]["planned_peak_bytes"].as_u64().unwrap();
    // A block more and half of one, and 5% that stay free.
    let Some(group) = Group::new((two_blocks + 6 * MIB) / 19 * 20) else { return };
    let ids = folder.ids(&prompt);
    let run = |max_tokens: usize| {
        let max_tokens = max_tokens.to_string();
        let args = ["run", "-m", &model, "--token-ids", &ids, "-n", &max_tokens, "--memory-budget", "1TiB"];
        let watched = group.watch(&program(&[&args[..], &settings].concat()));
        assert_eq!((watched.signal, group.kills()), (None, 0), "{}", watched.ran.stderr);
        watched.ran
    };
    let error = run(1_000).fails(3);
    println!("{error}");
    for part in [
        "the prompt with its answer needs ",
        " more, this machine has ",
        " left of ",
        "(cgroup v",
        "hint: end what else",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let longest = named_context(&error);
    // Whole blocks, and the last token of an answer, which has no keys and values.
    assert!(longest > 64 && longest % 64 == 1, "{error}");
    let fits = run(longest - 64).json();
    assert_eq!(fits["tokens"].as_array().unwrap().len(), longest - 64);
    assert_eq!(named_context(&run(longest - 63).fails(3)), longest);
}

#[test]
fn a_machine_that_fills_up_in_the_middle_ends_the_run_with_numbers_and_no_kill() {
    let folder = Folder::new();
    let prompt = Prompt::new(&folder);
    let limit_bytes = prompt.price(64) / 19 * 20 + 24 * MIB;
    let Some(group) = Group::new(limit_bytes) else { return };
    // The lines of each chunk tell how far it is.
    let trace = folder.arg("trace.csv");
    let args = ["--memory-budget", "1TiB", "--chunk", "64", "--memdbg", "1", "--memory-trace", &trace];
    let args = prompt.args(&args);
    let mut child = group.inside(&program(&args)).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut hog, mut error) = (None, String::new());
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        if line.starts_with("memdbg: chunk 16,") {
            signal(&child, "-STOP");
            hog = Some(group.fill(limit_bytes, limit_bytes / 20 + 3 * MIB / 2));
            signal(&child, "-CONT");
        }
        if !line.starts_with("memdbg: ") {
            error.push_str(&line);
        }
    }
    assert_eq!((child.wait().unwrap().code(), group.kills()), (Some(3), 0), "{error}");
    println!("{error}");
    for part in [
        "the machine is full after ",
        " prompt tokens: 64 more need ",
        "(cgroup v",
        "held here: weights ",
        "keys and values ",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let (_, rest) = error.split_once(" is full after ").unwrap();
    let done: usize = rest.split(' ').next().unwrap().parse().unwrap();
    let longest = named_context(&error);
    assert!((65..done + 64).contains(&longest), "{error}");
    // The trace, which tells how it came to that, is there up to the last chunk.
    let trace = std::fs::read_to_string(trace).unwrap();
    assert_eq!(trace.lines().last().unwrap().split(',').nth(2), Some(&*done.to_string()), "{error}");

    // With the other process still there, a context of that length is computed.
    let cut = prompt.cut(&folder, longest - 1);
    let watched = group.watch(&program(&cut.args(&["--memory-budget", "1TiB"])));
    assert_eq!((watched.ran.code, group.kills()), (Some(0), 0), "{}", watched.ran.stderr);
    drop(hog);
}

#[test]
fn an_answer_that_the_machine_has_no_memory_for_ends_with_what_was_said() {
    let folder = Folder::new();
    let model = folder.file("wide.gguf", ModelFile::wide(128).bytes());
    let ids = folder.ids(&(0..64).map(|i| i % 16).collect::<Vec<u32>>());
    // 33 blocks of 4 MiB, and what else a run takes.
    let limit_bytes = 200 * MIB;
    let Some(group) = Group::new(limit_bytes) else { return };
    let args =
        ["run", "-m", &model, "--token-ids", &ids, "--kv-dtype", "f32", "--threads", "1", "--memory-budget", "1TiB"];
    let args = |max_tokens: &'static str| program(&[&args[..], &["-n", max_tokens]].concat());
    let mut child = group.inside(&args("2000")).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut text, mut hog) = (Vec::new(), None);
    let mut stdout = child.stdout.take().unwrap();
    let mut piece = [0; 256];
    loop {
        let count = stdout.read(&mut piece).unwrap();
        if count == 0 {
            break;
        }
        text.extend_from_slice(&piece[..count]);
        if hog.is_none() && text.iter().filter(|&&byte| byte == b' ').count() >= 270 {
            signal(&child, "-STOP");
            // Less than a block.
            hog = Some(group.fill(limit_bytes, limit_bytes / 20 + 2 * MIB));
            signal(&child, "-CONT");
        }
    }
    let mut error = String::new();
    child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    assert_eq!((child.wait().unwrap().code(), group.kills()), (Some(3), 0), "{error}");
    println!("{error}");
    let text = String::from_utf8(text).unwrap();
    let tokens = text.split_whitespace().count();
    assert!(text.ends_with('\n') && (270..2000).contains(&tokens), "{tokens} tokens: {text}");
    assert!(
        error.contains(&format!("the machine is full after {tokens} tokens of the answer: the next need ")),
        "{error}"
    );
    assert!(error.contains("(cgroup v") && error.contains("held here: weights "), "{error}");
    let longest = named_context(&error);
    assert!((64..=64 + tokens).contains(&longest), "{error}");
    drop(hog);
    let whole = group.watch(&args("2000"));
    assert_eq!(whole.ran.code, Some(0), "{}", whole.ran.stderr);
    assert!(whole.ran.stdout.starts_with(text.trim_end()), "what was said is the beginning of the whole answer");
}

#[test]
fn a_budget_above_the_machine_is_told_once_with_both_numbers() {
    let folder = Folder::new();
    let model = folder.file("tiny.gguf", ModelFile::wide(1).bytes());
    let ids = folder.ids(&[1, 2, 3]);
    let warnings = |budget: &[&str]| {
        let mut command = plimsoll(["run", "-m", &model, "--token-ids", &ids, "-n", "1"].iter().chain(budget));
        let stderr = crate::finish({
            command.env("PLIMSOLL_LOG", "warn");
            command
        })
        .stderr;
        stderr.lines().filter(|line| line.contains("--memory-budget")).map(str::to_owned).collect::<Vec<_>>()
    };
    let told = warnings(&["--memory-budget", "1TiB"]);
    let [line] = &told[..] else { panic!("{told:?}") };
    assert!(line.contains("1099511627776 bytes (1 TiB) is more than this machine allows, "), "{line}");
    assert!(warnings(&["--memory-budget", "64MiB"]).is_empty() && warnings(&[]).is_empty());
}
