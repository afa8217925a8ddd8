//! `plimsoll run`: one prompt, one answer.

mod answer;
mod budget;
mod memdbg;
mod memory_probe;
mod outputs;
mod prefill;
mod prefix;
mod prompt;
mod report;
mod synthetic;
mod text;
mod trace;

pub(crate) use text::{loading_bytes, read_text};

use crate::{
    cli::{DeviceArg, RunArgs},
    error::AppError,
    fetch::Sources,
    interrupt::interruptible,
    price, priced, settings,
};
use answer::Job;
use budget::Budget;
use plimsoll_kvcache::Sequence;
use plimsoll_memguard::Kind;
use plimsoll_models::{
    Checkpoint, CpuExecutor, CpuProfile, CpuSession, CpuSettings, ExecError, LoadPlan, Model, ModelError, StepObserver,
    sampler::{Sampler, StopMatcher},
};
use plimsoll_prefill::CancelToken;
use std::{path::Path, sync::Arc, time::Instant};
use trace::{Observers, Reserved};

/// Answers the prompt of `args`. What can be refused is refused before weights are read.
pub(crate) fn run(args: &RunArgs, sources: &Sources, cancel: &CancelToken) -> Result<(), AppError> {
    let started = Instant::now();
    let sampler = Sampler::new(args.sampling.params())?;
    let stops = StopMatcher::new(&args.sampling.stop)?;
    let mut settings = settings::cpu(&args.engine, args.chunk.fixed_rows())?;
    outputs::check(args)?;
    prefix::check(args)?;
    if args.engine.device == DeviceArg::Metal {
        return Err(AppError::NoMetal);
    }
    let mut budget = Budget::of(args);
    budget.set_out()?;
    let given = prompt::read(args, &budget, cancel)?;

    let path = sources.resolve(&args.model, cancel)?;
    outputs::spare_model(args, &path)?;
    if path.is_dir() && !path.join("config.json").exists() {
        return Err(AppError::ModelFolder { path });
    }
    if priced::is_settings(&path) {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let hint = format!("give the folder that it is in, with its weights: -m {}", folder.display());
        return Err(AppError::SettingsFile { path, hint });
    }
    let model_fault = |source| AppError::Model { path: path.clone(), source: Box::new(source) };
    let settings_read = budget.borrow(Kind::Overhead, text::settings_bytes(&path), "reading the model's settings")?;
    let checkpoint = Checkpoint::open(&path).map_err(model_fault)?;
    drop(settings_read);
    let plan = LoadPlan::with_options(&checkpoint, &settings::loading(&args.engine)).map_err(model_fault)?;
    settings.snapshots = prefix::snapshots(args, plan.architecture(), &settings);
    sampler.params().check_vocabulary(plan.architecture().dimensions.vocab_size)?;
    prefix::check_limit(args, &settings.kv_spec(plan.architecture()))?;
    budget.reserve_weights(plan.weights_bytes())?;

    let vocab_size = plan.architecture().dimensions.vocab_size;
    let (checkpoint, text) = text::load(checkpoint, args, &path, vocab_size, &budget, cancel)?;
    if text.is_none() && !args.sampling.stop.is_empty() {
        return Err(AppError::Usage(
            "--stop needs text, and the model has no tokenizer that makes it from ids".to_owned(),
        ));
    }
    if let (Some(bytes), Some((tokenizer, _))) = (given.text_bytes(), &text) {
        // A text that no context can hold is not worth its tokens.
        let needs = budget::needs(args, prompt::least_tokens(bytes, tokenizer), plan.architecture());
        budget.refuse_if_too_long(&needs, &CpuProfile::of_plan(&plan, settings))?;
    }
    let (prompt, text) = prompt::to_ids(given, text, args.raw, vocab_size, &budget, cancel)?;
    synthetic::check(args, prompt.len())?;
    let loading = budget.reserve_loading(settings.threads, args.engine.quantize.is_some())?;
    // What is mapped of its files ends with the load: from there on only the packed weights are resident.
    let loaded = interruptible(cancel, "loading the weights", move || load(plan, &checkpoint, settings.threads))??;
    let model = Arc::new(loaded.map_err(model_fault)?);
    drop(loading);
    // Its threads are there before the measurement: their stacks are overhead too.
    let executor = CpuExecutor::new(Arc::clone(&model), settings)?.with_cancel(cancel.clone());
    // So is what the cache's writer has, whose thread starts here.
    let cache = prefix::open(args, &model, &budget, &settings, cancel)?;
    budget.measure_overhead(model.weights_bytes(), price::sampling_bytes(sampler.params(), vocab_size))?;

    // Only a chat template begins a turn; ids are gone on from as they are.
    let continues = text.as_ref().is_none_or(|(_, template)| template.is_none());
    let tokenizer = text.as_ref().map(|(tokenizer, _)| tokenizer);
    let job = Job {
        args,
        model: &model,
        prompt: &prompt,
        tokenizer,
        continues,
        sampler,
        stops,
        budget,
        cancel,
        cache,
        started,
    };
    if args.trace_hashes.is_none() && args.memory_trace.is_none() {
        return on_cpu(job, executor, ())?.answered;
    }
    let observers = Observers::new(args, prompt.len())?;
    let Ran { session, reserved, answered } = on_cpu(job, executor, observers)?;
    let (executor, sequence, observers) = session.into_parts();
    drop(sequence);
    // A run that failed, on a full machine most of all, is one that its traces are wanted of.
    let written = observers.write(&executor, reserved);
    if let (Err(_), Err(lost)) = (&answered, &written) {
        tracing::warn!("{lost}");
    }
    answered.and(written)
}

/// A run that was admitted, however it ended.
struct Ran<O: StepObserver> {
    session: CpuSession<O>,
    reserved: Reserved,
    answered: Result<(), AppError>,
}

/// Packs the weights on threads of our own: those of the library's global pool cannot be had with an error.
fn load(plan: LoadPlan, checkpoint: &Checkpoint, threads: usize) -> Result<Result<Model, ModelError>, AppError> {
    if threads == 1 {
        return Ok(plan.load(checkpoint, threads));
    }
    let pool =
        rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|index| format!("plimsoll-load-{index}"));
    let pool = pool.build().map_err(|source| AppError::Threads { threads, source })?;
    Ok(pool.install(|| plan.load(checkpoint, threads)))
}

fn on_cpu<O: StepObserver>(mut job: Job<'_>, executor: CpuExecutor, observer: O) -> Result<Ran<O>, AppError> {
    let (model, settings) = (Arc::clone(job.model), executor.settings());
    let profile = CpuProfile::of_model(&model, settings);
    let mut admission = job.admit(&profile)?;
    let settings = CpuSettings { max_chunk_rows: Some(admission.max_chunk_rows), ..settings };
    let spec = settings.kv_spec(model.architecture());
    let kv = admission.take_kv();
    let kv_fault = |source| ExecError::Kv { layer: 0, source };
    let mut sequence = Sequence::new(&spec, admission.kv_tokens, kv).map_err(kv_fault)?;
    synthetic::fill(&mut sequence, &spec, job.args.synthetic_kv)?;
    let routes = executor.routes(job.prompt.len());
    let mut session = CpuSession::new(executor, sequence, observer);
    let answered = job.answer(&mut session, &mut admission, routes, &profile);
    Ok(Ran { session, reserved: job.reserved(&admission), answered })
}
