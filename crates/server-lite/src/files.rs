//! Files that appear under their names only when they are whole.

use std::{io, path::Path};
use tempfile::{Builder, NamedTempFile};

/// A temporary file in `folder`, with the permissions that any new file of this user gets, so that it can be renamed to its final place.
pub(crate) fn temporary(folder: &Path, prefix: &str) -> io::Result<NamedTempFile> {
    let mut builder = Builder::new();
    builder.prefix(prefix);
    #[cfg(unix)]
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    // The process's umask takes away what it takes from every new file.
    #[cfg(unix)]
    builder.permissions(all);
    builder.tempfile_in(folder)
}
