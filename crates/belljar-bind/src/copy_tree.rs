//! Copies a tree, for an engine that can only bind existing paths.
//!
//! A hostile process may change the tree while it is copied: every name is opened once, by descriptor, without
//! following links. Only files, directories and links are copied; sockets, devices and setuid bits stay behind.

use std::cell::Cell;
use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fchmod, fstat, futimens, mkdirat, openat,
    readlinkat, symlinkat, utimensat,
};
use rustix::io::Errno;

use crate::content::{content, times};
use crate::resolve::{Resolved, file_type};

/// Each level holds descriptors.
const MAX_LEVELS: usize = 200;

#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error(
        "cannot copy {} for the overlay; hide it, or use the jail, which copies nothing",
        .path.display()
    )]
    Source {
        path: PathBuf,
        #[source]
        error: Errno,
    },
    #[error("cannot write the copy of {} for the overlay", .path.display())]
    Target {
        path: PathBuf,
        #[source]
        error: Errno,
    },
    #[error(
        "{} is more than {MAX_LEVELS} directories deep, too deep to be copied for the overlay; \
         hide it, or use the jail, which copies nothing",
        .path.display()
    )]
    TooDeep { path: PathBuf },
    #[error(
        "{} would have to be copied for the overlay, and is larger than the run may write to disk \
         ({} MB, limits.disk); name a smaller directory, mount it ro, or raise --disk",
        .path.display(), .limit / 1_000_000
    )]
    TooLarge { path: PathBuf, limit: u64 },
}

/// How much there is to copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TreeSize {
    /// On disk.
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
}

/// What an entry takes besides its content.
const ENTRY_BYTES: u64 = 256;

/// Measures what [`copy_tree`] would copy, and stops past `limit` bytes.
pub(crate) fn measure_tree(
    source: &Resolved,
    left_out: &[PathBuf],
    limit: u64,
) -> Result<TreeSize, CopyError> {
    let mut size = TreeSize::default();
    let mut todo = vec![PathBuf::new()];
    while let Some(directory) = todo.pop() {
        // What cannot be listed cannot be copied either, and the copy reports that.
        let entries = std::fs::read_dir(source.path.join(&directory)).into_iter().flatten();
        for entry in entries.flatten() {
            let at = directory.join(entry.file_name());
            let Ok(meta) = entry.metadata() else { continue };
            if left_out.contains(&at) {
                continue;
            }
            size.entries += 1;
            size.bytes += ENTRY_BYTES + std::os::unix::fs::MetadataExt::blocks(&meta) * 512;
            if size.bytes > limit {
                return Err(CopyError::TooLarge { path: source.path.clone(), limit });
            }
            if meta.is_dir() {
                todo.push(at);
            }
        }
    }
    Ok(size)
}

/// Copies what is in a tree into a directory that is there, but for some names.
pub(crate) fn copy_tree(
    source: &Resolved,
    to: &Path,
    left_out: &[PathBuf],
    limit: u64,
) -> Result<(), CopyError> {
    let copy = Copy { root: &source.path, left_out, limit, copied: Cell::new(0) };
    let from = open_directory(&source.fd, c".")
        .map_err(|error| CopyError::Source { path: source.path.clone(), error })?;
    let target = |error| CopyError::Target { path: source.path.clone(), error };
    let path = to.to_owned();
    let to = openat(CWD, to, DIRECTORY, Mode::empty()).map_err(target)?;
    fchmod(&to, Mode::RWXU).map_err(target)?;
    copy.directory(&from, &to, &mut PathBuf::new(), 0)
        .inspect_err(|_| drop(std::fs::remove_dir_all(&path)))?; // a part is of no use, and may be large
    finish(&to, &source.stat, 0o1777).map_err(target)
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn open_directory(at: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    openat(at, name, DIRECTORY, Mode::empty())
}

struct Copy<'a> {
    root: &'a Path,
    left_out: &'a [PathBuf],
    /// Bytes, in all. The tree may have grown since it was measured.
    limit: u64,
    copied: Cell<u64>,
}

impl Copy<'_> {
    fn directory(
        &self,
        from: &OwnedFd,
        to: &OwnedFd,
        at: &mut PathBuf,
        level: usize,
    ) -> Result<(), CopyError> {
        let source = |at: &Path, error| CopyError::Source { path: self.root.join(at), error };
        if level > MAX_LEVELS {
            return Err(CopyError::TooDeep { path: self.root.join(at) });
        }
        for entry in Dir::read_from(from).map_err(|error| source(at, error))? {
            let entry = entry.map_err(|error| source(at, error))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            at.push(OsStr::from_bytes(name.to_bytes()));
            if !self.left_out.contains(at) {
                self.entry((from, to), name, at, level)?;
            }
            at.pop();
        }
        Ok(())
    }

    fn entry(
        &self,
        (from, to): (&OwnedFd, &OwnedFd),
        name: &CStr,
        at: &mut PathBuf,
        level: usize,
    ) -> Result<(), CopyError> {
        let path = self.root.join(&at);
        let source = |error| CopyError::Source { path: path.clone(), error };
        let target = |error| CopyError::Target { path: path.clone(), error };
        let stat = match rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()), // gone meanwhile
            stat => stat.map_err(source)?,
        };
        let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
        self.copied.set(self.copied.get().saturating_add(ENTRY_BYTES + blocks * 512));
        if self.copied.get() > self.limit {
            return Err(CopyError::TooLarge { path: self.root.to_owned(), limit: self.limit });
        }
        match file_type(&stat) {
            FileType::Directory => {
                let below = match open_directory(from, name) {
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()), // replaced meanwhile
                    below => below.map_err(source)?,
                };
                mkdirat(to, name, Mode::RWXU).map_err(target)?;
                let made = open_directory(to, name).map_err(target)?;
                self.directory(&below, &made, at, level + 1)?;
                finish(&made, &stat, 0o1777).map_err(target)
            }
            FileType::RegularFile => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let opened = match openat(from, name, flags, Mode::empty()) {
                    Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(()), // the same
                    opened => opened.map_err(source)?,
                };
                let stat = fstat(&opened).map_err(source)?;
                if file_type(&stat) != FileType::RegularFile {
                    return Ok(());
                }
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let made = openat(to, name, flags, Mode::RUSR | Mode::WUSR).map_err(target)?;
                content(&opened, &made, u64::try_from(stat.st_size).unwrap_or(0))
                    .map_err(target)?;
                finish(&made, &stat, 0o777).map_err(target)
            }
            FileType::Symlink => {
                let to_where = match readlinkat(from, name, Vec::new()) {
                    Err(Errno::NOENT | Errno::INVAL) => return Ok(()), // the same
                    to_where => to_where.map_err(source)?,
                };
                symlinkat(to_where.as_c_str(), to, name).map_err(target)?;
                utimensat(to, name, &times(&stat), AtFlags::SYMLINK_NOFOLLOW).map_err(target)
            }
            _ => Ok(()),
        }
    }
}

fn finish(made: &OwnedFd, stat: &Stat, bits: u32) -> Result<(), Errno> {
    fchmod(made, Mode::from_raw_mode(stat.st_mode & bits))?;
    futimens(made, &times(stat))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::resolve::resolve;

    fn copied(from: &Path, left_out: &[PathBuf]) -> Result<tempfile::TempDir, CopyError> {
        let to = tempfile::tempdir().unwrap();
        copy_tree(&resolve(from, &[]).unwrap(), to.path(), left_out, u64::MAX).map(|()| to)
    }

    #[test]
    fn files_links_modes_and_times_arrive_and_nothing_that_acts() {
        let from = tempfile::tempdir().unwrap();
        let at = |name: &str| from.path().join(name);
        fs::create_dir_all(at("dir/below")).unwrap();
        fs::write(at("dir/below/file"), "content").unwrap();
        fs::write(at("setuid"), "x").unwrap();
        fs::set_permissions(at("setuid"), fs::Permissions::from_mode(0o4751)).unwrap();
        fs::set_permissions(at("dir"), fs::Permissions::from_mode(0o2550)).unwrap();
        symlink("/etc/passwd", at("link")).unwrap();
        let _listener = UnixListener::bind(at("socket")).unwrap();
        rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let to = copied(from.path(), &[]).unwrap();
        let there = |name: &str| to.path().join(name);
        assert_eq!(fs::read_to_string(there("dir/below/file")).unwrap(), "content");
        assert_eq!(fs::metadata(there("setuid")).unwrap().mode() & 0o7777, 0o751);
        assert_eq!(fs::metadata(there("dir")).unwrap().mode() & 0o7777, 0o550);
        assert_eq!(fs::read_link(there("link")).unwrap(), Path::new("/etc/passwd"));
        assert!(!there("socket").exists() && !there("pipe").exists());
        let changed = |path: PathBuf| fs::symlink_metadata(path).unwrap().modified().unwrap();
        for name in ["dir", "dir/below/file", "link", "setuid"] {
            assert_eq!(changed(at(name)), changed(there(name)), "{name}");
        }
        fs::set_permissions(there("dir"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(at("dir"), fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn names_are_left_out_where_they_lie_and_nowhere_else() {
        let from = tempfile::tempdir().unwrap();
        fs::create_dir_all(from.path().join("a/keys")).unwrap();
        for name in [".env", "a/.env", "a/keys/one", "a/other"] {
            fs::write(from.path().join(name), name).unwrap();
        }
        let to = copied(from.path(), &["a/.env".into(), "a/keys".into()]).unwrap();
        assert!(to.path().join(".env").exists() && to.path().join("a/other").exists());
        assert!(!to.path().join("a/.env").exists() && !to.path().join("a/keys").exists());
    }

    #[test]
    fn holes_stay_holes() {
        let from = tempfile::tempdir().unwrap();
        let file = fs::File::create(from.path().join("sparse")).unwrap();
        file.write_all_at(b"begin", 0).unwrap();
        file.write_all_at(b"end", 1 << 30).unwrap();
        let to = copied(from.path(), &[]).unwrap();
        let made = fs::File::open(to.path().join("sparse")).unwrap();
        assert_eq!(made.metadata().unwrap().len(), (1 << 30) + 3);
        assert!(made.metadata().unwrap().blocks() < 1000, "{:?}", made.metadata());
        let mut room = [0; 5];
        made.read_exact_at(&mut room, 0).unwrap();
        assert_eq!(&room, b"begin");
        made.read_exact_at(&mut room[..3], 1 << 30).unwrap();
        assert_eq!(&room[..3], b"end");
    }

    #[test]
    fn a_tree_that_is_too_deep_is_refused_and_leaves_nothing() {
        let from = tempfile::tempdir().unwrap();
        let deep = |levels: usize| (0..levels).map(|_| "d").collect::<PathBuf>();
        fs::create_dir_all(from.path().join(deep(MAX_LEVELS))).unwrap();
        copied(from.path(), &[]).unwrap(); // the control
        fs::create_dir_all(from.path().join(deep(MAX_LEVELS + 1))).unwrap();
        let to = tempfile::tempdir().unwrap();
        let refused = copy_tree(&resolve(from.path(), &[]).unwrap(), to.path(), &[], u64::MAX);
        assert!(matches!(refused, Err(CopyError::TooDeep { .. })), "{refused:?}");
        assert!(!to.path().join("d").exists());
    }

    #[test]
    fn a_tree_is_measured_and_one_that_is_too_large_leaves_nothing() {
        let from = tempfile::tempdir().unwrap();
        for name in ["a", "b", "hidden"] {
            fs::write(from.path().join(name), vec![7; 1 << 20]).unwrap();
        }
        let source = resolve(from.path(), &[]).unwrap();
        let size = measure_tree(&source, &["hidden".into()], 4 << 20).unwrap();
        assert_eq!(size.entries, 2);
        assert!((2 << 20..3 << 20).contains(&size.bytes), "{size:?}");
        let refused = measure_tree(&source, &[], 2 << 20);
        assert!(matches!(refused, Err(CopyError::TooLarge { .. })), "{refused:?}");
        // It may grow meanwhile.
        let to = tempfile::tempdir().unwrap();
        let refused = copy_tree(&source, to.path(), &[], 2 << 20);
        assert!(matches!(refused, Err(CopyError::TooLarge { .. })), "{refused:?}");
        assert!(!to.path().exists() || fs::read_dir(to.path()).unwrap().next().is_none());
    }
}
