//! An open GGUF file and its tensors.

use std::fmt;
use std::path::Path;

use super::error::shown;
use super::map::Source;
use super::parse::{Entry, Index, Tensor};
use super::{GgufError, TensorView, Value};

/// Most hints after a missing tensor.
const MAX_SIMILAR: usize = 3;

/// An open GGUF file. Everything it gives out is checked already and borrows from it.
pub struct Gguf {
    source: Source,
    index: Index,
}

impl Gguf {
    /// Maps the file at `path` and checks its header. Tensor data is not read.
    ///
    /// The file must not be changed, cut or overwritten while it is open: its pages are read when they are used. To
    /// replace a model, write a new file and rename it.
    ///
    /// # Errors
    /// [`GgufError::Open`], [`GgufError::NotAFile`] and [`GgufError::Map`] from the system, and all errors of
    /// [`Gguf::from_bytes`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        Self::from_source(Source::open(path.as_ref())?)
    }

    /// Reads a file that is in memory already.
    ///
    /// # Errors
    /// The variants of [`GgufError`] from `Truncated` to `DuplicateTensor`, for each way a file can be damaged, and
    /// [`GgufError::SplitFile`] for a part of a split model.
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Result<Self, GgufError> {
        Self::from_source(Source::Owned(bytes.into()))
    }

    fn from_source(source: Source) -> Result<Self, GgufError> {
        let index = Index::parse(source.bytes())?;
        Ok(Self { source, index })
    }

    /// Version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.index.version
    }

    /// Alignment of tensor data within the file, in bytes; a power of two.
    pub fn alignment(&self) -> u64 {
        self.index.alignment
    }

    /// Size of the file.
    pub fn file_bytes(&self) -> u64 {
        self.source.bytes().len() as u64
    }

    /// Heap memory of the index over metadata and tensors. The file itself is not counted.
    pub fn index_bytes(&self) -> u64 {
        let index = &self.index;
        let bytes = index.entries.capacity() * size_of::<Entry>()
            + index.tensors.capacity() * size_of::<Tensor>()
            + (index.entries_by_key.capacity() + index.tensors_by_name.capacity()) * size_of::<usize>();
        bytes as u64
    }

    /// All metadata entries, in file order.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, Value<'_>)> + Clone {
        let file = self.source.bytes();
        self.index.entries.iter().map(move |entry| (entry.key(file), entry.value(file)))
    }

    /// The value of a key, of whichever type; `None` if there is none.
    pub fn value(&self, key: &str) -> Option<Value<'_>> {
        let (file, index) = (self.source.bytes(), &self.index);
        let place = index.entries_by_key.binary_search_by(|&at| index.entries[at].key(file).cmp(key)).ok()?;
        Some(index.entries[index.entries_by_key[place]].value(file))
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorView<'_>> + Clone {
        self.index.tensors.iter().map(|tensor| self.view(tensor))
    }

    /// The tensor `name`.
    ///
    /// # Errors
    /// [`GgufError::MissingTensor`] with the nearest names that the file does have.
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, GgufError> {
        self.find_tensor(name)
            .ok_or_else(|| GgufError::MissingTensor { name: shown(name), similar: self.similar_names(name) })
    }

    /// The tensor `name`; `None` if the file has none, for tensors that a model may lack.
    pub fn find_tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.record(name).map(|tensor| self.view(tensor))
    }

    /// Gives the pages of a tensor back to the system, once its data has been copied or repacked: they leave the resident
    /// set now instead of under memory pressure. The tensor stays readable; a later read brings its pages back from the
    /// file. Pages shared with a neighbouring tensor go too. Nothing happens for a file in memory, nor on systems without
    /// such advice.
    ///
    /// # Errors
    /// [`GgufError::Advise`] if the system refuses; [`GgufError::MissingTensor`] if `tensor` is from another file.
    pub fn advise_done(&self, tensor: &TensorView<'_>) -> Result<(), GgufError> {
        let name = tensor.name();
        // Looked up again rather than trusted: a view of another file must not choose pages of this one.
        let record =
            self.record(name).ok_or_else(|| GgufError::MissingTensor { name: shown(name), similar: Vec::new() })?;
        self.source
            .advise_done(record.data.clone())
            .map_err(|source| GgufError::Advise { what: format!("tensor '{}'", shown(name)), source })
    }

    /// Tells the system that the tensors will be read once, in file order, so that it reads ahead.
    ///
    /// # Errors
    /// [`GgufError::Advise`] if the system refuses.
    pub fn advise_sequential(&self) -> Result<(), GgufError> {
        self.source.advise_sequential().map_err(|source| GgufError::Advise { what: "the file".to_owned(), source })
    }

    fn record(&self, name: &str) -> Option<&Tensor> {
        let (file, index) = (self.source.bytes(), &self.index);
        let place = index.tensors_by_name.binary_search_by(|&at| index.tensors[at].name(file).cmp(name)).ok()?;
        Some(&index.tensors[index.tensors_by_name[place]])
    }

    fn view(&self, tensor: &Tensor) -> TensorView<'_> {
        let file = self.source.bytes();
        TensorView {
            name: tensor.name(file),
            shape: tensor.shape,
            ggml_type: tensor.ggml_type,
            data: &file[tensor.data.clone()],
        }
    }

    fn similar_names(&self, wanted: &str) -> Vec<String> {
        const MAX_DISTANCE: usize = 4;
        // Bounds the work for files with odd names; model files stay far below both.
        const MAX_TENSORS: usize = 10_000;
        const MAX_BYTES: usize = 128;
        if wanted.len() > MAX_BYTES {
            return Vec::new();
        }
        let mut near: Vec<(usize, &str)> = self
            .tensors()
            .take(MAX_TENSORS)
            .map(|tensor| tensor.name())
            .filter(|name| name.len().abs_diff(wanted.len()) <= MAX_DISTANCE && name.len() <= MAX_BYTES)
            .map(|name| (edit_distance(wanted.as_bytes(), name.as_bytes()), name))
            .filter(|&(distance, _)| distance <= MAX_DISTANCE)
            .collect();
        near.sort_unstable();
        near.into_iter().take(MAX_SIMILAR).map(|(_, name)| shown(name)).collect()
    }
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gguf")
            .field("version", &self.version())
            .field("file_bytes", &self.file_bytes())
            .field("metadata", &self.index.entries.len())
            .field("tensors", &self.index.tensors.len())
            .finish()
    }
}

/// Fewest insertions, deletions and replacements of bytes from `a` to `b` (Wagner and Fischer 1974), one row at a time.
pub(crate) fn edit_distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, &from) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::edit_distance;

    #[test]
    fn edit_distance_counts_the_fewest_changes() {
        for (a, b, want) in
            [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("blk.0.x", "blk.1.x", 1), ("ab", "ba", 2)]
        {
            assert_eq!(edit_distance(a.as_bytes(), b.as_bytes()), want, "{a} to {b}");
        }
    }
}
