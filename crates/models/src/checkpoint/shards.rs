//! The weight files of a folder: one safetensors file, or several with an index.
//!
//! The `safetensors` crate reads and checks the headers: offsets that are contiguous, inside the file and as long as shape and type say.
//! What it cannot know is checked here: that index and files agree, and that the index does not lead out of the folder.

use super::{FolderError, StoredTensor, StoredType, folder::read_object, one_line};
use crate::gguf::{GgufError, map::Source};
use safetensors::{Dtype, SafeTensors};
use smallvec::SmallVec;
use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry as Place},
    ops::Range,
    path::{Path, PathBuf},
};

/// Mapped weight files and where each tensor is.
#[derive(Debug)]
pub(crate) struct Shards {
    files: Vec<File>,
    tensors: BTreeMap<String, Tensor>,
    /// Whether there are no files because none were asked for.
    is_outline: bool,
}

#[derive(Debug)]
struct File {
    path: PathBuf,
    source: Source,
}

#[derive(Debug)]
struct Tensor {
    file: usize,
    shape: SmallVec<[usize; 4]>,
    dtype: Dtype,
    data: Range<usize>,
}

impl Shards {
    /// Maps the weight files of `folder`.
    pub(super) fn open(folder: &Path) -> Result<Self, FolderError> {
        let mut shards = Self { files: Vec::new(), tensors: BTreeMap::new(), is_outline: false };
        let single = folder.join("model.safetensors");
        if single.exists() {
            shards.add(single, None)?;
            return Ok(shards);
        }
        let index_path = folder.join("model.safetensors.index.json");
        let Some(index) = read_object(&index_path)? else {
            let pickled = ["pytorch_model.bin", "pytorch_model.bin.index.json"].map(|name| folder.join(name).exists());
            return Err(FolderError::NoWeights { path: folder.to_owned(), pickled: pickled.contains(&true) });
        };
        let shape = |what: &str, found, expected| FolderError::Shape {
            path: index_path.clone(),
            what: what.to_owned(),
            found,
            expected,
        };
        let map = match index.get("weight_map") {
            Some(serde_json::Value::Object(map)) if !map.is_empty() => map,
            found => {
                let found = found.map_or_else(|| "missing".to_owned(), super::fields::shown);
                return Err(shape("weight_map", found, "an object of tensor names and file names"));
            }
        };
        let mut indexed: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (tensor, file) in map {
            let Some(file) = file.as_str() else {
                return Err(shape(&one_line(tensor), super::fields::shown(file), "a file name"));
            };
            indexed.entry(file).or_default().push(tensor);
        }
        // All names before any file: an index that leads out of the folder, or to a file that is missing, is said to.
        if let Some(name) = indexed.keys().find(|name| !is_plain_file_name(name)) {
            return Err(FolderError::ShardName { path: index_path, name: one_line(name) });
        }
        if let Some(name) = indexed.keys().find(|name| !folder.join(name).exists()) {
            return Err(FolderError::MissingShard { path: index_path, name: one_line(name) });
        }
        for (name, tensors) in indexed {
            shards.add(folder.join(name), Some((name, map)))?;
            let file = shards.files.len() - 1;
            for tensor in tensors {
                if shards.tensors.get(tensor).is_none_or(|found| found.file != file) {
                    let file = shards.files[file].path.clone();
                    return Err(FolderError::NotInShard { file, tensor: one_line(tensor) });
                }
            }
        }
        Ok(shards)
    }

    /// No files: what would be in them is only described by the settings.
    pub(super) fn outline() -> Self {
        Self { files: Vec::new(), tensors: BTreeMap::new(), is_outline: true }
    }

    pub(super) fn is_outline(&self) -> bool {
        self.is_outline
    }

    /// Maps one file and adds its tensors. `index`: the file's name in the index, and the index.
    fn add(
        &mut self,
        path: PathBuf,
        index: Option<(&str, &serde_json::Map<String, serde_json::Value>)>,
    ) -> Result<(), FolderError> {
        let source = Source::open(&path).map_err(|error| match error {
            GgufError::Map { path, source } => FolderError::Map { path, source },
            GgufError::Open { path, source } => FolderError::Open { path, source },
            _ => FolderError::NotAFile { path: path.clone() },
        })?;
        let fault = |error: safetensors::SafeTensorError| FolderError::Safetensors {
            path: path.clone(),
            fault: one_line(&error.to_string()),
        };
        let (header_bytes, metadata) = SafeTensors::read_metadata(source.bytes()).map_err(fault)?;
        let data_start = size_of::<u64>() + header_bytes;
        let found: HashMap<String, _> = metadata.tensors();
        for (name, info) in found {
            if info.shape.contains(&0) {
                let (file, tensor) = (path.clone(), one_line(&name));
                return Err(FolderError::EmptyDimension { file, tensor, shape: info.shape.clone() });
            }
            if let Some((file, map)) = index
                && map.get(&name).and_then(|value| value.as_str()) != Some(file)
            {
                return Err(FolderError::Unindexed { file: path.clone(), tensor: one_line(&name) });
            }
            let (start, end) = info.data_offsets;
            let tensor = Tensor {
                file: self.files.len(),
                shape: SmallVec::from_slice(&info.shape),
                dtype: info.dtype,
                data: data_start + start..data_start + end,
            };
            match self.tensors.entry(name) {
                Place::Vacant(place) => place.insert(tensor),
                Place::Occupied(place) => {
                    return Err(FolderError::Unindexed { file: path.clone(), tensor: one_line(place.key()) });
                }
            };
        }
        self.files.push(File { path, source });
        Ok(())
    }

    pub(super) fn find(&self, name: &str) -> Option<StoredTensor<'_>> {
        let (name, tensor) = self.tensors.get_key_value(name)?;
        Some(StoredTensor {
            name,
            shape: tensor.shape.clone(),
            stored_type: StoredType::Safetensors(tensor.dtype),
            data: &self.files[tensor.file].source.bytes()[tensor.data.clone()],
        })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.source.bytes().len() as u64).sum()
    }

    /// Takes the pages of the bytes `part` of a tensor out of the resident set.
    pub(super) fn advise_done(&self, name: &str, part: Range<usize>) -> Result<(), FolderError> {
        let Some(tensor) = self.tensors.get(name) else { return Ok(()) };
        assert!(part.end <= tensor.data.len(), "{part:?} is not inside the tensor");
        let file = &self.files[tensor.file];
        file.source
            .advise_done(tensor.data.start + part.start..tensor.data.start + part.end)
            .map_err(|source| FolderError::Advise { path: file.path.clone(), source })
    }
}

/// Whether `name` can only be a file of the folder it is joined to, on any system.
fn is_plain_file_name(name: &str) -> bool {
    name.ends_with(".safetensors")
        && name.len() <= 255
        && !name.starts_with('.')
        && !name.chars().any(|c| c.is_control() || matches!(c, '/' | '\\' | ':'))
}
