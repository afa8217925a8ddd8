//! The text side of a GGUF file: its tokenizer and chat template.

use crate::{
    chat::{ChatError, ChatTemplate},
    error::ModelError,
    gguf::Gguf,
    tokenizer::{BpeMetadata, Tokenizer, TokenizerError},
};

/// Why a file's text side could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The metadata is faulty.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The metadata describes no tokenizer that is known here.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The vocabulary and the embedding table do not go together.
    #[error("the tokenizer has {tokens} tokens, token_embd.weight has {embeddings} rows")]
    VocabularySize {
        /// Length of `tokenizer.ggml.tokens`.
        tokens: usize,
        /// Rows of the embedding table.
        embeddings: usize,
    },
    /// The chat template does not compile.
    #[error(transparent)]
    Chat(#[from] ChatError),
}

impl Tokenizer {
    /// The tokenizer of a GGUF file.
    ///
    /// # Errors
    /// [`TextError`] naming a key that is missing or faulty, or what is not supported.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TextError> {
        let id = |key: &str| gguf.find_u32(key).map_err(ModelError::from);
        let flag = |key: &str| gguf.find_bool(key).map_err(ModelError::from);
        let fault = ModelError::from;
        let tokenizer = Self::new(BpeMetadata {
            model: gguf.get_str("tokenizer.ggml.model").map_err(fault)?,
            pre: gguf.find_str("tokenizer.ggml.pre").map_err(fault)?,
            tokens: gguf.get_str_array("tokenizer.ggml.tokens").map_err(fault)?,
            token_types: gguf.find_i32_array("tokenizer.ggml.token_type").map_err(fault)?.into_iter().flatten(),
            merges: gguf.find_str_array("tokenizer.ggml.merges").map_err(fault)?.into_iter().flatten(),
            bos: id("tokenizer.ggml.bos_token_id")?,
            eos: id("tokenizer.ggml.eos_token_id")?,
            eot: id("tokenizer.ggml.eot_token_id")?,
            eom: id("tokenizer.ggml.eom_token_id")?,
            unknown: id("tokenizer.ggml.unknown_token_id")?,
            padding: id("tokenizer.ggml.padding_token_id")?,
            add_bos: flag("tokenizer.ggml.add_bos_token")?,
            add_eos: flag("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: flag("tokenizer.ggml.add_space_prefix")?,
        })?;
        match gguf.find_tensor("token_embd.weight").and_then(|table| table.shape().first().copied()) {
            Some(embeddings) if embeddings != tokenizer.vocab_size() => {
                Err(TextError::VocabularySize { tokens: tokenizer.vocab_size(), embeddings })
            }
            _ => Ok(tokenizer),
        }
    }
}

impl ChatTemplate {
    /// The chat template of a GGUF file, if it has one; `tokenizer` names the texts of its special tokens.
    ///
    /// # Errors
    /// [`TextError`] if the template is not valid Jinja.
    pub fn from_gguf(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<Option<Self>, TextError> {
        let Some(source) = gguf.find_str("tokenizer.chat_template").map_err(ModelError::from)? else {
            return Ok(None);
        };
        let text = |id: Option<u32>| {
            id.and_then(|id| tokenizer.token_bytes(id).ok()).and_then(|bytes| std::str::from_utf8(bytes).ok())
        };
        Ok(Some(Self::new(source, text(tokenizer.bos()), text(tokenizer.eos()))?))
    }
}
