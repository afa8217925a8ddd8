//! `plimsoll plan`: the timeline of a pass, as the run of it has it.

use crate::{Folder, golden, run, run_ids};
use serde_json::Value;
use std::fs;

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn the_arena_of_a_plan_is_that_of_the_chunk() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let folder = Folder::new();
    let model = golden.model.to_str().unwrap();
    let ids: Vec<u32> = golden.ids.iter().copied().cycle().take(100).collect();
    let ran = run_ids(&folder, &golden.model, &ids, &["--json", "-n", "0", "--chunk", "40", "--threads", "2"]).json();
    for (chunk, logits) in ran["chunks"].as_array().unwrap().iter().zip(["none", "none", "last"]) {
        let [start, rows] = ["start", "rows"].map(|name| number(&chunk[name]));
        let (context, rows) = ((start + rows).to_string(), rows.to_string());
        let args = ["plan", "-m", model, "--context", &context, "--chunk", &rows, "--logit-rows", logits];
        let plan = run(args.iter().chain(&["--threads", "2", "--json"])).json();
        assert_eq!(plan["arena_bytes"], chunk["planned_bytes"], "{context}");
        let steps = plan["steps"].as_array().unwrap();
        let peak = usize::try_from(number(&plan["peak_step"])).unwrap();
        assert_eq!(steps[peak]["arena_bytes"], plan["arena_bytes"], "the arena is full at the peak");
        assert!(peak == 0 || number(&steps[peak - 1]["arena_bytes"]) < number(&plan["arena_bytes"]));
        let live: u64 = plan["peak_live"].as_array().unwrap().iter().map(|live| number(&live["bytes"])).sum();
        assert_eq!(live, number(&steps[peak]["live_bytes"]));
    }
}

#[test]
fn a_table_names_the_largest_steps_and_all_lists_every_one() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let model = golden.model.to_str().unwrap();
    let args = ["plan", "-m", model, "--context", "100"];
    let largest = run(args).ok();
    let steps = number(&run(args.iter().chain(&["--json"])).json()["steps"].as_array().unwrap().len().into());
    assert!(largest.contains(&format!("largest of {steps} steps")), "{largest}");
    assert!(largest.contains("more like it") && largest.contains("full at step "), "{largest}");
    // Steps, and what they made, by the weights that were read.
    let [gate, down] =
        ["linear ffn_gate + ffn_up (layer 0", "linear ffn_down (layer 0"].map(|title| largest.contains(title));
    assert!(gate && down && largest.contains("in the arena then: ") && largest.contains(" (attn_q) "), "{largest}");
    assert!(!largest.contains("less than the pass takes"), "{largest}");
    let small = run(args.iter().chain(&["--memory-budget", "64KiB"])).ok();
    assert!(small.contains("64 KiB   less than the pass takes"), "{small}");
    assert!(largest.lines().all(|line| line == line.trim_end()), "{largest}");
    let all = run(args.iter().chain(&["--all"])).ok();
    assert_eq!(
        all.lines().count() - largest.lines().take_while(|line| !line.contains("steps")).count() - 2,
        usize::try_from(steps).unwrap(),
        "{all}"
    );
}

#[test]
fn the_timeline_is_written_and_drawn() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let folder = Folder::new();
    let (csv, svg) = (folder.arg("plan.csv"), folder.arg("plan.svg"));
    let model = golden.model.to_str().unwrap();
    let args =
        ["plan", "-m", model, "--context", "100", "--csv", &csv, "--svg", &svg, "--json", "--memory-budget", "8MiB"];
    let plan = run(args).json();
    let steps = plan["steps"].as_array().unwrap();
    let text = fs::read_to_string(&csv).unwrap();
    assert_eq!(text.lines().next().unwrap(), "step,op,place,live_bytes,scratch_bytes,arena_bytes,total_bytes");
    assert_eq!(text.lines().count(), 1 + steps.len());
    for (line, step) in text.lines().skip(1).zip(steps) {
        let fields: Vec<&str> = line.split(',').collect();
        assert_eq!(fields.len(), 7, "{line}");
        assert_eq!(fields[1], step["op"]);
        assert_eq!(fields[3].parse::<u64>().unwrap(), number(&step["live_bytes"]));
    }
    let picture = fs::read_to_string(&svg).unwrap();
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"), "{picture:.80}");
    for part in ["load line: 8 MiB", "weights: ", "KV: ", "overhead: ", "peak: step ", "scratch of kernels"] {
        assert!(picture.contains(part), "{part} is not in the picture");
    }
    // A budget far above everything is named and not drawn.
    let args = ["plan", "-m", model, "--context", "100", "--svg", &svg, "--memory-budget", "64GiB"];
    run(args).ok();
    let picture = fs::read_to_string(&svg).unwrap();
    assert!(!picture.contains("load line") && picture.contains("budget 64 GiB"), "the line would flatten the rest");
}

#[test]
fn outputs_and_passes_without_sense_are_usage_errors() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let folder = Folder::new();
    let model = folder.file("model.gguf", fs::read(&golden.model).unwrap());
    let nowhere = folder.arg("nowhere/plan.svg");
    for (more, part) in [
        (&["--context", "10", "--chunk", "11"][..], "more than --context 10"),
        (&["--context", "10", "--svg", &model], "it is a file of the model"),
        (&["--context", "10", "--svg", &nowhere], "there is no folder"),
        (&["--context", "10", "--svg", "picture.png"], "the name must end in .svg"),
        (&["--context", "10", "--csv", "/dev/null"], "no regular file"),
        (&["--context", "9999999999"], "more than 4294967295"),
    ] {
        let error = run(["plan", "-m", &model].iter().chain(more)).fails(2);
        assert!(error.contains(part), "{more:?}: {error}");
    }
    let out = folder.arg("out");
    let error = run(["plan", "-m", &model, "--context", "10", "--csv", &out, "--svg", &out]).fails(2);
    assert!(error.contains("another argument names the same file"), "{error}");
    // A folder's files are the model's too.
    fs::create_dir(folder.path("model")).unwrap();
    let config = folder.file("model/config.json", "{}");
    let error = run(["plan", "-m", &folder.arg("model"), "--context", "10", "--csv", &config]).fails(2);
    assert!(error.contains("it is a file of the model"), "{error}");
}
