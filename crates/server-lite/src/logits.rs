//! `--logits-out`: prompt ids and logits as safetensors, written row by row, so that no run holds all logits at once.

use crate::{
    error::AppError,
    files::{Output, write_fault},
};
use std::{io::Write, path::Path};

/// A safetensors file under way: `ids` (i64 `[prompt_tokens]`) and `logits` (f32 `[rows, vocab_size]`). It appears under its name when it is whole.
#[derive(Debug)]
pub(crate) struct LogitsFile(Output);

impl LogitsFile {
    /// Starts a file for the logits of all prompt rows, or of the last.
    pub(crate) fn create(path: &Path, prompt: &[u32], all_rows: bool, vocab_size: usize) -> Result<Self, AppError> {
        let mut this = Self(Output::create(path)?);
        this.write_header(prompt, if all_rows { prompt.len() } else { 1 }, vocab_size)?;
        Ok(this)
    }

    /// The header names lengths, so it can stand before data that are not computed yet.
    fn write_header(&mut self, prompt: &[u32], rows: usize, vocab_size: usize) -> Result<(), AppError> {
        let ids_end = 8 * prompt.len();
        let header = serde_json::json!({
            "ids": { "dtype": "I64", "shape": [prompt.len()], "data_offsets": [0, ids_end] },
            "logits": { "dtype": "F32", "shape": [rows, vocab_size], "data_offsets": [ids_end, ids_end + 4 * rows * vocab_size] },
        });
        let mut header = header.to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        self.write(&(header.len() as u64).to_le_bytes())?;
        self.write(&header)?;
        for &id in prompt {
            self.write(&i64::from(id).to_le_bytes())?;
        }
        Ok(())
    }

    /// Adds the next rows, `[rows, vocab_size]`.
    pub(crate) fn append(&mut self, logits: &[f32]) -> Result<(), AppError> {
        for value in logits {
            self.write(&value.to_le_bytes())?;
        }
        Ok(())
    }

    /// Puts the file in place.
    pub(crate) fn finish(self) -> Result<(), AppError> {
        self.0.finish(Ok(()))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), AppError> {
        self.0.out().write_all(bytes).map_err(write_fault(self.0.path()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::SafeTensors;

    #[test]
    fn the_file_reads_back_as_safetensors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logits.safetensors");
        let mut file = LogitsFile::create(&path, &[3, 70_000], true, 3).unwrap();
        file.append(&[1.0, 2.0, 3.0]).unwrap();
        file.append(&[4.0, 5.0, f32::NAN]).unwrap();
        assert!(!path.exists(), "not whole yet");
        file.finish().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let ids = tensors.tensor("ids").unwrap();
        assert_eq!((ids.shape(), ids.data()[8..11].to_vec()), (&[2usize][..], vec![0x70, 0x11, 0x01]));
        let logits = tensors.tensor("logits").unwrap();
        assert_eq!((logits.shape(), &logits.data()[..4]), (&[2usize, 3][..], &1.0f32.to_le_bytes()[..]));
    }
}
