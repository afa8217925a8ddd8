//! Files that appear under their names only when they are whole.

use crate::error::AppError;
use std::{
    fs,
    io::{self, Write as _},
    path::Path,
};
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

/// Refuses an output that names no file, would write over a device or a link, or whose folder is not there or cannot be written to.
pub(crate) fn check_output(flag: &str, path: &Path) -> Result<(), AppError> {
    let refused = |why: &str| Err(AppError::Usage(format!("{flag} {}: {why}", path.display())));
    if path.file_name().is_none() {
        return refused("it names no file");
    }
    if fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return refused("it exists and is no regular file");
    }
    let folder = folder_of(path);
    if !folder.is_dir() {
        return refused(&format!("there is no folder {}", folder.display()));
    }
    // The file itself is written the same way: what fails later fails now.
    let fault = |source| AppError::File { doing: "write", path: path.to_owned(), source };
    temporary(folder, ".writing-").map_err(fault)?;
    Ok(())
}

/// The folder that holds `path`.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes a file that appears under its name when it is whole and on the device: a write that the system only promised is told of here.
pub(crate) fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = temporary(folder_of(path), ".writing-")?;
    file.write_all(content)?;
    put_in_place(file, path)
}

/// Renames a written file to its name once the device has it.
pub(crate) fn put_in_place(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}
