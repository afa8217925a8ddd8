//! A flag that ends a prefill early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks a prefill to end. Clones share the flag, so that one goes to the driver (and into the target, for ends within a chunk)
/// and another to whoever may lose interest. Once set it stays set: a token belongs to one request.
#[derive(Debug, Clone, Default)]
pub struct CancelToken {
    cancelled: Arc<AtomicBool>,
}

impl CancelToken {
    /// A token that is not cancelled.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for the end. Safe to call from any thread and from a signal handler.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// The flag itself, for kernels that look at one: [`CancelToken::cancel`] sets it.
    #[must_use]
    pub fn flag(&self) -> &AtomicBool {
        &self.cancelled
    }

    /// Whether the end was asked for.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}
