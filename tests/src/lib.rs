//! Shared support of the tests that need the whole workspace: golden cases, models, comparisons.

pub mod golden;
