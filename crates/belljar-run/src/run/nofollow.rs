//! Creates directories and files in a run's home, which may hold what another run put there: no link is followed.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;

use belljar_tree::{CreateDirError, CreateFileError, Dir, FinalLink, OpenDirError};

use super::LaunchError;

/// Opens a directory of the home, and creates it with mode 0700 if it does not exist.
pub(super) fn directory(home: &Path, path: &Path) -> Result<Dir, LaunchError> {
    let root = open_home(home)?;
    root.create_dir_all(path, 0o700).map_err(|error| dir_failed(home, path, error))
}

/// Removes what is not a directory: a link, a file. `name` is an entry of the home itself.
pub(super) fn clear(home: &Path, name: &OsStr) -> Result<(), LaunchError> {
    let root = open_home(home)?;
    match root.stat(name) {
        Ok(found) if !found.is_dir() => {
            root.unlink(name).map_err(|error| failed(&home.join(name), error.errno().into()))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Creates a file in the home, to be written; `None` if there is a file already.
pub(super) fn new_file(home: &Path, path: &Path, mode: u32) -> Result<Option<File>, LaunchError> {
    let at = home.join(path);
    let invalid = || failed(&at, io::ErrorKind::InvalidInput.into());
    let name = path.file_name().ok_or_else(invalid)?;
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    let parent = match above {
        Some(above) => directory(home, above)?,
        None => open_home(home)?,
    };
    match parent.create_file(name, mode) {
        Ok(file) => Ok(Some(file)),
        Err(error @ CreateFileError::Exists { .. }) => match parent.stat(name) {
            Ok(found) if found.is_file() => Ok(None),
            Ok(found) if found.is_symlink() => Err(failed(&at, link_in_the_way())),
            Ok(_) | Err(_) => Err(failed(&at, error.errno().into())),
        },
        Err(error) => Err(failed(&at, error.errno().into())),
    }
}

fn open_home(home: &Path) -> Result<Dir, LaunchError> {
    Dir::open(home, FinalLink::Refuse).map_err(|error| failed(home, error.errno().into()))
}

fn dir_failed(home: &Path, path: &Path, error: CreateDirError) -> LaunchError {
    match error {
        CreateDirError::Open(OpenDirError::Link { path }) => {
            failed(&home.join(path), link_in_the_way())
        }
        CreateDirError::Open(
            OpenDirError::Missing { path }
            | OpenDirError::NotDirectory { path }
            | OpenDirError::Mount { path },
        ) => failed(&home.join(path), io::ErrorKind::NotADirectory.into()),
        CreateDirError::Open(OpenDirError::System { path, error })
        | CreateDirError::System { path, error } => failed(&home.join(path), error.into()),
        error @ (CreateDirError::Path(_)
        | CreateDirError::Exists { .. }
        | CreateDirError::Open(OpenDirError::Path(_))) => {
            failed(&home.join(path), error.errno().into())
        }
    }
}

fn link_in_the_way() -> io::Error {
    io::Error::other("a link is in the way, and is not followed")
}

fn failed(path: &Path, error: io::Error) -> LaunchError {
    LaunchError::HomePlace { path: path.to_owned(), error }
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
        let mode = 0o600;
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
