//! Plan, count and system agree: the plan is what the process takes, seen from outside of it.

use super::watch::{models, program, watch};
use crate::{Folder, golden, golden_folder};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
};

const MIB: u64 = 1 << 20;

/// One run: rows of a chunk that follows `kv_len` tokens whose keys and values are made up.
#[derive(Debug, Clone, Copy)]
struct Case {
    rows: usize,
    kv_len: usize,
    kv_dtype: &'static str,
}

const BASE: Case = Case { rows: 64, kv_len: 1_000, kv_dtype: "bf16" };
const ROWS: [usize; 5] = [1, 7, 64, 512, 2_048];
const LENGTHS: [usize; 4] = [0, 1_000, 8_000, 32_000];
const DTYPES: [&str; 3] = ["f32", "f16", "bf16"];

/// One axis at a time from the base.
fn star() -> Vec<Case> {
    let rows = ROWS.map(|rows| Case { rows, ..BASE });
    let lengths = LENGTHS.map(|kv_len| Case { kv_len, ..BASE });
    let dtypes = DTYPES.map(|kv_dtype| Case { kv_dtype, ..BASE });
    rows.into_iter().chain(lengths).chain(dtypes).collect()
}

fn matrix() -> Vec<Case> {
    let of = |rows| move |kv_len| DTYPES.map(|kv_dtype| Case { rows, kv_len, kv_dtype });
    ROWS.into_iter().flat_map(|rows| LENGTHS.into_iter().flat_map(of(rows))).collect()
}

fn bytes(json: &Value, name: &str) -> u64 {
    json["memory"][name].as_u64().unwrap_or_else(|| panic!("{name}: {}", json["memory"]))
}

/// Runs the case and returns a line of figures, with what is wrong with them at its end.
fn check(folder: &Folder, model: &Path, case: Case) -> (String, Vec<&'static str>) {
    let Case { rows, kv_len, kv_dtype } = case;
    let ids: Vec<u32> = (0..u32::try_from(rows + kv_len).unwrap()).map(|i| i * 7 % 11).collect();
    let (ids, chunk, synthetic) = (folder.ids(&ids), rows.to_string(), kv_len.to_string());
    let model_arg = model.to_str().unwrap();
    let settings = ["--json", "--threads", "2", "-n", "1", "--memory-budget", "16GiB"];
    let args = ["run", "-m", model_arg, "--token-ids", &ids, "--chunk", &chunk, "--synthetic-kv", &synthetic];
    let args = [&args[..], &["--kv-dtype", kv_dtype], &settings].concat();
    // On a busy machine a short run may be over before it was looked at.
    let watched = (0..5).map(|_| watch(program(&args))).find(|watched| watched.readings >= 2);
    let watched = watched.expect("in five runs nobody had the time to look");
    let json = watched.ran.json();
    let (plan, measured) = (bytes(&json, "planned_peak_bytes"), bytes(&json, "measured_peak_bytes"));
    let outside = watched.peak_anonymous_bytes;
    let mut wrong = Vec::new();
    if outside > plan + 48 * MIB {
        wrong.push("the system counts more than plan + 48 MiB");
    }
    if outside + 32 * MIB < plan / 10 * 9 {
        wrong.push("the system counts less than 0.9 plan - 32 MiB");
    }
    if measured > plan {
        wrong.push("more was measured than planned");
    }
    if measured + plan / 50 + MIB < plan {
        wrong.push("less was measured than plan - 2% - 1 MiB");
    }
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    let folder = if model.is_dir() { model } else { model.parent().unwrap() };
    let name = folder.file_name().unwrap().to_string_lossy().into_owned();
    let line = format!(
        "{name}, {rows} rows after {kv_len}, {kv_dtype}: plan {:.2} MiB, measured {:.2}, outside {:.2} ({} readings){}",
        mib(plan),
        mib(measured),
        mib(outside),
        watched.readings,
        wrong.iter().map(|what| format!(" WRONG: {what}")).collect::<String>()
    );
    (line, wrong)
}

/// Every tiny model: its GGUF file, or its folder where it has none.
fn all_tiny() -> Vec<PathBuf> {
    let folders = fs::read_dir(golden_folder().expect("the long form runs in the workspace")).unwrap();
    let folders = folders.map(|entry| entry.unwrap().path());
    let tiny = folders.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("tiny-")));
    let model = |folder: PathBuf| Some(folder.join("model.gguf")).filter(|file| file.is_file()).unwrap_or(folder);
    let mut models: Vec<PathBuf> = tiny.filter(|path| path.is_dir()).map(model).collect();
    models.sort();
    models
}

/// One tiny model of each kind of layer.
fn some_tiny() -> Vec<PathBuf> {
    let names = ["tiny-gqa-6x2", "tiny-gemma3", "tiny-qwen3_next", "tiny-qwen3_moe"];
    names.iter().filter_map(|name| golden(name)).map(|golden| golden.model).collect()
}

#[test]
fn the_plan_is_what_the_system_counts() {
    let real = models();
    let is_short = real.is_empty() || std::env::var_os("PLIMSOLL_MEMORY_CASES").is_some_and(|cases| cases == "star");
    let (cases, tiny) = if is_short { (star(), some_tiny()) } else { (matrix(), all_tiny()) };
    let folder = Folder::new();
    let (mut runs, mut faults) = (0, 0);
    // What takes the longest goes first.
    for model in real.iter().chain(&tiny) {
        for &case in &cases {
            let (line, wrong) = check(&folder, model, case);
            println!("{line}");
            runs += 1;
            faults += wrong.len();
        }
    }
    println!("{runs} runs of {} models, {faults} faults", tiny.len() + real.len());
    assert_eq!(faults, 0, "see the lines above");
}
