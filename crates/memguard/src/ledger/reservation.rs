//! Bytes that are held.

use super::books::Kind;
use super::handle::Ledger;
use crate::ReserveError;

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
    /// For bytes that are booked already.
    pub(super) fn booked(ledger: Ledger, kind: Kind, bytes: u64) -> Self {
        Self { ledger, kind, bytes }
    }

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

    /// Takes `bytes` more, ahead of those who wait, since they wait for holders to finish; a prefix cache stands behind
    /// them. Asks evictable holders for what is missing.
    ///
    /// # Errors
    /// As [`Ledger::reserve`]; `Never` then counts what is already held. The reservation is unchanged.
    pub fn grow(&mut self, bytes: u64) -> Result<(), ReserveError> {
        self.ledger.evicting(bytes, |books| books.grow(self.kind, bytes, self.bytes))?;
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
        self.ledger.change(|books| books.give_back(self.kind, bytes));
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
        let (from, bytes) = (self.kind, self.bytes);
        self.ledger.change(|books| books.move_between(from, kind, bytes));
        self.kind = kind;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.ledger.change(|books| books.give_back(self.kind, self.bytes));
    }
}
