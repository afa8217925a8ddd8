//! Models by `hf:` name: repositories of a model hub, kept in the cache that the hub's other programs use too.
//!
//! The `hf-hub` crate knows the hub's default address, its URLs and the layout of the cache. Its newest version, 1.0, is asynchronous and begins every
//! download anew; 0.5 has a blocking client that resumes, but appends whatever answer it gets and checks no sum. So listing and layout are that crate's,
//! and the bytes come through `transfer`: resumed by range, checked by length and SHA-256, renamed into place when whole.

mod choose;
mod error;
mod name;
#[cfg(test)]
#[cfg(unix)]
mod tests;
mod transfer;

use choose::{Choice, ChooseFault, INDEX, choose, shards};
pub(crate) use error::HubFault;
use hf_hub::{Cache, CacheRepo, Repo, RepoType};
pub(crate) use name::HubName;
use name::{is_inside, is_word};
use std::{
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
    time::Duration,
};
use transfer::Client;

/// Most bytes of an index of weight files: the library reads no more.
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// How to reach the hub, and where its files are kept.
#[derive(Debug, Clone)]
pub(crate) struct HubSettings {
    /// Address without a slash at the end; `None` is the hub's own.
    pub(crate) endpoint: Option<String>,
    /// Who asks.
    pub(crate) token: Option<String>,
    /// Folder of the cache, which other programs may share.
    pub(crate) cache: PathBuf,
    /// Only the cache is asked.
    pub(crate) offline: bool,
    pub(crate) patience: Patience,
}

/// How long an answer is waited for, and how often it is asked for again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// For a connection.
    pub(crate) connect: Duration,
    /// For the next byte.
    pub(crate) silence: Duration,
    /// Attempts in a row that bring nothing.
    pub(crate) attempts: u32,
    /// Before the second of them; it doubles with each.
    pub(crate) pause: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(20),
            silence: Duration::from_secs(60),
            attempts: 5,
            pause: Duration::from_millis(500),
        }
    }
}

/// The file or folder that `name` means, from the cache or, first, from the hub.
///
/// # Errors
/// [`HubFault`]. What was fetched by then stays in the cache, and the next call goes on from there.
pub(crate) fn fetch(name: &HubName, settings: &HubSettings, quiet: bool) -> Result<PathBuf, HubFault> {
    let repo = Repo::with_revision(name.repo.clone(), RepoType::Model, name.revision.clone());
    let cache = Cache::new(settings.cache.clone()).repo(repo);
    if settings.offline {
        return cached(name, &cache).ok_or_else(|| HubFault::Offline { cache: settings.cache.clone() });
    }
    let client = Client::new(settings, name, quiet)?;
    let listing = match client.list() {
        Ok(listing) => listing,
        Err(fault) if fault.is_unreachable() => {
            return match cached(name, &cache) {
                Some(path) => {
                    tracing::warn!("{fault}: taking {name} from the cache as it is");
                    Ok(path)
                }
                None => Err(fault),
            };
        }
        Err(fault) => return Err(fault),
    };
    let choice = choose(&listing.files, &name.pick)?;
    for file in &choice.files {
        client.fetch(&cache, &listing.commit, file)?;
    }
    if choice.is_indexed {
        for file in shards_in(&cache.pointer_path(&listing.commit), &listing.files)? {
            client.fetch(&cache, &listing.commit, &file)?;
        }
    }
    if listing.commit != name.revision {
        cache.create_ref(&listing.commit).map_err(HubFault::io("write a reference in", &settings.cache))?;
    }
    Ok(opened(&cache, &listing.commit, &choice))
}

/// What the index in the folder `snapshot` names of `files`.
fn shards_in(snapshot: &Path, files: &[String]) -> Result<Vec<String>, HubFault> {
    let path = snapshot.join(INDEX);
    let mut index = Vec::new();
    let read = File::open(&path).and_then(|file| file.take(MAX_INDEX_BYTES + 1).read_to_end(&mut index));
    read.map_err(HubFault::io("read", &path))?;
    if index.len() as u64 > MAX_INDEX_BYTES {
        let message = format!("it has more than {MAX_INDEX_BYTES} bytes");
        return Err(ChooseFault::Index { message }.into());
    }
    Ok(shards(&index, files)?)
}

fn opened(cache: &CacheRepo, commit: &str, choice: &Choice) -> PathBuf {
    let snapshot = cache.pointer_path(commit);
    match &choice.open {
        Some(file) => snapshot.join(file),
        None => snapshot,
    }
}

/// What `name` means among the files that are in the cache already; `None` unless all of it is there.
fn cached(name: &HubName, cache: &CacheRepo) -> Option<PathBuf> {
    let commit = match is_commit(&name.revision) {
        true => name.revision.clone(),
        false => fs::read_to_string(reference(cache, &name.revision)).ok()?.trim().to_owned(),
    };
    if !is_word(&commit) {
        return None;
    }
    let snapshot = cache.pointer_path(&commit);
    let files = files_below(&snapshot);
    let choice = choose(&files, &name.pick).ok()?;
    if choice.is_indexed {
        shards_in(&snapshot, &files).ok()?;
    }
    Some(opened(cache, &commit, &choice))
}

/// Where the cache keeps which commit a branch or tag is.
fn reference(cache: &CacheRepo, revision: &str) -> PathBuf {
    // A snapshot's folder is `<repository>/snapshots/<commit>`.
    let snapshots = cache.pointer_path("");
    snapshots.parent().unwrap_or(&snapshots).join("refs").join(revision)
}

fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Paths of all files below `folder`, links to files included, with `/` between their parts.
fn files_below(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![(folder.to_owned(), String::new())];
    while let Some((folder, prefix)) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Some(path) = entry.file_name().to_str().map(|name| format!("{prefix}{name}")) else { continue };
            match (entry.file_type(), fs::metadata(entry.path())) {
                (Ok(kind), _) if kind.is_dir() => folders.push((entry.path(), format!("{path}/"))),
                (_, Ok(metadata)) if metadata.is_file() && is_inside(&path) => found.push(path),
                _ => {}
            }
        }
    }
    found.sort();
    found
}
