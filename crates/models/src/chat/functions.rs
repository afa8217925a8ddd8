//! What templates may call beyond Jinja itself.

use std::fmt;

use minijinja::{Error, ErrorKind, Value, value::Kwargs};
use serde::Serialize;

use super::limits::Limits;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// The message of `raise_exception`, carried as the source of the engine's error.
#[derive(Debug)]
struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

pub(super) fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Refusal(message)))
}

/// The message given to `raise_exception`, if that is what `error` comes from.
pub(super) fn refusal(error: &Error) -> Option<&str> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(Refusal(message)) = error.downcast_ref() {
            return Some(message);
        }
        cause = error.source();
    }
    None
}

/// Formats a UTC time as C's `strftime` does.
pub(super) fn strftime(format: &str, unix_seconds: i64) -> Result<String, Error> {
    if format.len() > 200 {
        let detail = format!("strftime_now: a format of {} bytes, at most 200 are allowed", format.len());
        return Err(Error::new(ErrorKind::InvalidOperation, detail));
    }
    let invalid = |error: jiff::Error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}"));
    let time = jiff::Timestamp::from_second(unix_seconds).map_err(invalid)?;
    jiff::fmt::strtime::format(format, time).map_err(invalid)
}

/// `tojson(indent=n)` as `transformers` has it: Python's `json.dumps` with `ensure_ascii=False`, nothing escaped for HTML.
pub(super) fn to_json(
    limits: &Limits,
    value: &Value,
    indent: Option<usize>,
    options: &Kwargs,
) -> Result<String, Error> {
    limits.check(value)?;
    let indent = match indent {
        None => options.get::<Option<usize>>("indent")?,
        given => given,
    };
    // `ensure_ascii`, `separators` and `sort_keys` would change the text: unknown options are refused.
    options.assert_all_used()?;
    match indent {
        Some(width) => write_json(limits, value, PrettyFormatter::with_indent(" ".repeat(width.min(16)).as_bytes())),
        None => write_json(limits, value, Spaced),
    }
}

fn write_json(limits: &Limits, value: &Value, formatter: impl Formatter) -> Result<String, Error> {
    let mut out = limits.json_writer();
    let written = value.serialize(&mut Serializer::with_formatter(&mut out, formatter));
    let invalid = |detail: String| Error::new(ErrorKind::BadSerialization, detail);
    written.map_err(|error| invalid(error.to_string()))?;
    String::from_utf8(out.bytes).map_err(|error| invalid(error.to_string()))
}

/// JSON on one line with `", "` and `": "`, as Python writes it.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, out: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        out.write_all(b": ")
    }
}
