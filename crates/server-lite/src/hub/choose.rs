//! Which files of a repository a name means: decided from their paths alone.

use super::name::Pick;
use std::collections::BTreeMap;

/// Files to have, and what to open of them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) files: Vec<String>,
    /// The file to open; `None` is the folder of them all.
    pub(super) open: Option<String>,
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
    #[error("there is neither a GGUF file nor config.json with .safetensors files")]
    NoModel,
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

const INDEX: &str = "model.safetensors.index.json";

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
        Pick::Any => match folder(files)? {
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
fn folder(files: &[String]) -> Result<Option<Choice>, ChooseFault> {
    let has = |name: &str| files.iter().any(|file| file == name);
    if !has("config.json") {
        return Ok(None);
    }
    let weights = |file: &&String| file.ends_with(".safetensors") && !file.contains('/');
    let is_part = |file: &&String| split(file, ".safetensors").is_some_and(|(stem, ..)| stem == "model");
    let mut chosen: Vec<String> = if has(INDEX) {
        let parts: Vec<String> = files.iter().filter(is_part).cloned().collect();
        complete(&parts, ".safetensors")?;
        [vec![INDEX.to_owned()], parts].concat()
    } else if has("model.safetensors") {
        vec!["model.safetensors".to_owned()]
    } else {
        files.iter().filter(weights).cloned().collect()
    };
    if !chosen.iter().any(|file| file.ends_with(".safetensors")) {
        return Ok(None);
    }
    chosen.splice(0..0, BESIDE.iter().filter(|name| has(name)).map(|name| (*name).to_owned()));
    Ok(Some(Choice { files: chosen, open: None }))
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
        Ok(Choice { open: files.first().cloned(), files })
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
        let all = "config.json model.safetensors.index.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors";
        assert_eq!(opened(list, &Pick::Any), (None, all.to_owned()));
        let missing = "config.json model.safetensors.index.json model-00002-of-00002.safetensors";
        assert!(matches!(choose(&files(missing), &Pick::Any), Err(ChooseFault::MissingPart { part: 1, .. })));
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
