//! `plimsoll estimate`: what a prompt would take, with the functions by which `run` reserves it.

use crate::{
    cli::{Beyond, DeviceArg, EstimateArgs, Limit},
    error::AppError,
    fetch::Sources,
    price::{ChunkPriced, MAX_CONTEXT_TOKENS, Needs, longest_that_fits},
    priced::{OVERHEAD_SLACK_BYTES, Priced},
};
use plimsoll_memguard::{ByteSize, Ceilings, Profile, TransientSource};
use plimsoll_prefill::CancelToken;
use serde::Serialize;
use std::{
    fmt::Write as _,
    io::{self, Write as _},
};

/// The answer; field names are part of the binary's contract.
#[derive(Debug, Serialize)]
struct Answer {
    model: String,
    device: &'static str,
    kv_dtype: &'static str,
    threads: usize,
    /// Tokens of the prompt.
    context: usize,
    /// Tokens of the answer, beyond the prompt.
    max_tokens: usize,
    weights_bytes: u64,
    /// For all tokens of prompt and answer but the last.
    kv_bytes: u64,
    /// What the largest chunk takes beside weights and KV.
    transient_bytes: u64,
    /// Where `transient_bytes` comes from: `program` is exact, `closed form` an estimate.
    transient_source: &'static str,
    /// What a run would measure beside these; an upper bound.
    overhead_bytes: u64,
    /// All of it together.
    peak_bytes: u64,
    /// The least budget at which it fits, in chunks of the fewest rows.
    smallest_budget_bytes: u64,
    /// Absent where neither the user nor the machine sets a limit.
    budget_bytes: Option<u64>,
    budget_source: String,
    /// Whether `run` goes through at this budget, or ends with exit code 3.
    fits: bool,
    /// The longest prompt that fits with such an answer; 0 if none does.
    max_context: usize,
    /// The longest context that the model was trained for, where it is known.
    trained_context: Option<usize>,
    /// Rows of a chunk.
    chunk: usize,
    notes: Vec<String>,
    #[serde(skip)]
    words: Words,
}

/// What the text says beyond the numbers.
#[derive(Debug)]
struct Words {
    /// Rows of the chunks of `smallest_budget_bytes`.
    fewest_rows: usize,
    /// The longest answer to this prompt that fits, where the one that was asked for does not and a shorter one does.
    longest_answer: Option<usize>,
}

/// Prices the prompt of `args`, and prints the answer.
pub(crate) fn estimate(args: &EstimateArgs, sources: &Sources, cancel: &CancelToken) -> Result<(), AppError> {
    if args.engine.device == DeviceArg::Metal {
        return Err(AppError::NoMetal);
    }
    let total = args.context.get().saturating_add(args.max_tokens);
    if total > MAX_CONTEXT_TOKENS {
        let message = format!("prompt and answer are {total} tokens, more than {MAX_CONTEXT_TOKENS}");
        return Err(AppError::Usage(message));
    }
    let ceilings = Ceilings::detect();
    let limit = args.budget.limit(&ceilings);
    let mut priced = Priced::read(&args.subject, &args.engine, args.chunk.fixed_rows(), sources, cancel)?;
    priced.notes.extend(args.budget.beyond(&ceilings).map(|Beyond { given, lowest, source }| {
        format!(
            "--memory-budget {given} is more than this machine has, {lowest} by {source}: a run here is bound by that"
        )
    }));
    let answer = Question { args, priced: &priced, limit }.answer();
    let text = match args.json {
        true => serde_json::to_string(&answer).map_err(io::Error::from).map_err(AppError::Stdout)? + "\n",
        false => answer.text(),
    };
    io::stdout().lock().write_all(text.as_bytes()).map_err(AppError::Stdout)
}

struct Question<'a> {
    args: &'a EstimateArgs,
    priced: &'a Priced,
    limit: Limit,
}

impl Question<'_> {
    fn answer(&self) -> Answer {
        let Self { args, priced, limit } = self;
        let (context, max_tokens) = (args.context.get(), args.max_tokens);
        let needs = self.needs(context, max_tokens);
        let budget = limit.bytes.unwrap_or(u64::MAX);
        let (weights_bytes, overhead_bytes) = (priced.weights_bytes(), priced.overhead_bytes(context));
        let loaded_bytes = weights_bytes.saturating_add(overhead_bytes);
        // As admission chooses it.
        let max_rows = needs.max_chunk_rows(*priced, context + max_tokens, budget.saturating_sub(loaded_bytes));
        let overhead_bytes = overhead_bytes.saturating_add(needs.heap_bytes(context + max_tokens));
        let resident_bytes = weights_bytes.saturating_add(overhead_bytes);
        let kv_bytes = priced.kv_bytes_in_chunks(needs.kv_tokens(context + max_tokens), max_rows);
        let smallest_budget_bytes = self.smallest_budget(context, max_tokens);
        let fits = smallest_budget_bytes <= budget;
        let held = resident_bytes.saturating_add(kv_bytes);
        // What does not fit is shown at its least.
        let smallest = needs.smallest_transient(*priced, context + max_tokens);
        let headroom = if fits { budget.saturating_sub(held) } else { smallest };
        let answer_fits = |tokens| self.smallest_budget(context, tokens) <= budget;
        let longest_answer = (!fits && max_tokens > 0 && answer_fits(0))
            .then(|| longest_that_fits(max_tokens - 1, |tokens| tokens == 0 || answer_fits(tokens)));
        let chunks = needs.chunks(*priced, context + max_tokens, max_rows, headroom);
        Answer {
            model: priced.name.clone(),
            device: "cpu",
            kv_dtype: priced.settings().kv_dtype.name(),
            threads: priced.settings().threads,
            context,
            max_tokens,
            weights_bytes,
            kv_bytes,
            transient_bytes: chunks.transient_bytes,
            transient_source: match priced.transient_source() {
                TransientSource::Plan => "program",
                TransientSource::ClosedForm => "closed form",
            },
            overhead_bytes,
            peak_bytes: held.saturating_add(chunks.transient_bytes),
            smallest_budget_bytes,
            budget_bytes: limit.bytes,
            budget_source: limit.source.clone(),
            fits,
            max_context: self.longest(budget),
            trained_context: priced.trained_context,
            chunk: chunks.rows,
            notes: priced.notes.clone(),
            words: Words { fewest_rows: needs.floor_rows().clamp(1, context), longest_answer },
        }
    }

    /// What a prompt of this length wants, with such an answer.
    fn needs(&self, prompt_tokens: usize, max_tokens: usize) -> Needs {
        Needs {
            prompt_tokens,
            max_tokens: Some(max_tokens),
            context_length: self.priced.trained_context.unwrap_or(usize::MAX),
            chunk_rows: self.args.chunk.fixed_rows(),
            all_logits: false,
            synthetic_tokens: 0,
        }
    }

    /// What a run reserves before its first token: while it reads the text side, while it reads the weights, then for the prompt with its answer.
    fn smallest_budget(&self, prompt_tokens: usize, max_tokens: usize) -> u64 {
        let priced = self.priced;
        let weights = priced.weights_bytes();
        let needs = self.needs(prompt_tokens, max_tokens);
        let total = needs.total(priced, prompt_tokens + max_tokens).unwrap_or(u64::MAX);
        let admitted = weights.saturating_add(priced.overhead_bytes(prompt_tokens)).saturating_add(total);
        let loading = priced.loading_bytes.max(priced.weights_loading_bytes(self.args.engine.quantize.is_some()));
        admitted.max(weights.saturating_add(loading))
    }

    fn longest(&self, budget: u64) -> usize {
        let limit = MAX_CONTEXT_TOKENS - self.args.max_tokens;
        let max_tokens = self.args.max_tokens;
        longest_that_fits(limit, |tokens| tokens == 0 || self.smallest_budget(tokens, max_tokens) <= budget)
    }
}

impl Answer {
    /// What is above the budget by less than two decimals show, to the byte; empty for anything else.
    fn just_above(&self, bytes: u64) -> String {
        match self.budget_bytes {
            Some(budget) if bytes > budget && bytes - budget <= budget / 64 => {
                format!("{bytes} bytes, {} above the budget", bytes - budget)
            }
            _ => String::new(),
        }
    }

    fn text(&self) -> String {
        let size = |bytes: u64| ByteSize::new(bytes).to_string();
        let rows = |rows| if rows == 1 { "1 row".to_owned() } else { format!("{rows} rows") };
        let mut text = format!(
            "{}: {} tokens of prompt, {} of answer, {} KV, chunks of {}, {} threads\n",
            self.model,
            self.context,
            self.max_tokens,
            self.kv_dtype,
            rows(self.chunk),
            self.threads
        );
        let transient_source = match self.transient_source {
            "program" => "plan of the program",
            _ => "closed form: an estimate",
        };
        let least = format!("with chunks of {}", rows(self.words.fewest_rows));
        for (name, bytes, note) in [
            ("weights", self.weights_bytes, ""),
            ("KV", self.kv_bytes, ""),
            ("transient", self.transient_bytes, transient_source),
            ("overhead", self.overhead_bytes, "tokenizer, code, buffers: an upper bound"),
            ("peak", self.peak_bytes, ""),
            ("least budget", self.smallest_budget_bytes, &least),
        ] {
            let above = self.just_above(bytes);
            let notes = [note, &above].into_iter().filter(|note| !note.is_empty());
            let note = notes.collect::<Vec<_>>().join(", ");
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}", format!("  {name:<13}{:>13}   {note}", size(bytes)).trim_end());
        }
        let budget = self.budget_bytes.map_or_else(|| "unlimited".to_owned(), size);
        let _ = writeln!(text, "  {:<13}{budget:>13}   {}", "budget", self.budget_source);
        let trained = match self.trained_context {
            Some(trained) if self.max_context > trained => format!(" (the model was trained for {trained})"),
            _ => String::new(),
        };
        // What a run measures as overhead may be so much less than the estimate.
        let short_bytes = self.smallest_budget_bytes.saturating_sub(self.budget_bytes.unwrap_or(u64::MAX));
        let not = match short_bytes <= OVERHEAD_SLACK_BYTES {
            true => format!("It may not fit: within {} of what is there", size(OVERHEAD_SLACK_BYTES)),
            false => "It does not fit".to_owned(),
        };
        let _ = match (self.fits, self.max_context) {
            (true, longest) => writeln!(text, "It fits. The longest prompt that fits has {longest} tokens{trained}."),
            (false, 0) => writeln!(text, "{not}, and no shorter prompt is sure to."),
            (false, longest) => writeln!(text, "{not}. The longest prompt that fits has {longest} tokens."),
        };
        if let Some(longest) = self.words.longest_answer {
            let _ = writeln!(text, "With -n {longest} or less this prompt fits.");
        }
        for note in &self.notes {
            let _ = writeln!(text, "note: {note}");
        }
        text
    }
}
