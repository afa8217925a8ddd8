//! What `hf:` names say.

use crate::error::AppError;
use std::fmt;

/// `org/repo[@revision][:file.gguf|:quant]`, what stands after `hf:`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HubName {
    /// `org/repo`.
    pub(crate) repo: String,
    /// Branch, tag or commit; `main` if none is given.
    pub(crate) revision: String,
    /// Which of the repository's files.
    pub(crate) pick: Pick,
}

/// Which of a repository's files are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pick {
    /// The folder of `config.json`, or the only GGUF file.
    Any,
    /// The GGUF file of this path.
    File(String),
    /// The GGUF file whose name has this quantization, such as `Q4_K_M`.
    Quant(String),
}

impl HubName {
    /// Reads what stands after `hf:`.
    ///
    /// # Errors
    /// [`AppError::Usage`] where it is no such name.
    pub(crate) fn parse(text: &str) -> Result<Self, AppError> {
        let fault = |what: &str| AppError::Usage(format!("\"hf:{text}\": {what}; the form is {FORM}"));
        let (head, pick) = match text.split_once(':') {
            Some((head, pick)) => (head, Some(pick)),
            None => (text, None),
        };
        let (repo, revision) = match head.split_once('@') {
            Some((repo, revision)) => (repo, revision),
            None => (head, "main"),
        };
        match repo.split('/').collect::<Vec<_>>()[..] {
            [org, name] if is_word(org) && is_word(name) => {}
            _ => return Err(fault("no repository")),
        }
        if !revision.split('/').all(is_word) {
            return Err(fault("no revision after @"));
        }
        let pick = match pick {
            None => Pick::Any,
            Some("") => return Err(fault("nothing after the colon")),
            Some(file) if file.to_ascii_lowercase().ends_with(".gguf") => match is_inside(file) {
                true => Pick::File(file.to_owned()),
                false => return Err(fault("the file is not inside the repository")),
            },
            Some(quant) if is_word(quant) => Pick::Quant(quant.to_owned()),
            Some(_) => return Err(fault("neither a .gguf file nor a quantization after the colon")),
        };
        Ok(Self { repo: repo.to_owned(), revision: revision.to_owned(), pick })
    }
}

const FORM: &str = "hf:org/repo[@revision][:file.gguf|:quantization]";

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}", self.repo)?;
        if self.revision != "main" {
            write!(f, "@{}", self.revision)?;
        }
        match &self.pick {
            Pick::Any => Ok(()),
            Pick::File(pick) | Pick::Quant(pick) => write!(f, ":{pick}"),
        }
    }
}

/// Letters, digits, `-`, `_` and `.`, but no name that walks through folders.
pub(super) fn is_word(text: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !text.is_empty() && text.len() <= 200 && text.chars().all(legal) && !text.chars().all(|c| c == '.')
}

/// Whether a path from outside stays inside the folder it is joined to, on every system.
pub(super) fn is_inside(path: &str) -> bool {
    let plain = |part: &str| {
        !part.is_empty()
            && part != "."
            && part != ".."
            && !part.contains(['\\', ':'])
            && !part.contains(char::is_control)
    };
    path.len() <= 1000 && path.split('/').all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_shown_the_same_way() {
        for (text, repo, revision, pick) in [
            ("org/repo", "org/repo", "main", Pick::Any),
            ("org/repo:Q4_K_M", "org/repo", "main", Pick::Quant("Q4_K_M".to_owned())),
            ("o-r_g/re.po:sub/a b.gguf", "o-r_g/re.po", "main", Pick::File("sub/a b.gguf".to_owned())),
            ("org/repo@v1.0", "org/repo", "v1.0", Pick::Any),
            ("org/repo@refs/pr/3:x.GGUF", "org/repo", "refs/pr/3", Pick::File("x.GGUF".to_owned())),
        ] {
            let name = HubName::parse(text).unwrap();
            assert_eq!(name, HubName { repo: repo.to_owned(), revision: revision.to_owned(), pick });
            assert_eq!(name.to_string(), format!("hf:{text}"));
        }
    }

    #[test]
    fn what_is_no_name_is_refused_with_the_form() {
        for text in [
            "",
            "repo",
            "/repo",
            "org/",
            "a/b/c",
            "../x",
            "org/..",
            "org/re po",
            "org/repo@",
            "org/repo@../x",
            "org/repo@a//b",
            "org/repo:",
            "org/repo:../x.gguf",
            "org/repo:/x.gguf",
            "org/repo:a\\b.gguf",
            "org/repo:a/b",
            "org/repo:x\n",
        ] {
            let error = HubName::parse(text).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{text}");
            assert!(error.to_string().contains(FORM), "{error}");
        }
    }
}
