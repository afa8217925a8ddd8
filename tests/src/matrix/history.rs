//! Requests with a past: of the executor, or of the sequence itself.

use super::{
    answer::{Answer, Recorder},
    request::{Admission, Cut, Lent, Money, Request, asking, decode},
};
use crate::{
    random::Random,
    row_trace::{OwnRows, PassObserver},
};
use anyhow::{Result, bail, ensure};
use plimsoll_kvcache::Sequence;
use plimsoll_models::{CpuExecutor, ExecError, LogitRows, Session, StepEvent, StepObserver};
use plimsoll_prefill::{CancelToken, PrefillError, StepError};
use serde::{Deserialize, Serialize};

/// What went on before a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum History {
    /// Requests with other tokens, and passes of other sizes, on the same executor.
    Others,
    /// The same, and its arena was given back.
    NewArena,
    /// The sequence held other tokens and was cut back into the prompt, or to where its state can go back to.
    CutBack,
    /// Another request was cancelled in the middle of a pass.
    OtherCancelled,
    /// This request was cancelled in the middle of a pass, and goes on with the keys and values it had by then.
    CancelledAndResumed,
    /// Other requests failed: a token that the model does not have, and a sequence that is full.
    Failed,
}

impl History {
    /// For a table.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Others => "other requests before",
            Self::NewArena => "other requests before, new arena",
            Self::CutBack => "sequence cut back from other tokens",
            Self::OtherCancelled => "another request cancelled in a pass",
            Self::CancelledAndResumed => "cancelled in a pass, then resumed",
            Self::Failed => "other requests failed",
        }
    }
}

/// Cancels in the middle of a pass, once.
struct CancelAfter<'a, O> {
    inner: &'a mut O,
    steps: usize,
    token: CancelToken,
}

impl<O: PassObserver> StepObserver for CancelAfter<'_, O> {
    fn step(&mut self, event: &StepEvent<'_>) {
        if O::ENABLED {
            self.inner.step(event);
        }
        self.steps = self.steps.saturating_sub(1);
        if self.steps == 0 {
            self.token.cancel();
        }
    }
}

impl<O: PassObserver> PassObserver for CancelAfter<'_, O> {
    fn pass(&mut self, own: OwnRows) {
        self.inner.pass(own);
    }
}

impl Request<'_> {
    /// The request on an executor, and for [`History::CutBack`] and [`History::CancelledAndResumed`] a sequence, with a past.
    pub(super) fn after<O: PassObserver>(&self, history: History, observer: &mut O) -> Result<Answer> {
        let mut admission = self.admit(self.settings, Money::Unlimited)?;
        let mut executor = self.executor(self.settings)?;
        let mut sequence = match history {
            History::CutBack => self.cut_back(&mut executor, observer)?,
            _ => self.admitted(&mut admission)?,
        };
        match history {
            History::Others => self.others(&mut executor)?,
            History::NewArena => {
                self.others(&mut executor)?;
                executor.release_arena();
            }
            History::CutBack => {}
            History::OtherCancelled => executor = self.cancel_another(executor)?,
            History::CancelledAndResumed => {
                executor = self.cancel(executor, &mut sequence, &mut admission, observer)?;
            }
            History::Failed => self.fail(&mut executor)?,
        }
        let mut session = Lent { executor: &mut executor, sequence: &mut sequence, observer };
        let (last, _) = self.prefill(&mut session, &Self::BASE, &mut admission)?;
        decode(&mut session, Recorder::default(), &last)
    }

    fn random_tokens(&self, count: usize) -> Vec<u32> {
        Random::new(count as u64).tokens(count, self.subject.vocab_size())
    }

    fn others(&self, executor: &mut CpuExecutor) -> Result<()> {
        for rows in [3, 130, 64] {
            let mut sequence = self.sequence(rows + 4)?;
            let mut session = Lent { executor: &mut *executor, sequence: &mut sequence, observer: &mut () };
            session.extend(&self.random_tokens(rows), LogitRows::Last)?;
            for token in self.random_tokens(4) {
                session.extend(&[token], LogitRows::Last)?;
            }
        }
        Ok(())
    }

    /// A sequence that held half of the prompt and then other tokens.
    fn cut_back<O: PassObserver>(&self, executor: &mut CpuExecutor, observer: &mut O) -> Result<Sequence> {
        let keep = self.prompt.len() / 2;
        let tokens = [&self.prompt[..keep], &self.random_tokens(70)].concat();
        let mut sequence = self.sequence(self.context().max(tokens.len()))?;
        Lent { executor, sequence: &mut sequence, observer }.extend(&tokens, LogitRows::None)?;
        match sequence.truncate(keep) {
            Err(plimsoll_kvcache::Error::NeedsPrefill { from, .. }) => sequence.truncate(from)?,
            done => done?,
        }
        Ok(sequence)
    }

    fn cancel_another(&self, executor: CpuExecutor) -> Result<CpuExecutor> {
        let prompt = self.random_tokens(150);
        let other = asking(self, &prompt);
        let mut admission = other.admit(self.settings, Money::Unlimited)?;
        let mut sequence = other.admitted(&mut admission)?;
        other.cancel(executor, &mut sequence, &mut admission, &mut ())
    }

    /// Prefills until the middle of the second chunk, or of the only one, and cancels there.
    fn cancel<O: PassObserver>(
        &self,
        executor: CpuExecutor,
        sequence: &mut Sequence,
        admission: &mut Admission,
        observer: &mut O,
    ) -> Result<CpuExecutor> {
        let steps = self.subject.model.architecture().program.main().steps().len();
        let (chunk, passes) = if self.prompt.len() > 2 { (self.prompt.len() / 3, 1) } else { (1, 0) };
        let token = CancelToken::new();
        let mut executor = executor.with_cancel(token.clone());
        let mut cancelling = CancelAfter { inner: observer, steps: passes * steps + steps / 2, token };
        let mut session = Lent { executor: &mut executor, sequence, observer: &mut cancelling };
        match self.prefill(&mut session, &Cut::Chunk(chunk), admission) {
            Err(error) if is_cancelled(&error) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => bail!("a cancelled prefill went on to the end"),
        }
        ensure!(session.len() == passes * chunk, "{} tokens after {passes} chunks of {chunk}", session.len());
        Ok(executor.with_cancel(CancelToken::new()))
    }

    fn fail(&self, executor: &mut CpuExecutor) -> Result<()> {
        let vocab_size = u32::try_from(self.subject.vocab_size())?;
        let mut sequence = self.sequence(80)?;
        let mut session = Lent { executor, sequence: &mut sequence, observer: &mut () };
        session.extend(&self.random_tokens(70), LogitRows::Last)?;
        let outside = session.extend(&[0, vocab_size], LogitRows::Last).map(|_| ());
        ensure!(matches!(outside, Err(ExecError::TokenOutsideVocab { .. })), "a token outside of the vocabulary");
        let full = session.extend(&self.random_tokens(20), LogitRows::Last).map(|_| ());
        ensure!(matches!(full, Err(ExecError::Kv { .. })), "a sequence of 80 tokens took 90: {full:?}");
        Ok(())
    }
}

fn is_cancelled(error: &PrefillError<ExecError>) -> bool {
    matches!(error.source, StepError::Target { source: ExecError::Cancelled, .. })
}
