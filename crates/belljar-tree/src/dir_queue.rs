//! A bounded queue of directories to visit.
//!
//! The caller takes the next directory, lists it as far as it likes, and puts those of its directories
//! back that are worth a look, soon or late. Each is opened from the directory above it while that
//! is held open, so that a deep tree is not resolved from its root again and again; of a wide one,
//! only so many are held, and the others are opened by their path.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::dir::Dir;
use crate::error::OpenDirError;

/// Descriptors that are held for directories in the queue.
const MAX_HELD: usize = 128;
/// What a waiting directory takes besides its path.
const ENTRY_OVERHEAD: usize = 128;

/// When a directory has its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Before all others.
    First,
    /// After those that were put there before.
    Later,
    /// When nothing else is left.
    Last,
}

/// How much may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueBounds {
    /// Names of a path.
    pub depth: usize,
    /// Bytes of a path.
    pub path_bytes: usize,
    /// Bytes for all that wait.
    pub memory: usize,
}

/// Why a directory cannot wait.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    #[error("{path:?} is deeper than {most} directories")]
    TooDeep { path: PathBuf, most: usize },
    #[error("the path of {path:?} is longer than {most} bytes")]
    TooLong { path: PathBuf, most: usize },
    #[error("no memory is left for {path:?} to wait")]
    Full { path: PathBuf },
}

/// The directories of one tree that wait, each with something of the caller's.
#[derive(Debug)]
pub struct DirQueue<T> {
    root: Dir,
    bounds: QueueBounds,
    first: VecDeque<Waiting<T>>,
    later: VecDeque<Waiting<T>>,
    last: VecDeque<Waiting<T>>,
    memory: usize,
    held: Rc<Cell<usize>>,
}

#[derive(Debug)]
struct Waiting<T> {
    above: Option<Rc<HeldDir>>,
    path: PathBuf,
    depth: usize,
    payload: T,
}

/// A directory that has its turn.
#[derive(Debug)]
pub struct QueuedDir<T> {
    opened: Result<Rc<HeldDir>, OpenDirError>,
    path: PathBuf,
    depth: usize,
    pub payload: T,
}

impl<T> QueuedDir<T> {
    /// The directory, if it is still there and can be opened.
    pub fn dir(&self) -> Result<&Dir, &OpenDirError> {
        self.opened.as_deref().map(|held| &held.dir)
    }

    /// From the root; empty for the root itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many names its path has.
    pub fn depth(&self) -> usize {
        self.depth
    }
}

/// An open directory, and how many there are.
#[derive(Debug)]
struct HeldDir {
    dir: Dir,
    count: Rc<Cell<usize>>,
}

impl HeldDir {
    fn new(dir: Dir, count: &Rc<Cell<usize>>) -> Rc<Self> {
        count.set(count.get() + 1);
        Rc::new(Self { dir, count: Rc::clone(count) })
    }
}

impl Drop for HeldDir {
    fn drop(&mut self) {
        self.count.set(self.count.get().saturating_sub(1));
    }
}

impl<T> DirQueue<T> {
    /// With the root in it.
    pub fn new(root: Dir, payload: T, bounds: QueueBounds) -> Self {
        let waiting = Waiting { above: None, path: PathBuf::new(), depth: 0, payload };
        Self {
            root,
            bounds,
            first: VecDeque::new(),
            later: VecDeque::from([waiting]),
            last: VecDeque::new(),
            memory: 0,
            held: Rc::default(),
        }
    }

    /// The directory that all of them are beneath.
    pub fn root(&self) -> &Dir {
        &self.root
    }

    /// The directory whose turn it is; nothing when all had theirs.
    pub fn pop(&mut self) -> Option<QueuedDir<T>> {
        let queues = [&mut self.first, &mut self.later, &mut self.last];
        let waiting = queues.into_iter().find_map(VecDeque::pop_front)?;
        let Waiting { above, path, depth, payload } = waiting;
        self.memory = self.memory.saturating_sub(ENTRY_OVERHEAD + path.as_os_str().len());
        let opened = match (&above, path.file_name()) {
            (Some(above), Some(name)) => above.dir.open_dir(name).map_err(|error| error.at(&path)),
            _ => self.root.open_dir(&path),
        };
        drop(above);
        let opened = opened.map(|dir| HeldDir::new(dir, &self.held));
        Some(QueuedDir { opened, path, depth, payload })
    }

    /// Puts a directory into the queue by its path from the root.
    pub fn push_path(&mut self, path: PathBuf, turn: Turn, payload: T) -> Result<(), QueueError> {
        let depth = path.components().count();
        self.admit(Waiting { above: None, path, depth, payload }, turn)
    }

    /// Puts a directory of one that has its turn into the queue.
    pub fn push<U>(
        &mut self,
        above: &QueuedDir<U>,
        name: &OsStr,
        turn: Turn,
        payload: T,
    ) -> Result<(), QueueError> {
        let path = above.path.join(name);
        let depth = above.depth + 1;
        let above = match &above.opened {
            Ok(held) if self.held.get() <= MAX_HELD => Some(Rc::clone(held)),
            _ => None,
        };
        self.admit(Waiting { above, path, depth, payload }, turn)
    }

    fn admit(&mut self, waiting: Waiting<T>, turn: Turn) -> Result<(), QueueError> {
        let (path, depth) = (&waiting.path, waiting.depth);
        let QueueBounds { depth: deepest, path_bytes, memory } = self.bounds;
        if depth > deepest {
            return Err(QueueError::TooDeep { path: path.clone(), most: deepest });
        }
        if path.as_os_str().len() > path_bytes {
            return Err(QueueError::TooLong { path: path.clone(), most: path_bytes });
        }
        let size = ENTRY_OVERHEAD + path.as_os_str().len();
        if self.memory.saturating_add(size) > memory {
            return Err(QueueError::Full { path: path.clone() });
        }
        self.memory += size;
        match turn {
            Turn::First => self.first.push_back(waiting),
            Turn::Later => self.later.push_back(waiting),
            Turn::Last => self.last.push_back(waiting),
        }
        Ok(())
    }
}
