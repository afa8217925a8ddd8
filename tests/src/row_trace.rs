//! Where two runs part, although their passes are cut differently: a hash of what each step wrote for each position of one sequence.

use plimsoll_models::{HashSteps, LogitRows, Model, StepEvent, StepObserver};
use plimsoll_program::{Access, Extent};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{fmt, ops::Range};

/// The rows of a pass that belong to the sequence under observation.
#[derive(Debug, Clone, Default)]
pub struct OwnRows {
    /// Rows of the pass.
    pub rows: Range<usize>,
    /// Position of the first of them.
    pub start: usize,
    /// Rows of the pass's logits: those of the last of `rows`.
    pub logits: Range<usize>,
}

impl OwnRows {
    /// Of a pass with this sequence alone.
    #[must_use]
    pub fn alone(start: usize, rows: usize, wanted: LogitRows) -> Self {
        let logits = match wanted {
            LogitRows::None => 0,
            LogitRows::Last => 1,
            _ => rows,
        };
        Self { rows: 0..rows, start, logits: 0..logits }
    }
}

/// An observer of steps that is told whose rows the next pass has.
pub trait PassObserver: StepObserver {
    /// A pass is about to run.
    fn pass(&mut self, own: OwnRows);
}

impl PassObserver for () {
    fn pass(&mut self, _: OwnRows) {}
}

impl PassObserver for HashSteps {
    fn pass(&mut self, _: OwnRows) {}
}

/// A hash per position and step of the main chain. A position that goes through the model again replaces what is there.
#[derive(Debug, Serialize, Deserialize)]
pub struct RowTrace {
    steps: Vec<TracedStep>,
    /// By position, then by step; `None` where a step wrote no row for the position.
    positions: Vec<Vec<Option<u64>>>,
    #[serde(skip)]
    own: OwnRows,
}

#[derive(Debug, Serialize, Deserialize)]
struct TracedStep {
    label: String,
    op: String,
    /// Of what an observer sees of the step.
    #[serde(skip)]
    outputs: Vec<Extent>,
}

/// The first place where two runs part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Position in the sequence.
    pub position: usize,
    /// Index in the main chain.
    pub step: usize,
    /// Name of the operation.
    pub op: String,
    /// Scope in which the step was recorded, such as `layer 3`.
    pub label: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} ({}) of \"{}\", row {}", self.step, self.op, self.label, self.position)
    }
}

impl RowTrace {
    /// For passes of `model`.
    #[must_use]
    pub fn new(model: &Model) -> Self {
        let program = &model.architecture().program;
        let traced = program.main().steps().iter().map(|step| {
            let mut outputs = Vec::new();
            step.op.visit(|slot, access| {
                if access == Access::Write && program.slot(program.root(slot).0).kind.in_arena() {
                    outputs.push(program.slot(slot).extent);
                }
            });
            TracedStep { label: program.label(step.label).to_owned(), op: step.op.name().to_owned(), outputs }
        });
        Self { steps: traced.collect(), positions: Vec::new(), own: OwnRows::default() }
    }

    /// Hashes kept.
    #[must_use]
    pub fn hashes(&self) -> usize {
        self.positions.iter().flatten().flatten().count()
    }

    /// The first step that wrote something else for the first position at which any did; `None` if all is equal. A row depends on those of
    /// lower positions only, so all that this step read of them was equal. What only one of the two has is not compared.
    #[must_use]
    pub fn first_difference(&self, other: &Self) -> Option<Difference> {
        let parts = |(a, b): (&Option<u64>, &Option<u64>)| a.is_some() && b.is_some() && a != b;
        self.positions.iter().zip(&other.positions).enumerate().find_map(|(position, (ours, theirs))| {
            let step = ours.iter().zip(theirs).position(parts)?;
            let TracedStep { label, op, .. } = &self.steps[step];
            Some(Difference { position, step, op: op.clone(), label: label.clone() })
        })
    }
}

impl StepObserver for RowTrace {
    fn step(&mut self, event: &StepEvent<'_>) {
        if event.depth > 0 {
            return;
        }
        let OwnRows { rows, start, logits } = &self.own;
        let outputs = &self.steps[event.step].outputs;
        for (index, row) in rows.clone().enumerate() {
            // The last rows are those with logits.
            let logit_row = (index + logits.len()).checked_sub(rows.len()).map(|index| logits.start + index);
            let mut hash = None::<Sha256>;
            for (bytes, extent) in event.outputs.iter().zip(outputs) {
                let place = match extent {
                    Extent::PerRow(_) => Some((row, event.dims.rows)),
                    Extent::PerLogitRow(_) => logit_row.map(|row| (row, event.dims.logit_rows)),
                    Extent::Fixed(_) => None,
                };
                if let Some((row, rows)) = place {
                    let width = bytes.len() / rows;
                    hash.get_or_insert_default().update(&bytes[row * width..][..width]);
                }
            }
            let Some(hash) = hash else { continue };
            let first = hash.finalize().first_chunk().copied().map(u64::from_le_bytes);
            if self.positions.len() <= start + index {
                self.positions.resize(start + index + 1, vec![None; self.steps.len()]);
            }
            self.positions[start + index][event.step] = first;
        }
    }
}

impl PassObserver for RowTrace {
    fn pass(&mut self, own: OwnRows) {
        self.own = own;
    }
}
