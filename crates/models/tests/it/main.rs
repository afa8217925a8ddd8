//! The public API.

mod chat;
mod gguf;
mod real_tokenizers;
mod sampler;
mod text_folder;
mod tokenizer;
