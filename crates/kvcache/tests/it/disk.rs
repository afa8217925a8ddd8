//! The prefix cache on disk: only whole, own and undamaged files are believed.

use super::plain_model::{IDENTITY, cold, content, empty, hybrid, ids, prefill, run, windowed};
use plimsoll_kvcache::{DiskOptions, KvSpec, PrefixCache};
use plimsoll_memguard::{Budget, Kind, Ledger};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

/// A cache of a process that has just started: nothing in memory.
fn open(ledger: &Ledger, spec: &KvSpec, folder: &Path, limit_bytes: u64) -> PrefixCache {
    let disk = DiskOptions { folder: folder.to_owned(), limit_bytes };
    PrefixCache::with_disk(ledger, spec, &IDENTITY, u64::MAX, &disk).unwrap()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort_by_key(|path| fs::metadata(path).unwrap().modified().unwrap());
    files
}

/// Collects warnings.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn warnings(f: impl FnOnce()) -> Vec<String> {
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).without_time().with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(subscriber, f);
    let bytes = log.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap().lines().filter(|line| line.contains("WARN")).map(str::to_owned).collect()
}

#[test]
fn files_of_others_in_the_folder_stay() {
    let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir().unwrap());
    let names = ["notes.kv", "thesis.unfinished", "1-2-x.unfinished", "ABCDEF.kv", "plain"];
    for name in names {
        fs::write(folder.path().join(name), vec![7; 10_000]).unwrap();
    }
    // A limit that nothing is within: what the cache wrote goes.
    prefill(&open(&ledger, &super::spec(), folder.path(), 1), &mut empty(&ledger, &super::spec(), 310), &ids(310, 0));
    drop(open(&ledger, &super::spec(), folder.path(), 1));
    let mut left: Vec<_> =
        files(folder.path()).iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    left.sort_unstable();
    let mut names = names.map(str::to_owned);
    names.sort_unstable();
    assert_eq!(left, names);
}

#[test]
fn a_pipe_under_the_name_of_a_block_is_not_waited_for() {
    let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir().unwrap());
    let (spec, tokens) = (super::spec(), ids(310, 0));
    prefill(&open(&ledger, &spec, folder.path(), 1 << 30), &mut empty(&ledger, &spec, 310), &tokens);
    for path in files(folder.path()).into_iter().chain([folder.path().join("1-2-3.unfinished")]) {
        let _ = fs::remove_file(&path);
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    }
    let cache = open(&ledger, &spec, folder.path(), 1 << 30);
    assert_eq!(cache.restore(&mut empty(&ledger, &spec, 310), &tokens), Ok(0));
}

#[test]
fn a_later_process_finds_what_an_earlier_one_wrote() {
    for (spec, cached) in [(super::spec(), 256), (windowed(), 256), (hybrid(1), 256), (hybrid(3), 192)] {
        let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir().unwrap());
        let tokens = ids(310, 0);
        prefill(&open(&ledger, &spec, folder.path(), 1 << 30), &mut empty(&ledger, &spec, 310), &tokens);
        assert_eq!(files(folder.path()).len(), 4);
        let tight = Ledger::new(Budget::Bytes(spec.bytes(310)));
        let cache = open(&tight, &spec, folder.path(), 1 << 30);
        let mut sequence = empty(&tight, &spec, 310);
        // The ledger has no byte beyond the sequence's own: its reservation pays for what is read.
        assert_eq!(cache.restore(&mut sequence, &tokens), Ok(cached), "{spec:?}");
        assert_eq!(tight.usage().reserved_bytes(), spec.bytes(310));
        while sequence.len() < tokens.len() {
            let rows = (tokens.len() - sequence.len()).min(64);
            run(&mut sequence, &tokens, rows);
        }
        assert!(content(&mut sequence) == cold(&spec, &tokens), "{spec:?}");
        cache.publish(&sequence, &tokens).unwrap();
        drop(sequence);
        cache.clear();
        assert_eq!(tight.usage().reserved_bytes(), 0);
    }
}

#[test]
fn a_damaged_file_is_dropped_with_one_warning_and_the_prefix_before_it_is_used() {
    let spec = hybrid(1);
    let tokens = ids(310, 0);
    let whole = {
        let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir().unwrap());
        prefill(&open(&ledger, &spec, folder.path(), 1 << 30), &mut empty(&ledger, &spec, 310), &tokens);
        // Used latest is the first block.
        let read = |path: PathBuf| (path.file_name().unwrap().to_owned(), fs::read(path).unwrap());
        files(folder.path()).into_iter().rev().map(read).collect::<Vec<_>>()
    };
    let flip = |at: usize| move |bytes: &mut Vec<u8>| bytes[at] ^= 1;
    let length = whole[2].1.len();
    type Damage = Box<dyn Fn(&mut Vec<u8>)>;
    let other = whole[1].1.clone();
    let cases: Vec<(&str, Damage)> = vec![
        ("no file of a prefix cache", Box::new(flip(0))),
        ("another version", Box::new(flip(8))),
        ("another model", Box::new(flip(20))),
        ("another block", Box::new(flip(60))),
        ("another block", Box::new(move |bytes| bytes.clone_from(&other))),
        ("parts that the model does not have", Box::new(|bytes| bytes[80 + 5] = 1)),
        ("its length", Box::new(|bytes| bytes.push(0))),
        ("its length", Box::new(|bytes| bytes.truncate(bytes.len() - 1))),
        ("too short", Box::new(|bytes| bytes.truncate(30))),
        ("too short", Box::new(Vec::clear)),
        ("its checksum", Box::new(flip(100))),
        ("its checksum", Box::new(flip(length - 1))),
        ("its checksum", Box::new(move |bytes| bytes[200..length - 40].fill(0))),
    ];
    for (reason, damage) in cases {
        let (ledger, folder) = (Ledger::new(Budget::Bytes(spec.bytes(310))), tempfile::tempdir().unwrap());
        for (index, (name, bytes)) in whole.iter().enumerate() {
            let mut bytes = bytes.clone();
            if index == 2 {
                damage(&mut bytes);
            }
            fs::write(folder.path().join(name), bytes).unwrap();
        }
        let told = warnings(|| {
            let cache = open(&ledger, &spec, folder.path(), 1 << 30);
            for _ in 0..3 {
                let mut sequence = empty(&ledger, &spec, 310);
                assert_eq!(cache.restore(&mut sequence, &tokens), Ok(128), "{reason}");
                assert_eq!(ledger.usage().reserved_bytes(), spec.bytes(310), "{reason}");
                run(&mut sequence, &tokens, 182);
                assert!(content(&mut sequence) == cold(&spec, &tokens), "{reason}");
            }
        });
        assert!(told.len() == 1 && told[0].contains(reason), "{reason}: {told:?}");
        assert!(!folder.path().join(&whole[2].0).exists(), "{reason}");
    }
}

#[test]
fn the_folder_stays_within_its_limit_and_keeps_what_was_used_last() {
    let spec = super::spec();
    let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir().unwrap());
    let path = folder.path();
    prefill(&open(&ledger, &spec, path, 1 << 30), &mut empty(&ledger, &spec, 200), &ids(200, 0));
    let bytes: u64 = files(path).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    let limited = || open(&ledger, &spec, path, 2 * bytes);
    let publish = |version| prefill(&limited(), &mut empty(&ledger, &spec, 200), &ids(200, version));
    assert_eq!((publish(1), publish(0)), (0, 192));
    publish(2);
    assert_eq!(files(path).len(), 6);
    let found = |version| limited().lookup(&ids(200, version)).tokens();
    assert_eq!([0, 1, 2].map(found), [192, 0, 192]);
    let tiny = open(&ledger, &spec, path, bytes / 3);
    assert_eq!((files(path).len(), tiny.lookup(&ids(200, 0)).tokens()), (1, 0), "opening trims too");
    fs::write(path.join("123-0-0.unfinished"), b"left by a writer that died").unwrap();
    drop(limited());
    assert_eq!(files(path).len(), 1);
}

#[test]
fn files_of_a_clock_that_was_wrong_go_first() {
    let spec = super::spec();
    let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir().unwrap());
    let publish = |version, limit_bytes| {
        let cache = open(&ledger, &spec, folder.path(), limit_bytes);
        prefill(&cache, &mut empty(&ledger, &spec, 200), &ids(200, version));
    };
    publish(0, u64::MAX);
    let bytes: u64 = files(folder.path()).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    let later = SystemTime::now() + Duration::from_secs(1 << 30);
    for path in files(folder.path()) {
        fs::File::open(path).unwrap().set_modified(later).unwrap();
    }
    publish(1, bytes);
    let found = |version| open(&ledger, &spec, folder.path(), bytes).lookup(&ids(200, version)).tokens();
    assert_eq!((found(0), found(1)), (0, 192));
}

#[test]
fn a_folder_that_cannot_be_written_costs_one_warning_and_no_result() {
    let spec = super::spec();
    let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir().unwrap());
    let path = folder.path().join("cache");
    let told = warnings(|| {
        let cache = open(&ledger, &spec, &path, 1 << 30);
        fs::remove_dir(&path).unwrap();
        assert_eq!(prefill(&cache, &mut empty(&ledger, &spec, 200), &ids(200, 0)), 0);
        assert_eq!(prefill(&cache, &mut empty(&ledger, &spec, 200), &ids(200, 0)), 192, "from memory");
    });
    assert_eq!(told.len(), 1, "{told:?}");
    fs::write(&path, "a file").unwrap();
    let disk = DiskOptions { folder: path, limit_bytes: 1 };
    assert!(PrefixCache::with_disk(&ledger, &spec, &IDENTITY, 1, &disk).is_err());
}

#[test]
fn a_prompt_costs_file_operations_in_proportion_to_its_blocks() {
    for (spec, blocks) in
        [super::spec(), windowed(), hybrid(1)].into_iter().flat_map(|spec| [(spec.clone(), 10), (spec, 80)])
    {
        let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir().unwrap());
        let tokens = ids(blocks * 64 + 1, 0);
        let cold = {
            let cache = open(&ledger, &spec, folder.path(), 1 << 30);
            prefill(&cache, &mut empty(&ledger, &spec, tokens.len()), &tokens);
            cache.finish(|| false);
            cache.disk_stats().unwrap()
        };
        let count = blocks as u64;
        assert_eq!((cold.files_written, cold.folder_listings, cold.files_removed), (count, 1, 0), "{cold:?}");
        // The lookup asks for the first file; the writer looks whether a file is there, and at the time of the first one.
        assert_eq!(cold.files_opened, 1 + count + (count - 1), "{cold:?}");
        assert!(cold.folder_syncs <= count, "{cold:?}");
        let cache = open(&ledger, &spec, folder.path(), 1 << 30);
        assert_eq!(prefill(&cache, &mut empty(&ledger, &spec, tokens.len()), &tokens), blocks * 64);
        cache.finish(|| false);
        let warm = cache.disk_stats().unwrap();
        // A header, the content and the time of use.
        assert_eq!((warm.files_written, warm.files_opened, warm.folder_listings), (0, 3 * count, 1), "{warm:?}");
    }
}

#[test]
fn at_its_limit_a_folder_is_not_listed_for_every_block() {
    let spec = super::spec();
    let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir().unwrap());
    let publish = |version, limit_bytes| {
        let cache = open(&ledger, &spec, folder.path(), limit_bytes);
        let tokens = ids(40 * 64, version);
        assert_eq!(prefill(&cache, &mut empty(&ledger, &spec, tokens.len()), &tokens), 0);
        cache.finish(|| false);
        cache.disk_stats().unwrap()
    };
    publish(0, 1 << 30);
    let bytes: u64 = files(folder.path()).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    let full = publish(1, bytes);
    assert_eq!((full.files_written, full.files_removed, full.folder_listings), (40, 40, 1), "{full:?}");
    // A prompt that is longer than the folder keeps its beginning, and goes on without a file more.
    let tight = publish(2, bytes / 4);
    assert_eq!((tight.files_written, tight.left_out_for_limit), (10, 30), "{tight:?}");
    assert!(tight.folder_listings <= 2, "{tight:?}");
    assert_eq!(open(&ledger, &spec, folder.path(), bytes).lookup(&ids(40 * 64, 2)).tokens(), 10 * 64);
}

#[test]
fn a_file_that_is_written_again_keeps_what_only_it_had() {
    // A window and a state: none of two files of one block has all of it.
    let layers = [hybrid(1).layers, vec![super::plain_model::window(16)]].concat();
    let spec = KvSpec { layers, ..hybrid(1) };
    let tokens = ids(200, 0);
    let publish = |spec: &KvSpec, folder: &Path| {
        let ledger = Ledger::new(Budget::Unlimited);
        let disk = DiskOptions { folder: folder.to_owned(), limit_bytes: 1 << 30 };
        let cache = PrefixCache::with_disk(&ledger, spec, &IDENTITY, 0, &disk).unwrap();
        let mut sequence = empty(&ledger, spec, 200);
        run(&mut sequence, &tokens, 64);
        if spec.snapshots.is_none() {
            cache.publish(&sequence, &tokens[..64]).unwrap();
            return;
        }
        run(&mut sequence, &tokens, 64);
        cache.publish(&sequence, &tokens[..128]).unwrap();
    };
    for (is_damaged, borders) in [(false, [64, 128]), (true, [0, 128])] {
        let folder = tempfile::tempdir().unwrap();
        // Keys, values and window of the first block; then keys, values and state.
        publish(&spec.clone().with_snapshots(None), folder.path());
        if is_damaged {
            let path = &files(folder.path())[0];
            let mut bytes = fs::read(path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(path, bytes).unwrap();
        }
        let told = warnings(|| publish(&spec, folder.path()));
        assert_eq!(told.len(), usize::from(is_damaged), "{told:?}");
        let ledger = Ledger::new(Budget::Unlimited);
        for (tokens, border) in [&tokens[..100], &tokens].into_iter().zip(borders) {
            let cache = open(&ledger, &spec, folder.path(), 1 << 30);
            let mut sequence = empty(&ledger, &spec, 200);
            assert_eq!(cache.restore(&mut sequence, tokens), Ok(border), "damaged: {is_damaged}");
            while sequence.len() < tokens.len() {
                let rows = (tokens.len() - sequence.len()).min(64);
                run(&mut sequence, tokens, rows);
            }
            assert!(content(&mut sequence) == cold(&spec, tokens));
        }
    }
}

#[test]
fn what_waits_for_the_writer_is_paid_for() {
    for spec in [windowed(), hybrid(1)] {
        let (tokens, folder) = (ids(310, 0), tempfile::tempdir().unwrap());
        let needed = spec.bytes(310);
        // Not a byte beside the sequence's own: each publish waits for its windows and states.
        for (budget, waits) in [(needed, true), (2 * needed, false)] {
            let ledger = Ledger::new(Budget::Bytes(budget));
            let disk = DiskOptions { folder: folder.path().join(waits.to_string()), limit_bytes: 1 << 30 };
            let cache = PrefixCache::with_disk(&ledger, &spec, &IDENTITY, 0, &disk).unwrap();
            let mut sequence = empty(&ledger, &spec, 310);
            prefill(&cache, &mut sequence, &tokens);
            assert!(content(&mut sequence) == cold(&spec, &tokens));
            let stats = cache.disk_stats().unwrap();
            assert_eq!(stats.waits_for_ledger > 0, waits, "{stats:?}");
            // Who needs the memory waits for the disk.
            drop(ledger.reserve(Kind::Kv, budget - needed).unwrap());
            drop(sequence);
            drop(ledger.reserve(Kind::Kv, budget).unwrap());
            let stats = cache.disk_stats().unwrap();
            assert_eq!((stats.files_written, ledger.usage().reserved_bytes()), (4, 0), "{stats:?}");
        }
    }
}

#[test]
fn what_was_published_is_found_though_it_may_still_wait() {
    for spec in [super::spec(), windowed(), hybrid(1)] {
        let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir().unwrap());
        let disk = DiskOptions { folder: folder.path().to_owned(), limit_bytes: 1 << 30 };
        let cache = PrefixCache::with_disk(&ledger, &spec, &IDENTITY, 0, &disk).unwrap();
        for version in 0..5 {
            let tokens = ids(310, version);
            prefill(&cache, &mut empty(&ledger, &spec, 310), &tokens);
            let mut sequence = empty(&ledger, &spec, 310);
            assert_eq!(cache.restore(&mut sequence, &tokens), Ok(256), "{spec:?}");
            run(&mut sequence, &tokens, 54);
            assert!(content(&mut sequence) == cold(&spec, &tokens), "{spec:?}");
        }
    }
}

#[test]
fn blocks_that_were_left_out_are_written_for_the_next_request() {
    let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir().unwrap());
    let (spec, path, tokens) = (super::spec(), folder.path().join("cache"), ids(310, 0));
    let disk = DiskOptions { folder: path.clone(), limit_bytes: 1 << 30 };
    let cache = PrefixCache::with_disk(&ledger, &spec, &IDENTITY, 0, &disk).unwrap();
    fs::remove_dir(&path).unwrap();
    prefill(&cache, &mut empty(&ledger, &spec, 310), &tokens);
    cache.finish(|| false);
    let stats = cache.disk_stats().unwrap();
    assert_eq!((stats.files_written, stats.left_out_for_fault), (0, 4), "once each, not after every chunk: {stats:?}");
    fs::create_dir(&path).unwrap();
    for cached in [0, 256] {
        assert_eq!(prefill(&cache, &mut empty(&ledger, &spec, 310), &tokens), cached);
    }
}

#[test]
fn a_damaged_folder_costs_one_warning_by_name_and_one_by_number() {
    let (ledger, folder) = (Ledger::new(Budget::Unlimited), tempfile::tempdir().unwrap());
    let (spec, tokens) = (super::spec(), ids(310, 0));
    prefill(&open(&ledger, &spec, folder.path(), 1 << 30), &mut empty(&ledger, &spec, 310), &tokens);
    for path in files(folder.path()) {
        fs::write(path, "damaged").unwrap();
    }
    let told = warnings(|| {
        let cache = open(&ledger, &spec, folder.path(), 1 << 30);
        assert_eq!(prefill(&cache, &mut empty(&ledger, &spec, 310), &tokens), 0);
        cache.finish(|| false);
        cache.finish(|| false);
        assert_eq!(cache.disk_stats().unwrap().files_dropped, 4);
    });
    assert!(told.len() == 2 && told[0].contains(".kv") && told[1].contains("3 more files"), "{told:?}");
}
