//! Visits everything in a tree, within one budget and without following a link.
//!
//! Depth first. Each directory is opened from the one above it, and only the lowest levels hold
//! descriptors, so depth costs neither descriptors nor time. Memory is taken by the names of
//! directories that are yet to be entered (of all entries, where they are sorted), and is bounded.

mod bounds;
mod visitor;

pub use bounds::{Bound, Bounds, TimeBound, WalkEnd, WalkReport};
pub use visitor::{Visit, Visitor, WalkEntry, WalkProblem};

use std::cell::OnceCell;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::dir::{Dir, DirEntry, Entries};
use crate::error::OpenDirError;
use crate::level_stack::LevelStack;
use crate::metadata::EntryKind;

/// What a name takes besides its bytes.
const NAME_OVERHEAD: usize = 64;

/// In which order entries are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkOrder {
    /// As they are stored; what is not a directory comes first.
    AsStored,
    /// By the bytes of their names, each directory with what is in it.
    Sorted,
}

/// The root could not be opened, or the visitor failed.
#[derive(Debug, thiserror::Error)]
pub enum WalkError<E> {
    #[error("cannot open the root of the walk")]
    Root(#[source] OpenDirError),
    #[error("the visitor failed")]
    Visitor(#[source] E),
}

/// Visits everything beneath a directory, but not the directory itself.
pub fn walk<V: Visitor>(
    root: &Dir,
    bounds: Bounds,
    order: WalkOrder,
    visitor: &mut V,
) -> Result<WalkReport, WalkError<V::Error>> {
    let root = root.open_dir("").map_err(WalkError::Root)?;
    let mut walk = Walk {
        visitor,
        bounds,
        order,
        stack: LevelStack::new(root),
        pending: Vec::new(),
        path: PathBuf::new(),
        memory: 0,
        entries: 0,
        bytes: 0,
        problems: 0,
    };
    let end = match walk.run() {
        Ok(()) => WalkEnd::Complete,
        Err(Ended::Early(end)) => end,
        Err(Ended::Failed(error)) => return Err(WalkError::Visitor(error)),
    };
    let Walk { entries, bytes, problems, .. } = walk;
    Ok(WalkReport { end, entries, bytes, problems })
}

/// Why a walk does not go on.
enum Ended<E> {
    Early(WalkEnd),
    Failed(E),
}

struct Walk<'v, V: Visitor> {
    visitor: &'v mut V,
    bounds: Bounds,
    order: WalkOrder,
    stack: LevelStack,
    /// For the root and each level of the stack: what is yet to be visited, the next one last.
    pending: Vec<Vec<DirEntry>>,
    /// Of the directory at hand.
    path: PathBuf,
    memory: usize,
    entries: u64,
    bytes: u64,
    problems: u64,
}

impl<V: Visitor> Walk<'_, V> {
    fn run(&mut self) -> Result<(), Ended<V::Error>> {
        self.list()?;
        while let Some(pending) = self.pending.last_mut() {
            match pending.pop() {
                Some(entry) => {
                    self.memory -= size_of_entry(&entry);
                    self.visit(entry)?;
                }
                None => self.leave()?,
            }
        }
        Ok(())
    }

    /// Lists the lowest directory. What is not a directory is visited at once, unless it is sorted.
    fn list(&mut self) -> Result<(), Ended<V::Error>> {
        self.pending.push(Vec::new());
        let Some(dir) = self.stack.current() else { return Ok(()) };
        // Just opened, so that a second descriptor for it stands at its beginning, too.
        let listed = rustix::io::fcntl_dupfd_cloexec(dir.as_fd(), 0)
            .and_then(|fd| Entries::of(fd, dir.rules(), PathBuf::new()));
        let mut listed = match listed {
            Ok(listed) => listed,
            Err(error) => return self.problem(&WalkProblem::List(error)),
        };
        while let Some(entry) = listed.next_entry() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => return self.problem(&WalkProblem::List(error)),
            };
            let Some(entry) = self.admit(entry)? else { continue };
            if self.order == WalkOrder::AsStored && entry.kind != EntryKind::Directory {
                self.visit(entry)?;
                continue;
            }
            self.memory += size_of_entry(&entry);
            if self.memory > self.bounds.memory {
                return Err(self.ended(Bound::Memory, Some(entry.name)));
            }
            if let Some(pending) = self.pending.last_mut() {
                pending.push(entry);
            }
        }
        if self.order == WalkOrder::Sorted
            && let Some(pending) = self.pending.last_mut()
        {
            pending.sort_unstable_by(|one, other| other.name.cmp(&one.name));
        }
        Ok(())
    }

    /// Counts an entry, and finds out its kind where the listing does not have it. Nothing: it is gone.
    fn admit(&mut self, mut entry: DirEntry) -> Result<Option<DirEntry>, Ended<V::Error>> {
        self.entries += 1;
        if self.entries > self.bounds.entries {
            return Err(self.ended(Bound::Entries, Some(entry.name)));
        }
        if self.bounds.time.is_over() {
            return Err(self.ended(Bound::Time, Some(entry.name)));
        }
        if entry.kind == EntryKind::Unknown
            && let Some(dir) = self.stack.current()
        {
            match dir.stat(&entry.name) {
                Ok(found) => entry.kind = found.kind(),
                Err(error) if error.is_missing() => return Ok(None),
                Err(_) => {}
            }
        }
        Ok(Some(entry))
    }

    fn visit(&mut self, entry: DirEntry) -> Result<(), Ended<V::Error>> {
        if self.bounds.time.is_over() {
            return Err(self.ended(Bound::Time, Some(entry.name)));
        }
        self.path.push(&entry.name);
        let entered = self.visit_here(&entry);
        match entered {
            Ok(Some(dir)) => {
                self.enter(entry.name, dir)?;
            }
            Ok(None) => {
                self.path.pop();
            }
            Err(ended) => return Err(ended),
        }
        Ok(())
    }

    /// Gives the directory to be entered, if it is one. The path is that of the entry.
    fn visit_here(&mut self, entry: &DirEntry) -> Result<Option<Dir>, Ended<V::Error>> {
        let Some(parent) = self.stack.current() else { return Ok(None) };
        let shown = WalkEntry {
            parent,
            name: &entry.name,
            path: &self.path,
            depth: self.stack.depth() + 1,
            kind: entry.kind,
            metadata: OnceCell::new(),
        };
        match self.visitor.entry(&shown).map_err(Ended::Failed)? {
            Visit::Stop => return Err(Ended::Early(WalkEnd::Stopped)),
            Visit::Skip => return Ok(None),
            Visit::Continue => {}
        }
        if self.bounds.bytes != u64::MAX {
            let bytes = match shown.stat() {
                Ok(found) => found.disk_bytes(),
                Err(error) if error.is_missing() => return Ok(None),
                Err(_) => 0,
            };
            self.bytes = self.bytes.saturating_add(bytes);
            if self.bytes > self.bounds.bytes {
                return Err(self.ended(Bound::Bytes, None));
            }
        }
        if entry.kind != EntryKind::Directory {
            return Ok(None);
        }
        if shown.depth >= self.bounds.depth {
            return Err(self.ended(Bound::Depth, None));
        }
        match parent.open_dir(&entry.name) {
            Ok(dir) => {
                self.visitor.enter(&shown, &dir).map_err(Ended::Failed)?;
                Ok(Some(dir))
            }
            Err(OpenDirError::Missing { .. }) => Ok(None),
            Err(error) => {
                let error = error.at(&self.path);
                self.problem(&WalkProblem::Open(error)).map(|()| None)
            }
        }
    }

    fn enter(&mut self, name: OsString, dir: Dir) -> Result<(), Ended<V::Error>> {
        self.memory += NAME_OVERHEAD + name.len();
        if self.memory > self.bounds.memory {
            return Err(self.ended(Bound::Memory, None));
        }
        match self.stack.push(name, dir) {
            Ok(()) => self.list(),
            Err(error) => {
                self.problem(&WalkProblem::List(error.errno()))?;
                self.left()
            }
        }
    }

    fn leave(&mut self) -> Result<(), Ended<V::Error>> {
        self.pending.pop();
        if self.pending.is_empty() {
            return Ok(()); // the root
        }
        let name = self.path.file_name().map_or(0, |name| name.len());
        self.memory = self.memory.saturating_sub(NAME_OVERHEAD + name);
        self.stack.pop();
        self.left()?;
        let unvisited = match (self.stack.current(), self.pending.last_mut()) {
            (None, Some(pending)) => std::mem::take(pending),
            _ => return Ok(()),
        };
        for entry in &unvisited {
            self.memory -= size_of_entry(entry);
        }
        match unvisited.len() {
            0 => Ok(()), // there was nothing more to do in it
            unvisited => self.problem(&WalkProblem::Moved { unvisited }),
        }
    }

    fn left(&mut self) -> Result<(), Ended<V::Error>> {
        self.visitor.leave(&self.path).map_err(Ended::Failed)?;
        self.path.pop();
        Ok(())
    }

    fn problem(&mut self, problem: &WalkProblem) -> Result<(), Ended<V::Error>> {
        self.problems += 1;
        self.visitor.problem(&self.path, problem).map_err(Ended::Failed)
    }

    fn ended(&self, bound: Bound, name: Option<OsString>) -> Ended<V::Error> {
        let path = name.map_or_else(|| self.path.clone(), |name| self.path.join(name));
        Ended::Early(WalkEnd::Bound { bound, path })
    }
}

fn size_of_entry(entry: &DirEntry) -> usize {
    NAME_OVERHEAD + entry.name.len()
}

/// Whether an error means that something was removed or exchanged since it was listed.
pub(crate) fn is_changed(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO)
}
