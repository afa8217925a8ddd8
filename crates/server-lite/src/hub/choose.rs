//! Which files of a repository a name means: decided from their paths, and for weights in several safetensors files from their index.

use super::name::{Pick, is_inside};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Files to have, and what to open of them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) files: Vec<String>,
    /// The file to open; `None` is the folder of them all.
    pub(super) open: Option<String>,
    /// Whether [`INDEX`] is among the files and names more of them: [`shards`].
    pub(super) is_indexed: bool,
}

/// Why no file could be chosen.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChooseFault {
    #[error("there is no file {file}; GGUF files: {}", shown(known))]
    NoFile { file: String, known: Vec<String> },
    #[error("no GGUF file is named after {quant}; GGUF files: {}", shown(known))]
    NoQuant { quant: String, known: Vec<String> },
    #[error("several GGUF files could be meant, name one after a colon: {}", shown(found))]
    Several { found: Vec<String> },
    #[error("there is neither a GGUF file nor config.json with model.safetensors or {INDEX}")]
    NoModel,
    #[error("{INDEX} cannot be used: {message}")]
    Index { message: String },
    #[error("{INDEX} names {file:?}, which is no .safetensors file beside it")]
    ShardName { file: String },
    #[error("{INDEX} names {file}, which is missing")]
    MissingShard { file: String },
    #[error("part {part} of {count} of {file} is missing")]
    MissingPart { file: String, part: usize, count: usize },
}

/// Most names in a message.
const MAX_SHOWN: usize = 12;

fn shown(names: &[String]) -> String {
    match names.len() {
        0 => "none".to_owned(),
        count if count > MAX_SHOWN => format!("{} and {} more", names[..MAX_SHOWN].join(", "), count - MAX_SHOWN),
        _ => names.join(", "),
    }
}

/// Files beside the weights that a folder's model may need, where the repository has them.
const BESIDE: [&str; 11] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
];

/// Which file of a folder has which tensor.
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// Most characters of a name from an index in a message.
const MAX_NAME_CHARS: usize = 80;

/// The files that `pick` means among `files`, all paths of the repository.
pub(super) fn choose(files: &[String], pick: &Pick) -> Result<Choice, ChooseFault> {
    let sets = gguf_sets(files);
    let first_of = |set: &Set<'_>| set.shown();
    match pick {
        Pick::File(file) => match sets.iter().find(|set| set.files().any(|found| found == file)) {
            Some(set) => set.choice(),
            None => Err(ChooseFault::NoFile { file: file.clone(), known: sets.iter().map(first_of).collect() }),
        },
        Pick::Quant(quant) => {
            let named: Vec<&Set<'_>> = sets.iter().filter(|set| has_quant(set.stem, quant)).collect();
            match named[..] {
                [] => Err(ChooseFault::NoQuant { quant: quant.clone(), known: sets.iter().map(first_of).collect() }),
                [set] => set.choice(),
                _ => Err(ChooseFault::Several { found: named.into_iter().map(first_of).collect() }),
            }
        }
        Pick::Any => match folder(files) {
            Some(choice) => Ok(choice),
            None => match &sets[..] {
                [] => Err(ChooseFault::NoModel),
                [set] => set.choice(),
                _ => Err(ChooseFault::Several { found: sets.iter().map(first_of).collect() }),
            },
        },
    }
}

/// `config.json`, the weights and what stands beside them at the top of the repository; `None` if it is no such folder.
///
/// The names are those by which the library opens a folder, in its order: weights by any other name would be fetched in vain.
fn folder(files: &[String]) -> Option<Choice> {
    let has = |name: &str| files.iter().any(|file| file == name);
    let weights = ["model.safetensors", INDEX].into_iter().find(|name| has(name)).filter(|_| has("config.json"))?;
    let beside = BESIDE.into_iter().filter(|name| has(name));
    let chosen = beside.chain([weights]).map(str::to_owned).collect();
    Some(Choice { files: chosen, open: None, is_indexed: weights == INDEX })
}

/// The weight files that an index names, each of which is among `files`. A name that is no file beside the index is refused.
pub(super) fn shards(index: &[u8], files: &[String]) -> Result<Vec<String>, ChooseFault> {
    #[derive(Deserialize)]
    struct Index {
        /// File by tensor.
        weight_map: BTreeMap<String, String>,
    }

    let fault = |message: String| ChooseFault::Index { message };
    let index: Index = serde_json::from_slice(index).map_err(|error| fault(error.to_string()))?;
    if index.weight_map.is_empty() {
        return Err(fault("its weight_map is empty".to_owned()));
    }
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    let short = |file: &str| file.chars().take(MAX_NAME_CHARS).collect();
    // All names before any is fetched.
    if let Some(file) = names.iter().find(|name| !is_shard_name(name)) {
        return Err(ChooseFault::ShardName { file: short(file) });
    }
    if let Some(file) = names.iter().find(|name| !files.contains(name)) {
        return Err(ChooseFault::MissingShard { file: short(file) });
    }
    Ok(names.into_iter().collect())
}

/// Whether the library takes `name` out of an index.
fn is_shard_name(name: &str) -> bool {
    name.ends_with(".safetensors")
        && name.len() <= 255
        && !name.starts_with('.')
        && !name.contains('/')
        && is_inside(name)
}

/// A GGUF file, or the parts of one.
struct Set<'a> {
    /// Path without part number and extension.
    stem: &'a str,
    /// Parts by number, from 1 on; a whole file is part 0.
    parts: BTreeMap<usize, &'a str>,
}

impl<'a> Set<'a> {
    fn files(&self) -> impl Iterator<Item = &'a str> {
        self.parts.values().copied()
    }

    fn shown(&self) -> String {
        self.files().next().unwrap_or(self.stem).to_owned()
    }

    fn choice(&self) -> Result<Choice, ChooseFault> {
        let files: Vec<String> = self.files().map(str::to_owned).collect();
        complete(&files, ".gguf")?;
        Ok(Choice { open: files.first().cloned(), files, is_indexed: false })
    }
}

/// The GGUF models among `files`, by path; files that only accompany models are left out.
fn gguf_sets(files: &[String]) -> Vec<Set<'_>> {
    let mut sets: BTreeMap<(&str, usize), Set<'_>> = BTreeMap::new();
    for file in files {
        let Some(whole) = strip_suffix_ignoring_case(file, ".gguf") else { continue };
        let name = whole.rsplit('/').next().unwrap_or(whole).to_ascii_lowercase();
        if name.starts_with("mmproj") || name.contains("imatrix") {
            continue;
        }
        let (stem, part, count) = split(file, ".gguf").unwrap_or((whole, 0, 0));
        let set = sets.entry((stem, count)).or_insert_with(|| Set { stem, parts: BTreeMap::new() });
        set.parts.insert(part, file);
    }
    sets.into_values().collect()
}

fn strip_suffix_ignoring_case<'a>(text: &'a str, suffix: &str) -> Option<&'a str> {
    let (head, tail) = text.split_at_checked(text.len().checked_sub(suffix.len())?)?;
    tail.eq_ignore_ascii_case(suffix).then_some(head)
}

/// Stem, part and count of `stem-00001-of-00003.gguf`.
fn split<'a>(file: &'a str, extension: &str) -> Option<(&'a str, usize, usize)> {
    let name = strip_suffix_ignoring_case(file, extension)?;
    let (rest, count) = name.rsplit_once("-of-")?;
    let (stem, part) = rest.rsplit_once('-')?;
    let number = |text: &str| (text.len() == 5).then(|| text.parse().ok()).flatten();
    Some((stem, number(part)?, number(count)?))
}

/// Checks that numbered files are all there.
fn complete(files: &[String], extension: &str) -> Result<(), ChooseFault> {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for file in files {
        match split(file, extension) {
            Some((_, part, count)) => parts.push((part, count)),
            None => return Ok(()),
        }
    }
    let Some(&(_, count)) = parts.first() else { return Ok(()) };
    match (1..=count).find(|part| !parts.contains(&(*part, count))) {
        Some(part) => Err(ChooseFault::MissingPart { file: files[0].clone(), part, count }),
        None => Ok(()),
    }
}

/// Whether `quant` stands in `path` as a word of its own, whatever its case: `Q4_K` is not in `Q4_K_M`.
fn has_quant(path: &str, quant: &str) -> bool {
    let (path, quant) = (path.to_ascii_lowercase(), quant.to_ascii_lowercase());
    let joins = |c: char| c.is_ascii_alphanumeric() || c == '_';
    path.match_indices(&quant)
        .any(|(at, _)| !path[..at].ends_with(joins) && !path[at + quant.len()..].starts_with(joins))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(list: &str) -> Vec<String> {
        list.split_whitespace().map(str::to_owned).collect()
    }

    #[track_caller]
    fn opened(list: &str, pick: &Pick) -> (Option<String>, String) {
        let choice = choose(&files(list), pick).unwrap();
        (choice.open, choice.files.join(" "))
    }

    fn quant(text: &str) -> Pick {
        Pick::Quant(text.to_owned())
    }

    #[test]
    fn a_quantization_is_a_word_of_the_name_in_any_case() {
        let list = "README.md m-Q4_K.gguf m-Q4_K_M.gguf m.q8_0.GGUF UD/m-IQ4_K_M.gguf mmproj-Q8_0.gguf";
        for (pick, want) in [("Q4_K", "m-Q4_K.gguf"), ("q4_k_m", "m-Q4_K_M.gguf"), ("Q8_0", "m.q8_0.GGUF")] {
            assert_eq!(opened(list, &quant(pick)), (Some(want.to_owned()), want.to_owned()));
        }
        let error = choose(&files(list), &quant("F16")).unwrap_err().to_string();
        assert!(error.contains("F16") && error.contains("m-Q4_K.gguf, ") && !error.contains("mmproj"), "{error}");
        let error = choose(&files("a-Q4_0.gguf b-Q4_0.gguf"), &quant("q4_0")).unwrap_err();
        assert_eq!(error, ChooseFault::Several { found: files("a-Q4_0.gguf b-Q4_0.gguf") });
    }

    #[test]
    fn a_set_of_parts_is_taken_whole_whichever_part_is_named() {
        let list = "Q8_0/m-00002-of-00002.gguf Q8_0/m-00001-of-00002.gguf m-Q4_0.gguf";
        let want = (
            Some("Q8_0/m-00001-of-00002.gguf".to_owned()),
            "Q8_0/m-00001-of-00002.gguf Q8_0/m-00002-of-00002.gguf".to_owned(),
        );
        assert_eq!(opened(list, &quant("q8_0")), want);
        assert_eq!(opened(list, &Pick::File("Q8_0/m-00002-of-00002.gguf".to_owned())), want);
        let error = choose(&files("m-00001-of-00003.gguf m-00003-of-00003.gguf"), &Pick::Any).unwrap_err();
        assert_eq!(error, ChooseFault::MissingPart { file: "m-00001-of-00003.gguf".to_owned(), part: 2, count: 3 });
    }

    #[test]
    fn a_folder_is_taken_with_what_it_needs_and_no_more() {
        let list = "README.md config.json model.safetensors consolidated.safetensors tokenizer.json onnx/model.onnx chat_template.jinja";
        assert_eq!(
            opened(list, &Pick::Any),
            (None, "config.json tokenizer.json chat_template.jinja model.safetensors".to_owned())
        );
        let list = "config.json model.safetensors.index.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors x.gguf";
        assert_eq!(opened(list, &Pick::Any), (None, "config.json model.safetensors.index.json".to_owned()));
        assert!(choose(&files(list), &Pick::Any).unwrap().is_indexed);
        // The library opens the one file where there are both.
        let list = "config.json model.safetensors.index.json model.safetensors";
        assert_eq!(opened(list, &Pick::Any), (None, "config.json model.safetensors".to_owned()));
        assert!(!choose(&files(list), &Pick::Any).unwrap().is_indexed);
    }

    #[test]
    fn weights_that_the_library_would_not_open_are_no_model() {
        for list in [
            "config.json consolidated.safetensors",
            "config.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors",
            "config.json sub/model.safetensors",
            "model.safetensors",
            "model.safetensors.index.json model-00001-of-00001.safetensors",
        ] {
            let error = choose(&files(list), &Pick::Any).unwrap_err();
            assert_eq!(error, ChooseFault::NoModel, "{list}");
            assert!(error.to_string().contains("model.safetensors.index.json"), "{error}");
        }
        assert_eq!(opened("config.json other.safetensors m.gguf", &Pick::Any).0, Some("m.gguf".to_owned()));
    }

    #[test]
    fn an_index_names_its_files_and_none_elsewhere() {
        let list = files("b.safetensors model.safetensors-00001-of-00002.safetensors a.safetensors sub/c.safetensors");
        let of = |index: &str| shards(index.as_bytes(), &list);
        let index = r#"{"metadata": {"total_size": 3}, "weight_map":
            {"x": "model.safetensors-00001-of-00002.safetensors", "y": "b.safetensors", "z": "b.safetensors"}}"#;
        assert_eq!(of(index).unwrap(), files("b.safetensors model.safetensors-00001-of-00002.safetensors"));
        for name in [
            "../a.safetensors",
            "/a.safetensors",
            "sub/c.safetensors",
            "..",
            "",
            "a.bin",
            ".safetensors",
            "c:a.safetensors",
        ] {
            let index = serde_json::json!({ "weight_map": { "x": "a.safetensors", "y": name } }).to_string();
            assert_eq!(of(&index), Err(ChooseFault::ShardName { file: name.to_owned() }));
        }
        let missing = r#"{"weight_map": {"x": "a.safetensors", "y": "d.safetensors"}}"#;
        assert_eq!(of(missing), Err(ChooseFault::MissingShard { file: "d.safetensors".to_owned() }));
        for index in ["", "[]", "{}", r#"{"weight_map": {}}"#, r#"{"weight_map": {"x": 1}}"#] {
            assert!(matches!(of(index), Err(ChooseFault::Index { .. })), "{index}");
        }
    }

    #[test]
    fn a_repository_with_one_gguf_needs_no_pick_and_one_with_several_does() {
        assert_eq!(opened("config.json model.gguf", &Pick::Any).0, Some("model.gguf".to_owned()));
        let many: Vec<String> = (0..30).map(|i| format!("m{i:02}.gguf")).collect();
        let error = choose(&many, &Pick::Any).unwrap_err().to_string();
        assert!(error.contains("m00.gguf, m01.gguf") && error.ends_with("and 18 more"), "{error}");
        assert_eq!(choose(&files("README.md config.json"), &Pick::Any), Err(ChooseFault::NoModel));
        let error = choose(&files("a.gguf"), &Pick::File("A.gguf".to_owned())).unwrap_err().to_string();
        assert!(error.contains("no file A.gguf; GGUF files: a.gguf"), "{error}");
    }
}
