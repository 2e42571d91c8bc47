//! Measures what trees take on disk, bounded and without following a link.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use belljar_spec::Moment;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, statat};

/// A deeper tree counts as too large.
pub const DEEPEST: usize = 512;
/// What an empty file takes too.
const INODE: u64 = 256;
/// Files with several names that are told apart.
const MOST_REMEMBERED: usize = 200_000;

/// What several trees take on disk, each file counted once.
#[derive(Debug, Default)]
pub struct DiskUsage {
    seen: HashSet<(u64, u64)>,
    bytes: u64,
}

impl DiskUsage {
    pub fn add(&mut self, tree: &Path, stop: &AtomicBool) {
        let ever = Moment { secs: i64::MIN, nanos: 0 };
        self.bytes = self.bytes.saturating_add(usage(tree, ever, &mut self.seen, stop));
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Bytes on disk below a directory, without following a link or counting a file twice. What cannot be
/// read is not counted: the run itself may be changing it. By descriptor, one for each level, so that
/// neither a wide nor a deep tree, nor a directory that becomes a link, leads anywhere or costs memory.
pub fn usage(
    directory: &Path,
    since: Moment,
    seen: &mut HashSet<(u64, u64)>,
    stop: &AtomicBool,
) -> u64 {
    let mut total = 0;
    let Some(top) = open(CWD, directory.as_os_str()) else { return 0 };
    let mut levels = vec![top];
    while let Some(level) = levels.last_mut() {
        if stop.load(Ordering::Relaxed) {
            return total;
        }
        let Some(Ok(entry)) = level.read() else {
            levels.pop();
            continue;
        };
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let Ok(here) = level.fd() else { continue };
        let Ok(stat) = statat(here, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let nanos = u32::try_from(stat.st_ctime_nsec).unwrap_or(0);
        let is_later = Moment { secs: stat.st_ctime, nanos } >= since;
        // Past so many files with several names they are counted as often as they are met.
        let is_new = stat.st_nlink < 2
            || is_directory
            || seen.len() >= MOST_REMEMBERED
            || seen.insert((stat.st_dev, stat.st_ino));
        if is_later && is_new {
            total += u64::try_from(stat.st_blocks).unwrap_or(0) * 512 + INODE;
        }
        if is_directory && levels.len() >= DEEPEST {
            if is_later {
                return u64::MAX; // nobody works in such a tree: it is there to hide something
            }
        } else if is_directory {
            let name = OsStr::from_bytes(name.to_bytes()).to_owned();
            let below = levels.last().and_then(|level| open(level.fd().ok()?, &name));
            levels.extend(below);
        }
    }
    total
}

fn open(at: impl AsFd, name: &OsStr) -> Option<Dir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(at, name, flags, Mode::empty()).ok()?;
    Dir::new(fd).ok()
}
