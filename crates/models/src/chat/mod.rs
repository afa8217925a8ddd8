//! Chat templates: from messages to the one text that a model continues.
//!
//! Templates are Jinja, as in `tokenizer_config.json` and GGUF's `tokenizer.chat_template`, run by `minijinja` with the
//! additions that Hugging Face's `transformers` makes: Python's string and dict methods, loop controls, `raise_exception`,
//! `strftime_now`, a `tojson` that writes as Python does, and trimmed blocks.

mod functions;

use std::time::SystemTime;

use minijinja::{Environment, Value, context};
use serde::{Deserialize, Serialize};

/// Steps a template may take; a long conversation needs some hundred a message. A model file is not trusted to end.
const MAX_STEPS: u64 = 10_000_000;

/// The name under which the environment holds the one template.
const NAME: &str = "chat";

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// A turn of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// Why a template could not be read or did not make a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "field names say what they hold")]
#[non_exhaustive]
pub enum ChatError {
    /// The template is not valid Jinja.
    #[error("chat template, line {line}: {detail}")]
    Syntax { line: usize, detail: String },
    /// The template failed on these messages.
    #[error("chat template, line {line}, cannot render these messages: {detail}")]
    Render { line: usize, detail: String },
    /// The template refused the messages through `raise_exception`.
    #[error("the chat template refuses these messages: {message}")]
    Refused { message: String },
}

/// A compiled chat template with the model's `bos_token` and `eos_token`.
///
/// ```
/// use plimsoll_models::chat::{ChatTemplate, Message};
///
/// let source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}\
///               {% if add_generation_prompt %}<|assistant|>{% endif %}";
/// let template = ChatTemplate::new(source, None, Some("</s>"))?;
/// assert_eq!(template.render(&[Message::new("user", "Hi")], true)?, "<|user|>Hi</s><|assistant|>");
/// # Ok::<(), plimsoll_models::chat::ChatError>(())
/// ```
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: Option<String>,
    eos: Option<String>,
}

impl ChatTemplate {
    /// Compiles `source`. `bos` and `eos` are literal token texts; a token that the model lacks is undefined in the template.
    ///
    /// # Errors
    /// [`ChatError::Syntax`] with the line.
    pub fn new(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self, ChatError> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(MAX_STEPS));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", functions::raise_exception);
        environment.add_filter("tojson", functions::to_json);
        environment.add_template_owned(NAME, source.to_owned()).map_err(|error| {
            let (line, detail) = place(&error);
            ChatError::Syntax { line, detail }
        })?;
        Ok(Self { environment, bos: bos.map(str::to_owned), eos: eos.map(str::to_owned) })
    }

    /// The text of `messages`; with `add_generation_prompt`, up to where the assistant's turn begins.
    ///
    /// The template's `strftime_now` tells the present time in UTC.
    ///
    /// # Errors
    /// [`ChatError::Refused`] if the template rejects the messages, [`ChatError::Render`] if it fails on them.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, ChatError> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        // A clock before 1970 is as wrong as one that shows 1970.
        let unix_seconds = now.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0));
        self.render_at(messages, add_generation_prompt, unix_seconds)
    }

    /// [`render`](Self::render) at a given time, in seconds since 1970 UTC. The same arguments give the same text.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn render_at(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        unix_seconds: i64,
    ) -> Result<String, ChatError> {
        let token = |text: &Option<String>| text.as_deref().map_or(Value::UNDEFINED, Value::from);
        let strftime_now = Value::from_function(move |format: &str| functions::strftime(format, unix_seconds));
        let context = context! {
            messages,
            add_generation_prompt,
            strftime_now,
            bos_token => token(&self.bos),
            eos_token => token(&self.eos),
            tools => Value::from(()),
            documents => Value::from(()),
        };
        let rendered = self.environment.get_template(NAME).and_then(|template| template.render(context));
        rendered.map_err(|error| match functions::refusal(&error) {
            Some(message) => ChatError::Refused { message: one_line(message) },
            None => {
                let (line, detail) = place(&error);
                ChatError::Render { line, detail }
            }
        })
    }
}

/// Line and description of an error.
fn place(error: &minijinja::Error) -> (usize, String) {
    let detail =
        error.detail().map_or_else(|| error.kind().to_string(), |detail| format!("{}: {detail}", error.kind()));
    (error.line().unwrap_or(0), one_line(&detail))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
