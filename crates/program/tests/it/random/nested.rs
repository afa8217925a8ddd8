//! Branches and recurrences of a random program, nested in each other.

use std::cell::RefCell;

use plimsoll_program::{Condition, Extent, ProgramBuilder, ScanValues, Slot};

use super::{Act, EagerCondition, Handle, Recorder};
use crate::interpret::Arith;

impl Recorder<'_> {
    /// Records a nested chain; its own handles end with it.
    pub(super) fn nest<R>(&mut self, inner: impl FnOnce(&mut Self) -> R) -> (Vec<Act>, R) {
        let outer = std::mem::take(&mut self.acts);
        self.chain.push(self.chains);
        self.chains += 1;
        let result = inner(self);
        self.chain.pop();
        (std::mem::replace(&mut self.acts, outer), result)
    }

    /// Lends the builder's closures this recorder: the builder moves in, and out again at the end.
    pub(super) fn within<R>(&mut self, b: &mut ProgramBuilder, inner: impl FnOnce(&mut Self) -> R) -> R {
        std::mem::swap(&mut self.b, b);
        let result = inner(self);
        std::mem::swap(&mut self.b, b);
        result
    }

    pub(super) fn some_acts(&mut self) {
        for _ in 0..1 + self.choices.below(4) {
            self.act();
        }
    }

    pub(super) fn branch(&mut self) {
        let condition = self.find(|h| h.extent == Extent::Fixed(1)).filter(|_| self.choices.below(2) == 0);
        let (eager, condition) = match condition {
            Some(i) => (EagerCondition::Nonzero(self.handles[i].value), Condition::Nonzero(self.handles[i].slot)),
            None => {
                let rows = self.choices.below(6);
                (EagerCondition::RowsAtMost(rows), Condition::RowsAtMost(rows))
            }
        };
        let mut b = std::mem::take(&mut self.b);
        let before = self.handles.len();
        let states_before = self.state_values();
        let recorder = RefCell::new(self);
        let then_side = RefCell::new(None);
        let else_side = RefCell::new(None);
        let outs = b.if_(
            condition,
            |b| {
                let mut recorder = recorder.borrow_mut();
                recorder.within(b, |this| {
                    let (acts, results) = this.nest(|this| {
                        this.some_acts();
                        let wanted = this.choices.below(3);
                        let found: Vec<usize> = (0..wanted).filter_map(|_| this.find(|_| true)).collect();
                        found.into_iter().map(|i| this.handles[i]).collect::<Vec<_>>()
                    });
                    this.handles.truncate(before);
                    let slots = results.iter().map(|handle| handle.slot).collect();
                    then_side.replace(Some((acts, results, this.state_values())));
                    this.set_state_values(&states_before);
                    slots
                })
            },
            |b| {
                let mut recorder = recorder.borrow_mut();
                recorder.within(b, |this| {
                    let then_side = then_side.borrow();
                    let (_, then_results, _) = then_side.as_ref().unwrap();
                    let (acts, results) = this.nest(|this| {
                        this.some_acts();
                        then_results.iter().map(|like| this.matching(like.extent, like.groups)).collect::<Vec<_>>()
                    });
                    this.handles.truncate(before);
                    let slots = results.iter().map(|handle| handle.slot).collect();
                    else_side.replace(Some((acts, results, this.state_values())));
                    slots
                })
            },
        );
        let this = recorder.into_inner();
        this.b = b;
        let (then_acts, then_results, then_states) = then_side.into_inner().unwrap();
        let (else_acts, else_results, else_states) = else_side.into_inner().unwrap();
        let mut results = Vec::new();
        for ((out, then_result), else_result) in outs.into_iter().zip(then_results).zip(else_results) {
            let value = this.value();
            results.push([then_result.value, else_result.value, value]);
            this.add_fresh(out, value, then_result.extent, then_result.groups);
        }
        let mut states = Vec::new();
        for (then_state, else_state) in then_states.into_iter().zip(else_states) {
            let value = if then_state == else_state { then_state } else { this.value() };
            if then_state != else_state {
                results.push([then_state, else_state, value]);
            }
            states.push(value);
        }
        this.set_state_values(&states);
        this.acts.push(Act::If { condition: eager, then_acts, else_acts, results });
    }

    pub(super) fn state_values(&self) -> Vec<usize> {
        self.states.iter().map(|&(_, handle)| self.handles[handle].value).collect()
    }

    pub(super) fn set_state_values(&mut self, values: &[usize]) {
        for (&(_, handle), &value) in self.states.iter().zip(values) {
            self.handles[handle].value = value;
        }
    }

    /// A handle of a given extent, made if there is none.
    pub(super) fn matching(&mut self, extent: Extent, groups: usize) -> Handle {
        if let Some(i) = self.find(|h| h.extent == extent && h.groups == groups) {
            return self.handles[i];
        }
        let slot = self.b.fill(0.5, extent);
        let value = self.apply(Arith::Fill { value: 0.5, extent }, &[]);
        let slot = self.b.split_heads(slot, groups);
        self.add_fresh(slot, value, extent, groups);
        self.handles[self.handles.len() - 1]
    }

    pub(super) fn scan(&mut self) {
        let wanted = 1 + self.choices.below(2);
        let mut sources: Vec<Handle> = Vec::new();
        for _ in 0..wanted {
            let found = self.find(|h| matches!(h.extent, Extent::PerRow(_)));
            sources.extend(found.map(|i| self.handles[i]));
        }
        let here = self.here();
        let mut carries: Vec<Handle> = Vec::new();
        for _ in 0..self.choices.below(4) {
            let roots: Vec<usize> = carries.iter().map(|carry| carry.root).collect();
            let states: Vec<Slot> = self.states.iter().map(|state| state.0).collect();
            let nested = self.scans > 0;
            let found = self.find(|h| {
                // State of the sequence is carried by the outermost scan, then by that scan's carry in its body.
                let refused = nested && states.contains(&h.slot) || h.of_state && h.writable_in != Some(here);
                matches!(h.extent, Extent::Fixed(_)) && !roots.contains(&h.root) && !refused
            });
            carries.extend(found.map(|i| self.handles[i]));
        }
        let state_roots: Vec<usize> = self.states.iter().map(|&(_, handle)| self.handles[handle].root).collect();
        let states: Vec<Slot> = self.states.iter().map(|state| state.0).collect();
        carries.retain(|c| !state_roots.contains(&c.root) || states.contains(&c.slot));
        for carry in &carries {
            let taken = sources.iter().any(|source| source.root == carry.root);
            if carry.writable_in == Some(here) && !taken || states.contains(&carry.slot) {
                self.lose_root(carry.root);
            }
        }
        let before = self.handles.len();
        let source_slots: Vec<Slot> = sources.iter().map(|source| source.slot).collect();
        let carry_slots: Vec<Slot> = carries.iter().map(|carry| carry.slot).collect();
        let mut b = std::mem::take(&mut self.b);
        let mut inner = None;
        let done = b.scan(&source_slots, &carry_slots, |b, rows, shown| {
            self.within(b, |this| {
                this.scans += 1;
                let (acts, (values, yielded)) = this.nest(|this| this.body(&sources, rows, &carries, shown));
                this.scans -= 1;
                this.handles.truncate(before);
                inner = Some((acts, values));
                yielded
            })
        });
        self.b = b;
        let (body, (rows, carry_values, results)) = inner.unwrap();
        let mut numbered = Vec::new();
        for ((carry, &[seen, next]), &slot) in carries.iter().zip(&carry_values).zip(&done.carries) {
            let last = self.value();
            numbered.push([carry.value, seen, next, last]);
            if let Some(&(_, state)) = self.states.iter().find(|state| state.0 == carry.slot) {
                self.handles[state].gone = false;
                self.handles[state].value = last;
            } else {
                self.add_fresh(slot, last, carry.extent, carry.groups);
                let made = self.handles.len() - 1;
                self.handles[made].of_state = carry.of_state;
            }
        }
        let mut outputs = Vec::new();
        for (result, &slot) in results.iter().zip(&done.outputs) {
            let stacked = self.value();
            outputs.push((result.value, stacked));
            self.add_fresh(slot, stacked, Extent::PerRow(result.extent.width()), result.groups);
        }
        self.acts.push(Act::Scan { body, rows, carries: numbered, outputs });
    }

    #[expect(clippy::type_complexity, reason = "values of rows, carries and results, then what the builder gets")]
    pub(super) fn body(
        &mut self,
        sources: &[Handle],
        rows: &[Slot],
        carries: &[Handle],
        shown: &[Slot],
    ) -> ((Vec<(usize, usize, usize)>, Vec<[usize; 2]>, Vec<Handle>), ScanValues) {
        let mut row_values = Vec::new();
        for (source, &slot) in sources.iter().zip(rows) {
            let (value, width) = (self.value(), source.extent.width());
            row_values.push((source.value, value, width));
            self.add_fresh(slot, value, Extent::Fixed(width), source.groups);
        }
        let mut seen = Vec::new();
        for (carry, &slot) in carries.iter().zip(shown) {
            let value = self.value();
            seen.push(value);
            self.add_fresh(slot, value, carry.extent, carry.groups);
            let last = self.handles.len() - 1;
            self.handles[last].of_state = carry.of_state || self.states.iter().any(|state| state.0 == carry.slot);
        }
        self.some_acts();
        let next: Vec<Handle> = carries.iter().map(|carry| self.next_of(carry.extent)).collect();
        let wanted = self.choices.below(3);
        let mut results: Vec<Handle> = Vec::new();
        for _ in 0..wanted {
            let found = self.find(|h| matches!(h.extent, Extent::Fixed(_)));
            results.extend(found.map(|i| self.handles[i]));
        }
        let yielded = ScanValues {
            carries: next.iter().map(|handle| handle.slot).collect(),
            outputs: results.iter().map(|handle| handle.slot).collect(),
        };
        let carry_values = seen.into_iter().zip(&next).map(|(seen, next)| [seen, next.value]).collect();
        ((row_values, carry_values, results), yielded)
    }

    pub(super) fn next_of(&mut self, extent: Extent) -> Handle {
        match self.find(|h| h.extent == extent) {
            Some(i) => self.handles[i],
            None => self.matching(extent, 1),
        }
    }
}
