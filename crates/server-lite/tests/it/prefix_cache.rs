//! `--prefix-cache`: a prompt's beginning from files, with the bits of a computation.

use crate::{Folder, finish, golden, plimsoll, run_ids};
use serde_json::Value;
use std::{fs, path::Path};

/// What must not change.
fn result(json: &Value) -> (Value, Value) {
    (json["first_logits_sha256"].clone(), json["tokens"].clone())
}

/// Blocks on disk are used by every later build of the same contract, so a build with other bits must have another one.
#[test]
fn the_bits_are_those_of_the_contract() {
    let pinned = [
        ("tiny-q8_0", "bf16", "97a3b5862ebb4c4435d173e1f157aff83664b20b55f24f46401f1dc49ef15260"),
        ("tiny-gemma3-softcap", "f32", "71323d30fc73210535f792c0504841dd30f505a85edc2b3a8be3742d9b4aed7b"),
        ("tiny-qwen3_next", "f16", "12ec0aa38a1e6237b8bfa9b7b7da65acea0a44b006969a1d949365b66f4cdfd1"),
    ];
    for (name, dtype, want) in pinned {
        let Some(golden) = golden(name) else { return };
        let ids: Vec<u32> = golden.ids.iter().cycle().copied().take(200).collect();
        let args = ["--json", "-n", "1", "--kv-dtype", dtype];
        let got = run_ids(&Folder::new(), &golden.model, &ids, &args).json();
        assert_eq!(
            got["first_logits_sha256"],
            want,
            "{name}, {dtype}: other bits need another CONTRACT_VERSION than {}, and their hash here",
            plimsoll_models::CONTRACT_VERSION
        );
    }
}

#[test]
fn a_later_run_reads_what_an_earlier_one_computed() {
    // A state of the last is as long as keys and values of more than a block: there is one every 128 tokens.
    for (name, half) in [("tiny-gqa-6x2", 192), ("tiny-gemma3", 192), ("tiny-qwen3_next", 128)] {
        let Some(golden) = golden(name) else { return };
        let ids: Vec<u32> = golden.ids.iter().cycle().copied().take(300).collect();
        let other: Vec<u32> = ids[..200].iter().chain(ids[..90].iter().rev()).copied().collect();
        let folder = Folder::new();
        let cache = folder.arg("cache");
        let plain = ["--json", "-n", "4", "--chunk", "64"];
        let cached = [&plain[..], &["--prefix-cache", &cache]].concat();
        let run = |ids: &[u32], args: &[&str]| run_ids(&folder, &golden.model, ids, args).json();
        for (prompt, from_cache) in [(&ids, 0), (&ids, 256), (&other, half), (&other, 256)] {
            let (want, got) = (run(prompt, &plain), run(prompt, &cached));
            assert_eq!(got["prefill"]["cached_tokens"], from_cache, "{name}");
            assert_eq!(got["prefill"]["tokens"], prompt.len() - from_cache, "{name}");
            assert_eq!(result(&got), result(&want), "{name}");
        }
        // Another KV type has other blocks; all rows are computed where all are asked for.
        let f32 = [&cached[..], &["--kv-dtype", "f32"]].concat();
        assert_eq!(run(&ids, &f32)["prefill"]["cached_tokens"], 0, "{name}");
        let out = folder.arg("out.safetensors");
        let all = [&cached[..], &["--logits-out", &out, "--logit-rows", "all"]].concat();
        assert_eq!(run(&ids, &all)["prefill"]["cached_tokens"], 0, "{name}");
    }
}

#[test]
fn what_a_hybrid_prompt_finds_does_not_depend_on_how_the_first_one_was_cut() {
    let Some(golden) = golden("tiny-qwen3_next") else { return };
    let ids: Vec<u32> = golden.ids.iter().cycle().copied().take(700).collect();
    let other: Vec<u32> = ids[..600].iter().chain(ids[..90].iter().rev()).copied().collect();
    let folder = Folder::new();
    let want = run_ids(&folder, &golden.model, &other, &["--json", "-n", "4"]).json();
    for chunk in ["7", "64", "100", "512", "700", "auto"] {
        let cache = folder.arg(&format!("cache-{chunk}"));
        let run = |ids: &[u32], chunk: &str| {
            let args = ["--json", "-n", "4", "--chunk", chunk, "--prefix-cache", &cache];
            run_ids(&folder, &golden.model, ids, &args).json()
        };
        run(&ids, chunk);
        let got = run(&other, "auto");
        assert_eq!(got["prefill"]["cached_tokens"], 512, "chunks of {chunk}");
        assert_eq!(result(&got), result(&want), "chunks of {chunk}");
    }
}

#[test]
fn a_damaged_file_is_named_once_and_changes_no_result() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let ids: Vec<u32> = golden.ids.iter().cycle().copied().take(300).collect();
    let folder = Folder::new();
    let args = ["--json", "-n", "4", "--prefix-cache", &folder.arg("cache")];
    let want = run_ids(&folder, &golden.model, &ids, &args).json();
    let files: Vec<_> = fs::read_dir(folder.path("cache")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 4);
    for path in &files {
        let mut bytes = fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 16;
        fs::write(path, bytes).unwrap();
    }
    let file = folder.ids(&ids);
    let mut command =
        plimsoll(["run", "-m", golden.model.to_str().unwrap(), "--token-ids", &file, "--json", "-n", "4"]);
    command.env("PLIMSOLL_PREFIX_CACHE", folder.path("cache")).env("PLIMSOLL_LOG", "warn");
    let ran = finish(command);
    let warned = ran.stderr.lines().filter(|line| line.contains("its checksum is wrong")).count();
    assert_eq!((ran.code, warned), (Some(0), 1), "{}", ran.stderr);
    let got: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((result(&got), &got["prefill"]["cached_tokens"]), (result(&want), &Value::from(0)));
    // Each run drops the first damaged file that it comes to, and writes it anew.
    for cached in [64, 128, 192, 256] {
        let got = run_ids(&folder, &golden.model, &ids, &args).json();
        assert_eq!((result(&got), &got["prefill"]["cached_tokens"]), (result(&want), &Value::from(cached)));
    }
}

#[test]
fn a_folder_in_memory_is_warned_of() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let (folder, shm) = (Folder::new(), Path::new("/dev/shm"));
    let ids = folder.ids(&golden.ids);
    let warnings = |cache: &Path| {
        let model = golden.model.to_str().unwrap();
        let mut command =
            plimsoll(["run", "-m", model, "--token-ids", &ids, "-n", "1", "--prefix-cache-limit", "1MiB"]);
        command.env("PLIMSOLL_PREFIX_CACHE", cache).env("PLIMSOLL_LOG", "warn");
        let ran = finish(command);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran.stderr.lines().filter(|line| line.contains("1048576 bytes that no budget counts")).count()
    };
    if plimsoll_memguard::is_in_memory(shm) {
        let cache = tempfile::tempdir_in(shm).unwrap();
        assert_eq!(warnings(cache.path()), 1);
    } else {
        println!("not run: /dev/shm is no memory here");
    }
    let on_disk = folder.arg("cache");
    let disk = Path::new(&on_disk);
    fs::create_dir(disk).unwrap();
    if !plimsoll_memguard::is_in_memory(disk) {
        assert_eq!(warnings(disk), 0);
    }
}

#[test]
fn a_folder_that_cannot_be_made_is_refused() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let folder = Folder::new();
    let file = folder.file("taken", "a file");
    let below = format!("{file}/cache");
    // Long before the load: the model is not even looked for.
    for path in [&file, &below] {
        let error = run_ids(&folder, "no-such-model".as_ref(), &golden.ids, &["--prefix-cache", path]).fails(2);
        assert!(
            error.contains("--prefix-cache") && error.contains("taken") && error.contains("is no folder"),
            "{error}"
        );
    }
}

#[test]
fn a_limit_below_what_a_prompt_can_go_on_from_is_refused_with_both_numbers() {
    for name in ["tiny-gqa-6x2", "tiny-gemma3", "tiny-qwen3_next"] {
        let Some(golden) = golden(name) else { return };
        let ids: Vec<u32> = golden.ids.iter().cycle().copied().take(130).collect();
        let folder = Folder::new();
        let run = |limit: &str| {
            let args = [
                "--json",
                "-n",
                "1",
                "--chunk",
                "64",
                "--prefix-cache",
                &folder.arg("cache"),
                "--prefix-cache-limit",
                limit,
            ];
            run_ids(&folder, &golden.model, &ids, &args)
        };
        let error = run("100").fails(2);
        assert!(error.contains("--prefix-cache-limit 100 bytes"), "{error}");
        assert!(!folder.path("cache").exists(), "refused before anything is kept");
        let needed: u64 = error.split_once(" takes ").unwrap().1.split(',').next().unwrap().parse().unwrap();
        run(&(needed - 1).to_string()).fails(2);
        // At the border it is kept, and nothing else, and the next run goes on from it.
        run(&needed.to_string()).json();
        let files = fs::read_dir(folder.path("cache")).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
        assert_eq!(files.sum::<u64>(), needed, "{name}");
        assert!(run(&needed.to_string()).json()["prefill"]["cached_tokens"].as_u64().unwrap() >= 64, "{name}");
    }
}
