//! Lists and hashes the files of a build context, without following links: runs may have written there.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use belljar_spec::OsText;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::ignore::IgnoreFile;

const MAX_DEPTH: usize = 128;
const MAX_ENTRIES: usize = 1_000_000;
const CHUNK: usize = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    #[error(
        "cannot read {path} of the context: {error}; if the build does not need it, add it to .dockerignore"
    )]
    Io { path: OsText, error: io::Error },
    #[error(
        "the context is nested deeper than {MAX_DEPTH} directories at {0}; add it to .dockerignore"
    )]
    TooDeep(OsText),
    #[error("the context has more than {MAX_ENTRIES} files; exclude some with .dockerignore")]
    TooMany,
    #[error("the context contains Belljar's records (the home), {path}; exclude it with .dockerignore", path = .0.display())]
    HoldsHome(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ContextEntry {
    /// Relative to the context.
    pub(super) path: Vec<u8>,
    /// Permission bits.
    pub(super) mode: u32,
    /// Sent, but not part of the fingerprint.
    pub(super) modified: i64,
    pub(super) kind: EntryKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EntryKind {
    Directory,
    File { size: u64, hash: blake3::Hash },
    Link { target: Vec<u8> },
}

impl ContextEntry {
    /// A relative link that points out of the context. It is not followed here; some engines reject it.
    pub(super) fn points_outside(&self) -> bool {
        let EntryKind::Link { target } = &self.kind else { return false };
        let mut depth = self.path.iter().filter(|byte| **byte == b'/').count();
        !target.starts_with(b"/")
            && target.split(|byte| *byte == b'/').any(|part| match part {
                b".." if depth == 0 => true,
                b".." => {
                    depth -= 1;
                    false
                }
                b"" | b"." => false,
                _ => {
                    depth += 1;
                    false
                }
            })
    }
}

/// All entries of a directory tree that are not excluded, in a fixed order.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) root: OwnedFd,
    pub(super) entries: Vec<ContextEntry>,
    /// Files that cannot be in an archive, and their type.
    pub(super) skipped: Vec<(OsText, &'static str)>,
}

/// What is excluded from the context.
#[derive(Debug)]
pub(super) struct Exclusions<'a> {
    pub(super) ignored: &'a IgnoreFile,
    /// The Dockerfile, which is handled separately.
    pub(super) dockerfile: Option<&'a [u8]>,
    /// The home of Belljar, if it is in the context.
    pub(super) home: Option<&'a [u8]>,
}

pub(super) fn read(root: OwnedFd, exclusions: &Exclusions<'_>) -> Result<Context, ContextError> {
    let mut walk = ContextWalk { exclusions, entries: Vec::new(), skipped: Vec::new() };
    walk.directory(&root, &mut Vec::new(), 0)?;
    let ContextWalk { entries, skipped, .. } = walk;
    Ok(Context { root, entries, skipped })
}

struct ContextWalk<'a> {
    exclusions: &'a Exclusions<'a>,
    entries: Vec<ContextEntry>,
    skipped: Vec<(OsText, &'static str)>,
}

impl ContextWalk<'_> {
    fn directory(
        &mut self,
        directory: &OwnedFd,
        path: &mut Vec<u8>,
        depth: usize,
    ) -> Result<(), ContextError> {
        if depth > MAX_DEPTH {
            return Err(ContextError::TooDeep(OsText::from_bytes(path.clone())));
        }
        let length = path.len();
        for name in names(directory).map_err(|errno| failed(path, errno.into()))? {
            if length > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(&name);
            self.entry(directory, OsStr::from_bytes(&name), path, depth)?;
            path.truncate(length);
        }
        Ok(())
    }

    fn entry(
        &mut self,
        at: &OwnedFd,
        name: &OsStr,
        path: &mut Vec<u8>,
        depth: usize,
    ) -> Result<(), ContextError> {
        if self.exclusions.dockerfile == Some(path) {
            return Ok(());
        }
        let out = self.exclusions.ignored.excludes(path);
        if out && !self.exclusions.ignored.may_reinclude_below(path) {
            return Ok(());
        }
        if self.exclusions.home == Some(path) && !out {
            return Err(ContextError::HoldsHome(OsStr::from_bytes(path).into()));
        }
        if self.entries.len() >= MAX_ENTRIES {
            return Err(ContextError::TooMany);
        }
        let io = |errno: Errno| failed(path, errno.into());
        let found = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW).map_err(io)?;
        let kind = match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => {
                let below = open_directory(at, name).map_err(io)?;
                if !out {
                    self.add(path, &found, EntryKind::Directory);
                }
                return self.directory(&below, path, depth + 1);
            }
            _ if out => return Ok(()),
            FileType::RegularFile => {
                let mut file = open_file(at, name).map_err(io)?;
                let (size, hash) = hashed(&mut file).map_err(|error| failed(path, error))?;
                EntryKind::File { size, hash }
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(at, name, Vec::new()).map_err(io)?;
                EntryKind::Link { target: target.into_bytes() }
            }
            other => {
                let what = match other {
                    FileType::Fifo => "a FIFO",
                    FileType::Socket => "a socket",
                    _ => "a device",
                };
                self.skipped.push((OsText::from_bytes(path.clone()), what));
                return Ok(());
            }
        };
        self.add(path, &found, kind);
        Ok(())
    }

    fn add(&mut self, path: &[u8], found: &rustix::fs::Stat, kind: EntryKind) {
        // Links have no permissions.
        let mode = match kind {
            EntryKind::Link { .. } => 0o777,
            EntryKind::Directory | EntryKind::File { .. } => found.st_mode & 0o7777,
        };
        self.entries.push(ContextEntry {
            path: path.to_vec(),
            mode,
            modified: found.st_mtime,
            kind,
        });
    }
}

fn failed(path: &[u8], error: io::Error) -> ContextError {
    let path = if path.is_empty() { b"." } else { path };
    ContextError::Io { path: OsText::from_bytes(path.to_vec()), error }
}

fn names(directory: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn open_directory(at: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

fn open_file(at: impl AsFd, name: &OsStr) -> Result<File, Errno> {
    // It may have become a FIFO by now, which must not block.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(at, name, flags, Mode::empty())?;
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file.into()),
        _ => Err(Errno::NXIO),
    }
}

fn hashed(file: &mut File) -> io::Result<(u64, blake3::Hash)> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; CHUNK];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((hasher.count(), hasher.finalize())),
            read => _ = hasher.update(&buffer[..read]),
        }
    }
}

/// Opens a file of the context again. Fails if a component of the path has become a link.
pub(super) fn open_again(root: &OwnedFd, path: &[u8]) -> Result<File, Errno> {
    let mut parts = path.split(|byte| *byte == b'/').map(OsStr::from_bytes);
    let last = parts.next_back().ok_or(Errno::NOENT)?;
    let mut directory: Option<OwnedFd> = None;
    for part in parts {
        let at = directory.as_ref().unwrap_or(root);
        directory = Some(open_directory(at, part)?);
    }
    open_file(directory.as_ref().unwrap_or(root), last)
}
