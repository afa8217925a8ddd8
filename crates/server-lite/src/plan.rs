//! `plimsoll plan`: the memory of one pass, step by step, as the planner sees it and the executor will have it.

mod picture;

use crate::{
    cli::{DeviceArg, PassLogitsArg, PlanArgs, Subject},
    error::AppError,
    fetch::Sources,
    files::{self, Outputs},
    one_line,
    price::MAX_CONTEXT_TOKENS,
    priced::Priced,
};
use plimsoll_memguard::{ByteSize, Ceilings, Profile};
use plimsoll_prefill::{CancelToken, DEFAULT_MAX_ROWS};
use plimsoll_program::{Dims, MemoryPlan, Op, Program, Slot};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{self, Write as _},
    path::Path,
};

/// Rows of the table where not all steps are wanted.
const LARGEST: usize = 12;

/// Values shown of those that are live at the peak.
const LIVE: usize = 8;

/// Most characters of a name that comes from a file.
const MAX_NAME_CHARS: usize = 80;

/// The pass, and every step of it; field names are part of the binary's contract.
#[derive(Debug, Serialize)]
struct Timeline {
    model: String,
    /// Rows of the pass.
    rows: usize,
    /// Tokens that the sequence holds after it.
    context: usize,
    logit_rows: usize,
    kv_dtype: &'static str,
    threads: usize,
    weights_bytes: u64,
    /// For `context` tokens.
    kv_bytes: u64,
    /// The arena: the most that the steps need at once, gaps between them counted.
    arena_bytes: u64,
    /// Index of the first step that needs the whole arena.
    peak_step: usize,
    /// What lies in the arena during that step, the largest first.
    peak_live: Vec<Live>,
    overhead_bytes: u64,
    budget_bytes: Option<u64>,
    steps: Vec<Step>,
}

#[derive(Debug, Serialize)]
struct Live {
    name: String,
    /// The weight that it was computed with, where one was.
    weight: Option<String>,
    bytes: u64,
}

#[derive(Debug, Clone, Serialize)]
struct Step {
    step: usize,
    op: &'static str,
    /// Where it was recorded, such as `layer 3/attention`.
    place: String,
    /// Weights that it reads, such as `ffn_gate`, those of its layer by their name within it.
    weights: Vec<String>,
    /// Values in the arena while it runs.
    live_bytes: u64,
    /// Its kernel's own workspace.
    scratch_bytes: u64,
    /// How far the arena has reached by then.
    arena_bytes: u64,
}

impl Step {
    fn bytes(&self) -> u64 {
        self.live_bytes.saturating_add(self.scratch_bytes)
    }
}

/// Plans the pass of `args`, and prints, writes or draws it.
pub(crate) fn plan(args: &PlanArgs, sources: &Sources, cancel: &CancelToken) -> Result<(), AppError> {
    if args.engine.device == DeviceArg::Metal {
        return Err(AppError::NoMetal);
    }
    let context = args.context.get();
    if context > MAX_CONTEXT_TOKENS {
        return Err(AppError::Usage(format!("--context {context} is more than {MAX_CONTEXT_TOKENS}")));
    }
    let rows = args.chunk.fixed_rows().unwrap_or(DEFAULT_MAX_ROWS.min(context));
    if rows > context {
        return Err(AppError::Usage(format!("--chunk {rows} is more than --context {context}")));
    }
    let outputs = Outputs::new([("--csv", args.csv.as_deref()), ("--svg", args.svg.as_deref())]);
    outputs.check(&[])?;
    outputs.spare_model(match args.subject.subject() {
        Subject::Config(path) => path,
        Subject::Model(name) => Path::new(name),
    })?;
    if let Some(path) = args.svg.as_deref().filter(|path| path.extension().is_none_or(|ending| ending != "svg")) {
        return Err(AppError::Usage(format!("--svg {}: the name must end in .svg", path.display())));
    }
    let priced = Priced::read(&args.subject, &args.engine, Some(rows), sources, cancel)?;
    // A short name is that of a file elsewhere.
    priced.path.iter().try_for_each(|path| outputs.spare_model(path))?;
    let logit_rows = match args.pass_logits {
        PassLogitsArg::None => 0,
        PassLogitsArg::Last => 1,
        PassLogitsArg::All => rows,
    };
    let budget_bytes = args.budget.limit(&Ceilings::detect()).bytes;
    let timeline = Timeline::new(&priced, Dims { rows, logit_rows, kv_len: context }, budget_bytes)?;
    if let Some(path) = &args.csv {
        files::write_output(path, &timeline.csv())?;
    }
    if let Some(path) = &args.svg {
        files::write_output(path, &picture::draw(path, &timeline)?)?;
    }
    let text = match (args.json, args.all) {
        (true, _) => serde_json::to_string(&timeline).map_err(io::Error::from).map_err(AppError::Stdout)? + "\n",
        (false, all) => timeline.text(all),
    };
    io::stdout().lock().write_all(text.as_bytes()).map_err(AppError::Stdout)
}

impl Timeline {
    fn new(priced: &Priced, dims: Dims, budget_bytes: Option<u64>) -> Result<Self, AppError> {
        let name = one_line(&priced.name, MAX_NAME_CHARS);
        let (architecture, cost) =
            priced.program().map_err(|why| AppError::NoProgram { name: name.clone(), why: why.to_owned() })?;
        let program = &architecture.program;
        let plan = program.plan(&dims, &cost);
        let steps: Vec<Step> = steps(program, &plan).collect();
        let peak_step = plan.timeline.iter().position(|entry| entry.step == plan.peak_step).unwrap_or(0);
        let ops = plan.timeline.iter().map(|entry| &program.step(entry.step).op);
        let made: Vec<(String, Slot)> = ops.flat_map(|op| weights(program, op)).collect();
        let mut peak_live: Vec<Live> = plan
            .live_set
            .iter()
            .map(|&(slot, bytes)| {
                let weight = made.iter().find(|(_, out)| *out == slot).map(|(weight, _)| weight.clone());
                Live { name: program.slot(slot).name.clone(), weight, bytes }
            })
            .filter(|live| live.bytes > 0)
            .collect();
        peak_live.sort_by_key(|live| std::cmp::Reverse(live.bytes));
        Ok(Self {
            model: name,
            rows: dims.rows,
            context: dims.kv_len,
            logit_rows: dims.logit_rows,
            kv_dtype: priced.settings().kv_dtype.name(),
            threads: priced.settings().threads,
            weights_bytes: priced.weights_bytes(),
            kv_bytes: priced.kv_bytes(dims.kv_len),
            arena_bytes: plan.peak_bytes,
            peak_step,
            peak_live,
            overhead_bytes: priced.overhead_bytes(dims.kv_len),
            budget_bytes,
            steps,
        })
    }

    /// What is there during the whole pass: weights, KV, overhead.
    fn resident_bytes(&self) -> u64 {
        self.weights_bytes.saturating_add(self.kv_bytes).saturating_add(self.overhead_bytes)
    }

    fn total_bytes(&self) -> u64 {
        self.resident_bytes().saturating_add(self.arena_bytes)
    }

    fn csv(&self) -> String {
        let mut text = "step,op,place,live_bytes,scratch_bytes,arena_bytes,total_bytes\n".to_owned();
        for step in &self.steps {
            let Step { step: index, op, place, live_bytes, scratch_bytes, arena_bytes, .. } = step;
            let total = self.resident_bytes().saturating_add(*arena_bytes);
            // Writing to a string cannot fail. Places are words, numbers and slashes.
            let _ = writeln!(text, "{index},{op},{place},{live_bytes},{scratch_bytes},{arena_bytes},{total}");
        }
        text
    }

    fn text(&self, all: bool) -> String {
        let size = |bytes: u64| ByteSize::new(bytes).to_string();
        let mut text = format!(
            "{}: a pass of {} rows that ends at token {}, rows with logits: {}, {} KV, {} threads\n",
            self.model, self.rows, self.context, self.logit_rows, self.kv_dtype, self.threads
        );
        let peak = self.steps.get(self.peak_step);
        let peak = peak.map_or_else(String::new, |step| format!("full at step {}: {}", step.step, step.title()));
        for (name, bytes, note) in [
            ("weights", self.weights_bytes, ""),
            ("KV", self.kv_bytes, ""),
            ("overhead", self.overhead_bytes, "an upper bound"),
            ("arena", self.arena_bytes, peak.as_str()),
            ("together", self.total_bytes(), ""),
        ] {
            let _ = writeln!(text, "{}", format!("  {name:<9}{:>13}   {note}", size(bytes)).trim_end());
        }
        if let Some(budget) = self.budget_bytes {
            let note = if budget < self.total_bytes() { "   less than the pass takes" } else { "" };
            let _ = writeln!(text, "  {:<9}{:>13}{note}", "budget", size(budget));
        }
        let shown: Vec<&Live> = self.peak_live.iter().take(LIVE).collect();
        if !shown.is_empty() {
            let list: Vec<String> = shown.iter().map(|live| live.text()).collect();
            let more = self.peak_live.len() - shown.len();
            let more = if more > 0 { format!(", and {more} more") } else { String::new() };
            let _ = writeln!(text, "in the arena then: {}{more}", list.join(", "));
        }
        let _ = match all {
            true => writeln!(text, "all {} steps:", self.steps.len()),
            false => {
                writeln!(text, "largest of {} steps, alike ones together (--all lists every one):", self.steps.len())
            }
        };
        let _ = writeln!(text, "{:>13}{:>13}{:>13}   step", "live", "scratch", "arena");
        let line = |step: &Step, note: String| {
            let [live, scratch, arena] = [step.live_bytes, step.scratch_bytes, step.arena_bytes].map(size);
            format!("{live:>13}{scratch:>13}{arena:>13}   {:>4} {}{note}", step.step, step.title())
        };
        if all {
            for step in &self.steps {
                let _ = writeln!(text, "{}", line(step, String::new()));
            }
            return text;
        }
        for (step, alike) in self.largest() {
            let note = if alike > 1 { format!("   and {} more like it", alike - 1) } else { String::new() };
            let _ = writeln!(text, "{}", line(step, note));
        }
        text
    }

    /// The largest steps; those that differ by their layer alone count once, with their number.
    fn largest(&self) -> Vec<(&Step, usize)> {
        type Alike<'a> = (&'a str, &'a str, &'a [String], u64);
        let mut groups: BTreeMap<Alike<'_>, (&Step, usize)> = BTreeMap::new();
        for step in &self.steps {
            let part = match step.place.strip_prefix("layer ") {
                Some(rest) => rest.split_once('/').map_or("layer", |(_, part)| part),
                None => &step.place,
            };
            groups.entry((step.op, part, &step.weights, step.bytes())).or_insert((step, 0)).1 += 1;
        }
        let mut groups: Vec<_> = groups.into_values().collect();
        groups.sort_by_key(|(step, _)| (std::cmp::Reverse(step.bytes()), step.step));
        groups.truncate(LARGEST);
        groups
    }
}

impl Live {
    fn text(&self) -> String {
        let weight = self.weight.as_ref().map_or_else(String::new, |weight| format!(" ({weight})"));
        format!("{}{weight} {}", self.name, ByteSize::new(self.bytes))
    }
}

impl Step {
    fn title(&self) -> String {
        let weights = if self.weights.is_empty() { String::new() } else { format!(" {}", self.weights.join(" + ")) };
        let place = if self.place.is_empty() { String::new() } else { format!(" ({})", self.place) };
        format!("{}{weights}{place}", self.op)
    }
}

fn steps<'a>(program: &'a Program, plan: &'a MemoryPlan) -> impl Iterator<Item = Step> + 'a {
    plan.timeline.iter().enumerate().map(|(index, entry)| Step {
        step: index,
        op: program.step(entry.step).op.name(),
        place: program.label(entry.label).to_owned(),
        weights: weights(program, &program.step(entry.step).op).into_iter().map(|(weight, _)| weight).collect(),
        live_bytes: entry.live_bytes,
        scratch_bytes: entry.scratch_bytes,
        arena_bytes: entry.high_water_bytes,
    })
}

/// Names of the matrices and norms that a step reads, each with what is made of it.
fn weights(program: &Program, op: &Op) -> Vec<(String, Slot)> {
    let slots = match op {
        Op::Linear { parts, .. } => parts.iter().map(|part| (part.weight, part.out)).collect(),
        Op::ExpertLinear { weight, out, .. } | Op::RmsNorm { weight, out, .. } => vec![(*weight, *out)],
        _ => Vec::new(),
    };
    let short = |name: &str| {
        let name = name.strip_suffix(".weight").unwrap_or(name);
        // `blk.<layer>.`, which the place says.
        let within = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        within.map_or(name, |(_, name)| name).to_owned()
    };
    slots.into_iter().map(|(weight, out)| (short(&program.slot(weight).name), out)).collect()
}
