//! An opened model source: a GGUF file, or a folder as Hugging Face lays it out, behind one face.
//!
//! What differs between the two stops here. Architectures declare their constants by the names that GGUF has for them
//! (`blk.3.attn_q.weight`) through [`Weights`](weights::Weights), which knows where each is in the source at hand and records it as a
//! [`Source`](source::Source): which tensors, which of their rows, which change to their values. The loader follows the record.

mod error;
mod fields;
mod folder;
mod generation;
mod keys;
mod names;
mod shards;
pub(crate) mod source;
pub(crate) mod weights;

pub use error::FolderError;
pub(crate) use fields::Fields;
pub use folder::Folder;
pub(crate) use folder::{ReadFault, read_bounded, without_mark};
pub use generation::GenerationConfig;
pub(crate) use keys::Keys;
pub use safetensors::Dtype as SafetensorsType;

use crate::{
    error::ModelError,
    gguf::{GgmlType, Gguf, edit_distance},
};
use plimsoll_linear::WeightType;
use smallvec::SmallVec;
use std::{fmt, ops::Range, path::Path};

/// An open model source. Its files must not be changed, cut or overwritten while it is open.
#[derive(Debug)]
pub enum Checkpoint {
    /// One GGUF file, or the parts of one.
    Gguf(Gguf),
    /// `config.json` with safetensors beside it.
    Folder(Folder),
}

impl Checkpoint {
    /// Opens a folder with `config.json`, or else a GGUF file. Headers are checked, weights are not read.
    ///
    /// # Errors
    /// [`ModelError::Folder`] or [`ModelError::Gguf`], for each way in which a source can be faulty.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let path = path.as_ref();
        if path.is_dir() {
            return Ok(Self::Folder(Folder::open(path)?));
        }
        Ok(Self::Gguf(Gguf::open(path)?))
    }

    /// The token ids that end an answer, as the source names them: `generation_config.json`, else `config.json`, or the GGUF file's
    /// `eos`, `eot` and `eom` tokens. Ascending, none twice; empty where the source names none.
    ///
    /// # Errors
    /// [`ModelError::Gguf`] if a GGUF key is of the wrong type.
    pub fn eos_token_ids(&self) -> Result<Vec<u32>, ModelError> {
        let mut ids = match self {
            Self::Folder(folder) => folder.generation().eos_token_ids.clone(),
            Self::Gguf(gguf) => ["eos", "eot", "eom"]
                .into_iter()
                .filter_map(|name| gguf.find_u32(&format!("tokenizer.ggml.{name}_token_id")).transpose())
                .collect::<Result<_, _>>()?,
        };
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }
}

/// A borrowed [`Checkpoint`]; made from `&Checkpoint`, `&Gguf` or `&Folder`.
#[derive(Debug, Clone, Copy)]
pub enum CheckpointRef<'a> {
    /// A GGUF file.
    Gguf(&'a Gguf),
    /// A folder.
    Folder(&'a Folder),
}

impl<'a> From<&'a Checkpoint> for CheckpointRef<'a> {
    fn from(checkpoint: &'a Checkpoint) -> Self {
        match checkpoint {
            Checkpoint::Gguf(gguf) => Self::Gguf(gguf),
            Checkpoint::Folder(folder) => Self::Folder(folder),
        }
    }
}

impl<'a> From<&'a Gguf> for CheckpointRef<'a> {
    fn from(gguf: &'a Gguf) -> Self {
        Self::Gguf(gguf)
    }
}

impl<'a> From<&'a Folder> for CheckpointRef<'a> {
    fn from(folder: &'a Folder) -> Self {
        Self::Folder(folder)
    }
}

impl<'a> CheckpointRef<'a> {
    /// Whether the source is settings alone, and has no tensors to look at.
    pub(crate) fn is_outline(self) -> bool {
        matches!(self, Self::Folder(folder) if folder.shards().is_outline())
    }

    /// The tensor of this name in the source's own naming; `None` if there is none.
    pub(crate) fn find_tensor(self, name: &str) -> Option<StoredTensor<'a>> {
        match self {
            Self::Gguf(gguf) => {
                let view = gguf.find_tensor(name)?;
                Some(StoredTensor {
                    name: view.name(),
                    shape: SmallVec::from_slice(view.shape()),
                    stored_type: StoredType::Ggml(view.ggml_type()),
                    data: view.data(),
                })
            }
            Self::Folder(folder) => folder.shards().find(name),
        }
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`] with the nearest names that the source does have.
    pub(crate) fn tensor(self, name: &str) -> Result<StoredTensor<'a>, ModelError> {
        self.find_tensor(name).ok_or_else(|| ModelError::MissingTensor {
            tensor: one_line(name),
            similar: similar_names(name, self.tensor_names()),
        })
    }

    /// Names of all tensors.
    pub(crate) fn tensor_names(self) -> Box<dyn Iterator<Item = &'a str> + 'a> {
        match self {
            Self::Gguf(gguf) => Box::new(gguf.tensors().map(|tensor| tensor.name())),
            Self::Folder(folder) => Box::new(folder.shards().names()),
        }
    }

    /// Gives the pages of a tensor back, once its data was read. What the system refuses is only logged: pages are merely resident longer.
    pub(crate) fn advise_done(self, tensor: &StoredTensor<'_>) {
        self.advise_part_done(tensor, 0..tensor.data.len());
    }

    /// [`CheckpointRef::advise_done`] for the bytes `part` of a tensor's data: a large one is never resident as a whole beside its packed form.
    pub(crate) fn advise_part_done(self, tensor: &StoredTensor<'_>, part: Range<usize>) {
        let refused = match self {
            Self::Gguf(gguf) => match gguf.find_tensor(tensor.name) {
                Some(view) => gguf.advise_part_done(&view, part).err().map(|error| error.to_string()),
                None => None,
            },
            Self::Folder(folder) => folder.shards().advise_done(tensor.name, part).err().map(|error| error.to_string()),
        };
        if let Some(error) = refused {
            tracing::debug!(tensor = tensor.name, error, "file pages were not given back");
        }
    }
}

/// One tensor of a source, as stored.
#[derive(Clone)]
pub(crate) struct StoredTensor<'a> {
    pub(crate) name: &'a str,
    /// Outermost axis first.
    pub(crate) shape: SmallVec<[usize; 4]>,
    pub(crate) stored_type: StoredType,
    /// Row-major and little-endian, exactly as long as shape and type say.
    pub(crate) data: &'a [u8],
}

impl fmt::Debug for StoredTensor<'_> {
    /// Without the data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredTensor")
            .field("name", &self.name)
            .field("shape", &self.shape)
            .field("stored_type", &self.stored_type)
            .finish_non_exhaustive()
    }
}

impl StoredTensor<'_> {
    /// The tensor itself if its shape is `expected`.
    ///
    /// # Errors
    /// [`ModelError::WrongShape`].
    pub(crate) fn expect_shape(self, expected: &[usize]) -> Result<Self, ModelError> {
        if self.shape[..] == *expected {
            return Ok(self);
        }
        Err(ModelError::WrongShape {
            tensor: one_line(self.name),
            expected: expected.to_vec(),
            found: self.shape.to_vec(),
        })
    }

    /// The type as the kernels know it.
    ///
    /// # Errors
    /// [`ModelError::TensorType`] if no kernel runs it.
    pub(crate) fn weight_type(&self) -> Result<WeightType, ModelError> {
        let known = match self.stored_type {
            StoredType::Ggml(kind) => WeightType::from_ggml(kind.id()).ok(),
            StoredType::Safetensors(SafetensorsType::F32) => Some(WeightType::F32),
            StoredType::Safetensors(SafetensorsType::F16) => Some(WeightType::F16),
            StoredType::Safetensors(SafetensorsType::BF16) => Some(WeightType::Bf16),
            StoredType::Safetensors(_) => None,
        };
        known.ok_or_else(|| {
            let supported: Vec<&str> = match self.stored_type {
                StoredType::Ggml(_) => WeightType::ALL.iter().map(|kind| kind.name()).collect(),
                StoredType::Safetensors(_) => PLAIN_TYPES.iter().map(|kind| kind.name()).collect(),
            };
            self.unsupported_type(&supported.join(", "))
        })
    }

    /// The type, which must be one of single numbers.
    ///
    /// # Errors
    /// [`ModelError::TensorType`] for block formats and everything that is no float.
    pub(crate) fn plain_type(&self) -> Result<WeightType, ModelError> {
        match self.weight_type() {
            Ok(kind) if PLAIN_TYPES.contains(&kind) => Ok(kind),
            _ => Err(self.unsupported_type("F32, F16, BF16")),
        }
    }

    fn unsupported_type(&self, supported: &str) -> ModelError {
        ModelError::TensorType { tensor: one_line(self.name), found: self.stored_type, supported: supported.to_owned() }
    }
}

/// Types of single numbers: what norm weights and biases can be stored in, and what can be quantized at load.
pub(crate) const PLAIN_TYPES: &[WeightType] = &[WeightType::F32, WeightType::F16, WeightType::Bf16];

/// How a source says that a tensor is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoredType {
    /// In a GGUF file.
    Ggml(GgmlType),
    /// In a safetensors file.
    Safetensors(SafetensorsType),
}

impl fmt::Display for StoredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ggml(kind) => kind.fmt(f),
            Self::Safetensors(kind) => write!(f, "{kind:?}"),
        }
    }
}

/// Text of a file as it may stand in a message: one line, at most 200 characters.
pub(crate) fn one_line(text: &str) -> String {
    const MAX_CHARS: usize = 200;
    // Quotes end no line: their backslash is left out.
    let mut shown = text.chars().flat_map(|c| c.escape_debug().skip(usize::from(matches!(c, '"' | '\''))));
    let mut line: String = shown.by_ref().take(MAX_CHARS).collect();
    if shown.next().is_some() {
        line.push('…');
    }
    line
}

/// At most three of `names` that are within four changes of `wanted`, nearest first.
fn similar_names<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    const MAX_SIMILAR: usize = 3;
    const MAX_DISTANCE: usize = 4;
    // Bounds the work for files with odd names; model files stay far below both.
    const MAX_TENSORS: usize = 20_000;
    const MAX_BYTES: usize = 128;
    if wanted.len() > MAX_BYTES {
        return Vec::new();
    }
    let mut near: Vec<(usize, &str)> = names
        .take(MAX_TENSORS)
        .filter(|name| name.len().abs_diff(wanted.len()) <= MAX_DISTANCE && name.len() <= MAX_BYTES)
        .map(|name| (edit_distance(wanted.as_bytes(), name.as_bytes()), name))
        .filter(|&(distance, _)| distance <= MAX_DISTANCE)
        .collect();
    near.sort_unstable();
    near.into_iter().take(MAX_SIMILAR).map(|(_, name)| one_line(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_a_file_is_at_most_200_characters_as_it_is_shown() {
        assert_eq!(one_line("it's \"so\"\n"), "it's \"so\"\\n");
        for text in ["a".repeat(201), "\n".repeat(101), "\u{7f}".repeat(100_000)] {
            let line = one_line(&text);
            assert!(line.chars().count() == 201 && line.ends_with('…'), "{line}");
        }
        assert_eq!(one_line(&"'".repeat(200)), "'".repeat(200));
    }
}
