//! The public API.

mod architectures;
mod chat;
mod folder;
mod gguf;
mod sampler;
mod tokenizer;
