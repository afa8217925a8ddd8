//! One sequence on one executor: what generation and the prefill driver work with, whatever the device.

use crate::executor::{
    candle::{CandleExecutor, CandleSequence},
    cpu::{CpuExecutor, Logits},
    observer::StepObserver,
    pass::{ExecError, LogitRows, Segment},
};
use plimsoll_kvcache::{PrefixCache, Sequence};
use plimsoll_prefill::{Chunk, ChunkTarget, Held};
use plimsoll_program::Dims;
use std::ops::Range;

/// A sequence that can be extended by rows.
pub trait Session {
    /// Tokens held so far.
    fn len(&self) -> usize;

    /// Whether no token is held.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `tokens` and computes the logits asked for.
    ///
    /// # Errors
    /// [`ExecError`]; the sequence is then as it was.
    fn extend(&mut self, tokens: &[u32], logit_rows: LogitRows) -> Result<Logits<'_>, ExecError>;

    /// Planned peak of a pass of these sizes: all that it takes beside weights and KV.
    fn transient_bytes(&self, dims: &Dims) -> u64;

    /// Transient bytes that the last pass really used, if the executor counts them.
    fn measured_bytes(&self) -> Option<u64>;

    /// Bytes of keys and values held now.
    fn kv_bytes(&self) -> u64;

    /// Bytes of keys and values that `rows` more rows will add.
    fn kv_growth_bytes(&self, rows: usize) -> u64;

    /// Bytes that the executor keeps for the next pass; `None` if it does not count them.
    fn kept_bytes(&self) -> Option<u64>;

    /// What of [`kv_bytes`](Self::kv_bytes) lies in mappings of its own, which no allocator counts.
    fn mapped_kv_bytes(&self) -> u64 {
        0
    }

    /// The most that ever lay in such mappings.
    fn peak_mapped_kv_bytes(&self) -> u64 {
        0
    }

    /// What is held between passes, as the prefill driver asks for it.
    fn held(&self) -> Held {
        Held { kv_bytes: self.kv_bytes(), mapped_kv_bytes: self.mapped_kv_bytes(), transient_bytes: self.kept_bytes() }
    }

    /// Gives back what the executor keeps between passes.
    fn drain(&mut self);

    /// Takes over the longest prefix of `prompt` that `cache` holds, for a session that holds nothing: go on with the tokens after it. At
    /// least one token is left, so that there are logits. Bits are those of a computation. Returns the tokens taken over; 0 on an executor
    /// that cannot share blocks.
    ///
    /// # Errors
    /// [`ExecError::PrefixCache`]; the session is then as it was.
    fn restore(&mut self, cache: &PrefixCache, prompt: &[u32]) -> Result<usize, ExecError> {
        let _ = (cache, prompt);
        Ok(0)
    }

    /// Lets `cache` keep the whole blocks of `prompt`, the first tokens of this session, computed in prefill. Does nothing on an executor
    /// that cannot share blocks.
    ///
    /// # Errors
    /// [`ExecError::PrefixCache`].
    fn publish(&self, cache: &PrefixCache, prompt: &[u32]) -> Result<(), ExecError> {
        let _ = (cache, prompt);
        Ok(())
    }
}

/// A sequence on the CPU executor.
#[derive(Debug)]
pub struct CpuSession<O = ()> {
    executor: CpuExecutor,
    sequence: Sequence,
    observer: O,
}

impl<O: StepObserver> CpuSession<O> {
    /// A session over a sequence made for the executor's model and KV type; `observer` hears of every step.
    pub fn new(executor: CpuExecutor, sequence: Sequence, observer: O) -> Self {
        Self { executor, sequence, observer }
    }

    /// What it was made of, after all passes.
    pub fn into_parts(self) -> (CpuExecutor, Sequence, O) {
        (self.executor, self.sequence, self.observer)
    }

    /// The executor.
    pub fn executor(&self) -> &CpuExecutor {
        &self.executor
    }

    /// The sequence.
    pub fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// The observer.
    pub fn observer(&self) -> &O {
        &self.observer
    }
}

impl<O: StepObserver> Session for CpuSession<O> {
    fn len(&self) -> usize {
        self.sequence.len()
    }

    fn extend(&mut self, tokens: &[u32], logit_rows: LogitRows) -> Result<Logits<'_>, ExecError> {
        let start = self.sequence.len();
        let mut segment = [Segment { sequence: &mut self.sequence, tokens, start }];
        self.executor.run(&mut segment, logit_rows, &mut self.observer)
    }

    fn transient_bytes(&self, dims: &Dims) -> u64 {
        self.executor.plan(dims).peak_bytes
    }

    fn measured_bytes(&self) -> Option<u64> {
        Some(self.executor.stats().high_water_bytes)
    }

    fn kv_bytes(&self) -> u64 {
        self.sequence.bytes()
    }

    fn kv_growth_bytes(&self, rows: usize) -> u64 {
        self.sequence.growth_bytes(rows)
    }

    fn kept_bytes(&self) -> Option<u64> {
        Some(self.executor.stats().arena_bytes)
    }

    fn mapped_kv_bytes(&self) -> u64 {
        self.sequence.mapped_bytes()
    }

    fn peak_mapped_kv_bytes(&self) -> u64 {
        self.sequence.peak_mapped_bytes()
    }

    fn drain(&mut self) {
        // The arena stays: the next chunk has its size. What the allocator keeps of freed blocks is the binary's to trim.
    }

    fn restore(&mut self, cache: &PrefixCache, prompt: &[u32]) -> Result<usize, ExecError> {
        cache.restore(&mut self.sequence, prompt).map_err(ExecError::PrefixCache)
    }

    fn publish(&self, cache: &PrefixCache, prompt: &[u32]) -> Result<(), ExecError> {
        cache.publish(&self.sequence, prompt).map_err(ExecError::PrefixCache)
    }
}

/// A sequence on the candle executor.
#[derive(Debug)]
pub struct CandleSession {
    executor: CandleExecutor,
    sequence: CandleSequence,
    logits: Vec<f32>,
}

impl CandleSession {
    /// An empty sequence.
    #[must_use]
    pub fn new(executor: CandleExecutor) -> Self {
        Self { executor, sequence: CandleSequence::default(), logits: Vec::new() }
    }

    /// The executor.
    #[must_use]
    pub fn executor(&self) -> &CandleExecutor {
        &self.executor
    }
}

impl Session for CandleSession {
    fn len(&self) -> usize {
        self.sequence.len()
    }

    fn extend(&mut self, tokens: &[u32], logit_rows: LogitRows) -> Result<Logits<'_>, ExecError> {
        let start = self.sequence.len();
        let mut segment = [Segment { sequence: &mut self.sequence, tokens, start }];
        let logits = self.executor.run(&mut segment, logit_rows)?;
        // A read-back looks at the last command buffer only; a fault in an earlier one shows here.
        self.executor.device().synchronize()?;
        let (rows, vocab_size) = logits.dims2()?;
        self.logits = logits.flatten_all()?.to_vec1()?;
        Ok(Logits { values: &self.logits, rows, vocab_size })
    }

    fn transient_bytes(&self, dims: &Dims) -> u64 {
        self.executor.plan(dims).peak_bytes
    }

    fn measured_bytes(&self) -> Option<u64> {
        None
    }

    fn kv_bytes(&self) -> u64 {
        self.sequence.bytes()
    }

    fn kv_growth_bytes(&self, rows: usize) -> u64 {
        // By the mean of the rows so far.
        self.sequence.bytes().checked_div(self.sequence.len() as u64).unwrap_or(0).saturating_mul(rows as u64)
    }

    fn kept_bytes(&self) -> Option<u64> {
        // The pool is candle's own.
        None
    }

    fn drain(&mut self) {
        // candle frees its pool when it synchronizes; a fault would show at the next pass as well.
        if let Err(error) = self.executor.device().synchronize() {
            tracing::warn!(%error, "the device did not synchronize");
        }
    }
}

/// A prompt on its way into a session, chunk by chunk: what the prefill driver drives.
pub struct PromptTarget<'a, S> {
    session: &'a mut S,
    prompt: &'a [u32],
    /// Logits of the prompt's last row only, or of every row.
    logit_rows: LogitRows,
    sink: &'a mut dyn FnMut(Range<usize>, &[f32]),
    cache: Option<&'a PrefixCache>,
}

impl<S> std::fmt::Debug for PromptTarget<'_, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PromptTarget").field("prompt_tokens", &self.prompt.len()).finish_non_exhaustive()
    }
}

impl<'a, S: Session> PromptTarget<'a, S> {
    /// `sink` gets the wanted rows of the prompt and their logits `[rows, vocab_size]`, chunk by chunk.
    pub fn new(
        session: &'a mut S,
        prompt: &'a [u32],
        logit_rows: LogitRows,
        sink: &'a mut dyn FnMut(Range<usize>, &[f32]),
    ) -> Self {
        Self { session, prompt, logit_rows, sink, cache: None }
    }

    /// The same, and every chunk is [published](Session::publish) to `cache` once it is computed. To profit from the cache,
    /// [restore](Session::restore) the session first and begin behind what it holds.
    #[must_use]
    pub fn publishing_to(mut self, cache: &'a PrefixCache) -> Self {
        self.cache = Some(cache);
        self
    }

    fn wanted(&self, end: usize) -> LogitRows {
        match self.logit_rows {
            LogitRows::Last if end < self.prompt.len() => LogitRows::None,
            wanted => wanted,
        }
    }
}

impl<S: Session> ChunkTarget for PromptTarget<'_, S> {
    type Error = ExecError;

    fn transient_bytes(&self, rows: usize, start: usize) -> u64 {
        let logit_rows = match self.wanted(start + rows) {
            LogitRows::None => 0,
            LogitRows::Last => 1,
            LogitRows::All => rows,
        };
        self.session.transient_bytes(&Dims { rows, logit_rows, kv_len: start + rows })
    }

    fn run(&mut self, chunk: &Chunk) -> Result<(), ExecError> {
        let end = chunk.start + chunk.rows;
        assert_eq!(chunk.start, self.session.len(), "a chunk that does not follow what the session holds");
        let wanted = self.wanted(end);
        let logits = self.session.extend(&self.prompt[chunk.start..end], wanted)?;
        if logits.rows > 0 {
            (self.sink)(end - logits.rows..end, logits.values);
        }
        self.cache.map_or(Ok(()), |cache| self.session.publish(cache, &self.prompt[..end]))
    }

    fn drain(&mut self) {
        self.session.drain();
    }

    fn measured_bytes(&self) -> Option<u64> {
        self.session.measured_bytes()
    }

    fn held(&self) -> Held {
        self.session.held()
    }

    fn kv_growth_bytes(&self, rows: usize, _start: usize) -> u64 {
        self.session.kv_growth_bytes(rows)
    }
}

#[cfg(test)]
mod tests;
