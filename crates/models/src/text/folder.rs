//! The text side of a folder as Hugging Face's `transformers` writes it.

use std::{collections::BTreeMap, io, path::Path};

use serde::{Deserialize, de::DeserializeOwned};

use super::{TextError, TextModel};
use crate::{
    chat::ChatTemplate,
    checkpoint::{ReadFault, read_bounded, without_mark},
    tokenizer::{JsonSettings, Tokenizer},
};

/// Gemma 3's `tokenizer.json`, of 262,145 tokens, has 33 MB.
const MAX_TOKENIZER_BYTES: u64 = 256 << 20;

/// Gemma 3's `tokenizer_config.json`, with 6,415 added tokens, has 1.2 MB.
const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// `tokenizer_config.json`, as far as it matters here; `special_tokens_map.json` has the same names of tokens.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Config {
    bos_token: Option<Named>,
    eos_token: Option<Named>,
    unk_token: Option<Named>,
    pad_token: Option<Named>,
    add_bos_token: Option<bool>,
    add_eos_token: Option<bool>,
    added_tokens_decoder: BTreeMap<String, Added>,
    chat_template: Option<Template>,
}

/// A token by its text, in either form that is in use.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Named {
    Text(String),
    Token { content: String },
}

impl Named {
    fn text(self) -> String {
        match self {
            Self::Text(content) | Self::Token { content } => content,
        }
    }
}

#[derive(Debug, Deserialize)]
struct Added {
    content: String,
    #[serde(default)]
    special: bool,
}

/// One template, or several by name.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Template {
    One(String),
    Several(Vec<NamedTemplate>),
}

#[derive(Debug, Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

impl Template {
    /// The template for chats without tools.
    fn chat(self) -> Option<String> {
        match self {
            Self::One(template) => Some(template),
            Self::Several(templates) => {
                templates.into_iter().find(|template| template.name == "default").map(|template| template.template)
            }
        }
    }
}

#[derive(Debug, Deserialize)]
struct TemplateFile {
    chat_template: Template,
}

pub(super) fn read(folder: &Path, end_ids: &[u32], vocab_size: Option<usize>) -> Result<TextModel, TextError> {
    let Some(json) = read_file(&folder.join("tokenizer.json"), MAX_TOKENIZER_BYTES)? else {
        let has = |name: &str| folder.join(name).exists();
        let hint = match (has("tokenizer.model"), has("vocab.json")) {
            (true, _) => ", only a tokenizer.model, which has to be converted",
            (_, true) => ", only a vocab.json, which has to be converted",
            _ => "",
        };
        return Err(TextError::NoTokenizer { folder: folder.to_owned(), hint });
    };
    let config: Config = read_json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    let map: Config = read_json(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
    let token = |named: Option<Named>, other: Option<Named>| named.or(other).map(Named::text);
    // Ids as keys of an object are strings; others are no ids.
    let added = config.added_tokens_decoder.into_iter();
    let added = added.filter_map(|(id, token)| Some((id.parse().ok()?, token.content, token.special)));
    let settings = JsonSettings {
        bos: token(config.bos_token, map.bos_token),
        eos: token(config.eos_token, map.eos_token),
        unknown: token(config.unk_token, map.unk_token),
        padding: token(config.pad_token, map.pad_token),
        add_bos: config.add_bos_token,
        add_eos: config.add_eos_token,
        added: added.collect(),
        vocab_size,
    };
    let mut tokenizer = Tokenizer::from_json(without_mark(&json), &settings)?;
    drop(json);
    tokenizer.add_end_ids(end_ids)?;
    let template = match template(folder, config.chat_template)? {
        Some(source) => Some(ChatTemplate::new(&source, settings.bos.as_deref(), settings.eos.as_deref())?),
        None => None,
    };
    Ok(TextModel { tokenizer, template })
}

/// The source of the chat template: a file of its own counts more than the configuration.
fn template(folder: &Path, configured: Option<Template>) -> Result<Option<String>, TextError> {
    let path = folder.join("chat_template.jinja");
    if let Some(bytes) = read_file(&path, MAX_CONFIG_BYTES)? {
        let source = String::from_utf8(without_mark(&bytes).to_vec());
        return source.map(Some).map_err(|_| TextError::Json { path, detail: "not UTF-8 text".to_owned() });
    }
    if let Some(file) = read_json::<TemplateFile>(&folder.join("chat_template.json"))? {
        return Ok(file.chat_template.chat());
    }
    Ok(configured.and_then(Template::chat))
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, TextError> {
    let Some(bytes) = read_file(path, MAX_CONFIG_BYTES)? else { return Ok(None) };
    let fault = |error: serde_json::Error| {
        let detail = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ").chars().take(300).collect();
        TextError::Json { path: path.to_owned(), detail }
    };
    serde_json::from_slice(without_mark(&bytes)).map(Some).map_err(fault)
}

/// `None` if there is no such file.
fn read_file(path: &Path, max_bytes: u64) -> Result<Option<Vec<u8>>, TextError> {
    let path = path.to_owned();
    read_bounded(&path, max_bytes).map_err(|fault| match fault {
        ReadFault::System(source) => TextError::File { path, source },
        ReadFault::NotAFile => TextError::File { path, source: io::Error::other("it is not a regular file") },
        ReadFault::TooLarge { bytes } => TextError::FileTooLarge { path, bytes, max_bytes },
    })
}
