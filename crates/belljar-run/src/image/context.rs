//! Lists and hashes the files of a build context, without following links: runs may have written there.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use belljar_spec::OsText;
use belljar_tree::{
    Bound, Bounds, Dir, EntryKind, Metadata, OpenFileError, Visit, Visitor, WalkEnd, WalkEntry,
    WalkError, WalkOrder, WalkProblem, walk,
};
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
    pub(super) kind: ContextKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ContextKind {
    Directory,
    File { size: u64, hash: blake3::Hash },
    Link { target: Vec<u8> },
}

impl ContextEntry {
    /// A relative link that points out of the context. It is not followed here; some engines reject it.
    pub(super) fn points_outside(&self) -> bool {
        let ContextKind::Link { target } = &self.kind else { return false };
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
    pub(super) root: Dir,
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

pub(super) fn read(root: Dir, exclusions: &Exclusions<'_>) -> Result<Context, ContextError> {
    let mut reader = ContextReader { exclusions, entries: Vec::new(), skipped: Vec::new() };
    let bounds = Bounds { depth: MAX_DEPTH + 1, ..Bounds::default() };
    match walk(&root, bounds, WalkOrder::Sorted, &mut reader) {
        Ok(walked) => match walked.end {
            WalkEnd::Complete | WalkEnd::Stopped => {}
            WalkEnd::Bound { bound: Bound::Depth, path } => {
                return Err(ContextError::TooDeep(OsText::from(path)));
            }
            WalkEnd::Bound { .. } => return Err(ContextError::TooMany),
        },
        Err(WalkError::Root(error)) => return Err(failed(Path::new(""), error.errno().into())),
        Err(WalkError::Visitor(error)) => return Err(error),
    }
    let ContextReader { entries, skipped, .. } = reader;
    Ok(Context { root, entries, skipped })
}

struct ContextReader<'a> {
    exclusions: &'a Exclusions<'a>,
    entries: Vec<ContextEntry>,
    skipped: Vec<(OsText, &'static str)>,
}

impl Visitor for ContextReader<'_> {
    type Error = ContextError;

    fn entry(&mut self, entry: &WalkEntry<'_>) -> Result<Visit, ContextError> {
        let path = entry.path().as_os_str().as_bytes();
        if self.exclusions.dockerfile == Some(path) {
            return Ok(Visit::Skip);
        }
        let out = self.exclusions.ignored.excludes(path);
        if out && !self.exclusions.ignored.may_reinclude_below(path) {
            return Ok(Visit::Skip);
        }
        if self.exclusions.home == Some(path) && !out {
            return Err(ContextError::HoldsHome(entry.path().to_owned()));
        }
        if self.entries.len() >= MAX_ENTRIES {
            return Err(ContextError::TooMany);
        }
        let io = |errno: Errno| failed(entry.path(), errno.into());
        let found = entry.stat().map_err(|error| io(error.errno()))?;
        let kind = match found.kind() {
            EntryKind::Directory if out => return Ok(Visit::Continue),
            EntryKind::Directory => ContextKind::Directory,
            _ if out => return Ok(Visit::Skip),
            EntryKind::File => {
                let mut file =
                    entry.parent().open_file(entry.name()).map_err(|error| io(error.errno()))?;
                let (size, hash) =
                    hashed(&mut file).map_err(|error| failed(entry.path(), error))?;
                ContextKind::File { size, hash }
            }
            EntryKind::Symlink => {
                let target = entry.parent().read_link(entry.name());
                let target = target.map_err(|error| io(error.errno()))?;
                ContextKind::Link { target: target.into_vec() }
            }
            EntryKind::Fifo
            | EntryKind::Socket
            | EntryKind::CharacterDevice
            | EntryKind::BlockDevice
            | EntryKind::Unknown => {
                self.skipped.push((OsText::from(entry.path()), found.kind().name()));
                return Ok(Visit::Skip);
            }
        };
        self.add(path, found, kind);
        Ok(Visit::Continue)
    }

    /// A context of which a part is missing would build something else.
    fn problem(&mut self, path: &Path, problem: &WalkProblem) -> Result<(), ContextError> {
        let error = match problem {
            WalkProblem::Open(error) => error.errno(),
            WalkProblem::List(error) => *error,
            WalkProblem::Moved { .. } => Errno::NOENT,
        };
        Err(failed(path, error.into()))
    }
}

impl ContextReader<'_> {
    fn add(&mut self, path: &[u8], found: &Metadata, kind: ContextKind) {
        // Links have no permissions.
        let mode = match kind {
            ContextKind::Link { .. } => 0o777,
            ContextKind::Directory | ContextKind::File { .. } => found.mode(),
        };
        let modified = found.modified().secs;
        self.entries.push(ContextEntry { path: path.to_vec(), mode, modified, kind });
    }
}

fn failed(path: &Path, error: io::Error) -> ContextError {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    ContextError::Io { path: OsText::from(path), error }
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
pub(super) fn open_again(root: &Dir, path: &[u8]) -> Result<File, OpenFileError> {
    root.open_file(OsStr::from_bytes(path))
}
