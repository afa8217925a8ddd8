//! Blocks in files, one each: written whole or not at all, and believed only after every byte was checked.
//!
//! A file is a header (magic, version, root and key of the chain, parts), the parts, and the SHA-256 of all before it. It is written under
//! another name, flushed to the device and renamed, so that its own name never stands for half a file. Whoever opens the folder removes
//! what writers that died have left: a living writer holds a lock on its file.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use super::key::{FORMAT_VERSION, Key};
use super::{DiskOptions, Parts};

const MAGIC: [u8; 8] = *b"PLIMKVBL";
const HEADER_BYTES: usize = 8 + 4 + 4 + 32 + 32 + 8;
const CHECKSUM_BYTES: usize = 32;
const EXTENSION: &str = "kv";
const UNFINISHED: &str = "unfinished";

/// Makes names of unfinished files differ within a process.
static COUNTER: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
pub(super) struct Disk {
    folder: PathBuf,
    limit_bytes: u64,
    root: Key,
    part_bytes: Vec<usize>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// What this process has written or seen.
    files: HashMap<Key, Parts>,
    /// Files that are no good and could not be removed.
    bad: HashSet<Key>,
    has_warned_of_writing: bool,
}

/// Why a file is not believed.
#[derive(Debug)]
enum Fault {
    Io(io::Error),
    Content(&'static str),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Content("it is too short"),
            _ => Self::Io(error),
        }
    }
}

impl Disk {
    pub(super) fn open(options: &DiskOptions, root: Key, part_bytes: Vec<usize>) -> io::Result<Self> {
        fs::create_dir_all(&options.folder)?;
        let this = Self {
            folder: options.folder.clone(),
            limit_bytes: options.limit_bytes,
            root,
            part_bytes,
            known: Mutex::default(),
        };
        for entry in fs::read_dir(&this.folder)? {
            let path = entry?.path();
            if is_named(&path, UNFINISHED, is_unfinished) {
                remove_unless_locked(&path);
            }
        }
        this.trim();
        Ok(this)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.folder.join(key.hex()).with_extension(EXTENSION)
    }

    fn file_bytes(&self, parts: Parts) -> u64 {
        file_bytes((0..self.part_bytes.len()).filter(|&part| parts.has(part)).map(|part| &self.part_bytes[part]))
    }

    /// What the file of a block holds by its header and length; nothing if there is none. The content is checked when it is read.
    pub(super) fn parts(&self, key: &Key) -> Parts {
        if self.known().bad.contains(key) {
            return Parts::NONE;
        }
        let header = || -> Result<Parts, Fault> {
            let mut file = open_file(&self.path(key))?;
            let (parts, _) = self.header(key, &mut file)?;
            if file.metadata()?.len() == self.file_bytes(parts) {
                Ok(parts)
            } else {
                Err(Fault::Content("its length is wrong"))
            }
        };
        header().unwrap_or_else(|fault| {
            self.give_up(key, &fault);
            Parts::NONE
        })
    }

    fn header(&self, key: &Key, file: &mut impl Read) -> Result<(Parts, [u8; HEADER_BYTES]), Fault> {
        let mut header = [0; HEADER_BYTES];
        file.read_exact(&mut header)?;
        let mut rest = &header[..];
        let mut take = |count: usize| rest.split_off(..count).expect("the header is that long");
        if take(8) != MAGIC {
            return Err(Fault::Content("it is no file of a prefix cache"));
        }
        if take(4) != FORMAT_VERSION.to_le_bytes() || take(4) != [0; 4] {
            return Err(Fault::Content("it is of another version"));
        }
        if take(32) != self.root.0 {
            return Err(Fault::Content("it is of another model"));
        }
        if take(32) != key.0 {
            return Err(Fault::Content("it holds another block than its name says"));
        }
        let parts = Parts(take(8).iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte)));
        let all = (0..self.part_bytes.len()).fold(Parts::NONE, Parts::with);
        if parts == Parts::NONE || !all.has_all(parts) {
            return Err(Fault::Content("it holds parts that the model does not have"));
        }
        Ok((parts, header))
    }

    /// Reads the wanted parts of a block; `false` if the file is not to be believed. What was read then means nothing.
    pub(super) fn read(&self, key: &Key, wanted: &mut [(usize, &mut [u8])]) -> bool {
        let mut read = || -> Result<(), Fault> {
            let mut file = BufReader::with_capacity(1 << 16, open_file(&self.path(key))?);
            let (parts, header) = self.header(key, &mut file)?;
            let mut hash = Sha256::new();
            hash.update(header);
            let mut skipped = vec![0; 1 << 16];
            let mut missing = wanted.len();
            for part in (0..self.part_bytes.len()).filter(|&part| parts.has(part)) {
                if let Some((_, to)) = wanted.iter_mut().find(|(number, _)| *number == part) {
                    file.read_exact(to)?;
                    hash.update(&**to);
                    missing -= 1;
                    continue;
                }
                let mut left = self.part_bytes[part];
                while left > 0 {
                    let count = left.min(skipped.len());
                    file.read_exact(&mut skipped[..count])?;
                    hash.update(&skipped[..count]);
                    left -= count;
                }
            }
            let mut checksum = [0; CHECKSUM_BYTES];
            file.read_exact(&mut checksum)?;
            if checksum[..] != hash.finalize()[..] || file.read(&mut [0])? != 0 {
                return Err(Fault::Content("its checksum is wrong"));
            }
            if missing > 0 {
                return Err(Fault::Content("a part that it had is gone"));
            }
            Ok(())
        };
        match read() {
            Ok(()) => true,
            Err(fault) => {
                self.give_up(key, &fault);
                false
            }
        }
    }

    /// Removes a file that is no good, with a warning. A file that is not there is no fault.
    fn give_up(&self, key: &Key, fault: &Fault) {
        self.known().files.remove(key);
        let path = self.path(key);
        match fault {
            Fault::Io(error) if error.kind() == io::ErrorKind::NotFound => return,
            Fault::Io(error) => {
                tracing::warn!(path = %path.display(), %error, "a file of the prefix cache cannot be read")
            }
            Fault::Content(reason) => {
                tracing::warn!(path = %path.display(), "a file of the prefix cache is dropped: {reason}")
            }
        }
        if fs::remove_file(&path).is_err() {
            self.known().bad.insert(*key);
        }
    }

    /// Writes a block unless a file with these parts is there. A cache that cannot write goes on without; the first reason is told.
    pub(super) fn write(&self, key: &Key, parts: &[(usize, &[u8])]) {
        let held = parts.iter().fold(Parts::NONE, |all, (part, _)| all.with(*part));
        let known = self.known().files.get(key).copied();
        if held == Parts::NONE || self.file_bytes(held) > self.limit_bytes {
            return;
        }
        let there = known.unwrap_or_else(|| self.parts(key));
        if !there.has_all(held) {
            if let Err(error) = self.write_new(key, held, parts) {
                let mut known = self.known();
                if !known.has_warned_of_writing {
                    known.has_warned_of_writing = true;
                    tracing::warn!(folder = %self.folder.display(), %error, "the prefix cache cannot write to its folder");
                }
                return;
            }
            self.known().files.insert(*key, held);
        } else if known.is_none() {
            self.known().files.insert(*key, there);
        }
    }

    fn write_new(&self, key: &Key, held: Parts, parts: &[(usize, &[u8])]) -> io::Result<()> {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.subsec_nanos());
        let path = self.folder.join(format!("{}-{number}-{nanos}.{UNFINISHED}", process::id()));
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        let write = || -> io::Result<()> {
            file.try_lock().map_err(io::Error::from)?;
            let mut hash = Sha256::new();
            let mut out = BufWriter::with_capacity(1 << 16, &file);
            let mut put = |bytes: &[u8]| {
                hash.update(bytes);
                out.write_all(bytes)
            };
            put(&MAGIC)?;
            put(&FORMAT_VERSION.to_le_bytes())?;
            put(&[0; 4])?;
            put(&self.root.0)?;
            put(&key.0)?;
            put(&held.0.to_le_bytes())?;
            for (_, bytes) in parts {
                put(bytes)?;
            }
            out.write_all(&hash.finalize())?;
            out.flush()?;
            drop(out);
            file.sync_all()?;
            fs::rename(&path, self.path(key))?;
            // The name lasts only once the folder is on the device too. Where a folder cannot be opened, the file is whole all the same.
            File::open(&self.folder).and_then(|folder| folder.sync_all()).or(Ok(()))
        };
        write().inspect_err(|_| drop(fs::remove_file(&path)))
    }

    /// Marks the files of a chain as used now, the first one last.
    pub(super) fn touch(&self, chain: &[Key]) {
        let now = SystemTime::now();
        for (place, key) in chain.iter().enumerate() {
            let Some(time) = u64::try_from(place).ok().and_then(|place| now.checked_sub(Duration::from_micros(place)))
            else {
                continue;
            };
            // A file that another process has removed is no loss, nor is a time that cannot be set.
            let _ = open_file(&self.path(key)).and_then(|file| file.set_times(FileTimes::new().set_modified(time)));
        }
    }

    /// Removes files, used longest ago first, until the rest is within the limit.
    pub(super) fn trim(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        let file = |entry: io::Result<fs::DirEntry>| {
            let entry = entry.ok()?;
            let path = entry.path();
            let meta = entry.metadata().ok().filter(|meta| meta.is_file())?;
            is_named(&path, EXTENSION, is_block).then_some((meta.modified().ok()?, meta.len(), path))
        };
        let mut files: Vec<_> = entries.filter_map(file).collect();
        files.sort();
        let mut bytes: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        let mut removed = false;
        for (_, file_bytes, path) in files {
            if bytes <= self.limit_bytes {
                break;
            }
            bytes -= file_bytes;
            removed |= fs::remove_file(path).is_ok();
        }
        if removed {
            self.known().files.clear();
        }
    }
}

/// Bytes of a file with parts of these sizes.
pub(super) fn file_bytes<'a>(parts: impl IntoIterator<Item = &'a usize>) -> u64 {
    (HEADER_BYTES + parts.into_iter().sum::<usize>() + CHECKSUM_BYTES) as u64
}

/// Opens what is a file: opening a pipe would wait for its other end.
fn open_file(path: &Path) -> io::Result<File> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    File::open(path)
}

/// Whether a name is one that a cache gives: all else in the folder is somebody else's, and stays.
fn is_named(path: &Path, extension: &str, is_stem: fn(&str) -> bool) -> bool {
    path.extension() == Some(OsStr::new(extension)) && path.file_stem().and_then(OsStr::to_str).is_some_and(is_stem)
}

/// Of a block: its key in hexadecimal digits.
fn is_block(stem: &str) -> bool {
    stem.len() == 64 && stem.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
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
