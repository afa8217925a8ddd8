//! Chat templates: from messages to the one text that a model continues.
//!
//! Templates are Jinja, as in `tokenizer_config.json` and GGUF's `tokenizer.chat_template`, run by `minijinja` with the
//! additions that Hugging Face's `transformers` makes: Python's string and dict methods, loop controls, `raise_exception`,
//! `strftime_now`, a `tojson` that writes as Python does, and trimmed blocks.
//!
//! A template comes with a model and is not trusted: what it may take in time, memory and stack is bounded (see `guard` and `limits`),
//! and a template that wants more ends in one error.

mod functions;
mod guard;
mod limits;

use std::{sync::Arc, thread, time::SystemTime};

use guard::Guarded;
use limits::{Limits, STACK_BYTES};
use minijinja::{Environment, Value, context, value::Kwargs};
use serde::{Deserialize, Serialize};

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
    /// Longer than any template.
    #[error("the chat template has {bytes} bytes, at most {max_bytes} are allowed")]
    TooLong { bytes: usize, max_bytes: usize },
    /// The template uses what no chat template needs and what could not be bounded.
    #[error("chat template, line {line}: {detail}")]
    Unsupported { line: usize, detail: String },
    /// The system gave no thread to run the template in.
    #[error("the chat template cannot be run: {detail}")]
    Thread { detail: String },
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
    guarded: Guarded,
    bos: Option<String>,
    eos: Option<String>,
}

impl ChatTemplate {
    /// Compiles `source`. `bos` and `eos` are literal token texts; a token that the model lacks is undefined in the template.
    ///
    /// # Errors
    /// [`ChatError::Syntax`] with the line; [`ChatError::TooLong`] and [`ChatError::Unsupported`] for what is no chat template.
    pub fn new(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self, ChatError> {
        let guarded = guard::guard(source)?;
        let limits = Arc::new(Limits::new(0, guarded.longest_text_bytes));
        on_own_stack(|| environment(&guarded.source, &limits).map(drop))?;
        Ok(Self { guarded, bos: bos.map(str::to_owned), eos: eos.map(str::to_owned) })
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
        // A message is a map with two keys, besides its texts.
        let given_bytes = messages.iter().map(|message| message.role.len() + message.content.len() + 128).sum();
        let limits = Arc::new(Limits::new(given_bytes, self.guarded.longest_text_bytes));
        on_own_stack(move || {
            let environment = environment(&self.guarded.source, &limits)?;
            let mut out = limits.output();
            let rendered = environment
                .get_template(NAME)
                .and_then(|template| template.render_captured_to(context, &mut out).map(drop));
            rendered.map_err(|error| match functions::refusal(&error) {
                Some(message) => ChatError::Refused { message: one_line(message) },
                None => {
                    let (line, detail) = place(&error);
                    ChatError::Render { line, detail }
                }
            })?;
            // Only whole texts were written.
            Ok(String::from_utf8_lossy(&out.bytes).into_owned())
        })
    }
}

/// The engine with the one template, compiled.
fn environment<'s>(source: &'s str, limits: &Arc<Limits>) -> Result<Environment<'s>, ChatError> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    limits.install(&mut environment);
    environment.add_function("raise_exception", functions::raise_exception);
    let limits = Arc::clone(limits);
    environment.add_filter("tojson", move |value: Value, indent: Option<usize>, options: Kwargs| {
        functions::to_json(&limits, &value, indent, &options)
    });
    environment.add_template(NAME, source).map_err(|error| {
        let (line, detail) = place(&error);
        ChatError::Syntax { line, detail }
    })?;
    Ok(environment)
}

/// Runs `work` in a thread whose stack has a known size: the engine recurses over a template and its values.
fn on_own_stack<T: Send>(work: impl FnOnce() -> Result<T, ChatError> + Send) -> Result<T, ChatError> {
    let failed = |detail: String| ChatError::Thread { detail };
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("chat template".to_owned()).stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, work).map_err(|error| failed(error.to_string()))?;
        thread.join().map_err(|_| failed("the template engine panicked".to_owned()))?
    })
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
