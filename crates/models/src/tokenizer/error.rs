//! Why a tokenizer could not be made, or an id not decoded.

use super::pre::PreTokenizer;

/// Why a tokenizer could not be built from a model's metadata, or a token not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "field names say what they hold")]
#[non_exhaustive]
pub enum TokenizerError {
    /// `tokenizer.ggml.model` names a family that is neither byte-level nor SentencePiece BPE.
    #[error("tokenizer model \"{model}\" is not supported; supported: gpt2, llama")]
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
    /// `tokenizer.ggml.scores` has another length than the vocabulary.
    #[error("{scores} token scores for {tokens} tokens")]
    ScoreCount { scores: usize, tokens: usize },
    /// A score that cannot be compared.
    #[error("the score of token {id} of {tokens} is not a number")]
    NanScore { id: usize, tokens: usize },
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
    /// `tokenizer.json` is not what it should be.
    #[error("tokenizer.json: {detail}")]
    Json { detail: String },
    /// `tokenizer.json` writes text in a way that is not known here.
    #[error(
        "tokenizer.json: decoder {found} is not supported; supported: ByteLevel, Metaspace, and sequences of Replace, ByteFallback, Fuse, Strip"
    )]
    UnknownDecoder { found: String },
    /// A tokenizer that is not one of ours gave up.
    #[error("the tokenizer cannot encode the text: {detail}")]
    Foreign { detail: String },
}
