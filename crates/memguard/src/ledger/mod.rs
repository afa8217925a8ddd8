//! One budget, drawn on by owned reservations.

mod books;
mod handle;
mod reservation;
mod ticket;

pub use books::{Budget, Kind, Usage};
pub use handle::{Evict, Ledger};
pub use reservation::Reservation;
pub use ticket::{Canceller, Ticket};

#[cfg(test)]
mod queue_tests;
#[cfg(test)]
mod tests;
