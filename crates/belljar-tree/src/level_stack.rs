//! The stack of directories from a root to the current one; only the lowest levels hold open descriptors.
//!
//! On the way up a directory is opened again through `..`, and is gone on with only where it is the very
//! one that was left: the tree may have been moved about meanwhile.

use std::ffi::OsString;
use std::os::fd::AsFd;

use rustix::fs::{Mode, fstat, openat};

use crate::dir::Dir;
use crate::error::StatError;
use crate::metadata::{Identity, Metadata};
use crate::resolve::Access;

/// Descriptors that one stack holds, besides that of the root.
pub(crate) const MAX_OPEN: usize = 32;
/// Directories opened by their names, once `..` led elsewhere. A process that moves them about all the
/// time is not followed for ever.
const MAX_SEARCH_STEPS: u32 = 100_000;

/// A path of open directories beneath a root. For callers that build or follow a tree of any depth.
#[derive(Debug)]
pub struct LevelStack {
    root: Dir,
    levels: Vec<Level>,
    search_steps: u32,
}

#[derive(Debug)]
struct Level {
    name: OsString,
    identity: Identity,
    /// Nothing while it is far above, or if it was not found again.
    dir: Option<Dir>,
}

impl LevelStack {
    /// At the root.
    pub fn new(root: Dir) -> Self {
        Self { root, levels: Vec::new(), search_steps: MAX_SEARCH_STEPS }
    }

    /// The directory that everything is beneath.
    pub fn root(&self) -> &Dir {
        &self.root
    }

    /// The lowest directory; nothing if it was moved away.
    pub fn current(&self) -> Option<&Dir> {
        match self.levels.last() {
            None => Some(&self.root),
            Some(level) => level.dir.as_ref(),
        }
    }

    /// How many directories lie between the root and the end.
    pub fn depth(&self) -> usize {
        self.levels.len()
    }

    /// Goes down into a directory of the lowest one.
    pub fn push(&mut self, name: OsString, dir: Dir) -> Result<(), StatError> {
        let identity = dir.stat("")?.identity();
        self.levels.push(Level { name, identity, dir: Some(dir) });
        if let Some(far) = self.levels.len().checked_sub(MAX_OPEN + 1) {
            self.levels[far].dir = None;
        }
        Ok(())
    }

    /// Goes up, and gives back the directory that was left, if it is still at hand.
    pub fn pop(&mut self) -> Option<Dir> {
        let left = self.levels.pop()?.dir;
        let Some(above) = self.levels.last() else { return left };
        if above.dir.is_none() {
            let dir = left
                .as_ref()
                .and_then(|left| self.above(left, above.identity))
                .or_else(|| self.search());
            if let Some(above) = self.levels.last_mut() {
                above.dir = dir;
            }
        }
        left
    }

    fn above(&self, left: &Dir, identity: Identity) -> Option<Dir> {
        let flags = Access::List.flags();
        let fd = openat(left.as_fd(), c"..", flags, Mode::empty()).ok()?;
        let found = Metadata::from_stat(fstat(&fd).ok()?).identity();
        (found == identity).then(|| self.root.sibling(fd, Access::List))
    }

    /// By the names that led to the lowest one, if they still do.
    fn search(&mut self) -> Option<Dir> {
        let mut reached: Option<Dir> = None;
        for level in &self.levels {
            self.search_steps = self.search_steps.checked_sub(1)?;
            let next = reached.as_ref().unwrap_or(&self.root).open_dir(&level.name).ok()?;
            let found = Metadata::from_stat(fstat(next.as_fd()).ok()?).identity();
            if found != level.identity {
                return None;
            }
            reached = Some(next);
        }
        reached
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::dir::FinalLink;

    fn descend(stack: &mut LevelStack, levels: usize) {
        for _ in 0..levels {
            let dir = stack.current().unwrap();
            dir.create_dir("d", 0o700).unwrap();
            let next = dir.open_dir("d").unwrap();
            stack.push("d".into(), next).unwrap();
        }
    }

    fn identity(dir: &Dir) -> Identity {
        dir.stat("").unwrap().identity()
    }

    #[test]
    fn every_level_is_found_again_on_the_way_up() {
        let place = tempfile::tempdir().unwrap();
        let root = || Dir::open(place.path(), FinalLink::Refuse).unwrap();
        let mut stack = LevelStack::new(root());
        descend(&mut stack, MAX_OPEN * 3);
        let open = stack.levels.iter().filter(|level| level.dir.is_some()).count();
        assert_eq!(open, MAX_OPEN);
        let known: Vec<Identity> = stack.levels.iter().map(|level| level.identity).collect();
        while stack.depth() > 0 {
            assert_eq!(identity(stack.current().unwrap()), known[stack.depth() - 1]);
            assert!(stack.pop().is_some());
        }
        assert_eq!(identity(stack.current().unwrap()), identity(&root()));
    }

    #[test]
    fn a_directory_that_was_moved_is_found_by_name_or_given_up() {
        let place = tempfile::tempdir().unwrap();
        let mut stack = LevelStack::new(Dir::open(place.path(), FinalLink::Refuse).unwrap());
        descend(&mut stack, MAX_OPEN + 2);
        // The third is moved to the top: its `..` is the root now, and the second has no way to it.
        fs::rename(place.path().join("d/d/d"), place.path().join("moved")).unwrap();
        while stack.depth() > 3 {
            stack.pop();
        }
        assert!(stack.current().is_some(), "it was reached from below");
        stack.pop();
        assert!(stack.current().is_some(), "the second, by its names");
        fs::rename(place.path().join("d"), place.path().join("away")).unwrap();
        stack.levels[0].dir = None;
        stack.levels[1].dir = None;
        stack.pop();
        assert!(stack.current().is_none(), "nothing leads to the first any more");
    }
}
