//! Prints the table in `CONTEXTS.md`: `cargo run -p plimsoll-memguard --example contexts`; with `-- --short` the one in the workspace's README.

mod table;

#[expect(clippy::print_stdout, reason = "a program that prints a table")]
fn main() -> Result<(), plimsoll_memguard::EstimateError> {
    let [full, short] = table::markdown()?;
    let is_short = std::env::args().any(|arg| arg == "--short");
    print!("{}", if is_short { short } else { full });
    Ok(())
}
