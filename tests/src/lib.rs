//! Shared support of the tests that need the whole workspace: golden cases, models, passes, comparisons.

pub mod compare;
pub mod cpu_path;
pub mod golden;
pub mod kl;
pub mod matrix;
pub mod model;
pub mod pass;
pub mod random;
pub mod row_trace;
pub mod subject;
pub mod table;
