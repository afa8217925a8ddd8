//! The arena of a pass: one aligned allocation, sized by the plan, in which every slot has its place.

use memmap2::MmapMut;
use plimsoll_program::ARENA_ALIGNMENT;
use smallvec::SmallVec;
use std::{io, ops::Range, ptr::NonNull};

#[expect(clippy::cast_possible_truncation, reason = "64 fits")]
const ALIGNMENT: usize = ARENA_ALIGNMENT as usize;

/// Operands that a step may write before a list of them takes heap memory: more than any step here has, four parts of a product and scratch included.
pub(crate) const OPERANDS: usize = 8;

/// Anonymous pages for one pass at a time. They are zero pages until first touched, are reused from pass to pass of the same size, and go back to
/// the system when the size changes.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    pages: Option<MmapMut>,
    size: usize,
    high_water: usize,
}

impl Arena {
    /// Makes the arena `size_bytes` large; what it held is lost. An arena of that size already is left as it is.
    ///
    /// # Errors
    /// The system's error if it has no such memory.
    pub(crate) fn resize(&mut self, size_bytes: u64) -> io::Result<()> {
        let size = usize::try_from(size_bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        self.high_water = 0;
        if size == self.size {
            return Ok(());
        }
        // Old pages go first: at no time do two arenas exist.
        (self.pages, self.size) = (None, 0);
        if size > 0 {
            self.pages = Some(MmapMut::map_anon(size)?);
        }
        self.size = size;
        Ok(())
    }

    /// Size in bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// End of the highest range handed out since [`Arena::resize`], in whole units of the layout's alignment.
    pub(crate) fn high_water(&self) -> usize {
        self.high_water.next_multiple_of(ALIGNMENT)
    }

    /// One range, to read.
    pub(crate) fn read(&self, range: Range<usize>) -> &[u8] {
        self.pages.as_ref().map_or(&[], |pages| &pages[range])
    }

    /// Several ranges at once: `reads` may overlap each other, `writes` overlap nothing.
    ///
    /// # Panics
    /// If a range lies outside of the arena, or a write range overlaps another range: the layout is broken.
    pub(crate) fn borrow<const R: usize, const W: usize>(
        &mut self,
        reads: [Range<usize>; R],
        writes: [Range<usize>; W],
    ) -> ([&[u8]; R], [&mut [u8]; W]) {
        self.check(&reads, &writes);
        // SAFETY: `check` has found every range inside of the mapping and every write range apart from all others, and `self` stays mutably
        // borrowed for as long as the results live.
        #[expect(unsafe_code, reason = "disjoint borrows of one allocation")]
        unsafe {
            (reads.map(|range| self.slice(range)), writes.map(|range| self.slice_mut(range)))
        }
    }

    /// [`Arena::borrow`] for a number of writes that is known at run time only.
    pub(crate) fn borrow_list<const R: usize>(
        &mut self,
        reads: [Range<usize>; R],
        writes: &[Range<usize>],
    ) -> ([&[u8]; R], SmallVec<[&mut [u8]; OPERANDS]>) {
        self.check(&reads, writes);
        // SAFETY: as in `borrow`.
        #[expect(unsafe_code, reason = "disjoint borrows of one allocation")]
        unsafe {
            let writes = writes.iter().map(|range| self.slice_mut(range.clone())).collect();
            (reads.map(|range| self.slice(range)), writes)
        }
    }

    /// Panics unless all ranges lie in the arena and no write range overlaps another; notes the high water.
    fn check(&mut self, reads: &[Range<usize>], writes: &[Range<usize>]) {
        for range in reads.iter().chain(writes) {
            assert!(range.start <= range.end && range.end <= self.size, "{range:?} is outside of {} bytes", self.size);
            self.high_water = self.high_water.max(range.end);
        }
        for (i, write) in writes.iter().enumerate() {
            let clear = |other: &Range<usize>| {
                other.is_empty() || write.is_empty() || other.end <= write.start || write.end <= other.start
            };
            assert!(reads.iter().all(clear) && writes[..i].iter().all(clear), "{write:?} overlaps another operand");
        }
    }

    /// Start of the mapping; dangling while the arena is empty.
    fn base(&self) -> *mut u8 {
        self.pages.as_ref().map_or(NonNull::<u64>::dangling().as_ptr().cast(), |pages| pages.as_ptr().cast_mut())
    }

    /// # Safety
    /// `range` lies in the arena, and no mutable slice of any of it lives.
    #[expect(unsafe_code, reason = "disjoint borrows of one allocation")]
    unsafe fn slice<'a>(&self, range: Range<usize>) -> &'a [u8] {
        // SAFETY: the caller's contract; the bytes are initialized, anonymous pages being zero.
        unsafe { std::slice::from_raw_parts(self.base().add(range.start), range.len()) }
    }

    /// # Safety
    /// `range` lies in the arena, and no other slice of any of it lives.
    #[expect(unsafe_code, reason = "disjoint borrows of one allocation")]
    unsafe fn slice_mut<'a>(&self, range: Range<usize>) -> &'a mut [u8] {
        // SAFETY: the caller's contract; the mapping is private and writable.
        unsafe { std::slice::from_raw_parts_mut(self.base().add(range.start), range.len()) }
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "operands are arrays of ranges, of one as of several")]
mod tests {
    use super::*;

    fn arena(size: u64) -> Arena {
        let mut arena = Arena::default();
        arena.resize(size).unwrap();
        arena
    }

    #[test]
    fn disjoint_ranges_are_lent_together_and_high_water_is_kept() {
        let mut arena = arena(4096);
        let ([], [a, b]) = arena.borrow([], [0..64, 64..128]);
        a.fill(1);
        b.fill(2);
        let ([a, again], [c]) = arena.borrow([0..64, 32..96], [128..192]);
        c[..32].copy_from_slice(&a[..32]);
        c[32..].copy_from_slice(&again[32..]);
        assert_eq!((arena.read(128..192)[0], arena.read(128..192)[63]), (1, 2));
        assert_eq!(arena.high_water(), 192);
    }

    #[test]
    fn overlap_with_a_written_range_is_refused() {
        let overlap = |reads: [Range<usize>; 1], writes: [Range<usize>; 2]| {
            std::panic::catch_unwind(move || {
                arena(4096).borrow(reads, writes);
            })
            .is_err()
        };
        assert!(overlap([0..64], [63..70, 80..90]));
        assert!(overlap([0..64], [64..70, 69..90]));
        assert!(overlap([4090..4097], [0..1, 2..3]));
        assert!(!overlap([0..64], [64..70, 70..90]));
        assert!(!overlap([0..64], [64..64, 70..90]));
    }

    #[test]
    fn an_empty_arena_lends_empty_ranges() {
        let mut arena = arena(0);
        let ([r], [w]) = arena.borrow([0..0], [0..0]);
        assert!(r.is_empty() && w.is_empty());
    }
}
