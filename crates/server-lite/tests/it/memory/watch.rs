//! The program from outside: what the system charges it, and control groups that bound it.
//!
//! `PLIMSOLL_MEMORY_BINARY` names another build of the program to watch, and `PLIMSOLL_MEMORY_MODELS` model files for the long forms of these tests,
//! as `cargo xtask memory` sets them (`PLIMSOLL_MEMORY_CASES=star`: fewer of them). Without them the built program runs tiny models for some seconds.

use crate::{Ran, plimsoll};
use plimsoll_memguard::ProcessMemory;
use std::{
    env, fs,
    io::Read as _,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

/// Models that the long forms run; empty for the short ones.
pub(super) fn models() -> Vec<PathBuf> {
    env::var_os("PLIMSOLL_MEMORY_MODELS").map(|paths| env::split_paths(&paths).collect()).unwrap_or_default()
}

/// The program with `args`.
pub(super) fn program(args: &[&str]) -> Command {
    let binary = env::var_os("PLIMSOLL_MEMORY_BINARY").map(PathBuf::from);
    let built = plimsoll(args);
    let Some(binary) = binary else { return built };
    let mut command = Command::new(binary);
    command.args(args).stdin(Stdio::null());
    for (name, value) in built.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// How a run ended, and the most anonymous memory that the system counted for it while it ran.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) ran: Ran,
    pub(super) signal: Option<i32>,
    pub(super) peak_anonymous_bytes: u64,
    pub(super) readings: usize,
}

/// Runs `command` and reads its `smaps_rollup` again and again.
pub(super) fn watch(mut command: Command) -> Watched {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let path = format!("/proc/{}/smaps_rollup", child.id());
    let (done, peak, readings) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let output = thread::scope(|scope| {
        scope.spawn(|| {
            while done.load(Ordering::Relaxed) == 0 {
                let text = fs::read_to_string(&path).unwrap_or_default();
                if let Some(bytes) = ProcessMemory::from_smaps_rollup(&text).footprint_bytes() {
                    peak.fetch_max(usize::try_from(bytes).unwrap(), Ordering::Relaxed);
                    readings.fetch_add(1, Ordering::Relaxed);
                }
                thread::sleep(Duration::from_micros(500));
            }
        });
        // The pipes are emptied meanwhile. The process is waited for by this call alone, so its number stays its own until then.
        let stdout = child.stdout.take().unwrap();
        let stderr = child.stderr.take().unwrap();
        let read = |mut pipe: Box<dyn std::io::Read + Send>| {
            let mut text = String::new();
            pipe.read_to_string(&mut text).map(|_| text)
        };
        let errors = scope.spawn(move || read(Box::new(stderr)));
        let stdout = read(Box::new(stdout)).unwrap();
        let stderr = errors.join().unwrap().unwrap();
        let status = child.wait().unwrap();
        done.store(1, Ordering::Relaxed);
        (status, stdout, stderr)
    });
    let (status, stdout, stderr) = output;
    Watched {
        ran: Ran { code: status.code(), stdout, stderr },
        signal: status.signal(),
        peak_anonymous_bytes: peak.into_inner() as u64,
        readings: readings.into_inner(),
    }
}

/// A control group that allows so many bytes, gone with the value.
pub(super) struct Group {
    folder: PathBuf,
    /// The file that counts kills.
    events: &'static str,
}

impl Group {
    /// `None`, with a line on standard error, where no group can be made.
    pub(super) fn new(limit_bytes: u64) -> Option<Self> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!("plimsoll-test-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let path_of = |is_it: fn(&str) -> bool| {
            own.lines().find(|line| is_it(line)).and_then(|line| line.splitn(3, ':').nth(2)).map(str::to_owned)
        };
        let limit = limit_bytes.to_string();
        let v1 =
            path_of(|line| line.split(':').nth(1).is_some_and(|names| names.split(',').any(|name| name == "memory")));
        if let Some(path) = v1 {
            let settings = [("memory.limit_in_bytes", &*limit), ("memory.memsw.limit_in_bytes", &*limit)];
            let folder = Path::new("/sys/fs/cgroup/memory").join(path.trim_start_matches('/')).join(&name);
            if let Some(group) = Self::make(folder, "memory.oom_control", &settings) {
                return Some(group);
            }
        }
        if let Some(path) = path_of(|line| line.starts_with("0::")) {
            let folder = Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/')).join(&name);
            let settings = [("memory.max", &*limit), ("memory.swap.max", "0")];
            if let Some(group) = Self::make(folder, "memory.events", &settings) {
                return Some(group);
            }
        }
        eprintln!("NOT RUN: no control group with a memory limit can be made here");
        None
    }

    /// The first setting is the limit, which must hold; the second keeps swap out, where there is any.
    fn make(folder: PathBuf, events: &'static str, settings: &[(&str, &str); 2]) -> Option<Self> {
        fs::create_dir(&folder).ok()?;
        let group = Self { folder, events };
        let [(limit, bytes), (swap, no_swap)] = settings;
        fs::write(group.folder.join(limit), bytes).ok()?;
        let _ = fs::write(group.folder.join(swap), no_swap);
        Some(group)
    }

    /// Runs `command` inside of the group.
    pub(super) fn watch(&self, command: &Command) -> Watched {
        watch(self.inside(command))
    }

    /// `command`, to be run inside of the group.
    pub(super) fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        inside.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.folder.join("cgroup.procs"));
        inside.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// Has another process of the group take memory until no more than `left_bytes` of the limit are left.
    pub(super) fn fill(&self, limit_bytes: u64, left_bytes: u64) -> Hog {
        let bytes = limit_bytes.checked_sub(self.anonymous_bytes() + left_bytes).expect("there is that much left");
        let mut command = Command::new("dd");
        command.args(["if=/dev/zero", &format!("bs={bytes}"), "count=1"]).stderr(Stdio::null());
        let mut child = self.inside(&command).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        // Its buffer is full once some of it comes out; nobody takes the rest.
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        Hog(child)
    }

    /// What the group's processes hold beside file pages.
    fn anonymous_bytes(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join("memory.stat")).unwrap();
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value("total_rss ").or_else(|| value("anon ")).unwrap()
    }

    /// Processes of the group that the kernel has killed for want of memory.
    pub(super) fn kills(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join(self.events)).unwrap();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()).unwrap()
    }
}

/// A process that holds memory until the value is dropped.
pub(super) struct Hog(Child);

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a signal to a process that this test started.
#[track_caller]
pub(super) fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes have ended; the kernel may take a moment to see it.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        eprintln!("{} is left behind", self.folder.display());
    }
}
