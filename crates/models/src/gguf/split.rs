//! Models split over several files, `name-00001-of-00003.gguf` and so on: finding the parts and putting them together.
//!
//! As `llama-gguf-split` and the `gguf` package write them: every part is a GGUF file that says `split.no` (from 0),
//! `split.count` and `split.tensors.count` (of all parts together). The first part has the metadata, each part some tensors.

use std::io::ErrorKind;
use std::path::Path;

use super::error::shown;
use super::map::Source;
use super::parse::{Index, Tensor, sorted_by_name};
use super::{GgufError, Value};

pub(super) const NO_KEY: &str = "split.no";
pub(super) const COUNT_KEY: &str = "split.count";
pub(super) const TENSORS_KEY: &str = "split.tensors.count";

/// The name of part `part` (from 1) of `parts`.
pub(super) fn part_name(name: &str, part: u64, parts: u64) -> String {
    format!("{name}-{part:05}-of-{parts:05}.gguf")
}

/// Parts of the model that a file belongs to; 1 for a file that is whole.
pub(super) fn part_count(file: &[u8], index: &Index) -> Result<u64, GgufError> {
    Ok(number(file, index, COUNT_KEY)?.unwrap_or(1).max(1))
}

/// A whole number of at most 16 bits (the width that writers use for parts) or, for tensors, 32 bits.
fn number(file: &[u8], index: &Index, key: &str) -> Result<Option<u64>, GgufError> {
    let Some(value) = index.value(file, key) else { return Ok(None) };
    let (expected, max) = if key == TENSORS_KEY { ("u32", u32::MAX.into()) } else { ("u16", u16::MAX.into()) };
    let Some(found) = value.as_integer() else {
        return Err(GgufError::WrongMetadataType { key: key.to_owned(), expected, found: value.described() });
    };
    match u64::try_from(found) {
        Ok(number) if number <= max => Ok(Some(number)),
        _ => Err(GgufError::OutOfRange { key: key.to_owned(), expected, found: found.to_string() }),
    }
}

fn needed(file: &[u8], index: &Index, key: &str) -> Result<u64, GgufError> {
    number(file, index, key)?.ok_or_else(|| GgufError::MissingKey { key: key.to_owned() })
}

/// Opens the other parts of the model that `source`, the file at `path`, is one of `parts` of.
///
/// Gives the files in order and one index: the metadata of the first part, the tensors of all.
pub(super) fn open_parts(
    path: &Path,
    source: Source,
    index: Index,
    parts: u64,
) -> Result<(Vec<Source>, Index), GgufError> {
    let opened = needed(source.bytes(), &index, NO_KEY)?.saturating_add(1);
    let tensor_count = needed(source.bytes(), &index, TENSORS_KEY)?;
    let misnamed = || GgufError::SplitName { path: path.to_owned(), part: opened, parts };
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(misnamed)?;
    let (stem, named) = parse_name(name).ok_or_else(misnamed)?;
    if named != (opened, parts) || opened > parts {
        return Err(misnamed());
    }
    let mut given = Some((source, index));
    let mut set: Option<Set> = None;
    for part in 1..=parts {
        let part_path = path.with_file_name(part_name(stem, part, parts));
        let (source, index) = match given.take_if(|_| part == opened) {
            Some(given) => given,
            None => open_part(&part_path, part, parts)?,
        };
        match &mut set {
            None => set = Some(Set { sources: vec![source], index }),
            Some(set) => set.add(&part_path, part, source, index, tensor_count)?,
        }
    }
    let Set { sources, mut index } = set.expect("a model has at least one part");
    let of = |tensor: &Tensor| sources[usize::from(tensor.part)].bytes();
    index.tensors_by_name = match sorted_by_name(&index.tensors, |tensor| tensor.name(of(tensor))) {
        Ok(places) => places,
        Err(name) => {
            let mut of_name = index.tensors.iter().filter(|tensor| tensor.name(of(tensor)) == name);
            let mut part = || of_name.next().map_or(0, |tensor| u64::from(tensor.part) + 1);
            return Err(GgufError::TensorInTwoParts { name: shown(name), first: part(), second: part() });
        }
    };
    let found = index.tensors.len() as u64;
    if found != tensor_count {
        return Err(GgufError::SplitTensorCount { parts, found, expected: tensor_count });
    }
    Ok((sources, index))
}

/// The parts so far.
struct Set {
    sources: Vec<Source>,
    index: Index,
}

impl Set {
    /// Adds the tensors of a part, once nothing in its metadata contradicts the first part's.
    fn add(
        &mut self,
        path: &Path,
        part: u64,
        source: Source,
        index: Index,
        tensor_count: u64,
    ) -> Result<(), GgufError> {
        let (file, first) = (source.bytes(), self.sources[0].bytes());
        let foreign = |key: &str| GgufError::ForeignPart { path: path.to_owned(), part, key: shown(key) };
        if in_part(path, needed(file, &index, TENSORS_KEY))? != tensor_count {
            return Err(foreign(TENSORS_KEY));
        }
        for entry in &index.entries {
            let key = entry.key(file);
            let of_first = self.index.value(first, key).filter(|_| key != NO_KEY);
            if of_first.is_some_and(|value| !same(&value, &entry.value(file))) {
                return Err(foreign(key));
            }
        }
        let place = u16::try_from(self.sources.len()).expect("the count of parts has 16 bits");
        self.sources.push(source);
        self.index.tensors.extend(index.tensors.into_iter().map(|tensor| tensor.in_part(place)));
        Ok(())
    }
}

/// Opens a part by the name that it must have, and checks that it is what the name says.
fn open_part(path: &Path, part: u64, parts: u64) -> Result<(Source, Index), GgufError> {
    let source = Source::open(path).map_err(|error| match error {
        GgufError::Open { source, path } if source.kind() == ErrorKind::NotFound => {
            GgufError::MissingPart { part, parts, path }
        }
        other => other,
    })?;
    let index = in_part(path, Index::parse(source.bytes()))?;
    let found_parts = in_part(path, part_count(source.bytes(), &index))?;
    let found = in_part(path, number(source.bytes(), &index, NO_KEY))?.unwrap_or(0) + 1;
    if (found, found_parts) != (part, parts) {
        return Err(GgufError::WrongPart { path: path.to_owned(), part, parts, found, found_parts });
    }
    Ok((source, index))
}

/// Says which file an error is about: the caller only knows the one that it named.
fn in_part<T>(path: &Path, result: Result<T, GgufError>) -> Result<T, GgufError> {
    result.map_err(|source| GgufError::InPart { path: path.to_owned(), source: Box::new(source) })
}

/// Splits `name-00002-of-00003.gguf` into the name and the two numbers.
fn parse_name(name: &str) -> Option<(&str, (u64, u64))> {
    let (rest, parts) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, part) = rest.rsplit_once('-')?;
    let number = |digits: &str| digits.parse::<u64>().ok().filter(|number| format!("{number:05}") == digits);
    Some((stem, (number(part)?, number(parts)?)))
}

/// Equal values; a NaN equals itself.
fn same(a: &Value<'_>, b: &Value<'_>) -> bool {
    match (a, b) {
        (Value::F32(a), Value::F32(b)) => a.to_bits() == b.to_bits(),
        (Value::F64(a), Value::F64(b)) => a.to_bits() == b.to_bits(),
        // A part may store a number in another width.
        _ => a == b || a.as_integer().is_some_and(|a| b.as_integer() == Some(a)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts_are_read_back() {
        for (name, part, parts) in [("model", 1, 3), ("a-00001-of-00002", 65_535, 65_535), ("", 12, 40), ("é", 7, 7)] {
            let file = part_name(name, part, parts);
            assert_eq!(parse_name(&file), Some((name, (part, parts))), "{file}");
        }
    }

    #[test]
    fn other_names_are_none() {
        for name in [
            "model.gguf",
            "model-1-of-3.gguf",
            "model-00001-of-00003.bin",
            "model-000001-of-00003.gguf",
            "model-+0001-of-00003.gguf",
            "00001-of-00003.gguf",
            "model-00001-of-.gguf",
        ] {
            assert_eq!(parse_name(name), None, "{name}");
        }
    }
}
