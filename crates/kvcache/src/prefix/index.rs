//! Blocks in memory, by key, oldest use first.

use std::collections::{BTreeMap, HashMap};

use super::Parts;
use super::key::Key;
use crate::slab::CachedSlab;

/// What is held of one block: a slab by group of layers, and the recurrent states after it.
#[derive(Debug, Default)]
struct Entry {
    slabs: BTreeMap<usize, CachedSlab>,
    tick: u64,
}

#[derive(Debug)]
pub(super) struct Index {
    entries: HashMap<Key, Entry>,
    /// A use of a block is a later use of every block before it: the first entry is never one that another builds on.
    order: BTreeMap<u64, Key>,
    ticks: u64,
    bytes: u64,
    /// Parts without which a block is worth nothing.
    essential: Parts,
}

impl Index {
    pub(super) fn new(essential: Parts) -> Self {
        Self { entries: HashMap::new(), order: BTreeMap::new(), ticks: 0, bytes: 0, essential }
    }

    /// Bytes of all slabs held, those included that sequences hold too.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn parts(&self, key: &Key) -> Parts {
        self.entries
            .get(key)
            .map_or(Parts::NONE, |entry| entry.slabs.keys().fold(Parts::NONE, |all, &part| all.with(part)))
    }

    pub(super) fn slab(&self, key: &Key, part: usize) -> Option<&CachedSlab> {
        self.entries.get(key)?.slabs.get(&part)
    }

    pub(super) fn insert(&mut self, key: Key, part: usize, slab: CachedSlab) {
        self.bytes += slab.bytes();
        let entry = self.entries.entry(key).or_default();
        if let Some(old) = entry.slabs.insert(part, slab) {
            self.bytes -= old.bytes();
        }
        if entry.tick == 0 {
            self.touch(&[key]);
        }
    }

    /// Marks the blocks of a chain as used, the first one last.
    pub(super) fn touch(&mut self, chain: &[Key]) {
        for key in chain.iter().rev() {
            let Some(entry) = self.entries.get_mut(key) else { continue };
            self.ticks += 1;
            self.order.remove(&entry.tick);
            entry.tick = self.ticks;
            self.order.insert(entry.tick, *key);
        }
    }

    /// Gives `wanted_bytes` back to the ledger, or as much as can go, blocks that were not used for longest first. A block that a sequence
    /// holds would give nothing back and stays; what it deposited for windows and states goes.
    pub(super) fn evict(&mut self, wanted_bytes: u64) -> u64 {
        self.evict_where(wanted_bytes, |_| true)
    }

    /// As [`Index::evict`], but what someone else holds too, so that it would give nothing back for now, stays.
    pub(super) fn evict_freeable(&mut self, wanted_bytes: u64) -> u64 {
        self.evict_where(wanted_bytes, |slab| slab.freeable_bytes() > 0)
    }

    fn evict_where(&mut self, wanted_bytes: u64, may_go: impl Fn(&CachedSlab) -> bool) -> u64 {
        let mut freed = 0;
        for key in self.order.values().copied().collect::<Vec<_>>() {
            if freed >= wanted_bytes {
                break;
            }
            let Some(entry) = self.entries.get(&key) else { continue };
            let is_essential = |part: usize| self.essential == Parts::NONE || self.essential.has(part);
            let is_used = entry.slabs.iter().any(|(&part, slab)| is_essential(part) && slab.is_used());
            let goes = |part: usize, slab: &CachedSlab| {
                may_go(slab) && (!is_used || (!is_essential(part) && slab.freeable_bytes() > 0))
            };
            let parts: Vec<usize> =
                entry.slabs.iter().filter(|(part, slab)| goes(**part, slab)).map(|(part, _)| *part).collect();
            for part in parts {
                freed += self.remove(&key, part);
            }
        }
        freed
    }

    /// Lets go of the blocks that were not used for longest until at most `limit_bytes` are held.
    pub(super) fn shrink_to(&mut self, limit_bytes: u64) {
        while self.bytes > limit_bytes {
            let Some((_, &key)) = self.order.first_key_value() else { return };
            let parts: Vec<usize> = self.entries[&key].slabs.keys().copied().collect();
            for part in parts {
                self.remove(&key, part);
            }
        }
    }

    /// Lets go of one slab; what goes back to the ledger by that.
    fn remove(&mut self, key: &Key, part: usize) -> u64 {
        let Some(entry) = self.entries.get_mut(key) else { return 0 };
        let Some(slab) = entry.slabs.remove(&part) else { return 0 };
        let freed = slab.freeable_bytes();
        self.bytes -= slab.bytes();
        if entry.slabs.is_empty() {
            self.order.remove(&entry.tick);
            self.entries.remove(key);
        }
        freed
    }
}
