//! Weights in the packed layout.

use bytemuck::{Pod, Zeroable};

use crate::layout::{self, PANEL};
use crate::{Error, WeightType};

/// One cache line; gives the packed weight its alignment.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A weight matrix `[out_features, in_features]`, reordered once for the kernels and read-only from then on.
///
/// Memory is one 64-byte aligned allocation of [`PackedWeight::bytes`] bytes, at most 1.04 times the stored size (MXFP4: 1.06)
/// when `out_features` is a multiple of 16 and `in_features` is even; otherwise the last panel of 16 columns (and an odd
/// last `k`) is padded with zeros.
pub struct PackedWeight {
    ty: WeightType,
    out_features: usize,
    in_features: usize,
    panel_bytes: usize,
    lines: Box<[Line]>,
}

impl std::fmt::Debug for PackedWeight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackedWeight")
            .field("weight_type", &self.ty)
            .field("out_features", &self.out_features)
            .field("in_features", &self.in_features)
            .field("bytes", &self.bytes())
            .finish()
    }
}

impl PackedWeight {
    /// Packs stored rows: `bytes` is `[out_features, in_features]` row by row, as in a GGUF or safetensors file.
    ///
    /// Reads `bytes` (a memory map, for example) once and makes no other copy than the packed one. `threads` tasks
    /// share the work on the caller's current rayon pool; 1 runs inline.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::PartialBlock`], [`Error::TooLarge`], [`Error::OutOfMemory`], or [`Error::ByteLength`] if
    /// `bytes` is not exactly `out_features` rows.
    pub fn pack(
        ty: WeightType,
        out_features: usize,
        in_features: usize,
        bytes: &[u8],
        threads: usize,
    ) -> Result<Self, Error> {
        let geometry = Geometry::new(ty, out_features, in_features)?;
        if bytes.len() as u64 != geometry.stored_bytes {
            return Err(Error::ByteLength {
                type_name: ty.name(),
                out_features,
                in_features,
                expected_bytes: geometry.stored_bytes,
                actual_bytes: bytes.len() as u64,
            });
        }
        let mut packer = Packer::with_geometry(ty, out_features, in_features, geometry)?;
        packer.push(bytes, threads)?;
        packer.finish()
    }

    /// Bytes that [`PackedWeight::pack`] allocates for such a weight; `u64::MAX` if that overflows. A row that ends
    /// inside a block, which `pack` refuses, counts its whole blocks only.
    pub fn packed_bytes(ty: WeightType, out_features: usize, in_features: usize) -> u64 {
        layout::panel_bytes(ty, in_features)
            .and_then(|panel| panel.checked_mul(out_features.div_ceil(PANEL)))
            .and_then(|bytes| bytes.checked_next_multiple_of(size_of::<Line>()))
            .map_or(u64::MAX, |bytes| bytes as u64)
    }

    /// Bytes held by this weight.
    pub fn bytes(&self) -> u64 {
        size_of_val(&*self.lines) as u64
    }

    /// The bytes themselves, in the kernels' layout: to tell weights apart, not to read numbers from.
    pub fn packed(&self) -> &[u8] {
        bytemuck::cast_slice(&self.lines)
    }

    /// Rows of the stored matrix, columns of the product.
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// Columns of the stored matrix, the length of the sums.
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// The type the weight was stored in.
    pub fn weight_type(&self) -> WeightType {
        self.ty
    }

    /// Writes stored row `row` to `out` (`[in_features]`), dequantized exactly as GGML's reference does: product and
    /// sum rounded one after the other, no bf16 rounding. Only the payload of NaNs may differ.
    ///
    /// # Panics
    /// If `row` is not below `out_features`, or `out` is not `in_features` long.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.out_features, "row {row} of a weight of {} rows", self.out_features);
        assert_eq!(out.len(), self.in_features, "length of the output row and in_features differ");
        let panel = self.panel(row / PANEL);
        layout::dequantize(self.ty, panel, 0..self.in_features, row % PANEL, |k, [value]| out[k] = value);
    }

    pub(crate) fn panels(&self) -> usize {
        self.out_features.div_ceil(PANEL)
    }

    pub(crate) fn panel(&self, index: usize) -> &[u8] {
        let bytes: &[u8] = bytemuck::cast_slice(&self.lines);
        &bytes[index * self.panel_bytes..][..self.panel_bytes]
    }
}

/// Checked sizes of a weight.
#[derive(Clone, Copy)]
struct Geometry {
    row_bytes: usize,
    stored_bytes: u64,
    panel_bytes: usize,
    lines: usize,
}

impl Geometry {
    fn new(ty: WeightType, out_features: usize, in_features: usize) -> Result<Self, Error> {
        if out_features == 0 || in_features == 0 {
            return Err(Error::Empty { out_features, in_features });
        }
        let too_large = Error::TooLarge { type_name: ty.name(), out_features, in_features };
        let row_bytes = ty.row_bytes(in_features)?;
        let stored = row_bytes.checked_mul(out_features).ok_or(too_large.clone())?;
        let panel_bytes = layout::panel_bytes(ty, in_features).ok_or(too_large.clone())?;
        let packed = panel_bytes.checked_mul(out_features.div_ceil(PANEL)).ok_or(too_large.clone())?;
        if packed > isize::MAX as usize - size_of::<Line>() {
            return Err(too_large);
        }
        Ok(Self { row_bytes, stored_bytes: stored as u64, panel_bytes, lines: packed.div_ceil(size_of::<Line>()) })
    }
}

/// Packs a weight piece by piece, so that a reader can stream a file or give mapped pages back as it goes.
///
/// Rows come in ascending order, any number per piece. The packed bytes are those of [`PackedWeight::pack`].
#[derive(Debug)]
pub struct Packer {
    weight: PackedWeight,
    row_bytes: usize,
    pushed_rows: usize,
}

impl Packer {
    /// Allocates the packed weight ([`PackedWeight::packed_bytes`] bytes, zeroed by the system).
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::PartialBlock`], [`Error::TooLarge`] or [`Error::OutOfMemory`].
    pub fn new(ty: WeightType, out_features: usize, in_features: usize) -> Result<Self, Error> {
        let geometry = Geometry::new(ty, out_features, in_features)?;
        Self::with_geometry(ty, out_features, in_features, geometry)
    }

    fn with_geometry(
        ty: WeightType,
        out_features: usize,
        in_features: usize,
        geometry: Geometry,
    ) -> Result<Self, Error> {
        let bytes = (geometry.lines * size_of::<Line>()) as u64;
        let lines = bytemuck::try_zeroed_slice_box(geometry.lines).map_err(|()| Error::OutOfMemory { bytes })?;
        let weight = PackedWeight { ty, out_features, in_features, panel_bytes: geometry.panel_bytes, lines };
        Ok(Self { weight, row_bytes: geometry.row_bytes, pushed_rows: 0 })
    }

    /// Packs the next rows; `bytes` is whole stored rows. `threads` as in [`PackedWeight::pack`].
    ///
    /// # Errors
    /// [`Error::PartialRow`] or [`Error::TooManyRows`]; nothing is packed then.
    pub fn push(&mut self, bytes: &[u8], threads: usize) -> Result<(), Error> {
        if !bytes.len().is_multiple_of(self.row_bytes) {
            let (row_bytes, actual_bytes) = (self.row_bytes as u64, bytes.len() as u64);
            return Err(Error::PartialRow { row_bytes, actual_bytes });
        }
        let (first, out_features) = (self.pushed_rows, self.weight.out_features);
        let end = first + bytes.len() / self.row_bytes;
        if end > out_features {
            return Err(Error::TooManyRows { pushed_rows: end, out_features });
        }
        if first == end {
            return Ok(());
        }
        let (ty, row_bytes, panel_bytes) = (self.weight.ty, self.row_bytes, self.weight.panel_bytes);
        let pack = |first_panel: usize, panels: &mut [u8]| {
            for (index, panel) in panels.chunks_exact_mut(panel_bytes).enumerate() {
                let panel_row = (first_panel + index) * PANEL;
                for row in panel_row.max(first)..(panel_row + PANEL).min(end) {
                    let source = &bytes[(row - first) * row_bytes..][..row_bytes];
                    layout::pack_row(ty, source, panel, row - panel_row);
                }
            }
        };
        let packed: &mut [u8] = bytemuck::cast_slice_mut(&mut self.weight.lines);
        let (first_panel, end_panel) = (first / PANEL, end.div_ceil(PANEL));
        let panels = &mut packed[first_panel * panel_bytes..end_panel * panel_bytes];
        let share = (end_panel - first_panel).div_ceil(threads.max(1));
        if share == end_panel - first_panel {
            pack(first_panel, panels);
        } else {
            rayon::in_place_scope(|scope| {
                for (index, panels) in panels.chunks_mut(share * panel_bytes).enumerate() {
                    scope.spawn(move |_| pack(first_panel + index * share, panels));
                }
            });
        }
        self.pushed_rows = end;
        Ok(())
    }

    /// Rows packed so far.
    pub fn pushed_rows(&self) -> usize {
        self.pushed_rows
    }

    /// The packed weight, once all rows are in.
    ///
    /// # Errors
    /// [`Error::MissingRows`] if fewer than `out_features` rows were pushed.
    pub fn finish(self) -> Result<PackedWeight, Error> {
        let out_features = self.weight.out_features;
        if self.pushed_rows < out_features {
            return Err(Error::MissingRows { pushed_rows: self.pushed_rows, out_features });
        }
        Ok(self.weight)
    }
}
