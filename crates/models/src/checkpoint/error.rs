//! What can be wrong with the files of a model folder.

use std::path::PathBuf;

/// Why a model folder was refused. Each message is one line that names the file; names from files are escaped and cut.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "field names say what they hold and in which unit")]
#[non_exhaustive]
pub enum FolderError {
    /// A file could not be opened or read.
    #[error("cannot read {path:?}: {source}")]
    Open { path: PathBuf, source: std::io::Error },
    /// A file could not be mapped into memory.
    #[error("cannot map {path:?} into memory: {source}")]
    Map { path: PathBuf, source: std::io::Error },
    /// Where a file is expected there is a folder, a pipe or a device.
    #[error("{path:?} is not a regular file")]
    NotAFile { path: PathBuf },
    /// The folder has no `config.json`.
    #[error("{path:?} has no config.json; give a folder with config.json and safetensors, or the path of a .gguf file")]
    NoConfig { path: PathBuf },
    /// A settings file of absurd size.
    #[error("{path:?} has {bytes} bytes, expected at most {max_bytes}; it is no settings file of a model")]
    TooLarge { path: PathBuf, bytes: u64, max_bytes: u64 },
    /// A settings file that is not JSON.
    #[error("{path:?} is not valid JSON: {fault}; fetch it again")]
    Json { path: PathBuf, fault: String },
    /// A settings file that holds something else than expected.
    #[error("{path:?}: {what} is {found}, expected {expected}")]
    Shape { path: PathBuf, what: String, found: String, expected: &'static str },
    /// The folder has settings and no weights.
    #[error("{path:?} has neither model.safetensors nor model.safetensors.index.json{}", if *.pickled { "; its weights are pickled (.bin): convert them to safetensors" } else { "; fetch the weights too" })]
    NoWeights { path: PathBuf, pickled: bool },
    /// A safetensors file with a faulty header, or that ends early.
    #[error("{path:?} is not a valid safetensors file: {fault}; fetch it again")]
    Safetensors { path: PathBuf, fault: String },
    /// An index that points somewhere else than to a file beside it.
    #[error("{path:?} names the weight file \"{name}\", expected the name of a .safetensors file in the same folder")]
    ShardName { path: PathBuf, name: String },
    /// An index that names a file that is not there.
    #[error("{path:?} names {name}, which is not in the folder; fetch it too")]
    MissingShard { path: PathBuf, name: String },
    /// An index and a weight file that contradict each other.
    #[error(
        "tensor \"{tensor}\" is in {file:?}, which its index does not say; the files are of different models or uploads: fetch them again"
    )]
    Unindexed { file: PathBuf, tensor: String },
    /// An index that names a tensor that its file does not have.
    #[error(
        "tensor \"{tensor}\" is not in {file:?}, where the index says it is; the files are of different models or uploads: fetch them again"
    )]
    NotInShard { file: PathBuf, tensor: String },
    /// A tensor without elements.
    #[error("tensor \"{tensor}\" of {file:?} has an empty dimension: {shape:?}")]
    EmptyDimension { file: PathBuf, tensor: String, shape: Vec<usize> },
    /// The operating system refused advice on mapped pages.
    #[error("cannot give memory advice on {path:?}: {source}")]
    Advise { path: PathBuf, source: std::io::Error },
}
