//! Golden cases: what a reference implementation computed, and how to read it. `tests/golden/README.md` describes the files.

use crate::model;
use anyhow::{Context, Result, ensure};
use plimsoll_models::Model;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, de::DeserializeOwned};
use std::{fs, path::PathBuf, sync::Arc};

/// Where all cases are.
#[must_use]
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden")
}

/// Names of the cases that start with `prefix`, sorted.
///
/// # Errors
/// If the folder of cases cannot be listed.
pub fn case_names(prefix: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder()).with_context(|| folder().display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(prefix) && entry.path().is_dir() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// `case.json` of a case, as far as `T` names its fields.
///
/// # Errors
/// If the file is missing or does not hold them.
pub fn info<T: DeserializeOwned>(case: &str) -> Result<T> {
    let path = folder().join(case).join("case.json");
    let text = fs::read(&path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

/// The tensors of one `.safetensors` file.
#[derive(Debug)]
pub struct Tensors {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Tensors {
    /// Reads `file` of a case.
    ///
    /// # Errors
    /// If it is missing.
    pub fn open(case: &str, file: &str) -> Result<Self> {
        let path = folder().join(case).join(file);
        let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
        Ok(Self { path, bytes })
    }

    fn read<T>(&self, name: &str, convert: impl FnOnce(Dtype, &[usize], &[u8]) -> Result<T>) -> Result<T> {
        let what = || format!("tensor \"{name}\" of {}", self.path.display());
        let tensors = SafeTensors::deserialize(&self.bytes).with_context(what)?;
        let tensor = tensors.tensor(name).with_context(what)?;
        convert(tensor.dtype(), tensor.shape(), tensor.data()).with_context(what)
    }

    /// Shape of a tensor.
    ///
    /// # Errors
    /// If there is none of this name.
    pub fn shape(&self, name: &str) -> Result<Vec<usize>> {
        self.read(name, |_, shape, _| Ok(shape.to_vec()))
    }

    /// A tensor of f32.
    ///
    /// # Errors
    /// If there is none of this name, or it is of another type.
    pub fn f32s(&self, name: &str) -> Result<Vec<f32>> {
        self.read(name, |dtype, _, data| {
            ensure!(dtype == Dtype::F32, "{dtype:?} instead of F32");
            Ok(data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
        })
    }

    /// A tensor of token ids or indices, stored as i64, u32 or u16.
    ///
    /// # Errors
    /// If there is none of this name, it is of another type, or holds a number that is none.
    pub fn ids(&self, name: &str) -> Result<Vec<u32>> {
        self.read(name, |dtype, _, data| match dtype {
            Dtype::I64 => {
                data.as_chunks().0.iter().map(|&bytes| Ok(u32::try_from(i64::from_le_bytes(bytes))?)).collect()
            }
            Dtype::U32 => Ok(data.as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect()),
            Dtype::U16 => Ok(data.as_chunks().0.iter().map(|&bytes| u16::from_le_bytes(bytes).into()).collect()),
            other => anyhow::bail!("{other:?} instead of I64, U32 or U16"),
        })
    }
}

/// What a tiny case is held to.
#[derive(Debug, Clone, Deserialize)]
#[expect(missing_docs, reason = "named as in case.json, described in its README")]
pub struct Checks {
    pub products: String,
    pub logits_range: f32,
    pub max_diff_of_range: f32,
    pub max_diff_of_range_f32: Option<f32>,
    pub greedy_steps: usize,
}

/// Architectures whose tiny cases the library is held to. A case of another one is for a model that the library cannot load yet.
pub const SUPPORTED: &[&str] =
    &["gemma3", "llama", "olmo2", "phi3", "qwen2", "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_moe", "qwen3_next"];

/// A form in which a case holds its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `model.gguf`.
    Gguf,
    /// `config.json` beside safetensors: the case's folder itself.
    Folder,
}

/// A tiny random model and its reference results.
#[derive(Debug, Clone)]
pub struct Tiny {
    /// Name of the case.
    pub name: String,
    /// Architecture, as Hugging Face names the text model's type, without `_text`.
    pub architecture: String,
    /// Whether the folder's config is of transformers 5 or older: `new` or `old`. `None` where the case does not say.
    pub dialect: Option<String>,
    /// Files of the case, without `case.json`.
    pub files: Vec<String>,
    /// Its bounds.
    pub checks: Checks,
    /// The prompt.
    pub ids: Vec<u32>,
    /// Prompt rows whose logits are kept, ascending.
    pub rows: Vec<usize>,
    /// `[rows, vocab]`.
    pub logits: Vec<f32>,
    /// Greedy tokens after the prompt.
    pub greedy: Vec<u32>,
    /// Inverse frequencies of RoPE, scaling included; of the layers without a window, where those with one have others.
    pub inv_freq: Vec<f32>,
}

impl Tiny {
    /// Reads one case.
    ///
    /// # Errors
    /// If a file is missing, or the file of logits does not fit `case.json`.
    pub fn load(name: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Info {
            architecture: String,
            dialect: Option<String>,
            checks: Checks,
            prompt_rows: usize,
            files: Vec<String>,
        }
        let info: Info = info(name)?;
        for file in &info.files {
            ensure!(folder().join(name).join(file).is_file(), "{name}: {file} is missing");
        }
        let tensors = Tensors::open(name, "logits.safetensors")?;
        let case = Self {
            name: name.to_owned(),
            architecture: info.architecture,
            dialect: info.dialect,
            files: info.files,
            checks: info.checks,
            ids: tensors.ids("ids")?,
            rows: tensors.ids("rows")?.into_iter().map(|row| row as usize).collect(),
            logits: tensors.f32s("logits")?,
            greedy: tensors.ids("greedy")?,
            inv_freq: tensors.f32s("inv_freq")?,
        };
        ensure!(case.ids.len() == info.prompt_rows, "{name}: {} ids, {} rows", case.ids.len(), info.prompt_rows);
        ensure!(!case.rows.is_empty() && case.rows.is_sorted(), "{name}: rows {:?}", case.rows);
        ensure!(case.greedy.len() >= case.checks.greedy_steps && case.checks.greedy_steps > 0, "{name}: greedy steps");
        ensure!(!case.forms().is_empty(), "{name}: neither model.gguf nor config.json");
        Ok(case)
    }

    /// All cases, of supported architectures or not.
    ///
    /// # Errors
    /// As [`Tiny::load`].
    pub fn every() -> Result<Vec<Self>> {
        case_names("tiny-")?.iter().map(|name| Self::load(name)).collect()
    }

    /// The cases of supported architectures that have a GGUF file.
    ///
    /// # Errors
    /// As [`Tiny::load`]; and if there are fewer than the 14 that the folder came with.
    pub fn all() -> Result<Vec<Self>> {
        let mut cases = Self::every()?;
        cases.retain(|case| case.is_supported() && case.forms().contains(&Form::Gguf));
        ensure!(cases.len() >= 14, "only {} tiny cases", cases.len());
        Ok(cases)
    }

    /// Whether the library is held to this case.
    #[must_use]
    pub fn is_supported(&self) -> bool {
        SUPPORTED.contains(&&*self.architecture)
    }

    /// The forms in which the case holds its model.
    #[must_use]
    pub fn forms(&self) -> Vec<Form> {
        let has = |name: &str| self.files.iter().any(|file| file == name);
        let forms = [(Form::Gguf, has("model.gguf")), (Form::Folder, has("config.json"))];
        forms.into_iter().filter(|(_, there)| *there).map(|(form, _)| form).collect()
    }

    /// What to open for a form: the GGUF file, or the folder.
    #[must_use]
    pub fn path(&self, form: Form) -> PathBuf {
        let folder = folder().join(&self.name);
        match form {
            Form::Gguf => folder.join("model.gguf"),
            Form::Folder => folder,
        }
    }

    /// Loads the case's GGUF file.
    ///
    /// # Errors
    /// If it is missing or faulty.
    pub fn model(&self) -> Result<Arc<Model>> {
        model::load(&self.path(Form::Gguf))
    }
}
