//! The `plimsoll` binary: command line in, exit code out. Everything else lives in the crates it wires together.
//!
//! Exit codes: 0 done, 2 usage, 3 does not fit, 4 bad model file, 1 anything else. Errors are one line on standard error, then hints.

mod alloc;
mod cli;
mod error;
mod fetch;
mod files;
mod logits;
mod progress;
mod run;

use alloc::CountingAllocator;
use cli::{Cli, Command, ModelsCommand};
use error::AppError;
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
        // Nobody reads on: `plimsoll run ... | head` is no fault.
        Err(AppError::Stdout(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            // A full or closed standard error is no reason to panic: the exit code still says it.
            let _ = writeln!(io::stderr(), "error: {}", one_line(&error.to_string()));
            for hint in error.hints() {
                let _ = writeln!(io::stderr(), "  hint: {}", one_line(&hint));
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
        .with_target(false)
        .init();
    dispatch(&cli)
}

/// Names from files and arguments may hold line ends and terminal codes: they are shown escaped.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => line.extend(c.escape_default()),
            false => line.push(c),
        }
    }
    line
}

fn dispatch(cli: &Cli) -> Result<(), AppError> {
    match &cli.command {
        Command::Run(args) => run::run(args, &cancel_on_ctrl_c()),
        Command::Models { command } => models(command),
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
                writeln!(stdout, "{}\t{}\t{} bytes", model.name, model.license, model.bytes)
                    .map_err(AppError::Stdout)?;
            }
        }
        ModelsCommand::Fetch { name, cache } => {
            let path = fetch::fetch_by_name(name, cache.cache_dir.as_deref())?;
            writeln!(stdout, "{}", path.display()).map_err(AppError::Stdout)?;
        }
    }
    Ok(())
}
