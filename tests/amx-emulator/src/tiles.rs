//! The tiles of a thread, their configuration, and what instructions do to them.

use std::fmt;

use crate::product::add_product;

/// Tiles of palette 1, the only one there is.
pub(crate) const TILES: usize = 8;
/// Elements of 4 bytes in a row of a tile.
pub(crate) const ELEMENTS: usize = 16;
const ROWS: usize = 16;
const ROW_BYTES: usize = ELEMENTS * size_of::<u32>();
/// Bytes of the operand of `ldtilecfg` and `sttilecfg`.
pub(crate) const CONFIG_BYTES: usize = 64;
/// Where it has bytes per row, 2 for each tile, and rows, 1 for each.
const CONFIG_ROW_BYTES: usize = 16;
const CONFIG_ROWS: usize = 48;

/// Rows of elements; those that the configuration does not name are zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(align(64))]
pub(crate) struct Tile(pub(crate) [[u32; ELEMENTS]; ROWS]);

impl Tile {
    pub(crate) const ZERO: Self = Self([[0; ELEMENTS]; ROWS]);
}

/// Rows, and bytes of each: zero, or up to 16 and 64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    rows: u8,
    row_bytes: u16,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows of {} bytes", self.rows, self.row_bytes)
    }
}

/// Why a processor would not execute an instruction on tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Palette {
        palette: u8,
    },
    /// Processors take a start row, and go on there; nobody but an operating system writes one.
    NotZero {
        byte: usize,
    },
    BadShape {
        tile: usize,
        shape: Shape,
    },
    NotConfigured {
        tile: usize,
    },
    SameTile {
        tile: usize,
    },
    Product {
        sums: Shape,
        left: Shape,
        right: Shape,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Palette { palette } => write!(f, "there is no palette {palette}"),
            Self::NotZero { byte } => write!(f, "byte {byte} of a configuration is not zero"),
            Self::BadShape { tile, shape } => write!(f, "tile {tile} cannot be {shape}"),
            Self::NotConfigured { tile } => write!(f, "tile {tile} is used and not configured"),
            Self::SameTile { tile } => write!(f, "tile {tile} is more than one operand of a product"),
            Self::Product { sums, left, right } => {
                write!(f, "{left} times {right} is not {sums}")
            }
        }
    }
}

/// Registers of one thread.
#[derive(Debug)]
pub(crate) struct Tiles {
    /// All empty where nothing is configured.
    shapes: [Shape; TILES],
    tiles: [Tile; TILES],
}

impl Tiles {
    pub(crate) const RELEASED: Self =
        Self { shapes: [Shape { rows: 0, row_bytes: 0 }; TILES], tiles: [Tile::ZERO; TILES] };

    /// `ldtilecfg`: shapes of all tiles, and zeros in them.
    pub(crate) fn load_config(&mut self, config: &[u8; CONFIG_BYTES]) -> Result<(), Fault> {
        let [palette, zeros @ ..] = *config;
        *self = Self::RELEASED;
        if palette == 0 {
            return Ok(());
        }
        if palette != 1 {
            return Err(Fault::Palette { palette });
        }
        let row_bytes = |tile: usize| CONFIG_ROW_BYTES + 2 * tile;
        for (tile, shape) in self.shapes.iter_mut().enumerate() {
            let at = row_bytes(tile);
            *shape =
                Shape { rows: config[CONFIG_ROWS + tile], row_bytes: u16::from_le_bytes([config[at], config[at + 1]]) };
            let Shape { rows, row_bytes } = *shape;
            let fits = usize::from(rows) <= ROWS && usize::from(row_bytes) <= ROW_BYTES;
            // Whole elements are asked for only by the use of a tile, but there is no use without.
            if !fits || (rows == 0) != (row_bytes == 0) || row_bytes % 4 != 0 {
                return Err(Fault::BadShape { tile, shape: *shape });
            }
        }
        let is_used = |byte: usize| {
            (CONFIG_ROW_BYTES..row_bytes(TILES)).contains(&byte) || (CONFIG_ROWS..CONFIG_ROWS + TILES).contains(&byte)
        };
        let set = zeros.iter().zip(1..).find(|(value, byte)| **value != 0 && !is_used(*byte));
        set.map_or(Ok(()), |(_, byte)| Err(Fault::NotZero { byte }))
    }

    /// `sttilecfg`: zeros where nothing is configured.
    pub(crate) fn config(&self) -> [u8; CONFIG_BYTES] {
        let mut config = [0; CONFIG_BYTES];
        for (tile, Shape { rows, row_bytes }) in self.shapes.iter().enumerate() {
            config[CONFIG_ROWS + tile] = *rows;
            config[CONFIG_ROW_BYTES + 2 * tile..][..2].copy_from_slice(&row_bytes.to_le_bytes());
            config[0] |= u8::from(*rows > 0);
        }
        config
    }

    /// `tilerelease`.
    pub(crate) fn release(&mut self) {
        *self = Self::RELEASED;
    }

    /// `tilezero`.
    pub(crate) fn zero(&mut self, tile: usize) -> Result<(), Fault> {
        self.shape(tile)?;
        self.tiles[tile] = Tile::ZERO;
        Ok(())
    }

    /// `tileloadd`: rows from `start` on, `stride` bytes apart, modulo 2^64.
    ///
    /// # Safety
    /// The rows of the configured shape can be read.
    pub(crate) unsafe fn load(&mut self, tile: usize, start: usize, stride: usize) -> Result<(), Fault> {
        let Shape { rows, row_bytes } = self.shape(tile)?;
        let to = &mut self.tiles[tile];
        *to = Tile::ZERO;
        for (row, to) in to.0.iter_mut().enumerate().take(rows.into()) {
            let from = std::ptr::with_exposed_provenance::<u8>(start.wrapping_add(stride.wrapping_mul(row)));
            // SAFETY: the caller's promise; a shape has at most 64 bytes in a row.
            unsafe { to.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(from, row_bytes.into()) };
        }
        Ok(())
    }

    /// `tilestored`: as [`Tiles::load`].
    ///
    /// # Safety
    /// The rows of the configured shape can be written, and nothing else refers to them.
    pub(crate) unsafe fn store(&self, tile: usize, start: usize, stride: usize) -> Result<(), Fault> {
        let Shape { rows, row_bytes } = self.shape(tile)?;
        for (row, from) in self.tiles[tile].0.iter().enumerate().take(rows.into()) {
            let to = std::ptr::with_exposed_provenance_mut::<u8>(start.wrapping_add(stride.wrapping_mul(row)));
            // SAFETY: the caller's promise; a shape has at most 64 bytes in a row.
            unsafe { to.copy_from_nonoverlapping(from.as_ptr().cast(), row_bytes.into()) };
        }
        Ok(())
    }

    /// `tdpbf16ps`.
    pub(crate) fn add_product(&mut self, sums: usize, left: usize, right: usize) -> Result<(), Fault> {
        if sums == left || sums == right {
            return Err(Fault::SameTile { tile: sums });
        }
        if left == right {
            return Err(Fault::SameTile { tile: left });
        }
        let [sums_shape, left_shape, right_shape] = [self.shape(sums)?, self.shape(left)?, self.shape(right)?];
        let pairs = right_shape.rows.into();
        if left_shape.rows != sums_shape.rows
            || usize::from(left_shape.row_bytes) != pairs * size_of::<u32>()
            || right_shape.row_bytes != sums_shape.row_bytes
        {
            return Err(Fault::Product { sums: sums_shape, left: left_shape, right: right_shape });
        }
        let mut to = self.tiles[sums];
        add_product(&mut to, &self.tiles[left], &self.tiles[right], sums_shape.rows.into(), pairs);
        let columns = usize::from(sums_shape.row_bytes) / size_of::<u32>();
        to.0.iter_mut().for_each(|row| row[columns..].fill(0));
        self.tiles[sums] = to;
        Ok(())
    }

    fn shape(&self, tile: usize) -> Result<Shape, Fault> {
        let shape = self.shapes[tile];
        if shape.rows == 0 { Err(Fault::NotConfigured { tile }) } else { Ok(shape) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::product::tests::{add_by_definition, assert_same, random_tile};

    /// An operand of `ldtilecfg` with these rows and bytes of each.
    fn config(shapes: &[(u8, u16)]) -> [u8; CONFIG_BYTES] {
        let mut config = [0; CONFIG_BYTES];
        config[0] = 1;
        for (tile, (rows, row_bytes)) in shapes.iter().enumerate() {
            config[CONFIG_ROWS + tile] = *rows;
            config[CONFIG_ROW_BYTES + 2 * tile..][..2].copy_from_slice(&row_bytes.to_le_bytes());
        }
        config
    }

    fn configured(shapes: &[(u8, u16)]) -> Tiles {
        let mut tiles = Tiles::RELEASED;
        tiles.load_config(&config(shapes)).unwrap();
        tiles
    }

    fn load(tiles: &mut Tiles, tile: usize, from: &Tile) {
        // SAFETY: a whole tile can be read, whatever the shape.
        unsafe { tiles.load(tile, from.0.as_ptr().expose_provenance(), ROW_BYTES).unwrap() };
    }

    fn store(tiles: &Tiles, tile: usize) -> Tile {
        let mut to = Tile([[u32::MAX; ELEMENTS]; ROWS]);
        // SAFETY: a whole tile can be written, whatever the shape.
        unsafe { tiles.store(tile, to.0.as_mut_ptr().expose_provenance(), ROW_BYTES).unwrap() };
        to
    }

    #[test]
    fn a_configuration_is_stored_as_it_was_loaded() {
        let loaded = config(&[(16, 64), (3, 8), (0, 0), (1, 4)]);
        let mut tiles = configured(&[(16, 64), (3, 8), (0, 0), (1, 4)]);
        assert_eq!(tiles.config(), loaded);
        tiles.release();
        assert_eq!(tiles.config(), [0; CONFIG_BYTES]);
        tiles.load_config(&loaded).unwrap();
        tiles.load_config(&[0; CONFIG_BYTES]).unwrap();
        assert_eq!(tiles.config(), [0; CONFIG_BYTES]);
    }

    #[test]
    fn configurations_that_no_processor_takes_are_refused() {
        let mut tiles = Tiles::RELEASED;
        let mut load = |config: &[u8; CONFIG_BYTES]| tiles.load_config(config);
        for shape in [(17, 64), (16, 68), (0, 4), (1, 0), (1, 6)] {
            let (rows, row_bytes) = shape;
            let bad = Fault::BadShape { tile: 1, shape: Shape { rows, row_bytes } };
            assert_eq!(load(&config(&[(16, 64), shape])), Err(bad));
        }
        for byte in [1, 2, 15, 32, 47, 56, 63] {
            let mut config = config(&[(16, 64)]);
            config[byte] = 1;
            assert_eq!(load(&config), Err(Fault::NotZero { byte }));
        }
        assert_eq!(load(&[2; CONFIG_BYTES]), Err(Fault::Palette { palette: 2 }));
    }

    #[test]
    fn rows_and_bytes_past_the_shape_are_neither_loaded_nor_stored() {
        let mut tiles = configured(&[(3, 8), (16, 64)]);
        let from = random_tile(&mut 1, |bits| bits | 1);
        load(&mut tiles, 0, &from);
        let to = store(&tiles, 0);
        for (row, (from, to)) in from.0.iter().zip(&to.0).enumerate() {
            for (element, (from, to)) in from.iter().zip(to).enumerate() {
                assert_eq!(*to, if row < 3 && element < 2 { *from } else { u32::MAX }, "row {row}, element {element}");
            }
        }
        load(&mut tiles, 1, &from);
        assert_eq!(store(&tiles, 1), from);
        tiles.zero(1).unwrap();
        assert_eq!(store(&tiles, 1), Tile::ZERO);
    }

    #[test]
    fn rows_are_a_stride_apart_in_either_direction() {
        let mut tiles = configured(&[(4, 4)]);
        let from = [7u32, 6, 5, 4, 3, 2, 1, 0];
        let last = from.as_ptr().wrapping_add(7).expose_provenance();
        // SAFETY: from the last element down, every second one.
        unsafe { tiles.load(0, last, 8usize.wrapping_neg()).unwrap() };
        let mut to = [9u32; 8];
        // SAFETY: every second element.
        unsafe { tiles.store(0, to.as_mut_ptr().expose_provenance(), 8).unwrap() };
        assert_eq!(to, [0, 9, 2, 9, 4, 9, 6, 9]);
    }

    #[test]
    fn a_product_takes_the_configured_part_of_its_operands() {
        if !is_x86_feature_detected!("avx512f") {
            return;
        }
        let mut tiles = configured(&[(5, 12), (5, 28), (7, 12)]);
        let mut seed = 1;
        // All infinities and numbers: a zero beside the shape times an infinity would be NaN.
        let element = |bits: u32| bits & 0x8000_8000 | 0x7f80_3f80;
        let (sums, left, right) =
            (random_tile(&mut seed, |_| 0), random_tile(&mut seed, element), random_tile(&mut seed, element));
        load(&mut tiles, 0, &sums);
        load(&mut tiles, 1, &left);
        load(&mut tiles, 2, &right);
        tiles.add_product(0, 1, 2).unwrap();
        let mut want = sums;
        add_by_definition(&mut want, &left, &right, 5, 7);
        let mut seen = Tile::ZERO;
        for (seen, want) in seen.0.iter_mut().zip(&want.0).take(5) {
            seen[..3].copy_from_slice(&want[..3]);
        }
        assert_same(&tiles.tiles[0], &seen);
    }

    #[test]
    fn products_of_shapes_that_do_not_fit_are_refused() {
        let refused = |sums, left, right| {
            let error = configured(&[sums, left, right]).add_product(0, 1, 2);
            assert!(matches!(error, Err(Fault::Product { .. })), "{error:?}");
        };
        refused((4, 64), (5, 64), (16, 64));
        refused((5, 64), (5, 60), (16, 64));
        refused((5, 64), (5, 64), (16, 60));
        let mut tiles = configured(&[(16, 64), (16, 64)]);
        assert_eq!(tiles.add_product(0, 1, 2), Err(Fault::NotConfigured { tile: 2 }));
        for (sums, left, right) in [(0, 0, 1), (0, 1, 0), (1, 0, 0)] {
            assert_eq!(tiles.add_product(sums, left, right), Err(Fault::SameTile { tile: 0 }));
        }
        tiles.release();
        assert_eq!(tiles.zero(3), Err(Fault::NotConfigured { tile: 3 }));
    }

    #[test]
    fn a_fault_is_one_line_with_its_numbers() {
        let shape = |rows, row_bytes| Shape { rows, row_bytes };
        let fault = Fault::Product { sums: shape(4, 64), left: shape(5, 60), right: shape(16, 64) };
        assert_eq!(fault.to_string(), "5 rows of 60 bytes times 16 rows of 64 bytes is not 4 rows of 64 bytes");
    }
}
