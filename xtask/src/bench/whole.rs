//! Runs of the whole program, and of its peers, each in a fresh process.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use super::model::Model;
use super::options::{Common, Decode, Load, Prefill, Whole};
use super::record::{Measurement, Point, Record, Unit};
use super::side::{Figures, Side, Task, Variant};
use super::{Circumstances, peers, process, roofline, turns};
use crate::shell;

/// Prompts to try until the model goes on for as long as is asked: it may end its answer at once.
const PROMPTS: usize = 16;

pub(super) fn prefill(args: &Prefill) -> Result<()> {
    let tasks = args.tokens.iter().map(|tokens| Task::Prefill { tokens: tokens.get() }).collect();
    let record = Record {
        title: "Prefill".to_owned(),
        method: "The whole prompt at once, logits of its last token; loading is not timed. Each measurement in a fresh process, sides taking \
                 turns. llama.cpp does prompts shorter than 4,096 tokens once beforehand, untimed; of its settings the best of the first round \
                 counts."
            .to_owned(),
        ..Record::of_program("prefill", Unit::TokensPerSecond)
    };
    run(record, &args.common, &args.whole, tasks)
}

pub(super) fn decode(args: &Decode) -> Result<()> {
    let tokens = args.tokens.get();
    let tasks = args.contexts.iter().map(|context| Task::Decode { context: context.get(), tokens }).collect();
    let record = Record {
        title: format!("Decode of {tokens} tokens"),
        method: "One token at a time, greedily, after a prompt that is not timed. Each measurement in a fresh process, sides taking turns. Of \
                 llama.cpp's settings the best of the first round counts."
            .to_owned(),
        x_name: "context",
        ..Record::of_program("decode", Unit::TokensPerSecond)
    };
    run(record, &args.common, &args.whole, tasks)
}

pub(super) fn load(args: &Load) -> Result<()> {
    let record = Record {
        title: "Load".to_owned(),
        method: "The file is in the page cache. Until ready: from the start of the command to the first prefill chunk, as the program tells it. \
                 Whole process: from its start to its end, with a prompt of one token. Each measurement in a fresh process, sides taking turns."
            .to_owned(),
        ..Record::of_program("load", Unit::Seconds)
    };
    run(record, &args.common, &args.whole, vec![Task::Load])
}

fn run(record: Record, common: &Common, whole: &Whole, tasks: Vec<Task>) -> Result<()> {
    shell::run(&mut shell::cargo(["build", "--release", "--workspace", "--bin", "plimsoll"]))?;
    let found = peers::find(&whole.peers);
    for absent in &found.absent {
        println!("absent: {absent}");
    }
    let models = whole.models.iter().map(|name| Model::resolve(name)).collect::<Result<Vec<_>>>()?;
    let mut sides = ours(common, whole);
    sides.extend(found.sides);
    let circumstances = Circumstances::begin(common)?;
    let mut bench = Bench {
        record: Record { absent: found.absent, ..record },
        sides,
        threads: circumstances.threads,
        prompts: HashMap::new(),
        chosen: HashMap::new(),
        out: HashSet::new(),
        failures: 0,
    };
    bench.record.peaks = circumstances.peaks.clone();
    let peer_rounds = whole.peers.peer_runs.unwrap_or(common.runs).get();
    for round in 0..common.runs.get() {
        for model in &models {
            for &task in &tasks {
                model.warm().with_context(|| format!("cannot read {}", model.name))?;
                for index in turns(round, bench.sides.len()) {
                    if round >= peer_rounds && !bench.sides[index].is_ours() {
                        continue;
                    }
                    bench.turn(round, model, task, index);
                }
            }
        }
    }
    let Bench { record, failures, .. } = bench;
    circumstances.end(record)?;
    if failures > 0 {
        bail!("{failures} of plimsoll's own measurements failed; the record names them");
    }
    Ok(())
}

/// Every combination of what was asked of our own program.
fn ours(common: &Common, whole: &Whole) -> Vec<Side> {
    fn or_own<T: Clone>(given: &[T]) -> Vec<Option<T>> {
        if given.is_empty() { vec![None] } else { given.iter().cloned().map(Some).collect() }
    }
    let mut sides = Vec::new();
    for cpu in or_own(&common.cpu) {
        for kv_dtype in or_own(&whole.kv_dtypes) {
            for chunk in or_own(&whole.chunks) {
                let (cpu, kv_dtype) = (cpu.clone(), kv_dtype.clone());
                sides.push(Side::Plimsoll { cpu, kv_dtype, chunk: chunk.map(std::num::NonZeroUsize::get) });
            }
        }
    }
    sides
}

/// A task of a model on a side, by their names and places.
type Key = (String, Task, usize);

struct Bench {
    record: Record,
    sides: Vec<Side>,
    threads: usize,
    /// The prompt that was found to go on for long enough.
    prompts: HashMap<(String, Task), usize>,
    /// The best setting of a side, after the first round.
    chosen: HashMap<Key, Variant>,
    /// What failed or was declined: not tried again.
    out: HashSet<Key>,
    /// Of our own.
    failures: usize,
}

impl Bench {
    /// Measures one side once, and settles on the best of its settings the first time.
    fn turn(&mut self, round: usize, model: &Model, task: Task, index: usize) {
        let side = self.sides[index].clone();
        let key = (model.name.clone(), task, index);
        if self.out.contains(&key) {
            return;
        }
        if let Some(why) = side.declines(task, model) {
            self.leave_out(key, why);
            return;
        }
        let variants = self.chosen.get(&key).map_or_else(|| side.variants(task), |&variant| vec![variant]);
        let mut best: Option<(Variant, Measured)> = None;
        for variant in variants {
            match self.measure(&side, model, task, variant) {
                Ok(measured) => {
                    let rate = measured.figures.tokens as f64 / measured.figures.seconds;
                    println!(
                        "round {}, {}, {}, {}: {:.3} s, {rate:.1} tokens/s {}",
                        round + 1,
                        model.name,
                        task.name(),
                        side.name(),
                        measured.figures.seconds,
                        measured.figures.detail,
                    );
                    if best.as_ref().is_none_or(|(_, best)| measured.figures.seconds < best.figures.seconds) {
                        best = Some((variant, measured));
                    }
                }
                Err(error) => {
                    self.failures += usize::from(side.is_ours());
                    self.leave_out(key, format!("{}: {}, {}: {error:#}", side.name(), model.name, task.name()));
                    return;
                }
            }
        }
        if let Some((variant, measured)) = best {
            self.chosen.insert(key, variant);
            self.keep(round, &side, model, task, measured);
        }
    }

    fn leave_out(&mut self, key: Key, why: String) {
        println!("not measured: {why}");
        self.out.insert(key);
        if !self.record.absent.contains(&why) {
            self.record.absent.push(why);
        }
    }

    fn measure(&mut self, side: &Side, model: &Model, task: Task, variant: Variant) -> Result<Measured> {
        let (length, wanted) = match task {
            Task::Prefill { tokens } => (tokens, tokens),
            Task::Decode { context, tokens } => (context, tokens),
            Task::Load => (1, 1),
        };
        let first = self.prompts.get(&(model.name.clone(), task)).copied().unwrap_or(0);
        let mut most = 0;
        for prompt in first..first + PROMPTS {
            let ids = prompt_file(length, prompt)?;
            let finished = process::run(&mut side.command(task, variant, model, &ids, self.threads))?;
            let read = side.read(task, variant, &finished.stdout);
            let figures = match read {
                Ok(figures) => figures,
                // An answer that ends with its first token has no time either.
                Err(_) if side.is_ours() && matches!(task, Task::Decode { .. }) => continue,
                Err(error) => return Err(error),
            };
            if figures.tokens == wanted {
                self.prompts.insert((model.name.clone(), task), prompt);
                return Ok(Measured { figures, peak: finished.peak_resident_bytes, process_seconds: finished.seconds });
            }
            most = most.max(figures.tokens);
            if !matches!(task, Task::Decode { .. }) || !side.is_ours() {
                break;
            }
        }
        bail!("ran {most} tokens instead of {wanted}")
    }

    fn keep(&mut self, round: usize, side: &Side, model: &Model, task: Task, measured: Measured) {
        let (x, macs) = match task {
            Task::Prefill { tokens } => (tokens, model.shape.as_ref().map(|shape| shape.macs(0, tokens, 1))),
            Task::Decode { context, tokens } => {
                (context, model.shape.as_ref().map(|shape| shape.macs(context, tokens, tokens)))
            }
            Task::Load => (1, None),
        };
        let own_peak = match side {
            Side::Plimsoll { cpu, .. } => roofline::own(cpu.as_deref(), &self.record.peaks),
            _ => None,
        };
        let Measured { figures, peak, process_seconds } = measured;
        let point =
            |group: String| Point { group, x, side: side.name(), ours: side.is_ours(), own_peak: own_peak.clone() };
        let of = |group: String, seconds: f64| Measurement {
            round,
            point: point(group),
            seconds,
            tokens: figures.tokens as f64,
            macs,
            bytes: peak,
            detail: figures.detail.clone(),
        };
        if task != Task::Load {
            self.record.measurements.push(of(model.name.clone(), figures.seconds));
            return;
        }
        if side.is_ours() {
            self.record.measurements.push(of(format!("{}, until ready", model.name), figures.seconds));
        }
        self.record.measurements.push(of(format!("{}, whole process", model.name), process_seconds));
    }
}

struct Measured {
    figures: Figures,
    peak: Option<u64>,
    process_seconds: f64,
}

impl Task {
    fn name(self) -> String {
        match self {
            Self::Prefill { tokens } => format!("prefill of {tokens}"),
            Self::Decode { context, .. } => format!("decode at {context}"),
            Self::Load => "load".to_owned(),
        }
    }
}

/// Token ids in a file.
fn prompt_file(tokens: usize, prompt: usize) -> Result<PathBuf> {
    let file = shell::target_dir().join(format!("bench-ids-{tokens}-{prompt}.txt"));
    fs::write(&file, prompt_ids(tokens, prompt)).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

/// Ids of no meaning: dense products cost the same for every token. All of them are in the vocabulary of any model.
fn prompt_ids(tokens: usize, prompt: usize) -> String {
    let ids = (0..tokens).map(|index| (1_000 + (index * 7_919 + prompt * 4_421) % 20_011).to_string());
    ids.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_has_the_length_asked_for_and_differing_ids() {
        for prompt in 0..3 {
            let text = prompt_ids(512, prompt);
            let mut ids: Vec<u32> = text.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert!(ids.iter().all(|id| (1_000..21_011).contains(id)));
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), 512);
        }
        assert_ne!(prompt_ids(8, 0), prompt_ids(8, 1));
    }

    #[test]
    fn every_combination_asked_for_is_a_side() {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            common: Common,
            #[command(flatten)]
            whole: Whole,
        }
        let parse = |line: &str| <Line as clap::Parser>::try_parse_from(line.split(' ')).unwrap();
        let names = |line: &str| {
            let Line { common, whole } = parse(line);
            ours(&common, &whole).iter().map(Side::name).collect::<Vec<_>>()
        };
        assert_eq!(names("bench"), ["plimsoll"]);
        let want =
            ["plimsoll avx512, KV bf16", "plimsoll avx512, KV f32", "plimsoll avx2, KV bf16", "plimsoll avx2, KV f32"];
        assert_eq!(names("bench --cpu avx512,avx2 --kv-dtype bf16,f32"), want);
        assert_eq!(names("bench --chunk 512,8192"), ["plimsoll, chunks of 512", "plimsoll, chunks of 8192"]);
    }
}
