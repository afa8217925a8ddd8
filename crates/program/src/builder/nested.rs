//! Branches and recurrences: chains recorded inside a chain.
//!
//! A chain may read everything of the chains around it and overwrite nothing of theirs, scan carries excepted. Its own
//! slots end with it. The results of a branch are handed out without a copy where possible: the branch's temporary
//! becomes a view of the slot that the chain around owns.

use super::check::{Reject, Value};
use super::{Draft, ProgramBuilder};
use crate::program::ChainId;
use crate::{BuildError, Carry, Condition, Extent, Op, ScanInput, ScanOutput, Slot, SlotInfo, SlotKind};

/// The values of a scan: given by its body for one iteration, and by [`ProgramBuilder::scan`] for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanValues {
    /// Body: the next value of each carry. Scan: the final value of each carry.
    pub carries: Vec<Slot>,
    /// Body: results of one row, `[width]`. Scan: the same stacked, `[rows, width]`.
    pub outputs: Vec<Slot>,
}

impl ProgramBuilder {
    /// Records a branch. Both closures give equally many results of equal extents and types; the slots that stand for
    /// them afterwards are returned.
    ///
    /// A program whose rows must not depend on the number of rows chooses only between chains that give equal bits.
    pub fn if_(
        &mut self,
        condition: Condition,
        then_branch: impl FnOnce(&mut Self) -> Vec<Slot>,
        else_branch: impl FnOnce(&mut Self) -> Vec<Slot>,
    ) -> Vec<Slot> {
        let op = "if";
        if let Condition::Nonzero(slot) = condition
            && let Err(reject) = self.check_condition(op, slot)
        {
            self.broken(reject);
        }
        let then_chain = self.open();
        let then_results = then_branch(self);
        let outs: Vec<Slot> = then_results.iter().map(|&result| self.branch_out(op, result)).collect();
        self.close();
        let else_chain = self.open();
        let else_results = else_branch(self);
        if else_results.len() != outs.len() {
            let (then_results, else_results) = (outs.len(), else_results.len());
            let fault = BuildError::BranchResults { at: self.at(op), then_results, else_results };
            self.broken(fault.into());
        } else {
            for (&out, &result) in outs.iter().zip(&else_results) {
                if let Err(reject) = self.else_result(op, out, result) {
                    self.broken(reject);
                    self.meta[out.index()].broken = true;
                }
            }
        }
        self.close();
        self.push(Op::If { condition, then_chain, else_chain });
        outs
    }

    /// Records a recurrence over the rows of the pass.
    ///
    /// `inputs` are `[rows, width]`; `carries` are the initial values. `body` gets one `[width]` row of each input and
    /// the carries, and gives each carry's next value and any results, which come back stacked.
    ///
    /// A carry that is state, or a whole temporary of the current chain, is used where it is: the state is updated, the
    /// temporary must not be used any more, in the body neither. Any other carry is copied first. The body may overwrite
    /// its rows and carries in place.
    pub fn scan(
        &mut self,
        inputs: &[Slot],
        carries: &[Slot],
        body: impl FnOnce(&mut Self, &[Slot], &[Slot]) -> ScanValues,
    ) -> ScanValues {
        let op = "scan";
        let sources: Vec<Slot> = inputs.iter().map(|&input| self.scan_source(op, input)).collect();
        let mut held: Vec<Slot> = Vec::with_capacity(carries.len());
        for &carry in carries {
            let slot = self.hold_carry(op, carry, &sources, &held);
            held.push(slot);
        }
        let outer = self.chain();
        let chain = self.open();
        let roots: Vec<Slot> = held.iter().map(|&carry| self.root(carry).0).collect();
        for &root in &roots {
            // What was read from the carry before the scan would change from iteration to iteration.
            self.overwrite(root, op);
        }
        let shown: Vec<Slot> = held.iter().map(|&carry| self.carry_value(carry)).collect();
        let draft = &mut self.chains[chain.index()];
        draft.is_body = true;
        draft.carries = roots.clone();
        let rows: Vec<Slot> = sources.iter().map(|&source| self.scan_row(source)).collect();
        let ScanValues { carries: next, outputs } = body(self, &rows, &shown);
        if next.len() != held.len() {
            let fault = BuildError::ScanResults { at: self.at(op), carries: held.len(), next: next.len() };
            self.broken(fault.into());
        }
        let next: Vec<Carry> = held
            .iter()
            .zip(next)
            .map(|(&carry, next)| Carry { carry, next: self.next_value(op, carry, next, chain) })
            .collect();
        let stacked = outputs.into_iter().map(|row| self.stacked(op, row, outer, chain)).collect::<Vec<_>>();
        self.close();
        for &root in &roots {
            self.overwrite(root, op);
        }
        let finals = held.iter().map(|&carry| self.carry_value(carry)).collect();
        let result = ScanValues { carries: finals, outputs: stacked.iter().map(|output| output.stacked).collect() };
        let inputs = sources.into_iter().zip(rows).map(|(source, row)| ScanInput { source, row }).collect();
        self.push(Op::Scan { body: chain, inputs, carries: next, outputs: stacked });
        result
    }

    fn open(&mut self) -> ChainId {
        let parent = self.chain();
        let position = self.chains[parent.index()].steps.len();
        let chain = ChainId::from_index(self.chains.len());
        self.chains.push(Draft {
            parent: Some((parent, position)),
            steps: Vec::new(),
            carries: Vec::new(),
            is_body: false,
        });
        self.stack.push(chain);
        chain
    }

    fn close(&mut self) {
        self.stack.pop();
    }

    fn check_condition(&mut self, op: &'static str, slot: Slot) -> Result<(), Reject> {
        let value = self.operand(op, slot)?;
        self.has_extent(op, value, Extent::Fixed(1))
    }

    /// The slot of the chain around that stands for a result of the first branch.
    fn branch_out(&mut self, op: &'static str, result: Slot) -> Slot {
        let made = self.operand(op, result).map(|value| {
            let outer = self.stack[self.stack.len() - 2];
            let out = self.temporary(op, outer, value.extent, value.dtype, value.groups);
            self.bind(value, out);
            out
        });
        match made {
            Ok(out) => out,
            Err(reject) => {
                let broken = self.broken(reject);
                self.meta[broken.index()].owner = self.stack[self.stack.len() - 2];
                broken
            }
        }
    }

    fn else_result(&mut self, op: &'static str, out: Slot, result: Slot) -> Result<(), Reject> {
        let (target, value) = (self.operand(op, out)?, self.operand(op, result)?);
        self.like(op, value, target)?;
        if value.groups != target.groups {
            let (slot, width, groups) = (self.name_of(result), value.width(), target.groups);
            return Err(BuildError::Groups { at: self.at(op), slot, width, groups }.into());
        }
        self.bind(value, out);
        Ok(())
    }

    /// Lets a branch's result live in `out`: by giving up the branch's own memory, else by a copy.
    fn bind(&mut self, value: Value, out: Slot) {
        let owned = self.meta[value.root.index()].owner == self.chain()
            && self.slots[value.root.index()].kind == SlotKind::Temporary;
        if owned && self.covers_root(value) {
            self.slots[value.root.index()].kind = SlotKind::View { of: out };
            // Other results may be views of the same memory: they stay as fresh or stale as they were.
            let overwrites = self.meta[value.root.index()].overwrites;
            let meta = &mut self.meta[out.index()];
            (meta.version, meta.overwrites) = (overwrites, overwrites);
        } else {
            self.push(Op::Copy { x: value.slot, out });
        }
    }

    fn scan_source(&mut self, op: &'static str, input: Slot) -> Slot {
        let made = self.operand(op, input).and_then(|value| match value.extent {
            Extent::PerRow(_) => Ok(input),
            Extent::Fixed(_) | Extent::PerLogitRow(_) => {
                Err(self.wrong_rows(op, value, "one row per token of the pass"))
            }
        });
        self.settle(made)
    }

    /// The slot that carries: the given one if the scan may overwrite it, else a copy.
    fn hold_carry(&mut self, op: &'static str, carry: Slot, sources: &[Slot], held: &[Slot]) -> Slot {
        let made = self.operand(op, carry).and_then(|value| {
            let taken = sources.iter().chain(held).any(|&other| self.root(other).0 == value.root);
            if self.slots[value.root.index()].kind == SlotKind::State {
                // A copy would lose the update, and inside another scan the state must be carried by that scan.
                if taken || !self.covers_root(value) || !self.may_store(value.root) {
                    return Err(self.not_overwritable(op, value));
                }
                return Ok(carry);
            }
            Ok(if !taken && self.overwritable(value) { carry } else { self.copy(carry) })
        });
        self.settle(made)
    }

    /// The slot that shows one row of `source` to the body.
    fn scan_row(&mut self, source: Slot) -> Slot {
        let SlotInfo { extent, dtype, groups, .. } = self.slots[source.index()];
        let row = self.temporary("row", self.chain(), Extent::Fixed(extent.width()), dtype, groups);
        self.meta[row.index()].broken = self.meta[source.index()].broken;
        row
    }

    /// What `carry` takes after an iteration: the body's own memory, or the carry's, written in place. Anything else
    /// could be a carry that has already taken its next value, so it is copied.
    fn next_value(&mut self, op: &'static str, carry: Slot, next: Slot, body: ChainId) -> Slot {
        let made = self.operand(op, next).and_then(|value| {
            let SlotInfo { extent, dtype, .. } = self.slots[carry.index()];
            if self.meta[carry.index()].broken {
                return Err(Reject::Broken);
            }
            self.has_extent(op, value, extent)?;
            self.of_dtype(op, next, dtype)?;
            let in_place = value.root == self.root(carry).0 && self.covers_root(value);
            let owned = self.meta[value.root.index()].owner == body;
            Ok(if in_place || owned { next } else { self.copy(next) })
        });
        self.settle(made)
    }

    fn stacked(&mut self, op: &'static str, row: Slot, outer: ChainId, body: ChainId) -> ScanOutput {
        let made = self.operand(op, row).and_then(|value| {
            let Extent::Fixed(width) = value.extent else {
                return Err(self.wrong_rows(op, value, "one row of a fixed number of elements"));
            };
            debug_assert_eq!(self.chain(), body, "outputs are taken inside the body");
            Ok(self.temporary(op, outer, Extent::PerRow(width), value.dtype, value.groups))
        });
        match made {
            Ok(stacked) => ScanOutput { row, stacked },
            Err(reject) => {
                let broken = self.broken(reject);
                self.meta[broken.index()].owner = outer;
                ScanOutput { row: broken, stacked: broken }
            }
        }
    }

    /// A carry as it is now, for the current chain: in the body before an iteration, in the chain around at the end.
    fn carry_value(&mut self, carry: Slot) -> Slot {
        let SlotInfo { extent, dtype, groups, .. } = self.slots[carry.index()];
        if self.meta[carry.index()].broken {
            return carry;
        }
        let (root, _) = self.root(carry);
        self.alias(Value { slot: carry, root, extent, dtype, groups }, groups, self.chain())
    }
}
