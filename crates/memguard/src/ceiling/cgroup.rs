//! Linux control groups, both versions: which group this process is in, where it is mounted, what it allows.
//!
//! A group is bound by its own limit and by those of all groups above it, so every level is read. Formats: proc(5),
//! cgroups(7), and the kernel's `admin-guide/cgroup-v1/memory.rst` and `admin-guide/cgroup-v2.rst`.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::{Ceiling, CeilingSource};
use crate::mounts::{Mount, mounts};

/// Version 1 says "no limit" by a huge number (`i64::MAX` rounded down to a page). No machine has this much.
const V1_UNLIMITED_BYTES: u64 = 1 << 62;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// A mounted hierarchy that can limit memory.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    version: Version,
    /// The group that is seen at `point`.
    root: String,
    point: PathBuf,
}

pub(super) fn ceilings(root: &Path) -> Vec<Ceiling> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let groups = read("proc/self/cgroup");
    let mut found = Vec::new();
    for mount in hierarchies(&read("proc/self/mountinfo")) {
        let Some(group) = group_of(&groups, mount.version) else {
            continue;
        };
        for dir in dirs(&mount, group) {
            // `dir` starts with `/`, which would replace `root`.
            let real = root.join(dir.strip_prefix("/").unwrap_or(&dir));
            match mount.version {
                Version::V1 => found.extend(read_v1(&real, &dir)),
                Version::V2 => found.extend(read_v2(&real, &dir)),
            }
        }
    }
    found
}

/// The group of this process, from the text of `/proc/self/cgroup`.
fn group_of(text: &str, version: Version) -> Option<&str> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let wanted = match version {
            Version::V1 => controllers.split(',').any(|name| name == "memory"),
            Version::V2 => id == "0" && controllers.is_empty(),
        };
        wanted.then_some(path)
    })
}

/// The hierarchies that can limit memory, from the text of `/proc/self/mountinfo`.
fn hierarchies(text: &str) -> Vec<Hierarchy> {
    let hierarchy = |mount: Mount<'_>| {
        let version = match mount.kind {
            "cgroup2" => Version::V2,
            "cgroup" if mount.options.split(',').any(|option| option == "memory") => Version::V1,
            _ => return None,
        };
        Some(Hierarchy { version, root: mount.root, point: mount.point })
    };
    mounts(text).filter_map(hierarchy).collect()
}

/// The folders of `group` and of every group above it that the mount shows, innermost first.
fn dirs(mount: &Hierarchy, group: &str) -> Vec<PathBuf> {
    let group = Path::new(group);
    // In a container the mount may show the container's group as its root, while the process still sees the host's path.
    let below = group.strip_prefix(&mount.root).unwrap_or(Path::new(""));
    // A process outside the root of its cgroup namespace sees a path with `..`; the mount does not show that group.
    let shown = below.components().all(|part| matches!(part, Component::Normal(_)));
    let innermost = mount.point.join(if shown { below } else { Path::new("") });
    innermost.ancestors().take_while(|dir| dir.starts_with(&mount.point)).map(Path::to_path_buf).collect()
}

fn read_v1(real: &Path, shown: &Path) -> Vec<Ceiling> {
    let number = |name: &str| fs::read_to_string(real.join(name)).ok()?.trim().parse::<u64>().ok();
    let used_bytes = number("memory.usage_in_bytes");
    let own = number("memory.limit_in_bytes").map(|bytes| ("memory.limit_in_bytes", bytes));
    // Groups above the mount's root are out of sight; their limit is in here.
    let above = fs::read_to_string(real.join("memory.stat"))
        .ok()
        .and_then(|text| {
            text.lines().find_map(|line| line.strip_prefix("hierarchical_memory_limit ")?.trim().parse().ok())
        })
        .filter(|above| own.is_none_or(|(_, own)| *above < own))
        .map(|bytes| ("memory.stat", bytes));
    [own, above]
        .into_iter()
        .flatten()
        .filter(|(_, bytes)| *bytes < V1_UNLIMITED_BYTES)
        .map(|(name, bytes)| Ceiling {
            source: CeilingSource::CgroupV1 { file: shown.join(name) },
            bytes,
            // The usage of this group says nothing about that of a group above it.
            used_bytes: used_bytes.filter(|_| name == "memory.limit_in_bytes"),
        })
        .collect()
}

fn read_v2(real: &Path, shown: &Path) -> Vec<Ceiling> {
    // The word `max` stands for "no limit" and is no number.
    let number = |name: &str| fs::read_to_string(real.join(name)).ok()?.trim().parse::<u64>().ok();
    let used_bytes = number("memory.current");
    ["memory.max", "memory.high"]
        .into_iter()
        .filter_map(|name| {
            let source = CeilingSource::CgroupV2 { file: shown.join(name) };
            number(name).map(|bytes| Ceiling { source, bytes, used_bytes })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_is_found_in_both_versions() {
        let text = "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/c:d\n";
        assert_eq!(group_of(text, Version::V1), Some("/a/b"));
        assert_eq!(group_of(text, Version::V2), Some("/c:d"));
        assert_eq!(group_of("4:memory:/a\n", Version::V2), None);
    }

    #[test]
    fn only_mounts_that_can_limit_memory_count() {
        let text = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
            32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
            35 31 0:32 /docker/1 /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
            41 31 0:38 / /sys/fs/c\\040group rw,relatime - cgroup2 cgroup2 rw\nnonsense\n";
        let want = [
            Hierarchy { version: Version::V1, root: "/docker/1".into(), point: "/sys/fs/cgroup/memory".into() },
            Hierarchy { version: Version::V2, root: "/".into(), point: "/sys/fs/c group".into() },
        ];
        assert_eq!(hierarchies(text), want);
    }

    #[test]
    fn every_level_up_to_the_mount_is_visited() {
        let mount = Hierarchy { version: Version::V2, root: "/".into(), point: "/g".into() };
        assert_eq!(dirs(&mount, "/a/b"), [Path::new("/g/a/b"), Path::new("/g/a"), Path::new("/g")]);
        assert_eq!(dirs(&mount, "/"), [Path::new("/g/")]);
        assert_eq!(dirs(&mount, "/../x"), [Path::new("/g/")]);
    }

    #[test]
    fn a_container_that_sees_the_hosts_path_is_found_at_its_own_root() {
        let mount = Hierarchy { version: Version::V1, root: "/docker/1".into(), point: "/g".into() };
        assert_eq!(dirs(&mount, "/docker/1/sub"), [Path::new("/g/sub"), Path::new("/g")]);
        assert_eq!(dirs(&mount, "/elsewhere"), [Path::new("/g/")]);
    }
}
