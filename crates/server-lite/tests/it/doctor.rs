//! `plimsoll doctor`: what there is, and who says so.

use crate::{Folder, finish, plimsoll, run};
use serde_json::Value;
use std::fs;

fn names(list: &Value, field: &str) -> Vec<String> {
    list.as_array().unwrap().iter().map(|item| item[field].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_machine_is_described() {
    let report = run(["doctor", "--json", "--threads", "3"]).json();
    let sets = &report["cpu"]["instruction_sets"];
    assert_eq!(names(sets, "name"), ["amx", "avx512", "avx2", "neon", "scalar"]);
    for set in sets.as_array().unwrap() {
        let chosen = set["chosen"].as_bool().unwrap();
        assert!(!chosen || set["available"] == true, "{set}");
        assert_eq!(chosen, set["why"] == "", "{set}");
    }
    assert_eq!(sets.as_array().unwrap().iter().filter(|set| set["chosen"] == true).count(), 1);
    assert_eq!(report["cpu"]["threads"], 3);
    assert!(report["devices"].to_string().contains("metal"));
    let available = report["cpu"]["available_threads"].as_u64().unwrap();
    let text = run(["doctor", "--threads", &(available + 1).to_string()]).ok();
    let more = format!("threads: {}, more than the {available} that this process may use", available + 1);
    assert!(text.contains(&more), "{text}");
    let text = run(["doctor", "--threads", "1"]).ok();
    assert!(text.contains(&format!("threads: 1 of {available} that")), "{text}");
    let scalar = run(["doctor", "--json", "--cpu", "scalar"]).json();
    assert_eq!(scalar["cpu"]["instruction_sets"][4]["chosen"], true);
}

#[test]
#[cfg(target_os = "linux")]
fn every_ceiling_has_a_source_and_one_of_them_limits() {
    let memory = run(["doctor", "--json"]).json()["memory"].clone();
    let ceilings = memory["ceilings"].as_array().unwrap();
    assert!(ceilings.iter().any(|ceiling| ceiling["source"] == "RAM of the machine"), "{memory}");
    let limiting: Vec<_> = ceilings.iter().filter(|ceiling| ceiling["limits"] == true).collect();
    assert_eq!(limiting.len(), 1, "{memory}");
    assert_eq!(limiting[0]["momentary"], false);
    assert_eq!(names(&memory["policies"], "policy"), ["safe", "balanced", "aggressive"]);
    let budgets: Vec<u64> =
        memory["policies"].as_array().unwrap().iter().map(|p| p["bytes"].as_u64().unwrap()).collect();
    assert!(budgets.is_sorted() && budgets[2] <= limiting[0]["bytes"].as_u64().unwrap(), "{memory}");
    assert_eq!(memory["budget_bytes"].as_u64(), Some(budgets[1]), "balanced is what a run takes");

    let own = run(["doctor", "--json", "--memory-budget", "3GiB"]).json()["memory"].clone();
    assert_eq!((own["budget_bytes"].as_u64(), own["budget_source"].as_str()), (Some(3 << 30), Some("--memory-budget")));
    let custom = run(["doctor", "--json", "--memory-policy", "custom:1MiB"]).json()["memory"].clone();
    assert_eq!(names(&custom["policies"], "policy"), ["safe", "balanced", "aggressive", "custom:1 MiB"]);
}

#[test]
#[cfg(target_os = "linux")]
fn probes_that_work_say_what_they_read() {
    let report = run(["doctor", "--json"]).json();
    for probe in report["probes"].as_array().unwrap() {
        assert!(probe["works"] == true && probe["bytes"].as_u64().unwrap() > 0, "{probe}");
    }
}

#[test]
fn models_that_are_here_are_listed() {
    let folder = Folder::new();
    let (cache, hub) = (folder.path("cache"), folder.path("hub"));
    fs::create_dir_all(hub.join("models--some-org--a-model/snapshots")).unwrap();
    fs::create_dir_all(cache.join("models/smollm2-135m")).unwrap();
    // Of another length than the whole file: not there yet.
    fs::write(cache.join("models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf"), "half").unwrap();
    let doctor = |more: &[&str]| {
        let mut command = plimsoll(["doctor", "--cache-dir", cache.to_str().unwrap()].iter().chain(more));
        command.env("HF_HUB_CACHE", &hub);
        finish(command)
    };
    let report = doctor(&["--json"]).json();
    assert_eq!(report["cache"]["models"], Value::Array(Vec::new()));
    assert_eq!(report["cache"]["hub_models"][0], "some-org/a-model");
    let whole = fs::File::options().write(true).open(cache.join("models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf"));
    whole.unwrap().set_len(98_362_432).unwrap();
    assert_eq!(names(&doctor(&["--json"]).json()["cache"]["models"], "name"), ["smollm2-135m"]);
    let text = doctor(&[]).ok();
    for part in [
        "processor: ",
        "memory ceilings",
        "budgets by policy",
        "a run would get: ",
        "hf:some-org/a-model",
        "smollm2-135m",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
