//! GGUF model files, versions 2 and 3: reading through a memory map, and writing.
//!
//! [`Gguf::open`] maps a file and checks its whole header before it hands anything out: each length, count, type,
//! alignment and offset is compared with the bytes that are there, so a damaged or hostile file gives a
//! [`GgufError`], never a panic, a slice outside the file or an allocation larger than a few times its header.
//! Metadata strings, token lists and tensor data are slices of the map; nothing is copied unless the caller copies it.
//!
//! A model that is split over several files is opened through any of them, and then read like one file.
//!
//! The format is described in `docs/gguf.md` of the ggml repository. Only little-endian files are read.
//!
//! ```
//! use plimsoll_models::gguf::{Gguf, GgmlType, GgufWriter};
//!
//! let mut writer = GgufWriter::new();
//! writer.put("general.architecture", "llama")?;
//! writer.put("llama.block_count", 2_u32)?;
//! writer.tensor("output_norm.weight", &[2], GgmlType::F32, vec![0_u8; 8])?;
//!
//! let file = Gguf::from_bytes(writer.to_bytes())?;
//! assert_eq!(file.get_u32("llama.block_count")?, 2);
//! let norm = file.tensor("output_norm.weight")?.expect_shape(&[2])?;
//! assert_eq!(norm.data().len(), 8);
//! # Ok::<(), plimsoll_models::gguf::GgufError>(())
//! ```

mod cursor;
mod error;
mod facts;
mod ggml_type;
pub(crate) mod map;
mod metadata;
mod parse;
mod reader;
mod split;
mod tensor;
mod value;
mod writer;

pub use error::GgufError;
pub use ggml_type::GgmlType;
pub use reader::Gguf;
pub(crate) use reader::edit_distance;
pub use tensor::{MAX_DIMENSIONS, TensorView};
pub use value::{Array, Strings, Value, ValueType, Values};
pub use writer::{Encode, GgufWriter};
