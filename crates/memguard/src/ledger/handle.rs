//! The handle that callers hold.

use std::fmt;
use std::sync::{Arc as StdArc, PoisonError, Weak};
use std::time::Duration;

use super::books::{Books, Budget, Kind, Usage};
use super::reservation::Reservation;
use super::ticket::Ticket;
use crate::ReserveError;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard};

/// A holder that can give bytes back when others need them, such as a prefix cache.
pub trait Evict: Send + Sync {
    /// Drops or shrinks own reservations by `wanted_bytes` in all, or by as much as can go.
    ///
    /// Called on the thread that asks for memory, with no lock of the ledger held; several threads may call at once. It
    /// must not reserve anything. It may wait for work of its own that gives bytes back, if that has an end. Do not hold a lock that
    /// `evict` takes while reserving.
    fn evict(&self, wanted_bytes: u64);
}

impl<F: Fn(u64) + Send + Sync> Evict for F {
    fn evict(&self, wanted_bytes: u64) {
        self(wanted_bytes);
    }
}

/// A budget and the bytes reserved from it. Clones are handles to the same books.
///
/// The sum of all living [`Reservation`]s never passes the budget: check and booking happen under one lock, so two
/// callers are never admitted on the same free bytes.
///
/// Requests that wait ([`Ledger::reserve_within`], [`Ledger::enqueue`]) are served in order of arrival, and newcomers stand
/// behind them even if they would fit. Two exceptions keep admitted work going, since those who wait, wait for it to end:
/// transients go before all other kinds, and a holder that grows stands behind nobody.
#[derive(Clone)]
pub struct Ledger {
    core: Arc<Core>,
    budget: Budget,
}

struct Core {
    books: Mutex<Books>,
    changed: Condvar,
    evictors: Mutex<Vec<Weak<dyn Evict>>>,
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("usage", &self.usage()).field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}

impl Ledger {
    /// An empty ledger over `budget`.
    #[must_use]
    pub fn new(budget: Budget) -> Self {
        let core =
            Core { books: Mutex::new(Books::new(budget)), changed: Condvar::new(), evictors: Mutex::new(Vec::new()) };
        Self { core: Arc::new(core), budget }
    }

    /// The budget given at the start.
    #[must_use]
    pub fn budget(&self) -> Budget {
        self.budget
    }

    /// Takes `bytes` out of the budget until the returned value is dropped. Zero bytes always succeed. Does not wait, but
    /// asks evictable holders for what is missing.
    ///
    /// # Errors
    /// [`ReserveError::Later`] if the bytes are there but held by kinds that end; [`ReserveError::Behind`] if others wait for
    /// them; [`ReserveError::Never`] if they are more than the budget less the resident kinds;
    /// [`ReserveError::Uncountable`] past 64 bits. Nothing is reserved then.
    pub fn reserve(&self, kind: Kind, bytes: u64) -> Result<Reservation, ReserveError> {
        self.evicting(bytes, |books| books.reserve(kind, bytes))?;
        Ok(Reservation::booked(self.clone(), kind, bytes))
    }

    /// As [`Ledger::reserve`], but leaves evictable holders alone: for what is only nice to have, such as a larger chunk.
    ///
    /// # Errors
    /// As [`Ledger::reserve`].
    pub fn reserve_free(&self, kind: Kind, bytes: u64) -> Result<Reservation, ReserveError> {
        self.change(|books| books.reserve(kind, bytes))?;
        Ok(Reservation::booked(self.clone(), kind, bytes))
    }

    /// As [`Ledger::reserve`], but waits for its turn and its bytes, at most for `timeout`.
    ///
    /// # Errors
    /// [`ReserveError::Never`] or [`ReserveError::Uncountable`], at once or when the resident kinds grow while it waits;
    /// [`ReserveError::TimedOut`] after `timeout`.
    pub fn reserve_within(&self, kind: Kind, bytes: u64, timeout: Duration) -> Result<Reservation, ReserveError> {
        self.enqueue(kind, bytes)?.wait(timeout)
    }

    /// Takes a place in the queue, to be waited for, polled or cancelled.
    ///
    /// # Errors
    /// [`ReserveError::Never`] or [`ReserveError::Uncountable`]: waiting would not help.
    pub fn enqueue(&self, kind: Kind, bytes: u64) -> Result<Ticket, ReserveError> {
        let id = self.change(|books| books.enqueue(kind, bytes))?;
        Ok(Ticket::new(self.clone(), id, kind, bytes))
    }

    /// Requests that wait now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.lock().waiting()
    }

    /// Asks `holder` to give bytes back when a request would not fit, after those added before it. The ledger does not keep
    /// the holder alive; one that is gone is forgotten.
    pub fn add_evictable<E: Evict + 'static>(&self, holder: &StdArc<E>) {
        let holder: Weak<dyn Evict> = StdArc::<E>::downgrade(holder);
        self.core.evictors.lock().unwrap_or_else(PoisonError::into_inner).push(holder);
    }

    /// Asks evictable holders, one after the other, until they have given back `wanted_bytes` or all they can: for when the machine
    /// runs short, whatever the budget says. Returns the bytes by which the prefix cache shrank.
    pub fn evict(&self, wanted_bytes: u64) -> u64 {
        let cached_bytes = || self.usage().prefix_cache_bytes;
        let before_bytes = cached_bytes();
        let freed_bytes = || before_bytes.saturating_sub(cached_bytes());
        for holder in self.evictors() {
            let missing_bytes = wanted_bytes.saturating_sub(freed_bytes());
            if missing_bytes == 0 {
                break;
            }
            holder.evict(missing_bytes);
        }
        freed_bytes()
    }

    /// What is reserved, for what, and the peak so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.lock().usage()
    }

    /// Whether both handles lead to the same books.
    #[must_use]
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }

    /// Runs `step`; where it fails for now, asks evictable holders one after the other and runs it again.
    pub(super) fn evicting(
        &self,
        bytes: u64,
        mut step: impl FnMut(&mut Books) -> Result<(), ReserveError>,
    ) -> Result<(), ReserveError> {
        let mut refusal = match self.change(&mut step) {
            Err(refusal @ ReserveError::Later { .. }) => refusal,
            done => return done,
        };
        for holder in self.evictors() {
            let missing_bytes = self.lock().missing(bytes);
            if missing_bytes > 0 {
                holder.evict(missing_bytes);
            }
            refusal = match self.change(&mut step) {
                Err(refusal @ ReserveError::Later { .. }) => refusal,
                done => return done,
            };
        }
        Err(refusal)
    }

    /// Asks evictable holders, one after the other, until `id` and those before it could be served.
    pub(super) fn evict_for(&self, id: u64) {
        for holder in self.evictors() {
            let missing_bytes = self.lock().shortfall(id);
            if missing_bytes == 0 {
                return;
            }
            holder.evict(missing_bytes);
        }
    }

    /// Runs `step` on the books, and wakes those who wait if it settled any of them or made bytes evictable.
    pub(super) fn change<T>(&self, step: impl FnOnce(&mut Books) -> T) -> T {
        let mut books = self.lock();
        let before = books.version();
        let result = step(&mut books);
        if books.version() != before {
            self.core.changed.notify_all();
        }
        result
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Books> {
        // Every change is made of additions after all checks: a panicking holder cannot leave half of one behind.
        self.core.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until something changes, or `left` is over; `None`: as long as it takes.
    pub(super) fn sleep<'a>(&self, books: MutexGuard<'a, Books>, left: Option<Duration>) -> MutexGuard<'a, Books> {
        match left {
            None => self.core.changed.wait(books).unwrap_or_else(PoisonError::into_inner),
            Some(left) => self.core.changed.wait_timeout(books, left).unwrap_or_else(PoisonError::into_inner).0,
        }
    }

    fn evictors(&self) -> Vec<StdArc<dyn Evict>> {
        let mut evictors = self.core.evictors.lock().unwrap_or_else(PoisonError::into_inner);
        evictors.retain(|holder| holder.strong_count() > 0);
        evictors.iter().filter_map(Weak::upgrade).collect()
    }
}
