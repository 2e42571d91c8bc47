//! Removes a tree that an enemy made.
//!
//! Nothing in it is trusted: any depth, any number of entries, directories that deny everything, links to
//! anywhere. No name is looked up through a directory of the tree by path, no link is followed, no mount
//! is entered, and memory and descriptors do not grow with the tree.
//!
//! The tree is taken down level by level. What is left of one level (directories that are not empty) is
//! emptied in turn, and their own directories are moved up into a fresh one for the next level. So
//! depth never grows, and every entry is looked at once or twice.

mod entry;

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_spec::text::escape;
use rustix::fs::{Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use entry::{Entry, make_accessible, open_directory, rmdir, unlink};

const MOST_NAMES_TRIED: u32 = 16;

/// How long another removal of the same tree is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

/// A level directory that held no more than this is used again.
const SMALL_LEVEL: u64 = 100;

#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    #[error("cannot remove \"{}\": it names no entry of a directory", escape(.path.as_os_str().as_bytes()))]
    NoEntry { path: PathBuf },
    #[error(
        "cannot remove all of \"{}\": {doing} \"{name}\" failed; remove it by hand",
        escape(.path.as_os_str().as_bytes())
    )]
    Entry {
        path: PathBuf,
        doing: &'static str,
        /// With control characters escaped.
        name: String,
        #[source]
        error: io::Error,
    },
}

/// Removes whatever is at `path`; the directories above it are trusted. What is not there is removed
/// already. Goes on after a failure, and tells the first one.
pub fn remove(path: &Path) -> Result<(), TreeError> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(TreeError::NoEntry { path: path.to_owned() });
    };
    let Ok(name) = CString::new(name.as_bytes()) else {
        return Err(TreeError::NoEntry { path: path.to_owned() });
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let mut failures = Failures { first: None };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::open(parent, flags, Mode::empty()) {
        Ok(parent) => remove_entry(parent.as_fd(), &name, &mut failures),
        Err(Errno::NOENT) => {}
        Err(errno) => failures.add("opening the directory of", &name, errno),
    }
    match failures.first {
        None => Ok(()),
        Some((doing, name, errno)) => {
            Err(TreeError::Entry { path: path.to_owned(), doing, name, error: errno.into() })
        }
    }
}

/// The first thing that went wrong: the others follow from it, or are alike.
struct Failures {
    first: Option<(&'static str, String, Errno)>,
}

impl Failures {
    fn add(&mut self, doing: &'static str, name: &CStr, errno: Errno) {
        self.first.get_or_insert_with(|| (doing, escape(name.to_bytes()), errno));
    }

    fn add_and_go_on(&mut self, doing: &'static str, name: &CStr, errno: Errno) -> Progress {
        self.add(doing, name, errno);
        Progress::None
    }
}

fn remove_entry(parent: BorrowedFd<'_>, name: &CStr, failures: &mut Failures) {
    match unlink(parent, name, FileType::Unknown) {
        Ok(Entry::Gone) => return,
        Ok(Entry::Full) => {}
        Err(errno) => return failures.add("removing", name, errno),
    }
    match open_directory(parent, name) {
        Ok(top) => {
            wait_for_others(top.as_fd());
            remove_levels(top, failures);
        }
        Err(Errno::NOENT) => return,
        Err(errno) => return failures.add("opening", name, errno),
    }
    match rmdir(parent, name) {
        Ok(Entry::Gone) => {}
        Ok(Entry::Full) => failures.add("emptying", name, Errno::NOTEMPTY),
        Err(errno) => failures.add("removing", name, errno),
    }
}

/// Two that take down one tree would take each other's levels away. The lock goes with the descriptor. Whoever
/// else holds one, on purpose perhaps, is not waited for without end.
fn wait_for_others(top: BorrowedFd<'_>) {
    for _ in 0..PATIENCE.as_millis() / PAUSE.as_millis() {
        match rustix::fs::flock(top, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(PAUSE),
            _ => return,
        }
    }
}

/// Empties `top`. The directories of the levels below are made in it.
fn remove_levels(top: OwnedFd, failures: &mut Failures) {
    let mut below =
        Below { top: top.as_fd(), names: Names::new(), made: None, moved: 0, spare: None };
    let mut level: Option<CString> = None;
    let mut entries = 0;
    loop {
        let opened = match &level {
            None => Dir::read_from(&top),
            Some(name) => open_directory(top.as_fd(), name).and_then(Dir::new),
        };
        match opened {
            Ok(mut opened) => empty_level(&mut opened, &mut below, failures),
            Err(errno) => failures.add("opening", level.as_deref().unwrap_or(c"."), errno),
        }
        if let Some(name) = level.take() {
            if entries <= SMALL_LEVEL && failures.first.is_none() && below.spare.is_none() {
                below.spare = Some(name);
            } else {
                let _ = rmdir(top.as_fd(), &name); // full only after a failure, which is told already
            }
        }
        let Some((next, _)) = below.made.take() else { break };
        level = Some(next);
        entries = std::mem::take(&mut below.moved);
    }
    if let Some(name) = below.spare {
        let _ = rmdir(top.as_fd(), &name);
    }
}

/// The next level: where directories go that stand in a directory of this one.
struct Below<'a> {
    top: BorrowedFd<'a>,
    names: Names,
    made: Option<(CString, OwnedFd)>,
    moved: u64,
    /// An empty directory from the level before. A large one is not used again: directories do not
    /// shrink, and reading it would cost as much as when it was full.
    spare: Option<CString>,
}

impl Below<'_> {
    /// Whether the name is one of the level directories.
    fn is(&self, name: &CStr) -> bool {
        let made = self.made.as_ref().map(|(made, _)| made);
        made.into_iter().chain(&self.spare).any(|own| own.as_c_str() == name)
    }

    fn make(&mut self) -> Result<(), Errno> {
        let name = match self.spare.take() {
            Some(name) => name,
            None => self.names.make_directory(self.top)?,
        };
        let directory = open_directory(self.top, &name)?;
        self.made = Some((name, directory));
        Ok(())
    }

    /// Moves a directory that is not empty out of `from`.
    fn take_in(
        &mut self,
        level: BorrowedFd<'_>,
        from: BorrowedFd<'_>,
        name: &CStr,
    ) -> Result<(), Errno> {
        if self.made.is_none() {
            match self.make() {
                // A full disk must not keep itself full: this level, which is read again, has to do.
                Ok(()) | Err(Errno::NOSPC | Errno::DQUOT) => {}
                Err(errno) => return Err(errno),
            }
        }
        let place = self.made.as_ref().map_or(level, |(_, directory)| directory.as_fd());
        let new = self.names.take();
        let renamed = || rustix::fs::renameat(from, name, place, &new);
        match renamed() {
            // Its own entry `..` changes, so it must be writable itself.
            Err(Errno::ACCESS) => {
                make_accessible(from, name)?;
                renamed()
            }
            done => done,
        }?;
        self.moved += 1;
        Ok(())
    }
}

fn empty_level(level: &mut Dir, below: &mut Below<'_>, failures: &mut Failures) {
    each_entry(level, failures, |level, name, kind, failures| {
        if below.is(name) {
            return Progress::None;
        }
        match unlink(level, name, kind) {
            Ok(Entry::Gone) => return Progress::Made,
            Ok(Entry::Full) => {}
            Err(errno) => return failures.add_and_go_on("removing", name, errno),
        }
        match open_directory(level, name).and_then(Dir::new) {
            Ok(mut directory) => empty_directory(&mut directory, level, below, failures),
            Err(errno) => return failures.add_and_go_on("opening", name, errno),
        }
        match rmdir(level, name) {
            Ok(Entry::Gone) => Progress::Made,
            Ok(Entry::Full) => failures.add_and_go_on("emptying", name, Errno::NOTEMPTY),
            Err(errno) => failures.add_and_go_on("removing", name, errno),
        }
    });
}

/// Removes every entry, and moves the directories that are not empty to the next level.
fn empty_directory(
    directory: &mut Dir,
    level: BorrowedFd<'_>,
    below: &mut Below<'_>,
    failures: &mut Failures,
) {
    each_entry(directory, failures, |directory, name, kind, failures| {
        let done = match unlink(directory, name, kind) {
            Ok(Entry::Gone) => Ok(()),
            Ok(Entry::Full) => below.take_in(level, directory, name),
            Err(errno) => Err(errno),
        };
        match done {
            Ok(()) => Progress::Made,
            Err(errno) => failures.add_and_go_on("removing", name, errno),
        }
    });
}

enum Progress {
    Made,
    None,
}

/// Calls `visit` for every entry, and again until that changes nothing: some file systems leave out
/// entries while others are removed, and on a full disk the second try may find room. Only what
/// fails in the last round counts.
fn each_entry(
    directory: &mut Dir,
    failures: &mut Failures,
    mut visit: impl FnMut(BorrowedFd<'_>, &CStr, FileType, &mut Failures) -> Progress,
) {
    loop {
        let mut progress = Progress::None;
        let mut round = Failures { first: None };
        while let Some(entry) = directory.read() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(Errno::NOENT) => return, // somebody else has removed the directory
                Err(errno) => return failures.add("reading", c".", errno),
            };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let fd = match directory.fd() {
                Ok(fd) => fd,
                Err(errno) => return failures.add("reading", c".", errno),
            };
            if let Progress::Made = visit(fd, name, entry.file_type(), &mut round) {
                progress = Progress::Made;
            }
        }
        if let Progress::None = progress {
            failures.first = failures.first.take().or(round.first);
            return;
        }
        directory.rewind();
    }
}

/// Names that the tree does not have: it was made before they were.
struct Names {
    random: u64,
    next: u64,
}

impl Names {
    fn new() -> Self {
        let mut random = [0; 8];
        // Without random bytes the numbers alone have to do: a name that is taken is not used.
        let _ = getrandom::fill(&mut random);
        Self { random: u64::from_ne_bytes(random), next: 0 }
    }

    fn take(&mut self) -> CString {
        let name = format!(".{:x}.{}", self.random, self.next);
        self.next += 1;
        CString::new(name).unwrap_or_default() // digits hold no NUL
    }

    fn make_directory(&mut self, parent: BorrowedFd<'_>) -> Result<CString, Errno> {
        for _ in 0..MOST_NAMES_TRIED {
            let name = self.take();
            match rustix::fs::mkdirat(parent, &name, Mode::RWXU) {
                Ok(()) => return Ok(name),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::EXIST)
    }
}
