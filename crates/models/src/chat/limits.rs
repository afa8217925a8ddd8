//! What a template may use while it runs.

use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use minijinja::{
    Environment, Error, ErrorKind, State, Value, escape_formatter,
    value::{Rest, ValueKind, from_args},
};

/// Steps a template may take; a conversation needs some hundred a message.
const MAX_STEPS: u64 = 2_000_000;

/// Values may nest this deeply: messages and tools do about 10.
const MAX_DEPTH: usize = 64;

/// Literal text that all steps together may write.
const MAX_TEXT_BYTES: usize = 128 << 20;

/// Elements that one check may look at.
const MAX_ELEMENTS: usize = 1_000_000;

/// Memory of one character as a value of its own.
const CHARACTER_BYTES: usize = 40;

/// Stack of the thread in which a template is compiled and run: some times what the deepest tag, statement and value need.
pub(super) const STACK_BYTES: usize = 32 << 20;

/// What one rendering has used up.
#[derive(Debug)]
pub(super) struct Limits {
    /// Bytes of any one text.
    max_text_bytes: usize,
    max_bytes: usize,
    used_bytes: AtomicUsize,
    deadline: Instant,
    pub(super) steps: u64,
}

impl Limits {
    /// For messages of `given_bytes`: a template may copy a conversation some times.
    pub(super) fn new(given_bytes: usize, longest_text_bytes: usize) -> Self {
        let max_text_bytes = given_bytes.saturating_mul(4).saturating_add(256 << 10);
        let steps = MAX_TEXT_BYTES.max(max_text_bytes) / longest_text_bytes.max(1);
        Self {
            max_text_bytes,
            max_bytes: given_bytes.saturating_mul(64).saturating_add(128 << 20),
            used_bytes: AtomicUsize::new(0),
            // A template takes milliseconds; a second more for each MiB is ample on a loaded machine.
            deadline: Instant::now() + Duration::from_millis(900 + (given_bytes >> 10) as u64),
            steps: MAX_STEPS.min(steps as u64),
        }
    }

    /// A text that is made.
    fn charge(&self, bytes: usize) -> Result<(), Error> {
        if bytes > self.max_text_bytes {
            return Err(too_much(format!("a text of {bytes} bytes, at most {} are allowed", self.max_text_bytes)));
        }
        self.charge_total(bytes)
    }

    fn charge_total(&self, bytes: usize) -> Result<(), Error> {
        let used = self.used_bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if used > self.max_bytes {
            return Err(too_much(format!("{used} bytes of values were made, at most {} are allowed", self.max_bytes)));
        }
        self.in_time()
    }

    fn in_time(&self) -> Result<(), Error> {
        match Instant::now() > self.deadline {
            true => Err(too_much("it takes too long".to_owned())),
            false => Ok(()),
        }
    }

    /// Depth and text of a value, without recursion.
    fn bytes_of(&self, value: &Value) -> Result<usize, Error> {
        if let Some(text) = value.as_str() {
            return Ok(text.len());
        }
        let mut bytes = 0usize;
        let mut elements = 0;
        let mut open = vec![(value.clone(), 0)];
        while let Some((value, depth)) = open.pop() {
            elements += 1;
            if depth > MAX_DEPTH {
                return Err(too_much(format!("values nested more than {MAX_DEPTH} deep")));
            }
            if elements > MAX_ELEMENTS {
                return Err(too_much(format!("a value of more than {MAX_ELEMENTS} elements")));
            }
            bytes = bytes.saturating_add(value.as_str().map_or(16, str::len));
            let kind = value.kind();
            if !matches!(kind, ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
                continue;
            }
            let Ok(items) = value.try_iter() else { continue };
            for item in items.take(MAX_ELEMENTS + 1) {
                if kind == ValueKind::Map
                    && let Ok(inside) = value.get_item(&item)
                {
                    open.push((inside, depth + 1));
                }
                open.push((item, depth + 1));
                if open.len() > 2 * MAX_ELEMENTS {
                    return Err(too_much(format!("a value of more than {MAX_ELEMENTS} elements")));
                }
            }
        }
        Ok(bytes)
    }

    /// A value that is kept by `set`, or written.
    fn keep(&self, value: &Value) -> Result<(), Error> {
        match value.as_str() {
            Some(text) => self.charge(text.len()),
            None => self.charge_total(self.bytes_of(value)?),
        }
    }

    /// A value that already was somewhere: only what the check itself could not survive.
    fn see(&self, value: &Value) -> Result<(), Error> {
        let bytes = self.bytes_of(value)?;
        if bytes > self.max_bytes {
            return Err(too_much(format!("a value of {bytes} bytes, at most {} are allowed", self.max_bytes)));
        }
        self.in_time()
    }

    /// Replaces what could take unbounded time or memory in one step.
    pub(super) fn install(self: &Arc<Self>, environment: &mut Environment<'_>) {
        environment.set_fuel(Some(self.steps));
        environment.set_recursion_limit(200);
        for name in ["format", "indent", "pprint", "urlencode", "batch", "slice", "sum", "zip", "chain"] {
            environment.remove_filter(name);
        }
        environment.remove_global("debug");
        let limits = Arc::clone(self);
        environment.set_formatter(move |out, state, value| {
            limits.keep(value)?;
            escape_formatter(out, state, value)
        });
        let limits = Arc::clone(self);
        environment.add_filter("kept", move |value: Value| limits.keep(&value).map(|()| value));
        let limits = Arc::clone(self);
        environment.add_filter("seen", move |value: Value| limits.see(&value).map(|()| value));
        let limits = Arc::clone(self);
        environment
            .add_filter("replace", move |text: String, from: String, to: String| limits.replace(&text, &from, &to));
        let limits = Arc::clone(self);
        environment.add_filter("join", move |parts: Value, between: Option<String>| {
            limits.join(&parts, between.as_deref().unwrap_or(""))
        });
        for name in ["list", "split", "lines"] {
            let limits = Arc::clone(self);
            let plain = Environment::new();
            environment.add_filter(name, move |value: Value, rest: Rest<Value>| {
                limits.charge_characters(&value)?;
                let arguments: Vec<Value> = std::iter::once(value).chain(rest.0).collect();
                plain.empty_state().apply_filter(name, &arguments)
            });
        }
        let limits = Arc::clone(self);
        environment.set_unknown_method_callback(move |state, value, method, arguments| {
            limits.call_method(state, value, method, arguments)
        });
    }

    fn charge_characters(&self, value: &Value) -> Result<(), Error> {
        let Some(text) = value.as_str() else { return self.in_time() };
        let used = self.used_bytes.fetch_add(text.len() * CHARACTER_BYTES, Ordering::Relaxed);
        if used + text.len() * CHARACTER_BYTES > self.max_bytes {
            return Err(too_much(format!("a text of {} bytes is cut into too many parts", text.len())));
        }
        self.in_time()
    }

    /// Python's `replace`, its size known before anything is allocated.
    fn replace(&self, text: &str, from: &str, to: &str) -> Result<String, Error> {
        let times = text.matches(from).count();
        let removed = times * from.len();
        self.charge((text.len() - removed).saturating_add(times.saturating_mul(to.len())))?;
        Ok(text.replace(from, to))
    }

    fn join(&self, parts: &Value, between: &str) -> Result<String, Error> {
        let mut joined = String::new();
        for (index, part) in parts.try_iter()?.enumerate() {
            if index > 0 {
                joined.push_str(between);
            }
            match part.as_str() {
                Some(text) => joined.push_str(text),
                None => {
                    self.keep(&part)?;
                    joined.push_str(&part.to_string());
                }
            }
            if joined.len() > self.max_text_bytes {
                break;
            }
        }
        self.charge(joined.len())?;
        Ok(joined)
    }

    fn call_method(
        &self,
        state: &State<'_, '_>,
        value: &Value,
        method: &str,
        arguments: &[Value],
    ) -> Result<Value, Error> {
        if let Some(text) = value.as_str() {
            match method {
                "format" => return Err(too_much("the method format is not supported".to_owned())),
                "count" => {
                    let (what,): (&str,) = from_args(arguments)?;
                    // `matches` finds the empty string at every border, as Python does.
                    return Ok(Value::from(text.matches(what).count()));
                }
                "replace" => {
                    let (from, to, most): (&str, &str, Option<i64>) = from_args(arguments)?;
                    return match most.and_then(|most| usize::try_from(most).ok()) {
                        Some(most) => {
                            self.charge(
                                text.len()
                                    .saturating_add(text.matches(from).count().min(most).saturating_mul(to.len())),
                            )?;
                            Ok(Value::from(text.replacen(from, to, most)))
                        }
                        None => self.replace(text, from, to).map(Value::from),
                    };
                }
                "join" => {
                    let (parts,): (&Value,) = from_args(arguments)?;
                    return self.join(parts, text).map(Value::from);
                }
                "split" | "splitlines" | "rsplit" => self.charge_characters(value)?,
                _ => {}
            }
        }
        minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)
    }

    /// A place for JSON that holds no more than one text may.
    pub(super) fn json_writer(&self) -> Bounded {
        Bounded { bytes: Vec::new(), max_bytes: self.max_text_bytes }
    }

    /// Whether a value may be written as JSON: writing recurses.
    pub(super) fn check(&self, value: &Value) -> Result<(), Error> {
        self.keep(value)
    }

    /// A place for the whole text.
    pub(super) fn output(&self) -> Bounded {
        Bounded { bytes: Vec::new(), max_bytes: self.max_bytes.min(self.max_text_bytes.saturating_mul(4)) }
    }
}

/// Bytes up to a limit.
#[derive(Debug)]
pub(super) struct Bounded {
    pub(super) bytes: Vec<u8>,
    max_bytes: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.max_bytes {
            return Err(io::Error::other(TooMuch(format!("more than {} bytes are written", self.max_bytes))));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct TooMuch(String);

impl fmt::Display for TooMuch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TooMuch {}

fn too_much(detail: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}
