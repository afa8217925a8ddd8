//! Blocks in files, one each: written whole or not at all, and believed only after every byte was checked.
//!
//! A file is written under another name, flushed to the device and renamed, so that its own name never stands for half a file; all that by
//! one thread, behind a queue.

mod folder;
mod format;
mod writer;

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, FileTimes};
use std::io::{self, Seek};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::key::Key;
use super::{DiskOptions, Parts};
use folder::{Folder, at_place};
pub(super) use format::file_bytes;
use format::{Fault, Format};
pub(super) use writer::Block;
use writer::{QUEUE_BYTES, Writer};

/// A chain that grows after a longer rest is marked as used again.
const TOUCH_AFTER: Duration = Duration::from_secs(60);

/// What a prefix cache has done with its folder so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskStats {
    /// Files that were opened or asked for their times.
    pub files_opened: u64,
    /// Files that were written, flushed to the device and put in place.
    pub files_written: u64,
    /// Bytes of these.
    pub bytes_written: u64,
    /// Files that went to stay within the limit.
    pub files_removed: u64,
    /// Times the folder was listed.
    pub folder_listings: u64,
    /// Times the folder was flushed to the device.
    pub folder_syncs: u64,
    /// Those of them that failed: the latest files may not outlast a loss of power.
    pub failed_folder_syncs: u64,
    /// Files that were no good: damaged, of another model or version, or not readable.
    pub files_dropped: u64,
    /// Publishes that waited because the queue was full.
    pub waits_for_queue: u64,
    /// Publishes that waited until all was written, because the ledger had no bytes to hold blocks that the sequence was about to let go of.
    pub waits_for_ledger: u64,
    /// Blocks that were not written because only blocks used later could have made room.
    pub left_out_for_limit: u64,
    /// Blocks that were not written because the system refused, or the writer had failed.
    pub left_out_for_fault: u64,
    /// Blocks that were not written because whoever waited for them gave up.
    pub left_out_for_cancel: u64,
}

#[derive(Debug)]
pub(super) struct Disk {
    files: Arc<Files>,
    writer: Writer,
}

/// The files, and what is known of them. No lock is held while one of them is read or written.
#[derive(Debug)]
struct Files {
    folder: Folder,
    format: Format,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// What this process has written, seen or is about to write.
    files: HashMap<Key, Parts>,
    /// Files that are no good and could not be removed.
    bad: HashSet<Key>,
    /// Keys in `files` whose blocks were left out: not tried again until the next request, which may find things changed.
    left_out: HashSet<Key>,
    /// The last block of each chain that was written or used, and when: what follows on it needs no mark that the chain is in use.
    tips: HashMap<Key, Instant>,
    has_warned_of_writing: bool,
    /// Of the files that were no good, how many have been told of.
    told_dropped: u64,
}

impl Known {
    fn add(&mut self, key: Key, parts: Parts) {
        let held = self.files.entry(key).or_insert(Parts::NONE);
        *held = held.or(parts);
        self.left_out.remove(&key);
    }
}

impl Disk {
    pub(super) fn open(options: &DiskOptions, root: Key, part_bytes: Vec<usize>) -> io::Result<Self> {
        Self::with_queue(options, root, part_bytes, QUEUE_BYTES)
    }

    fn with_queue(options: &DiskOptions, root: Key, part_bytes: Vec<usize>, queue_bytes: u64) -> io::Result<Self> {
        let folder = Folder::open(options.folder.clone(), options.limit_bytes)?;
        let files = Arc::new(Files { folder, format: Format { root, part_bytes }, known: Mutex::default() });
        let writer = Writer::start(Arc::clone(&files), queue_bytes)?;
        Ok(Self { files, writer })
    }

    pub(super) fn stats(&self) -> DiskStats {
        self.files.folder.stats()
    }

    /// What the file of a block holds by its header and length; nothing if there is none. The content is checked when it is read.
    pub(super) fn parts(&self, key: &Key) -> Parts {
        self.files.parts(key)
    }

    /// Reads the wanted parts of a block; `false` if the file is not to be believed. What was read then means nothing.
    pub(super) fn read(&self, key: &Key, wanted: &mut [(usize, &mut [u8])]) -> bool {
        let files = &self.files;
        let read = files.folder.open_file(key).map_err(Fault::from);
        match read.and_then(|file| files.format.read(key, file, wanted)) {
            Ok(()) => true,
            Err(fault) => {
                files.give_up(key, &fault);
                false
            }
        }
    }

    /// Whether these parts of a block are on disk or on their way there, or have no place there; from now on they are, one way or the other.
    pub(super) fn takes(&self, key: &Key, parts: Parts) -> bool {
        if parts == Parts::NONE || self.files.format.file_bytes(parts) > self.files.folder.limit_bytes() {
            return false;
        }
        let mut known = self.files.known();
        let there = known.files.entry(*key).or_insert(Parts::NONE);
        let is_new = !there.has_all(parts);
        *there = there.or(parts);
        is_new
    }

    /// Lets the blocks that were left out be tried again.
    pub(super) fn try_left_out(&self) {
        let known = &mut *self.files.known();
        for key in known.left_out.drain() {
            known.files.remove(&key);
        }
    }

    /// Before new blocks of a chain are written, the last of them `last`: marks the files before them as used, unless they have just been.
    /// New files take their times from the first one's, so that an old one would make them the first to go.
    pub(super) fn follow(&self, chain: &[Key], last: Key) {
        let now = Instant::now();
        let tip = {
            let mut known = self.files.known();
            let tip = chain.last().and_then(|key| known.tips.remove(key));
            known.tips.insert(last, now);
            tip
        };
        if !chain.is_empty() && tip.is_none_or(|used| now.duration_since(used) > TOUCH_AFTER) {
            self.writer.touch(chain.to_vec());
        }
    }

    /// Hands blocks of one chain to the writer, in its order; see [`Writer::write`].
    pub(super) fn write(&self, blocks: Vec<Block>) {
        if !blocks.is_empty() {
            self.writer.write(blocks);
        }
    }

    /// Marks the files of a chain as used now, the first one last.
    pub(super) fn touch(&self, chain: Vec<Key>) {
        if let Some(&last) = chain.last() {
            self.files.known().tips.insert(last, Instant::now());
            self.writer.touch(chain);
        }
    }

    /// Waits until none of these blocks is on its way.
    pub(super) fn wait_for(&self, keys: &[Key]) {
        self.writer.wait_for(keys);
    }

    /// Waits until all that has come so far is written; once `is_cancelled`, what of it is not begun is dropped.
    pub(super) fn finish(&self, is_cancelled: &dyn Fn() -> bool) {
        self.writer.finish(is_cancelled);
        self.files.tell_of_dropped();
    }

    /// Waits until all that has come so far is written, because the ledger needs what it holds.
    pub(super) fn flush(&self) {
        self.writer.finish(&|| false);
    }

    /// As [`Disk::flush`], because the ledger cannot pay for what waits.
    pub(super) fn finish_unpaid(&self) {
        self.files.folder.count(|stats| stats.waits_for_ledger += 1);
        self.flush();
    }
}

impl Files {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn parts(&self, key: &Key) -> Parts {
        if self.known().bad.contains(key) {
            return Parts::NONE;
        }
        match self.look(key) {
            Ok((parts, _)) => {
                self.known().add(*key, parts);
                parts
            }
            Err(fault) => {
                self.give_up(key, &fault);
                Parts::NONE
            }
        }
    }

    fn look(&self, key: &Key) -> Result<(Parts, File), Fault> {
        let mut file = self.folder.open_file(key)?;
        Ok((self.format.parts(key, &mut file)?, file))
    }

    /// Removes a file that is no good. The first one is warned of, and all others together in [`Files::tell_of_dropped`]. A file that is not
    /// there is no fault.
    fn give_up(&self, key: &Key, fault: &Fault) {
        self.known().files.remove(key);
        if fault.is_absence() {
            return;
        }
        let path = self.folder.file_path(key);
        let is_first = {
            let mut known = self.known();
            self.folder.count(|stats| stats.files_dropped += 1);
            let is_first = known.told_dropped == 0;
            known.told_dropped = known.told_dropped.max(1);
            is_first
        };
        match is_first {
            true => tracing::warn!(path = %path.display(), "a file of the prefix cache is dropped: {fault}"),
            false => tracing::debug!(path = %path.display(), "a file of the prefix cache is dropped: {fault}"),
        }
        if fs::remove_file(&path).is_err() {
            self.known().bad.insert(*key);
        }
    }

    /// Warns of the files that were dropped since the last time, by their number.
    fn tell_of_dropped(&self) {
        let mut known = self.known();
        let files_dropped = self.folder.stats().files_dropped;
        let more = files_dropped - known.told_dropped;
        known.told_dropped = files_dropped;
        drop(known);
        if more > 0 {
            let folder = self.folder.path().display();
            tracing::warn!(%folder, files_dropped, "{more} more files of the prefix cache were dropped");
        }
    }

    /// Notes blocks that will not be written after all, because whoever waited for them gave up.
    fn cancelled(&self, keys: impl Iterator<Item = Key>) {
        let mut known = self.known();
        for key in keys {
            known.files.remove(&key);
            self.folder.count(|stats| stats.left_out_for_cancel += 1);
        }
    }

    /// Notes a block that is not on disk after all, until the next request.
    fn left_out(&self, key: Key, count: impl FnOnce(&mut DiskStats)) {
        self.known().left_out.insert(key);
        self.folder.count(count);
    }

    /// Writes a block unless a file with these parts is there; whether there is a new file. A cache that cannot write goes on without; the
    /// first reason is told.
    fn write(&self, block: &Block) -> bool {
        let parts: Vec<(usize, &[u8])> = block.parts.iter().map(|(part, slab)| (*part, slab.memory())).collect();
        let held = parts.iter().fold(Parts::NONE, |all, (part, _)| all.with(*part));
        let there = match self.look(&block.key) {
            Ok((there, _)) if there.has_all(held) => {
                self.touch_one(&block.key, self.folder.time_of(&block.first, block.place));
                return false;
            }
            Ok(there) => Some(there),
            Err(fault) => {
                if !fault.is_absence() {
                    self.give_up(&block.key, &fault);
                }
                None
            }
        };
        match self.replace(block, &parts, there) {
            Ok(true) => true,
            Ok(false) => {
                self.left_out(block.key, |stats| stats.left_out_for_limit += 1);
                false
            }
            Err(error) => {
                self.left_out(block.key, |stats| stats.left_out_for_fault += 1);
                let mut known = self.known();
                if !known.has_warned_of_writing {
                    known.has_warned_of_writing = true;
                    drop(known);
                    let folder = self.folder.path().display();
                    tracing::warn!(%folder, %error, "the prefix cache cannot write to its folder");
                }
                false
            }
        }
    }

    /// Writes a block in place of a file that is there, and takes over what only that file has; `false` where there is no room.
    fn replace(&self, block: &Block, parts: &[(usize, &[u8])], there: Option<(Parts, File)>) -> io::Result<bool> {
        let held = parts.iter().fold(Parts::NONE, |all, (part, _)| all.with(*part));
        let (bytes, old_bytes) = match &there {
            None => (self.format.file_bytes(held), 0),
            Some((there, _)) => (self.format.file_bytes(held.or(*there)), self.format.file_bytes(*there)),
        };
        let time = self.folder.time_of(&block.first, block.place);
        let mut removed = |key: Key| {
            self.known().files.remove(&key);
        };
        if !self.folder.make_room(bytes.saturating_sub(old_bytes), Some((&block.key, time)), &mut removed) {
            return Ok(false);
        }
        let (path, file) = self.folder.create_unfinished()?;
        let write = |old| -> Result<Parts, Fault> {
            let held = self.format.write(&block.key, parts, old, &file)?;
            // A time that cannot be set costs no result.
            let _ = file.set_times(FileTimes::new().set_modified(time));
            file.sync_all()?;
            fs::rename(&path, self.folder.file_path(&block.key))?;
            Ok(held)
        };
        let had_old = there.is_some();
        // The very file that was looked at: another process may have put its own in its place.
        let old = there.filter(|(there, _)| !held.has_all(*there)).map(|(_, mut old)| old.rewind().map(|()| old));
        match old.transpose().map_err(Fault::from).and_then(write) {
            Ok(held) => {
                self.known().add(block.key, held);
                self.folder.written(self.format.file_bytes(held), old_bytes);
                Ok(true)
            }
            Err(fault) => {
                // Where it cannot be removed, the next one that opens the folder tries again.
                let _ = fs::remove_file(&path);
                match fault {
                    Fault::Io(error) => Err(error),
                    // The old file is no good: the block goes without it.
                    Fault::Content(_) if had_old => {
                        self.give_up(&block.key, &fault);
                        self.replace(block, parts, None)
                    }
                    Fault::Content(reason) => Err(io::Error::other(reason)),
                }
            }
        }
    }

    fn touch(&self, chain: &[Key]) {
        let now = SystemTime::now();
        for (place, key) in chain.iter().enumerate() {
            self.touch_one(key, at_place(now, place));
        }
    }

    fn touch_one(&self, key: &Key, time: SystemTime) {
        // A file that another process has removed is no loss, nor is a time that cannot be set.
        let times = FileTimes::new().set_modified(time);
        let _ = self.folder.open_file(key).and_then(|file| file.set_times(times));
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.tell_of_dropped();
    }
}

#[cfg(test)]
mod tests;
