//! One budget, drawn on by owned reservations.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ReserveError;

/// How many bytes a ledger may hand out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Budget {
    /// At most this many bytes at any time.
    Bytes(u64),
    /// As many as can be counted. Reservations are still recorded, so usage and peak are known.
    Unlimited,
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
}

/// A budget and the bytes reserved from it. Clones are handles to the same books.
///
/// The sum of all living [`Reservation`]s never passes the budget: check and booking happen under one lock, so two
/// callers are never admitted on the same free bytes.
#[derive(Debug, Clone)]
pub struct Ledger {
    books: Arc<Mutex<Books>>,
    budget: Budget,
}

#[derive(Debug)]
struct Books {
    reserved_bytes: [u64; Kind::ALL.len()],
    peak_bytes: u64,
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
    /// Another thread may take them at once: decide by [`Ledger::reserve`], not by this number.
    #[must_use]
    pub fn free_bytes(&self) -> Option<u64> {
        match self.budget {
            Budget::Bytes(budget) => Some(budget - self.reserved_bytes()),
            Budget::Unlimited => None,
        }
    }
}

impl Ledger {
    /// An empty ledger over `budget`.
    #[must_use]
    pub fn new(budget: Budget) -> Self {
        let books = Books { reserved_bytes: [0; Kind::ALL.len()], peak_bytes: 0 };
        Self { books: Arc::new(Mutex::new(books)), budget }
    }

    /// The budget given at the start.
    #[must_use]
    pub fn budget(&self) -> Budget {
        self.budget
    }

    /// Takes `bytes` out of the budget until the returned value is dropped. Zero bytes always succeed.
    ///
    /// # Errors
    /// [`ReserveError::Later`] if the bytes are there but held by kinds that end; [`ReserveError::Never`] if they are more
    /// than the budget less the resident kinds; [`ReserveError::Uncountable`] past 64 bits. Nothing is reserved then.
    pub fn reserve(&self, kind: Kind, bytes: u64) -> Result<Reservation, ReserveError> {
        self.take(kind, bytes, 0)?;
        Ok(Reservation { ledger: self.clone(), kind, bytes })
    }

    /// What is reserved, for what, and the peak so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let books = self.lock();
        let [weights_bytes, overhead_bytes, kv_bytes, transient_bytes, prefix_cache_bytes] = books.reserved_bytes;
        Usage {
            budget: self.budget,
            weights_bytes,
            overhead_bytes,
            kv_bytes,
            transient_bytes,
            prefix_cache_bytes,
            peak_bytes: books.peak_bytes,
        }
    }

    /// Whether both handles lead to the same books.
    #[must_use]
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.books, &other.books)
    }

    /// Books `bytes` more for a holder that already has `held_bytes` of `kind`.
    fn take(&self, kind: Kind, bytes: u64, held_bytes: u64) -> Result<(), ReserveError> {
        let mut books = self.lock();
        let reserved_bytes = books.total();
        let limit_bytes = match self.budget {
            Budget::Bytes(budget_bytes) => budget_bytes,
            Budget::Unlimited => u64::MAX,
        };
        let Some(total) = reserved_bytes.checked_add(bytes).filter(|total| *total <= limit_bytes) else {
            return Err(match self.budget {
                Budget::Bytes(budget_bytes) => books.refusal(budget_bytes, kind, bytes, held_bytes),
                Budget::Unlimited => ReserveError::Uncountable { needed_bytes: bytes, reserved_bytes },
            });
        };
        books.reserved_bytes[kind.index()] += bytes;
        books.peak_bytes = books.peak_bytes.max(total);
        Ok(())
    }

    fn give_back(&self, kind: Kind, bytes: u64) {
        self.lock().reserved_bytes[kind.index()] -= bytes;
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        // Every change is one addition after all checks: a panicking holder cannot leave half of one behind.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    fn total(&self) -> u64 {
        self.reserved_bytes.iter().sum()
    }

    fn resident(&self) -> u64 {
        Kind::ALL.into_iter().filter(|kind| kind.is_resident()).map(|kind| self.reserved_bytes[kind.index()]).sum()
    }

    fn refusal(&self, budget_bytes: u64, kind: Kind, bytes: u64, held_bytes: u64) -> ReserveError {
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

/// Bytes taken out of a ledger's budget; dropping it gives them back.
///
/// Hold it beside the memory it stands for, and drop it after that memory.
#[derive(Debug)]
#[must_use = "dropping a reservation gives its bytes back"]
pub struct Reservation {
    ledger: Ledger,
    kind: Kind,
    bytes: u64,
}

impl Reservation {
    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What they are held for.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The ledger they came from.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Takes `bytes` more.
    ///
    /// # Errors
    /// As [`Ledger::reserve`]; `Never` then counts what is already held. The reservation is unchanged.
    pub fn grow(&mut self, bytes: u64) -> Result<(), ReserveError> {
        self.ledger.take(self.kind, bytes, self.bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Gives `bytes` back.
    ///
    /// # Panics
    /// If fewer than `bytes` are held.
    pub fn shrink(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "cannot give back {bytes} of {} reserved bytes", self.bytes);
        self.bytes -= bytes;
        self.ledger.give_back(self.kind, bytes);
    }

    /// Parts `bytes` off into a reservation of the same kind; the ledger's sums do not change.
    ///
    /// # Panics
    /// If fewer than `bytes` are held.
    pub fn split(&mut self, bytes: u64) -> Self {
        assert!(bytes <= self.bytes, "cannot split {bytes} off {} reserved bytes", self.bytes);
        self.bytes -= bytes;
        Self { ledger: self.ledger.clone(), kind: self.kind, bytes }
    }

    /// Takes over the bytes of `other`, as this reservation's kind, in one step.
    ///
    /// # Panics
    /// If `other` came from another ledger.
    pub fn absorb(&mut self, mut other: Self) {
        assert!(self.ledger.same_as(&other.ledger), "reservations of two ledgers cannot be joined");
        other.move_to(self.kind);
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Holds the same bytes for another purpose, in one step: no other caller can take them in between.
    pub fn move_to(&mut self, kind: Kind) {
        let mut books = self.ledger.lock();
        books.reserved_bytes[self.kind.index()] -= self.bytes;
        books.reserved_bytes[kind.index()] += self.bytes;
        drop(books);
        self.kind = kind;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.ledger.give_back(self.kind, self.bytes);
    }
}

#[cfg(test)]
mod tests;
