//! Running prompts through executors, in whichever parts a test wants.

use crate::{
    compare::argmax,
    row_trace::{OwnRows, PassObserver},
};
use anyhow::{Context, Result};
use plimsoll_attention::KvDtype;
use plimsoll_kvcache::Sequence;
use plimsoll_memguard::{Budget, Kind, Ledger};
use plimsoll_models::{
    CandleExecutor, CandleSession, CpuExecutor, CpuSession, CpuSettings, LogitRows, Model, Segment, Session,
};
use std::{ops::Range, sync::Arc};

/// An empty sequence for `model`, from a budget of its own.
///
/// # Errors
/// None in practice: the budget has no bound.
pub fn new_sequence(model: &Model, dtype: KvDtype, max_tokens: usize) -> Result<Sequence> {
    let spec = model.architecture().kv_spec(dtype);
    let reservation = Ledger::new(Budget::Unlimited).reserve(Kind::Kv, spec.bytes(max_tokens))?;
    Ok(Sequence::new(&spec, max_tokens, reservation)?)
}

/// A session on the CPU executor with the best instruction sets.
///
/// # Errors
/// If the executor cannot start.
pub fn cpu_session(model: &Arc<Model>, threads: usize, dtype: KvDtype, max_tokens: usize) -> Result<CpuSession> {
    cpu_session_with(model, CpuSettings::detect(threads, dtype), max_tokens)
}

/// A session on the CPU executor with these settings.
///
/// # Errors
/// If the executor cannot start.
pub fn cpu_session_with(model: &Arc<Model>, settings: CpuSettings, max_tokens: usize) -> Result<CpuSession> {
    let executor = CpuExecutor::new(Arc::clone(model), settings)?;
    Ok(CpuSession::new(executor, new_sequence(model, settings.kv_dtype, max_tokens)?, ()))
}

/// A session on the candle executor, on the CPU.
///
/// # Errors
/// If candle cannot hold the weights.
pub fn candle_session(model: &Arc<Model>) -> Result<CandleSession> {
    Ok(CandleSession::new(CandleExecutor::new(Arc::clone(model), candle_core::Device::Cpu)?))
}

/// `len` in parts of `chunk`; the last may be shorter.
#[must_use]
pub fn chunks(len: usize, chunk: usize) -> Vec<usize> {
    (0..len).step_by(chunk.max(1)).map(|start| chunk.min(len - start)).collect()
}

/// Extends `session` by `tokens`, part by part; returns the logits of every row, `[tokens, vocab]`.
///
/// # Errors
/// Those of the executor.
pub fn extend_all(session: &mut impl Session, tokens: &[u32], parts: &[usize]) -> Result<Vec<f32>> {
    let mut all = Vec::new();
    let mut start = 0;
    for &part in parts {
        all.extend_from_slice(session.extend(&tokens[start..start + part], LogitRows::All)?.values);
        start += part;
    }
    Ok(all)
}

/// Greedy tokens after the prompt that `session` holds, whose last row has the logits `last`: `steps` tokens, each but the last fed back.
///
/// # Errors
/// Those of the executor.
pub fn greedy(session: &mut impl Session, last: &[f32], steps: usize) -> Result<Vec<u32>> {
    let mut tokens = vec![argmax(last)];
    while tokens.len() < steps {
        let token = tokens[tokens.len() - 1];
        let logits = session.extend(&[token], LogitRows::Last)?;
        tokens.push(argmax(logits.last().context("one row was asked for")?));
    }
    Ok(tokens)
}

/// Extends `sequence` by `tokens`, part by part. `sink` gets the rows that each part had logits for, counted from the first of `tokens`.
///
/// # Errors
/// Those of the executor.
pub fn feed<O: PassObserver>(
    executor: &mut CpuExecutor,
    sequence: &mut Sequence,
    tokens: &[u32],
    parts: &[usize],
    logit_rows: LogitRows,
    observer: &mut O,
    mut sink: impl FnMut(Range<usize>, &[f32]),
) -> Result<()> {
    let mut end = 0;
    for &part in parts {
        let start = sequence.len();
        let tokens = &tokens[end..end + part];
        end += part;
        observer.pass(OwnRows::alone(start, part, logit_rows));
        let logits = executor.run(&mut [Segment { sequence, tokens, start }], logit_rows, observer)?;
        sink(end - logits.rows..end, logits.values);
    }
    Ok(())
}
