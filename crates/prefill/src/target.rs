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
}
