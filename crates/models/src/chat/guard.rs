//! Makes a template safe to run, before it is compiled.
//!
//! The engine bounds the number of steps, but not what one step may allocate or how deeply values nest. Values grow from step to step
//! only where they are kept: by `set`, by a loop's or a macro's names. So a check is written behind each of these (`kept`, `seen`), on
//! the same line, and what one tag alone can build is bounded by the number of its words. Statements that keep values in other ways
//! and that no chat template needs are refused.
//!
//! All of this holds only if a tag, a comment and a raw stretch end here where they end for the engine: else one could hide another.
//! So the rules of the engine's lexer are followed to the byte, and what does not end at all is refused.

use super::ChatError;

/// Chat templates have some thousand bytes: Qwen3's, with its tools, has 4,116.
pub(super) const MAX_SOURCE_BYTES: usize = 256 << 10;

/// Words, numbers, strings and signs between the braces of one tag. The engine recurses over them.
const MAX_TAG_WORDS: usize = 400;

/// Each `elif` is nested in the one before.
const MAX_ELIFS: usize = 400;

/// A template with its checks written in.
#[derive(Debug)]
pub(super) struct Guarded {
    pub(super) source: String,
    /// Bytes of the longest stretch of literal text, which a loop may repeat.
    pub(super) longest_text_bytes: usize,
}

/// Writes the checks into `source`.
pub(super) fn guard(source: &str) -> Result<Guarded, ChatError> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(ChatError::TooLong { bytes: source.len(), max_bytes: MAX_SOURCE_BYTES });
    }
    let mut guarded = Guarded { source: String::with_capacity(source.len() * 2), longest_text_bytes: 0 };
    let mut at = 0;
    let mut elifs = 0;
    let mut line = 1;
    // Up to where `line` has counted.
    let mut counted = 0;
    // Names of `set` blocks that are open.
    let mut captures: Vec<Option<String>> = Vec::new();
    while at < source.len() {
        let Some(start) = next_tag(source, at) else { break };
        guarded.text(&source[at..start]);
        line += source[counted..start].matches('\n').count();
        counted = start;
        let unsupported = |detail: String| ChatError::Unsupported { line, detail };
        if source[start..].starts_with("{#") {
            // The `#` of the beginning is not that of the end: `{#}` goes on.
            let length = source[start + 2..].find("#}");
            at = start + 4 + length.ok_or_else(|| unsupported("a comment without an end".to_owned()))?;
            guarded.source.push_str(&source[start..at]);
            continue;
        }
        // Before anything else looks into the tag, as the engine does.
        if source[start..].starts_with("{%")
            && let Some(length) = bare_tag(&source[start + 2..], "raw")
        {
            let text = start + 2 + length;
            at = end_of_raw(source, text).ok_or_else(|| unsupported("a raw without an end".to_owned()))?;
            guarded.source.push_str(&source[start..at]);
            guarded.longest_text_bytes = guarded.longest_text_bytes.max(at - text);
            continue;
        }
        let tag = Tag::scan(source, start).map_err(|detail| unsupported(detail.to_owned()))?;
        at = tag.end;
        if !tag.is_statement {
            guarded.source.push_str(&source[start..at]);
            continue;
        }
        let (name, rest) = split_word(tag.body);
        let mut checks = Vec::new();
        match name {
            "if" | "else" | "endif" | "endfor" | "endmacro" | "break" | "continue" | "do" => {}
            "elif" => {
                elifs += 1;
                if elifs > MAX_ELIFS {
                    return Err(unsupported(format!("more than {MAX_ELIFS} elif")));
                }
            }
            "set" => match split_assignment(rest) {
                Some(targets) => checks = names(targets).ok_or_else(|| unsupported(cannot_set(targets)))?,
                None => {
                    let target = rest.split('|').next().unwrap_or(rest);
                    captures.push(Some(name_of(target).ok_or_else(|| unsupported(cannot_set(target)))?));
                }
            },
            "endset" => checks.extend(captures.pop().flatten()),
            "for" => {
                let targets =
                    rest.split_once(" in ").or_else(|| rest.split_once("\tin ")).or_else(|| rest.split_once("\nin "));
                let (targets, _) = targets.ok_or_else(|| unsupported("a for without in".to_owned()))?;
                checks = names(targets).ok_or_else(|| unsupported(cannot_set(targets)))?;
            }
            "macro" => {
                checks = parameters(rest).ok_or_else(|| unsupported("a macro without plain parameters".to_owned()))?
            }
            // What `transformers` marks the assistant's tokens with; for a text it does nothing.
            "generation" | "endgeneration" => {
                let (open, close) = tag.marks();
                let instead = if name == "generation" { "if true" } else { "endif" };
                guarded.source.push_str(&format!("{{%{open} {instead} {close}%}}"));
                continue;
            }
            other => {
                let other: String = other.chars().take(40).collect();
                return Err(unsupported(format!("the statement \"{other}\" is not supported")));
            }
        }
        guarded.source.push_str(&source[start..at]);
        let check = if matches!(name, "set" | "endset") { "kept" } else { "seen" };
        let (_, close) = tag.marks();
        if checks.is_empty() && name == "macro" {
            guarded.source.push_str(&format!("{{% set _ = 0|seen {close}%}}"));
        }
        for target in checks {
            guarded.source.push_str(&format!("{{% set {target} = {target}|{check} {close}%}}"));
        }
    }
    guarded.text(&source[at..]);
    Ok(guarded)
}

impl Guarded {
    fn text(&mut self, text: &str) {
        self.longest_text_bytes = self.longest_text_bytes.max(text.len());
        self.source.push_str(text);
    }
}

fn next_tag(source: &str, at: usize) -> Option<usize> {
    let braces = source[at..].match_indices('{').map(|(distance, _)| at + distance);
    braces.into_iter().find(|&start| matches!(source.as_bytes().get(start + 1), Some(b'{' | b'%' | b'#')))
}

/// `{% ... %}` or `{{ ... }}`.
struct Tag<'s> {
    is_statement: bool,
    /// What stands between the braces, without marks of white space.
    body: &'s str,
    /// Everything between the braces.
    inner: &'s str,
    end: usize,
}

impl<'s> Tag<'s> {
    fn scan(source: &'s str, start: usize) -> Result<Self, &'static str> {
        let bytes = source.as_bytes();
        let is_statement = bytes[start + 1] == b'%';
        let close: &[u8] = if is_statement { b"%}" } else { b"}}" };
        let mut at = start + 2;
        let mut words = 0;
        let mut open = 0usize;
        while let Some(&byte) = bytes.get(at) {
            if open == 0 && bytes[at..].starts_with(close) {
                let inner = &source[start + 2..at];
                let body = inner.strip_prefix(['-', '+']).unwrap_or(inner);
                let body = body.strip_suffix(['-', '+']).unwrap_or(body).trim();
                return Ok(Self { is_statement, body, inner, end: at + 2 });
            }
            match byte {
                b'\'' | b'"' => at = end_of_string(bytes, at).ok_or("a string without an end")?,
                b'(' | b'[' | b'{' => open += 1,
                b')' | b']' | b'}' => open = open.checked_sub(1).ok_or("a bracket that was not opened")?,
                b'*' => return Err("multiplication is not supported"),
                _ => {}
            }
            if is_word(byte) {
                while bytes.get(at + 1).copied().is_some_and(is_word) {
                    at += 1;
                }
            }
            if !byte.is_ascii_whitespace() {
                words += 1;
                if words > MAX_TAG_WORDS {
                    return Err("a tag of more than 400 words and signs");
                }
            }
            at += 1;
        }
        Err("a tag without an end")
    }

    /// The marks of white space at both ends.
    fn marks(&self) -> (&str, &str) {
        let mark = |found: bool, at: usize| if found { &self.inner[at..=at] } else { "" };
        let last = self.inner.len().saturating_sub(1);
        (
            mark(self.inner.starts_with(['-', '+']), 0),
            mark(self.inner.len() > 1 && self.inner.ends_with(['-', '+']), last),
        )
    }
}

const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 128
}

/// The closing quote of the string that starts at `at`.
fn end_of_string(bytes: &[u8], at: usize) -> Option<usize> {
    let mut end = at + 1;
    loop {
        match *bytes.get(end)? {
            b'\\' => end += 2,
            byte if byte == bytes[at] => return Some(end),
            _ => end += 1,
        }
    }
}

/// The end of the first `{% endraw %}`.
fn end_of_raw(source: &str, mut at: usize) -> Option<usize> {
    loop {
        at += source[at..].find("{%")? + 2;
        if let Some(length) = bare_tag(&source[at..], "endraw") {
            return Some(at + length);
        }
    }
}

/// Bytes from behind `{%` to behind `%}` of a tag that is `name` alone: at most one mark of white space at each end, and only what is
/// white space in ASCII. Anything else, `endrawx` or `endraw x`, the engine does not take for it.
fn bare_tag(text: &str, name: &str) -> Option<usize> {
    let rest = text.strip_prefix(['-', '+']).unwrap_or(text).trim_ascii_start();
    let rest = rest.strip_prefix(name)?.trim_ascii_start();
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest).strip_prefix("%}")?;
    Some(text.len() - rest.len())
}

fn split_word(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    (&text[..end], &text[end..])
}

/// What stands before the `=` of an assignment.
fn split_assignment(text: &str) -> Option<&str> {
    let before = text.find(['=', '|', '\'', '"']).filter(|&at| text[at..].starts_with('='))?;
    Some(&text[..before])
}

fn cannot_set(targets: &str) -> String {
    format!("\"{}\" cannot be set", targets.trim().chars().take(60).collect::<String>())
}

/// `a`, `a, b`, `(a, b)` and `ns.a`.
fn names(targets: &str) -> Option<Vec<String>> {
    targets.trim().trim_start_matches('(').trim_end_matches(')').split(',').map(name_of).collect()
}

fn name_of(target: &str) -> Option<String> {
    let parts: Option<Vec<&str>> = target
        .split('.')
        .map(|part| {
            let part = part.trim();
            let is_name = !part.is_empty() && part.bytes().all(is_word) && !part.as_bytes()[0].is_ascii_digit();
            is_name.then_some(part)
        })
        .collect();
    parts.map(|parts| parts.join("."))
}

/// The parameters of a macro.
fn parameters(rest: &str) -> Option<Vec<String>> {
    let list = rest.split_once('(')?.1.trim().strip_suffix(')')?;
    let mut depth = 0usize;
    let mut at = 0;
    let mut start = 0;
    let mut found = Vec::new();
    let bytes = list.as_bytes();
    while at < bytes.len() {
        match bytes[at] {
            b'\'' | b'"' => at = end_of_string(bytes, at)?,
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.checked_sub(1)?,
            b',' if depth == 0 => {
                found.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    found.push(&list[start..]);
    let found = found.into_iter().filter(|parameter| !parameter.trim().is_empty());
    found.map(|parameter| name_of(parameter.split('=').next().unwrap_or(parameter))).collect()
}
