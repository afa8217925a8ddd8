//! The books themselves: plain state, every method one step under the ledger's lock.

use crate::ReserveError;

/// How many bytes a ledger may hand out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Budget {
    /// At most this many bytes at any time.
    Bytes(u64),
    /// As many as can be counted. Reservations are still recorded, so usage and peak are known.
    Unlimited,
}

impl Budget {
    fn limit_bytes(self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Unlimited => u64::MAX,
        }
    }
}

/// What a reservation is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Model weights in kernel layout. Resident.
    Weights,
    /// Everything else that stays after load: tokenizer, code, buffers. Resident.
    Overhead,
    /// Keys and values of running sequences.
    Kv,
    /// What lives only during a pass: activations, workspaces, logits.
    Transient,
    /// KV blocks kept for prompts to come.
    PrefixCache,
}

impl Kind {
    /// Every kind, in the order of [`Usage`]'s fields.
    pub const ALL: [Self; 5] = [Self::Weights, Self::Overhead, Self::Kv, Self::Transient, Self::PrefixCache];

    /// Whether the kind stays as long as the model is loaded; what it holds is never waited for.
    #[must_use]
    pub const fn is_resident(self) -> bool {
        matches!(self, Self::Weights | Self::Overhead)
    }

    const fn index(self) -> usize {
        match self {
            Self::Weights => 0,
            Self::Overhead => 1,
            Self::Kv => 2,
            Self::Transient => 3,
            Self::PrefixCache => 4,
        }
    }

    /// Transients belong to work that was admitted already, and that others wait for: they are served before admissions.
    const fn is_admitted_work(self) -> bool {
        matches!(self, Self::Transient)
    }

    /// Whether a request of this kind stands behind one of `earlier` that waits.
    const fn waits_behind(self, earlier: Self) -> bool {
        earlier.is_admitted_work() || !self.is_admitted_work()
    }
}

/// A snapshot of a ledger; all numbers belong to the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "field names say what they hold and in which unit")]
pub struct Usage {
    pub budget: Budget,
    pub weights_bytes: u64,
    pub overhead_bytes: u64,
    pub kv_bytes: u64,
    pub transient_bytes: u64,
    pub prefix_cache_bytes: u64,
    /// The largest sum of reservations the ledger has ever held.
    pub peak_bytes: u64,
}

impl Usage {
    /// Bytes reserved for `kind`.
    #[must_use]
    pub const fn of(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Weights => self.weights_bytes,
            Kind::Overhead => self.overhead_bytes,
            Kind::Kv => self.kv_bytes,
            Kind::Transient => self.transient_bytes,
            Kind::PrefixCache => self.prefix_cache_bytes,
        }
    }

    /// Bytes reserved for all kinds together.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        Kind::ALL.into_iter().map(|kind| self.of(kind)).sum()
    }

    /// Bytes that could be reserved now; `None` when the budget is unlimited.
    ///
    /// Another thread may take them at once: decide by [`Ledger::reserve`](crate::Ledger::reserve), not by this number.
    #[must_use]
    pub fn free_bytes(&self) -> Option<u64> {
        match self.budget {
            Budget::Bytes(budget) => Some(budget - self.reserved_bytes()),
            Budget::Unlimited => None,
        }
    }
}

/// Sums and queue of one ledger.
#[derive(Debug)]
pub(super) struct Books {
    budget: Budget,
    reserved_bytes: [u64; Kind::ALL.len()],
    peak_bytes: u64,
    /// In order of arrival; settled ones stay until their ticket fetches the outcome.
    waiters: Vec<Waiter>,
    next_id: u64,
    /// Counts the changes that a waiter may have to look at.
    version: u64,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    kind: Kind,
    bytes: u64,
    state: WaitState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum WaitState {
    Waiting,
    /// The bytes are booked.
    Granted,
    Refused(ReserveError),
}

impl Books {
    pub(super) fn new(budget: Budget) -> Self {
        Self {
            budget,
            reserved_bytes: [0; Kind::ALL.len()],
            peak_bytes: 0,
            waiters: Vec::new(),
            next_id: 0,
            version: 0,
        }
    }

    pub(super) fn usage(&self) -> Usage {
        let [weights_bytes, overhead_bytes, kv_bytes, transient_bytes, prefix_cache_bytes] = self.reserved_bytes;
        Usage {
            budget: self.budget,
            weights_bytes,
            overhead_bytes,
            kv_bytes,
            transient_bytes,
            prefix_cache_bytes,
            peak_bytes: self.peak_bytes,
        }
    }

    /// Changes whenever waiters should look again.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiters.iter().filter(|waiter| waiter.state == WaitState::Waiting).count()
    }

    /// Books `bytes` for a newcomer that does not wait; those who wait go first.
    pub(super) fn reserve(&mut self, kind: Kind, bytes: u64) -> Result<(), ReserveError> {
        self.stand_in_line(kind, bytes)?;
        self.take(kind, bytes, 0)
    }

    /// Books `bytes` more for a holder that already has `held_bytes` of `kind`, ahead of all who wait: they wait for holders
    /// to finish. A cache does not finish, so it stands in line.
    pub(super) fn grow(&mut self, kind: Kind, bytes: u64, held_bytes: u64) -> Result<(), ReserveError> {
        if kind == Kind::PrefixCache {
            self.stand_in_line(kind, bytes)?;
        }
        self.take(kind, bytes, held_bytes)
    }

    fn stand_in_line(&self, kind: Kind, bytes: u64) -> Result<(), ReserveError> {
        let ahead = |waiter: &&Waiter| waiter.state == WaitState::Waiting && kind.waits_behind(waiter.kind);
        let waiting = self.waiters.iter().filter(ahead).count();
        if waiting > 0 && bytes > 0 && self.never(kind, bytes).is_none() {
            let free_bytes = self.budget.limit_bytes() - self.total();
            return Err(ReserveError::Behind { needed_bytes: bytes, free_bytes, waiting });
        }
        Ok(())
    }

    fn take(&mut self, kind: Kind, bytes: u64, held_bytes: u64) -> Result<(), ReserveError> {
        if !self.fits(bytes) {
            return Err(self.refusal(kind, bytes, held_bytes));
        }
        self.book(kind, bytes);
        if kind.is_resident() {
            // Less is left for ever: who waited may now wait in vain.
            self.settle();
        }
        Ok(())
    }

    pub(super) fn give_back(&mut self, kind: Kind, bytes: u64) {
        self.reserved_bytes[kind.index()] -= bytes;
        if bytes > 0 {
            // Even where nobody can be served yet: what ends may leave more to evict.
            self.version += 1;
            self.settle();
        }
    }

    pub(super) fn move_between(&mut self, from: Kind, to: Kind, bytes: u64) {
        self.reserved_bytes[from.index()] -= bytes;
        self.reserved_bytes[to.index()] += bytes;
        if bytes > 0 && from != to {
            // What became evictable can be asked for, and what became resident cannot be waited for.
            self.version += 1;
            self.settle();
        }
    }

    /// Puts a request at the end of the queue, or grants it at once. What fits never is refused here.
    pub(super) fn enqueue(&mut self, kind: Kind, bytes: u64) -> Result<u64, ReserveError> {
        if let Some(refusal) = self.never(kind, bytes) {
            return Err(refusal);
        }
        let id = self.next_id;
        self.next_id += 1;
        self.waiters.push(Waiter { id, kind, bytes, state: WaitState::Waiting });
        self.settle();
        Ok(id)
    }

    /// The outcome of a request, fetched once; `None` while it waits.
    pub(super) fn poll(&mut self, id: u64) -> Option<Result<(), ReserveError>> {
        let at = self.position(id)?;
        match &self.waiters[at].state {
            WaitState::Waiting => return None,
            WaitState::Granted | WaitState::Refused(_) => {}
        }
        match self.waiters.remove(at).state {
            WaitState::Refused(error) => Some(Err(error)),
            WaitState::Waiting | WaitState::Granted => Some(Ok(())),
        }
    }

    /// Ends a wait from elsewhere; a request that was granted or refused already stays so.
    pub(super) fn cancel(&mut self, id: u64) {
        let Some(at) = self.position(id) else {
            return;
        };
        let waiter = &mut self.waiters[at];
        if waiter.state == WaitState::Waiting {
            waiter.state = WaitState::Refused(ReserveError::Cancelled { needed_bytes: waiter.bytes });
            self.version += 1;
            self.settle();
        }
    }

    /// Takes a request out of the queue; what was granted and not fetched goes back.
    pub(super) fn leave(&mut self, id: u64) {
        let Some(at) = self.position(id) else {
            return;
        };
        let waiter = self.waiters.remove(at);
        if waiter.state == WaitState::Granted {
            self.give_back(waiter.kind, waiter.bytes);
        } else {
            self.settle();
        }
    }

    /// Bytes missing before `id` and all who go before it are served.
    pub(super) fn shortfall(&self, id: u64) -> u64 {
        let Some(mine) = self.position(id).map(|at| &self.waiters[at]) else {
            return 0;
        };
        let ahead = self.waiters.iter().filter(|waiter| {
            let earlier = if mine.kind.is_admitted_work() == waiter.kind.is_admitted_work() {
                waiter.id <= mine.id
            } else {
                waiter.kind.is_admitted_work()
            };
            waiter.state == WaitState::Waiting && earlier
        });
        let wanted = ahead.fold(0, |sum: u64, waiter| sum.saturating_add(waiter.bytes));
        wanted.saturating_sub(self.budget.limit_bytes() - self.total())
    }

    /// Bytes missing before a newcomer gets `bytes`.
    pub(super) fn missing(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(self.budget.limit_bytes() - self.total())
    }

    /// What a wait that runs out is told.
    pub(super) fn timed_out(&self, bytes: u64, waited_ms: u64) -> ReserveError {
        let free_bytes = self.budget.limit_bytes() - self.total();
        let budget_bytes = self.budget.limit_bytes();
        ReserveError::TimedOut { needed_bytes: bytes, free_bytes, budget_bytes, waited_ms }
    }

    /// Serves whoever is first for as long as the first fits: first the work that was admitted, then admissions. Nobody
    /// passes another in the same line, so a large request is served as soon as its bytes are there.
    fn settle(&mut self) {
        while let Some(at) = self.first_waiting() {
            let Waiter { kind, bytes, .. } = self.waiters[at];
            let state = if self.fits(bytes) {
                self.book(kind, bytes);
                WaitState::Granted
            } else if let Some(refusal) = self.never(kind, bytes) {
                WaitState::Refused(refusal)
            } else {
                return;
            };
            self.waiters[at].state = state;
            self.version += 1;
        }
    }

    fn first_waiting(&self) -> Option<usize> {
        let waits = |waiter: &Waiter| waiter.state == WaitState::Waiting;
        let admitted = self.waiters.iter().position(|waiter| waits(waiter) && waiter.kind.is_admitted_work());
        admitted.or_else(|| self.waiters.iter().position(waits))
    }

    fn position(&self, id: u64) -> Option<usize> {
        self.waiters.iter().position(|waiter| waiter.id == id)
    }

    fn fits(&self, bytes: u64) -> bool {
        self.total().checked_add(bytes).is_some_and(|total| total <= self.budget.limit_bytes())
    }

    fn book(&mut self, kind: Kind, bytes: u64) {
        self.reserved_bytes[kind.index()] += bytes;
        self.peak_bytes = self.peak_bytes.max(self.total());
    }

    fn total(&self) -> u64 {
        self.reserved_bytes.iter().sum()
    }

    fn resident(&self) -> u64 {
        Kind::ALL.into_iter().filter(|kind| kind.is_resident()).map(|kind| self.reserved_bytes[kind.index()]).sum()
    }

    /// The refusal of a newcomer's `bytes`, if no release could help it.
    fn never(&self, kind: Kind, bytes: u64) -> Option<ReserveError> {
        let refusal = self.refusal(kind, bytes, 0);
        (!self.fits(bytes) && !matches!(refusal, ReserveError::Later { .. })).then_some(refusal)
    }

    fn refusal(&self, kind: Kind, bytes: u64, held_bytes: u64) -> ReserveError {
        let budget_bytes = match self.budget {
            Budget::Bytes(budget_bytes) => budget_bytes,
            Budget::Unlimited => {
                return ReserveError::Uncountable { needed_bytes: bytes, reserved_bytes: self.total() };
            }
        };
        // What the holder has is not given back before it gets more, so it counts as needed, once.
        let held_bytes = if kind.is_resident() { 0 } else { held_bytes };
        let resident_bytes = self.resident();
        let needed_bytes = bytes.saturating_add(held_bytes);
        if needed_bytes > budget_bytes - resident_bytes {
            ReserveError::Never { needed_bytes, budget_bytes, resident_bytes, max_context_tokens: None }
        } else {
            ReserveError::Later { needed_bytes: bytes, free_bytes: budget_bytes - self.total(), budget_bytes }
        }
    }
}
