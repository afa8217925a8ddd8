//! One request: admitted by a ledger, prefilled by the driver, decoded greedily.

use super::{
    answer::{Answer, GREEDY_TOKENS, Recorder},
    neighbours,
    points::How,
};
use crate::{
    row_trace::{OwnRows, PassObserver},
    subject::Subject,
};
use anyhow::{Context, Result, bail, ensure};
use plimsoll_kvcache::{PrefixCache, Sequence};
use plimsoll_memguard::{Budget, Kind, Ledger, Pass, Profile, Reservation};
use plimsoll_models::{
    CpuExecutor, CpuProfile, CpuSettings, ExecError, LogitRows, Logits, PromptTarget, Segment, Session,
};
use plimsoll_prefill::{CancelToken, ChunkSize, Driver, DriverOptions, PrefillError};
use plimsoll_program::Dims;
use std::{num::NonZeroUsize, ops::Range, sync::Arc};

/// Rows of the smallest chunk that a budget has to have room for.
const FLOOR_ROWS: usize = 64;
/// Rows of the largest chunk where the driver chooses.
const MOST_ROWS: usize = 2048;

/// How a prompt is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cut {
    /// The largest chunks that the ledger has room for.
    Auto,
    /// Chunks of this many rows.
    Chunk(usize),
    /// These parts.
    Parts(Vec<usize>),
}

impl Cut {
    /// Ranges for the driver, each with its chunk size.
    fn ranges(&self, prompt: Range<usize>) -> Vec<(Range<usize>, ChunkSize)> {
        let rows = |rows: usize| NonZeroUsize::new(rows).unwrap_or(NonZeroUsize::MIN);
        match self {
            Self::Auto => vec![(prompt, ChunkSize::Auto { max_rows: rows(MOST_ROWS) })],
            Self::Chunk(size) => vec![(prompt, ChunkSize::Fixed(rows(*size)))],
            Self::Parts(parts) => {
                let mut start = prompt.start;
                let mut part = |&size: &usize| {
                    start += size;
                    (start - size..start, ChunkSize::Fixed(rows(size)))
                };
                parts.iter().map(&mut part).collect()
            }
        }
    }
}

/// What the ledger has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Money {
    /// Enough for all.
    Unlimited,
    /// Exactly what the model, the request and a chunk of this many rows take.
    Chunk(usize),
}

/// A sequence on a borrowed executor.
pub(super) struct Lent<'a, O> {
    pub(super) executor: &'a mut CpuExecutor,
    pub(super) sequence: &'a mut Sequence,
    pub(super) observer: &'a mut O,
}

impl<O: PassObserver> Session for Lent<'_, O> {
    fn len(&self) -> usize {
        self.sequence.len()
    }

    fn extend(&mut self, tokens: &[u32], logit_rows: LogitRows) -> Result<Logits<'_>, ExecError> {
        let start = self.sequence.len();
        self.observer.pass(OwnRows::alone(start, tokens.len(), logit_rows));
        let mut segment = [Segment { sequence: self.sequence, tokens, start }];
        self.executor.run(&mut segment, logit_rows, self.observer)
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

    fn drain(&mut self) {}

    fn restore(&mut self, cache: &PrefixCache, prompt: &[u32]) -> Result<usize, ExecError> {
        cache.restore(self.sequence, prompt).map_err(ExecError::PrefixCache)
    }

    fn publish(&self, cache: &PrefixCache, prompt: &[u32]) -> Result<(), ExecError> {
        cache.publish(self.sequence, prompt).map_err(ExecError::PrefixCache)
    }
}

/// Why a prefill ended early.
pub(super) type PrefillFault = Box<PrefillError<ExecError>>;

/// What a request was admitted with.
pub(super) struct Admission {
    pub(super) ledger: Ledger,
    pub(super) transient: Reservation,
    kv: Option<Reservation>,
    _weights: Reservation,
}

/// A prompt, and the settings of the base point.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) subject: &'a Subject,
    pub(super) prompt: &'a [u32],
    pub(super) settings: CpuSettings,
}

/// The same request with another prompt.
pub(super) fn asking<'a>(request: &Request<'a>, prompt: &'a [u32]) -> Request<'a> {
    Request { prompt, ..*request }
}

impl Request<'_> {
    /// The rows of the base point's chunks.
    pub(super) const BASE: Cut = Cut::Chunk(512);

    /// Runs the request as a point says, and tells what there is to say of it.
    pub(super) fn run<O: PassObserver>(&self, how: &How, observer: &mut O) -> Result<(Answer, String)> {
        match how {
            How::Cut(cut) => self.plain(self.settings, cut, Money::Unlimited, observer),
            How::Settings(settings) => self.plain(*settings, &Self::BASE, Money::Unlimited, observer),
            How::Budget(money) => self.plain(self.settings, &Cut::Auto, *money, observer),
            How::After(history) => Ok((self.after(*history, observer)?, String::new())),
            How::Beside { others, seed } => Ok((neighbours::beside(self, *others, *seed, observer)?, String::new())),
            How::Rebuilt(count) => Ok((self.rebuilt(*count, observer)?, String::new())),
            How::Cached(cached) => self.cached(*cached, observer),
            How::Forked(decoded) => Ok((self.forked(*decoded, observer)?, String::new())),
            How::Process(_) => bail!("a process is not run in this one"),
        }
    }

    pub(super) fn executor(&self, settings: CpuSettings) -> Result<CpuExecutor> {
        Ok(CpuExecutor::new(Arc::clone(&self.subject.model), settings)?)
    }

    /// Tokens of the prompt with its answer.
    pub(super) fn context(&self) -> usize {
        self.prompt.len() + GREEDY_TOKENS
    }

    /// An empty sequence of `tokens`, from a ledger of its own.
    pub(super) fn sequence(&self, tokens: usize) -> Result<Sequence> {
        crate::pass::new_sequence(&self.subject.model, self.settings.kv_dtype, tokens)
    }

    /// Reserves weights, keys and values, and transients for the floor chunk and decoding, all from one ledger.
    pub(super) fn admit(&self, settings: CpuSettings, money: Money) -> Result<Admission> {
        let profile = CpuProfile::of_model(&self.subject.model, settings);
        let (context, prompt) = (self.context(), self.prompt.len());
        let chunk = |rows: usize| {
            let rows = rows.min(prompt);
            let passes = [(rows, 0), (rows, 1), (prompt % rows, 1), (1, 1)].into_iter().filter(|(rows, _)| *rows > 0);
            let bytes = |(rows, logit_rows)| profile.transient_bytes(&Pass { rows, start: context - rows, logit_rows });
            passes.map(bytes).max().unwrap_or(0)
        };
        let (weights, kv, floor) = (profile.weights_bytes(), profile.kv_bytes(context), chunk(FLOOR_ROWS));
        let budget = match money {
            Money::Unlimited => Budget::Unlimited,
            Money::Chunk(rows) => Budget::Bytes(weights + kv + chunk(rows).max(floor)),
        };
        let ledger = Ledger::new(budget);
        let weights = ledger.reserve(Kind::Weights, weights)?;
        let kv = ledger.reserve(Kind::Kv, kv)?;
        let transient = ledger.reserve(Kind::Transient, floor)?;
        if let Budget::Bytes(bytes) = budget
            && chunk(FLOOR_ROWS) == bytes - weights.bytes() - kv.bytes()
        {
            ensure!(ledger.reserve(Kind::Transient, 1).is_err(), "just enough is more than that");
        }
        Ok(Admission { ledger, transient, kv: Some(kv), _weights: weights })
    }

    fn plain<O: PassObserver>(
        &self,
        settings: CpuSettings,
        cut: &Cut,
        money: Money,
        observer: &mut O,
    ) -> Result<(Answer, String)> {
        let mut executor = self.executor(settings)?;
        let mut admission = self.admit(settings, money)?;
        let mut sequence = self.admitted(&mut admission)?;
        let mut session = Lent { executor: &mut executor, sequence: &mut sequence, observer };
        let (last, rows) = self.prefill(&mut session, cut, &mut admission)?;
        let answer = decode(&mut session, Recorder::default(), &last)?;
        let budget = match (cut, money) {
            (Cut::Auto, _) => format!("chunks of {}", counted(&rows)),
            _ => String::new(),
        };
        Ok((answer, budget))
    }

    pub(super) fn admitted(&self, admission: &mut Admission) -> Result<Sequence> {
        let spec = self.settings.kv_spec(self.subject.model.architecture());
        let kv = admission.kv.take().context("taken once")?;
        Ok(Sequence::new(&spec, self.context(), kv)?)
    }

    /// Extends the session to the end of the prompt. Returns the logits of its last row and the rows of each chunk.
    pub(super) fn prefill<O: PassObserver>(
        &self,
        session: &mut Lent<'_, O>,
        cut: &Cut,
        admission: &mut Admission,
    ) -> Result<(Vec<f32>, Vec<usize>), PrefillFault> {
        let (mut last, mut rows) = (Vec::new(), Vec::new());
        let start = session.len();
        let mut sink = |_: Range<usize>, logits: &[f32]| last = logits.to_vec();
        let mut target = PromptTarget::new(session, self.prompt, LogitRows::Last, &mut sink);
        for (range, chunk) in cut.ranges(start..self.prompt.len()) {
            let driver = Driver::new(DriverOptions { chunk, ..DriverOptions::new(admission.ledger.clone()) });
            let never = CancelToken::new();
            let report =
                driver.run_holding(&mut target, range, &mut admission.transient, &never, |_| ()).map_err(Box::new)?;
            rows.extend(report.chunks.iter().map(|chunk| chunk.rows));
        }
        Ok((last, rows))
    }

    fn rebuilt<O: PassObserver>(&self, count: usize, observer: &mut O) -> Result<Answer> {
        let (first, _) = self.plain(self.settings, &Self::BASE, Money::Unlimited, observer)?;
        let (before, last) = self.prompt.split_at(self.prompt.len() - 1);
        let mut executor = self.executor(self.settings)?;
        let mut sequence = self.sequence(self.context())?;
        let mut session = Lent { executor: &mut executor, sequence: &mut sequence, observer };
        if !before.is_empty() {
            session.extend(before, LogitRows::None)?;
        }
        let logits = session.extend(&[last, &first.tokens[..count]].concat(), LogitRows::All)?;
        let mut recorder = Recorder::default();
        for row in logits.values.chunks_exact(logits.vocab_size).take(count) {
            recorder.take(row);
        }
        let last = logits.last().context("one row was asked for")?.to_vec();
        ensure!(recorder.tokens() == &first.tokens[..count], "the prefill chose other tokens than decode");
        decode(&mut session, recorder, &last)
    }
}

/// Takes tokens until there are enough; `last`: the logits of the last row that the session holds.
pub(super) fn decode<O: PassObserver>(
    session: &mut Lent<'_, O>,
    mut recorder: Recorder,
    last: &[f32],
) -> Result<Answer> {
    let mut token = recorder.take(last);
    while !recorder.is_full() {
        let logits = session.extend(&[token], LogitRows::Last)?;
        token = recorder.take(logits.last().context("one row was asked for")?);
    }
    recorder.answer()
}

/// `3 x 512, 17` for three parts of 512 and one of 17.
pub(super) fn counted(rows: &[usize]) -> String {
    let runs = rows.chunk_by(|a, b| a == b);
    let run = |run: &[usize]| if run.len() == 1 { run[0].to_string() } else { format!("{} x {}", run.len(), run[0]) };
    runs.map(run).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_one_size_are_counted() {
        assert_eq!(counted(&[512, 512, 64, 1]), "2 x 512, 64, 1");
        assert_eq!(counted(&[]), "");
    }

    #[test]
    fn a_cut_covers_the_prompt() {
        for cut in [Cut::Auto, Cut::Chunk(7), Cut::Parts(vec![3, 5, 2])] {
            let ranges = cut.ranges(4..14);
            assert_eq!((ranges[0].0.start, ranges.last().unwrap().0.end), (4, 14), "{cut:?}");
            assert!(ranges.windows(2).all(|two| two[0].0.end == two[1].0.start), "{cut:?}");
        }
    }
}
