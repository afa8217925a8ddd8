//! Prints the table of golden checks as Markdown; fails if a bound is missed.
//!
//! `golden-table [NAME=MODEL.gguf ...]`: the tiny cases, and the divergence of these trained models.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program's output")]

use anyhow::{Context, Result, ensure};
use plimsoll_tests::table;
use std::{env, path::Path, process::ExitCode};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let mut models = Vec::new();
    for arg in &args {
        let (name, file) = arg.split_once('=').context("usage: golden-table [NAME=MODEL.gguf ...]")?;
        models.push((name.to_owned(), Path::new(file)));
    }
    let tiny = table::tiny()?;
    println!("{}", tiny.text);
    if !tiny.unsupported.is_empty() {
        println!("Not run, the architecture is not supported: {}.\n", tiny.unsupported.join(", "));
    }
    let mut missed = tiny.missed;
    if !models.is_empty() {
        let trained = table::divergence(&models)?;
        println!("{}", trained.text);
        missed.extend(trained.missed);
    }
    ensure!(missed.is_empty(), "{} checks missed:\n{}", missed.len(), missed.join("\n"));
    println!("Every bound is kept.");
    Ok(())
}
