//! The public API.

mod chat;
mod folder;
mod gguf;
mod sampler;
mod tokenizer;
