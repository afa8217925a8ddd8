//! The text side of a model: its tokenizer and chat template, from a GGUF file or from the files beside safetensors.

mod folder;

use std::path::{Path, PathBuf};

use crate::{
    chat::{ChatError, ChatTemplate},
    error::ModelError,
    gguf::Gguf,
    tokenizer::{BpeMetadata, SentencePieceMetadata, Settings, Tokenizer, TokenizerError},
};

/// Why a model's text side could not be read.
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
    /// A folder has no `tokenizer.json`.
    #[error("{} has no tokenizer.json{hint}; token ids can be given instead of text", folder.display())]
    NoTokenizer {
        /// The folder.
        folder: PathBuf,
        /// What is there instead, if anything.
        hint: &'static str,
    },
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file is larger than such a file can be.
    #[error("{} has {bytes} bytes, at most {max_bytes} are read", path.display())]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// A file is not the JSON that it should be.
    #[error("{}: {detail}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
}

/// A model's tokenizer, and its chat template if it has one.
#[derive(Debug)]
pub struct TextModel {
    /// Text to ids and back.
    pub tokenizer: Tokenizer,
    /// From messages to text.
    pub template: Option<ChatTemplate>,
}

impl TextModel {
    /// The text side of a GGUF file.
    ///
    /// # Errors
    /// As [`Tokenizer::from_gguf`] and [`ChatTemplate::from_gguf`].
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TextError> {
        let tokenizer = Tokenizer::from_gguf(gguf)?;
        let template = ChatTemplate::from_gguf(gguf, &tokenizer)?;
        Ok(Self { tokenizer, template })
    }

    /// The text side of a folder with `tokenizer.json`, and if they are there `tokenizer_config.json`, `special_tokens_map.json`
    /// and the chat template in `chat_template.jinja`, `chat_template.json` or `tokenizer_config.json`, in this order.
    ///
    /// `end_ids`: further tokens that end a generation, as in `generation_config.json`. `vocab_size`: rows of the embedding table, to
    /// which the vocabulary is cut or filled up.
    ///
    /// # Errors
    /// [`TextError::NoTokenizer`] without a `tokenizer.json`; other variants name the file and what is wrong with it.
    pub fn from_folder(folder: &Path, end_ids: &[u32], vocab_size: Option<usize>) -> Result<Self, TextError> {
        folder::read(folder, end_ids, vocab_size)
    }
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
        let settings = Settings {
            bos: id("tokenizer.ggml.bos_token_id")?,
            eos: id("tokenizer.ggml.eos_token_id")?,
            eot: id("tokenizer.ggml.eot_token_id")?,
            eom: id("tokenizer.ggml.eom_token_id")?,
            unknown: id("tokenizer.ggml.unknown_token_id")?,
            padding: id("tokenizer.ggml.padding_token_id")?,
            add_bos: flag("tokenizer.ggml.add_bos_token")?,
            add_eos: flag("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: flag("tokenizer.ggml.add_space_prefix")?,
        };
        let model = gguf.get_str("tokenizer.ggml.model").map_err(fault)?;
        let tokens = gguf.get_str_array("tokenizer.ggml.tokens").map_err(fault)?;
        let token_types = gguf.find_i32_array("tokenizer.ggml.token_type").map_err(fault)?.into_iter().flatten();
        let tokenizer = match model {
            "gpt2" => Self::bpe(BpeMetadata {
                pre: gguf.find_str("tokenizer.ggml.pre").map_err(fault)?,
                tokens,
                token_types,
                merges: gguf.find_str_array("tokenizer.ggml.merges").map_err(fault)?.into_iter().flatten(),
                settings,
            })?,
            "llama" => Self::sentencepiece(SentencePieceMetadata {
                tokens,
                token_types,
                scores: gguf.find_f32_array("tokenizer.ggml.scores").map_err(fault)?.into_iter().flatten(),
                settings,
            })?,
            model => return Err(TokenizerError::UnknownModel { model: model.chars().take(80).collect() }.into()),
        };
        match gguf.find_tensor("token_embd.weight").and_then(|table| table.shape().first().copied()) {
            Some(embeddings) if embeddings != tokenizer.vocab_size() => {
                Err(TextError::VocabularySize { tokens: tokenizer.vocab_size(), embeddings })
            }
            _ => Ok(tokenizer),
        }
    }

    /// The text of a special token, for a template.
    fn literal(&self, id: Option<u32>) -> Option<&str> {
        id.and_then(|id| self.token_bytes(id).ok()).and_then(|bytes| std::str::from_utf8(bytes).ok())
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
        Ok(Some(Self::new(source, tokenizer.literal(tokenizer.bos()), tokenizer.literal(tokenizer.eos()))?))
    }
}
