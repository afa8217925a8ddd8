//! Why a GGUF file, or a question to one, was refused.

use std::path::PathBuf;

use super::GgmlType;

/// Why a GGUF file was refused, or does not hold what was asked of it.
///
/// Every message is one line: names from the file are escaped and cut at 96 characters before they get in here.
/// [`GgufError::Open`], [`GgufError::NotAFile`], [`GgufError::Map`] and the errors about parts of a split model name their
/// path; a caller that knows the path puts it in front of the others.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "field names say what they hold and in which unit")]
#[non_exhaustive]
pub enum GgufError {
    /// The file could not be opened.
    #[error("cannot open {path:?}: {source}")]
    Open { path: PathBuf, source: std::io::Error },
    /// The path is a folder, a pipe or a device.
    #[error("{path:?} is not a regular file; give the path of a .gguf file")]
    NotAFile { path: PathBuf },
    /// The file could not be mapped into memory.
    #[error("cannot map {path:?} into memory: {source}")]
    Map { path: PathBuf, source: std::io::Error },
    /// The operating system refused advice on mapped pages.
    #[error("cannot give memory advice on {what}: {source}")]
    Advise { what: String, source: std::io::Error },

    /// The file ends inside its header.
    #[error(
        "{what} needs {needed_bytes} bytes at offset {offset}, the file has {have_bytes} left; it is cut short or damaged: fetch it again"
    )]
    Truncated { what: String, offset: u64, needed_bytes: u64, have_bytes: u64 },
    /// The file does not begin with `GGUF`.
    #[error("the file begins with \"{}\", expected \"GGUF\"; it is not a GGUF model", found.escape_ascii())]
    WrongMagic { found: [u8; 4] },
    /// The file is for big-endian machines.
    #[error(
        "the file is big-endian, only little-endian GGUF is read; convert it with gguf_convert_endian.py of llama.cpp"
    )]
    BigEndian,
    /// A version that is not read here.
    #[error("GGUF version {found} is not supported, expected 2 or 3; convert the model again with a current llama.cpp")]
    UnsupportedVersion { found: u32 },
    /// A count that the rest of the file cannot hold.
    #[error(
        "{what} claims {count} elements of at least {element_bytes} bytes, the file has {have_bytes} bytes left; it is damaged: fetch it again"
    )]
    OversizedCount { what: String, count: u64, element_bytes: u64, have_bytes: u64 },
    /// A key or tensor name that is empty or too long.
    #[error("{what} is {found_bytes} bytes long, expected 1 to {max_bytes}; the file is damaged: fetch it again")]
    NameLength { what: String, found_bytes: u64, max_bytes: u64 },
    /// Text that is not UTF-8.
    #[error("{what} is not UTF-8 text at offset {offset}; the file is damaged: fetch it again")]
    NotUtf8 { what: String, offset: u64 },

    /// A metadata type id outside the format.
    #[error(
        "key '{key}' has the unknown value type {id}, expected 0 to 12; the file is damaged or newer than this reader"
    )]
    UnknownValueType { key: String, id: u32 },
    /// Arrays in arrays, too deep.
    #[error("key '{key}' nests arrays deeper than {max_depth} levels; the file is damaged")]
    NestedTooDeep { key: String, max_depth: usize },
    /// A boolean that is neither 0 nor 1.
    #[error("key '{key}' holds the boolean byte {found}, expected 0 or 1; the file is damaged: fetch it again")]
    InvalidBool { key: String, found: u8 },
    /// Two metadata entries with one key.
    #[error("key '{key}' appears twice in the metadata; convert the model again")]
    DuplicateKey { key: String },
    /// `general.alignment` is not a power of two.
    #[error("general.alignment is {found}, expected a power of two; convert the model again")]
    InvalidAlignment { found: i128 },
    /// The bytes of one part of a model that was split over several files: the others cannot be found from them.
    #[error(
        "the file is one of {parts} parts of a split model; open it by its path, beside the other parts, or join them with llama-gguf-split --merge"
    )]
    SplitFile { parts: u64 },
    /// A part of a split model whose name does not say so: the other parts cannot be found.
    #[error(
        "{path:?} is part {part} of {parts} of a split model, but its name does not end in -{part:05}-of-{parts:05}.gguf; give the parts the names they came with"
    )]
    SplitName { path: PathBuf, part: u64, parts: u64 },
    /// A part of a split model that is not beside the others.
    #[error(
        "part {part} of {parts} of the model is missing: there is no {path:?}; fetch it, all parts belong in one folder"
    )]
    MissingPart { part: u64, parts: u64, path: PathBuf },
    /// A file that is not the part that its name says.
    #[error(
        "{path:?} should be part {part} of {parts} of the model and says it is part {found} of {found_parts}; fetch it again under its own name"
    )]
    WrongPart { path: PathBuf, part: u64, parts: u64, found: u64, found_parts: u64 },
    /// A part whose metadata is not that of the first part.
    #[error(
        "{path:?} is part {part} of another model: its '{key}' is not that of part 1; fetch the parts of one model again"
    )]
    ForeignPart { path: PathBuf, part: u64, key: String },
    /// Two parts that hold a tensor of one name.
    #[error("tensor '{name}' is in part {first} and in part {second} of the model; fetch the parts of one model again")]
    TensorInTwoParts { name: String, first: u64, second: u64 },
    /// All parts together hold another number of tensors than they say.
    #[error(
        "the {parts} parts of the model hold {found} tensors together, split.tensors.count says {expected}; fetch the parts of one model again"
    )]
    SplitTensorCount { parts: u64, found: u64, expected: u64 },
    /// A fault in a part that is not the file that was asked for.
    #[error("in {path:?}: {source}")]
    InPart { path: PathBuf, source: Box<Self> },

    /// No dimension, or too many.
    #[error("tensor '{name}' has {found} dimensions, expected 1 to {max}; the file is damaged: fetch it again")]
    DimensionCount { name: String, found: u32, max: usize },
    /// A dimension of zero elements.
    #[error("tensor '{name}' has an empty dimension: {dims:?}; convert the model again")]
    EmptyDimension { name: String, dims: Vec<u64> },
    /// More elements or bytes than can be counted.
    #[error(
        "tensor '{name}' with the dimensions {dims:?} is too large to address; the file is damaged: fetch it again"
    )]
    TensorTooLarge { name: String, dims: Vec<u64> },
    /// A ggml type id that is not known here.
    #[error(
        "tensor '{name}' has the unknown ggml type {id}; convert the model again to a current type such as Q8_0 or Q4_K"
    )]
    UnknownGgmlType { name: String, id: u32 },
    /// A row that ends inside a quant block.
    #[error(
        "tensor '{name}' has rows of {row_elements} elements, {ggml_type} needs a multiple of {block_elements}; convert the model again"
    )]
    PartialBlock { name: String, ggml_type: GgmlType, row_elements: u64, block_elements: u64 },
    /// Tensor data that does not start at a multiple of the alignment.
    #[error(
        "tensor '{name}' starts at offset {offset}, expected a multiple of the alignment {alignment}; convert the model again"
    )]
    Misaligned { name: String, offset: u64, alignment: u64 },
    /// Tensor data past the end of the file.
    #[error(
        "tensor '{name}' needs {needed_bytes} bytes at offset {offset} of the tensor data, which has {have_bytes}; the file is cut short: fetch it again"
    )]
    OutsideFile { name: String, offset: u64, needed_bytes: u64, have_bytes: u64 },
    /// Two tensors that share bytes.
    #[error("tensors '{first}' and '{second}' overlap in the file; it is damaged: convert the model again")]
    Overlap { first: String, second: String },
    /// Two tensors of one name.
    #[error("tensor '{name}' appears twice; convert the model again")]
    DuplicateTensor { name: String },

    /// No tensor of this name. `similar`: at most three names that are, nearest first.
    #[error(
        "tensor '{name}' is not in the file{}; the model is incomplete or of another architecture",
        similar_hint(similar)
    )]
    MissingTensor { name: String, similar: Vec<String> },
    /// A tensor of another shape than the model needs; outermost dimension first.
    #[error(
        "tensor '{name}' has the shape {found:?}, expected {expected:?}; the model and its metadata do not fit together"
    )]
    WrongShape { name: String, expected: Vec<usize>, found: Vec<usize> },
    /// A tensor type that the caller cannot run.
    #[error(
        "tensor '{name}' has type {found}, not supported here; supported: {}; convert the model to one of these",
        type_list(supported)
    )]
    UnsupportedType { name: String, found: GgmlType, supported: Vec<GgmlType> },
    /// Tensor data of the wrong length, given to the writer.
    #[error("tensor '{name}' was given {found_bytes} bytes of data, its shape and type need {expected_bytes}")]
    DataLength { name: String, expected_bytes: u64, found_bytes: u64 },

    /// No metadata entry of this key.
    #[error("key '{key}' is not in the metadata; the model is incomplete or of another architecture")]
    MissingKey { key: String },
    /// A metadata value of another type.
    #[error("key '{key}' holds {found}, expected {expected}; convert the model again")]
    WrongMetadataType { key: String, expected: &'static str, found: String },
    /// A metadata number that the asked type cannot hold.
    #[error(
        "key '{key}' holds {found}, which does not fit {expected}; the file is damaged or made for another program"
    )]
    OutOfRange { key: String, expected: &'static str, found: String },
}

/// A name from the file as it may appear in a message: one line, at most 96 characters.
pub(super) fn shown(name: &str) -> String {
    const MAX_CHARS: usize = 96;
    let mut text: String = name.chars().flat_map(char::escape_debug).take(MAX_CHARS).collect();
    if name.chars().flat_map(char::escape_debug).nth(MAX_CHARS).is_some() {
        text.push('…');
    }
    text
}

fn similar_hint(similar: &[String]) -> String {
    if similar.is_empty() { String::new() } else { format!(" (similar: {})", similar.join(", ")) }
}

fn type_list(types: &[GgmlType]) -> String {
    types.iter().map(|t| t.name()).collect::<Vec<_>>().join(", ")
}
