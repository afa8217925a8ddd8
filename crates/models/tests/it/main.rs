//! The public API.

mod architectures;
mod chat;
mod estimates;
mod folder;
mod gguf;
mod real_tokenizers;
mod sampler;
mod text_folder;
mod tokenizer;
