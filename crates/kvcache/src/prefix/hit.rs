//! Finding the longest prefix, and putting it into a sequence.

use std::collections::HashSet;

use plimsoll_attention::KV_BLOCK_TOKENS;
use plimsoll_memguard::Reservation;

use super::key::Key;
use super::{Parts, PrefixCache};
use crate::slab::SlabRef;
use crate::{Error, KvSpec, Sequence};

/// A prefix that was found. It holds its blocks: while it lives, they are not let go.
#[derive(Debug)]
pub struct Hit {
    cache: PrefixCache,
    keys: Vec<Key>,
    /// By part: the first block wanted, and each block up to the border, `None` where it has to be read from disk.
    parts: Vec<(usize, Vec<Option<SlabRef>>)>,
}

impl Hit {
    /// Tokens that need not be computed.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.keys.len() * KV_BLOCK_TOKENS
    }

    /// Bytes of a sequence's [`KvSpec::bytes`] that are paid for already: blocks that it will share for as long as it lives.
    #[must_use]
    pub fn shared_bytes(&self) -> u64 {
        let shape = &self.cache.inner.shape;
        let shared = self.parts.iter().enumerate().filter(|(part, _)| shape.is_full(*part));
        shared.flat_map(|(_, (_, slabs))| slabs).flatten().map(SlabRef::bytes).sum()
    }

    /// A sequence of at most `max_tokens` that begins with these tokens. `reservation`: [`KvSpec::bytes`] of `max_tokens`, less
    /// [`Hit::shared_bytes`]. `tokens` are those that were looked up.
    ///
    /// # Errors
    /// [`Error::Reservation`], [`Error::OtherLedger`], [`Error::OtherSpec`], [`Error::OutOfMemory`]; [`Error::Unpaid`] if a file turned out
    /// damaged and the ledger has no bytes for the blocks to compute in its place.
    pub fn into_sequence(
        self,
        spec: &KvSpec,
        max_tokens: usize,
        reservation: Reservation,
        tokens: &[u32],
    ) -> Result<Sequence, Error> {
        let shared_bytes = self.shared_bytes();
        let cache = self.cache.clone();
        let mut sequence = Sequence::with_shared(spec, max_tokens, reservation, shared_bytes)?;
        cache.check(&sequence)?;
        if self.tokens() > max_tokens {
            return Err(Error::Capacity { layer: 0, end_tokens: self.tokens(), max_tokens });
        }
        cache.fill(&mut sequence, self, tokens, shared_bytes)?;
        Ok(sequence)
    }
}

impl PrefixCache {
    /// The longest prefix of `tokens` that need not be computed; at least the last token is left.
    #[must_use]
    pub fn lookup(&self, tokens: &[u32]) -> Hit {
        self.find(tokens, usize::MAX, &HashSet::new())
    }

    /// Puts the longest prefix of `tokens` into an empty sequence, and returns its length: go on with the tokens after it. Reserved bytes
    /// that the sequence does not need, because others pay for shared blocks, go back to the ledger.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::OtherSpec`], [`Error::OtherLedger`], [`Error::OutOfMemory`]; the sequence is then as it was.
    pub fn restore(&self, sequence: &mut Sequence, tokens: &[u32]) -> Result<usize, Error> {
        self.check(sequence)?;
        if !sequence.is_empty() {
            return Err(Error::NotEmpty { len_tokens: sequence.len() });
        }
        // A pass that was not committed may have left blocks.
        sequence.truncate(0)?;
        let hit = self.find(tokens, sequence.max_tokens(), &HashSet::new());
        self.fill(sequence, hit, tokens, 0)?;
        Ok(sequence.len())
    }

    fn find(&self, tokens: &[u32], max_tokens: usize, ignored: &HashSet<Key>) -> Hit {
        let shape = &self.inner.shape;
        let most = (tokens.len().saturating_sub(1) / KV_BLOCK_TOKENS).min(max_tokens / KV_BLOCK_TOKENS);
        let mut keys = self.inner.root.chain(tokens, most);
        let disk = self.inner.disk.as_ref();
        // Held from here on, so that nothing of it goes while headers are read, without the lock.
        let mut in_memory: Vec<Vec<Option<SlabRef>>> = Vec::new();
        {
            let index = self.inner.index();
            let slabs = |key: &Key| -> Vec<Option<SlabRef>> {
                let share = |part| index.slab(key, part).map(|slab| slab.share(None));
                (0..shape.part_bytes.len()).map(share).collect()
            };
            for key in &keys {
                let slabs = slabs(key);
                if disk.is_none() && !held(&slabs).has_all(shape.full) {
                    break;
                }
                in_memory.push(slabs);
            }
        }
        let all = (0..shape.part_bytes.len()).fold(Parts::NONE, Parts::with);
        if let Some(disk) = disk {
            disk.try_left_out();
            let missing = keys.iter().zip(&in_memory).filter(|(_, slabs)| held(slabs) != all);
            disk.wait_for(&missing.map(|(key, _)| *key).collect::<Vec<_>>());
        }
        let mut found: Vec<Parts> = Vec::new();
        for (key, slabs) in keys.iter().zip(&in_memory) {
            let mut parts = held(slabs);
            if let Some(disk) = disk.filter(|_| parts != all && !ignored.contains(key)) {
                parts = parts.or(disk.parts(key));
            }
            if parts == Parts::NONE || !parts.has_all(shape.full) {
                break;
            }
            found.push(parts);
        }
        let first_block = |part: usize, border: usize| match shape.groups.get(part) {
            Some(group) => group.first_visible_block(border * KV_BLOCK_TOKENS),
            None => border - 1,
        };
        let reaches = |border: &usize| {
            let has = |part: usize| found[first_block(part, *border)..*border].iter().all(|parts| parts.has(part));
            (0..shape.part_bytes.len()).all(has)
        };
        let border = (1..=found.len()).rev().find(reaches).unwrap_or(0);
        keys.truncate(border);
        let mut parts = Vec::new();
        for part in 0..if border > 0 { shape.part_bytes.len() } else { 0 } {
            let first = first_block(part, border);
            parts.push((first, in_memory[first..border].iter_mut().map(|slabs| slabs[part].take()).collect()));
        }
        self.inner.index().touch(&keys);
        Hit { cache: self.clone(), keys, parts }
    }

    /// Puts a hit into an empty sequence; where a file is no good, a shorter one. `saved_bytes` of shared blocks were never reserved.
    fn fill(&self, sequence: &mut Sequence, hit: Hit, tokens: &[u32], saved_bytes: u64) -> Result<(), Error> {
        let (mut hit, mut ignored) = (hit, HashSet::new());
        loop {
            let (keys, shared_bytes) = (hit.keys.clone(), hit.shared_bytes());
            match self.try_fill(sequence, hit)? {
                Filled::Whole => {
                    let purse = &mut sequence.purse;
                    purse.give_back(shared_bytes.saturating_sub(saved_bytes));
                    let missing = purse.pay(saved_bytes.saturating_sub(shared_bytes) + purse.bytes())?;
                    purse.put(Some(missing));
                    if let Some(disk) = &self.inner.disk {
                        disk.touch(keys);
                    }
                    sequence.note_peak();
                    return Ok(());
                }
                Filled::Bad(key) => {
                    ignored.insert(key);
                    hit = self.find(tokens, sequence.max_tokens(), &ignored);
                }
            }
        }
    }

    /// Deposits for what is shared, reads what is on disk, and hands all of it over; or gives all of it back.
    fn try_fill(&self, sequence: &mut Sequence, hit: Hit) -> Result<Filled, Error> {
        let shape = &self.inner.shape;
        let Hit { keys, mut parts, .. } = hit;
        let tokens = keys.len() * KV_BLOCK_TOKENS;
        let keeps_state = sequence.recurrent.keeps(tokens);
        let is_replaced = |part: usize| !shape.is_full(part) && (Some(part) != shape.state_part() || keeps_state);
        let replaced = || {
            let of = parts.iter().enumerate().filter(move |(part, _)| is_replaced(*part));
            of.flat_map(|(_, (_, slabs))| slabs).flatten()
        };
        // In one payment: where it cannot be made, no slab holds a deposit of this sequence.
        let mut deposits = sequence.purse.pay(replaced().map(SlabRef::bytes).sum())?;
        for slab in replaced() {
            slab.deposit(deposits.split(slab.bytes()));
        }
        let is_shared: Vec<Vec<bool>> =
            parts.iter().map(|(_, slabs)| slabs.iter().map(Option::is_some).collect()).collect();
        let done = self.read_missing(sequence, &keys, &mut parts);
        if !matches!(done, Ok(Filled::Whole)) {
            for (part, (_, slabs)) in parts.into_iter().enumerate() {
                for (slab, &is_shared) in slabs.into_iter().zip(&is_shared[part]) {
                    // What was shared without a deposit is only let go: one that is in it is another owner's.
                    if let Some(slab) = slab.filter(|_| !is_shared || is_replaced(part)) {
                        sequence.purse.put(slab.release());
                    }
                }
            }
            return done;
        }
        if keys.is_empty() {
            return Ok(Filled::Whole);
        }
        for (part, (first, mut slabs)) in parts.into_iter().enumerate() {
            if Some(part) == shape.state_part() {
                match slabs.pop().flatten() {
                    Some(slab) => sequence.recurrent.adopt(tokens, slab),
                    None => sequence.recurrent.adopt_spare(tokens),
                }
            } else {
                sequence.groups[part].adopt(first, slabs.into_iter().flatten());
            }
        }
        Ok(Filled::Whole)
    }

    /// Reads what is wanted and not shared, into slabs that the sequence pays for.
    fn read_missing(
        &self,
        sequence: &mut Sequence,
        keys: &[Key],
        parts: &mut [(usize, Vec<Option<SlabRef>>)],
    ) -> Result<Filled, Error> {
        let shape = &self.inner.shape;
        let state_part = shape.state_part();
        let Some(disk) = &self.inner.disk else { return Ok(Filled::Whole) };
        for (block, key) in keys.iter().enumerate() {
            let (mut read, mut reads_state) = (Vec::new(), false);
            for (part, (first, slabs)) in parts.iter_mut().enumerate() {
                let Some(place) = block.checked_sub(*first).map(|at| &mut slabs[at]).filter(|slab| slab.is_none())
                else {
                    continue;
                };
                if Some(part) == state_part {
                    reads_state = true;
                    continue;
                }
                let bytes = shape.part_bytes[part];
                let slab = place.insert(SlabRef::zeroed(bytes, sequence.purse.pay(bytes as u64)?)?);
                read.push((part, slab.memory_mut().expect("nobody else has heard of it")));
            }
            if let Some(part) = state_part.filter(|_| reads_state) {
                read.push((part, sequence.recurrent.spare_mut()));
            }
            if !read.is_empty() && !disk.read(key, &mut read) {
                return Ok(Filled::Bad(*key));
            }
        }
        Ok(Filled::Whole)
    }
}

/// What there is of a block.
fn held(slabs: &[Option<SlabRef>]) -> Parts {
    let held = slabs.iter().enumerate().filter(|(_, slab)| slab.is_some());
    held.fold(Parts::NONE, |all, (part, _)| all.with(part))
}

enum Filled {
    Whole,
    /// This file is no good.
    Bad(Key),
}
