//! Why a tokenizer could not be made, or an id not decoded.

use super::pre::PreTokenizer;

/// Why a tokenizer could not be built from a model's metadata, or a token not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "field names say what they hold")]
#[non_exhaustive]
pub enum TokenizerError {
    /// `tokenizer.ggml.model` names a family that is not byte-level BPE.
    #[error("tokenizer model \"{model}\" is not supported; supported: gpt2")]
    UnknownModel { model: String },
    /// `tokenizer.ggml.pre` is absent. Guessing would give other ids than the model was trained on.
    #[error("the tokenizer names no pre-tokenizer; supported: {}", PreTokenizer::names())]
    MissingPreTokenizer,
    /// `tokenizer.ggml.pre` names an unknown rule.
    #[error("pre-tokenizer \"{pre}\" is not supported; supported: {}", PreTokenizer::names())]
    UnknownPreTokenizer { pre: String },
    /// The vocabulary is empty.
    #[error("the tokenizer has no tokens")]
    EmptyVocabulary,
    /// The vocabulary does not fit 32-bit ids or offsets.
    #[error("the vocabulary is too large: {tokens} tokens, {text_bytes} bytes of text")]
    VocabularyTooLarge { tokens: usize, text_bytes: usize },
    /// `tokenizer.ggml.token_type` has another length than the vocabulary.
    #[error("{types} token types for {tokens} tokens")]
    TypeCount { types: usize, tokens: usize },
    /// A token type that GGUF does not define.
    #[error("token {id} has unknown type {value}; GGUF defines 1 to 6")]
    UnknownTokenType { id: u32, value: i32 },
    /// A merge is not two token texts with a space between.
    #[error("merge {rank} (\"{merge}\") is not two tokens separated by one space")]
    MergeSyntax { rank: usize, merge: String },
    /// A merge names or makes a text that is no token.
    #[error("merge {rank} (\"{merge}\") names or makes a token that the vocabulary does not have")]
    MergeOutOfVocabulary { rank: usize, merge: String },
    /// A token id of the metadata (`bos`, `eos`, ...) is past the vocabulary.
    #[error("{name} token id {id} is past the vocabulary of {tokens} tokens")]
    SpecialIdPastVocabulary { name: &'static str, id: u32, tokens: usize },
    /// The model wants a token added to every text but names none.
    #[error("the model asks for {name} at the ends of a text but names no {name} token")]
    MissingAddedToken { name: &'static str },
    /// A token id to decode is past the vocabulary.
    #[error("token id {id} is past the vocabulary of {tokens} tokens")]
    UnknownId { id: u32, tokens: usize },
    /// The special tokens could not be compiled into a matcher.
    #[error("the special tokens cannot be searched for")]
    SpecialTokens { special_tokens: usize },
}
