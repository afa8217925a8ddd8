//! A place in the queue.

use std::time::{Duration, Instant};

use super::books::Kind;
use super::handle::Ledger;
use super::reservation::Reservation;
use crate::ReserveError;

/// A request that waits for its turn and its bytes; dropping it leaves the queue.
#[derive(Debug)]
#[must_use = "dropping a ticket leaves the queue"]
pub struct Ticket {
    ledger: Ledger,
    id: u64,
    kind: Kind,
    bytes: u64,
}

/// Ends the wait of one [`Ticket`] from elsewhere.
#[derive(Debug, Clone)]
pub struct Canceller {
    ledger: Ledger,
    id: u64,
}

impl Canceller {
    /// The ticket's holder gets [`ReserveError::Cancelled`], unless it was served before.
    pub fn cancel(&self) {
        self.ledger.change(|books| books.cancel(self.id));
    }
}

impl Ticket {
    pub(super) fn new(ledger: Ledger, id: u64, kind: Kind, bytes: u64) -> Self {
        Self { ledger, id, kind, bytes }
    }

    /// A handle that ends this wait.
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        Canceller { ledger: self.ledger.clone(), id: self.id }
    }

    /// The reservation if the request was served by now; the ticket itself while it still waits. Asks evictable holders for
    /// what is missing, and does not block otherwise.
    ///
    /// # Errors
    /// [`ReserveError::Cancelled`]; [`ReserveError::Never`] if the resident kinds have grown too far.
    pub fn poll(self) -> Result<Result<Reservation, Self>, ReserveError> {
        let mut outcome = self.ledger.lock().poll(self.id);
        if outcome.is_none() {
            self.ledger.evict_for(self.id);
            outcome = self.ledger.lock().poll(self.id);
        }
        match outcome {
            None => Ok(Err(self)),
            Some(Ok(())) => Ok(Ok(self.granted())),
            Some(Err(refusal)) => Err(refusal),
        }
    }

    /// Waits until the request is served, at most for `timeout`.
    ///
    /// # Errors
    /// As [`Ticket::poll`], and [`ReserveError::TimedOut`].
    pub fn wait(self, timeout: Duration) -> Result<Reservation, ReserveError> {
        let began = Instant::now();
        // A deadline past the end of time is none.
        let deadline = began.checked_add(timeout);
        loop {
            let mut books = self.ledger.lock();
            let seen = books.version();
            match books.poll(self.id) {
                Some(Ok(())) => {
                    drop(books);
                    return Ok(self.granted());
                }
                Some(Err(refusal)) => return Err(refusal),
                None => drop(books),
            }
            self.ledger.evict_for(self.id);
            books = self.ledger.lock();
            // Only what changed since the last look ends the sleep; another thread's wake-up alone does not.
            while books.version() == seen {
                let now = Instant::now();
                let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
                if left == Some(Duration::ZERO) {
                    let waited_ms = u64::try_from((now - began).as_millis()).unwrap_or(u64::MAX);
                    return Err(books.timed_out(self.bytes, waited_ms));
                }
                books = self.ledger.sleep(books, left);
            }
        }
    }

    fn granted(self) -> Reservation {
        // The outcome was fetched, so dropping the ticket afterwards finds nothing to give back.
        Reservation::booked(self.ledger.clone(), self.kind, self.bytes)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.ledger.change(|books| books.leave(self.id));
    }
}
