//! An open GGUF file, or a set of them, and its tensors.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use super::error::shown;
use super::map::Source;
use super::parse::{Entry, Index, Tensor};
use super::{GgufError, TensorView, Value, split};

/// Most hints after a missing tensor.
const MAX_SIMILAR: usize = 3;

/// An open GGUF file, or all files of a split model. Everything it gives out is checked already and borrows from it.
pub struct Gguf {
    /// In order of the parts; one, unless the model is split.
    sources: Vec<Source>,
    /// Metadata of the first file, tensors of all.
    index: Index,
}

impl Gguf {
    /// Maps the file at `path` and checks its header. Tensor data is not read.
    ///
    /// Any part of a split model (`name-00002-of-00003.gguf`) opens all of its parts, which lie in the same folder. Metadata
    /// is that of the first part.
    ///
    /// The files must not be changed, cut or overwritten while they are open: their pages are read when they are used. To
    /// replace a model, write a new file and rename it.
    ///
    /// # Errors
    /// [`GgufError::Open`], [`GgufError::NotAFile`] and [`GgufError::Map`] from the system, and all errors of
    /// [`Gguf::from_bytes`]. For a split model also [`GgufError::SplitName`], [`GgufError::MissingPart`],
    /// [`GgufError::WrongPart`], [`GgufError::ForeignPart`], [`GgufError::TensorInTwoParts`] and
    /// [`GgufError::SplitTensorCount`], and [`GgufError::InPart`] around the error of a part that `path` does not name.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let path = path.as_ref();
        let source = Source::open(path)?;
        let index = Index::parse(source.bytes())?;
        let parts = split::part_count(source.bytes(), &index)?;
        if parts == 1 {
            return Ok(Self { sources: vec![source], index });
        }
        let (sources, index) = split::open_parts(path, source, index, parts)?;
        Ok(Self { sources, index })
    }

    /// Reads a file that is in memory already.
    ///
    /// # Errors
    /// The variants of [`GgufError`] from `Truncated` to `DuplicateTensor`, for each way a file can be damaged, and
    /// [`GgufError::SplitFile`] for a part of a split model, whose other parts cannot be found from here.
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Result<Self, GgufError> {
        let source = Source::Owned(bytes.into());
        let index = Index::parse(source.bytes())?;
        match split::part_count(source.bytes(), &index)? {
            1 => Ok(Self { sources: vec![source], index }),
            parts => Err(GgufError::SplitFile { parts }),
        }
    }

    /// Number of files that the model is split over; 1 for one that is not.
    pub fn parts(&self) -> usize {
        self.sources.len()
    }

    /// Version of the format: 2 or 3; of the first part of a split model.
    pub fn version(&self) -> u32 {
        self.index.version
    }

    /// Alignment of tensor data within the (first) file, in bytes; a power of two.
    pub fn alignment(&self) -> u64 {
        self.index.alignment
    }

    /// Size of the file, or of all parts of a split model.
    pub fn file_bytes(&self) -> u64 {
        self.sources.iter().map(|source| source.bytes().len() as u64).sum()
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
        let file = self.sources[0].bytes();
        self.index.entries.iter().map(move |entry| (entry.key(file), entry.value(file)))
    }

    /// The value of a key, of whichever type; `None` if there is none.
    pub fn value(&self, key: &str) -> Option<Value<'_>> {
        self.index.value(self.sources[0].bytes(), key)
    }

    /// All tensors, in file order, part by part.
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
        self.advise_part_done(tensor, 0..tensor.data().len())
    }

    /// [`Gguf::advise_done`] for the bytes `part` of a tensor's data.
    ///
    /// # Errors
    /// As [`Gguf::advise_done`].
    ///
    /// # Panics
    /// If `part` is not inside of the tensor.
    pub(crate) fn advise_part_done(&self, tensor: &TensorView<'_>, part: Range<usize>) -> Result<(), GgufError> {
        let name = tensor.name();
        // Looked up again rather than trusted: a view of another file must not choose pages of this one.
        let record =
            self.record(name).ok_or_else(|| GgufError::MissingTensor { name: shown(name), similar: Vec::new() })?;
        assert!(part.end <= record.data.len(), "{part:?} is not inside the tensor");
        self.source_of(record)
            .advise_done(record.data.start + part.start..record.data.start + part.end)
            .map_err(|source| GgufError::Advise { what: format!("tensor '{}'", shown(name)), source })
    }

    /// Tells the system that the tensors will be read once, in file order, so that it reads ahead.
    ///
    /// # Errors
    /// [`GgufError::Advise`] if the system refuses.
    pub fn advise_sequential(&self) -> Result<(), GgufError> {
        self.sources
            .iter()
            .try_for_each(Source::advise_sequential)
            .map_err(|source| GgufError::Advise { what: "the file".to_owned(), source })
    }

    fn source_of(&self, tensor: &Tensor) -> &Source {
        &self.sources[usize::from(tensor.part)]
    }

    fn record(&self, name: &str) -> Option<&Tensor> {
        let index = &self.index;
        let name_at = |at: usize| index.tensors[at].name(self.source_of(&index.tensors[at]).bytes());
        let place = index.tensors_by_name.binary_search_by(|&at| name_at(at).cmp(name)).ok()?;
        Some(&index.tensors[index.tensors_by_name[place]])
    }

    fn view(&self, tensor: &Tensor) -> TensorView<'_> {
        let file = self.source_of(tensor).bytes();
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
            .field("parts", &self.parts())
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
