//! Counts the entries of a tree that changed recently, by when inodes changed, and bounded in time.

use std::convert::Infallible;
use std::path::Path;
use std::time::Instant;

use belljar_spec::Moment;
use belljar_tree::{
    Bounds, Dir, FinalLink, Metadata, TimeBound, Visit, Visitor, WalkEnd, WalkEntry, WalkOrder,
    WalkProblem, walk,
};

use super::fingerprint::changed;

/// Entries that were made, removed or changed since then, as far as inodes tell: a directory counts for what came to it
/// and went from it. Where there is no time to find out, something counts as changed.
pub(crate) fn count_recent(tree: &Path, since: Moment, until: Instant) -> u64 {
    let Ok(root) = Dir::open(tree, FinalLink::Refuse) else {
        // A single file, or nothing that can be looked into.
        let found = rustix::fs::lstat(tree).map(Metadata::from_stat);
        return u64::from(found.map_or(true, |found| changed(&found) >= since));
    };
    let is_recent = root.stat("").is_ok_and(|found| changed(&found) >= since);
    let mut counter = RecentCounter { since, count: u64::from(is_recent), is_complete: true };
    let bounds = Bounds { time: TimeBound::Until(until), ..Bounds::default() };
    let walked = walk(&root, bounds, WalkOrder::AsStored, &mut counter);
    let is_complete =
        counter.is_complete && walked.is_ok_and(|walked| walked.end == WalkEnd::Complete);
    if is_complete { counter.count } else { counter.count.max(1) }
}

struct RecentCounter {
    since: Moment,
    count: u64,
    is_complete: bool,
}

impl Visitor for RecentCounter {
    type Error = Infallible;

    fn entry(&mut self, entry: &WalkEntry<'_>) -> Result<Visit, Infallible> {
        let is_recent = entry.stat().is_ok_and(|found| changed(found) >= self.since);
        self.count += u64::from(is_recent);
        Ok(Visit::Continue)
    }

    fn problem(&mut self, _: &Path, problem: &WalkProblem) -> Result<(), Infallible> {
        match problem {
            WalkProblem::Open(_) => {} // its mode denies it, now as before
            WalkProblem::List(_) | WalkProblem::Moved { .. } => self.is_complete = false,
        }
        Ok(())
    }
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
