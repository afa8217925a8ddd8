use super::super::{CacheIdentity, PrefixCache};
use super::*;
use crate::slab::SlabRef;
use crate::{KvLayerSpec, KvSpec, Sequence};
use plimsoll_attention::{KvDtype, KvLayout, KvValues};
use plimsoll_memguard::{Budget, Evict, Kind, Ledger};
use std::cell::RefCell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

const PART_BYTES: usize = 1 << 18;
const ROOT: Key = Key([1; 32]);

fn open(folder: &Path, queue_bytes: u64) -> Disk {
    let options = DiskOptions { folder: folder.to_owned(), limit_bytes: 1 << 30 };
    Disk::with_queue(&options, ROOT, vec![PART_BYTES], queue_bytes).unwrap()
}

/// So many blocks of one chain, which nobody else holds.
fn blocks(ledger: &Ledger, count: u8) -> Vec<Block> {
    let block = |place: u8| {
        let payment = ledger.reserve(Kind::Kv, PART_BYTES as u64).unwrap();
        let slab = SlabRef::zeroed(PART_BYTES, payment).unwrap();
        let parts = vec![(0, slab.share_with_cache(None))];
        Block { key: Key([place; 32]), first: Key([0; 32]), place: usize::from(place), parts }
    };
    (0..count).map(block).collect()
}

#[test]
fn a_full_queue_waits_and_leaves_nothing_out() {
    let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir().unwrap());
    let disk = open(folder.path(), 2 * PART_BYTES as u64);
    let blocks = blocks(&ledger, 20);
    let held = disk.files.folder.listing();
    thread::scope(|scope| {
        scope.spawn(|| disk.write(blocks));
        // The first block cannot be written before this lets go, and the third has no place.
        while disk.stats().waits_for_queue == 0 {
            thread::yield_now();
        }
        drop(held);
    });
    let held_bytes = ledger.usage().prefix_cache_bytes;
    assert!(held_bytes <= 2 * PART_BYTES as u64, "{held_bytes} bytes wait in a queue of two blocks");
    disk.finish(&|| false);
    let stats = disk.stats();
    assert_eq!((stats.files_written, stats.waits_for_queue), (20, 1), "{stats:?}");
    assert_eq!(ledger.usage().reserved_bytes(), 0, "what was written is let go");
    assert!((1..=20).contains(&stats.folder_syncs), "{stats:?}");
}

/// Whoever opens a folder removes what dead writers left there, and may see a living one's file before it is locked.
#[test]
fn a_folder_that_is_opened_while_blocks_are_written_loses_none() {
    let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir().unwrap());
    let disk = open(folder.path(), u64::MAX);
    let blocks = blocks(&ledger, 200);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            disk.write(blocks);
            disk.finish(&|| false);
        });
        while !writer.is_finished() {
            Folder::open(folder.path().to_owned(), 1 << 30).unwrap();
        }
    });
    let stats = disk.stats();
    assert_eq!((stats.files_written, stats.left_out_for_fault), (200, 0), "{stats:?}");
    assert!((0..200).all(|place| disk.parts(&Key([place; 32])) != Parts::NONE));
}

#[test]
fn a_block_larger_than_the_queue_is_written_alone() {
    let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir().unwrap());
    let disk = open(folder.path(), 1);
    disk.write(blocks(&ledger, 3));
    drop(disk);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "the end waits for the queue");
}

#[test]
fn who_gives_up_drops_what_is_not_begun_and_the_rest_is_whole() {
    let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir().unwrap());
    let disk = open(folder.path(), u64::MAX);
    assert!((0..100).all(|place| disk.takes(&Key([place; 32]), Parts::NONE.with(0))));
    // At most the first is under way when the rest is dropped.
    let held = RefCell::new(Some(disk.files.folder.listing()));
    disk.write(blocks(&ledger, 100));
    disk.finish(&|| {
        held.take();
        true
    });
    let stats = disk.stats();
    assert!(stats.left_out_for_cancel >= 99, "{stats:?}");
    assert_eq!(stats.files_written + stats.left_out_for_cancel, 100, "{stats:?}");
    assert_eq!(ledger.usage().reserved_bytes(), 0);
    let written = (0..100).filter(|&place| disk.parts(&Key([place; 32])) != Parts::NONE).count() as u64;
    assert_eq!(written, stats.files_written);
    let wanted_again = (0..100).filter(|&place| disk.takes(&Key([place; 32]), Parts::NONE.with(0))).count() as u64;
    assert_eq!(wanted_again, stats.left_out_for_cancel, "a later publish writes what was dropped");
}

#[test]
fn blocks_of_a_chain_have_times_in_its_order() {
    let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir().unwrap());
    let disk = open(folder.path(), u64::MAX);
    for block in blocks(&ledger, 4) {
        // One publish each, as after the chunks of a prompt.
        disk.write(vec![block]);
        disk.finish(&|| false);
    }
    let time = |place: u8| fs::metadata(disk.files.folder.file_path(&Key([place; 32]))).unwrap().modified().unwrap();
    assert!((1..4).all(|place| time(place) < time(place - 1)), "the first block goes last");
}

/// Keys and values of one small layer that sees everything.
fn plain() -> KvSpec {
    let layout = KvLayout { kv_heads: 1, head_dim: 4, v_head_dim: 4, dtype: KvDtype::F32, values: KvValues::Own };
    KvSpec::new(vec![KvLayerSpec { layout, window: None }.into()])
}

fn cache(ledger: &Ledger, folder: &Path, limit_bytes: u64) -> PrefixCache {
    let disk = DiskOptions { folder: folder.to_owned(), limit_bytes: 1 << 30 };
    PrefixCache::with_disk(ledger, &plain(), &CacheIdentity { model: [3; 32], contract: 1 }, limit_bytes, &disk)
        .unwrap()
}

/// A sequence of as many tokens as its ledger paid for, and its ids.
fn filled(ledger: &Ledger, tokens: usize) -> (Sequence, Vec<u32>) {
    let reservation = ledger.reserve(Kind::Kv, plain().bytes(tokens)).unwrap();
    let mut sequence = Sequence::new(&plain(), tokens, reservation).unwrap();
    let values = vec![1.0; 4 * tokens];
    sequence.append(0, 0, &values, &values, tokens).unwrap();
    sequence.commit();
    (sequence, (0..tokens).map(|at| u32::try_from(at).unwrap()).collect())
}

/// Runs `f` while the writer cannot get on for a moment.
fn with_writer_held<T: Send>(cache: &PrefixCache, f: impl FnOnce() -> T + Send) -> T {
    let held = cache.inner.disk.as_ref().unwrap().files.folder.listing();
    thread::scope(|scope| {
        let (begun, begins) = mpsc::channel();
        let run = scope.spawn(move || {
            begun.send(()).unwrap();
            f()
        });
        begins.recv().unwrap();
        thread::sleep(Duration::from_millis(50));
        drop(held);
        run.join().unwrap()
    })
}

#[test]
fn a_block_that_only_the_writer_holds_too_is_written_to_without_a_byte_to_spare() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::new(Budget::Bytes(plain().bytes(128)));
    let cache = cache(&ledger, folder.path(), 0);
    let (mut sequence, tokens) = filled(&ledger, 128);
    with_writer_held(&cache, || {
        cache.publish(&sequence, &tokens).unwrap();
        sequence.truncate(100).unwrap();
        sequence.append(0, 100, &[2.0; 4], &[2.0; 4], 1)
    })
    .unwrap();
    assert_eq!((sequence.len(), sequence.reserved_bytes()), (101, plain().bytes(128)));
}

#[test]
fn blocks_that_the_writer_holds_too_are_not_let_go_in_vain() {
    let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir().unwrap());
    let cache = cache(&ledger, folder.path(), u64::MAX);
    let (sequence, tokens) = filled(&ledger, 10 * 64);
    with_writer_held(&cache, || {
        cache.publish(&sequence, &tokens).unwrap();
        drop(sequence);
        cache.inner.evict(1);
    });
    assert_eq!((cache.blocks(), ledger.usage().prefix_cache_bytes), (9, plain().bytes(9 * 64)));
}

#[test]
fn the_end_of_what_was_handed_over_is_waited_for_and_not_what_came_later() {
    let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir().unwrap());
    let disk = open(folder.path(), u64::MAX);
    let mut blocks = blocks(&ledger, 200);
    let later = blocks.split_off(2);
    let held = disk.files.folder.listing();
    disk.write(blocks);
    let written = thread::scope(|scope| {
        let (begun, begins) = mpsc::channel();
        let (disk, looks) = (&disk, AtomicBool::new(false));
        let end = scope.spawn(move || {
            disk.finish(&|| {
                // Whose number is known by now.
                if !looks.swap(true, Ordering::Relaxed) {
                    begun.send(()).unwrap();
                }
                false
            });
            disk.stats().files_written
        });
        begins.recv().unwrap();
        disk.write(later);
        drop(held);
        end.join().unwrap()
    });
    assert!((2..200).contains(&written), "{written} files");
    disk.finish(&|| false);
    assert_eq!(disk.stats().files_written, 200);
}

#[test]
fn a_block_that_grows_is_not_removed_to_make_room_for_itself() {
    let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir().unwrap());
    let part = |part: usize, place: u8| {
        let slab = SlabRef::zeroed(PART_BYTES, ledger.reserve(Kind::Kv, PART_BYTES as u64).unwrap()).unwrap();
        let parts = vec![(part, slab.share_with_cache(None))];
        Block { key: Key([place; 32]), first: Key([place; 32]), place: 0, parts }
    };
    let open = |limit_bytes| {
        let options = DiskOptions { folder: folder.path().to_owned(), limit_bytes };
        Disk::with_queue(&options, ROOT, vec![PART_BYTES; 2], u64::MAX).unwrap()
    };
    let disk = open(1 << 30);
    disk.write((0..4).map(|place| part(0, place)).collect());
    drop(disk);
    let folder_bytes =
        || fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum::<u64>();
    let limit_bytes = folder_bytes() + 100;
    let disk = open(limit_bytes);
    // The one used longest ago; then a new one.
    disk.write(vec![part(1, 0), part(0, 9)]);
    disk.finish(&|| false);
    assert!(folder_bytes() <= limit_bytes, "{} bytes of {limit_bytes}", folder_bytes());
    let all = Parts::NONE.with(0).with(1);
    assert_eq!((disk.parts(&Key([0; 32])), disk.parts(&Key([9; 32]))), (all, Parts::NONE.with(0)));
}

#[test]
fn a_chain_that_goes_on_without_a_restore_is_marked_as_used_once() {
    let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir().unwrap());
    let (sequence, tokens) = filled(&ledger, 5 * 64);
    let first = cache(&ledger, folder.path(), 0);
    first.publish(&sequence, &tokens[..2 * 64]).unwrap();
    drop(first);
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    for file in fs::read_dir(folder.path()).unwrap() {
        File::open(file.unwrap().path()).unwrap().set_times(FileTimes::new().set_modified(long_ago)).unwrap();
    }
    let cache = cache(&ledger, folder.path(), 0);
    let disk = cache.inner.disk.as_ref().unwrap();
    // Now it is known what is there.
    assert_eq!(cache.lookup(&tokens).tokens(), 128);
    let opened = |blocks: usize| {
        let before = disk.stats().files_opened;
        cache.publish(&sequence, &tokens[..blocks * 64]).unwrap();
        cache.finish(|| false);
        disk.stats().files_opened - before
    };
    // The file and the time of the first one; once, each file before it.
    assert_eq!([3, 4, 4].map(opened), [2 + 2, 2, 0]);
    let times = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().modified().unwrap());
    assert!(times.into_iter().all(|time| time > long_ago + Duration::from_secs(1800)), "a file has an old time");
    for used in disk.files.known().tips.values_mut() {
        *used -= 2 * TOUCH_AFTER;
    }
    assert_eq!(opened(5), 2 + 4, "after a rest");
}

/// A log that fails where a warning is written.
struct Broken;

impl io::Write for Broken {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        panic!("the log is broken")
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn blocks_of_a_writer_that_failed_are_counted_and_nobody_waits_for_them() {
    let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir().unwrap());
    let log = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(|| Broken).finish();
    let disk = tracing::subscriber::with_default(log, || open(folder.path(), u64::MAX));
    fs::write(disk.files.folder.file_path(&Key([0; 32])), "no file of a cache").unwrap();
    disk.write(blocks(&ledger, 3));
    disk.finish(&|| false);
    disk.write(blocks(&ledger, 2));
    disk.wait_for(&[Key([1; 32])]);
    disk.finish(&|| false);
    let stats = disk.stats();
    assert_eq!((stats.files_written, stats.left_out_for_fault), (0, 5), "{stats:?}");
    assert_eq!(ledger.usage().reserved_bytes(), 0);
}

#[test]
fn a_folder_that_cannot_be_flushed_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let disk = open(&folder.path().join("cache"), u64::MAX);
    fs::remove_dir(folder.path().join("cache")).unwrap();
    disk.files.folder.sync();
    disk.files.folder.sync();
    let stats = disk.stats();
    assert_eq!((stats.folder_syncs, stats.failed_folder_syncs), (2, 2), "{stats:?}");
}
