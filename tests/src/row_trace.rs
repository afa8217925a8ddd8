//! Where two runs part, although their passes are cut differently: a hash of each row of what each step wrote.

use crate::compare::RowHash;
use plimsoll_models::{StepEvent, StepObserver};
use sha2::{Digest, Sha256};

/// Keeps a hash per step and row. For passes of one segment that compute the logits of every row: all that a step writes has a row for each
/// row of the pass then.
#[derive(Debug, Default)]
pub struct RowTrace {
    steps: Vec<TracedStep>,
    next: usize,
}

#[derive(Debug)]
struct TracedStep {
    label: String,
    step: usize,
    op: &'static str,
    rows: Vec<RowHash>,
}

impl RowTrace {
    /// The first step, in the order they run, that wrote another value in some row; and that row. `None` if all are equal.
    #[must_use]
    pub fn first_difference(&self, other: &Self) -> Option<String> {
        if self.steps.len() != other.steps.len() {
            return Some(format!("{} steps and {}", self.steps.len(), other.steps.len()));
        }
        self.steps.iter().zip(&other.steps).find_map(|(a, b)| {
            let row = if a.rows.len() == b.rows.len() {
                a.rows.iter().zip(&b.rows).position(|(a, b)| a != b)?
            } else {
                a.rows.len().min(b.rows.len())
            };
            Some(format!("step {} ({}) of \"{}\", row {row}", a.step, a.op, a.label))
        })
    }
}

impl StepObserver for RowTrace {
    fn step(&mut self, event: &StepEvent<'_>) {
        // Step 0 of the main chain starts the next pass.
        if event.step == 0 && event.depth == 0 {
            self.next = 0;
        }
        if self.next == self.steps.len() {
            let label = event.label.to_owned();
            self.steps.push(TracedStep { label, step: event.step, op: event.op, rows: Vec::new() });
        }
        let traced = &mut self.steps[self.next];
        self.next += 1;
        for row in 0..event.dims.rows {
            let mut hash = Sha256::new();
            for bytes in event.outputs {
                let width = bytes.len() / event.dims.rows;
                hash.update(&bytes[row * width..][..width]);
            }
            traced.rows.push(hash.finalize().into());
        }
    }
}
