//! Forcing the attention route: the price follows, the bits stay, and the log says why, once.

use crate::{Folder, finish, model_file::ModelFile, plimsoll};
use std::path::PathBuf;

/// A model whose widest step is attention, and a prompt of 200 tokens in chunks of 50.
fn model(folder: &Folder) -> (PathBuf, String) {
    folder.file("wide.gguf", ModelFile::wide(4).bytes());
    let ids: Vec<u32> = (0..200).map(|i| i % 16).collect();
    (folder.path("wide.gguf"), folder.ids(&ids))
}

fn command(model: &(PathBuf, String), route: Option<&str>, log: &str) -> std::process::Command {
    let (model, ids) = model;
    let model = model.to_str().unwrap();
    let mut command = plimsoll(["run", "-m", model, "--token-ids", ids, "--json", "--chunk", "50", "-n", "3"]);
    command.env("PLIMSOLL_LOG", log).env("PLIMSOLL_THREADS", "2");
    if let Some(route) = route {
        command.env("PLIMSOLL_ATTENTION", route);
    }
    command
}

#[test]
fn forcing_the_reference_route_changes_route_and_price_and_no_bit() {
    let folder = Folder::new();
    let model = model(&folder);
    let run = |route| finish(command(&model, route, "error")).json();
    let (free, tiled, reference) = (run(None), run(Some("tiled")), run(Some("reference")));
    for field in ["tokens", "first_logits_sha256"] {
        assert_eq!(free[field], reference[field], "{field}");
        assert_eq!(free[field], tiled[field], "{field}");
    }
    assert_eq!(free["routes"], tiled["routes"]);
    let names = |json: &serde_json::Value| -> Vec<String> {
        let routes = json["routes"].as_array().unwrap().iter().map(|route| route.as_str().unwrap().to_owned());
        routes.filter(|route| route.starts_with("attention:")).collect()
    };
    assert_eq!(names(&reference), ["attention:scalar-reference"]);
    assert!(names(&tiled).iter().all(|name| name != "attention:scalar-reference"), "{:?}", names(&tiled));
    let chunks = |json: &serde_json::Value| -> Vec<u64> {
        json["chunks"].as_array().unwrap().iter().map(|chunk| chunk["planned_bytes"].as_u64().unwrap()).collect()
    };
    let (tiled_bytes, reference_bytes) = (chunks(&tiled), chunks(&reference));
    assert_eq!(chunks(&free), tiled_bytes);
    assert_eq!((tiled_bytes.len(), reference_bytes.len()), (4, 4));
    // The reference route has no scratch: its price is lower by what the tiled route's takes beyond any other step.
    for (tiled, reference) in tiled_bytes.iter().zip(&reference_bytes) {
        assert!(reference < tiled, "{reference_bytes:?} is not below {tiled_bytes:?}");
    }
    let peak = |json: &serde_json::Value| json["memory"]["planned_peak_bytes"].as_u64().unwrap();
    assert!(peak(&reference) < peak(&tiled));
}

#[test]
fn each_reason_for_a_route_is_logged_once() {
    let folder = Folder::new();
    let model = model(&folder);
    let lines = |route, log, more: &[&str]| -> Vec<String> {
        let mut command = command(&model, route, log);
        command.args(more);
        let ran = finish(command);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran.stderr.lines().filter(|line| line.contains("attention")).map(str::to_owned).collect()
    };
    let once = |lines: Vec<String>, level: &str, reason: &str| match &lines[..] {
        [line] => assert!(line.contains(level) && line.contains(reason), "{line}"),
        lines => panic!("{} lines about attention: {lines:?}", lines.len()),
    };
    once(lines(Some("reference"), "warn", &[]), "WARN", "forced to the reference route");
    once(lines(Some("tiled"), "warn", &[]), "WARN", "forced to the tiled route");
    once(lines(None, "info", &[]), "INFO", "best instruction set");
    once(lines(None, "info", &["--cpu", "scalar"]), "INFO", "--cpu");
    assert_eq!(lines(None, "warn", &[]), [""; 0], "the usual route is no warning");
}
