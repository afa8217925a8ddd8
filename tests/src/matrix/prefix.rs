//! Requests that take over what others computed: by a prefix cache in memory or on disk, or as a fork.

use super::{
    answer::{Answer, Recorder},
    request::{Admission, Lent, Money, PrefillFault, Request, asking, decode},
};
use crate::{random::Random, row_trace::PassObserver};
use anyhow::{Context, Result, ensure};
use plimsoll_attention::KV_BLOCK_TOKENS;
use plimsoll_kvcache::{DiskOptions, PrefixCache, Sequence, Snapshots};
use plimsoll_memguard::{Kind, Ledger, Reservation};
use plimsoll_models::{CpuSettings, LogitRows, PromptTarget, Session};
use plimsoll_prefill::{CancelToken, ChunkSize, Driver, DriverOptions};
use std::{num::NonZeroUsize, ops::Range, path::Path};

/// Rows of a chunk: a prefix ends at the end of one.
const CHUNK_ROWS: NonZeroUsize = NonZeroUsize::new(KV_BLOCK_TOKENS).expect("not zero");

/// What a prefix cache held before the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cached {
    /// Nothing; the request is published to it.
    Nothing,
    /// The first half of the prompt, with other tokens behind.
    Half,
    /// All of it.
    All,
    /// All of it, on disk alone.
    OnDisk,
    /// All of it on disk, the first half also in memory.
    HalfInMemory,
}

impl Cached {
    pub(super) const ALL: [Self; 5] = [Self::Nothing, Self::Half, Self::All, Self::OnDisk, Self::HalfInMemory];

    /// For a table.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Nothing => "cold",
            Self::Half => "half hit",
            Self::All => "full hit",
            Self::OnDisk => "restored from disk",
            Self::HalfInMemory => "half from memory, half from disk",
        }
    }
}

impl Request<'_> {
    /// The settings with what a prefix cache needs: borders at every block.
    fn with_borders(&self) -> Result<Self> {
        let keep = NonZeroUsize::new(self.context().div_ceil(KV_BLOCK_TOKENS)).context("no tokens")?;
        let snapshots = Some(Snapshots { every_blocks: NonZeroUsize::MIN, keep });
        let settings = CpuSettings { max_chunk_rows: Some(CHUNK_ROWS.get()), snapshots, ..self.settings };
        Ok(Self { settings, ..*self })
    }

    /// The request with a prefix cache.
    pub(super) fn cached<O: PassObserver>(&self, cached: Cached, observer: &mut O) -> Result<(Answer, String)> {
        let this = self.with_borders()?;
        let folder = tempfile::tempdir()?;
        let half = this.prompt.len() / 2;
        let tail = Random::new(6).tokens(this.prompt.len() - half, this.subject.vocab_size());
        let other = [&this.prompt[..half], &tail].concat();
        let other = asking(&this, &other);
        let mut admission = this.admit(this.settings, Money::Unlimited)?;
        let mut cache = this.cache(&admission.ledger, folder.path())?;
        match cached {
            Cached::Nothing => {}
            Cached::Half => other.publish(&cache, &admission.ledger)?,
            Cached::All => this.publish(&cache, &admission.ledger)?,
            Cached::OnDisk => {
                this.publish(&cache, &admission.ledger)?;
                cache = this.cache(&admission.ledger, folder.path())?;
            }
            Cached::HalfInMemory => {
                this.publish(&cache, &admission.ledger)?;
                cache = this.cache(&admission.ledger, folder.path())?;
                other.publish(&cache, &admission.ledger)?;
            }
        }
        let mut executor = this.executor(this.settings)?;
        let mut sequence = this.admitted(&mut admission)?;
        let mut session = Lent { executor: &mut executor, sequence: &mut sequence, observer };
        let taken = session.restore(&cache, this.prompt)?;
        let blocks = |tokens: usize| tokens / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS;
        let want = match cached {
            Cached::Nothing => 0,
            // A random tail may begin as the prompt goes on, but not for a whole block.
            Cached::Half => blocks(half),
            Cached::All | Cached::OnDisk | Cached::HalfInMemory => blocks(this.prompt.len() - 1),
        };
        ensure!(taken == want, "{taken} tokens were cached, not {want}");
        let Admission { ledger, transient, .. } = &mut admission;
        let last = this.prefill_publishing(&mut session, &cache, ledger, transient)?;
        Ok((decode(&mut session, Recorder::default(), &last)?, format!("{taken} tokens cached")))
    }

    fn cache(&self, ledger: &Ledger, folder: &Path) -> Result<PrefixCache> {
        let model = &self.subject.model;
        let spec = self.settings.kv_spec(model.architecture());
        let disk = DiskOptions { folder: folder.to_owned(), limit_bytes: u64::MAX };
        let identity = model.cache_identity(&self.settings);
        Ok(PrefixCache::with_disk(ledger, &spec, &identity, u64::MAX, &disk)?)
    }

    /// Prefills the prompt on an executor and a sequence of its own, and publishes it.
    fn publish(&self, cache: &PrefixCache, ledger: &Ledger) -> Result<()> {
        let spec = self.settings.kv_spec(self.subject.model.architecture());
        let kv = ledger.reserve(Kind::Kv, spec.bytes(self.context()))?;
        let mut transient = ledger.reserve(Kind::Transient, 0)?;
        let mut executor = self.executor(self.settings)?;
        let mut sequence = Sequence::new(&spec, self.context(), kv)?;
        let mut session = Lent { executor: &mut executor, sequence: &mut sequence, observer: &mut () };
        self.prefill_publishing(&mut session, cache, ledger, &mut transient)?;
        Ok(())
    }

    /// Extends the session to the end of the prompt, each chunk published. Returns the logits of the last row.
    fn prefill_publishing<O: PassObserver>(
        &self,
        session: &mut Lent<'_, O>,
        cache: &PrefixCache,
        ledger: &Ledger,
        transient: &mut Reservation,
    ) -> Result<Vec<f32>, PrefillFault> {
        let mut last = Vec::new();
        let start = session.len();
        let mut sink = |_: Range<usize>, logits: &[f32]| last = logits.to_vec();
        let mut target = PromptTarget::new(session, self.prompt, LogitRows::Last, &mut sink).publishing_to(cache);
        let chunk = ChunkSize::Fixed(CHUNK_ROWS);
        let driver = Driver::new(DriverOptions { chunk, ..DriverOptions::new(ledger.clone()) });
        let never = CancelToken::new();
        driver.run_holding(&mut target, start..self.prompt.len(), transient, &never, |_| ()).map_err(Box::new)?;
        Ok(last)
    }

    /// The request goes on in a fork taken after `decoded` of its tokens, in turns with the sequence it was taken from, which goes on with
    /// others.
    pub(super) fn forked<O: PassObserver>(&self, decoded: usize, observer: &mut O) -> Result<Answer> {
        let mut admission = self.admit(self.settings, Money::Unlimited)?;
        let mut executor = self.executor(self.settings)?;
        let mut parent = self.admitted(&mut admission)?;
        let mut session = Lent { executor: &mut executor, sequence: &mut parent, observer };
        let (mut last, _) = self.prefill(&mut session, &Self::BASE, &mut admission)?;
        let mut recorder = Recorder::default();
        for _ in 0..decoded {
            let token = recorder.take(&last);
            last = session.extend(&[token], LogitRows::Last)?.values.to_vec();
        }
        let reservation = admission.ledger.reserve(Kind::Kv, parent.fork_bytes(self.context()))?;
        let mut fork = parent.fork(self.context(), reservation)?;
        let mut others = Random::new(8).tokens(self.context(), self.subject.vocab_size()).into_iter();
        let mut token = recorder.take(&last);
        while !recorder.is_full() {
            let other = [others.next().context("a token for each step")?];
            let mut beside = Lent { executor: &mut executor, sequence: &mut parent, observer: &mut () };
            beside.extend(&other, LogitRows::None)?;
            let mut session = Lent { executor: &mut executor, sequence: &mut fork, observer };
            let logits = session.extend(&[token], LogitRows::Last)?;
            token = recorder.take(logits.last().context("one row was asked for")?);
        }
        recorder.answer()
    }
}
