//! When to flush queued work: a byte threshold over what the steps touch.

use crate::{Dims, Program, SlotKind, StepId};

/// Counts the bytes that steps touch on a lazy or queued backend and says when to flush.
///
/// The order per step is: run, [`account`](Self::account), release, then flush if told to. Accounting after the release
/// would miss what the step released; flushing before it would keep that memory. A threshold does not replace a limit
/// on the allocator: neither frees what is still referenced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlushMeter {
    threshold_bytes: u64,
    pending_bytes: u64,
}

impl FlushMeter {
    /// A meter that asks for a flush once `threshold_bytes` have been touched since the last one.
    pub const fn new(threshold_bytes: u64) -> Self {
        Self { threshold_bytes, pending_bytes: 0 }
    }

    /// Adds what a step has touched: every slot it names, operands and results alike, except constants and state.
    /// Returns whether to flush once the step's slots are released, and starts again from zero if so.
    ///
    /// The steps of nested chains are accounted as they run, not with the step that runs them.
    pub fn account(&mut self, program: &Program, step: StepId, dims: &Dims) -> bool {
        program.step(step).op.visit(|slot, _| {
            let (root, _) = program.root(slot);
            match program.slot(root).kind {
                SlotKind::Constant | SlotKind::State => {}
                SlotKind::Input | SlotKind::Output | SlotKind::Temporary | SlotKind::View { .. } => {
                    self.pending_bytes = self.pending_bytes.saturating_add(program.bytes(slot, dims));
                }
            }
        });
        let flush = self.pending_bytes >= self.threshold_bytes;
        if flush {
            self.pending_bytes = 0;
        }
        flush
    }

    /// Bytes touched since the last flush.
    pub const fn pending_bytes(&self) -> u64 {
        self.pending_bytes
    }
}
