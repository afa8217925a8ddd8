//! Where a prefill's time goes: how long each kind of step takes, in chunks of `--chunk` rows, and in decoding after it.
//!
//! `step-times MODEL TOKENS [--chunk N] [--threads N] [--decode N]` prints a Markdown table. An observer stands between the steps, so the
//! total is a little above that of a run without one.
#![expect(clippy::print_stdout, reason = "a program's output")]

use anyhow::Result;
use clap::Parser;
use plimsoll_attention::KvDtype;
use plimsoll_models::{CpuExecutor, CpuSession, CpuSettings, LogitRows, Model, Session, StepEvent, StepObserver};
use plimsoll_program::Access;
use plimsoll_tests::{model, pass::new_sequence, random::Random};
use std::{
    collections::BTreeMap,
    mem,
    num::NonZeroUsize,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

#[derive(Debug, Parser)]
struct Args {
    /// A GGUF file or a folder.
    model: PathBuf,
    /// Random tokens of the prompt.
    tokens: usize,
    /// Rows of a chunk.
    #[arg(long, default_value = "512")]
    chunk: NonZeroUsize,
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Tokens decoded after the prompt.
    #[arg(long, default_value_t = 16)]
    decode: usize,
}

/// Times by operation and widths of what it writes.
type Times = BTreeMap<String, (Duration, usize)>;

/// The end of the step before, and what the steps so far took.
struct Clock {
    last: Instant,
    times: Times,
}

/// Gives each step the time since the one before.
struct Watch {
    clock: Arc<Mutex<Clock>>,
    model: Arc<Model>,
}

impl Watch {
    /// The operation, and the widths of what it writes.
    fn name(&self, event: &StepEvent<'_>) -> String {
        let program = &self.model.architecture().program;
        let mut widths = Vec::new();
        // Steps of nested chains are told by their names alone.
        if event.depth == 0 {
            program.main().steps()[event.step].op.visit(|slot, access| {
                if access == Access::Write {
                    widths.push(program.slot(slot).extent.width().to_string());
                }
            });
        }
        format!("{} to {}", event.op, widths.join(" + "))
    }
}

impl StepObserver for Watch {
    fn step(&mut self, event: &StepEvent<'_>) {
        let mut clock = self.clock.lock().expect("nobody panics with it");
        let took = clock.last.elapsed();
        let entry = clock.times.entry(self.name(event)).or_default();
        *entry = (entry.0 + took, entry.1 + 1);
        clock.last = Instant::now();
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    let model = model::load(&args.model)?;
    let settings = CpuSettings::detect(args.threads, KvDtype::Bf16);
    let vocab_size = model.architecture().dimensions.vocab_size;
    let tokens = Random::new(1).tokens(args.tokens, vocab_size);
    let clock = Arc::new(Mutex::new(Clock { last: Instant::now(), times: Times::new() }));
    let restart = || {
        let mut clock = clock.lock().expect("nobody panics with it");
        clock.last = Instant::now();
        mem::take(&mut clock.times)
    };
    let executor = CpuExecutor::new(Arc::clone(&model), settings)?;
    let sequence = new_sequence(&model, settings.kv_dtype, args.tokens + args.decode)?;
    let mut session =
        CpuSession::new(executor, sequence, Watch { clock: Arc::clone(&clock), model: Arc::clone(&model) });
    for tokens in tokens.chunks(args.chunk.get()) {
        clock.lock().expect("nobody panics with it").last = Instant::now();
        session.extend(tokens, LogitRows::Last)?;
    }
    print("prefill", &restart(), args.tokens);
    for token in Random::new(2).tokens(args.decode, vocab_size) {
        clock.lock().expect("nobody panics with it").last = Instant::now();
        session.extend(&[token], LogitRows::Last)?;
    }
    print("decode", &restart(), args.decode);
    Ok(())
}

fn print(name: &str, times: &Times, tokens: usize) {
    let total: Duration = times.values().map(|(time, _)| *time).sum();
    println!("\n| {name}, {:.1} tokens/s | calls | µs per token | share |", tokens as f64 / total.as_secs_f64());
    println!("|---|---|---|---|");
    let mut rows: Vec<_> = times.iter().collect();
    rows.sort_by_key(|(_, (time, _))| std::cmp::Reverse(*time));
    for (name, (time, calls)) in rows {
        let share = time.as_secs_f64() / total.as_secs_f64();
        println!("| {name} | {calls} | {:.2} | {:.1} % |", time.as_secs_f64() * 1e6 / tokens as f64, share * 100.0);
    }
}
