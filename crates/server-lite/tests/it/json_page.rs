//! `docs/json.md` names every key that a script may meet.

use crate::{Folder, golden, golden_folder, run, run_ids};
use serde_json::Value;
use std::{collections::BTreeSet, fs};

/// Paths of the values in `value`, `[]` for the items of a list of objects.
fn keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                keys(value, &if path.is_empty() { key.clone() } else { format!("{path}.{key}") }, found);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            items.iter().for_each(|item| keys(item, &format!("{path}[]"), found));
        }
        _ => {
            found.insert(path.to_owned());
        }
    }
}

#[test]
fn the_page_names_every_key_and_column_and_no_other() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let folder = Folder::new();
    let page = fs::read_to_string(golden_folder().unwrap().join("../../docs/json.md")).unwrap();
    let model = golden.model.to_str().unwrap();
    let (trace, csv) = (folder.arg("trace.csv"), folder.arg("plan.csv"));
    let of_json = |value: &Value| {
        let mut found = BTreeSet::new();
        keys(value, "", &mut found);
        found
    };
    let of_csv = |path: &str| {
        let text = fs::read_to_string(path).unwrap();
        text.lines().next().unwrap().split(',').map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let ran = run_ids(&folder, &golden.model, &golden.ids, &["--json", "-n", "2", "--memory-trace", &trace]).json();
    let answer = run(["estimate", "-m", model, "--context", "100", "--json"]).json();
    let plan = run(["plan", "-m", model, "--context", "100", "--json", "--csv", &csv]).json();
    for (title, want) in [
        ("run --json", of_json(&ran)),
        ("estimate --json", of_json(&answer)),
        ("plan --json", of_json(&plan)),
        ("run --memory-trace OUT.csv", of_csv(&trace)),
        ("plan --csv OUT", of_csv(&csv)),
    ] {
        let (_, section) = page.split_once(&format!("## `plimsoll {title}`\n")).unwrap();
        let section = section.split("\n## ").next().unwrap();
        let named = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        let named: BTreeSet<String> = named.map(|(key, _)| key.to_owned()).collect();
        assert_eq!(named, want, "{title}");
    }
}
