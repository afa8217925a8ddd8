//! Points in processes of their own: of the library, with a past, and of the binary, with its own admission.

use super::{
    answer::{Answer, GREEDY_TOKENS},
    history::History,
    points::How,
    request::{Cut, Request},
    star::kv_name,
};
use crate::{
    compare::hex,
    row_trace::{Difference, OwnRows, PassObserver, RowTrace},
    subject::Subject,
};
use anyhow::{Context, Result, ensure};
use plimsoll_models::{CpuSettings, HashSteps, StepEvent, StepObserver};
use plimsoll_prefill::DEFAULT_MAX_ROWS;
use serde::Deserialize;
use std::{
    fs::{self, File},
    io::{BufReader, BufWriter},
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// The programs that processes run. Points that need one that is not given are left out.
#[derive(Debug, Clone, Default)]
pub struct Programs {
    /// `determinism`, which answers alone.
    pub helper: Option<PathBuf>,
    /// The binary.
    pub plimsoll: Option<PathBuf>,
}

/// What a process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Process {
    /// The request after other things; nothing before it without a history.
    Helper(Option<History>),
    /// `plimsoll run` with these arguments more.
    Binary(Vec<&'static str>),
    /// `plimsoll run` with a budget in which the smallest chunk fits, and little more.
    Tight,
    /// `plimsoll run` after another with the same prompt, which left its blocks in a folder.
    Restored,
}

/// Bytes that a budget has beyond what an earlier process was found to need: what is resident after load differs from process to process.
const SLACK_BYTES: u64 = 2 << 20;

/// What is read of `plimsoll run --json`.
#[derive(Debug, Deserialize)]
struct Printed {
    tokens: Vec<u32>,
    finish_reason: String,
    first_logits_sha256: String,
    chunks: Vec<PrintedChunk>,
    prefill: PrintedPrefill,
    memory: PrintedMemory,
}

#[derive(Debug, Deserialize)]
struct PrintedPrefill {
    cached_tokens: usize,
}

#[derive(Debug, Deserialize)]
struct PrintedChunk {
    rows: usize,
}

#[derive(Debug, Deserialize)]
struct PrintedMemory {
    planned_peak_bytes: u64,
    budget_bytes: Option<u64>,
}

impl Process {
    /// Points with their names.
    pub(super) fn all(short: bool) -> Vec<(String, Self)> {
        let mut all = vec![
            ("library, fresh".to_owned(), Self::Helper(None)),
            ("library, other requests before".to_owned(), Self::Helper(Some(History::Others))),
        ];
        if short {
            return all;
        }
        all.push(("library, a cancelled request before".to_owned(), Self::Helper(Some(History::OtherCancelled))));
        let mut binary = |name: &str, args: &[&'static str]| {
            all.push((format!("binary, {name}"), Self::Binary(args.to_vec())));
        };
        binary("automatic chunks", &[]);
        binary("chunks of 64, 1 thread", &["--chunk", "64", "--threads", "1"]);
        for isa in plimsoll_linear::Isa::available().filter(|&isa| isa != plimsoll_linear::Isa::Scalar) {
            binary(&format!("--cpu {}", isa.name()), &["--cpu", isa.name()]);
        }
        all.push(("binary, budget just enough".to_owned(), Self::Tight));
        all.push(("binary, restored from disk".to_owned(), Self::Restored));
        all
    }

    /// Runs it, unless its program or a file of the model is missing.
    pub(super) fn run(&self, request: &Request<'_>, programs: &Programs) -> Option<Result<(Answer, String)>> {
        let model = request.subject.path.as_deref()?;
        match self {
            Self::Helper(history) => {
                let helper = programs.helper.as_deref()?;
                Some(ask_helper(helper, model, request, *history, None).map(|answer| (answer, String::new())))
            }
            Self::Binary(_) | Self::Tight | Self::Restored => {
                let plimsoll = programs.plimsoll.as_deref()?;
                let is_tight = *self == Self::Tight;
                Some(self.ask_binary(plimsoll, model, request, None).map(|printed| printed.answer(is_tight)))
            }
        }
    }

    /// A trace of what the process did; or, where it cut the prompt in its own way, its first difference to the same cut in this process.
    pub(super) fn trace(
        &self,
        base: &Request<'_>,
        request: &Request<'_>,
        programs: &Programs,
    ) -> Result<Result<RowTrace, Option<Difference>>> {
        let model = request.subject.path.as_deref().context("the model is in no file")?;
        let folder = TempDir::new()?;
        let file = folder.path().join("trace");
        if let Self::Helper(history) = self {
            let helper = programs.helper.as_deref().context("no program")?;
            ask_helper(helper, model, request, *history, Some(&file))?;
            return Ok(Ok(serde_json::from_reader(BufReader::new(File::open(&file)?))?));
        }
        let plimsoll = programs.plimsoll.as_deref().context("no program")?;
        let printed = self.ask_binary(plimsoll, model, request, Some(&file))?;
        let rows: Vec<usize> = printed.chunks.iter().map(|chunk| chunk.rows).collect();
        let mut ours = PrefillHashes { rows: request.prompt.len(), hashes: HashSteps::default() };
        base.run(&How::Cut(Cut::Parts(rows.clone())), &mut ours)?;
        Ok(Err(first_line(&fs::read_to_string(&file)?, &ours.hashes, &rows)))
    }

    fn ask_binary(
        &self,
        plimsoll: &Path,
        model: &Path,
        request: &Request<'_>,
        trace: Option<&Path>,
    ) -> Result<Printed> {
        let ids = ids_file(request.prompt)?;
        let ask = |more: &[&str]| -> Result<Printed> {
            let mut command = Command::new(plimsoll);
            command.args(["run", "--raw", "--json", "--temperature", "0", "--model"]).arg(model);
            command.arg("--token-ids").arg(ids.path().join("ids")).arg("--max-tokens").arg(GREEDY_TOKENS.to_string());
            command.args(["--kv-dtype", kv_name(request.settings.kv_dtype)]).args(more);
            if !more.contains(&"--threads") {
                command.arg("--threads").arg(request.settings.threads.to_string());
            }
            if let Some(trace) = trace {
                command.arg("--trace-hashes").arg(trace);
            }
            Ok(serde_json::from_str(&output(&mut command)?)?)
        };
        match self {
            Self::Binary(args) => ask(args),
            Self::Restored => {
                let folder = TempDir::new()?;
                let cache = ["--prefix-cache", folder.path().to_str().context("a path in UTF-8")?];
                ask(&cache)?;
                let printed = ask(&cache)?;
                // A recurrent state is kept at the end of a chunk only; where steps are hashed, all of them run.
                let least = (request.prompt.len() - 1) / DEFAULT_MAX_ROWS * DEFAULT_MAX_ROWS;
                let taken = printed.prefill.cached_tokens;
                ensure!(trace.is_some() || taken >= least, "{taken} tokens were cached, not {least}");
                Ok(printed)
            }
            _ => {
                let enough = ask(&["--chunk", "64"])?.memory.planned_peak_bytes + SLACK_BYTES;
                ask(&["--memory-budget", &enough.to_string()])
            }
        }
    }
}

impl Printed {
    fn answer(&self, is_tight: bool) -> (Answer, String) {
        let rows: Vec<usize> = self.chunks.iter().map(|chunk| chunk.rows).collect();
        let budget = match self.memory.budget_bytes {
            Some(bytes) if is_tight => format!(" in a budget of {} MiB", bytes >> 20),
            _ => String::new(),
        };
        let answer = Answer {
            logits: self.first_logits_sha256.clone(),
            tokens: self.tokens.clone(),
            steps: None,
            ended: self.finish_reason == "stop",
        };
        let cached = match self.prefill.cached_tokens {
            0 => String::new(),
            tokens => format!("{tokens} tokens cached, "),
        };
        (answer, format!("{cached}chunks of {}{budget}", super::request::counted(&rows)))
    }
}

/// A folder with the file `ids`.
fn ids_file(tokens: &[u32]) -> Result<TempDir> {
    let folder = TempDir::new()?;
    let text: Vec<String> = tokens.iter().map(u32::to_string).collect();
    fs::write(folder.path().join("ids"), text.join(" "))?;
    Ok(folder)
}

fn ask_helper(
    helper: &Path,
    model: &Path,
    request: &Request<'_>,
    history: Option<History>,
    trace: Option<&Path>,
) -> Result<Answer> {
    let ids = ids_file(request.prompt)?;
    let mut command = Command::new(helper);
    command.arg("answer").arg("--model").arg(model).arg("--ids").arg(ids.path().join("ids"));
    command.args(["--kv", kv_name(request.settings.kv_dtype)]);
    if let Some(history) = history {
        command.arg("--history").arg(serde_json::to_string(&history)?);
    }
    if let Some(trace) = trace {
        command.arg("--trace").arg(trace);
    }
    Ok(serde_json::from_str(&output(&mut command)?)?)
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    ensure!(output.status.success(), "{command:?}: {}, {complaint}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// The other side of [`Process::Helper`]: answers `prompt` on the model in `path`, with `settings`, as the base point does. Writes hashes
/// of its steps to `trace`.
///
/// # Errors
/// If a file is faulty, or the request cannot be run.
pub fn answer_alone(
    path: &Path,
    prompt: Vec<u32>,
    settings: CpuSettings,
    history: Option<History>,
    trace: Option<&Path>,
) -> Result<Answer> {
    let model = crate::model::load(path)?;
    let subject = Subject { name: String::new(), model, path: Some(path.to_owned()), prompt, tiny: true };
    let request = Request { subject: &subject, prompt: &subject.prompt, settings };
    let how = history.map_or(How::Cut(Request::BASE), How::After);
    let Some(file) = trace else { return Ok(request.run(&how, &mut ())?.0) };
    let mut trace = RowTrace::new(&subject.model);
    let (answer, _) = request.run(&how, &mut trace)?;
    serde_json::to_writer(BufWriter::new(File::create(file)?), &trace)?;
    Ok(answer)
}

/// Hashes as `--trace-hashes` keeps them: of the main chain, in the passes of the prompt.
struct PrefillHashes {
    rows: usize,
    hashes: HashSteps,
}

impl StepObserver for PrefillHashes {
    fn step(&mut self, event: &StepEvent<'_>) {
        if event.depth == 0 && event.dims.kv_len <= self.rows {
            self.hashes.step(event);
        }
    }
}

impl PassObserver for PrefillHashes {
    fn pass(&mut self, _: OwnRows) {}
}

/// The first line of a `--trace-hashes` file, `step op label sha256` between tabs, that differs from ours.
fn first_line(text: &str, ours: &HashSteps, rows: &[usize]) -> Option<Difference> {
    let steps = ours.hashes.len() / rows.len().max(1);
    let (index, entry) = text.lines().zip(&ours.hashes).enumerate().find_map(|(index, (line, entry))| {
        let differs = line.rsplit('\t').next() != Some(&hex(&entry.sha256));
        differs.then_some((index, entry))
    })?;
    let position = rows.iter().take(index / steps.max(1)).sum();
    Some(Difference { position, step: entry.step, op: entry.op.to_owned(), label: entry.label.clone() })
}
