use super::*;
use crate::slab::SlabRef;
use plimsoll_memguard::{Budget, Kind, Ledger};
use std::path::Path;

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
    disk.write(blocks(&ledger, 20));
    let held_bytes = ledger.usage().prefix_cache_bytes;
    assert!(held_bytes <= 2 * PART_BYTES as u64, "{held_bytes} bytes wait in a queue of two blocks");
    disk.finish(&|| false);
    let stats = disk.stats();
    assert_eq!((stats.files_written, stats.waits_for_queue), (20, 1), "{stats:?}");
    assert_eq!(ledger.usage().reserved_bytes(), 0, "what was written is let go");
    assert!((1..=20).contains(&stats.folder_syncs), "{stats:?}");
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
    disk.write(blocks(&ledger, 100));
    disk.finish(&|| true);
    let stats = disk.stats();
    assert!(stats.left_out_for_cancel > 0, "a hundred files were written at once");
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
