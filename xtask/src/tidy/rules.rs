//! The rules, as functions of a path and a text.

use std::fs;
use std::path::Path;

use super::{Finding, Level, shown};

/// From this many lines on a split is proposed, and from the second number on it is asked for with some emphasis.
const LONG_LINES: usize = 600;
const TOO_LONG_LINES: usize = 1_000;

/// A crate's README is read on a registry's page: one screen.
const README_LINES: usize = 40;

/// Longer than these and not written by hand; each with the reason.
const GENERATED: [(&str, &str); 0] = [];

/// File names that say nothing about their contents.
const VAGUE_NAMES: [&str; 3] = ["utils.rs", "common.rs", "misc.rs"];

/// Put together here, so that this file does not break its own rules.
const UNFINISHED: [&str; 2] = [concat!("dbg", "!("), concat!("todo", "!(")];
const IGNORED: &str = concat!("#[", "ignore]");
const HOSTS: [&str; 5] = [
    concat!("static.", "crates.io"),
    concat!("index.", "crates.io"),
    concat!("pypi", ".org"),
    concat!("files.pythonhosted", ".org"),
    concat!("registry.npmjs", ".org"),
];
const MACHINE_PATHS: [&str; 4] =
    [concat!("/", "home/"), concat!("/", "Users/"), concat!(" /", "root/"), concat!("/", "work/")];

/// Text that people write; other files are data and may contain anything.
const WRITTEN: [&str; 7] = ["rs", "toml", "md", "py", "sh", "yml", "metal"];

/// Checks one text file. `path` is relative to the root, with `/` between its parts.
pub(super) fn check_file(path: &str, text: &str, findings: &mut Vec<Finding>) {
    let name = path.rsplit('/').next().unwrap_or(path);
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    let mut find = |level, line, text: String| {
        findings.push(Finding { level, path: path.to_owned(), line, text });
    };
    if extension == "rs" {
        check_length(path, text, &mut find);
        if VAGUE_NAMES.contains(&name) {
            find(Level::Error, None, "name the file after what is in it".to_owned());
        }
        if needs_module_docs(path) && !has_module_docs(text) {
            find(Level::Error, Some(1), "a module starts with `//!`: what it is for".to_owned());
        }
    }
    // Files without an extension are scripts and licences.
    if !WRITTEN.contains(&extension) && name.contains('.') {
        return;
    }
    for (index, line) in text.lines().enumerate() {
        let number = Some(index + 1);
        if extension == "rs" {
            if let Some(macro_name) = UNFINISHED.into_iter().find(|name| line.contains(name)) {
                find(Level::Error, number, format!("`{macro_name}..)` is left in"));
            }
            if line.trim_start().starts_with(IGNORED) {
                find(Level::Error, number, "an ignored test says why: `ignore = \"slow: 40 s\"`".to_owned());
            }
        }
        for word in HOSTS.into_iter().chain(MACHINE_PATHS).filter(|word| line.contains(word)) {
            find(Level::Error, number, format!("`{}` belongs to one machine or registry", word.trim()));
        }
    }
}

fn check_length(path: &str, text: &str, find: &mut impl FnMut(Level, Option<usize>, String)) {
    if GENERATED.iter().any(|(generated, _)| *generated == path) {
        return;
    }
    match text.lines().count() {
        lines if lines > TOO_LONG_LINES => find(Level::Note, None, format!("WARNING: {lines} lines; split this file")),
        lines if lines > LONG_LINES => find(Level::Note, None, format!("{lines} lines; consider a split")),
        _ => {}
    }
}

/// Modules of a crate do; unit tests in files of their own are part of the module they test.
fn needs_module_docs(path: &str) -> bool {
    path.contains("src/") && !path.ends_with("/tests.rs") && !path.contains("/tests/")
}

fn has_module_docs(text: &str) -> bool {
    text.starts_with("//!") || text.starts_with("#![doc")
}

/// Checks the files that every published crate has.
pub(super) fn check_crate(root: &Path, package: &str, folder: &Path, findings: &mut Vec<Finding>) {
    let mut find = |file: &str, text: String| {
        let path = shown(root, &folder.join(file));
        findings.push(Finding { level: Level::Error, path, line: None, text });
    };
    match fs::read_to_string(folder.join("README.md")) {
        Err(_) => find("README.md", format!("{package} has no README")),
        Ok(text) if text.lines().count() > README_LINES => {
            find("README.md", format!("{} lines, at most {README_LINES} are read", text.lines().count()));
        }
        Ok(_) => {}
    }
    match fs::read_to_string(folder.join("CHANGELOG.md")) {
        Err(_) => find("CHANGELOG.md", format!("{package} has no changelog")),
        Ok(text) if !text.starts_with("# ") => {
            find("CHANGELOG.md", "starts with `# Unreleased` or a version".to_owned())
        }
        Ok(_) => {}
    }
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        let ours = fs::read(root.join(licence)).ok();
        if ours.is_none() || fs::read(folder.join(licence)).ok() != ours {
            find(licence, format!("{package} must carry the {licence} of the root"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str) -> Vec<(Level, Option<usize>)> {
        let mut findings = Vec::new();
        check_file(path, text, &mut findings);
        findings.into_iter().map(|finding| (finding.level, finding.line)).collect()
    }

    #[test]
    fn a_clean_module_passes() {
        assert_eq!(check("crates/x/src/a.rs", "//! Docs.\n#[ignore = \"slow: 40 s\"]\nfn f() {}\n"), []);
        assert_eq!(check("crates/x/src/lib.rs", "#![doc = include_str!(\"../README.md\")]\n"), []);
    }

    #[test]
    fn modules_need_docs_and_test_files_do_not() {
        assert_eq!(check("crates/x/src/a.rs", "fn f() {}\n"), [(Level::Error, Some(1))]);
        assert_eq!(check("crates/x/src/a/tests.rs", "fn f() {}\n"), []);
        assert_eq!(check("crates/x/benches/a.rs", "fn f() {}\n"), []);
    }

    #[test]
    fn long_files_are_noted_and_do_not_fail() {
        let text = |lines: usize| "//!\n".repeat(lines);
        assert_eq!(check("crates/x/src/a.rs", &text(600)), []);
        assert_eq!(check("crates/x/src/a.rs", &text(601)), [(Level::Note, None)]);
        assert_eq!(check("crates/x/src/a.rs", &text(1_001)), [(Level::Note, None)]);
    }

    #[test]
    fn what_was_left_in_is_found_with_its_line() {
        for line in UNFINISHED.into_iter().chain([IGNORED]) {
            let text = format!("//! Docs.\n    {line}\n");
            assert_eq!(check("crates/x/src/a.rs", &text), [(Level::Error, Some(2))], "{line}");
        }
    }

    #[test]
    fn hosts_and_machine_paths_are_found_in_what_people_write_only() {
        for word in HOSTS.into_iter().chain(MACHINE_PATHS) {
            let text = format!("a{word}b\n");
            assert_eq!(check("README.md", &text), [(Level::Error, Some(1))], "{word}");
            assert_eq!(check(".ci/run", &text), [(Level::Error, Some(1))], "{word}");
            assert_eq!(check("tests/golden/case.json", &text), [], "{word}");
        }
    }

    #[test]
    fn a_name_that_says_nothing_is_refused() {
        assert_eq!(check("crates/x/src/utils.rs", "//! Docs.\n"), [(Level::Error, None)]);
    }

    #[test]
    fn a_crate_carries_readme_changelog_and_the_licences_of_the_root() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("crates/x");
        fs::create_dir_all(&folder).unwrap();
        let count = || {
            let mut findings = Vec::new();
            check_crate(root.path(), "x", &folder, &mut findings);
            findings.len()
        };
        assert_eq!(count(), 4);
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            fs::write(root.path().join(licence), licence).unwrap();
            fs::write(folder.join(licence), licence).unwrap();
        }
        fs::write(folder.join("README.md"), "line\n".repeat(40)).unwrap();
        fs::write(folder.join("CHANGELOG.md"), "# Unreleased\n").unwrap();
        assert_eq!(count(), 0);
        fs::write(folder.join("README.md"), "line\n".repeat(41)).unwrap();
        fs::write(folder.join("LICENSE-MIT"), "another").unwrap();
        assert_eq!(count(), 2);
    }
}
