//! One file: a header (magic, version, root and key of the chain, parts), the parts, and the SHA-256 of all before it.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::super::Parts;
use super::super::key::{FORMAT_VERSION, Key};

const MAGIC: [u8; 8] = *b"PLIMKVBL";
const HEADER_BYTES: usize = 8 + 4 + 4 + 32 + 32 + 8;
const CHECKSUM_BYTES: usize = 32;
/// What is read of a file at once.
const STRIDE_BYTES: usize = 1 << 16;

/// Why a file is not believed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("it cannot be read: {0}")]
    Io(io::Error),
    #[error("{0}")]
    Content(&'static str),
}

impl Fault {
    /// Whether there is no file at all.
    pub(super) fn is_absence(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Content("it is too short"),
            _ => Self::Io(error),
        }
    }
}

/// Bytes of a file with parts of these sizes.
pub(in super::super) fn file_bytes<'a>(parts: impl IntoIterator<Item = &'a usize>) -> u64 {
    (HEADER_BYTES + parts.into_iter().sum::<usize>() + CHECKSUM_BYTES) as u64
}

/// What the files of one model look like.
#[derive(Debug)]
pub(super) struct Format {
    pub(super) root: Key,
    pub(super) part_bytes: Vec<usize>,
}

impl Format {
    pub(super) fn file_bytes(&self, parts: Parts) -> u64 {
        file_bytes(self.numbers(parts).map(|part| &self.part_bytes[part]))
    }

    fn numbers(&self, parts: Parts) -> impl Iterator<Item = usize> {
        (0..self.part_bytes.len()).filter(move |&part| parts.has(part))
    }

    /// What a file holds by its header and length. The content is checked when it is read.
    pub(super) fn parts(&self, key: &Key, file: &mut File) -> Result<Parts, Fault> {
        let (parts, _) = self.header(key, file)?;
        if file.metadata()?.len() == self.file_bytes(parts) {
            Ok(parts)
        } else {
            Err(Fault::Content("its length is wrong"))
        }
    }

    fn header(&self, key: &Key, file: &mut impl Read) -> Result<(Parts, [u8; HEADER_BYTES]), Fault> {
        let mut header = [0; HEADER_BYTES];
        file.read_exact(&mut header)?;
        let mut rest = &header[..];
        let mut take = |count: usize| rest.split_off(..count).expect("the header is that long");
        if take(8) != MAGIC {
            return Err(Fault::Content("it is no file of a prefix cache"));
        }
        if take(4) != FORMAT_VERSION.to_le_bytes() || take(4) != [0; 4] {
            return Err(Fault::Content("it is of another version"));
        }
        if take(32) != self.root.0 {
            return Err(Fault::Content("it is of another model"));
        }
        if take(32) != key.0 {
            return Err(Fault::Content("it holds another block than its name says"));
        }
        let parts = Parts(take(8).iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte)));
        let all = (0..self.part_bytes.len()).fold(Parts::NONE, Parts::with);
        if parts == Parts::NONE || !all.has_all(parts) {
            return Err(Fault::Content("it holds parts that the model does not have"));
        }
        Ok((parts, header))
    }

    /// Reads the wanted parts of a block. What was read of a file with a fault means nothing.
    pub(super) fn read(&self, key: &Key, file: File, wanted: &mut [(usize, &mut [u8])]) -> Result<(), Fault> {
        let mut file = Checked::open(self, key, file)?;
        let mut missing = wanted.len();
        for part in self.numbers(file.parts) {
            match wanted.iter_mut().find(|(number, _)| *number == part) {
                Some((_, to)) => {
                    file.read(to)?;
                    missing -= 1;
                }
                None => file.each_stride(self.part_bytes[part], |_| Ok(()))?,
            }
        }
        file.end()?;
        if missing > 0 {
            return Err(Fault::Content("a part that it had is gone"));
        }
        Ok(())
    }

    /// Writes a block of these parts, and of those that only `old` has, which is the file of the same block.
    pub(super) fn write(
        &self,
        key: &Key,
        parts: &[(usize, &[u8])],
        old: Option<File>,
        mut out: &File,
    ) -> Result<Parts, Fault> {
        let mut old = old.map(|file| Checked::open(self, key, file)).transpose()?;
        let of_old = old.as_ref().map_or(Parts::NONE, |old| old.parts);
        let held = parts.iter().fold(of_old, |all, (part, _)| all.with(*part));
        let mut hash = Sha256::new();
        let mut put = |bytes: &[u8]| {
            hash.update(bytes);
            out.write_all(bytes)
        };
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend(MAGIC);
        header.extend(FORMAT_VERSION.to_le_bytes());
        header.extend([0; 4]);
        header.extend(self.root.0);
        header.extend(key.0);
        header.extend(held.0.to_le_bytes());
        put(&header)?;
        for part in self.numbers(held) {
            let new = parts.iter().find(|(number, _)| *number == part);
            if let Some((_, bytes)) = new {
                put(bytes)?;
            }
            if let Some(old) = old.as_mut().filter(|old| old.parts.has(part)) {
                old.each_stride(self.part_bytes[part], |bytes| if new.is_some() { Ok(()) } else { put(bytes) })?;
            }
        }
        if let Some(old) = old {
            old.end()?;
        }
        out.write_all(&hash.finalize())?;
        Ok(held)
    }
}

/// A file that is read from its start to its end, so that its checksum can be compared.
struct Checked {
    file: BufReader<File>,
    hash: Sha256,
    parts: Parts,
    stride: Vec<u8>,
}

impl Checked {
    fn open(format: &Format, key: &Key, file: File) -> Result<Self, Fault> {
        let mut file = BufReader::with_capacity(STRIDE_BYTES, file);
        let (parts, header) = format.header(key, &mut file)?;
        Ok(Self { file, hash: Sha256::new_with_prefix(header), parts, stride: Vec::new() })
    }

    fn read(&mut self, to: &mut [u8]) -> Result<(), Fault> {
        self.file.read_exact(to)?;
        self.hash.update(&*to);
        Ok(())
    }

    /// Reads `bytes`, stride by stride.
    fn each_stride(&mut self, bytes: usize, mut f: impl FnMut(&[u8]) -> io::Result<()>) -> Result<(), Fault> {
        let mut stride = std::mem::take(&mut self.stride);
        stride.resize(STRIDE_BYTES, 0);
        let mut left = bytes;
        while left > 0 {
            let count = left.min(STRIDE_BYTES);
            self.read(&mut stride[..count])?;
            f(&stride[..count])?;
            left -= count;
        }
        self.stride = stride;
        Ok(())
    }

    fn end(mut self) -> Result<(), Fault> {
        let mut checksum = [0; CHECKSUM_BYTES];
        self.file.read_exact(&mut checksum)?;
        if checksum[..] != self.hash.finalize()[..] || self.file.read(&mut [0])? != 0 {
            return Err(Fault::Content("its checksum is wrong"));
        }
        Ok(())
    }
}

/// Opens what is a file: opening a pipe would wait for its other end.
pub(super) fn open_file(path: &Path) -> io::Result<File> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    File::open(path)
}
