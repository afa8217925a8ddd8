//! The public API.

mod chat;
mod gguf;
mod sampler;
mod tokenizer;
