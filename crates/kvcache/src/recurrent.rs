//! The states of all recurrent layers: what holds now, what the pass under way makes of it, and what held at borders before.

use std::collections::VecDeque;
use std::ops::Range;

use crate::slab::{Memory, Purse, SlabRef, is_mapped};
use crate::{Error, KvSpec, LayerSpec, Snapshots};

/// State of a recurrent layer around rows of a pass: all of them, or those up to a border where the state is wanted.
#[derive(Debug)]
pub struct StateStep<'a> {
    /// Which rows of the pass.
    pub rows: Range<usize>,
    /// State before the first of them; zero at the start of a sequence.
    pub before: &'a [f32],
    /// Where the state after the last of them goes. Holds anything until then.
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
    begun: Option<Begun>,
}

/// Snapshots inside of the pass under way, which count once every layer has run over them.
#[derive(Debug)]
struct Begun {
    /// Tokens before and after the pass.
    pass: Range<usize>,
    /// Ascending by length, all of them before the end of the pass.
    snapshots: Vec<Snapshot>,
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
    /// Tokens before and after the pass under way, once it has asked for the state.
    staged: Option<Range<usize>>,
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
        Ok(Self { layers, buffers, rule: keep, snapshots: VecDeque::new(), begun: None })
    }

    pub(crate) fn layer_len(&self, index: usize) -> usize {
        self.layers[index].len
    }

    pub(crate) fn lens(&self) -> impl Iterator<Item = (usize, usize)> {
        self.layers.iter().map(|state| (state.layer, state.len))
    }

    pub(crate) fn bytes(&self) -> u64 {
        let begun = self.begun.as_ref().map_or(0, |begun| begun.snapshots.len());
        self.buffers[0].len() as u64 * (2 + self.snapshots.len() + begun) as u64
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
        self.forget_begun(purse);
        self.forget_after(tokens, purse);
    }

    fn forget_begun(&mut self, purse: &mut Purse) {
        for snapshot in self.begun.take().into_iter().flat_map(|begun| begun.snapshots) {
            purse.put(snapshot.slab.release());
        }
    }

    /// Lets go of the snapshots of more than `tokens`: what comes next may be other tokens than those that they were taken after.
    fn forget_after(&mut self, tokens: usize, purse: &mut Purse) {
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

    pub(crate) fn advance(
        &mut self,
        index: usize,
        start: usize,
        end: usize,
        purse: &mut Purse,
        mut run: impl FnMut(StateStep<'_>),
    ) -> Result<(), Error> {
        let State { layer, len, .. } = self.layers[index];
        if start > len {
            return Err(Error::Gap { layer, start, len_tokens: len });
        }
        if start < len && start > 0 && self.snapshot(start).is_none() {
            let from = self.borders(start).next().unwrap_or(0);
            return Err(Error::NeedsPrefill { layer, tokens: start, len_tokens: len, from });
        }
        if start < len {
            // For every layer at once: the snapshot may have to go for those of this pass before the next layer asks.
            self.truncate(start, purse);
        }
        self.begin(start..end, purse);
        let Self { layers, buffers: [first, second], begun, .. } = self;
        let State { range, current, staged, .. } = &mut layers[index];
        *staged = Some(start..end);
        let (before, after) = if *current == 0 { (first, second) } else { (second, first) };
        let mut before: &[f32] = bytemuck::cast_slice(&before[range.clone()]);
        let mut from = 0;
        for Snapshot { tokens, slab } in begun.iter_mut().flat_map(|begun| &mut begun.snapshots) {
            let memory = slab.memory_mut().expect("nobody has heard of it before the commit");
            let after: &mut [f32] = bytemuck::cast_slice_mut(&mut memory[range.clone()]);
            let rows = from..*tokens - start;
            from = rows.end;
            run(StateStep { rows, before, after: &mut *after });
            before = after;
        }
        let after = bytemuck::cast_slice_mut(&mut after.as_mut()[range.clone()]);
        run(StateStep { rows: from..end - start, before, after });
        Ok(())
    }

    /// Makes slabs for the snapshots that a pass runs over, in place of older ones that these leave no room for.
    fn begin(&mut self, pass: Range<usize>, purse: &mut Purse) {
        if self.begun.as_ref().is_some_and(|begun| begun.pass == pass) {
            return;
        }
        self.forget_begun(purse);
        let mut snapshots = Vec::new();
        if let Some(rule) = self.rule {
            let every = rule.every_tokens();
            let border = |tokens: usize| tokens / every * every;
            // One further back would have to go for the last one.
            let reach = every.saturating_mul(rule.keep.get() - 1);
            let first = border(pass.start).saturating_add(every).max(border(pass.end).saturating_sub(reach));
            self.make_room((first..=pass.end).step_by(every).count(), purse);
            for tokens in (first..pass.end).step_by(every) {
                // Paid for from the start; where it is not after all, a snapshot less changes no result.
                let Ok(slab) = self.new_snapshot(purse) else { break };
                snapshots.push(Snapshot { tokens, slab });
            }
        }
        self.begun = Some(Begun { pass, snapshots });
    }

    fn new_snapshot(&self, purse: &mut Purse) -> Result<SlabRef, Error> {
        let bytes = self.buffers[0].len();
        purse.pay(bytes as u64).and_then(|payment| SlabRef::zeroed(bytes, payment))
    }

    pub(crate) fn commit(&mut self, purse: &mut Purse) {
        // A layer that has not run over a border has left nothing there.
        let is_whole = |begun: &Begun| self.layers.iter().all(|state| state.staged.as_ref() == Some(&begun.pass));
        if self.begun.as_ref().is_some_and(is_whole) {
            self.snapshots.extend(self.begun.take().into_iter().flat_map(|begun| begun.snapshots));
        }
        self.forget_begun(purse);
        for state in &mut self.layers {
            if let Some(pass) = state.staged.take() {
                state.len = pass.end;
                state.current = 1 - state.current;
            }
        }
        self.keep_snapshot(purse);
    }

    /// Copies the states if they stand at a border, and lets go of the oldest copy past the number to keep.
    fn keep_snapshot(&mut self, purse: &mut Purse) {
        let (Some(rule), Some(&State { len, .. })) = (self.rule, self.layers.first()) else { return };
        let tokens = len;
        let stands = self.layers.iter().all(|state| state.len == tokens) && tokens.is_multiple_of(rule.every_tokens());
        if tokens == 0 || !stands || self.snapshot(tokens).is_some() {
            return;
        }
        self.make_room(1, purse);
        let Ok(mut slab) = self.new_snapshot(purse) else { return };
        let to = slab.memory_mut().expect("nobody else has heard of it");
        self.copy_states(to);
        self.snapshots.push_back(Snapshot { tokens, slab });
    }

    /// Lets go of the oldest snapshots, so that `count` more can be kept.
    fn make_room(&mut self, count: usize, purse: &mut Purse) {
        let Some(rule) = self.rule else { return };
        while !self.snapshots.is_empty() && self.snapshots.len() + count > rule.keep.get() {
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
