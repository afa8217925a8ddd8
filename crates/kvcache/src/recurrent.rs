//! The states of all recurrent layers: what holds now, what the pass under way makes of it, and what held at borders before.

use std::collections::VecDeque;
use std::ops::Range;

use crate::slab::{Memory, Purse, SlabRef, is_mapped};
use crate::{Error, KvSpec, LayerSpec, Snapshots};

/// State of a recurrent layer around the rows of a pass.
#[derive(Debug)]
pub struct StateStep<'a> {
    /// State before the first row; zero at the start of a sequence.
    pub before: &'a [f32],
    /// Where the state after the last row goes. Holds anything until then.
    pub after: &'a mut [f32],
}

/// Two buffers, in which each layer has its place: one half holds the state, the pass under way writes the other.
#[derive(Debug)]
pub(crate) struct Recurrent {
    layers: Vec<State>,
    buffers: [Memory; 2],
    rule: Option<Snapshots>,
    /// Ascending by length.
    snapshots: VecDeque<Snapshot>,
}

#[derive(Debug)]
struct Snapshot {
    tokens: usize,
    slab: SlabRef,
}

#[derive(Debug, Clone)]
struct State {
    layer: usize,
    /// Its bytes in a buffer or a snapshot, padding excluded.
    range: Range<usize>,
    /// The buffer that holds the state after `len` tokens.
    current: usize,
    len: usize,
    /// Tokens after the pass under way, once it has asked for the state.
    staged: Option<usize>,
}

impl Recurrent {
    pub(crate) fn new(spec: &KvSpec) -> Result<Self, Error> {
        let bytes = spec.state_bytes();
        let mut layers = Vec::new();
        let mut offset = 0;
        for (layer, spec) in spec.layers.iter().enumerate() {
            let LayerSpec::Recurrent(spec) = spec else { continue };
            // A state that no address space can hold has failed above, or fails below.
            let range = offset..offset + spec.elements.saturating_mul(size_of::<f32>()).min(spec.state_bytes());
            layers.push(State { layer, range, current: 0, len: 0, staged: None });
            offset = offset.saturating_add(spec.state_bytes());
        }
        let buffers = [Memory::zeroed(bytes)?, Memory::zeroed(bytes)?];
        let keep = spec.snapshots.filter(|_| !layers.is_empty());
        Ok(Self { layers, buffers, rule: keep, snapshots: VecDeque::new() })
    }

    pub(crate) fn layer_len(&self, index: usize) -> usize {
        self.layers[index].len
    }

    pub(crate) fn lens(&self) -> impl Iterator<Item = (usize, usize)> {
        self.layers.iter().map(|state| (state.layer, state.len))
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.buffers[0].len() as u64 * (2 + self.snapshots.len() as u64)
    }

    pub(crate) fn mapped_bytes(&self) -> u64 {
        if is_mapped(self.buffers[0].len()) { self.bytes() } else { 0 }
    }

    /// The snapshot after exactly `tokens`.
    pub(crate) fn snapshot(&self, tokens: usize) -> Option<&SlabRef> {
        self.snapshots.iter().find(|snapshot| snapshot.tokens == tokens).map(|snapshot| &snapshot.slab)
    }

    /// Lengths of the snapshots up to `tokens`, longest first.
    pub(crate) fn borders(&self, tokens: usize) -> impl Iterator<Item = usize> {
        self.snapshots.iter().rev().map(|snapshot| snapshot.tokens).filter(move |&border| border <= tokens)
    }

    /// The layer at fault, and its length, if the states cannot be taken back to `tokens`.
    pub(crate) fn check_truncate(&self, tokens: usize) -> Result<(), (usize, usize)> {
        match self.layers.iter().find(|state| state.len > tokens) {
            Some(state) if tokens > 0 && self.snapshot(tokens).is_none() => Err((state.layer, state.len)),
            _ => Ok(()),
        }
    }

    /// Drops what a pass has written so far, and takes the states back to a border that was checked.
    pub(crate) fn truncate(&mut self, tokens: usize, purse: &mut Purse) {
        for index in 0..self.layers.len() {
            self.rewind(index, tokens);
        }
        while self.snapshots.back().is_some_and(|snapshot| snapshot.tokens > tokens) {
            purse.put(self.snapshots.pop_back().and_then(|snapshot| snapshot.slab.release()));
        }
    }

    fn rewind(&mut self, index: usize, tokens: usize) {
        let state = &mut self.layers[index];
        state.staged = None;
        if tokens >= state.len {
            return;
        }
        let to = &mut self.buffers[state.current].as_mut()[state.range.clone()];
        match self.snapshots.iter().find(|snapshot| snapshot.tokens == tokens) {
            Some(snapshot) => to.copy_from_slice(&snapshot.slab.memory()[state.range.clone()]),
            None => to.fill(0),
        }
        state.len = tokens;
    }

    pub(crate) fn advance(&mut self, index: usize, start: usize, end: usize) -> Result<StateStep<'_>, Error> {
        let State { layer, len, .. } = self.layers[index];
        if start > len {
            return Err(Error::Gap { layer, start, len_tokens: len });
        }
        if start < len && start > 0 && self.snapshot(start).is_none() {
            let from = self.borders(start).next().unwrap_or(0);
            return Err(Error::NeedsPrefill { layer, tokens: start, len_tokens: len, from });
        }
        if start < len {
            self.rewind(index, start);
        }
        let state = &mut self.layers[index];
        state.staged = Some(end);
        let [first, second] = &mut self.buffers;
        let (before, after) = if state.current == 0 { (first, second) } else { (second, first) };
        Ok(StateStep {
            before: bytemuck::cast_slice(&before[state.range.clone()]),
            after: bytemuck::cast_slice_mut(&mut after.as_mut()[state.range.clone()]),
        })
    }

    pub(crate) fn commit(&mut self, purse: &mut Purse) {
        for state in &mut self.layers {
            if let Some(len) = state.staged.take() {
                state.len = len;
                state.current = 1 - state.current;
            }
        }
        self.keep_snapshot(purse);
    }

    /// Copies the states if they stand at a border, and lets go of the oldest copy past the number to keep.
    fn keep_snapshot(&mut self, purse: &mut Purse) {
        let (Some(rule), Some(State { len, .. })) = (self.rule, self.layers.first()) else { return };
        let tokens = *len;
        let stands = self.layers.iter().all(|state| state.len == tokens) && tokens.is_multiple_of(rule.every_tokens());
        if tokens == 0 || !stands || self.snapshot(tokens).is_some() {
            return;
        }
        self.make_room(purse);
        // Paid for from the start; where it is not after all, a snapshot less changes no result.
        let bytes = self.buffers[0].len();
        let made = purse.pay(bytes as u64).and_then(|payment| SlabRef::zeroed(bytes, payment));
        let Ok(mut slab) = made else { return };
        let to = slab.memory_mut().expect("nobody else has heard of it");
        self.copy_states(to);
        self.snapshots.push_back(Snapshot { tokens, slab });
    }

    fn make_room(&mut self, purse: &mut Purse) {
        while self.rule.is_some_and(|rule| self.snapshots.len() >= rule.keep.get()) {
            purse.put(self.snapshots.pop_front().and_then(|snapshot| snapshot.slab.release()));
        }
    }

    fn copy_states(&self, to: &mut [u8]) {
        for state in &self.layers {
            to[state.range.clone()].copy_from_slice(&self.buffers[state.current][state.range.clone()]);
        }
    }

    /// Makes this, which holds nothing, the states of a fork: a copy of what holds now, and the same snapshots, each deposited for.
    pub(crate) fn fork_from(&mut self, from: &Self, purse: &mut Purse) -> Result<(), Error> {
        from.copy_states(self.buffers[0].as_mut());
        for (to, from) in self.layers.iter_mut().zip(&from.layers) {
            to.len = from.len;
        }
        for snapshot in &from.snapshots {
            let deposit = purse.pay(snapshot.slab.bytes())?;
            self.snapshots.push_back(Snapshot { tokens: snapshot.tokens, slab: snapshot.slab.share(Some(deposit)) });
        }
        Ok(())
    }

    /// Whether a state after `tokens` would be kept as a snapshot.
    pub(crate) fn keeps(&self, tokens: usize) -> bool {
        self.rule.is_some_and(|rule| tokens.is_multiple_of(rule.every_tokens()))
    }

    /// For states that hold nothing: a buffer to read states into; see [`Recurrent::adopt_spare`].
    pub(crate) fn spare_mut(&mut self) -> &mut [u8] {
        if self.layers.iter().any(|state| state.current != 0) {
            // The second buffer holds the zeros that a sequence starts from.
            self.buffers[0].as_mut().fill(0);
            self.restart(0);
        }
        self.buffers[1].as_mut()
    }

    /// For states that hold nothing: takes over those after `tokens` from a slab that is shared, and keeps it as a snapshot where the rule
    /// says so.
    pub(crate) fn adopt(&mut self, tokens: usize, slab: SlabRef) {
        self.buffers[0].as_mut().copy_from_slice(slab.memory());
        self.restart(tokens);
        if self.keeps(tokens) {
            self.snapshots.push_back(Snapshot { tokens, slab });
        }
    }

    /// For states that hold nothing: takes over those after `tokens` that were read into the spare buffer.
    pub(crate) fn adopt_spare(&mut self, tokens: usize) {
        self.buffers.swap(0, 1);
        self.restart(tokens);
    }

    fn restart(&mut self, tokens: usize) {
        for state in &mut self.layers {
            (state.len, state.current, state.staged) = (tokens, 0, None);
        }
    }
}
