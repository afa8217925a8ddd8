//! The state of one sequence: KV and recurrent state.

use plimsoll_attention::{KV_BLOCK_TOKENS, KvView};
use plimsoll_memguard::{Ledger, Reservation};

use crate::group::KvGroup;
use crate::recurrent::{Recurrent, StateStep};
use crate::slab::Purse;
use crate::{BlockTable, Error, KvSpec, LayerSpec};

/// KV blocks of one sequence, allocated as tokens arrive and never past what was reserved, and its recurrent state.
///
/// A pass appends to the layers with KV and [advances](Self::advance) the recurrent ones; then it [commits](Self::commit), or is undone by
/// [`truncate`](Self::truncate) to where it started. Dropping a sequence frees its memory, then what paid for it; blocks that a fork or a
/// prefix cache holds too stay, and what paid for them stays with them.
#[derive(Debug)]
pub struct Sequence {
    pub(crate) spec: KvSpec,
    places: Vec<Place>,
    pub(crate) groups: Vec<KvGroup>,
    pub(crate) recurrent: Recurrent,
    max_tokens: usize,
    peak_mapped_bytes: u64,
    // Declared last: fields drop in order, and bytes are given back only once they are free.
    pub(crate) purse: Purse,
    /// Pays for the two buffers of recurrent state.
    _fixed: Reservation,
}

/// Where a layer of the model has what it holds.
#[derive(Debug, Clone, Copy)]
enum Place {
    Kv { group: usize, index: usize },
    Recurrent { index: usize },
    Stateless,
}

impl Place {
    const fn holds(self) -> &'static str {
        match self {
            Self::Kv { .. } => "keys and values",
            Self::Recurrent { .. } => "recurrent state",
            Self::Stateless => "nothing",
        }
    }
}

impl Sequence {
    /// An empty sequence of at most `max_tokens`. Allocates its recurrent state, and no KV yet.
    ///
    /// # Errors
    /// [`Error::Reservation`] if `reservation` is smaller than [`KvSpec::bytes`] of `max_tokens`; [`Error::OutOfMemory`].
    pub fn new(spec: &KvSpec, max_tokens: usize, reservation: Reservation) -> Result<Self, Error> {
        Self::with_shared(spec, max_tokens, reservation, 0)
    }

    /// As [`Sequence::new`], where `shared_bytes` of the longest length are paid for by others.
    pub(crate) fn with_shared(
        spec: &KvSpec,
        max_tokens: usize,
        mut reservation: Reservation,
        shared_bytes: u64,
    ) -> Result<Self, Error> {
        let needed_bytes = spec.bytes(max_tokens).saturating_sub(shared_bytes);
        let reserved_bytes = reservation.bytes();
        if reserved_bytes < needed_bytes {
            return Err(Error::Reservation { max_tokens, needed_bytes, reserved_bytes });
        }
        let recurrent = Recurrent::new(spec)?;
        let fixed = reservation.split(recurrent.bytes());
        let groups: Vec<KvGroup> =
            spec.groups().into_iter().map(|group| KvGroup::new(group, max_tokens, spec.max_chunk_rows)).collect();
        let mut states = 0..;
        let places = spec.layers.iter().enumerate().map(|(layer, spec)| match spec {
            LayerSpec::Stateless => Place::Stateless,
            LayerSpec::Recurrent(_) => Place::Recurrent { index: states.next().unwrap_or_default() },
            LayerSpec::Kv(_) => find(&groups, layer),
        });
        let places = places.collect();
        let mut this = Self {
            spec: spec.clone(),
            places,
            groups,
            recurrent,
            max_tokens,
            peak_mapped_bytes: 0,
            purse: Purse::new(reservation),
            _fixed: fixed,
        };
        this.note_peak();
        Ok(this)
    }

    /// Stores `rows` tokens of one layer from position `start` on; tokens stored at or past `start` are forgotten first.
    ///
    /// `k`: `[rows, kv_heads, head_dim]`, `v`: `[rows, kv_heads, v_head_dim]`, or empty where the values are in the keys. Nothing stored
    /// before is copied, but for a block that is begun and that a fork or a cache holds too: it is copied once, and the others keep theirs.
    ///
    /// # Errors
    /// [`Error::NoSuchLayer`], [`Error::LayerKind`], [`Error::SliceLength`], [`Error::Gap`] if `start` is past the stored tokens,
    /// [`Error::NeedsPrefill`] if the keys that a row at `start` sees are gone, [`Error::Capacity`], [`Error::ChunkRows`],
    /// [`Error::OutOfMemory`], [`Error::Unpaid`].
    pub fn append(&mut self, layer: usize, start: usize, k: &[f32], v: &[f32], rows: usize) -> Result<(), Error> {
        let Place::Kv { group, index } = self.place(layer, "keys and values")? else {
            unreachable!("`place` has looked at the kind")
        };
        let (end_tokens, max_tokens) = (start.saturating_add(rows), self.max_tokens);
        if end_tokens > max_tokens {
            return Err(Error::Capacity { layer, end_tokens, max_tokens });
        }
        self.groups[group].append(index, start, (k, v), rows, &mut self.purse)?;
        self.note_peak();
        Ok(())
    }

    /// Runs `f` on the first `kv_len` tokens of a layer, or on those of them that its window has kept; allocates nothing once `table` has
    /// grown to the sequence.
    ///
    /// # Errors
    /// [`Error::NoSuchLayer`], [`Error::LayerKind`], [`Error::PastEnd`], [`Error::View`].
    pub fn with_view<R>(
        &self,
        layer: usize,
        kv_len: usize,
        table: &mut BlockTable,
        f: impl FnOnce(&KvView<'_>) -> R,
    ) -> Result<R, Error> {
        match self.place(layer, "keys and values")? {
            Place::Kv { group, index } => self.groups[group].with_view(index, kv_len, table, f),
            Place::Recurrent { .. } | Place::Stateless => unreachable!("`place` has looked at the kind"),
        }
    }

    /// The state of a recurrent layer for a pass over `rows` tokens from position `start` on: `run` is given what holds before rows of it, and
    /// where to write what holds after them. It is called for all rows at once, or part after part where [`Snapshots`](crate::Snapshots)
    /// want the state at borders between. Several steps of a pass may ask, each for its own part of the state. Nothing is kept until
    /// [`commit`](Self::commit), but a pass that is undone may have let go of the oldest snapshots, in whose place it would have left its own.
    ///
    /// `start` is the length held, or 0, which forgets what is held, or the length of a snapshot. Going back takes every recurrent layer back.
    ///
    /// # Errors
    /// [`Error::NoSuchLayer`], [`Error::LayerKind`], [`Error::Gap`], [`Error::NeedsPrefill`], [`Error::Capacity`].
    pub fn advance(
        &mut self,
        layer: usize,
        start: usize,
        rows: usize,
        run: impl FnMut(StateStep<'_>),
    ) -> Result<(), Error> {
        let Place::Recurrent { index } = self.place(layer, "recurrent state")? else {
            unreachable!("`place` has looked at the kind")
        };
        let (end_tokens, max_tokens) = (start.saturating_add(rows), self.max_tokens);
        if end_tokens > max_tokens {
            return Err(Error::Capacity { layer, end_tokens, max_tokens });
        }
        self.recurrent.advance(index, start, end_tokens, &mut self.purse, run)?;
        self.note_peak();
        Ok(())
    }

    /// Ends a pass: the states that it wrote take the place of those before it, a snapshot is kept where the length calls for one, and
    /// blocks that no later row can see are let go.
    pub fn commit(&mut self) {
        for group in &mut self.groups {
            group.commit(&mut self.purse);
        }
        self.recurrent.commit(&mut self.purse);
        self.note_peak();
    }

    /// Forgets all tokens from `tokens` on, and what a pass has written to recurrent state without a commit; frees the blocks that hold
    /// no token any more. Past the end there is nothing to forget.
    ///
    /// # Errors
    /// [`Error::NeedsPrefill`] if a window has dropped keys that a row at `tokens` sees, or if a recurrent layer has no snapshot of that
    /// length; nothing is changed then. Its `from` is a length that can be gone back to.
    pub fn truncate(&mut self, tokens: usize) -> Result<(), Error> {
        if let Err((layer, len_tokens)) = self.check_truncate(tokens) {
            let from = self.borders(tokens).find(|&border| self.check_truncate(border).is_ok()).unwrap_or(0);
            return Err(Error::NeedsPrefill { layer, tokens, len_tokens, from });
        }
        for group in &mut self.groups {
            group.truncate(tokens, &mut self.purse);
        }
        self.recurrent.truncate(tokens, &mut self.purse);
        Ok(())
    }

    fn borders(&self, tokens: usize) -> impl Iterator<Item = usize> {
        self.recurrent.borders(tokens)
    }

    fn check_truncate(&self, tokens: usize) -> Result<(), (usize, usize)> {
        let groups = self.groups.iter().filter_map(|group| group.check_truncate(tokens).err());
        let faults = groups.chain(self.recurrent.check_truncate(tokens).err());
        faults.min().map_or(Ok(()), Err)
    }

    /// Another sequence with the same tokens, whose whole blocks are the same memory: nobody writes to a block that others hold. What
    /// grows differently afterwards is each sequence's own; a block that is begun is copied by whoever writes to it first.
    ///
    /// `reservation` pays for what the fork will not share: [`Sequence::fork_bytes`]. The shared blocks stay paid for as they are, until the
    /// last of their owners is gone.
    ///
    /// # Errors
    /// [`Error::Uncommitted`] inside a pass, [`Error::Reservation`], [`Error::OtherLedger`], [`Error::OutOfMemory`].
    pub fn fork(&self, max_tokens: usize, reservation: Reservation) -> Result<Self, Error> {
        let len = self.len();
        if len > max_tokens {
            return Err(Error::Capacity { layer: 0, end_tokens: len, max_tokens });
        }
        if let Some((layer, layer_tokens)) = self.lens().find(|&(_, tokens)| tokens != len) {
            return Err(Error::Uncommitted { layer, layer_tokens, len_tokens: len });
        }
        if !reservation.ledger().same_as(self.purse.ledger()) {
            return Err(Error::OtherLedger);
        }
        let mut fork = Self::with_shared(&self.spec, max_tokens, reservation, self.shared_bytes())?;
        for (to, from) in fork.groups.iter_mut().zip(&self.groups) {
            *to = from.fork(len, max_tokens, &mut fork.purse)?;
        }
        fork.recurrent.fork_from(&self.recurrent, &mut fork.purse)?;
        fork.note_peak();
        Ok(fork)
    }

    /// Bytes to reserve for a fork of at most `max_tokens`.
    pub fn fork_bytes(&self, max_tokens: usize) -> u64 {
        self.spec.bytes(max_tokens).saturating_sub(self.shared_bytes())
    }

    /// Whole blocks that stay for good: windows move on, and a begun block is written to.
    fn shared_bytes(&self) -> u64 {
        let blocks = (self.len() / KV_BLOCK_TOKENS) as u64;
        let full = self.groups.iter().map(KvGroup::spec).filter(|group| group.window.is_none());
        full.map(|group| blocks * group.slab_bytes as u64).sum()
    }

    /// Tokens held by every layer that holds any: KV as appended, recurrent state as committed.
    pub fn len(&self) -> usize {
        self.lens().map(|(_, tokens)| tokens).min().unwrap_or(0)
    }

    /// Whether some layer stores no token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens stored in one layer; inside a pass, layers differ. 0 for a layer that does not exist or holds nothing.
    pub fn layer_len(&self, layer: usize) -> usize {
        match self.places.get(layer) {
            Some(&Place::Kv { group, index }) => self.groups[group].layer_len(index),
            Some(&Place::Recurrent { index }) => self.recurrent.layer_len(index),
            Some(Place::Stateless) | None => 0,
        }
    }

    /// Tokens by layer, of those that hold any.
    fn lens(&self) -> impl Iterator<Item = (usize, usize)> {
        self.groups.iter().flat_map(KvGroup::lens).chain(self.recurrent.lens())
    }

    /// Most tokens it may hold.
    pub const fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// What it holds by layer.
    pub const fn spec(&self) -> &KvSpec {
        &self.spec
    }

    /// The ledger that pays for it.
    pub fn ledger(&self) -> &Ledger {
        self.purse.ledger()
    }

    /// Bytes held now, shared blocks included; [`KvSpec::held_bytes`] of the length between passes.
    pub fn bytes(&self) -> u64 {
        self.groups.iter().map(KvGroup::bytes).sum::<u64>() + self.recurrent.bytes()
    }

    /// Bytes that a pass over the next `rows` tokens adds before its commit: whole blocks of every layer with KV.
    pub fn growth_bytes(&self, rows: usize) -> u64 {
        let end = self.len().saturating_add(rows);
        self.groups.iter().map(|group| group.growth_bytes(end)).sum()
    }

    /// Bytes of what is held now that lie in mappings of their own, which no allocator counts.
    pub fn mapped_bytes(&self) -> u64 {
        self.groups.iter().map(KvGroup::mapped_bytes).sum::<u64>() + self.recurrent.mapped_bytes()
    }

    /// The most bytes that ever lay in mappings of their own.
    pub const fn peak_mapped_bytes(&self) -> u64 {
        self.peak_mapped_bytes
    }

    pub(crate) fn note_peak(&mut self) {
        self.peak_mapped_bytes = self.peak_mapped_bytes.max(self.mapped_bytes());
    }

    /// Bytes reserved: for what is held, shared blocks included, and for what is still to come.
    pub fn reserved_bytes(&self) -> u64 {
        self.bytes() + self.purse.bytes()
    }

    fn place(&self, layer: usize, expected: &'static str) -> Result<Place, Error> {
        let layers = self.places.len();
        let place = *self.places.get(layer).ok_or(Error::NoSuchLayer { layer, layers })?;
        if place.holds() == expected {
            Ok(place)
        } else {
            Err(Error::LayerKind { layer, expected, found: place.holds() })
        }
    }
}

/// The place of a layer with KV.
fn find(groups: &[KvGroup], layer: usize) -> Place {
    for (group, of) in groups.iter().enumerate() {
        if let Some(index) = of.spec().layers.iter().position(|at| at.layer == layer) {
            return Place::Kv { group, index };
        }
    }
    unreachable!("every layer with KV is in a group")
}
