//! Ctrl-C: the run ends cleanly with what was generated.

use crate::{Folder, Ran, golden, plimsoll};
use std::{
    io::Read as _,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(60);

fn interrupt(child: &Child) {
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
}

/// Waits until `ready`, while the program runs.
#[track_caller]
fn wait_until(child: &mut Child, ready: impl Fn() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(child.try_wait().unwrap().is_none(), "the program ended by itself");
        assert!(start.elapsed() < PATIENCE, "nothing happened in {PATIENCE:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn spawn(args: &[&str]) -> Child {
    plimsoll(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[track_caller]
fn finish(child: Child) -> Ran {
    let start = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(start.elapsed() < PATIENCE, "it did not end");
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

#[test]
fn a_prefill_that_is_cancelled_says_how_far_it_came() {
    let Some(golden) = golden("tiny-mha-5") else { return };
    let folder = Folder::new();
    let long: Vec<u32> = golden.ids.iter().copied().cycle().take(150_000).collect();
    let (model, ids, out) = (golden.model.to_str().unwrap(), folder.ids(&long), folder.arg("out/logits"));
    std::fs::create_dir(folder.path("out")).unwrap();
    let (trace, hashes) = (folder.arg("trace.csv"), folder.arg("hashes.txt"));
    let traces = ["--memory-trace", &trace, "--trace-hashes", &hashes];
    let args = ["run", "-m", model, "--token-ids", &ids, "--json", "-n", "1", "--logits-out", &out];
    let mut child = spawn(&[&args[..], &traces].concat());
    // The file of the logits is begun with the prefill.
    let begun = || std::fs::read_dir(folder.path("out")).unwrap().count() > 0;
    wait_until(&mut child, begun);
    interrupt(&child);
    let error = finish(child).fails(1);
    let words: Vec<&str> = error.split_whitespace().collect();
    let (done, total): (usize, usize) = (words[3].parse().unwrap(), words[5].parse().unwrap());
    assert_eq!(error, format!("error: cancelled after {done} of {total} prompt tokens\n"));
    assert!(done < total && total == 150_000, "{error}");
    assert!(!begun(), "half a file of logits is left");
    // What was seen until then is not lost.
    let text = std::fs::read_to_string(trace).unwrap();
    assert!(text.starts_with("pass,rows,kv_len,"), "{text}");
    assert!(std::fs::exists(hashes).unwrap());
}

#[test]
fn a_cancelled_run_leaves_only_whole_files_in_its_prefix_cache() {
    let Some(golden) = golden("tiny-mha-5") else { return };
    let folder = Folder::new();
    let long: Vec<u32> = golden.ids.iter().copied().cycle().take(150_000).collect();
    let (model, ids, cache) = (golden.model.to_str().unwrap(), folder.ids(&long), folder.arg("cache"));
    let count = |extension: &str| {
        let entries = std::fs::read_dir(folder.path("cache")).into_iter().flatten();
        entries.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|of| of == extension)).count()
    };
    let mut child = spawn(&["run", "-m", model, "--token-ids", &ids, "--json", "-n", "1", "--prefix-cache", &cache]);
    wait_until(&mut child, || count("kv") > 3);
    interrupt(&child);
    finish(child).fails(1);
    assert_eq!(count("unfinished"), 0, "half a file is left");
    let run = |args: &[&str]| {
        let short = folder.ids(&long[..1000]);
        finish(spawn(&[&["run", "-m", model, "--token-ids", &short, "--json", "-n", "3"], args].concat())).json()
    };
    let (want, got) = (run(&[]), run(&["--prefix-cache", &cache]));
    assert!(got["prefill"]["cached_tokens"].as_u64().unwrap() >= 3 * 64, "{}", got["prefill"]);
    assert_eq!((&got["first_logits_sha256"], &got["tokens"]), (&want["first_logits_sha256"], &want["tokens"]));
}

#[test]
fn a_decode_that_is_cancelled_reports_what_was_generated() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let folder = Folder::new();
    let (model, ids, out) = (golden.model.to_str().unwrap(), folder.ids(&[1, 2, 3]), folder.arg("logits"));
    let args = [
        "run",
        "-m",
        model,
        "--token-ids",
        &ids,
        "--json",
        "-n",
        "4000000",
        "--temperature",
        "1",
        "--logits-out",
        &out,
    ];
    let mut child = spawn(&args);
    // The file of the logits is put in place when the prefill is done.
    wait_until(&mut child, || folder.path("logits").exists());
    interrupt(&child);
    let json = finish(child).json();
    let count = json["tokens"].as_array().unwrap().len();
    // Sampled text may end by itself, but only ever with the end token.
    assert!(
        count > 0 && json["finish_reason"] == "cancelled" || json["finish_reason"] == "stop",
        "{count}: {}",
        json["finish_reason"]
    );
    // The first token comes from the prompt's logits; an end token is computed and not kept.
    let passes = json["decode"]["tokens"].as_u64().unwrap();
    assert_eq!(passes, count as u64 - u64::from(json["finish_reason"] == "cancelled"));
}

#[test]
fn text_that_was_printed_stays_and_ends_with_a_line_end() {
    let Some(golden) = golden("tiny-gqa-3x1") else { return };
    let folder = Folder::new();
    let (model, ids) = (golden.model.to_str().unwrap(), folder.ids(&golden.ids));
    let mut command = plimsoll(["run", "-m", model, "--token-ids", &ids, "-n", "2000000"]);
    command.env("PLIMSOLL_LOG", "plimsoll=warn").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 1];
    stdout.read_exact(&mut first).unwrap();
    interrupt(&child);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    let ran = finish(child);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let told: Vec<&str> = ran.stderr.lines().filter(|line| line.contains("cancelled")).collect();
    assert!(told.len() == 1 && told[0].contains(" tokens of the answer"), "{told:?}");
    assert!(rest.ends_with('\n'), "{:?}", &rest[rest.len().saturating_sub(40)..]);
}

/// A program that waits for its input is ended by the first Ctrl-C, wherever the input comes from.
#[test]
fn waiting_for_the_prompt_ends_at_once() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let folder = Folder::new();
    let (model, fifo) = (golden.model.to_str().unwrap(), folder.arg("fifo"));
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for (flag, source, shown) in [
        ("--prompt-file", "-", "standard input"),
        ("--token-ids", "-", "standard input"),
        ("--prompt-file", &fifo, &fifo),
        ("--token-ids", &fifo, &fifo),
    ] {
        let mut command = plimsoll(["run", "-m", model, flag, source]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Held open: no end of input comes to its help.
        let _input = child.stdin.take();
        wait_for_handler(&mut child);
        interrupt(&child);
        let error = finish(child).fails(1);
        assert_eq!(error, format!("error: cancelled while reading {shown}\n"));
    }
}

/// Waits until Ctrl-C has been taken over; elsewhere than on Linux nobody tells, and a second is enough for a start.
#[track_caller]
fn wait_for_handler(child: &mut Child) {
    let status = format!("/proc/{}/status", child.id());
    if !std::path::Path::new(&status).exists() {
        thread::sleep(Duration::from_secs(1));
        return;
    }
    wait_until(child, || {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        // SIGINT is number 2: the second bit.
        caught.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_some_and(|mask| mask & 2 != 0)
    });
}
