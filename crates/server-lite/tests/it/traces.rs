//! `--memory-trace` and `--trace-hashes`.

use crate::{Folder, golden, run, run_ids};
use plimsoll_memguard::ByteSize;
use std::fs;

#[test]
fn the_csv_trace_has_a_line_for_every_step_of_every_chunk() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let folder = Folder::new();
    let out = folder.arg("trace.csv");
    let more = ["--json", "-n", "4", "--chunk", "32", "--memory-trace", &out];
    let json = run_ids(&folder, &golden.model, &golden.ids, &more).json();
    let text = fs::read_to_string(out).unwrap();
    let mut lines = text.lines();
    let header = "pass,rows,kv_len,step,label,op,planned_bytes,planned_peak_bytes,reserved_bytes,footprint_bytes";
    assert_eq!(lines.next(), Some(header));
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    let number = |row: &[&str], column: usize| row[column].parse::<u64>().unwrap();
    let mut steps = [0; 3];
    for row in &rows {
        assert_eq!(row.len(), 10, "{row:?}");
        let pass = usize::try_from(number(row, 0)).unwrap();
        let sizes = [(32, 32), (32, 64), (1, 65)];
        assert_eq!((number(row, 1), number(row, 2)), sizes[pass], "{row:?}");
        assert_eq!(number(row, 3), steps[pass], "{row:?}");
        steps[pass] += 1;
        assert!(number(row, 6) <= number(row, 7), "a step above the peak: {row:?}");
        assert!(number(row, 7) <= number(row, 8), "a pass above what the run reserved: {row:?}");
        assert!(!cfg!(target_os = "linux") || number(row, 9) > 0, "{row:?}");
    }
    assert!(
        steps[0] > 10 && steps == [steps[0]; 3],
        "{steps:?}: the last chunk, of one row, is a pass like the others"
    );
    let peak = rows.iter().map(|row| number(row, 7)).max().unwrap();
    assert!(peak <= json["memory"]["planned_peak_bytes"].as_u64().unwrap(), "{peak}: {}", json["memory"]);
}

#[test]
fn the_svg_trace_is_a_picture_with_a_title() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let folder = Folder::new();
    let json = run_ids(&folder, &golden.model, &golden.ids, &["-n", "1", "--json"]).json();
    let near = (json["memory"]["planned_peak_bytes"].as_u64().unwrap() >> 20) + 2;
    // A budget far above the curves is named and not drawn.
    for (name, budget_mib) in [("near.svg", near), ("far.svg", 1000 * near)] {
        let (out, budget) = (folder.arg(name), format!("{budget_mib}MiB"));
        run_ids(&folder, &golden.model, &golden.ids, &["-n", "1", "--memory-budget", &budget, "--memory-trace", &out])
            .ok();
        let svg = fs::read_to_string(out).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{}", &svg[..80]);
        let title = format!("memory of the prefill, budget {}", ByteSize::new(budget_mib << 20));
        assert!(svg.contains(&title) && svg.contains("measured footprint"), "no title: {}", &svg[..400]);
        assert_eq!(svg.contains("load line: "), name == "near.svg");
        assert!(svg.matches("<polyline").count() >= 3, "curves are missing");
        assert!(!svg.contains("NaN"));
    }
}

#[test]
fn step_hashes_are_the_same_in_two_runs_and_with_more_threads() {
    for (name, ids) in [("tiny-q8_0", None), ("tiny-one-row", Some(1))] {
        let Some(golden) = golden(name) else { return };
        let ids = &golden.ids[..ids.unwrap_or(golden.ids.len())];
        let hashes = |threads: &str, more: &[&str]| {
            let folder = Folder::new();
            let out = folder.arg("hashes.txt");
            let args = [&["-n", "2", "--threads", threads, "--trace-hashes", &out][..], more].concat();
            run_ids(&folder, &golden.model, ids, &args).ok();
            fs::read_to_string(out).unwrap()
        };
        let want = hashes("1", &[]);
        assert!(want.lines().count() > 10, "{name}: {want}");
        for line in want.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            assert!(fields.len() == 4 && fields[0].parse::<usize>().is_ok() && fields[3].len() == 64, "{line}");
        }
        assert_eq!(hashes("1", &[]), want);
        assert_eq!(hashes("2", &[]), want);
        assert_ne!(hashes("1", &["--kv-dtype", "f32"]), want, "{name}: another KV type leaves other bits");
    }
}

#[test]
fn an_output_whose_folder_is_not_there_is_refused_before_anything_runs() {
    let folder = Folder::new();
    for (flag, name) in [
        ("--memory-trace", "no/t.csv"),
        ("--memory-trace", "no/t.svg"),
        ("--trace-hashes", "no/h"),
        ("--logits-out", "no/l.safetensors"),
        ("--logits-out", "file/l.safetensors"),
    ] {
        folder.file("file", "in the way");
        let out = folder.arg(name);
        // No model is there either: the output is what is told.
        let error = run(["run", "-m", "no-such-model", "--prompt", "x", flag, &out]).fails(2);
        assert!(error.contains(flag) && error.contains(name) && error.contains("no folder"), "{error}");
    }
    let error = run(["run", "-m", "no-such-model", "--prompt", "x", "--logits-out", ".."]).fails(2);
    assert!(error.contains("no file"), "{error}");
}

/// Writes past a limit on the size of files fail like those to a full device, and the signal that comes with them must not end the process.
#[test]
#[cfg(unix)]
fn a_write_that_fails_is_told_and_leaves_no_half_of_a_file() {
    let Some(golden) = golden("tiny-one-row") else { return };
    for (flag, name) in [
        ("--memory-trace", "t.csv"),
        ("--memory-trace", "t.svg"),
        ("--trace-hashes", "h"),
        ("--logits-out", "l.safetensors"),
    ] {
        let folder = Folder::new();
        let (ids, out) = (folder.ids(&golden.ids), folder.arg(name));
        let mut command = std::process::Command::new("sh");
        // One block of 512 or 1,024 bytes: less than each of the files.
        command.args(["-c", "ulimit -f 1; exec \"$0\" \"$@\""]).arg(env!("CARGO_BIN_EXE_plimsoll"));
        command.env("PLIMSOLL_LOGIT_ROWS", "all").args(["run", "-n", "1", "-m"]).arg(&golden.model);
        command.args(["--token-ids", &ids, flag, &out]);
        let output = command.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{flag}: {:?} {stderr}", output.status);
        assert!(stderr.contains("error: cannot write") && stderr.contains(name), "{stderr}");
        let left: Vec<_> = fs::read_dir(folder.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["ids.txt"], "{flag}");
    }
}

#[test]
fn an_output_never_writes_over_an_input_another_output_or_what_is_no_file() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let folder = Folder::new();
    let (out, directory) = (folder.arg("out.csv"), folder.arg("directory.csv"));
    fs::create_dir(&directory).unwrap();
    let model = folder.file("model.csv", fs::read(&golden.model).unwrap());
    for (more, part) in [
        (["--logits-out", &out, "--memory-trace", &out], "another argument"),
        (["--trace-hashes", &model, "-n", "1"], "another argument"),
        (["--memory-trace", &directory, "-n", "1"], "no regular file"),
    ] {
        let error = run_ids(&folder, model.as_ref(), &golden.ids, &more).fails(2);
        assert!(error.contains(part), "{more:?}: {error}");
    }
    assert_eq!(fs::read(&model).unwrap(), fs::read(&golden.model).unwrap());
}
