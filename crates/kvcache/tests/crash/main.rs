//! Processes that write to one folder are killed in the middle of it, again and again: what is left opens clean, and every hit is right.
//!
//! A binary without the test harness: it starts itself as the writers.
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]
#![expect(clippy::print_stdout, reason = "it stands for the harness")]

#[path = "../it/plain_model.rs"]
mod plain_model;

use plain_model::{IDENTITY, cold, content, empty, hybrid, ids, prefill, run, windowed};
use plimsoll_kvcache::{DiskOptions, KvSpec, PrefixCache};
use plimsoll_memguard::{Budget, Ledger};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{env, fs, io, thread};

const ROUNDS: u64 = 24;
const VERSIONS: u32 = 12;
const TOKENS: usize = 400;

fn specs() -> [KvSpec; 2] {
    [windowed(), hybrid(1)]
}

fn open(ledger: &Ledger, spec: &KvSpec, folder: &Path) -> PrefixCache {
    // Room for about half of what is written: files come and go.
    let disk = DiskOptions { folder: folder.to_owned(), limit_bytes: 800_000 };
    PrefixCache::with_disk(ledger, spec, &IDENTITY, 0, &disk).unwrap()
}

/// Publishes prompt after prompt until it is killed, with the writers of both caches behind: blocks wait, are being written, make room or are
/// merged when the end comes.
fn write(folder: &Path, first: u32) {
    let ledger = Ledger::new(Budget::Unlimited);
    let caches = specs().map(|spec| (open(&ledger, &spec, folder), spec));
    println!("writing");
    for version in (0..VERSIONS).cycle().skip(first as usize) {
        for (cache, spec) in &caches {
            prefill(cache, &mut empty(&ledger, spec, TOKENS), &ids(TOKENS, version));
        }
    }
}

fn start(folder: &Path, first: u32) -> Child {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["write", folder.to_str().unwrap(), &first.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "writing\n");
    child
}

/// Lines that the cache logs: there must be none.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Blocks that were found.
fn check(folder: &Path) -> usize {
    let mut found = 0;
    for spec in specs() {
        let ledger = Ledger::new(Budget::Unlimited);
        let cache = open(&ledger, &spec, folder);
        for version in 0..VERSIONS {
            let tokens = ids(TOKENS, version);
            let mut sequence = empty(&ledger, &spec, TOKENS);
            found += cache.restore(&mut sequence, &tokens).unwrap() / 64;
            while sequence.len() < TOKENS {
                let rows = (TOKENS - sequence.len()).min(64);
                run(&mut sequence, &tokens, rows);
            }
            assert!(content(&mut sequence) == cold(&spec, &tokens), "version {version}");
        }
    }
    let unfinished = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "unfinished");
    let left = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(unfinished).count();
    assert_eq!(left, 0, "files of dead writers are left");
    found
}

fn main() {
    let args: Vec<String> = env::args().collect();
    if args.get(1).is_some_and(|arg| arg == "write") {
        return write(Path::new(&args[2]), args[3].parse().unwrap());
    }
    if args.iter().any(|arg| arg == "--list") {
        println!("killed_writers: test");
        return;
    }
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_writer(move || writer.clone()).init();
    let folder = tempfile::tempdir().unwrap();
    let (mut unfinished, mut found) = (0, 0);
    for round in 0..ROUNDS {
        let first = u32::try_from(round % 12).unwrap();
        let mut writers = [start(folder.path(), first), start(folder.path(), (first + 5) % VERSIONS)];
        // Long enough for some files, and another moment of a write in each round.
        thread::sleep(Duration::from_micros(2_000 + round * 1_700));
        for writer in &mut writers {
            writer.kill().unwrap();
            writer.wait().unwrap();
        }
        let is_unfinished = |path: PathBuf| path.extension().is_some_and(|extension| extension == "unfinished");
        unfinished +=
            fs::read_dir(folder.path()).unwrap().filter(|entry| is_unfinished(entry.as_ref().unwrap().path())).count();
        found += check(folder.path());
    }
    let told = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(told.is_empty(), "{told}");
    assert!(found > 0, "no round found a block");
    println!(
        "killed_writers: {ROUNDS} rounds of 2 writers, {unfinished} files cut off, {found} blocks found, all right"
    );
}
