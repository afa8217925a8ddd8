//! A control group of the budget and 64 MiB more: what was admitted completes there, and what was not guarded is killed.

use super::long::expect_foreseen;
use super::watch::{Group, models, program};
use crate::{
    Folder,
    model_file::{ModelFile, Setting},
    run,
};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// What the control group allows beyond the budget: the program's code, and what the kernel charges for it.
const BESIDE_BYTES: u64 = 64 * MIB;

/// A llama of one layer whose chunks take much more than its weights, 18 KiB a row where `ffn` is 2,048.
pub(super) fn heavy(ffn: usize) -> ModelFile {
    let (hidden, vocab) = (256, 16);
    let keys = [
        ("context_length", 8_192),
        ("embedding_length", hidden),
        ("block_count", 1),
        ("feed_forward_length", ffn),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 4),
    ];
    let keys = keys.map(|(key, value)| (format!("llama.{key}"), Setting::U32(u32::try_from(value).unwrap())));
    let mut file = ModelFile { keys: keys.to_vec(), tensors: Vec::new() };
    file.set("general.architecture", Setting::Text("llama".to_owned()));
    file.set("llama.attention.layer_norm_rms_epsilon", Setting::F32(1e-5));
    for (name, shape) in [
        ("token_embd.weight", &[vocab, hidden][..]),
        ("output_norm.weight", &[hidden]),
        ("blk.0.attn_norm.weight", &[hidden]),
        ("blk.0.ffn_norm.weight", &[hidden]),
        ("blk.0.attn_q.weight", &[hidden, hidden]),
        ("blk.0.attn_k.weight", &[hidden, hidden]),
        ("blk.0.attn_v.weight", &[hidden, hidden]),
        ("blk.0.attn_output.weight", &[hidden, hidden]),
        ("blk.0.ffn_gate.weight", &[ffn, hidden]),
        ("blk.0.ffn_up.weight", &[ffn, hidden]),
        ("blk.0.ffn_down.weight", &[hidden, ffn]),
    ] {
        file.add(name, shape);
    }
    file
}

/// A prompt for a model, and how it is run.
pub(super) struct Prompt {
    pub(super) model: String,
    ids: String,
    pub(super) tokens: usize,
    kv_dtype: &'static str,
}

impl Prompt {
    /// The tiny model, or the model that the long form names.
    pub(super) fn new(folder: &Folder) -> Self {
        let (model, tokens, kv_dtype) = match models().into_iter().find(|path| path.to_string_lossy().contains("gemma"))
        {
            Some(path) => (path.to_str().unwrap().to_owned(), 32_000, "bf16"),
            None => (folder.file("heavy.gguf", heavy(2_048).bytes()), 6_000, "f32"),
        };
        let ids: Vec<u32> = (0..u32::try_from(tokens).unwrap()).map(|i| i * i % 13 + i % 3).collect();
        Self { model, ids: folder.ids(&ids), tokens, kv_dtype }
    }

    pub(super) fn args<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let args = ["run", "-m", &*self.model, "--token-ids", &*self.ids, "-n", "1", "--json", "--threads", "2"];
        args.into_iter().chain(["--kv-dtype", self.kv_dtype]).chain(more.iter().copied()).collect()
    }

    /// The same prompt, of which only the first `tokens` are left.
    pub(super) fn cut(&self, folder: &Folder, tokens: usize) -> Self {
        let ids = std::fs::read_to_string(&self.ids).unwrap();
        let ids: Vec<u32> = ids.split(' ').take(tokens).map(|id| id.parse().unwrap()).collect();
        Self { model: self.model.clone(), ids: folder.file("cut.txt", words(&ids)), tokens, ..*self }
    }

    /// What `estimate` says of the prompt and one token of answer under a budget of 1 TiB.
    fn estimate(&self, field: &str) -> u64 {
        let tokens = self.tokens.to_string();
        let args = ["estimate", "-m", &*self.model, "--context", &*tokens, "-n", "1", "--json", "--threads", "2"];
        let more = ["--kv-dtype", self.kv_dtype, "--memory-budget", "1TiB"];
        run(args.into_iter().chain(more)).json()[field].as_u64().unwrap()
    }

    /// The plan of the whole prompt in chunks of `rows`, found without running it: all but one row are made up.
    pub(super) fn price(&self, rows: usize) -> u64 {
        let (rows, made_up) = (rows.to_string(), (self.tokens - 1).to_string());
        let args = self.args(&["--chunk", &rows, "--synthetic-kv", &made_up]);
        let mut command = program(&args);
        let json: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
        json["memory"]["planned_peak_bytes"].as_u64().unwrap()
    }
}

fn words(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

fn rows(json: &Value) -> Vec<u64> {
    json["chunks"].as_array().unwrap().iter().map(|chunk| chunk["rows"].as_u64().unwrap()).collect()
}

#[test]
fn the_smallest_budget_that_fits_completes_in_a_group_of_that_size_and_an_unguarded_run_is_killed() {
    let folder = Folder::new();
    let prompt = Prompt::new(&folder);
    let budget_bytes = prompt.estimate("smallest_budget_bytes");
    let Some(group) = Group::new(budget_bytes + BESIDE_BYTES) else { return };
    let budget = budget_bytes.to_string();
    let watched = group.watch(&program(&prompt.args(&["--memory-budget", &budget])));
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    println!(
        "budget {:.1} MiB: peak seen from outside {:.1} MiB",
        mib(budget_bytes),
        mib(watched.peak_anonymous_bytes)
    );
    assert_eq!((watched.signal, group.kills()), (None, 0), "{}", watched.ran.stderr);
    let json = watched.ran.json();
    assert_eq!(rows(&json).iter().sum::<u64>(), prompt.tokens as u64);
    assert!(json["memory"]["planned_peak_bytes"].as_u64().unwrap() <= budget_bytes, "{}", json["memory"]);
    expect_foreseen(json["chunks"].as_array().unwrap());

    let whole = prompt.tokens.to_string();
    let watched = group.watch(&program(&prompt.args(&["--guard", "off", "--chunk", &whole])));
    println!("one chunk of {whole} rows without the guard: signal {:?}, {} kills", watched.signal, group.kills());
    assert_eq!((watched.signal, group.kills()), (Some(9), 1), "{}", watched.ran.stderr);

    // The same chunk with the guard on is refused, by the budget or by the machine.
    for budget in [&*budget, "1TiB"] {
        let watched = group.watch(&program(&prompt.args(&["--chunk", &whole, "--memory-budget", budget])));
        assert_eq!((watched.signal, group.kills()), (None, 1), "budget {budget}");
        watched.ran.fails(3);
    }
}

#[test]
fn budgets_stepped_down_give_smaller_chunks_and_the_same_logits_and_then_a_refusal() {
    let folder = Folder::new();
    let prompt = Prompt::new(&folder);
    // A tenth more than the largest chunk takes, so that more than one budget fits however near the two prices are.
    let (mut budget_bytes, floor_bytes) =
        (prompt.estimate("peak_bytes") / 10 * 11, prompt.estimate("smallest_budget_bytes"));
    let (mut last_rows, mut hashes, mut refusals) = (u64::MAX, Vec::new(), 0);
    while refusals < 2 {
        let Some(group) = Group::new(budget_bytes + BESIDE_BYTES) else { return };
        let budget = budget_bytes.to_string();
        let watched = group.watch(&program(&prompt.args(&["--memory-budget", &budget])));
        assert_eq!((watched.signal, group.kills()), (None, 0), "budget {budget}: {}", watched.ran.stderr);
        if watched.ran.code == Some(3) {
            assert!(budget_bytes < floor_bytes, "{budget} bytes were refused, {floor_bytes} are enough");
            println!("budget {budget}: {}", watched.ran.fails(3).lines().next().unwrap());
            refusals += 1;
        } else {
            assert_eq!(refusals, 0, "{budget} bytes fit, and more did not");
            let json = watched.ran.json();
            let rows = rows(&json)[0];
            println!("budget {budget}: chunks of {rows} rows, {}", json["first_logits_sha256"]);
            assert!(rows <= last_rows, "{rows} rows in less memory than {last_rows}");
            expect_foreseen(json["chunks"].as_array().unwrap());
            last_rows = rows;
            hashes.push(json["first_logits_sha256"].clone());
        }
        budget_bytes = budget_bytes / 20 * 19;
    }
    assert!(hashes.len() >= 2 && hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
}

#[test]
fn made_up_keys_leave_a_row_to_compute() {
    let folder = Folder::new();
    let prompt = Prompt::new(&folder);
    let error = run(prompt.args(&["--synthetic-kv", &prompt.tokens.to_string()])).fails(2);
    assert!(error.contains("--synthetic-kv") && error.contains("the last is to be computed"), "{error}");
    let out = folder.arg("logits");
    let more = ["--synthetic-kv", "5", "--logits-out", &out, "--logit-rows", "all"];
    assert!(run(prompt.args(&more)).fails(2).contains("--synthetic-kv"));
    let cache = folder.path("cache");
    let more = ["--synthetic-kv", "5", "--prefix-cache", cache.to_str().unwrap()];
    assert!(run(prompt.args(&more)).fails(2).contains("--prefix-cache"));
    assert!(!cache.exists(), "refused before anything is kept");
}
