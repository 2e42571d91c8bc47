//! Unpacks a tree from a pipe, as `cp -r` would: directories are merged, files and links
//! replace what was there, nothing changes its owner.
//!
//! An entry without a name is made at the path itself: its parent must exist. If the
//! first entry has a name, the path must be a directory.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belljar_spec::OsText;
use belljar_spec::wire::archive::{ArchiveError, Entry, EntryKind, HEADER, MAX_PATH};
use belljar_spec::wire::{ReadOnlyFiles, UnpackModes};
use rustix::buffer::spare_capacity;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps, chmodat, fchmod, futimens, mkdirat,
    openat, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

/// As much as the pipe of a copy holds.
const CHUNK: usize = 256 * 1024;
/// Further failures only set the exit code.
const MAX_MESSAGES: usize = 100;
/// What a file or directory of ours does not get, as with the usual umask.
const UMASK: u32 = 0o022;

/// What makes it senseless to go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnpackError {
    #[error("the copy cannot be read")]
    Read(#[source] Errno),
    #[error("the copy was cut off")]
    Cut,
    #[error("the input is not a copy")]
    Archive(#[from] ArchiveError),
    #[error("cannot make {path}")]
    Top {
        path: OsText,
        #[source]
        error: Errno,
    },
    #[error("cannot write {path}")]
    Full {
        path: OsText,
        #[source]
        error: Errno,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnpackOutcome {
    Whole,
    /// They were reported.
    WithFailures,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct UnpackRules {
    pub(super) modes: UnpackModes,
    pub(super) read_only: ReadOnlyFiles,
}

pub(super) fn unpack(
    path: &Path,
    how: UnpackRules,
    from: BorrowedFd<'_>,
    complain: impl FnMut(&str),
) -> Result<UnpackOutcome, UnpackError> {
    let mut input = Input { from, buffer: Vec::new(), start: 0, left: 0 };
    let mut place = UnpackTarget { path, how, top: None, levels: Vec::new(), temporary: 0 };
    let mut failures = Failures { count: 0, complain };
    loop {
        let entry = input.next_entry()?;
        if entry.kind == EntryKind::End {
            place.leave_all();
            return Ok(failures.outcome());
        }
        match place.make(&entry, &mut input) {
            Ok(()) => {}
            Err(UnpackFailure::Fatal(error)) => return Err(error),
            Err(UnpackFailure::Entry(error)) => {
                let path = OsText::from(place.shown(&entry));
                if matches!(error, Errno::NOSPC | Errno::DQUOT) {
                    return Err(UnpackError::Full { path, error });
                }
                if entry.path.is_empty() {
                    return Err(UnpackError::Top { path, error });
                }
                failures.add(&format!("cannot make {path}: {}", std::io::Error::from(error)));
            }
            Err(UnpackFailure::ReadOnly) => {
                let path = OsText::from(place.shown(&entry));
                failures.add(&format!("{path} is read-only, and was not replaced; use --force"));
            }
        }
    }
}

struct Failures<C> {
    count: usize,
    complain: C,
}

impl<C: FnMut(&str)> Failures<C> {
    fn add(&mut self, message: &str) {
        self.count += 1;
        if self.count <= MAX_MESSAGES {
            (self.complain)(message);
        }
    }

    fn outcome(&mut self) -> UnpackOutcome {
        if let Some(more) = self.count.checked_sub(MAX_MESSAGES).filter(|more| *more > 0) {
            (self.complain)(&format!("and {more} more"));
        }
        if self.count == 0 { UnpackOutcome::Whole } else { UnpackOutcome::WithFailures }
    }
}

/// What is wrong with one entry, or with everything.
enum UnpackFailure {
    Entry(Errno),
    /// A file that nobody may write is in its place.
    ReadOnly,
    Fatal(UnpackError),
}

impl From<Errno> for UnpackFailure {
    fn from(error: Errno) -> Self {
        Self::Entry(error)
    }
}

impl From<UnpackError> for UnpackFailure {
    fn from(error: UnpackError) -> Self {
        Self::Fatal(error)
    }
}

/// The pipe. What an entry's maker did not take is passed over before the next entry.
struct Input<'a> {
    from: BorrowedFd<'a>,
    buffer: Vec<u8>,
    start: usize,
    /// Content of the current entry.
    left: u64,
}

impl Input<'_> {
    fn next_entry(&mut self) -> Result<Entry, UnpackError> {
        while self.left > 0 {
            self.content()?;
        }
        loop {
            if let Some((entry, length)) = Entry::read(&self.buffer[self.start..])? {
                self.start += length;
                self.left = entry.size;
                return Ok(entry);
            }
            self.fill()?;
        }
    }

    /// The next piece of content; empty when there is no more.
    fn content(&mut self) -> Result<&[u8], UnpackError> {
        if self.left == 0 {
            return Ok(&[]);
        }
        if self.start == self.buffer.len() {
            self.fill()?;
        }
        let have = self.buffer.len() - self.start;
        let take = have.min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let piece = &self.buffer[self.start..self.start + take];
        self.start += take;
        self.left -= take as u64;
        Ok(piece)
    }

    fn fill(&mut self) -> Result<(), UnpackError> {
        self.buffer.drain(..self.start);
        self.start = 0;
        let have = self.buffer.len();
        debug_assert!(have <= HEADER + MAX_PATH);
        self.buffer.reserve(CHUNK);
        let length = loop {
            match rustix::io::read(self.from, spare_capacity(&mut self.buffer)) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        match length {
            Ok(0) => Err(UnpackError::Cut),
            Ok(_) => Ok(()),
            Err(error) => Err(UnpackError::Read(error)),
        }
    }
}

/// Where entries go.
struct UnpackTarget<'a> {
    path: &'a Path,
    how: UnpackRules,
    top: Option<OwnedFd>,
    /// The directories from the top to the one in which the last entry was made.
    levels: Vec<UnpackLevel>,
    temporary: u64,
}

struct UnpackLevel {
    name: Vec<u8>,
    fd: OwnedFd,
    /// What it gets when everything is in it: it could not be filled if it had it before.
    mode: Option<Mode>,
}

impl UnpackTarget<'_> {
    fn make(&mut self, entry: &Entry, input: &mut Input<'_>) -> Result<(), UnpackFailure> {
        if entry.kind == EntryKind::Skipped {
            return Ok(());
        }
        if entry.path.is_empty() {
            return self.make_top(entry, input);
        }
        let (above, name) = match entry.path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&entry.path[..at], &entry.path[at + 1..]),
            None => (&b""[..], &entry.path[..]),
        };
        self.enter(above)?;
        let how = self.how;
        let temporary = self.temporary_name();
        let parent = match self.levels.last() {
            Some(level) => level.fd.as_fd(),
            None => self.top()?,
        };
        let at = At { parent, name: OsStr::from_bytes(name), how, temporary };
        match entry.kind {
            EntryKind::Directory => {
                let level = at.directory(entry)?;
                self.levels.push(level);
                Ok(())
            }
            _ => at.file_or_link(entry, input),
        }
    }

    fn make_top(&mut self, entry: &Entry, input: &mut Input<'_>) -> Result<(), UnpackFailure> {
        if entry.kind == EntryKind::Directory {
            match mkdirat(CWD, self.path, filled(entry.mode)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            self.top()?;
            return Ok(());
        }
        let name = self.path.file_name().ok_or(Errno::ISDIR)?;
        let above = self.path.parent().filter(|above| !above.as_os_str().is_empty());
        let parent = open_directory(CWD, above.unwrap_or(Path::new(".")).as_os_str(), Follow::Yes)?;
        let temporary = self.temporary_name();
        At { parent: parent.as_fd(), name, how: self.how, temporary }.file_or_link(entry, input)
    }

    fn top(&mut self) -> Result<BorrowedFd<'_>, UnpackFailure> {
        if self.top.is_none() {
            let opened = open_directory(CWD, self.path.as_os_str(), Follow::Yes);
            let path = || OsText::from(self.path);
            self.top = Some(opened.map_err(|error| UnpackError::Top { path: path(), error })?);
        }
        self.top.as_ref().map(AsFd::as_fd).ok_or(UnpackFailure::Entry(Errno::NOENT))
    }

    /// Goes to a directory below the top, by the shortest path from the current one.
    fn enter(&mut self, path: &[u8]) -> Result<(), UnpackFailure> {
        let names: Vec<&[u8]> =
            path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
        let shared =
            self.levels.iter().zip(&names).take_while(|(level, name)| level.name == **name).count();
        self.leave(shared);
        for name in &names[shared..] {
            let parent = match self.levels.last() {
                Some(level) => level.fd.as_fd(),
                None => self.top()?,
            };
            let fd = open_directory(parent, OsStr::from_bytes(name), Follow::No)?;
            self.levels.push(UnpackLevel { name: name.to_vec(), fd, mode: None });
        }
        Ok(())
    }

    fn leave(&mut self, keep: usize) {
        while self.levels.len() > keep {
            let Some(UnpackLevel { name, mode, .. }) = self.levels.pop() else { return };
            let parent = self.levels.last().map(|level| &level.fd).or(self.top.as_ref());
            if let (Some(mode), Some(parent)) = (mode, parent) {
                // It is there and filled; only its permissions are wider than they were.
                let _ = chmodat(parent, OsStr::from_bytes(&name), mode, AtFlags::empty());
            }
        }
    }

    fn leave_all(&mut self) {
        self.leave(0);
    }

    fn temporary_name(&mut self) -> String {
        self.temporary += 1;
        format!(".belljar-copy-{}-{}", std::process::id(), self.temporary)
    }

    fn shown(&self, entry: &Entry) -> PathBuf {
        if entry.path.is_empty() {
            return self.path.to_owned();
        }
        self.path.join(OsStr::from_bytes(&entry.path))
    }
}

/// One entry's place.
struct At<'a> {
    parent: BorrowedFd<'a>,
    name: &'a OsStr,
    how: UnpackRules,
    temporary: String,
}

impl At<'_> {
    fn directory(&self, entry: &Entry) -> Result<UnpackLevel, UnpackFailure> {
        let made = match mkdirat(self.parent, self.name, filled(entry.mode)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let fd = open_directory(self.parent, self.name, Follow::No)?;
        let is_final = self.how.modes == UnpackModes::Umask && entry.mode & 0o700 == 0o700;
        let mode = (made && !is_final).then(|| masked(entry.mode, self.how.modes));
        Ok(UnpackLevel { name: self.name.as_bytes().to_vec(), fd, mode })
    }

    /// Made beside the target and renamed over it, so that no process sees half of it.
    fn file_or_link(&self, entry: &Entry, input: &mut Input<'_>) -> Result<(), UnpackFailure> {
        // A rename onto an empty directory would be refused with an error that explains nothing.
        let there = statat(self.parent, self.name, AtFlags::SYMLINK_NOFOLLOW);
        match there.as_ref().map(|stat| (FileType::from_raw_mode(stat.st_mode), stat.st_mode)) {
            Ok((FileType::Directory, _)) => return Err(Errno::ISDIR.into()),
            Ok((FileType::RegularFile, mode))
                if mode & 0o222 == 0 && self.how.read_only == ReadOnlyFiles::Refuse =>
            {
                return Err(UnpackFailure::ReadOnly);
            }
            _ => {}
        }
        let temporary = self.temporary.as_str();
        let made = match entry.kind {
            EntryKind::Link => self.link(input),
            _ => self.file(entry, input),
        };
        let placed =
            made.and_then(|()| Ok(renameat(self.parent, temporary, self.parent, self.name)?));
        if placed.is_err() {
            let _ = unlinkat(self.parent, temporary, AtFlags::empty()); // perhaps never made
        }
        placed
    }

    fn link(&self, input: &mut Input<'_>) -> Result<(), UnpackFailure> {
        let mut target = Vec::new();
        loop {
            let piece = input.content()?;
            if piece.is_empty() {
                break;
            }
            if target.len() + piece.len() > MAX_PATH {
                return Err(Errno::NAMETOOLONG.into());
            }
            target.extend_from_slice(piece);
        }
        Ok(symlinkat(OsStr::from_bytes(&target), self.parent, self.temporary.as_str())?)
    }

    fn file(&self, entry: &Entry, input: &mut Input<'_>) -> Result<(), UnpackFailure> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let private = Mode::from_raw_mode(0o600);
        let file = openat(self.parent, self.temporary.as_str(), flags, private)?;
        loop {
            let mut piece = input.content()?;
            if piece.is_empty() {
                break;
            }
            while !piece.is_empty() {
                match rustix::io::write(&file, piece) {
                    Ok(length) => piece = &piece[length..],
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        fchmod(&file, masked(entry.mode, self.how.modes))?;
        let modified = Timespec { tv_sec: entry.modified, tv_nsec: 0 };
        let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: modified };
        let _ = futimens(&file, &times); // a date that this file system cannot hold
        Ok(())
    }
}

enum Follow {
    Yes,
    No,
}

fn open_directory(parent: BorrowedFd<'_>, name: &OsStr, follow: Follow) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let flags = match follow {
        Follow::Yes => flags,
        Follow::No => flags | OFlags::NOFOLLOW,
    };
    openat(parent, name, flags, Mode::empty())
}

fn masked(mode: u32, modes: UnpackModes) -> Mode {
    Mode::from_raw_mode(match modes {
        UnpackModes::Umask => mode & 0o777 & !UMASK,
        UnpackModes::Exact => mode & 0o777,
    })
}

/// A directory that things can be put into.
fn filled(mode: u32) -> Mode {
    Mode::from_raw_mode((mode | 0o700) & 0o777 & !UMASK)
}
