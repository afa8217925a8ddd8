//! Every flag has an environment name.

use crate::{Folder, finish, golden, plimsoll, run};
use std::fs;

#[test]
fn help_names_an_environment_variable_for_every_flag() {
    for (command, least) in [("run", 15), ("estimate", 10), ("plan", 12), ("doctor", 6)] {
        // Lines are as wide as the terminal: words alone count.
        let help = run([command, "--help"]).ok().split_whitespace().collect::<Vec<_>>().join(" ");
        let flags = help.split_whitespace().filter(|word| word.starts_with("--") && !word.contains('`'));
        let flags: Vec<&str> = flags.filter(|word| !["--help", "--version"].contains(word)).collect();
        assert!(flags.len() > least, "{command}: {flags:?}");
        for flag in flags {
            let flag = flag.trim_end_matches(|c: char| !c.is_ascii_lowercase());
            let name = format!("[env: PLIMSOLL_{}=", flag[2..].replace('-', "_").to_uppercase());
            assert!(help.contains(&name), "{command} {flag}: no {name}...] in the help");
        }
    }
}

#[test]
fn the_environment_does_what_the_flags_do() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let folder = Folder::new();
    let ids = folder.ids(&golden.ids);
    let outs = ["trace.csv", "hashes.txt", "logits.safetensors"];
    let settings = |outs: [String; 3]| {
        let [trace, hashes, logits] = outs;
        let model = golden.model.to_str().unwrap().to_owned();
        [
            ("model", model),
            ("token-ids", ids.clone()),
            ("max-tokens", "6".to_owned()),
            ("temperature", "0.7".to_owned()),
            ("top-k", "20".to_owned()),
            ("top-p", "0.9".to_owned()),
            ("min-p", "0.01".to_owned()),
            ("typical-p", "0.95".to_owned()),
            ("repetition-penalty", "1.1".to_owned()),
            ("presence-penalty", "-0.5".to_owned()),
            ("frequency-penalty", "0.25".to_owned()),
            ("logit-bias", "5=-1.5,7=2".to_owned()),
            ("stop", "- nothing says this -".to_owned()),
            ("seed", "5".to_owned()),
            ("chunk", "33".to_owned()),
            ("memory-budget", "512MiB".to_owned()),
            ("threads", "1".to_owned()),
            ("kv-dtype", "f16".to_owned()),
            ("device", "cpu".to_owned()),
            ("attention", "reference".to_owned()),
            ("cpu", "scalar".to_owned()),
            ("memory-trace", trace),
            ("trace-hashes", hashes),
            ("logits-out", logits),
            ("logit-rows", "all".to_owned()),
            ("cache-dir", folder.arg("cache")),
        ]
    };
    let flags = settings(outs.map(|out| folder.arg(&format!("flags-{out}"))));
    let args = flags.iter().flat_map(|(flag, value)| [format!("--{flag}"), value.clone()]);
    let by_flags = run(["run".to_owned(), "--json".to_owned(), "--raw".to_owned()].into_iter().chain(args)).json();

    let mut command = plimsoll(["run"]);
    for (flag, value) in settings(outs.map(|out| folder.arg(&format!("env-{out}")))) {
        command.env(format!("PLIMSOLL_{}", flag.replace('-', "_").to_uppercase()), value);
    }
    command.env("PLIMSOLL_JSON", "1").env("PLIMSOLL_RAW", "true");
    let by_env = finish(command).json();

    for field in ["tokens", "first_logits_sha256", "routes", "prompt_tokens"] {
        assert_eq!(by_env[field], by_flags[field], "{field}");
    }
    assert_eq!((&by_env["chunks"][0]["rows"], &by_env["memory"]["budget_bytes"]), (&33.into(), &(512 << 20).into()));
    let routes = by_env["routes"].to_string();
    assert!(routes.contains("reference") && routes.contains("scalar"), "{routes}");
    for out in &outs[1..] {
        let read = |from: &str| fs::read(folder.path(&format!("{from}-{out}"))).unwrap();
        assert_eq!(read("env"), read("flags"), "{out}");
    }
    assert!(folder.path("env-trace.csv").exists());
}

#[test]
fn flags_go_before_the_environment() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let (folder, model) = (Folder::new(), golden.model.to_str().unwrap());
    let ids = folder.ids(&[1, 2]);
    let with = |name: &str, value: &str, args: &[&str]| {
        let mut command = plimsoll(["run", "-m", model, "--token-ids", &ids, "--json"].iter().chain(args));
        command.env(name, value);
        finish(command)
    };
    let ran = with("PLIMSOLL_MAX_TOKENS", "9", &["-n", "2"]).json();
    assert_eq!(ran["tokens"].as_array().unwrap().len(), 2);
    // A prompt of the environment gives way to one of the command line.
    assert_eq!(with("PLIMSOLL_PROMPT", "words", &["-n", "0"]).json()["prompt_tokens"], 2);
    // A flag of the environment can be off.
    for off in ["0", "false", "no", ""] {
        assert_eq!(with("PLIMSOLL_RAW", off, &["-n", "0"]).json()["prompt_tokens"], 2, "{off:?}");
    }
    with("PLIMSOLL_CHUNK", "zero", &[]).fails(2);
    // What `plan` calls its rows with logits has a name of its own: the values are others than those of `run`.
    with("PLIMSOLL_PASS_LOGITS", "none", &["-n", "0"]).json();
    let mut plan = plimsoll(["plan", "-m", model, "--context", "9", "--json"]);
    plan.env("PLIMSOLL_PASS_LOGITS", "none").env("PLIMSOLL_LOGIT_ROWS", "all");
    assert_eq!(finish(plan).json()["logit_rows"], 0);
    let mut both = plimsoll(["run", "-m", model]);
    both.env("PLIMSOLL_PROMPT", "a").env("PLIMSOLL_TOKEN_IDS", &ids);
    assert!(finish(both).fails(2).contains("more than one prompt"));
}

#[test]
fn every_instruction_set_of_this_processor_gives_the_same_bits_under_its_own_name() {
    let Some(golden) = golden("tiny-q8_0") else { return };
    let folder = Folder::new();
    let (model, ids) = (golden.model.to_str().unwrap(), folder.ids(&golden.ids));
    let ran = |set: &str| run(["run", "-m", model, "--token-ids", &ids, "-n", "2", "--json", "--cpu", set]);
    let want = ran("scalar").json();
    for set in ["avx2", "avx512", "amx", "neon"] {
        let found = ran(set);
        if found.code == Some(2) {
            let error = found.fails(2);
            assert!(error.contains(&format!("--cpu {set}: ")), "{error}");
            continue;
        }
        let found = found.json();
        assert_eq!(found["first_logits_sha256"], want["first_logits_sha256"], "{set}");
        assert!(found["routes"].to_string().contains(&format!("linear:{set}")), "{}", found["routes"]);
    }
    assert!(ran("sse9").fails(2).contains("sse9"));
}
