//! A model folder in the layout of Hugging Face.

use super::{FolderError, GenerationConfig, one_line, shards::Shards};
use serde_json::{Map, Value};
use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

/// Largest settings file: the index of the largest models takes about half of it. Parsed, JSON of many small parts takes ten times its bytes.
const MAX_SETTINGS_BYTES: u64 = 16 << 20;

/// An open model folder: its settings, and its weights mapped into memory.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    config: Map<String, Value>,
    generation: GenerationConfig,
    shards: Shards,
}

impl Folder {
    /// Reads `config.json` and `generation_config.json`, and maps `model.safetensors`, or the files that
    /// `model.safetensors.index.json` names. Headers are checked, weights are not read.
    ///
    /// The weight files must not be changed, cut or overwritten while the folder is open: their pages are read when they are used.
    ///
    /// # Errors
    /// [`FolderError`], which names the file at fault.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, FolderError> {
        let path = path.as_ref();
        let config_path = path.join("config.json");
        let config = read_object(&config_path)?.ok_or_else(|| FolderError::NoConfig { path: path.to_owned() })?;
        let generation_path = path.join("generation_config.json");
        let generation =
            GenerationConfig::read(&generation_path, read_object(&generation_path)?.as_ref(), &config_path, &config)?;
        let shards = Shards::open(path)?;
        Ok(Self { path: path.to_owned(), config, generation, shards })
    }

    /// Settings without files. Nothing can be loaded from it; programs are recorded from it as from the folder that it describes.
    pub(crate) fn outline(config: Map<String, Value>) -> Self {
        Self { path: PathBuf::new(), config, generation: GenerationConfig::default(), shards: Shards::outline() }
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `config.json`, with its numbers as they were written.
    #[must_use]
    pub fn config(&self) -> &Map<String, Value> {
        &self.config
    }

    /// What the folder says about generation.
    #[must_use]
    pub fn generation(&self) -> &GenerationConfig {
        &self.generation
    }

    /// Path of `name` (`tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json`, `chat_template.jinja`,
    /// `chat_template.json`) if the folder has such a file.
    #[must_use]
    pub fn file(&self, name: &str) -> Option<PathBuf> {
        Some(self.path.join(name)).filter(|path| path.is_file())
    }

    /// Size of the weight files.
    #[must_use]
    pub fn weight_file_bytes(&self) -> u64 {
        self.shards.file_bytes()
    }

    pub(crate) fn shards(&self) -> &Shards {
        &self.shards
    }
}

/// The JSON object in the file at `path`; `None` if there is no such file.
pub(super) fn read_object(path: &Path) -> Result<Option<Map<String, Value>>, FolderError> {
    let bytes = read_bounded(path, MAX_SETTINGS_BYTES).map_err(|fault| match fault {
        ReadFault::System(source) => FolderError::Open { path: path.to_owned(), source },
        ReadFault::NotAFile => FolderError::NotAFile { path: path.to_owned() },
        ReadFault::TooLarge { bytes } => {
            FolderError::TooLarge { path: path.to_owned(), bytes, max_bytes: MAX_SETTINGS_BYTES }
        }
    })?;
    let Some(bytes) = bytes else { return Ok(None) };
    match serde_json::from_slice(without_mark(&bytes)) {
        Ok(Value::Object(object)) => Ok(Some(object)),
        Ok(other) => Err(FolderError::Shape {
            path: path.to_owned(),
            what: "the file".to_owned(),
            found: super::fields::shown(&other),
            expected: "a JSON object",
        }),
        Err(error) => Err(FolderError::Json { path: path.to_owned(), fault: one_line(&error.to_string()) }),
    }
}

/// A file's text without the mark of UTF-8 that some editors put before it.
pub(crate) fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// Why [`read_bounded`] gave no bytes.
#[derive(Debug)]
pub(crate) enum ReadFault {
    /// The file could not be opened or read.
    System(std::io::Error),
    /// A folder, a pipe or a device.
    NotAFile,
    /// More bytes than allowed: at least so many.
    TooLarge { bytes: u64 },
}

/// The bytes of the regular file at `path`, at most `max_bytes`; `None` if there is no such file.
pub(crate) fn read_bounded(path: &Path, max_bytes: u64) -> Result<Option<Vec<u8>>, ReadFault> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(ReadFault::System(error)),
    };
    // Asked before opening: to open a pipe would wait for its other end.
    if !metadata.is_file() {
        return Err(ReadFault::NotAFile);
    }
    if metadata.len() > max_bytes {
        return Err(ReadFault::TooLarge { bytes: metadata.len() });
    }
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(ReadFault::System)?;
    // One byte more than allowed shows a file that is too large, whatever its metadata say.
    file.take(max_bytes + 1).read_to_end(&mut bytes).map_err(ReadFault::System)?;
    if bytes.len() as u64 > max_bytes {
        return Err(ReadFault::TooLarge { bytes: bytes.len() as u64 });
    }
    Ok(Some(bytes))
}
