//! Prefill and decode of one prompt, and the report of both.

use super::{
    budget::{self, Admission, Budget},
    memdbg::MemoryDebug,
    prefix::RunCache,
    report::{Load, Memory, Prefill, Report, Speed},
    trace::Reserved,
};
use crate::{
    ALLOCATOR,
    cli::RunArgs,
    error::{AppError, MachineShortfall, Place},
    fetch::hex,
    price::{ChunkPriced, Needs},
};
use plimsoll_models::{
    ExecError, LogitRows, Model, Session,
    sampler::{Sampler, StopMatcher},
    tokenizer::{Detokenizer, SkipSpecial, Tokenizer},
};
use plimsoll_prefill::{CancelToken, Driver, MachineFull, PrefillReport};
use plimsoll_program::Dims;
use sha2::{Digest, Sha256};
use std::{
    io::{self, Write},
    sync::Arc,
    time::Instant,
};

/// A prompt, a model, and what they may use.
pub(super) struct Job<'a> {
    pub(super) args: &'a RunArgs,
    pub(super) model: &'a Arc<Model>,
    pub(super) prompt: &'a [u32],
    /// Absent for token ids in, token ids out.
    pub(super) tokenizer: Option<&'a Tokenizer>,
    /// Whether the answer goes on where the prompt's text ends, and is no turn of its own after a chat template.
    pub(super) continues: bool,
    pub(super) sampler: Sampler,
    pub(super) stops: StopMatcher,
    pub(super) budget: Budget,
    pub(super) cancel: &'a CancelToken,
    /// When the command began.
    pub(super) started: Instant,
    pub(super) cache: Option<RunCache>,
}

/// The logits that decode starts from.
pub(super) struct FirstLogits {
    pub(super) values: Vec<f32>,
    pub(super) sha256: String,
}

/// How decode ended.
struct Ended {
    finish: &'static str,
    /// Passes after the prompt's.
    passes: usize,
    /// Why there was no memory for the next token.
    full: Option<Box<MachineShortfall>>,
}

impl Job<'_> {
    /// Reserves what the prompt and its answer need, at the model's prices.
    pub(super) fn admit(&mut self, profile: &dyn ChunkPriced) -> Result<Admission, AppError> {
        self.budget.admit(&self.needs(), profile)
    }

    /// What the prompt wants.
    pub(super) fn needs(&self) -> Needs {
        budget::needs(self.args, self.prompt.len(), self.model.architecture())
    }

    /// Prefills, decodes and prints. Where the machine had no memory for the whole answer, what there is of it is printed before the error.
    pub(super) fn answer<S: Session>(
        &mut self,
        session: &mut S,
        admission: &mut Admission,
        routes: Vec<String>,
        profile: &dyn ChunkPriced,
    ) -> Result<(), AppError> {
        ALLOCATOR.restart_peak();
        let load = Load { seconds: self.started.elapsed().as_secs_f64() };
        let probe = Arc::clone(&self.budget.probe);
        let mut debug = match self.args.memdbg {
            0 => None,
            mode => Some(MemoryDebug::new(mode, &*probe, self.model.weights_bytes())),
        };
        self.restore(session)?;
        let cached_tokens = session.len();
        let driver = Driver::new(self.driver_options(admission.max_chunk_rows));
        let (prefill, first) = self.prefill(&driver, session, admission, profile, &mut debug)?;
        let mut answer = Answer::new(self.tokenizer, self.continues, std::mem::take(&mut self.stops), self.args.json);
        let decode_start = Instant::now();
        let Ended { finish, passes, full } =
            self.decode(&driver, session, &first, admission.max_tokens, profile, &mut answer)?;
        let decode_seconds = decode_start.elapsed().as_secs_f64();
        answer.finish()?;
        if let Some(debug) = &debug {
            debug.end(session.held());
        }
        let memory = self.memory(session, admission, &prefill);
        if self.args.json {
            let report = Report {
                model: self.model.name().to_owned(),
                prompt_tokens: self.prompt.len(),
                finish_reason: finish,
                first_logits_sha256: first.sha256,
                load,
                chunks: &prefill.chunks,
                prefill: Prefill { cached_tokens, speed: Speed::new(prefill.done_tokens(), prefill.seconds) },
                // The first token comes from the prompt's logits: decode is the passes after it.
                decode: Speed::new(passes, decode_seconds),
                tokens: answer.tokens.clone(),
                text: answer.text,
                memory,
                routes,
            };
            let mut stdout = io::stdout().lock();
            serde_json::to_writer(&mut stdout, &report).map_err(io::Error::from).map_err(AppError::Stdout)?;
            writeln!(stdout).map_err(AppError::Stdout)?;
        }
        let count = answer.tokens.len();
        match full {
            Some(full) => return Err(AppError::MachineFull(full)),
            None if finish == "length" && admission.is_cut => {
                tracing::warn!("the answer ends after {count} tokens, for which there was memory: -n was not given");
            }
            None if finish == "cancelled" => tracing::warn!("cancelled after {count} tokens of the answer"),
            None => {}
        }
        Ok(())
    }

    /// What the run has reserved beside the chunks.
    pub(super) fn reserved(&self, admission: &Admission) -> Reserved {
        let usage = self.budget.ledger.usage();
        Reserved {
            weights_bytes: usage.weights_bytes,
            overhead_bytes: usage.overhead_bytes,
            kv_bytes: admission.kv_bytes,
            smallest_transient_bytes: admission.transient.bytes(),
            budget_bytes: self.budget.budget_bytes(),
        }
    }

    /// Generates up to `max_tokens`; says why it ended, and after how many passes.
    fn decode<S: Session>(
        &mut self,
        driver: &Driver,
        session: &mut S,
        first: &FirstLogits,
        max_tokens: usize,
        profile: &dyn ChunkPriced,
        answer: &mut Answer<'_>,
    ) -> Result<Ended, AppError> {
        let mut passes = 0;
        let ended = |finish, passes| Ok(Ended { finish, passes, full: None });
        if max_tokens == 0 {
            return ended("length", passes);
        }
        self.sampler.observe_prompt(self.prompt);
        let mut token = self.sampler.sample(&first.values)?;
        loop {
            if self.tokenizer.is_some_and(|tokenizer| tokenizer.is_end(token)) {
                return ended("stop", passes);
            }
            answer.push(token)?;
            if answer.is_stopped() {
                return ended("stop", passes);
            }
            if answer.tokens.len() == max_tokens {
                return ended("length", passes);
            }
            if self.cancel.is_cancelled() {
                return ended("cancelled", passes);
            }
            if let Err(full) = make_room(driver, session) {
                let full = Some(Box::new(self.full_in_answer(session, full, answer.tokens.len(), profile)));
                return Ok(Ended { finish: "memory", passes, full });
            }
            let logits = match session.extend(&[token], LogitRows::Last) {
                Ok(logits) => logits,
                Err(ExecError::Cancelled) => return ended("cancelled", passes),
                Err(error) => return Err(error.into()),
            };
            passes += 1;
            token = self.sampler.sample(logits.values)?;
        }
    }

    fn full_in_answer<S: Session>(
        &self,
        session: &S,
        full: MachineFull,
        tokens: usize,
        profile: &dyn ChunkPriced,
    ) -> MachineShortfall {
        let MachineFull { needed_bytes, room, usage } = full;
        let longest = self.longest_in(session, &room, session.len() + 1, profile);
        MachineShortfall { place: Place::Answer { tokens }, needed_bytes, room: *room, usage: *usage, longest }
    }

    fn memory<S: Session>(&self, session: &S, admission: &Admission, prefill: &PrefillReport) -> Memory {
        let usage = self.budget.ledger.usage();
        let of_chunks =
            |bytes: fn(&plimsoll_prefill::ChunkReport) -> Option<u64>| prefill.chunks.iter().filter_map(bytes).max();
        let transient = of_chunks(|chunk| Some(chunk.planned_bytes)).unwrap_or(0).max(admission.transient.bytes());
        let arena = of_chunks(|chunk| chunk.measured_bytes).or(session.measured_bytes()).unwrap_or(0);
        let footprint = |chunk: &plimsoll_prefill::ChunkReport| chunk.after.and_then(|sample| sample.footprint);
        let now = self.budget.probe.sample().footprint;
        Memory {
            weights_bytes: usage.weights_bytes,
            kv_bytes: session.kv_bytes(),
            overhead_bytes: usage.overhead_bytes,
            planned_peak_bytes: usage.weights_bytes + usage.overhead_bytes + admission.kv_bytes + transient,
            // The arena and large KV blocks are mapped, not allocated; what the process held after load outside of any allocation is beside them.
            measured_peak_bytes: ALLOCATOR.peak_bytes()
                + arena
                + session.peak_mapped_kv_bytes()
                + self.budget.unallocated_bytes,
            footprint_peak_bytes: prefill.chunks.iter().filter_map(footprint).chain(now).max(),
            budget_bytes: self.budget.budget_bytes(),
            resident_after_load_bytes: self.budget.resident_after_load_bytes,
        }
    }
}

/// Asks the machine when the next token begins a block of keys and values, and only then.
fn make_room<S: Session>(driver: &Driver, session: &S) -> Result<(), MachineFull> {
    let kv_bytes = session.kv_growth_bytes(1);
    if kv_bytes == 0 {
        return Ok(());
    }
    let pass = Dims { rows: 1, logit_rows: 1, kv_len: session.len() + 1 };
    let wanted_bytes = session.transient_bytes(&pass).saturating_add(kv_bytes);
    driver.make_room(wanted_bytes.saturating_sub(session.kept_bytes().unwrap_or(0))).map(|_| ())
}

/// The generated tokens and their text up to a stop string, printed as they come unless a report is wanted.
struct Answer<'a> {
    tokens: Vec<u32>,
    text: String,
    tokenizer: Option<&'a Tokenizer>,
    detokenizer: Detokenizer,
    stops: StopMatcher,
    quiet: bool,
}

impl<'a> Answer<'a> {
    fn new(tokenizer: Option<&'a Tokenizer>, continues: bool, stops: StopMatcher, quiet: bool) -> Self {
        Self {
            tokens: Vec::new(),
            text: String::new(),
            tokenizer,
            detokenizer: match continues {
                // The space before its first word is the text's, not one that the tokenizer put in front.
                true => Detokenizer::continuing(SkipSpecial::Yes),
                false => Detokenizer::new(SkipSpecial::Yes),
            },
            stops,
            quiet,
        }
    }

    fn push(&mut self, token: u32) -> Result<(), AppError> {
        self.tokens.push(token);
        let Some(tokenizer) = self.tokenizer else {
            return print(&format!("{}{token}", if self.tokens.len() > 1 { " " } else { "" }), self.quiet);
        };
        let piece = self.stops.push(self.detokenizer.push(tokenizer, token)?);
        self.text.push_str(piece);
        print(piece, self.quiet)
    }

    /// Whether a stop string has ended the text. The tokens that it came with are kept.
    fn is_stopped(&self) -> bool {
        self.stops.stopped().is_some()
    }

    /// What was held back, and the end of the line.
    fn finish(&mut self) -> Result<(), AppError> {
        let last = [self.stops.push(self.detokenizer.flush()).to_owned(), self.stops.finish()].concat();
        self.text.push_str(&last);
        print(&last, self.quiet)?;
        print("\n", self.quiet)
    }
}

fn print(piece: &str, quiet: bool) -> Result<(), AppError> {
    if quiet || piece.is_empty() {
        return Ok(());
    }
    let mut stdout = io::stdout().lock();
    stdout.write_all(piece.as_bytes()).and_then(|()| stdout.flush()).map_err(AppError::Stdout)
}

/// Lowercase hexadecimal SHA-256 of little-endian f32 values.
pub(super) fn sha256_of(values: &[f32]) -> String {
    let mut hash = Sha256::new();
    for value in values {
        hash.update(value.to_le_bytes());
    }
    hex(&hash.finalize())
}
