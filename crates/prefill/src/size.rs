//! How many rows a chunk gets.

use std::num::NonZeroUsize;

/// Chunk sizes chosen by the driver are multiples of this, the KV block; only the end of a prompt may be shorter.
pub const GRANULE_ROWS: usize = 64;

/// The largest chunk of [`ChunkSize::default`].
pub const DEFAULT_MAX_ROWS: usize = 512;

/// How many rows a chunk gets. Results do not depend on it; time and transient memory do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChunkSize {
    /// This many, or an error if they do not fit; the last chunk takes what is left.
    Fixed(NonZeroUsize),
    /// The largest multiple of [`GRANULE_ROWS`], at most `max_rows`, that the ledger has room for, decided anew for each chunk.
    /// A `max_rows` below the granule is taken as it is.
    Auto {
        /// No chunk has more rows, however much memory is free.
        max_rows: NonZeroUsize,
    },
}

impl Default for ChunkSize {
    fn default() -> Self {
        const MAX_ROWS: NonZeroUsize = NonZeroUsize::new(DEFAULT_MAX_ROWS).expect("not zero");
        Self::Auto { max_rows: MAX_ROWS }
    }
}

impl ChunkSize {
    /// The sizes to try for the next chunk with `remaining` tokens to go, largest first; never empty if `remaining > 0`.
    pub(crate) fn candidates(self, remaining: usize) -> impl Iterator<Item = usize> {
        let (first, shrinks) = match self {
            Self::Fixed(rows) => (rows.get().min(remaining), false),
            Self::Auto { max_rows } => {
                let max_rows = max_rows.get();
                let whole = if max_rows > GRANULE_ROWS { max_rows - max_rows % GRANULE_ROWS } else { max_rows };
                (whole.min(remaining), true)
            }
        };
        // Below `first`, the next lower multiple of the granule and so on; the lowest size stays.
        let next = |rows: &usize| Some((rows - 1) / GRANULE_ROWS * GRANULE_ROWS).filter(|rows| *rows > 0);
        std::iter::successors(Some(first).filter(|rows| *rows > 0), move |rows| next(rows).filter(|_| shrinks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(size: ChunkSize, remaining: usize) -> Vec<usize> {
        size.candidates(remaining).collect()
    }

    fn auto(max_rows: usize) -> ChunkSize {
        ChunkSize::Auto { max_rows: NonZeroUsize::new(max_rows).unwrap() }
    }

    #[test]
    fn a_fixed_size_is_the_only_candidate() {
        let seven = ChunkSize::Fixed(NonZeroUsize::new(7).unwrap());
        assert_eq!(candidates(seven, 100), [7]);
        assert_eq!(candidates(seven, 3), [3]);
        assert_eq!(candidates(seven, 0), [0usize; 0]);
    }

    #[test]
    fn automatic_sizes_are_multiples_of_the_granule_or_the_whole_rest() {
        assert_eq!(candidates(auto(256), 1000), [256, 192, 128, 64]);
        assert_eq!(candidates(auto(300), 1000), [256, 192, 128, 64]);
        assert_eq!(candidates(auto(256), 150), [150, 128, 64]);
        assert_eq!(candidates(auto(256), 64), [64]);
        assert_eq!(candidates(auto(256), 63), [63]);
        assert_eq!(candidates(auto(10), 1000), [10]);
        assert_eq!(candidates(auto(256), 0), [0usize; 0]);
    }

    #[test]
    fn the_default_starts_at_512_rows() {
        assert_eq!(ChunkSize::default().candidates(10_000).next(), Some(512));
    }
}
