//! Mounted file systems, as Linux names them.

use std::fs;
use std::path::{Path, PathBuf};

/// One line of `/proc/self/mountinfo`; see proc(5).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mount<'a> {
    /// The folder of the file system that is seen at `point`.
    pub(crate) root: String,
    pub(crate) point: PathBuf,
    /// Type of the file system.
    pub(crate) kind: &'a str,
    /// The file system's own options, parted by commas.
    pub(crate) options: &'a str,
}

/// The mounts in the text of `/proc/self/mountinfo`, in its order; lines of another form are left out.
pub(crate) fn mounts(text: &str) -> impl Iterator<Item = Mount<'_>> {
    text.lines().filter_map(mount)
}

fn mount(line: &str) -> Option<Mount<'_>> {
    // id parent major:minor root point options [optional...] - type source super-options
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, point) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (kind, _source, options) = (right.next()?, right.next()?, right.next()?);
    Some(Mount { root: unescape(root), point: PathBuf::from(unescape(point)), kind, options })
}

/// `mountinfo` writes space, tab, newline and backslash as three octal digits after a backslash.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Whether files in the folder `path` are memory (tmpfs, ramfs): they fill RAM and control groups like allocations, and no ledger counts
/// them. `false` too where the system does not say so: on other systems than Linux, if there is no such folder, or for layers of an overlay.
#[must_use]
pub fn is_in_memory(path: &Path) -> bool {
    let Ok(path) = path.canonicalize() else { return false };
    kind_at(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default(), &path).is_some_and(is_memory)
}

fn is_memory(kind: &str) -> bool {
    matches!(kind, "tmpfs" | "ramfs")
}

/// The type of the file system that a path without links lies on: the innermost mount's, of several at one place the last. A mount that a later
/// one above it hides is taken for one that is seen.
fn kind_at<'a>(mountinfo: &'a str, path: &Path) -> Option<&'a str> {
    let above = mounts(mountinfo).filter(|mount| path.starts_with(&mount.point));
    Some(above.max_by_key(|mount| mount.point.components().count())?.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
        30 22 0:26 / /dev/shm rw - tmpfs tmpfs rw\n\
        31 22 8:2 / /tmp rw - tmpfs tmpfs rw\n\
        32 31 8:3 / /tmp/on\\040disk rw - xfs /dev/sdb1 rw\n\
        33 31 8:4 / /tmp/twice rw - tmpfs tmpfs rw\n\
        34 33 8:5 / /tmp/twice rw - ext4 /dev/sdc1 rw\n\
        nonsense\n";

    #[test]
    fn the_innermost_mount_counts_and_the_last_at_one_place() {
        let kind = |path: &str| kind_at(TEXT, Path::new(path));
        assert_eq!(
            (kind("/srv/a"), kind("/dev/shm"), kind("/dev/shm/a/b")),
            (Some("ext4"), Some("tmpfs"), Some("tmpfs"))
        );
        assert_eq!(
            (kind("/dev/shmem"), kind("/tmp/a"), kind("/tmp/on disk/a")),
            (Some("ext4"), Some("tmpfs"), Some("xfs"))
        );
        assert_eq!((kind("/tmp/twice/a"), kind_at("", Path::new("/"))), (Some("ext4"), None));
    }

    #[test]
    fn what_is_not_there_is_not_in_memory() {
        assert!(!is_in_memory(Path::new("/no such folder")));
        assert!(!is_in_memory(Path::new("/proc")), "proc is neither");
    }
}
