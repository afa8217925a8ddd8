//! The seam between the driver and a model.

/// One chunk of a prompt: the rows that go through the model together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Chunk {
    /// Absolute position of the first row.
    pub start: usize,
    /// Tokens in the chunk; at least one.
    pub rows: usize,
    /// Whether the prompt ends with this chunk: only then are logits wanted.
    pub last: bool,
}

impl Chunk {
    /// The position after the last row.
    #[must_use]
    pub fn end(&self) -> usize {
        self.start + self.rows
    }
}

/// Bytes that a target holds between chunks, by its own count. The driver takes their growth out of what it measures: the rest is what no count
/// explains, such as pools of an allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// Keys and values, and recurrent state.
    pub kv_bytes: u64,
    /// What of `kv_bytes` lies in mappings of its own, which no allocator counts.
    pub mapped_kv_bytes: u64,
    /// Transients that stay for the next chunk, such as an arena; `None` if they are not counted, as in a device's pool.
    pub transient_bytes: Option<u64>,
}

impl Held {
    /// How far two counts are apart: the sum of what shrank (negative), and the sum of what grew.
    pub(crate) fn bounds(before: Self, after: Self) -> (i64, i64) {
        let (kv, transient) = (signed(before.kv_bytes, after.kv_bytes), Self::transient(before, after));
        (kv.min(0).saturating_add(transient.min(0)), kv.max(0).saturating_add(transient.max(0)))
    }

    fn transient(before: Self, after: Self) -> i64 {
        match (before.transient_bytes, after.transient_bytes) {
            (Some(before), Some(after)) => signed(before, after),
            _ => 0,
        }
    }
}

/// `after - before`; past 63 bits the nearest there is.
pub(crate) fn signed(before: u64, after: u64) -> i64 {
    if after >= before {
        i64::try_from(after - before).unwrap_or(i64::MAX)
    } else {
        i64::try_from(before - after).map_or(i64::MIN, |bytes| -bytes)
    }
}

/// A model with one sequence, as the driver sees it.
///
/// [`crate::conformance::check`] tests an implementation for what is promised here.
pub trait ChunkTarget {
    /// Why a chunk failed.
    type Error;

    /// Bytes that live only while a chunk of `rows` rows from `start` runs, the logits of a last chunk included.
    ///
    /// A pure function of its arguments: the price of a chunk is the same before and after it ran.
    fn transient_bytes(&self, rows: usize, start: usize) -> u64;

    /// Runs the rows `chunk.start..chunk.end()`, which follow those of the chunk before. What a row computes does not depend
    /// on the chunk it is in.
    ///
    /// # Errors
    /// Whatever the model meets. The keys and values of the chunks before must stay usable.
    fn run(&mut self, chunk: &Chunk) -> Result<(), Self::Error>;

    /// Gives back what the chunk left behind: allocator pools, autoreleased objects, queued work. Called after every chunk,
    /// failed ones included; calling it twice, or before the first chunk, does no harm.
    fn drain(&mut self);

    /// The most transient bytes the last chunk held, by the target's own count (an arena's high water, a counting
    /// allocator). `None`, the default, if it keeps no count.
    fn measured_bytes(&self) -> Option<u64> {
        None
    }

    /// What the target holds now. The default counts nothing: then all growth of the process is taken for the chunk's.
    fn held(&self) -> Held {
        Held::default()
    }

    /// Bytes of keys and values that a chunk of `rows` rows from `start` adds to what is held; 0, the default, if they are not counted.
    fn kv_growth_bytes(&self, _rows: usize, _start: usize) -> u64 {
        0
    }
}
