//! How much of a tree that a run writes itself changed lately: by when inodes changed, and bounded in time.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use belljar_spec::Moment;
use rustix::fs::{FileType, Mode, OFlags};

use super::beneath;
use super::bounds::{Listing, Room};
use super::fingerprint::changed;
use super::overlay_view::{Whole, each};

/// Entries of one directory.
const MOST: usize = 1_000_000;

/// Entries that were made, removed or changed since then, as far as inodes tell: a directory counts for what came to it
/// and went from it. Where there is no time to find out, something counts as changed.
pub(crate) fn count_recent(tree: &Path, since: Moment, until: Instant) -> u64 {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(root) = rustix::fs::open(tree, flags, Mode::empty()) else {
        // A single file, or nothing that can be looked into.
        let stat = rustix::fs::lstat(tree);
        return u64::from(stat.map_or(true, |stat| changed(&stat) >= since));
    };
    let mut count = u64::from(rustix::fs::fstat(&root).is_ok_and(|stat| changed(&stat) >= since));
    let mut pending = VecDeque::from([PathBuf::new()]);
    let mut room = Room::new();
    let mut is_cut = false;
    while let Some(path) = pending.pop_front() {
        if Instant::now() > until {
            is_cut = true;
            break;
        }
        room.give_back(&path, 1);
        let Ok(directory) = beneath::directory(root.as_fd(), &path) else { continue };
        let looked = each(directory.as_fd(), Listing::of_names(MOST), |name, stat| {
            count += u64::from(changed(&stat) >= since);
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                let path = path.join(name);
                match room.take(&path, 1) {
                    true => pending.push_back(path),
                    false => is_cut = true,
                }
            }
        });
        is_cut |= looked != Ok(Whole::Yes);
    }
    if is_cut { count.max(1) } else { count }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_changed_is_counted_and_what_cannot_be_looked_at_too() {
        let dir = tempfile::tempdir().unwrap();
        let soon = || Instant::now() + Duration::from_secs(20);
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        for name in ["old", "a/b/old", "a/b/gone"] {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        std::thread::sleep(Duration::from_millis(30));
        let since = Moment::from(std::time::SystemTime::now());
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(count_recent(dir.path(), since, soon()), 0);
        fs::write(dir.path().join("a/b/old"), "y").unwrap();
        assert_eq!(count_recent(dir.path(), since, soon()), 1);
        fs::remove_file(dir.path().join("a/b/gone")).unwrap();
        assert_eq!(count_recent(dir.path(), since, soon()), 2);
        let later = Moment { secs: i64::MAX, nanos: 0 };
        assert_eq!(count_recent(dir.path(), later, Instant::now() - Duration::from_secs(1)), 1);
        assert_eq!(count_recent(&dir.path().join("old"), later, soon()), 0, "a file");
    }
}
