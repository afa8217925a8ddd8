//! Prints the table of `CONTEXTS.md`: `cargo run -p plimsoll-memguard --example contexts`.
#![expect(clippy::print_stdout, reason = "the table is what this program is for")]

mod table;

fn main() -> Result<(), plimsoll_memguard::EstimateError> {
    print!("{}", table::markdown()?);
    Ok(())
}
