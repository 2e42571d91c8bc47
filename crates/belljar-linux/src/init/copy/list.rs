//! Writes what a path is, and the names in a directory, to a pipe: headers only, without content.

use std::ffi::CString;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use belljar_spec::OsText;
use belljar_spec::wire::archive::{Entry, EntryKind};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, openat, statat};
use rustix::io::Errno;

use super::pack::write_all;

const CHUNK: usize = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub(super) enum ListError {
    #[error("cannot look at {path}")]
    Look {
        path: OsText,
        #[source]
        error: Errno,
    },
    #[error("cannot look at {path}: the path contains a NUL byte")]
    Nul { path: OsText },
    #[error("the list could not be written")]
    Write(#[source] Errno),
}

/// Links at the end of `path` are followed, as `ls path/` would; links in a directory are listed as links.
pub(super) fn list(path: &Path, out: BorrowedFd<'_>) -> Result<(), ListError> {
    let shown = || OsText::from(path);
    let look = |error| ListError::Look { path: shown(), error };
    let name =
        CString::new(path.as_os_str().as_bytes()).map_err(|_| ListError::Nul { path: shown() })?;
    let mut bytes = Vec::new();
    match statat(CWD, &*name, AtFlags::empty()) {
        // A link to nothing is nothing, as for any program that opens it.
        Err(Errno::NOENT | Errno::NOTDIR) => {}
        Err(error) => return Err(look(error)),
        Ok(stat) => {
            header(&stat, b"").write(&mut bytes);
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                // Nothing but a directory is opened, so nothing can block or be triggered by it.
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let opened = openat(CWD, &*name, flags, Mode::empty()).map_err(look)?;
                names(Dir::new(opened).map_err(look)?, &mut bytes, out, &look)?;
            }
        }
    }
    Entry { kind: EntryKind::End, mode: 0, path: Vec::new(), size: 0, modified: 0 }
        .write(&mut bytes);
    write_all(out, &bytes).map_err(ListError::Write)
}

fn names(
    mut directory: Dir,
    bytes: &mut Vec<u8>,
    out: BorrowedFd<'_>,
    look: &dyn Fn(Errno) -> ListError,
) -> Result<(), ListError> {
    while let Some(entry) = directory.read() {
        let entry = entry.map_err(look)?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let parent = directory.fd().map_err(look)?;
        match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {} // it was removed meanwhile
            Err(error) => return Err(look(error)),
            Ok(stat) => header(&stat, name.to_bytes()).write(bytes),
        }
        if bytes.len() >= CHUNK {
            write_all(out, bytes).map_err(ListError::Write)?;
            bytes.clear();
        }
    }
    Ok(())
}

fn header(stat: &Stat, name: &[u8]) -> Entry {
    let (kind, size) = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => (EntryKind::File, u64::try_from(stat.st_size).unwrap_or(0)),
        FileType::Directory => (EntryKind::Directory, 0),
        FileType::Symlink => (EntryKind::Link, 0),
        _ => (EntryKind::Skipped, 0),
    };
    Entry { kind, mode: stat.st_mode & 0o777, path: name.to_vec(), size, modified: stat.st_mtime }
}
