//! Turns an operator's path into a descriptor and a path without links.
//!
//! Links are followed by hand, one name at a time, so that a link which an earlier run could have
//! planted is noticed where it lies and not followed.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, open, openat, readlinkat};
use rustix::io::Errno;

const MOST_LINKS: usize = 40;

#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    #[error("{} does not exist", .path.display())]
    Missing { path: PathBuf },
    #[error(
        "{} is a link inside {}, where a run can write; name what it points to instead",
        .link.display(), .tree.display()
    )]
    PlantedLink { link: PathBuf, tree: PathBuf },
    #[error("{} leads through too many links", .path.display())]
    TooManyLinks { path: PathBuf },
    #[error("{} leads through /proc, which stands for a process and not for a place", .path.display())]
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
pub(crate) struct Resolved {
    /// Without links, dots or doubled slashes.
    pub(crate) path: PathBuf,
    pub(crate) fd: OwnedFd,
    pub(crate) stat: Stat,
}

impl Resolved {
    pub(crate) fn is_directory(&self) -> bool {
        file_type(&self.stat) == FileType::Directory
    }
}

pub(crate) fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// `run_writable`: trees in which a link is never followed.
pub(crate) fn resolve(path: &Path, run_writable: &[PathBuf]) -> Result<Resolved, ResolveError> {
    let failed = |at: &Path, error| match error {
        Errno::NOENT | Errno::NOTDIR => ResolveError::Missing { path: path.to_owned() },
        error => ResolveError::Open { path: at.to_owned(), error },
    };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = PathBuf::from("/");
    // Each directory on the way stays open, so that `..` is where we came from and nowhere else.
    let mut opened = vec![open("/", flags, Mode::empty()).map_err(|error| failed(&at, error))?];
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
        let fd =
            openat(parent, &name, flags, Mode::empty()).map_err(|error| failed(&here, error))?;
        let stat = fstat(&fd).map_err(|error| failed(&here, error))?;
        if file_type(&stat) != FileType::Symlink {
            at = here;
            opened.push(fd);
            continue;
        }
        links += 1;
        if links > MOST_LINKS {
            return Err(ResolveError::TooManyLinks { path: path.to_owned() });
        }
        if let Some(tree) = run_writable.iter().find(|tree| here.starts_with(tree)) {
            return Err(ResolveError::PlantedLink { link: here, tree: tree.clone() });
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
    let Some(fd) = opened.pop() else {
        return Err(ResolveError::Missing { path: path.to_owned() });
    };
    let stat = fstat(&fd).map_err(|error| failed(&at, error))?;
    Ok(Resolved { path: at, fd, stat })
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
        let refused = resolve(&base.join("work/planted/inner"), &[base.join("work")]);
        assert!(matches!(refused, Err(ResolveError::PlantedLink { .. })), "{refused:?}");
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
