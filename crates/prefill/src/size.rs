//! How many rows a chunk gets.

use std::num::NonZeroUsize;

use plimsoll_memguard::{ChunkLimits, Pressure};

/// Chunk sizes chosen by the driver are multiples of this, the KV block; only the end of a prompt may be shorter.
pub const GRANULE_ROWS: usize = 64;

/// The largest chunk of [`ChunkSize::default`].
pub const DEFAULT_MAX_ROWS: usize = 512;

/// How many rows a chunk gets. Results do not depend on it; time and transient memory do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChunkSize {
    /// This many, or an error if they do not fit; the last chunk takes what is left.
    Fixed(NonZeroUsize),
    /// The largest multiple of [`GRANULE_ROWS`], at most `max_rows`, that ledger and machine have room for, decided anew for each
    /// chunk: half of it under soft pressure, the granule under hard. A `max_rows` below the granule is taken as it is.
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
    /// Most chunks that so many tokens are cut into, under any pressure.
    #[must_use]
    pub fn most_chunks(self, tokens: usize) -> usize {
        tokens.div_ceil(self.limits(Pressure::Hard).floor_rows)
    }

    /// Granule, floor and ceiling of the next chunks under `pressure`. A fixed size is kept under any.
    pub(crate) fn limits(self, pressure: Pressure) -> ChunkLimits {
        match self {
            Self::Fixed(rows) => {
                ChunkLimits { granule_rows: rows.get(), floor_rows: rows.get(), ceiling_rows: rows.get() }
            }
            Self::Auto { max_rows } => {
                let whole = |rows: usize| if rows > GRANULE_ROWS { rows - rows % GRANULE_ROWS } else { rows };
                let (ceiling, floor) = (whole(max_rows.get()), max_rows.get().min(GRANULE_ROWS));
                let ceiling_rows = match pressure {
                    Pressure::Nominal => ceiling,
                    Pressure::Soft => whole(ceiling / 2).max(floor),
                    Pressure::Hard => floor,
                };
                ChunkLimits { granule_rows: GRANULE_ROWS, floor_rows: floor, ceiling_rows }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Floor and ceiling.
    fn limits(size: ChunkSize, pressure: Pressure) -> (usize, usize) {
        let ChunkLimits { granule_rows, floor_rows, ceiling_rows } = size.limits(pressure);
        assert!(granule_rows > 0 && floor_rows <= ceiling_rows);
        (floor_rows, ceiling_rows)
    }

    fn auto(max_rows: usize) -> ChunkSize {
        ChunkSize::Auto { max_rows: NonZeroUsize::new(max_rows).unwrap() }
    }

    #[test]
    fn the_most_chunks_are_those_of_the_fewest_rows() {
        let seven = ChunkSize::Fixed(NonZeroUsize::new(7).unwrap());
        assert_eq!([0, 1, 7, 8].map(|tokens| seven.most_chunks(tokens)), [0, 1, 1, 2]);
        assert_eq!([0, 1, 64, 65, 1_000].map(|tokens| auto(512).most_chunks(tokens)), [0, 1, 1, 2, 16]);
        assert_eq!(auto(10).most_chunks(25), 3);
    }

    #[test]
    fn a_fixed_size_is_kept_under_any_pressure() {
        let seven = ChunkSize::Fixed(NonZeroUsize::new(7).unwrap());
        for pressure in [Pressure::Nominal, Pressure::Soft, Pressure::Hard] {
            assert_eq!(limits(seven, pressure), (7, 7));
        }
    }

    #[test]
    fn automatic_sizes_are_halved_under_soft_pressure_and_the_floor_under_hard() {
        let of = |size| [Pressure::Nominal, Pressure::Soft, Pressure::Hard].map(|pressure| limits(size, pressure));
        assert_eq!(of(auto(512)), [(64, 512), (64, 256), (64, 64)]);
        assert_eq!(of(auto(300)), [(64, 256), (64, 128), (64, 64)]);
        assert_eq!(of(auto(100)), [(64, 64); 3]);
        assert_eq!(of(auto(10)), [(10, 10); 3]);
    }

    #[test]
    fn the_default_ends_at_512_rows() {
        assert_eq!(limits(ChunkSize::default(), Pressure::Nominal), (64, 512));
    }
}
