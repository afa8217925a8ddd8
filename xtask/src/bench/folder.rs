//! Where records are kept: `benches/runs/<date>-<machine>/`, one set of files per subcommand, none of them ever overwritten.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::machine::Machine;
use super::record::Record;
use super::{markdown, plot};

/// Writes tables and plots below `runs`; returns the path of the page.
pub(super) fn write(record: &Record, machine: &Machine, runs: &Path) -> Result<PathBuf> {
    let folder = runs.join(format!("{}-{}", machine.date, machine.name));
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let stem = free_stem(&folder, record.what);
    let mut plots = Vec::new();
    for (name, svg) in plot::all(record)? {
        let file = format!("{stem}{name}.svg");
        put(&folder.join(&file), &svg)?;
        plots.push(file);
    }
    put(&folder.join(format!("{stem}.csv")), &record.csv())?;
    put(&folder.join(format!("{stem}.json")), &format!("{:#}\n", record.json(machine)))?;
    let page = folder.join(format!("{stem}.md"));
    put(&page, &markdown::page(record, machine, &plots))?;
    put(&folder.join("README.md"), &index(&folder, machine)?)?;
    Ok(page)
}

/// `what`, or `what-2` and so on.
fn free_stem(folder: &Path, what: &str) -> String {
    let names = (1..).map(|number| if number == 1 { what.to_owned() } else { format!("{what}-{number}") });
    let is_free = |stem: &String| !folder.join(format!("{stem}.csv")).exists();
    names.into_iter().find(is_free).unwrap_or_default()
}

/// Links to every page of the folder, in alphabetical order.
fn index(folder: &Path, machine: &Machine) -> Result<String> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        let Some(name) = path.file_name().map(|name| name.to_string_lossy().into_owned()) else { continue };
        if name.ends_with(".md") && name != "README.md" {
            let text = fs::read_to_string(&path)?;
            let title = text.lines().next().unwrap_or_default().trim_start_matches("# ").to_owned();
            pages.push(format!("- [{title}]({name})\n"));
        }
    }
    pages.sort();
    Ok(format!(
        "# {}, {}\n\n{}, {} cores.\n\n{}",
        machine.name,
        machine.date,
        machine.cpu,
        machine.cores,
        pages.concat()
    ))
}

fn put(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::{measurement, record};
    use super::*;

    #[test]
    fn a_record_is_never_overwritten_and_the_index_names_all() {
        let runs = tempfile::tempdir().unwrap();
        let machine = Machine::read(Some("mine"));
        let record = record(vec![measurement(0, "plimsoll", true, 512, 0.5), measurement(0, "peer", false, 512, 1.0)]);
        let first = write(&record, &machine, runs.path()).unwrap();
        let second = write(&record, &machine, runs.path()).unwrap();
        assert_eq!(first.file_name().unwrap(), "prefill.md");
        assert_eq!(second.file_name().unwrap(), "prefill-2.md");
        let folder = first.parent().unwrap();
        assert_eq!(folder.file_name().unwrap().to_str().unwrap(), format!("{}-mine", machine.date));
        for name in ["prefill.csv", "prefill.json", "prefill.svg", "prefill-2.svg"] {
            assert!(folder.join(name).is_file(), "{name}");
        }
        let index = fs::read_to_string(folder.join("README.md")).unwrap();
        assert!(index.contains("- [Title](prefill-2.md)\n- [Title](prefill.md)\n"), "{index}");
        let json: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(folder.join("prefill.json")).unwrap()).unwrap();
        assert_eq!(json["rows"][1]["side"], "peer");
    }
}
