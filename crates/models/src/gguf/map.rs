//! The bytes of a GGUF file: a read-only memory map, or a buffer in memory.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;

use super::GgufError;

/// Where the bytes of a file are.
#[derive(Debug)]
pub(crate) enum Source {
    Map(Mmap),
    Owned(Vec<u8>),
}

impl Source {
    /// Maps a regular file read-only. An empty file gives an empty buffer, since it cannot be mapped.
    pub(crate) fn open(path: &Path) -> Result<Self, GgufError> {
        let open_error = |source| GgufError::Open { path: path.to_owned(), source };
        // Asked before opening: to open a pipe would wait for its other end.
        let metadata = std::fs::metadata(path).map_err(open_error)?;
        if !metadata.is_file() {
            return Err(GgufError::NotAFile { path: path.to_owned() });
        }
        let file = File::open(path).map_err(open_error)?;
        if file.metadata().map_err(open_error)?.len() == 0 {
            return Ok(Self::Owned(Vec::new()));
        }
        let map = map_read_only(&file).map_err(|source| GgufError::Map { path: path.to_owned(), source })?;
        Ok(Self::Map(map))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Map(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }

    /// Tells the system that the file will be read once from start to end. Nothing happens for a buffer.
    pub(crate) fn advise_sequential(&self) -> std::io::Result<()> {
        match self {
            #[cfg(unix)]
            Self::Map(map) => map.advise(memmap2::Advice::Sequential),
            _ => Ok(()),
        }
    }

    /// Takes the pages of `range` out of the resident set; a later read brings them back from the file.
    ///
    /// The range is widened to page bounds: both ends may share a page with a neighbour, which is then read again
    /// from the page cache. Nothing happens for a buffer.
    ///
    /// # Panics
    /// If `range` is not inside the file.
    pub(crate) fn advise_done(&self, range: Range<usize>) -> std::io::Result<()> {
        assert!(range.start <= range.end && range.end <= self.bytes().len(), "{range:?} is not inside the file");
        match self {
            #[cfg(unix)]
            Self::Map(map) if !range.is_empty() => drop_pages(map, range),
            _ => Ok(()),
        }
    }
}

#[expect(unsafe_code, reason = "a file can only be mapped by an unsafe call")]
fn map_read_only(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the map is read-only and only ever seen as `&[u8]`. That the file is not changed or cut while it is open is
    // a condition that `Gguf::open` puts on its caller in its documentation, as every reader of mapped models does.
    unsafe { Mmap::map(file) }
}

#[cfg(unix)]
#[expect(unsafe_code, reason = "the advice that drops pages can only be given by an unsafe call")]
fn drop_pages(map: &Mmap, range: Range<usize>) -> std::io::Result<()> {
    // SAFETY: the range was checked to be inside the map. The map is file-backed and never written, so a dropped page
    // comes back from the file with the same contents on the next read; no reference into it sees another value.
    unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len()) }
}
