//! `CONTEXTS.md` and the workspace's README say what the estimator says.

#[path = "../../examples/contexts/table.rs"]
mod table;

#[test]
fn the_table_of_contexts_is_up_to_date() {
    let written = include_str!("../../CONTEXTS.md");
    let [full, short] = table::markdown().unwrap();
    assert!(written.contains(&full), "put this into CONTEXTS.md:\n{full}");
    let readme = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    match std::fs::read_to_string(&readme) {
        Ok(written) => assert!(written.contains(&short), "put this into README.md:\n{short}"),
        Err(_) => println!("NOT RUN: {} is not there (a packaged crate stands alone)", readme.display()),
    }
}
