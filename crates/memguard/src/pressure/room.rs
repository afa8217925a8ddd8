//! What the machine leaves this process, read at the moment it is asked.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::probe::field_bytes;
use crate::{Ceiling, CeilingSource, Ceilings, ProcessMemory, RunsOn, system_probe};

/// The tightest limit on this process at one moment, and what of it is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// The limit.
    pub ceiling_bytes: u64,
    /// Bytes under that limit that cannot be had back by dropping file pages, whoever holds them.
    pub used_bytes: u64,
    /// Who says so; `None` for numbers that were written by hand.
    pub source: Option<CeilingSource>,
}

impl Room {
    /// Bytes left under the limit.
    #[must_use]
    pub fn left_bytes(&self) -> u64 {
        self.ceiling_bytes.saturating_sub(self.used_bytes)
    }
}

/// Reads the room that is left. A reading takes some tenths of a millisecond: ask per chunk, not per step.
pub trait Machine: Send + Sync {
    /// The room now; `None` where nothing limits the process, or nothing can be read.
    fn room(&self) -> Option<Room>;
}

impl<M: Machine + ?Sized> Machine for Arc<M> {
    fn room(&self) -> Option<Room> {
        (**self).room()
    }
}

/// This machine: RAM, and the control groups that the process is in. Nothing is kept between two readings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SystemMachine {
    /// What the process computes on: limits of a GPU bind no run on the CPU.
    pub runs_on: RunsOn,
}

impl Machine for SystemMachine {
    fn room(&self) -> Option<Room> {
        tightest(&Ceilings::detect().binding(self.runs_on), own_bytes())
    }
}

/// What this process takes of its control group by itself: its memory that no file backs, and its page tables. The counters of
/// `/proc/self/status` take no walk over all pages.
fn own_bytes() -> Option<u64> {
    let counted = fs::read_to_string("/proc/self/status").ok().and_then(|status| {
        let tables_bytes = field_bytes(&status, "VmPTE").unwrap_or(0);
        Some(ProcessMemory::from_status(&status).anonymous_bytes?.saturating_add(tables_bytes))
    });
    counted.or_else(|| system_probe()?.sample().footprint)
}

/// The limit with the least room. `own_bytes` stands in where a limit does not say what is used of it.
fn tightest(ceilings: &Ceilings, own_bytes: Option<u64>) -> Option<Room> {
    let available_bytes = ceilings.iter().find(|ceiling| ceiling.source.is_momentary()).map(|ceiling| ceiling.bytes);
    let fixed = ceilings.iter().filter(|ceiling| !ceiling.source.is_momentary());
    let rooms = fixed.filter_map(|ceiling| {
        // A group's counters are brought up to date by and by, and the process knows better what it has taken itself.
        let used_bytes = used_bytes(ceiling, available_bytes).max(own_bytes)?;
        Some(Room { ceiling_bytes: ceiling.bytes, used_bytes, source: Some(ceiling.source.clone()) })
    });
    rooms.min_by_key(Room::left_bytes)
}

/// What is used under a limit, file pages apart: they go when memory is wanted.
fn used_bytes(ceiling: &Ceiling, available_bytes: Option<u64>) -> Option<u64> {
    match &ceiling.source {
        CeilingSource::Ram => Some(ceiling.bytes.saturating_sub(available_bytes?)),
        // The usage files count file pages as well: in a group that has read a model they always stand near the limit.
        CeilingSource::CgroupV1 { file } => group_stat(file, &["total_rss", "total_shmem"], None),
        // Of the kernel's share, cached directory entries and the like go as well.
        CeilingSource::CgroupV2 { file } => group_stat(file, &["anon", "shmem", "kernel"], Some("slab_reclaimable")),
        _ => None,
    }
}

/// The sum of those lines of the group's `memory.stat` that are there, less another line; `None` if the first is not.
fn group_stat(limit_file: &Path, names: &[&str], less: Option<&str>) -> Option<u64> {
    let text = fs::read_to_string(limit_file.parent()?.join("memory.stat")).ok()?;
    let mut values = names.iter().map(|name| stat_bytes(&text, name));
    let first = values.next()??;
    let sum = values.flatten().fold(first, u64::saturating_add);
    Some(sum.saturating_sub(less.and_then(|name| stat_bytes(&text, name)).unwrap_or(0)))
}

/// The value of the line `name 123`, in bytes.
fn stat_bytes(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Gives rooms written beforehand, in turn, and the last one for ever after: a machine as a test wants it.
#[derive(Debug)]
pub struct FixedMachine {
    /// The rooms to come, reversed; never empty.
    rest: Mutex<Vec<Room>>,
}

impl FixedMachine {
    /// Under a limit of `ceiling_bytes`, with `used_bytes` in turn, then the last of them for ever.
    ///
    /// # Panics
    /// If `used_bytes` is empty.
    #[must_use]
    pub fn new(ceiling_bytes: u64, used_bytes: impl IntoIterator<Item = u64>) -> Self {
        let room = |used_bytes| Room { ceiling_bytes, used_bytes, source: None };
        let mut rest: Vec<_> = used_bytes.into_iter().map(room).collect();
        assert!(!rest.is_empty(), "a fixed machine needs at least one reading");
        rest.reverse();
        Self { rest: Mutex::new(rest) }
    }
}

impl Machine for FixedMachine {
    fn room(&self) -> Option<Room> {
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        if rest.len() > 1 { rest.pop() } else { rest.first().cloned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root folder with 1,000 KiB of RAM of which 400 are available, and the process in a group of each version.
    fn root() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 400 kB\n");
        root
    }

    #[test]
    fn ram_in_use_is_what_is_not_available() {
        let room = tightest(&Ceilings::read_linux(root().path()), None).unwrap();
        let want = Room { ceiling_bytes: 1000 << 10, used_bytes: 600 << 10, source: Some(CeilingSource::Ram) };
        assert_eq!((room.left_bytes(), room), (400 << 10, want));
    }

    #[test]
    fn file_pages_of_a_group_are_not_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write(
            "memory.stat",
            "cache 900\nrss 1\ntotal_cache 900\ntotal_rss 70\ntotal_shmem 5\nanon 60\nkernel 30\nslab_reclaimable 27\n",
        );
        let of = |source| used_bytes(&Ceiling { source, bytes: 1000, used_bytes: Some(990) }, None);
        assert_eq!(of(CeilingSource::CgroupV1 { file: folder.path().join("memory.limit_in_bytes") }), Some(75));
        assert_eq!(of(CeilingSource::CgroupV2 { file: folder.path().join("memory.max") }), Some(63));
        write("memory.stat", "shmem 5\n");
        assert_eq!(of(CeilingSource::CgroupV2 { file: folder.path().join("memory.max") }), None);
    }

    #[test]
    fn what_the_process_takes_itself_stands_in_where_a_limit_does_not_say_what_is_used() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc")).unwrap();
        fs::write(root.path().join("proc/meminfo"), "MemTotal: 1000 kB\n").unwrap();
        let ceilings = Ceilings::read_linux(root.path());
        assert_eq!(tightest(&ceilings, Some(7)).map(|room| room.used_bytes), Some(7));
        assert_eq!(tightest(&ceilings, None), None);
        assert_eq!(tightest(&Ceilings::default(), Some(7)), None);
    }

    #[test]
    fn counters_that_lag_behind_the_process_do_not_count_for_less() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("memory.stat"), "cache 900\ntotal_rss 70\n").unwrap();
        let source = CeilingSource::CgroupV1 { file: folder.path().join("memory.limit_in_bytes") };
        let ceilings = Ceilings::default().with(Ceiling { source, bytes: 1000, used_bytes: Some(990) });
        let left = |own_bytes| tightest(&ceilings, own_bytes).unwrap().left_bytes();
        assert_eq!((left(None), left(Some(50)), left(Some(400))), (930, 930, 600));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_this_process_takes_is_counted_with_its_page_tables() {
        let before = own_bytes().unwrap();
        let touched = vec![1_u8; 64 << 20];
        assert!(own_bytes().unwrap() > before + (32 << 20), "{before} before");
        assert_eq!(std::hint::black_box(touched).len(), 64 << 20);
    }

    #[test]
    fn this_machine_has_room_for_a_test() {
        if let Some(room) = SystemMachine::default().room() {
            assert!(room.used_bytes > 0 && room.left_bytes() > 0, "{room:?}");
        }
    }

    #[test]
    fn a_fixed_machine_gives_its_readings_in_turn_and_the_last_for_ever() {
        let machine = FixedMachine::new(100, [10, 120]);
        let left: Vec<_> = (0..3).filter_map(|_| machine.room()).map(|room| room.left_bytes()).collect();
        assert_eq!(left, [90, 0, 0]);
    }
}
