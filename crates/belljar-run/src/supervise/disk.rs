//! Watches how much a run has written to disk, where no quota does that.
//!
//! In a thread, started after the command was released, since walking a large tree would block the loop. It counts
//! everything in the run's home and in the layers that hold its changes, and in its writable trees what changed since
//! the start.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use belljar_spec::Moment;
use belljar_workspace::disk_usage::usage;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::SuperviseError;
use super::event_source::{EventSource, PollSet};
use super::readiness::is_readable;

/// Between two walks, at least; one that takes long is repeated less often.
const PAUSE: Duration = Duration::from_secs(2);
const SHARE_OF_TIME: u32 = 10;

/// What to watch, and how far it may grow.
#[derive(Clone, Debug)]
pub(crate) struct DiskLimit {
    pub(crate) bytes: u64,
    /// Counted whole: everything in them is the run's.
    pub(crate) own: Vec<PathBuf>,
    /// Single files that grow with what the run does, such as its log.
    pub(crate) files: Vec<PathBuf>,
    pub(crate) trees: Vec<PathBuf>,
    /// Copies of trees, and when they were finished: what changed later counts.
    pub(crate) copies: Vec<(PathBuf, Moment)>,
}

/// Nothing is watched before this: most runs are over by then, and a thread costs a tenth of a start.
const FIRST_CHECK: Duration = PAUSE;

#[derive(Debug)]
pub(super) struct DiskWatch {
    /// Readable once the limit was passed.
    fd: OwnedFd,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl DiskWatch {
    /// `begun`: when the command was released, in seconds.
    fn start(limit: DiskLimit, begun: i64) -> Result<Self, Errno> {
        let (fd, report) = pipe_with(PipeFlags::CLOEXEC)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name("disk".to_owned()).spawn(move || {
            loop {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let look = Instant::now();
                if written(&limit, begun, &stopped) > limit.bytes {
                    let _ = rustix::io::write(&report, b"."); // fails only if the run is over
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

/// The watch over the disk limit.
#[derive(Debug)]
pub(super) enum Disk {
    Unlimited,
    Waiting { limit: DiskLimit, at: Instant, begun: i64 },
    Watched(DiskWatch),
}

impl Disk {
    pub(super) fn from(limit: Option<DiskLimit>, begun: Instant) -> Self {
        match limit {
            None => Self::Unlimited,
            Some(limit) => Self::Waiting { limit, at: begun + FIRST_CHECK, begun: now() },
        }
    }

    fn first_check(&self) -> Option<Instant> {
        match self {
            Self::Waiting { at, .. } => Some(*at),
            Self::Unlimited | Self::Watched(_) => None,
        }
    }

    fn poll_fd(&self) -> Option<PollFd<'_>> {
        match self {
            Self::Watched(watch) => Some(PollFd::new(&watch.fd, PollFlags::IN)),
            Self::Unlimited | Self::Waiting { .. } => None,
        }
    }

    /// `Some`, once: the limit was passed.
    fn check(&mut self, at: Instant) -> Result<Option<DiskFull>, Errno> {
        if let Self::Waiting { limit, at: due, begun } = self
            && at >= *due
        {
            *self = Self::Watched(DiskWatch::start(limit.clone(), *begun)?);
        }
        let full = matches!(self, Self::Watched(watch) if is_readable(&watch.fd));
        if full {
            *self = Self::Unlimited;
        }
        Ok(full.then_some(DiskFull))
    }
}

/// The run wrote more than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DiskFull;

impl EventSource for Disk {
    type Parts<'p> = ();
    type Event = DiskFull;

    fn watch<'a>(&'a self, poll: &mut PollSet<'a>) {
        poll.fds().extend(self.poll_fd());
    }

    fn deadline(&self) -> Option<Instant> {
        self.first_check()
    }

    fn take_turn(&mut self, now: Instant, (): ()) -> Result<Vec<DiskFull>, SuperviseError> {
        let full = self.check(now).map_err(|error| SuperviseError::Step("watch the disk", error));
        Ok(full?.into_iter().collect())
    }
}

/// Seconds of the clock that files carry.
fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64
}

fn written(limit: &DiskLimit, begun: i64, stop: &AtomicBool) -> u64 {
    let mut seen = HashSet::new();
    let ever = Moment { secs: i64::MIN, nanos: 0 };
    let begun = Moment { secs: begun, nanos: 0 };
    let own = limit.own.iter().map(|path| (path, ever));
    let trees = limit.trees.iter().map(|path| (path, begun));
    let copies = limit.copies.iter().map(|(path, copied)| (path, *copied));
    let counted = own.chain(trees).chain(copies);
    // By their length: room that was only reserved is not the run's.
    let length = |path: &PathBuf| path.symlink_metadata().map_or(0, |found| found.len());
    let files: u64 = limit.files.iter().map(length).sum();
    counted.fold(files, |total, (path, since)| {
        total.saturating_add(usage(path, since, &mut seen, stop))
    })
}

#[cfg(test)]
mod tests {
    use belljar_workspace::disk_usage::MAX_DEPTH;

    use super::*;

    #[test]
    fn a_tree_that_is_too_deep_to_look_at_counts_as_too_large() {
        let dir = tempfile::tempdir().unwrap();
        let mut deep = dir.path().join("home");
        std::fs::create_dir(&deep).unwrap();
        let limit = DiskLimit {
            bytes: 0,
            own: vec![deep.clone()],
            files: Vec::new(),
            trees: Vec::new(),
            copies: Vec::new(),
        };
        let stop = AtomicBool::new(false);
        assert!(written(&limit, 0, &stop) < 100 * 1024, "the control");
        for _ in 0..=MAX_DEPTH {
            deep.push("d");
            std::fs::create_dir(&deep).unwrap();
        }
        assert_eq!(written(&limit, 0, &stop), u64::MAX);
    }

    #[test]
    fn counts_the_home_whole_and_in_trees_what_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (home, tree) = (dir.path().join("home"), dir.path().join("tree"));
        std::fs::create_dir_all(&home).unwrap();
        std::fs::create_dir_all(tree.join("below")).unwrap();
        std::fs::write(home.join("a"), vec![1; 64 * 1024]).unwrap();
        std::fs::write(tree.join("below/b"), vec![1; 128 * 1024]).unwrap();
        std::fs::hard_link(tree.join("below/b"), tree.join("again")).unwrap();
        let log = dir.path().join("log");
        std::fs::write(&log, vec![1; 512 * 1024]).unwrap();
        let mut limit = DiskLimit {
            bytes: 0,
            own: vec![home],
            files: Vec::new(),
            trees: vec![tree],
            copies: Vec::new(),
        };
        let stop = AtomicBool::new(false);
        let all = written(&limit, 0, &stop);
        assert!((192 * 1024..300 * 1024).contains(&all), "{all}");
        let later = written(&limit, i64::MAX, &stop);
        assert!((64 * 1024..100 * 1024).contains(&later), "{later}");
        limit.files.push(log);
        assert_eq!(written(&limit, i64::MAX, &stop), later + 512 * 1024);
    }

    #[test]
    fn counts_in_a_copy_what_changed_after_it_was_made() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("copied"), vec![1; 64 * 1024]).unwrap();
        let copied = |moment| DiskLimit {
            bytes: 0,
            own: Vec::new(),
            files: Vec::new(),
            trees: Vec::new(),
            copies: vec![(dir.path().to_owned(), moment)],
        };
        let stop = AtomicBool::new(false);
        std::thread::sleep(Duration::from_millis(20));
        let made = Moment::from(SystemTime::now());
        assert_eq!(written(&copied(made), 0, &stop), 0);
        assert!(
            written(&copied(Moment { secs: 0, nanos: 0 }), 0, &stop) > 60 * 1024,
            "the control"
        );
        std::thread::sleep(Duration::from_millis(20));
        std::fs::write(dir.path().join("by_the_run"), vec![1; 128 * 1024]).unwrap();
        let later = written(&copied(made), 0, &stop);
        assert!((128 * 1024..160 * 1024).contains(&later), "{later}");
    }
}
