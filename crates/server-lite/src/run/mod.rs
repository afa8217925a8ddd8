//! `plimsoll run`: one prompt, one answer.

mod answer;
mod budget;
mod prompt;
mod report;
mod settings;
mod trace;

use crate::{
    cli::{DeviceArg, RunArgs},
    error::AppError,
    fetch,
};
use answer::Job;
use budget::Budget;
use plimsoll_models::{
    Checkpoint, CpuExecutor, CpuSession, LoadPlan, StepObserver,
    chat::ChatTemplate,
    sampler::{Sampler, SamplerParams},
    tokenizer::Tokenizer,
};
use plimsoll_prefill::CancelToken;
use std::{path::Path, sync::Arc};
use trace::Observers;

/// Answers the prompt of `args`. What can be refused is refused before weights are read.
pub(crate) fn run(args: &RunArgs, cancel: &CancelToken) -> Result<(), AppError> {
    let sampler = Sampler::new(SamplerParams {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p.unwrap_or(1.0),
        seed: args.seed,
    })?;
    let settings = settings::cpu(args)?;
    trace::check_path(args)?;
    if args.device == DeviceArg::Metal {
        return Err(AppError::NoMetal);
    }
    let given = prompt::read(args)?;

    let path = fetch::resolve(&args.model, args.cache.cache_dir.as_deref(), args.json)?;
    let model_fault = |source| AppError::Model { path: path.clone(), source: Box::new(source) };
    let checkpoint = Checkpoint::open(&path).map_err(model_fault)?;
    let plan = LoadPlan::new(&checkpoint).map_err(model_fault)?;
    let mut budget = Budget::new(args.memory_budget);
    budget.reserve_weights(plan.weights_bytes())?;

    let text = load_text(&checkpoint, args, &path)?;
    let prompt = prompt::encode(given, args.raw, text.as_ref(), plan.architecture().dimensions.vocab_size)?;
    let model = Arc::new(plan.load(&checkpoint, settings.threads).map_err(model_fault)?);
    // What is mapped of its files goes with it: from here on only the packed weights are resident.
    drop(checkpoint);
    budget.measure_overhead(model.weights_bytes(), model.architecture().dimensions.vocab_size)?;
    if cancel.is_cancelled() {
        return Err(AppError::Cancelled { done: 0, total: prompt.len() });
    }

    let tokenizer = text.map(|(tokenizer, _)| tokenizer);
    let job = Job { args, model: &model, prompt: &prompt, tokenizer: tokenizer.as_ref(), sampler, budget, cancel };
    if args.trace_hashes.is_none() && args.memory_trace.is_none() {
        return on_cpu(job, settings, ()).map(|_| ());
    }
    let observers = Observers::new(args, prompt.len());
    let (session, memory) = on_cpu(job, settings, observers)?;
    session.observer().write(args, &session, memory)
}

/// Tokenizer and chat template. Token ids need neither, so a model without them is then no fault.
fn load_text(
    checkpoint: &Checkpoint,
    args: &RunArgs,
    path: &Path,
) -> Result<Option<(Tokenizer, Option<ChatTemplate>)>, AppError> {
    let fault = |source| AppError::Text { path: path.to_owned(), source: Box::new(source) };
    let gguf = match checkpoint {
        Checkpoint::Gguf(gguf) => gguf,
        Checkpoint::Folder(_) if args.token_ids.is_some() => return Ok(None),
        Checkpoint::Folder(_) => {
            let message = "the tokenizer of a model folder is not read by this version: give --token-ids";
            return Err(AppError::Usage(message.to_owned()));
        }
    };
    let tokenizer = match Tokenizer::from_gguf(gguf) {
        Ok(tokenizer) => tokenizer,
        Err(error) if args.token_ids.is_some() => {
            tracing::debug!(%error, "no tokenizer: token ids in, token ids out");
            return Ok(None);
        }
        Err(error) => return Err(fault(error)),
    };
    let template = match args.raw || args.token_ids.is_some() {
        true => None,
        false => ChatTemplate::from_gguf(gguf, &tokenizer).map_err(fault)?,
    };
    Ok(Some((tokenizer, template)))
}

fn on_cpu<O: StepObserver>(
    mut job: Job<'_>,
    settings: plimsoll_models::CpuSettings,
    observer: O,
) -> Result<(CpuSession<O>, report::Memory), AppError> {
    let executor = CpuExecutor::new(Arc::clone(job.model), settings)?.with_cancel(job.cancel.clone());
    let spec = job.model.architecture().kv_spec(settings.kv_dtype);
    let kv_bytes = |context_tokens| spec.bytes(context_tokens);
    let transient_bytes = |dims: &_| executor.plan(dims).peak_bytes;
    let mut admission = job.admit(&kv_bytes, &transient_bytes)?;
    let kv = admission.take_kv();
    let sequence = plimsoll_kvcache::Sequence::new(&spec, admission.context_tokens(), kv)
        .map_err(|source| plimsoll_models::ExecError::Kv { layer: 0, source })?;
    let routes = executor.routes(job.prompt.len());
    let mut session = CpuSession::new(executor, sequence, observer);
    let memory = job.answer(&mut session, admission, routes)?;
    Ok((session, memory))
}
