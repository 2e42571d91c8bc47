//! Reserves room on the home's disk. When the disk is full it is released, so that the end of a run can be written and
//! the ledger be updated.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, statvfs};

use crate::home::Home;

const DIRECTORY: &str = "ballast";
/// One file with the room, the rest for their inodes alone.
const FILES: usize = 8;
/// A run's record and the ledger's files fit in.
const BYTES: u64 = 512 << 10;
/// Only taken where it is not missed.
const PLENTY: u64 = 16 << 20;

fn file(home: &Home, number: usize) -> PathBuf {
    home.path().join(DIRECTORY).join(number.to_string())
}

/// Makes it where it is missing and there is plenty of room. One look where it is there.
pub fn keep(home: &Home) {
    if std::fs::symlink_metadata(file(home, FILES - 1)).is_ok() {
        return;
    }
    let has_plenty = statvfs(home.path())
        .is_ok_and(|found| found.f_bavail.saturating_mul(found.f_frsize) > PLENTY);
    if has_plenty {
        let _ = make(home); // a home without it works until its disk is full
    }
}

fn make(home: &Home) -> io::Result<()> {
    let directory = home.path().join(DIRECTORY);
    match rustix::fs::mkdir(&directory, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    home.open_apply_lock()?; // so that changes can be discarded without a free inode
    // The last one is made last: if it is there, all are.
    for number in 0..FILES {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let file = File::from(rustix::fs::open(file(home, number), flags, mode)?);
        if number == 0 {
            fallocate(&file, FallocateFlags::empty(), 0, BYTES)?;
        }
    }
    Ok(())
}

/// Whether there was something to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GivenUp {
    Some,
    Nothing,
}

/// For what cannot wait until there is room.
pub(crate) fn give_up(home: &Home) -> GivenUp {
    let mut given = GivenUp::Nothing;
    for number in 0..FILES {
        if std::fs::remove_file(file(home, number)).is_ok() {
            given = GivenUp::Some;
        }
    }
    given
}

/// Tries again, once, with the ballast given up, what failed for want of room.
pub fn or_give_up<T, E>(
    home: &Home,
    mut work: impl FnMut() -> Result<T, E>,
    is_no_space: impl Fn(&E) -> bool,
) -> Result<T, E> {
    match work() {
        Err(error) if is_no_space(&error) && give_up(home) == GivenUp::Some => work(),
        done => done,
    }
}

/// The disk, the user's share of it, or its list of files is full.
pub fn is_no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Removes what is in a directory and leaves the directory itself, whose name then shows what was removed.
pub(crate) fn empty_directory(path: &Path) -> Result<(), belljar_tree::RemoveAllError> {
    let Ok(entries) = std::fs::read_dir(path) else { return belljar_tree::remove_all(path) };
    for entry in entries.flatten() {
        belljar_tree::remove_all(entry.path())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_once_and_given_up_whole() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open_at(directory.path().join("home")).unwrap();
        assert_eq!(give_up(&home), GivenUp::Nothing);
        keep(&home);
        let room = std::fs::metadata(file(&home, 0)).unwrap();
        assert_eq!(room.len(), BYTES);
        assert!(std::os::unix::fs::MetadataExt::blocks(&room) * 512 >= BYTES);
        keep(&home);
        assert_eq!(give_up(&home), GivenUp::Some);
        assert_eq!(give_up(&home), GivenUp::Nothing);
        // What was killed half way is made whole.
        std::fs::write(file(&home, 0), "").unwrap();
        keep(&home);
        assert_eq!(std::fs::metadata(file(&home, 0)).unwrap().len(), BYTES);
    }
}
