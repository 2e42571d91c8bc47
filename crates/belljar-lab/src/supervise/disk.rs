//! Watches how much a run has written to disk, where no quota does that.
//!
//! A thread of its own, started after the command was let go: walking a large tree must not hold up
//! the loop. What counts is everything in the run's own home, and in its writable trees what changed
//! since the start.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

/// Between two looks, at least; a walk that takes long is repeated less often.
const PAUSE: Duration = Duration::from_secs(2);
const SHARE_OF_TIME: u32 = 10;

/// What to watch, and how far it may grow.
#[derive(Clone, Debug)]
pub(crate) struct DiskLimit {
    pub(crate) bytes: u64,
    pub(crate) home: PathBuf,
    pub(crate) trees: Vec<PathBuf>,
}

/// Before this nothing is watched: most runs are over by then, and a thread costs as much as a tenth of a
/// start.
pub(super) const FIRST_LOOK: Duration = PAUSE;

pub(super) struct DiskWatch {
    /// Readable once the limit was passed.
    pub(super) fd: OwnedFd,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl DiskWatch {
    /// `begun`: when the command was let go, in seconds.
    pub(super) fn start(limit: DiskLimit, begun: i64) -> Result<Self, Errno> {
        let (fd, tell) = pipe_with(PipeFlags::CLOEXEC)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name("disk".to_owned()).spawn(move || {
            loop {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let look = Instant::now();
                if written(&limit, begun, &stopped) > limit.bytes {
                    let _ = rustix::io::write(&tell, b"."); // nobody listens any more: the run is over
                    return;
                }
                thread::park_timeout(PAUSE.max(look.elapsed() * SHARE_OF_TIME));
            }
        });
        let thread =
            thread.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        Ok(Self { fd, stop, thread: Some(thread) })
    }
}

impl Drop for DiskWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Seconds of the clock that files carry.
pub(super) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64
}

fn written(limit: &DiskLimit, begun: i64, stop: &AtomicBool) -> u64 {
    let mut seen = HashSet::new();
    let everything = usage(&limit.home, i64::MIN, &mut seen, stop);
    let changed = limit.trees.iter().map(|tree| usage(tree, begun, &mut seen, stop));
    everything + changed.sum::<u64>()
}

/// Bytes on disk below a directory, without following a link or counting a file twice. What cannot be
/// read is not counted: the run itself may be changing it.
fn usage(directory: &Path, since: i64, seen: &mut HashSet<(u64, u64)>, stop: &AtomicBool) -> u64 {
    let mut total = 0;
    let mut todo = vec![directory.to_owned()];
    while let Some(directory) = todo.pop() {
        if stop.load(Ordering::Relaxed) {
            return total;
        }
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_dir() {
                todo.push(entry.path());
            }
            let is_new = meta.nlink() < 2 || meta.is_dir() || seen.insert((meta.dev(), meta.ino()));
            if meta.ctime() >= since && is_new {
                total += meta.blocks() * 512;
            }
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_home_whole_and_in_trees_what_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (home, tree) = (dir.path().join("home"), dir.path().join("tree"));
        std::fs::create_dir_all(&home).unwrap();
        std::fs::create_dir_all(tree.join("below")).unwrap();
        std::fs::write(home.join("a"), vec![1; 64 * 1024]).unwrap();
        std::fs::write(tree.join("below/b"), vec![1; 128 * 1024]).unwrap();
        std::fs::hard_link(tree.join("below/b"), tree.join("again")).unwrap();
        let limit = DiskLimit { bytes: 0, home, trees: vec![tree] };
        let stop = AtomicBool::new(false);
        let all = written(&limit, 0, &stop);
        assert!((192 * 1024..300 * 1024).contains(&all), "{all}");
        let later = written(&limit, i64::MAX, &stop);
        assert!((64 * 1024..100 * 1024).contains(&later), "{later}");
    }
}
