//! Reads, replaces and locks files of the machine that others edit too.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::SetupError;

const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Held by the one process that changes the machine. Not beside the list of changes, whose directory is removed with it.
const SETUP_LOCK: &str = "/run/belljar/setup.lock";
/// Larger than any file that is edited here.
const MAX_SIZE: u64 = 16 << 20;

/// An absolute path of the machine, below `root`.
pub(super) fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// `None` where there is no such file.
pub(super) fn read(path: &Path) -> Result<Option<String>, SetupError> {
    let failed = |error| SetupError::Read { path: path.to_owned(), error };
    match fs::metadata(path) {
        Ok(found) if found.len() > MAX_SIZE => {
            return Err(failed(io::Error::other("it is too large")));
        }
        _ => {}
    }
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Replaces a file, or makes it with this mode: whole or not at all. One that is there keeps its owner and mode; one
/// that is a link keeps being one.
pub(super) fn replace(path: &Path, content: &str, mode: u32) -> Result<(), SetupError> {
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let failed = |error| SetupError::Write { path: path.to_owned(), error };
    write_and_rename(&target, content, mode).map_err(failed)
}

fn write_and_rename(path: &Path, content: &str, mode: u32) -> io::Result<()> {
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    make_directories(directory, 0o755)?;
    let draft = draft_name(path)?;
    let _ = fs::remove_file(&draft); // of a process with this number that was killed
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = (|| {
        file.write_all(content.as_bytes())?;
        let mode = match fs::symlink_metadata(path) {
            Ok(before) => {
                fchown(&file, Some(before.uid()), Some(before.gid()))?;
                before.mode() & 0o777
            }
            Err(_) => mode,
        };
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&draft, path)?;
        File::open(directory)?.sync_all()
    })();
    if written.is_err() {
        let _ = fs::remove_file(&draft); // gone already, if it was renamed
    }
    written
}

/// Missing ones.
fn make_directories(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(mode).create(path)
}

/// Beside the file, with a name that no service reads: they skip names that begin with a dot.
fn draft_name(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    Ok(path.with_file_name(format!(".{name}.belljar-{}", std::process::id())))
}

/// The lock that `useradd` and `usermod` take too: `FILE.lock`, a link to a file with the process's number.
#[derive(Debug)]
pub(super) struct EditLock(PathBuf);

impl EditLock {
    pub(super) fn take(path: &Path) -> Result<Self, SetupError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let lock = path.with_file_name(format!("{name}.lock"));
        let own = path.with_file_name(format!("{name}.{}", std::process::id()));
        let failed = |error| SetupError::Write { path: lock.clone(), error };
        if let Some(directory) = path.parent() {
            make_directories(directory, 0o755).map_err(failed)?;
        }
        let _ = fs::remove_file(&own); // of a process with this number that was killed
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&own);
        let written = file.as_mut().map(|file| write!(file, "{}", std::process::id()));
        let linked = match written {
            Ok(Ok(())) => link_when_free(&own, &lock),
            Ok(Err(error)) => Err(failed(error)),
            Err(_) => file.map(drop).map_err(failed),
        };
        let _ = fs::remove_file(&own); // the lock is the other name
        linked.map(|()| Self(lock))
    }
}

impl Drop for EditLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0); // a lock of a process that is gone is broken by the next one
    }
}

fn link_when_free(own: &Path, lock: &Path) -> Result<(), SetupError> {
    let until = Instant::now() + LOCK_TIMEOUT;
    loop {
        match fs::hard_link(own, lock) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(SetupError::Write { path: lock.to_owned(), error });
            }
            Err(_) => {}
        }
        let holder = fs::read_to_string(lock).unwrap_or_default();
        let holder = holder.trim_matches(['\0', '\n', ' ']).to_owned();
        let is_gone =
            holder.parse::<u32>().is_ok_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
        if is_gone {
            let _ = fs::remove_file(lock);
        } else if Instant::now() > until {
            return Err(SetupError::Locked { path: lock.to_owned(), holder });
        } else {
            std::thread::sleep(LOCK_PAUSE);
        }
    }
}

/// The right to change the machine and the list of changes: one process at a time. It ends with the process.
#[derive(Debug)]
pub(super) struct SetupLock(
    #[expect(dead_code, reason = "the lock is held while it is open")] File,
);

impl SetupLock {
    pub(super) fn take(root: &Path) -> Result<Self, SetupError> {
        Self::take_within(root, LOCK_TIMEOUT)
    }

    pub(super) fn take_within(root: &Path, timeout: Duration) -> Result<Self, SetupError> {
        let path = below(root, Path::new(SETUP_LOCK));
        let failed = |error| SetupError::Write { path: path.clone(), error };
        if let Some(directory) = path.parent() {
            make_directories(directory, 0o700).map_err(failed)?;
        }
        let mut options = OpenOptions::new();
        // Nobody else may open it: an open file is enough to hold the lock.
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(failed)?;
        let until = Instant::now() + timeout;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self(file)),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
                Err(TryLockError::WouldBlock) if Instant::now() > until => {
                    return Err(SetupError::Busy { path });
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_keeps_its_mode() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("new/file");
        replace(&path, "one\n", 0o644).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o644);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        replace(&path, "two\n", 0o644).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two\n");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        let link = place.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        replace(&link, "three\n", 0o644).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "three\n");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "a draft is left");
    }

    #[test]
    fn a_lock_keeps_others_out_until_it_is_dropped_or_its_holder_is_gone() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("subuid");
        let held = EditLock::take(&path).unwrap();
        let lock = place.path().join("subuid.lock");
        assert_eq!(fs::read_to_string(&lock).unwrap(), std::process::id().to_string());
        drop(held);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        fs::write(&lock, "4194305").unwrap(); // larger than any process number
        drop(EditLock::take(&path).unwrap());
        assert!(!lock.exists());
    }
}
