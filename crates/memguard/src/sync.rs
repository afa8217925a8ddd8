//! The primitives under the ledger, in one place: the model check puts others in their stead.

pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
