//! Memory that is taken and given back as a whole, with the reservation that pays for it and a count of who holds it.
//!
//! A slab has one or more owners, sequences and prefix caches. Its own reservation lasts as long as it does. An owner that must be able to
//! replace the slab later (a window moves on, a partial block is copied before it is written) leaves a deposit of the slab's price: whoever
//! lets go first takes one along. There are never more deposits than owners but one.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use memmap2::MmapMut;
use plimsoll_memguard::{Kind, Ledger, Reservation};

use crate::Error;
use crate::aligned::AlignedBytes;

/// Slabs from this size on are mappings of their own; below, the allocator's.
const MAPPED_BYTES: usize = 64 << 10;
/// What mappings are rounded up to: the largest page among the systems this runs on, so that a price is the same on all.
const PAGE_BYTES: usize = 16 << 10;

/// Bytes of a slab that holds `content` bytes.
pub(crate) const fn slab_bytes(content: usize) -> usize {
    if content < MAPPED_BYTES { content } else { content.saturating_add(PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES }
}

/// Whether a slab of `bytes` is a mapping of its own, which no allocator counts.
pub(crate) const fn is_mapped(bytes: usize) -> bool {
    bytes >= MAPPED_BYTES
}

/// Zeroed bytes at a multiple of 64, returned to the system when dropped.
#[derive(Debug)]
pub(crate) enum Memory {
    /// For what holds no bytes.
    Empty,
    Heap(AlignedBytes),
    Mapped(MmapMut),
}

impl Memory {
    pub(crate) fn zeroed(bytes: usize) -> Result<Self, Error> {
        let refused = Error::OutOfMemory { bytes };
        if bytes == 0 {
            Ok(Self::Empty)
        } else if !is_mapped(bytes) {
            AlignedBytes::zeroed(bytes).map(Self::Heap).ok_or(refused)
        } else {
            MmapMut::map_anon(bytes).map(Self::Mapped).map_err(|_| refused)
        }
    }

    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Empty => &mut [],
            Self::Heap(bytes) => bytes,
            Self::Mapped(pages) => pages,
        }
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Empty => &[],
            Self::Heap(bytes) => bytes,
            Self::Mapped(pages) => pages,
        }
    }
}

#[derive(Debug)]
struct Slab {
    // Declared first: bytes are given back only once they are free.
    memory: Memory,
    books: Mutex<Books>,
}

#[derive(Debug)]
struct Books {
    /// Pays for the memory.
    own: Reservation,
    deposits: Option<Reservation>,
    /// Sequences that hold it, and hits on their way into one.
    users: usize,
    /// Prefix caches that hold it.
    caches: usize,
}

impl Books {
    fn owners(&self) -> usize {
        self.users + self.caches
    }

    /// Takes one deposit out, if there is any.
    fn withdraw(&mut self, bytes: u64) -> Option<Reservation> {
        let deposits = self.deposits.as_mut().filter(|deposits| bytes > 0 && deposits.bytes() >= bytes)?;
        Some(deposits.split(bytes))
    }

    /// After owners have changed: what is deposited beyond need goes back to the ledger, and what no sequence uses is the cache's.
    fn settle(&mut self, bytes: u64) {
        let needed = bytes * (self.owners().saturating_sub(1) as u64);
        if let Some(deposits) = &mut self.deposits {
            deposits.shrink(deposits.bytes().saturating_sub(needed));
        }
        let kind = match (self.users, self.caches) {
            // It goes back to the ledger at once.
            (0, 0) => return,
            (0, _) => Kind::PrefixCache,
            _ => Kind::Kv,
        };
        for reservation in [Some(&mut self.own), self.deposits.as_mut()].into_iter().flatten() {
            if reservation.kind() != kind {
                reservation.move_to(kind);
            }
        }
    }
}

impl Slab {
    fn books(&self) -> MutexGuard<'_, Books> {
        // Counts and sums change only after everything that may panic.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    fn enter(&self, deposit: Option<Reservation>, count: impl FnOnce(&mut Books)) {
        let mut books = self.books();
        count(&mut books);
        match (&mut books.deposits, deposit) {
            (Some(deposits), Some(deposit)) => deposits.absorb(deposit),
            (none @ None, deposit) => *none = deposit,
            (Some(_), None) => {}
        }
        books.settle(self.bytes());
    }

    fn leave(&self, count: impl FnOnce(&mut Books)) {
        let mut books = self.books();
        count(&mut books);
        books.settle(self.bytes());
    }
}

/// A sequence's hold on a slab.
#[derive(Debug)]
pub(crate) struct SlabRef {
    /// Empty only while it is being let go.
    slab: Option<Arc<Slab>>,
}

impl SlabRef {
    /// A zeroed slab of `bytes`, paid for by `payment`.
    pub(crate) fn zeroed(bytes: usize, payment: Reservation) -> Result<Self, Error> {
        let memory = Memory::zeroed(bytes)?;
        let books = Mutex::new(Books { own: payment, deposits: None, users: 1, caches: 0 });
        Ok(Self { slab: Some(Arc::new(Slab { memory, books })) })
    }

    fn slab(&self) -> &Arc<Slab> {
        self.slab.as_ref().expect("emptied only by `release`, which consumes it")
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.slab().bytes()
    }

    pub(crate) fn memory(&self) -> &[u8] {
        &self.slab().memory
    }

    /// The bytes to write; `None` while someone else holds them too.
    pub(crate) fn memory_mut(&mut self) -> Option<&mut [u8]> {
        let slab = self.slab.as_mut().expect("emptied only by `release`, which consumes it");
        // An owner on another thread that has signed off may not have let go yet.
        while Arc::strong_count(slab) > 1 && slab.books().owners() == 1 {
            thread::yield_now();
        }
        Arc::get_mut(slab).map(|slab| slab.memory.as_mut())
    }

    /// Another sequence's hold, with what that sequence deposits.
    pub(crate) fn share(&self, deposit: Option<Reservation>) -> Self {
        let slab = self.slab();
        slab.enter(deposit, |books| books.users += 1);
        Self { slab: Some(Arc::clone(slab)) }
    }

    /// A cache's hold, with what the cache deposits.
    pub(crate) fn share_with_cache(&self, deposit: Option<Reservation>) -> CachedSlab {
        let slab = self.slab();
        slab.enter(deposit, |books| books.caches += 1);
        CachedSlab { slab: Arc::clone(slab) }
    }

    /// Leaves a deposit for a slab that is held already.
    pub(crate) fn deposit(&self, deposit: Reservation) {
        self.slab().enter(Some(deposit), |_| {});
    }

    /// A deposit, to pay for a copy with.
    pub(crate) fn withdraw(&self) -> Option<Reservation> {
        self.slab().books().withdraw(self.bytes())
    }

    /// Lets go for a reservation of the slab's price: the slab's own if nobody else holds it, else a deposit if there is one.
    pub(crate) fn release(mut self) -> Option<Reservation> {
        let mut slab = self.slab.take()?;
        let bytes = slab.bytes();
        {
            let mut books = slab.books();
            if books.owners() > 1 {
                let credit = books.withdraw(bytes);
                books.users -= 1;
                books.settle(bytes);
                return credit;
            }
        }
        // The last owner: nobody can join, and who has signed off lets go at once.
        loop {
            match Arc::try_unwrap(slab) {
                Ok(Slab { memory, books }) => {
                    drop(memory);
                    return Some(books.into_inner().unwrap_or_else(PoisonError::into_inner).own);
                }
                Err(shared) => slab = shared,
            }
            thread::yield_now();
        }
    }
}

impl Drop for SlabRef {
    fn drop(&mut self) {
        if let Some(slab) = &self.slab {
            slab.leave(|books| books.users -= 1);
        }
    }
}

/// A prefix cache's hold on a slab.
#[derive(Debug)]
pub(crate) struct CachedSlab {
    slab: Arc<Slab>,
}

impl CachedSlab {
    pub(crate) fn bytes(&self) -> u64 {
        self.slab.bytes()
    }

    pub(crate) fn memory(&self) -> &[u8] {
        &self.slab.memory
    }

    /// A sequence's hold, with what it deposits.
    pub(crate) fn share(&self, deposit: Option<Reservation>) -> SlabRef {
        self.slab.enter(deposit, |books| books.users += 1);
        SlabRef { slab: Some(Arc::clone(&self.slab)) }
    }

    /// Whether a sequence holds it too.
    pub(crate) fn is_used(&self) -> bool {
        self.slab.books().users > 0
    }

    /// Bytes that go back to the ledger when the cache lets go now.
    pub(crate) fn freeable_bytes(&self) -> u64 {
        let (books, bytes) = (self.slab.books(), self.slab.bytes());
        let deposits = books.deposits.as_ref().map_or(0, Reservation::bytes);
        match books.owners() {
            0 | 1 => bytes + deposits,
            owners => deposits.saturating_sub(bytes * (owners as u64 - 2)),
        }
    }
}

impl Drop for CachedSlab {
    fn drop(&mut self) {
        self.slab.leave(|books| books.caches -= 1);
    }
}

/// What a sequence has reserved and not yet used.
#[derive(Debug)]
pub(crate) struct Purse {
    reservation: Reservation,
}

impl Purse {
    pub(crate) fn new(reservation: Reservation) -> Self {
        Self { reservation }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.reservation.bytes()
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        self.reservation.ledger()
    }

    /// Parts `bytes` off. Where blocks that others still hold took their price along, the ledger is asked for what is missing.
    pub(crate) fn pay(&mut self, bytes: u64) -> Result<Reservation, Error> {
        let missing_bytes = bytes.saturating_sub(self.bytes());
        if missing_bytes > 0 {
            self.reservation.grow(missing_bytes).map_err(|_| Error::Unpaid { missing_bytes })?;
        }
        Ok(self.reservation.split(bytes))
    }

    pub(crate) fn put(&mut self, credit: Option<Reservation>) {
        if let Some(credit) = credit {
            self.reservation.absorb(credit);
        }
    }

    /// Gives `bytes` back to the ledger, or what is there.
    pub(crate) fn give_back(&mut self, bytes: u64) {
        self.reservation.shrink(bytes.min(self.bytes()));
    }
}
