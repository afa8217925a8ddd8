//! A program run to its end: what it printed, how long it took, and the most memory that was resident.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// Between two looks at a process: its high water is kept by the system, so only growth in the last such moment is missed.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Finished {
    pub(super) stdout: String,
    /// From start to end of the process.
    pub(super) seconds: f64,
    /// High water of the resident set, file pages included; `None` where the system does not tell.
    pub(super) peak_resident_bytes: Option<u64>,
}

/// Runs `command` to its end.
///
/// # Errors
/// If it cannot start or fails; the message ends with the last line of its standard error.
pub(super) fn run(command: &mut Command) -> Result<Finished> {
    let mut command = metered(command);
    let program = without_folders(&command.get_program().to_string_lossy());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let start = Instant::now();
    let child = command.spawn().with_context(|| format!("cannot start {program}"))?;
    let id = child.id();
    let waiter = thread::spawn(move || {
        let output = child.wait_with_output();
        (output, start.elapsed())
    });
    let mut peak = None;
    while !waiter.is_finished() {
        peak = resident_peak(id).max(peak);
        thread::sleep(LOOK);
    }
    let Ok((output, elapsed)) = waiter.join() else { bail!("cannot wait for {program}") };
    let output = output.with_context(|| format!("cannot read what {program} printed"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let last = stderr.lines().rfind(|line| is_telling(line)).unwrap_or("it printed no reason").trim();
        bail!("{program} failed ({}): {}", output.status, without_folders(last));
    }
    Ok(Finished {
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        seconds: elapsed.as_secs_f64(),
        peak_resident_bytes: peak.or_else(|| peak_from_time(&stderr)),
    })
}

/// Absolute paths cut down to their last part: a record tells nothing of this machine's folders.
fn without_folders(text: &str) -> String {
    let last = |word: &str| match Path::new(word).file_name() {
        Some(name) if Path::new(word).is_absolute() => name.to_string_lossy().into_owned(),
        _ => word.to_owned(),
    };
    text.split(' ').map(last).collect::<Vec<_>>().join(" ")
}

/// Blank lines and hints come after the reason.
fn is_telling(line: &str) -> bool {
    !line.trim().is_empty() && !line.starts_with("hint:")
}

/// Where the system keeps no high water to look at, `time` reports it.
fn metered(command: &Command) -> Command {
    let mut metered;
    if cfg!(target_os = "macos") {
        metered = Command::new("/usr/bin/time");
        metered.arg("-l").arg(command.get_program());
    } else {
        metered = Command::new(command.get_program());
    }
    metered.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => metered.env(name, value),
            None => metered.env_remove(name),
        };
    }
    metered
}

fn resident_peak(id: u32) -> Option<u64> {
    high_water(&fs::read_to_string(format!("/proc/{id}/status")).ok()?)
}

/// `VmHWM` of `/proc/PID/status`, in bytes; a process that has ended has none.
fn high_water(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// What `time -l` reports, in bytes.
fn peak_from_time(stderr: &str) -> Option<u64> {
    let line = stderr.lines().find_map(|line| line.trim().strip_suffix("maximum resident set size"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_water_is_read_from_what_the_system_prints() {
        assert_eq!(high_water("Name:\tx\nVmPeak:\t 9 kB\nVmHWM:\t    1234 kB\n"), Some(1234 * 1024));
        assert_eq!(high_water("Name:\tx\nState:\tZ (zombie)\n"), None);
        assert_eq!(peak_from_time("  0.1 real\n   5259264  maximum resident set size\n"), Some(5_259_264));
        assert_eq!(peak_from_time("warning\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_program_is_run_and_its_memory_seen() {
        let finished = run(Command::new("sh").args(["-c", "echo said; sleep 0.1"])).unwrap();
        assert_eq!(finished.stdout, "said\n");
        assert!(finished.seconds >= 0.1, "{finished:?}");
        assert!(finished.peak_resident_bytes.unwrap() > 0);
    }

    #[cfg(unix)]
    #[test]
    fn a_failure_says_why_and_names_no_folder() {
        let script = "echo no tokens in /some/where/ids.txt >&2; echo 'hint: add some' >&2; exit 3";
        let error = run(Command::new("/bin/sh").args(["-c", script])).unwrap_err().to_string();
        assert!(error.starts_with("sh failed") && error.ends_with("no tokens in ids.txt"), "{error}");
        assert!(run(&mut Command::new("no-such-program-anywhere")).is_err());
    }
}
