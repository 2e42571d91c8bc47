//! Resolves an operator's path to a descriptor and a path without links.
//!
//! Links are followed by hand, one name at a time, so that a link which an earlier run could have
//! planted is noticed where it is and not followed.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use belljar_spec::{DirectoryIdentity, Moment, WritableTree};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, StatxFlags, fstat, open, openat,
    openat2, readlinkat, statx,
};
use rustix::io::Errno;

use belljar_sys::mountinfo::MountTable;

const MAX_LINKS: usize = 40;

#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    #[error("{} does not exist", .path.display())]
    Missing { path: PathBuf },
    #[error(
        "{} is a link in {}, where a run can write; name its target instead (or, where only \
         earlier runs could write there and you have checked it: belljar trust --tree {})",
        .link.display(), .tree.display(), .tree.display()
    )]
    PlantedLink { link: PathBuf, tree: PathBuf },
    #[error("{} goes through too many links", .path.display())]
    TooManyLinks { path: PathBuf },
    #[error("{} goes through /proc, which depends on a process", .path.display())]
    MagicLink { path: PathBuf },
    #[error("cannot open {}", .path.display())]
    Open {
        path: PathBuf,
        #[source]
        error: Errno,
    },
}

/// Something of the host, held by descriptor.
#[derive(Debug)]
pub struct Resolved {
    /// Without links, dots or doubled slashes.
    pub path: PathBuf,
    /// Opened as a place only (`O_PATH`).
    pub fd: OwnedFd,
    pub stat: Stat,
    /// The tree it is in, if a run could write that.
    pub written_in: Option<PathBuf>,
}

impl Resolved {
    pub fn is_directory(&self) -> bool {
        file_type(&self.stat) == FileType::Directory
    }
}

pub(crate) fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Which directory (or file) a descriptor holds.
pub fn identity(fd: impl AsFd) -> Result<DirectoryIdentity, Errno> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let found = statx(fd, "", AtFlags::EMPTY_PATH, wanted)?;
    let has_creation_time =
        StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
    Ok(DirectoryIdentity {
        device: rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        created: has_creation_time
            .then_some(Moment { secs: found.stx_btime.tv_sec, nanos: found.stx_btime.tv_nsec }),
    })
}

/// In one call, where nothing has to be known of the directories above. `None`: there is a link, the path is not plain,
/// or the kernel does not have the call.
fn without_links(path: &Path, flags: OFlags) -> Option<Result<Resolved, ResolveError>> {
    let is_plain = path.is_absolute()
        && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let is_magic = path.starts_with("/proc");
    if !is_plain || is_magic {
        return None;
    }
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let fd = match openat2(CWD, path, flags, Mode::empty(), resolve) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Some(Err(ResolveError::Missing { path: path.to_owned() })),
        Err(_) => return None,
    };
    let stat = fstat(&fd).ok()?;
    if file_type(&stat) == FileType::Symlink {
        return None;
    }
    let path = path.components().collect(); // without doubled and trailing slashes
    Some(Ok(Resolved { path, fd, stat, written_in: None }))
}

/// One directory of the path, and the tree it is in, if a run could write that.
struct OpenedDirectory<'a> {
    fd: OwnedFd,
    written_in: Option<&'a WritableTree>,
}

/// `run_writable`: trees in which a link is never followed, known by path and by identity.
pub fn resolve(path: &Path, run_writable: &[WritableTree]) -> Result<Resolved, ResolveError> {
    let failed = |at: &Path, error| match error {
        Errno::NOENT | Errno::NOTDIR => ResolveError::Missing { path: path.to_owned() },
        error => ResolveError::Open { path: at.to_owned(), error },
    };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if run_writable.is_empty()
        && let Some(found) = without_links(path, flags)
    {
        return found;
    }
    let mut at = PathBuf::from("/");
    let root = open("/", flags, Mode::empty()).map_err(|error| failed(&at, error))?;
    let written_in = tree_at(&at, &root, run_writable).map_err(|error| failed(&at, error))?;
    // Each directory of the path stays open, so that `..` is where we came from and nowhere else.
    let mut opened = vec![OpenedDirectory { fd: root, written_in }];
    let mut todo: VecDeque<OsString> = names_of(path);
    let mut links = 0;
    while let Some(name) = todo.pop_front() {
        if name == ".." {
            if opened.len() > 1 {
                opened.pop();
                at.pop();
            }
            continue;
        }
        let Some(parent) = opened.last() else { break };
        let here = at.join(&name);
        let fd = openat(&parent.fd, &name, flags, Mode::empty())
            .map_err(|error| failed(&here, error))?;
        let stat = fstat(&fd).map_err(|error| failed(&here, error))?;
        if file_type(&stat) != FileType::Symlink {
            let written_in = match parent.written_in {
                Some(tree) => Some(tree),
                None => tree_at(&here, &fd, run_writable).map_err(|error| failed(&here, error))?,
            };
            at = here;
            opened.push(OpenedDirectory { fd, written_in });
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(ResolveError::TooManyLinks { path: path.to_owned() });
        }
        let written_in = match parent.written_in {
            Some(tree) => Some(tree),
            None => tree_by_origin(&at, run_writable).map_err(|error| failed(&here, error))?,
        };
        if let Some(tree) = written_in {
            let tree = tree.as_path().to_owned();
            return Err(ResolveError::PlantedLink { link: here, tree });
        }
        // `/proc/PID/fd/N` and its like answer readlink with a text that leads elsewhere.
        if here.starts_with("/proc") && here != Path::new("/proc/self") {
            return Err(ResolveError::MagicLink { path: path.to_owned() });
        }
        let target =
            readlinkat(fd.as_fd(), "", Vec::new()).map_err(|error| failed(&here, error))?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if target.is_absolute() {
            opened.truncate(1);
            at = PathBuf::from("/");
        }
        for name in names_of(&target).into_iter().rev() {
            todo.push_front(name);
        }
    }
    let Some(OpenedDirectory { fd, written_in }) = opened.pop() else {
        return Err(ResolveError::Missing { path: path.to_owned() });
    };
    let written_in = match written_in {
        Some(tree) => Some(tree),
        None => tree_by_origin(&at, run_writable).map_err(|error| failed(&at, error))?,
    };
    let stat = fstat(&fd).map_err(|error| failed(&at, error))?;
    let written_in = written_in.map(|tree| tree.as_path().to_owned());
    Ok(Resolved { path: at, fd, stat, written_in })
}

/// The tree that has its top here. A tree that was moved or is mounted elsewhere is recognised by its identity.
fn tree_at<'a>(
    path: &Path,
    fd: &OwnedFd,
    trees: &'a [WritableTree],
) -> Result<Option<&'a WritableTree>, Errno> {
    if trees.is_empty() {
        return Ok(None);
    }
    let identity = identity(fd)?;
    Ok(trees.iter().find(|tree| tree.is_at(path, Some(&identity))))
}

/// The tree that a path is in by its mount: a part of a tree may be mounted elsewhere.
///
/// If that is not known, the path is not resolved: it could be a run's.
fn tree_by_origin<'a>(
    path: &Path,
    trees: &'a [WritableTree],
) -> Result<Option<&'a WritableTree>, Errno> {
    if trees.is_empty() {
        return Ok(None);
    }
    let table =
        MountTable::read().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let (device, place) = table.origin(path).ok_or(Errno::NODEV)?;
    Ok(trees.iter().find(|tree| {
        let origin = table.origin(tree.as_path());
        origin.is_some_and(|(other, root)| other == device && place.starts_with(root))
    }))
}

fn names_of(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn follows_an_operators_links_and_not_a_runs() {
        let dir = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir_all(base.join("real/inner")).unwrap();
        fs::create_dir(base.join("work")).unwrap();
        symlink("real", base.join("link")).unwrap();
        symlink("../real", base.join("work/planted")).unwrap();

        let found = resolve(&base.join("link/inner/../inner"), &[]).unwrap();
        assert_eq!(found.path, base.join("real/inner"));
        assert!(found.is_directory());

        // Control: the same link is followed where no run can write.
        assert_eq!(resolve(&base.join("work/planted"), &[]).unwrap().path, base.join("real"));
        let work = [WritableTree::by_path(base.join("work"))];
        let refused = resolve(&base.join("work/planted/inner"), &work);
        assert!(matches!(refused, Err(ResolveError::PlantedLink { .. })), "{refused:?}");
    }

    #[test]
    fn a_tree_is_known_under_another_name() {
        let dir = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir_all(base.join("real")).unwrap();
        fs::create_dir_all(base.join("work/deep")).unwrap();
        fs::write(base.join("work/deep/file"), "").unwrap();
        symlink("../../real", base.join("work/deep/planted")).unwrap();
        let top = fs::File::open(base.join("work")).unwrap();
        let tree = WritableTree {
            path: base.join("work").into(),
            identity: Some(identity(&top).unwrap()),
        };
        fs::rename(base.join("work"), base.join("moved")).unwrap();
        // Control: by its path alone it is not known any more.
        let by_path = [WritableTree::by_path(base.join("work"))];
        assert_eq!(
            resolve(&base.join("moved/deep/planted"), &by_path).unwrap().path,
            base.join("real")
        );

        let known = [tree];
        let refused = resolve(&base.join("moved/deep/planted"), &known);
        assert!(matches!(refused, Err(ResolveError::PlantedLink { .. })), "{refused:?}");
        let file = resolve(&base.join("moved/deep/file"), &known).unwrap();
        assert_eq!(file.written_in, Some(base.join("work")));
        // Another directory in the old place is known by its path.
        fs::create_dir(base.join("work")).unwrap();
        symlink("../real", base.join("work/planted")).unwrap();
        let refused = resolve(&base.join("work/planted"), &known);
        assert!(matches!(refused, Err(ResolveError::PlantedLink { .. })), "{refused:?}");
        assert_eq!(resolve(&base.join("real"), &known).unwrap().written_in, None);
    }

    #[test]
    fn says_what_is_missing_and_stops_at_loops() {
        let dir = tempfile::tempdir().unwrap();
        symlink("loop", dir.path().join("loop")).unwrap();
        let looped = resolve(&dir.path().join("loop"), &[]);
        assert!(matches!(looped, Err(ResolveError::TooManyLinks { .. })), "{looped:?}");
        let missing = resolve(&dir.path().join("nothing"), &[]);
        assert!(matches!(missing, Err(ResolveError::Missing { .. })), "{missing:?}");
    }

    #[test]
    fn descriptors_of_proc_are_no_places() {
        let held = fs::File::open("/").unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&held);
        let refused = resolve(Path::new(&format!("/proc/self/fd/{number}")), &[]);
        assert!(matches!(refused, Err(ResolveError::MagicLink { .. })), "{refused:?}");
    }
}
