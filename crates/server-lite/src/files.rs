//! Files that are written: checked before anything runs, and there under their names only when they are whole.

use crate::error::AppError;
use std::{
    fs,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};
use tempfile::{Builder, NamedTempFile};

/// A temporary file in `folder`, with the permissions that any new file of this user gets, so that it can be renamed to its final place.
pub(crate) fn temporary(folder: &Path, prefix: &str) -> io::Result<NamedTempFile> {
    let mut builder = Builder::new();
    builder.prefix(prefix);
    #[cfg(unix)]
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    // The process's umask takes away what it takes from every new file.
    #[cfg(unix)]
    builder.permissions(all);
    builder.tempfile_in(folder)
}

/// The files that a command is asked to write, by their flags. What is wrong with one is told before anything runs.
#[derive(Debug)]
pub(crate) struct Outputs<'a>(Vec<(&'static str, &'a Path)>);

impl<'a> Outputs<'a> {
    /// Those that are asked for.
    pub(crate) fn new(all: impl IntoIterator<Item = (&'static str, Option<&'a Path>)>) -> Self {
        Self(all.into_iter().filter_map(|(flag, path)| Some((flag, path?))).collect())
    }

    /// Refuses outputs whose folder is not there or cannot be written to, and those that would write over a device, a link, one of the
    /// `inputs` or each other.
    pub(crate) fn check(&self, inputs: &[&Path]) -> Result<(), AppError> {
        let mut taken: Vec<PathBuf> = inputs.iter().filter_map(|path| path.canonicalize().ok()).collect();
        for &(flag, path) in &self.0 {
            check_output(flag, path)?;
            let real = real_path(path);
            if taken.contains(&real) {
                return Err(refused(flag, path, "another argument names the same file"));
            }
            taken.push(real);
        }
        Ok(())
    }

    /// Refuses outputs that would write over a file of the model, which is a GGUF file, one part of several, a config.json, or a folder.
    pub(crate) fn spare_model(&self, model: &Path) -> Result<(), AppError> {
        let (Ok(model), whole_folder) = (model.canonicalize(), model.is_dir()) else { return Ok(()) };
        let folder = if whole_folder { model.as_path() } else { folder_of(&model) };
        for &(flag, path) in &self.0 {
            let real = real_path(path);
            // Other parts of a split model are GGUF files beside the one that was named, other settings JSON files.
            let of_model = real == model || whole_folder || real.extension() == model.extension();
            if real.exists() && real.parent() == Some(folder) && of_model {
                return Err(refused(flag, path, "it is a file of the model"));
            }
        }
        Ok(())
    }
}

fn refused(flag: &str, path: &Path, why: &str) -> AppError {
    AppError::Usage(format!("{flag} {}: {why}", path.display()))
}

/// Refuses an output that names no file, would write over a device or a link, or whose folder is not there or cannot be written to.
fn check_output(flag: &str, path: &Path) -> Result<(), AppError> {
    let refused = |why: &str| Err(refused(flag, path, why));
    if path.file_name().is_none() {
        return refused("it names no file");
    }
    if fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return refused("it exists and is no regular file");
    }
    let folder = folder_of(path);
    if !folder.is_dir() {
        return refused(&format!("there is no folder {}", folder.display()));
    }
    // The file itself is written the same way: what fails later fails now.
    temporary(folder, ".writing-").map_err(write_fault(path))?;
    Ok(())
}

/// The path with its folder resolved, whether the file exists or not.
fn real_path(path: &Path) -> PathBuf {
    match (folder_of(path).canonicalize(), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}

/// The folder that holds `path`.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file that is written bit by bit, and appears under its name once it is whole and on the device.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    file: BufWriter<NamedTempFile>,
}

impl Output {
    pub(crate) fn create(path: &Path) -> Result<Self, AppError> {
        let file = temporary(folder_of(path), ".writing-").map_err(write_fault(path))?;
        Ok(Self { path: path.to_owned(), file: BufWriter::new(file) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where it is written to.
    pub(crate) fn out(&mut self) -> &mut impl Write {
        &mut self.file
    }

    /// Puts the file in place, unless something of it could not be written.
    pub(crate) fn finish(self, written: io::Result<()>) -> Result<(), AppError> {
        let Self { path, file } = self;
        let done = written.and_then(|()| file.into_inner().map_err(|error| error.into_error()));
        done.and_then(|file| put_in_place(file, &path)).map_err(write_fault(&path))
    }
}

/// What an error on the way to an output's file becomes.
pub(crate) fn write_fault(path: &Path) -> impl FnOnce(io::Error) -> AppError {
    move |source| AppError::File { doing: "write", path: path.to_owned(), source }
}

/// Writes the text of a file that was asked for, as [`write_whole`] does.
pub(crate) fn write_output(path: &Path, text: &str) -> Result<(), AppError> {
    write_whole(path, text.as_bytes()).map_err(write_fault(path))
}

/// Writes a file that appears under its name when it is whole and on the device: a write that the system only promised is told of here.
pub(crate) fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = temporary(folder_of(path), ".writing-")?;
    file.write_all(content)?;
    put_in_place(file, path)
}

/// Renames a written file to its name once the device has it.
fn put_in_place(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_output_writes_over_a_file_of_the_model() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in
            ["model-00001-of-00002.gguf", "model-00002-of-00002.gguf", "notes.csv", "config.json", "tokenizer.json"]
        {
            fs::write(path(name), "x").unwrap();
        }
        let spared = |model: &str, out: &str| {
            let out = path(out);
            Outputs::new([("--csv", Some(out.as_path()))]).spare_model(&path(model)).map_err(|error| error.to_string())
        };
        let refused = |model: &str, out: &str| spared(model, out).unwrap_err().ends_with("it is a file of the model");
        // The other part of a split model, and the other settings of a folder.
        assert!(refused("model-00001-of-00002.gguf", "model-00002-of-00002.gguf"));
        assert!(refused("config.json", "tokenizer.json"));
        // Every file of a folder.
        assert!(refused("", "notes.csv"));
        assert_eq!(spared("model-00001-of-00002.gguf", "notes.csv"), Ok(()));
        assert_eq!(spared("", "new.csv"), Ok(()));
        assert_eq!(spared("no-model", "notes.csv"), Ok(()));
    }

    #[test]
    fn outputs_spare_inputs_and_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let (input, out) = (folder.path().join("in.txt"), folder.path().join("out.csv"));
        fs::write(&input, "x").unwrap();
        let check = |outs: [&Path; 2]| {
            let outputs = Outputs::new([("--csv", Some(outs[0])), ("--svg", Some(outs[1])), ("--trace-hashes", None)]);
            outputs.check(&[&input]).map_err(|error| error.to_string())
        };
        assert_eq!(check([&out, &folder.path().join("out.svg")]), Ok(()));
        // The same file by another way to it.
        let again = folder.path().join(".").join("out.csv");
        assert!(check([&out, &again]).unwrap_err().contains("--svg"));
        assert!(check([&input, &out]).unwrap_err().contains("another argument names the same file"));
    }
}
