//! Copies a tree, for an engine that can only bind existing paths.
//!
//! A hostile process may change the tree while it is copied; `belljar-tree` does the copying. Only files, directories
//! and links are copied; sockets, devices and setuid bits stay behind.

use std::path::{Path, PathBuf};

use belljar_tree::{
    Bound, Bounds, CopyOwner, CopyTreeError, Dir, FinalLink, OpenDirError, Selection, Visit,
    WalkEntry, WalkError, WalkOrder, walk,
};
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;

use crate::resolve::Resolved;

/// A deeper tree is refused: no engine copies it back.
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
    // What cannot be opened or listed cannot be copied either, and the copy reports that.
    let Ok(root) = open_source(source) else { return Ok(TreeSize::default()) };
    let mut size = TreeSize::default();
    let mut measure = |entry: &WalkEntry<'_>| {
        let Ok(found) = entry.stat() else { return Ok(Visit::Skip) };
        if is_left_out(left_out, entry) {
            return Ok(Visit::Skip);
        }
        size.entries += 1;
        size.bytes = size.bytes.saturating_add(ENTRY_BYTES + found.disk_bytes());
        match size.bytes > limit {
            true => Err(CopyError::TooLarge { path: source.path.clone(), limit }),
            false => Ok(Visit::Continue),
        }
    };
    match walk(&root, Bounds::default(), WalkOrder::AsStored, &mut measure) {
        Err(WalkError::Visitor(error)) => Err(error),
        Ok(_) | Err(WalkError::Root(_)) => Ok(size),
    }
}

/// Copies what is in a tree into a directory that is there, but for some names.
pub(crate) fn copy_tree(
    source: &Resolved,
    to: &Path,
    left_out: &[PathBuf],
    limit: u64,
) -> Result<(), CopyError> {
    let at = |path: PathBuf| match path.as_os_str().is_empty() {
        true => source.path.clone(),
        false => source.path.join(path),
    };
    let target = |error| CopyError::Target { path: source.path.clone(), error };
    let from = open_source(source)
        .map_err(|error| CopyError::Source { path: source.path.clone(), error: error.errno() })?;
    let made = Dir::open(to, FinalLink::Refuse).map_err(|error| target(error.errno()))?;
    fchmod(&made, Mode::RWXU).map_err(target)?;
    // The tree may have grown since it was measured.
    let bounds = Bounds {
        depth: MAX_LEVELS + 1,
        entries: limit / ENTRY_BYTES,
        bytes: limit,
        ..Bounds::default()
    };
    let select = |entry: &WalkEntry<'_>| match is_left_out(left_out, entry) {
        true => Selection::LeaveOut,
        false => Selection::Copy,
    };
    let copied = belljar_tree::copy_tree(&from, &made, bounds, CopyOwner::Caller, select);
    let Err(error) = copied else { return Ok(()) };
    let _ = belljar_tree::remove_all(to); // a part is of no use, and may be large
    Err(match error {
        CopyTreeError::Source { path, error } => CopyError::Source { path: at(path), error },
        CopyTreeError::Target { path, error } => CopyError::Target { path: at(path), error },
        CopyTreeError::Bound { bound: Bound::Depth, path } => CopyError::TooDeep { path: at(path) },
        CopyTreeError::Bound {
            bound: Bound::Entries | Bound::Bytes | Bound::Memory | Bound::Time,
            ..
        } => CopyError::TooLarge { path: source.path.clone(), limit },
    })
}

fn open_source(source: &Resolved) -> Result<Dir, OpenDirError> {
    let same = rustix::io::fcntl_dupfd_cloexec(&source.fd, 0)
        .map_err(|error| OpenDirError::System { path: PathBuf::new(), error })?;
    Dir::from_lookup_fd(same).open_dir("")
}

fn is_left_out(left_out: &[PathBuf], entry: &WalkEntry<'_>) -> bool {
    left_out.iter().any(|out| out == entry.path())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType};

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
