//! Runs the determinism matrix and writes its table as Markdown; fails on a difference. `cargo xtask determinism` calls it.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program's output")]

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use plimsoll_attention::KvDtype;
use plimsoll_models::CpuSettings;
use plimsoll_tests::{
    matrix::{
        Axis, DEFINITION_ROWS, History, PLAIN_CODE_ROWS, Plan, Programs, Report, Scale, answer_alone, kv_dtype, run,
    },
    subject::{MATRIX_CASES, Subject},
};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// All stars of the models named; a table on standard output.
    Matrix(Matrix),
    /// One request in this process: prints what it gave as JSON.
    Answer(Answer),
}

#[derive(Debug, clap::Args)]
struct Matrix {
    /// `tiny` for all tiny models, `tiny-...` for one, or `NAME=FILE` for a trained one.
    #[arg(required = true)]
    models: Vec<String>,
    /// Axes; all if none is named.
    #[arg(long, value_delimiter = ',')]
    axes: Vec<Axis>,
    /// Lengths of the prompts; of Gemma 9,000 too if none is named.
    #[arg(long, value_delimiter = ',')]
    prompts: Vec<usize>,
    /// Types of keys and values.
    #[arg(long, value_delimiter = ',', value_parser = kv_dtype, default_value = "bf16")]
    kv: Vec<KvDtype>,
    /// The binary, for points in its processes.
    #[arg(long)]
    plimsoll: Option<PathBuf>,
    /// Where the table goes as well, after every model.
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct Answer {
    /// File or folder of the model.
    #[arg(long)]
    model: PathBuf,
    /// File of token ids.
    #[arg(long)]
    ids: PathBuf,
    /// Type of keys and values.
    #[arg(long, value_parser = kv_dtype)]
    kv: KvDtype,
    /// What to do before, as JSON.
    #[arg(long)]
    history: Option<String>,
    /// Where hashes of the steps go.
    #[arg(long)]
    trace: Option<PathBuf>,
}

/// Prompts of every model, and of Gemma 3 beside them: across its window of 512 tokens many times.
const PROMPTS: [usize; 4] = [1, 31, 513, 3000];
const LONG_PROMPT: usize = 9000;

fn main() -> ExitCode {
    let outcome = match Args::parse().what {
        What::Matrix(args) => matrix(&args),
        What::Answer(args) => answer(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn answer(args: &Answer) -> Result<()> {
    let text = fs::read_to_string(&args.ids).with_context(|| format!("cannot read {}", args.ids.display()))?;
    let prompt = text.split_whitespace().map(str::parse).collect::<Result<_, _>>().context("a token id")?;
    let history: Option<History> = args.history.as_deref().map(serde_json::from_str).transpose()?;
    let settings = CpuSettings::detect(2, args.kv);
    let answer = answer_alone(&args.model, prompt, settings, history, args.trace.as_deref())?;
    println!("{}", serde_json::to_string(&answer)?);
    Ok(())
}

fn subject(model: &str, rows: usize) -> Result<Subject> {
    match model.split_once('=') {
        Some((name, file)) => Subject::trained(name, Path::new(file), rows),
        None => Subject::tiny(model, rows),
    }
}

fn matrix(args: &Matrix) -> Result<()> {
    let started = Instant::now();
    let programs = Programs { helper: Some(env::current_exe()?), plimsoll: args.plimsoll.clone() };
    let axes = if args.axes.is_empty() { Axis::ALL.to_vec() } else { args.axes.clone() };
    let mut report = Report::default();
    let tiny = args.models.iter().filter(|model| *model == "tiny").flat_map(|_| MATRIX_CASES);
    let named = args.models.iter().map(String::as_str).filter(|model| *model != "tiny");
    for model in tiny.chain(named) {
        let mut rows = if args.prompts.is_empty() { PROMPTS.to_vec() } else { args.prompts.clone() };
        if args.prompts.is_empty() && model.starts_with("gemma") {
            rows.push(LONG_PROMPT);
        }
        let subject = subject(model, rows.iter().copied().max().unwrap_or(1))?;
        let scale = if subject.tiny { Scale::Tiny } else { Scale::Trained };
        let plan = Plan { rows, kv: args.kv.clone(), scale, axes: axes.clone() };
        run(&subject, &plan, &programs, &mut report, |row| {
            let point = if row.is_equal() { "equal" } else { "**not equal**" };
            let axis = row.axis.map_or("base", Axis::name);
            eprintln!("{:7.1} s  {}  {axis}  {}  {point}", started.elapsed().as_secs_f64(), row.star, row.point);
        })?;
        if let Some(out) = &args.out {
            let text = page(args, &axes, &report);
            fs::write(out, text).with_context(|| format!("cannot write {}", out.display()))?;
        }
    }
    println!("{}", page(args, &axes, &report));
    let faults = report.faults();
    ensure!(faults.is_empty(), "{} of the lines are not equal:\n{}", faults.len(), faults.join("\n"));
    Ok(())
}

/// The table with what its columns mean.
fn page(args: &Matrix, axes: &[Axis], report: &Report) -> String {
    let faults = report.faults().len();
    let verdict = if faults == 0 { "All are equal.".to_owned() } else { format!("**{faults} lines are not equal.**") };
    let sets: Vec<&str> = plimsoll_linear::Isa::available().map(plimsoll_linear::Isa::name).collect();
    let axes: Vec<String> = axes.iter().map(|axis| format!("- `{}`: {}", axis.name(), axis.about())).collect();
    let names = args.models.iter().map(|model| model.split('=').next().unwrap_or(model));
    format!(
        "# Determinism matrix: {}\n\n\
         {} runs were compared with the base point of their model, type of keys and values, and prompt. {verdict}\n\n\
         A line has the first 16 digits of the SHA-256 of the logits of the prompt's last row, and of the 32 greedy tokens after it. What runs in \
         the library is also compared in the logits of all these tokens. This CPU has {}. On trained models plain code (`scalar`) runs \
         at prompts of up to {PLAIN_CODE_ROWS} tokens, and attention by its definition at up to {DEFINITION_ROWS}.\n\n{}\n\n{}",
        names.collect::<Vec<_>>().join(", "),
        report.compared(),
        sets.join(", "),
        axes.join("\n"),
        report.table(),
    )
}
