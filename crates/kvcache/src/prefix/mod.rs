//! Blocks of prompts, kept for prompts to come that begin alike.

mod disk;
mod hit;
mod index;
mod key;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_attention::KV_BLOCK_TOKENS;
use plimsoll_memguard::{Evict, Kind, Ledger, Reservation, ReserveError};

use crate::slab::SlabRef;
use crate::spec::GroupSpec;
use crate::{Error, KvSpec, Sequence};
pub use disk::DiskStats;
use disk::{Block, Disk};
pub use hit::Hit;
use index::Index;
pub use key::CacheIdentity;
use key::Key;

/// Which parts of a block there are: bit `i` for group `i` of layers, the bit after them for the recurrent states after the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Parts(u64);

impl Parts {
    const NONE: Self = Self(0);

    const fn with(self, part: usize) -> Self {
        Self(self.0 | 1 << part)
    }

    const fn has(self, part: usize) -> bool {
        self.0 >> part & 1 == 1
    }

    const fn has_all(self, of: Self) -> bool {
        self.0 & of.0 == of.0
    }

    const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What a block of this model is made of.
#[derive(Debug)]
struct Shape {
    spec: KvSpec,
    groups: Vec<GroupSpec>,
    /// Bytes of each part: a slab of each group, then the recurrent states if there are any.
    part_bytes: Vec<usize>,
    /// Parts of layers that see everything before them: a block without them is none.
    full: Parts,
}

impl Shape {
    fn new(spec: &KvSpec) -> Self {
        let groups = spec.groups();
        let mut part_bytes: Vec<usize> = groups.iter().map(|group| group.slab_bytes).collect();
        part_bytes.extend(Some(spec.state_bytes()).filter(|&bytes| bytes > 0));
        let is_full = |part: &usize| groups[*part].window.is_none();
        let full = (0..groups.len()).filter(is_full).fold(Parts::NONE, Parts::with);
        Self { spec: spec.clone(), groups, part_bytes, full }
    }

    /// The part of the recurrent states, if the model has any.
    fn state_part(&self) -> Option<usize> {
        Some(self.groups.len()).filter(|&part| part < self.part_bytes.len())
    }

    fn is_full(&self, part: usize) -> bool {
        self.full.has(part)
    }
}

/// Where a prefix cache keeps blocks beside memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskOptions {
    /// A folder of its own; made if it is missing. Several processes may use one folder.
    pub folder: PathBuf,
    /// Most bytes of all files together; the ones used longest ago go first.
    pub limit_bytes: u64,
}

impl DiskOptions {
    /// Bytes of the files up to the first border that a later sequence of `spec` can go on from: one block, or with recurrent layers all blocks
    /// up to the first snapshot. Under a lower limit nothing of use is kept.
    #[must_use]
    pub fn least_bytes(spec: &KvSpec) -> u64 {
        let shape = Shape::new(spec);
        let with_state = disk::file_bytes(&shape.part_bytes);
        let without = disk::file_bytes(&shape.part_bytes[..shape.groups.len()]);
        let blocks = match (shape.state_part(), spec.snapshots) {
            (Some(_), Some(rule)) => rule.every_blocks.get() as u64,
            _ => 1,
        };
        without.saturating_mul(blocks - 1).saturating_add(with_state)
    }
}

/// Full KV blocks of earlier prompts, found by a chain of hashes over model, KV type, kernel contract and token ids.
///
/// A hit is the longest border of blocks where layers that see everything have every block, windowed layers their last window and recurrent
/// layers a snapshot; at least one token of a prompt is always left to compute. A hit holds the bits that a computation would have
/// written, so a prompt's logits are the same with and without it.
///
/// Blocks are shared with the sequences that wrote them, and paid for once. What no sequence uses any more is reserved as
/// [`Kind::PrefixCache`], and let go, used longest ago first, when the ledger asks. Clones are handles to one cache.
#[derive(Debug, Clone)]
pub struct PrefixCache {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    ledger: Ledger,
    shape: Shape,
    root: Key,
    limit_bytes: u64,
    index: Mutex<Index>,
    disk: Option<Disk>,
}

impl Inner {
    fn index(&self) -> MutexGuard<'_, Index> {
        // A panic under the lock could leave a byte count behind that is off, and nothing else.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets go of blocks for `wanted_bytes`, but of none in vain: the disk's writer may hold them too.
    fn evict_from(&self, index: &mut Index, wanted_bytes: u64) -> u64 {
        match self.disk {
            Some(_) => index.evict_freeable(wanted_bytes),
            None => index.evict(wanted_bytes),
        }
    }
}

impl Evict for Inner {
    fn evict(&self, wanted_bytes: u64) {
        let mut missing_bytes = wanted_bytes.saturating_sub(self.evict_from(&mut self.index(), wanted_bytes));
        let Some(disk) = self.disk.as_ref().filter(|_| missing_bytes > 0) else { return };
        // What is on its way to disk goes back once it is there, or can go then.
        let cached_bytes = || self.ledger.usage().prefix_cache_bytes;
        let before_bytes = cached_bytes();
        disk.flush();
        missing_bytes = missing_bytes.saturating_sub(before_bytes.saturating_sub(cached_bytes()));
        self.index().evict(missing_bytes);
    }
}

impl PrefixCache {
    /// An empty cache of at most `limit_bytes` in memory (0: nothing is kept there), for sequences of `spec` whose bytes come from `ledger`. The ledger may take all of
    /// it back.
    ///
    /// # Panics
    /// If the layers have more than 63 different windows.
    #[must_use]
    pub fn new(ledger: &Ledger, spec: &KvSpec, identity: &CacheIdentity, limit_bytes: u64) -> Self {
        Self::make(ledger, spec, identity, limit_bytes, None)
    }

    /// As [`PrefixCache::new`], with a second tier on disk: what is published is written there too, and found by later processes.
    /// A file that is damaged, or of another model or version, is removed: the first one with a warning, all others with one for them together.
    ///
    /// # Errors
    /// The system's, if the folder cannot be made or read.
    ///
    /// # Panics
    /// As [`PrefixCache::new`].
    pub fn with_disk(
        ledger: &Ledger,
        spec: &KvSpec,
        identity: &CacheIdentity,
        limit_bytes: u64,
        disk: &DiskOptions,
    ) -> io::Result<Self> {
        let disk = Disk::open(disk, Key::root(identity, spec), Shape::new(spec).part_bytes)?;
        Ok(Self::make(ledger, spec, identity, limit_bytes, Some(disk)))
    }

    fn make(ledger: &Ledger, spec: &KvSpec, identity: &CacheIdentity, limit_bytes: u64, disk: Option<Disk>) -> Self {
        let shape = Shape::new(spec);
        assert!(shape.part_bytes.len() <= 64, "layers of {} different windows", shape.groups.len());
        let index = Mutex::new(Index::new(shape.full));
        let (ledger, root) = (ledger.clone(), Key::root(identity, spec));
        let inner = Arc::new(Inner { ledger, shape, root, limit_bytes, index, disk });
        inner.ledger.add_evictable(&inner);
        Self { inner }
    }

    /// Bytes of the blocks in memory, those included that running sequences hold too.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.inner.index().bytes()
    }

    /// Blocks of 64 tokens in memory.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.inner.index().len()
    }

    /// Lets go of all blocks in memory; files stay.
    pub fn clear(&self) {
        self.inner.index().shrink_to(0);
    }

    /// Keeps the whole blocks of `tokens`, which `sequence` holds, beginning with its first token. Nothing is copied in memory.
    ///
    /// `tokens` must be the ids that the sequence was given, and their rows must have been computed in prefill: on devices where a row of
    /// decode may have other bits, a decoded token does not belong here. A layer with a window has only its latest blocks left: publish
    /// after each chunk to keep more borders. A recurrent layer has a border only where the sequence kept a snapshot.
    ///
    /// Only blocks that were not published before cost more than a look at their names. Files are written by a thread of the cache's own; this
    /// waits for it where its queue is full, or the ledger cannot pay for blocks that the sequence is about to let go of. What finds no
    /// memory or no room on disk is left out.
    ///
    /// # Errors
    /// [`Error::OtherSpec`], [`Error::OtherLedger`].
    pub fn publish(&self, sequence: &Sequence, tokens: &[u32]) -> Result<(), Error> {
        self.check(sequence)?;
        let blocks = tokens.len().min(sequence.len()) / KV_BLOCK_TOKENS;
        let keys = self.inner.root.chain(tokens, blocks);
        if self.inner.limit_bytes > 0 {
            self.share(sequence, &keys);
        }
        if let Some(disk) = &self.inner.disk {
            self.write(disk, sequence, &keys);
        }
        Ok(())
    }

    /// Hands the blocks of a chain that are new to the disk's writer, by reference. It holds full blocks at the price that they have; for what
    /// the sequence will let go of before it ends, the ledger is asked, and where it has nothing, the blocks are written before this returns.
    fn write(&self, disk: &Disk, sequence: &Sequence, keys: &[Key]) {
        let (mut blocks, mut is_unpaid) = (Vec::new(), false);
        for (place, key) in keys.iter().enumerate() {
            let held = self.parts_of(sequence, place).fold(Parts::NONE, |all, (part, _)| all.with(part));
            if !disk.takes(key, held) {
                continue;
            }
            let mut hold = |(part, slab): (usize, &SlabRef)| {
                let deposit = match self.inner.shape.is_full(part) || is_unpaid {
                    true => None,
                    false => self.inner.ledger.reserve_free(Kind::PrefixCache, slab.bytes()).ok(),
                };
                is_unpaid |= deposit.is_none() && !self.inner.shape.is_full(part);
                (part, slab.share_with_cache(deposit))
            };
            let parts = self.parts_of(sequence, place).map(&mut hold).collect();
            blocks.push(Block { key: *key, first: keys[0], place, parts });
        }
        if let (Some(first), Some(last)) = (blocks.first(), blocks.last()) {
            disk.follow(&keys[..first.place], last.key);
        }
        disk.write(blocks);
        if is_unpaid {
            disk.finish_unpaid();
        }
    }

    /// Waits until everything that was published before is on disk. Once `is_cancelled`, blocks of it whose writing has not begun are dropped.
    /// The last handle to a cache waits for the same when it is dropped. Either warns of files that were dropped since the first one.
    pub fn finish(&self, is_cancelled: impl Fn() -> bool) {
        if let Some(disk) = &self.inner.disk {
            disk.finish(&is_cancelled);
        }
    }

    /// What was done with the folder so far; `None` for a cache in memory alone.
    #[must_use]
    pub fn disk_stats(&self) -> Option<DiskStats> {
        self.inner.disk.as_ref().map(Disk::stats)
    }

    /// Holds the blocks of a chain in memory, with the sequence.
    fn share(&self, sequence: &Sequence, keys: &[Key]) {
        let mut index = self.inner.index();
        for (block, key) in keys.iter().enumerate() {
            let held = index.parts(key);
            for (part, slab) in self.parts_of(sequence, block) {
                if held.has(part) {
                    continue;
                }
                // The sequence goes on to need the price of what it will let go of, so the cache pays for its own hold.
                let deposit = match self.inner.shape.is_full(part) {
                    true => None,
                    false => match self.pay(&mut index, slab.bytes()) {
                        Some(deposit) => Some(deposit),
                        None => continue,
                    },
                };
                index.insert(*key, part, slab.share_with_cache(deposit));
            }
        }
        index.touch(keys);
        index.shrink_to(self.inner.limit_bytes);
    }

    /// What the sequence holds of a block.
    fn parts_of<'a>(&self, sequence: &'a Sequence, block: usize) -> impl Iterator<Item = (usize, &'a SlabRef)> {
        let groups = sequence.groups.iter().map(move |group| group.block(block));
        let state = sequence.recurrent.snapshot((block + 1) * KV_BLOCK_TOKENS);
        let state_part = self.inner.shape.state_part();
        let slabs = groups.enumerate().filter_map(|(part, slab)| Some((part, slab?)));
        slabs.chain(state_part.and_then(|part| Some((part, state?))))
    }

    /// Bytes for the cache's own hold, at the price of older blocks if need be. Called under the lock that `evict` takes, so the ledger must
    /// not ask evictable holders.
    fn pay(&self, index: &mut Index, bytes: u64) -> Option<Reservation> {
        let reserve = || self.inner.ledger.reserve_free(Kind::PrefixCache, bytes);
        match reserve() {
            Err(ReserveError::Later { .. }) => {
                self.inner.evict_from(index, bytes);
                reserve().ok()
            }
            // Where requests wait, what the cache would let go of is theirs.
            done => done.ok(),
        }
    }

    fn check(&self, sequence: &Sequence) -> Result<(), Error> {
        if sequence.spec().layers != self.inner.shape.spec.layers {
            return Err(Error::OtherSpec);
        }
        if !sequence.ledger().same_as(&self.inner.ledger) {
            return Err(Error::OtherLedger);
        }
        Ok(())
    }
}
