//! `CONTEXTS.md` says what the estimator says.

#[path = "../../examples/contexts/table.rs"]
mod table;

#[test]
fn the_table_of_contexts_is_up_to_date() {
    let written = include_str!("../../CONTEXTS.md");
    let table = table::markdown().unwrap();
    assert!(written.contains(&table), "put this into CONTEXTS.md:\n{table}");
}
