//! The folder: names, times of use, and room within a limit.
//!
//! The time of a file says when its block was used last. The blocks of a chain have times a microsecond apart, the first one the latest:
//! whatever goes first is never a block that another builds on.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use super::super::key::Key;
use super::DiskStats;
use super::format::open_file;

const EXTENSION: &str = "kv";
const UNFINISHED: &str = "unfinished";

/// Makes names of unfinished files differ within a process.
static COUNTER: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    limit_bytes: u64,
    /// Of the writer alone, once the folder is open.
    listing: Mutex<Listing>,
    stats: Mutex<DiskStats>,
}

/// What was there when the folder was last listed, and what has been written since.
#[derive(Debug, Default)]
pub(super) struct Listing {
    bytes: u64,
    /// Used longest ago first.
    oldest: VecDeque<(SystemTime, u64, Key)>,
}

/// So often a new file may be taken for one that was left, each time by another that opens the folder.
const CREATE_TRIES: usize = 1000;

/// Most that the clocks of computers that share a folder are apart.
const CLOCKS_DIFFER: Duration = Duration::from_secs(60);

impl Folder {
    /// Makes the folder where it is missing, and removes what writers that died have left: a living writer holds a lock on its file.
    pub(super) fn open(path: PathBuf, limit_bytes: u64) -> io::Result<Self> {
        fs::create_dir_all(&path)?;
        for entry in fs::read_dir(&path)? {
            let path = entry?.path();
            if is_named(&path, UNFINISHED, is_unfinished) {
                remove_unless_locked(&path);
            }
        }
        let this = Self { path, limit_bytes, listing: Mutex::default(), stats: Mutex::default() };
        this.list(&mut this.listing());
        this.make_room(0, None, &mut |_| ());
        Ok(this)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) const fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    pub(super) fn stats(&self) -> DiskStats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut DiskStats)) {
        count(&mut self.stats.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn listing(&self) -> MutexGuard<'_, Listing> {
        // A panic under the lock leaves a sum behind that is off until the next listing.
        self.listing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn file_path(&self, key: &Key) -> PathBuf {
        self.path.join(key.hex()).with_extension(EXTENSION)
    }

    pub(super) fn open_file(&self, key: &Key) -> io::Result<File> {
        self.count(|stats| stats.files_opened += 1);
        open_file(&self.file_path(key))
    }

    /// A file that is being written, under a lock that says that its writer lives.
    pub(super) fn create_unfinished(&self) -> io::Result<(PathBuf, File)> {
        for _ in 0..CREATE_TRIES {
            let path = self.unfinished_path();
            let file = match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => file,
                // A process with the same number, of another container or computer.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            };
            // Who opens the folder right now may take the file for one that was left, as long as it is not locked.
            let locked = match file.try_lock() {
                Ok(()) => path.try_exists(),
                Err(TryLockError::WouldBlock) => Ok(false),
                Err(TryLockError::Error(error)) => Err(error),
            };
            match locked {
                Ok(true) => return Ok((path, file)),
                // It is gone, or about to go.
                _ => drop(fs::remove_file(&path)),
            }
            locked?;
        }
        Err(io::Error::other(format!("{CREATE_TRIES} new files in a row were removed by others")))
    }

    fn unfinished_path(&self) -> PathBuf {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.subsec_nanos());
        self.path.join(format!("{}-{number}-{nanos}.{UNFINISHED}", process::id()))
    }

    /// The time of the block at `place` of the chain that begins with `first`.
    pub(super) fn time_of(&self, first: &Key, place: usize) -> SystemTime {
        let began = || {
            self.count(|stats| stats.files_opened += 1);
            fs::metadata(self.file_path(first)).and_then(|meta| meta.modified())
        };
        let base = if place == 0 { None } else { began().ok() };
        at_place(base.unwrap_or_else(SystemTime::now), place)
    }

    /// Removes files used longest ago until `bytes` more are within the limit; `false` if that cannot be, or only at the price of files used at
    /// the time of the block that is to be written, or later. The block's own file, if there is one, is replaced and not removed.
    pub(super) fn make_room(
        &self,
        bytes: u64,
        wanted: Option<(&Key, SystemTime)>,
        removed: &mut dyn FnMut(Key),
    ) -> bool {
        let mut listing = self.listing();
        let mut is_new = false;
        while listing.bytes.saturating_add(bytes) > self.limit_bytes {
            let Some((modified, file_bytes, key)) = listing.oldest.pop_front() else {
                if is_new {
                    return false;
                }
                is_new = true;
                self.list(&mut listing);
                continue;
            };
            let path = self.file_path(&key);
            match fs::metadata(&path).and_then(|meta| meta.modified()) {
                // Another process was faster.
                Err(_) => listing.bytes = listing.bytes.saturating_sub(file_bytes),
                // It was used since.
                Ok(now) if now != modified => {}
                Ok(_) if wanted.is_some_and(|(own, _)| *own == key) => {}
                Ok(_) if wanted.is_some_and(|(_, time)| modified >= time) && !is_from_the_future(modified) => {
                    listing.oldest.push_front((modified, file_bytes, key));
                    return false;
                }
                Ok(_) => {
                    if fs::remove_file(&path).is_ok() {
                        listing.bytes = listing.bytes.saturating_sub(file_bytes);
                        self.count(|stats| stats.files_removed += 1);
                        removed(key);
                    }
                }
            }
        }
        true
    }

    /// Notes a file that took the place of one of `old_bytes`.
    pub(super) fn written(&self, bytes: u64, old_bytes: u64) {
        let mut listing = self.listing();
        listing.bytes = listing.bytes.saturating_sub(old_bytes).saturating_add(bytes);
        self.count(|stats| {
            (stats.files_written, stats.bytes_written) = (stats.files_written + 1, stats.bytes_written + bytes)
        });
    }

    fn list(&self, listing: &mut Listing) {
        self.count(|stats| stats.folder_listings += 1);
        *listing = Listing::default();
        let Ok(entries) = fs::read_dir(&self.path) else { return };
        let file = |entry: io::Result<fs::DirEntry>| {
            let entry = entry.ok()?;
            let path = entry.path();
            let key = Some(&path).filter(|path| path.extension() == Some(OsStr::new(EXTENSION)));
            let key = Key::from_hex(key?.file_stem()?.to_str()?)?;
            let meta = entry.metadata().ok().filter(|meta| meta.is_file())?;
            Some((meta.modified().ok()?, meta.len(), key))
        };
        let mut files: Vec<_> = entries.filter_map(file).collect();
        files.sort_unstable_by_key(|&(modified, bytes, key)| (!is_from_the_future(modified), modified, bytes, key));
        listing.bytes = files.iter().map(|(_, bytes, _)| bytes).sum();
        listing.oldest = files.into();
    }

    /// Makes the names of files that were put in place outlast a loss of power.
    pub(super) fn sync(&self) {
        self.count(|stats| stats.folder_syncs += 1);
        let Err(error) = File::open(&self.path).and_then(|folder| folder.sync_all()) else { return };
        // The files are whole all the same.
        if self.stats().failed_folder_syncs == 0 {
            let folder = self.path.display();
            tracing::warn!(%folder, %error, "files of the prefix cache may not outlast a loss of power");
        }
        self.count(|stats| stats.failed_folder_syncs += 1);
    }
}

/// Whether a clock was wrong when a file was used: by more than computers that share a folder differ. Such files would stay for ever.
fn is_from_the_future(modified: SystemTime) -> bool {
    modified.duration_since(SystemTime::now()).is_ok_and(|ahead| ahead > CLOCKS_DIFFER)
}

/// A time for the block at `place` of a chain that is used at `base`.
pub(super) fn at_place(base: SystemTime, place: usize) -> SystemTime {
    let back = Duration::from_micros(place as u64);
    base.checked_sub(back).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Whether a name is one that a cache gives: all else in the folder is somebody else's, and stays.
fn is_named(path: &Path, extension: &str, is_stem: fn(&str) -> bool) -> bool {
    path.extension() == Some(OsStr::new(extension)) && path.file_stem().and_then(OsStr::to_str).is_some_and(is_stem)
}

/// Of a file that is being written: three numbers.
fn is_unfinished(stem: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    stem.split('-').count() == 3 && stem.split('-').all(is_number)
}

/// Removes a file whose writer does not live any more.
fn remove_unless_locked(path: &Path) {
    let Ok(file) = open_file(path) else { return };
    if file.try_lock().is_ok() {
        // Another process may have been faster.
        let _ = fs::remove_file(path);
    }
}
