//! A place with a tree in it, and something outside of the tree that must stay as it is.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use belljar_tree::{Dir, FinalLink, Resolver};
use rustix::fs::{Mode, OFlags};
use tempfile::TempDir;

pub(crate) const SECRET: &str = "not for the run";

pub(crate) struct Place {
    pub(crate) temp: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::at(TempDir::new().unwrap())
    }

    /// For many names: no disk is waited for.
    pub(crate) fn in_memory() -> Self {
        Self::at(TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).unwrap())
    }

    fn at(temp: TempDir) -> Self {
        fs::create_dir(temp.path().join("tree")).unwrap();
        fs::create_dir(temp.path().join("outside")).unwrap();
        fs::write(temp.path().join("outside/secret"), SECRET).unwrap();
        Self { temp }
    }

    pub(crate) fn tree(&self) -> PathBuf {
        self.temp.path().join("tree")
    }

    pub(crate) fn outside(&self) -> PathBuf {
        self.temp.path().join("outside")
    }

    pub(crate) fn dir(&self, resolver: Resolver) -> Dir {
        Dir::open(self.tree(), FinalLink::Refuse).unwrap().with_resolver(resolver)
    }

    /// The verdict: nothing outside was read into the tree, written, added or removed.
    pub(crate) fn check_outside(&self) {
        let names: Vec<_> = fs::read_dir(self.outside()).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
        assert_eq!(fs::read_to_string(self.outside().join("secret")).unwrap(), SECRET);
    }
}

/// Runs a test once for each way to resolve a path.
pub(crate) fn each_resolver(test: impl Fn(&Place, &Dir)) {
    each_resolver_in(Place::new, test);
}

pub(crate) fn each_resolver_in(place: impl Fn() -> Place, test: impl Fn(&Place, &Dir)) {
    for resolver in [Resolver::Automatic, Resolver::Stepwise] {
        let place = place();
        let dir = place.dir(resolver);
        test(&place, &dir);
        place.check_outside();
    }
}

/// A chain of directories, each made in the one before.
pub(crate) fn dig(top: &Path, name: &str, depth: usize) -> OwnedFd {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at: OwnedFd = rustix::fs::open(top, flags, Mode::empty()).unwrap();
    for _ in 0..depth {
        rustix::fs::mkdirat(at.as_fd(), name, Mode::RWXU).unwrap();
        at = rustix::fs::openat(at.as_fd(), name, flags, Mode::empty()).unwrap();
    }
    at
}

/// Loud, and an error where the jail must work: that needs as much.
pub(crate) fn skip(why: &str) {
    let must_work = std::env::var("BELLJAR_MUST_WORK").unwrap_or_default();
    assert!(!must_work.split(',').any(|backend| backend == "jail"), "{why}");
    eprintln!("SKIPPED: {why}");
}

/// Open descriptors of this process.
pub(crate) fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
