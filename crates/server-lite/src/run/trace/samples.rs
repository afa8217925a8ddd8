//! The memory after each step, in a file: a record of five numbers a step.

use crate::{
    error::AppError,
    files::{folder_of, temporary, write_fault},
};
use plimsoll_program::Dims;
use std::{
    io::{self, BufReader, BufWriter, ErrorKind, Read, Seek, Write},
    path::Path,
};
use tempfile::NamedTempFile;

/// What stands for a footprint that the platform does not tell.
const UNKNOWN: u64 = u64::MAX;

/// The samples of all prefill passes, in a file that goes with this.
#[derive(Debug)]
pub(super) struct Samples(BufWriter<NamedTempFile>);

/// One pass: its number, its sizes, and the footprint after each of its steps; a pass that failed has fewer of them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pass {
    pub(super) number: usize,
    pub(super) dims: Dims,
    pub(super) footprints: Vec<Option<u64>>,
}

impl Samples {
    /// An empty file in the folder of `path`: the one for temporary files may be in memory.
    pub(super) fn beside(path: &Path) -> Result<Self, AppError> {
        let file = temporary(folder_of(path), ".samples-").map_err(write_fault(path))?;
        Ok(Self(BufWriter::new(file)))
    }

    /// Adds a step; step 0 begins a pass.
    pub(super) fn push(&mut self, step: usize, dims: &Dims, footprint_bytes: Option<u64>) -> io::Result<()> {
        let sizes = [step, dims.rows, dims.logit_rows, dims.kv_len].map(|size| size as u64);
        let numbers = sizes.into_iter().chain([footprint_bytes.unwrap_or(UNKNOWN)]);
        numbers.map(u64::to_le_bytes).try_for_each(|bytes| self.0.write_all(&bytes))
    }

    /// Visits all passes in order, one of them in memory at a time.
    pub(super) fn each_pass(&mut self, mut visit: impl FnMut(&Pass) -> io::Result<()>) -> io::Result<()> {
        self.0.flush()?;
        let file = self.0.get_mut().as_file_mut();
        file.rewind()?;
        let mut records = BufReader::new(&*file);
        let mut pass: Option<Pass> = None;
        while let Some([step, rows, logit_rows, kv_len, footprint]) = record(&mut records)? {
            if step == 0 {
                let number = pass.as_ref().map_or(0, |pass| pass.number + 1);
                if let Some(done) = &pass {
                    visit(done)?;
                }
                let size = |number: u64| usize::try_from(number).map_err(io::Error::other);
                let dims = Dims { rows: size(rows)?, logit_rows: size(logit_rows)?, kv_len: size(kv_len)? };
                let mut footprints = pass.map_or_else(Vec::new, |pass| pass.footprints);
                footprints.clear();
                pass = Some(Pass { number, dims, footprints });
            }
            if let Some(pass) = &mut pass {
                pass.footprints.push(Some(footprint).filter(|&bytes| bytes != UNKNOWN));
            }
        }
        pass.iter().try_for_each(visit)
    }
}

fn record(from: &mut impl Read) -> io::Result<Option<[u64; 5]>> {
    let mut numbers = [[0; 8]; 5];
    match from.read_exact(numbers.as_flattened_mut()) {
        Ok(()) => Ok(Some(numbers.map(u64::from_le_bytes))),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_come_back_as_they_were_written_and_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut samples = Samples::beside(&folder.path().join("trace.csv")).unwrap();
        let passes = [(64, vec![Some(10), None, Some(30)]), (64, vec![Some(0)]), (7, vec![Some(1), Some(2)])];
        let mut kv_len = 0;
        let passes: Vec<Pass> = passes
            .into_iter()
            .enumerate()
            .map(|(number, (rows, footprints))| {
                kv_len += rows;
                Pass { number, dims: Dims { rows, logit_rows: number % 2, kv_len }, footprints }
            })
            .collect();
        for pass in &passes {
            for (step, &bytes) in pass.footprints.iter().enumerate() {
                samples.push(step, &pass.dims, bytes).unwrap();
            }
        }
        for _ in 0..2 {
            let mut seen = 0;
            samples
                .each_pass(|pass| {
                    assert_eq!(*pass, passes[seen]);
                    seen += 1;
                    Ok(())
                })
                .unwrap();
            assert_eq!(seen, passes.len());
        }
        drop(samples);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file goes with it");
    }
}
