//! Making places in a run's home, which may hold what another run put there: no link in it is followed.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, mkdirat, open, openat, statat, unlinkat};
use rustix::io::Errno;

use super::LaunchError;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const NEW: OFlags = OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::CLOEXEC);

/// Made with the owner and mode of the home itself, where it is not there.
pub(super) fn directory(home: &Path, path: &Path) -> Result<OwnedFd, LaunchError> {
    let mut at = home.to_owned();
    let mut reached =
        open(home, DIRECTORY, Mode::empty()).map_err(|errno| failed(&at, errno.into()))?;
    for part in path.components() {
        let Component::Normal(name) = part else {
            return Err(failed(&home.join(path), io::ErrorKind::InvalidInput.into()));
        };
        at.push(name);
        match mkdirat(&reached, name, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed(&at, errno.into())),
        }
        let below = openat(&reached, name, DIRECTORY, Mode::empty());
        reached = below.map_err(|errno| failed(&at, in_the_way(&reached, name, errno)))?;
    }
    Ok(reached)
}

/// Takes away what is no directory: a link, a file. `name` is one of the home itself.
pub(super) fn clear(home: &Path, name: &OsStr) -> Result<(), LaunchError> {
    let errors = |errno: Errno| failed(&home.join(name), errno.into());
    let parent = open(home, DIRECTORY, Mode::empty()).map_err(errors)?;
    match kind(&parent, name) {
        None | Some(FileType::Directory) => Ok(()),
        Some(_) => unlinkat(&parent, name, AtFlags::empty()).map_err(errors),
    }
}

/// A file in the home: to be written if it was not there.
pub(super) fn new_file(home: &Path, path: &Path, mode: Mode) -> Result<Option<File>, LaunchError> {
    let at = home.join(path);
    let invalid = || failed(&at, io::ErrorKind::InvalidInput.into());
    let name = path.file_name().ok_or_else(invalid)?;
    let parent = directory(home, path.parent().unwrap_or(Path::new("")))?;
    match openat(&parent, name, NEW, mode) {
        Ok(file) => Ok(Some(file.into())),
        Err(Errno::EXIST) if kind(&parent, name) == Some(FileType::RegularFile) => Ok(None),
        Err(errno) => Err(failed(&at, in_the_way(&parent, name, errno))),
    }
}

fn kind(parent: impl AsFd, name: &OsStr) -> Option<FileType> {
    let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some(FileType::from_raw_mode(stat.st_mode))
}

fn in_the_way(parent: impl AsFd, name: &OsStr, errno: Errno) -> io::Error {
    match kind(parent, name) {
        Some(FileType::Symlink) => io::Error::other("a link is in the way, and is not followed"),
        _ => errno.into(),
    }
}

fn failed(path: &Path, error: io::Error) -> LaunchError {
    LaunchError::HomePlace { path: PathBuf::from(path), error }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_is_there_is_used_and_no_link_is_followed() {
        let place = tempfile::tempdir().unwrap();
        let (home, outside) = (place.path().join("home"), place.path().join("outside"));
        std::fs::create_dir(&home).unwrap();
        std::fs::create_dir(&outside).unwrap();
        let mode = Mode::from_raw_mode(0o600);
        for _ in 0..2 {
            directory(&home, Path::new("a/b")).unwrap();
        }
        assert!(new_file(&home, Path::new("a/file"), mode).unwrap().is_some());
        assert!(new_file(&home, Path::new("a/file"), mode).unwrap().is_none());
        for name in ["link", "file"] {
            symlink(&outside, home.join("link")).unwrap();
            std::fs::write(home.join("file"), "x").unwrap();
            clear(&home, OsStr::new(name)).unwrap();
            directory(&home, Path::new(name)).unwrap();
            clear(&home, OsStr::new(name)).unwrap();
            assert!(home.join(name).symlink_metadata().unwrap().is_dir());
            std::fs::remove_dir(home.join(name)).unwrap();
            let _ = std::fs::remove_file(home.join("link"));
        }
        symlink(&outside, home.join("a/link")).unwrap();
        symlink(outside.join("new"), home.join("a/to-file")).unwrap();
        let refused = [
            directory(&home, Path::new("a/link")).map(drop),
            directory(&home, Path::new("a/link/below")).map(drop),
            new_file(&home, Path::new("a/link/file"), mode).map(drop),
        ];
        for refused in refused {
            let text = belljar_spec::text::error_chain(&refused.unwrap_err());
            assert!(text.contains("/a/link ") && text.contains("a link is in the way"), "{text}");
        }
        assert!(new_file(&home, Path::new("a/to-file"), mode).is_err());
        assert!(new_file(&home, Path::new("a/b"), mode).is_err());
        assert!(directory(&home, Path::new("../outside/x")).is_err());
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    }
}
