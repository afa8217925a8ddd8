//! Reads the values of constants: packs matrices piece by piece, widens vectors to f32, and refuses what is no number.

use super::{Constant, quantize};
use crate::{
    checkpoint::{
        CheckpointRef, StoredTensor,
        source::{Resolved, Source},
    },
    error::ModelError,
};
use plimsoll_linear::{PackedWeight, Packer, WeightType};
use rayon::prelude::*;
use std::ops::Range;

/// Stored bytes that are checked and packed at a time: enough for every thread, small enough for the second cache.
const PIECE_BYTES: usize = 4 << 20;

/// Rows of a panel of the packed layout: pieces of whole panels keep threads out of each other's way.
const PANEL_ROWS: usize = 16;

/// The constant `name` of `shape`, stored as `kind` in memory. Pages of its tensors go back to `checkpoint` piece by piece.
pub(super) fn constant(
    checkpoint: CheckpointRef<'_>,
    name: &str,
    shape: &[usize],
    source: &Source,
    resolved: &Resolved<'_>,
    kind: WeightType,
    threads: usize,
) -> Result<Constant, ModelError> {
    let pack = |rows: Range<usize>| matrix(checkpoint, name, rows, source, resolved, kind, threads);
    match *shape {
        [out_features, _] => Ok(Constant::Matrix(pack(0..out_features)?)),
        [experts, out_features, _] => {
            let packed = (0..experts).map(|expert| pack(expert * out_features..(expert + 1) * out_features));
            Ok(Constant::Experts(packed.collect::<Result<_, _>>()?))
        }
        _ => vector(name, source, resolved).map(Constant::Vector),
    }
}

/// Packs the constant's rows `rows` as one matrix.
fn matrix(
    checkpoint: CheckpointRef<'_>,
    name: &str,
    rows: Range<usize>,
    source: &Source,
    resolved: &Resolved<'_>,
    kind: WeightType,
    threads: usize,
) -> Result<PackedWeight, ModelError> {
    let (stored, in_features) = (resolved.stored, resolved.row_elements);
    let fault = |source| match source {
        plimsoll_linear::Error::OutOfMemory { bytes } => ModelError::OutOfMemory { tensor: name.to_owned(), bytes },
        source => ModelError::Weight { tensor: name.to_owned(), source },
    };
    let row_bytes = stored.row_bytes(in_features).map_err(fault)?;
    let mut packer = Packer::new(kind, rows.len(), in_features).map_err(fault)?;
    let step = PANEL_ROWS * threads.max(1);
    let piece_rows = (PIECE_BYTES / row_bytes / step * step).max(step);
    let mut quantizer =
        (kind != stored).then(|| quantize::Rows::new(stored, kind, in_features, threads)).transpose()?;
    for (part, run) in source.runs(resolved, rows) {
        let tensor = &resolved.tensors[part];
        for start in run.clone().step_by(piece_rows) {
            let end = run.end.min(start + piece_rows);
            let piece = &tensor.data[start * row_bytes..end * row_bytes];
            check_finite_on(threads, tensor, stored, piece, start * in_features)?;
            match &mut quantizer {
                None => packer.push(piece, threads).map_err(fault)?,
                Some(quantizer) => {
                    quantizer.for_each(piece, |bytes| packer.push(bytes, threads)).map_err(fault)?;
                }
            }
            // From the start of the run: a fault brings back pages around it as well, some of them behind it.
            checkpoint.advise_part_done(tensor, run.start * row_bytes..end * row_bytes);
        }
    }
    packer.finish().map_err(fault)
}

/// The values of a constant of one axis.
fn vector(name: &str, source: &Source, resolved: &Resolved<'_>) -> Result<Vec<f32>, ModelError> {
    let mut values = Vec::new();
    let runs = source.runs(resolved, 0..usize::MAX);
    let len: usize = runs.iter().map(|(_, run)| run.len()).sum();
    values
        .try_reserve_exact(len)
        .map_err(|_| ModelError::OutOfMemory { tensor: name.to_owned(), bytes: 4 * len as u64 })?;
    let width = resolved.stored.block_bytes();
    for (part, run) in runs {
        let tensor = &resolved.tensors[part];
        let bytes = &tensor.data[run.start * width..run.end * width];
        for (index, value) in plain_values(resolved.stored, bytes).enumerate() {
            let value = source.map.apply(value);
            if !value.is_finite() {
                return Err(not_finite(tensor, run.start + index, value));
            }
            values.push(value);
        }
    }
    Ok(values)
}

/// Numbers stored as f32, f16 or bf16.
pub(crate) fn plain_values(kind: WeightType, bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(kind.block_bytes()).map(move |bytes| match (kind, bytes) {
        (WeightType::F16, &[a, b]) => half::f16::from_le_bytes([a, b]).to_f32(),
        (WeightType::Bf16, &[a, b]) => half::bf16::from_le_bytes([a, b]).to_f32(),
        (_, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        (other, _) => unreachable!("{other} is no type of single numbers"),
    })
}

fn not_finite(tensor: &StoredTensor<'_>, index: usize, value: f32) -> ModelError {
    ModelError::NotFinite { tensor: crate::checkpoint::one_line(tensor.name), index, value }
}

/// [`check_finite`] of whole rows on several threads; the fault reported is the first in any case.
fn check_finite_on(
    threads: usize,
    tensor: &StoredTensor<'_>,
    kind: WeightType,
    bytes: &[u8],
    first: usize,
) -> Result<(), ModelError> {
    let blocks = bytes.len() / kind.block_bytes();
    let share = blocks.div_ceil(threads.max(1)).max(1);
    if threads <= 1 {
        return check_finite(tensor, kind, bytes, first);
    }
    let check = |(index, bytes): (usize, &[u8])| {
        check_finite(tensor, kind, bytes, first + index * share * kind.block_elements())
    };
    let parts = bytes.par_chunks(share * kind.block_bytes()).enumerate();
    parts.map(check).find_first(Result::is_err).unwrap_or(Ok(()))
}

/// Refuses weights and block scales that are infinite or no numbers. `first`: the element that `bytes` begins with.
fn check_finite(tensor: &StoredTensor<'_>, kind: WeightType, bytes: &[u8], first: usize) -> Result<(), ModelError> {
    let f16 = |b: &[u8]| half::f16::from_le_bytes([b[0], b[1]]);
    let fault = match kind {
        // Exponents of all ones are infinities and NaN. The comparison of bits vectorizes, a look at each value does not.
        WeightType::F32 => {
            first_of(bytes.as_chunks().0, |&b: &[u8; 4]| u32::from_le_bytes(b) & 0x7f80_0000 == 0x7f80_0000)
        }
        WeightType::F16 => first_of(bytes.as_chunks().0, |&b: &[u8; 2]| u16::from_le_bytes(b) & 0x7c00 == 0x7c00),
        WeightType::Bf16 => first_of(bytes.as_chunks().0, |&b: &[u8; 2]| u16::from_le_bytes(b) & 0x7f80 == 0x7f80),
        block => {
            let (size, scales) = (block.block_bytes(), scale_offsets(block));
            let faulty = |block: &[u8]| scales.iter().any(|&at| !f16(&block[at..]).is_finite());
            bytes.chunks_exact(size).position(faulty)
        }
    };
    let Some(block) = fault else { return Ok(()) };
    let bytes = &bytes[block * kind.block_bytes()..];
    let value = match kind {
        WeightType::F32 | WeightType::F16 | WeightType::Bf16 => plain_values(kind, bytes).next().unwrap_or(f32::NAN),
        block => {
            let scales = scale_offsets(block).iter().map(|&at| f16(&bytes[at..]).to_f32());
            scales.into_iter().find(|scale| !scale.is_finite()).unwrap_or(f32::NAN)
        }
    };
    Err(not_finite(tensor, first + block * kind.block_elements(), value))
}

/// The index of the first value that `is_faulty`, looking through many at a time.
fn first_of<T>(values: &[T], is_faulty: impl Fn(&T) -> bool) -> Option<usize> {
    const GROUP: usize = 1024;
    let group = values.chunks(GROUP).position(|group| group.iter().fold(false, |any, value| any | is_faulty(value)))?;
    let start = group * GROUP;
    values[start..].iter().position(is_faulty).map(|index| start + index)
}

/// Where a block's f16 scales and minimums are.
fn scale_offsets(kind: WeightType) -> &'static [usize] {
    // By GGML's ids, so that a format whose scales are not f16 is looked at here before it is loaded.
    match kind.ggml_id() {
        2 | 6 | 8 | 20 | 23 => &[0],
        3 | 7 | 12 | 13 => &[0, 2],
        10 => &[80, 82],
        11 => &[108],
        14 => &[208],
        _ => &[],
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;
    use crate::gguf::{GgmlType, Gguf, GgufWriter};
    use std::{
        path::Path,
        sync::atomic::{AtomicBool, Ordering},
    };

    /// Resident bytes of the maps of `path` in this process.
    fn resident_bytes(path: &Path) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines();
        let mut kib = 0;
        while let Some(line) = lines.next() {
            if line.ends_with(path.to_str().unwrap()) {
                let resident = lines.by_ref().find_map(|line| line.strip_prefix("Rss:")).unwrap();
                kib += resident.trim().trim_end_matches(" kB").parse::<usize>().unwrap();
            }
        }
        kib * 1024
    }

    #[test]
    fn a_large_matrix_is_never_resident_as_a_whole_beside_its_packed_form() {
        const SHAPE: [usize; 2] = [8192, 2048];
        let mut writer = GgufWriter::new();
        writer.tensor("w", &SHAPE, GgmlType::F16, vec![0; 2 * SHAPE[0] * SHAPE[1]]).unwrap();
        let mut out = tempfile::NamedTempFile::new().unwrap();
        writer.write_to(&mut out).unwrap();
        let gguf = Gguf::open(out.path()).unwrap();
        let checkpoint = CheckpointRef::from(&gguf);
        let source = Source::whole("w".to_owned(), &SHAPE);
        let resolved = source.resolve("w", &SHAPE, checkpoint).unwrap();
        let done = AtomicBool::new(false);
        let most = std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut most = 0;
                while !done.load(Ordering::Acquire) {
                    most = most.max(resident_bytes(out.path()));
                }
                most
            });
            let packed = constant(checkpoint, "w", &SHAPE, &source, &resolved, WeightType::F16, 1).unwrap();
            done.store(true, Ordering::Release);
            assert_eq!(packed.bytes(), 32 << 20);
            watch.join().unwrap()
        });
        // A piece, another that came while the system counted, and what it reads around a fault.
        assert!(most <= 2 * PIECE_BYTES + (1 << 20), "{most} bytes of the file were resident at once");
        assert!(resident_bytes(out.path()) <= 1 << 17, "pages are resident after packing");
    }
}
