//! Writes a tree to a pipe. The tree may be hostile and may change meanwhile: nothing is
//! opened but files and directories, no link is followed, and depth and memory are bounded.

use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use belljar_spec::OsText;
use belljar_spec::text::escape;
use belljar_spec::wire::archive::{Entry, EntryKind, MAX_DEPTH, MAX_PATH};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat,
};
use rustix::io::Errno;

const CHUNK: usize = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub(super) enum PackError {
    #[error("cannot copy {path}")]
    Top {
        path: OsText,
        #[source]
        error: Errno,
    },
    #[error("cannot copy {path}: the path contains a NUL byte")]
    Nul { path: OsText },
    #[error("the copy could not be written")]
    Write(#[source] Errno),
}

/// Ends with an `End` entry, unless something is wrong with the top itself or with `out`.
pub(super) fn pack(path: &Path, out: BorrowedFd<'_>) -> Result<(), PackError> {
    let shown = || OsText::from(path);
    let name = std::ffi::CString::new(path.as_os_str().as_bytes())
        .map_err(|_| PackError::Nul { path: shown() })?;
    statat(CWD, &*name, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|error| PackError::Top { path: shown(), error })?;
    let mut packer = Packer { out, buffer: Vec::with_capacity(CHUNK), path: Vec::new() };
    packer.tree(&name)?;
    packer.header(EntryKind::End, 0, 0, 0)?;
    packer.flush()
}

struct Packer<'a> {
    out: BorrowedFd<'a>,
    buffer: Vec<u8>,
    /// Of the current entry, below the top.
    path: Vec<u8>,
}

/// A directory that is being read, and how long its path is.
struct PackLevel {
    directory: Dir,
    length: usize,
}

/// What is wrong with one entry, or with the pipe.
enum PackFailure {
    Entry(String),
    Pipe(PackError),
}

impl From<PackError> for PackFailure {
    fn from(error: PackError) -> Self {
        Self::Pipe(error)
    }
}

impl From<Errno> for PackFailure {
    fn from(error: Errno) -> Self {
        Self::Entry(std::io::Error::from(error).to_string())
    }
}

impl Packer<'_> {
    fn tree(&mut self, top: &CStr) -> Result<(), PackError> {
        let mut levels = Vec::new();
        levels.extend(self.entry_or_reason(CWD, top)?);
        loop {
            let depth = levels.len();
            let Some(level) = levels.last_mut() else { break };
            self.path.truncate(level.length);
            let entry = match level.directory.read() {
                None => {
                    levels.pop();
                    continue;
                }
                Some(Err(error)) => {
                    self.skipped(&format!("cannot be read whole: {}", error_text(error)))?;
                    levels.pop();
                    continue;
                }
                Some(Ok(entry)) => entry,
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if depth > MAX_DEPTH {
                self.skipped(&format!("what is in it is deeper than {MAX_DEPTH} directories"))?;
                levels.pop();
                continue;
            }
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(name.to_bytes());
            if self.path.len() > MAX_PATH {
                self.path.truncate(level.length);
                let name = escape(name.to_bytes());
                self.skipped(&format!("the path of {name} in it is longer than {MAX_PATH}"))?;
                continue;
            }
            let below = match level.directory.fd() {
                Ok(parent) => self.entry_or_reason(parent, name)?,
                Err(error) => self.skipped(&error_text(error)).map(|()| None)?,
            };
            levels.extend(below);
        }
        self.path.clear();
        Ok(())
    }

    fn entry_or_reason(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &CStr,
    ) -> Result<Option<PackLevel>, PackError> {
        match self.entry(parent, name) {
            Ok(level) => Ok(level),
            Err(PackFailure::Entry(why)) => self.skipped(&why).map(|()| None),
            Err(PackFailure::Pipe(error)) => Err(error),
        }
    }

    fn entry(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &CStr,
    ) -> Result<Option<PackLevel>, PackFailure> {
        let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        // By its kind first: to open a device or a FIFO does something.
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => self.file(parent, name).map(|()| None),
            FileType::Directory => self.directory(parent, name).map(Some),
            FileType::Symlink => {
                let target = readlinkat(parent, name, Vec::new())?;
                let target = target.to_bytes();
                self.header(EntryKind::Link, 0o777, target.len() as u64, seconds(&stat))?;
                self.put(target)?;
                Ok(None)
            }
            FileType::Fifo => Err(PackFailure::Entry("a FIFO".to_owned())),
            FileType::Socket => Err(PackFailure::Entry("a socket".to_owned())),
            FileType::CharacterDevice | FileType::BlockDevice => {
                Err(PackFailure::Entry("a device".to_owned()))
            }
            FileType::Unknown => Err(PackFailure::Entry("of no known kind".to_owned())),
        }
    }

    fn directory(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<PackLevel, PackFailure> {
        let fd = open(parent, name, OFlags::DIRECTORY)?;
        let stat = fstat(&fd)?;
        let directory = Dir::new(fd)?;
        self.header(EntryKind::Directory, stat.st_mode, 0, seconds(&stat))?;
        Ok(PackLevel { directory, length: self.path.len() })
    }

    /// Exactly as many bytes as the header states, whatever happens to the file meanwhile.
    fn file(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<(), PackFailure> {
        let fd = open(parent, name, OFlags::empty())?;
        let stat = fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(PackFailure::Entry("it changed into something else".to_owned()));
        }
        let mut left = u64::try_from(stat.st_size).unwrap_or(0);
        self.header(EntryKind::File, stat.st_mode, left, seconds(&stat))?;
        let mut chunk = vec![0; CHUNK];
        while left > 0 {
            let length = chunk.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            match rustix::io::read(&fd, &mut chunk[..length]) {
                Ok(0) => return self.fill(left, "it shrank while it was copied"),
                Ok(length) => {
                    self.put(&chunk[..length])?;
                    left -= length as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => {
                    return self
                        .fill(left, &format!("cannot be read whole: {}", error_text(error)));
                }
            }
        }
        Ok(())
    }

    fn fill(&mut self, mut left: u64, why: &str) -> Result<(), PackFailure> {
        static ZEROS: [u8; CHUNK] = [0; CHUNK];
        while left > 0 {
            let length = ZEROS.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            self.put(&ZEROS[..length])?;
            left -= length as u64;
        }
        Err(PackFailure::Entry(why.to_owned()))
    }

    fn skipped(&mut self, why: &str) -> Result<(), PackError> {
        self.header(EntryKind::Skipped, 0, why.len() as u64, 0)?;
        self.put(why.as_bytes())
    }

    fn header(
        &mut self,
        kind: EntryKind,
        mode: u32,
        size: u64,
        modified: i64,
    ) -> Result<(), PackError> {
        let path = self.path.clone();
        let mut header = Vec::new();
        Entry { kind, mode: mode & 0o777, path, size, modified }.write(&mut header);
        self.put(&header)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), PackError> {
        if self.buffer.len() + bytes.len() > CHUNK {
            self.flush()?;
        }
        if bytes.len() >= CHUNK {
            return write_all(self.out, bytes).map_err(PackError::Write);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), PackError> {
        let written = write_all(self.out, &self.buffer);
        self.buffer.clear();
        written.map_err(PackError::Write)
    }
}

pub(super) fn write_all(out: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(out, bytes) {
            Ok(length) => bytes = &bytes[length..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Never waits for a FIFO's other end, never takes a terminal, never follows a link.
fn open(parent: BorrowedFd<'_>, name: &CStr, kind: OFlags) -> Result<OwnedFd, Errno> {
    let careful = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    openat(parent, name, OFlags::RDONLY | careful | kind, Mode::empty())
}

fn seconds(stat: &Stat) -> i64 {
    stat.st_mtime
}

fn error_text(error: Errno) -> String {
    std::io::Error::from(error).to_string()
}
