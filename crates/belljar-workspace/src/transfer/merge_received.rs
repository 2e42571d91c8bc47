//! Merges a tree that came back from a sandbox into the copy that was sent there.
//!
//! Only what differs is written, so that the inode of an unchanged entry keeps its change time: the changes of a run
//! with a copied tree are found by it (`Backing::Copy`). Both trees are on one file system, and an entry
//! that differs is moved from one to the other.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

use belljar_spec::OsText;
use belljar_tree::{
    ContentComparison, Dir, EntryKind, FinalLink, ListLimits, ListOrder, ListingEnd, Metadata,
    RenameMode, compare_content,
};

/// What it takes to change the names in a directory.
const WRITE_AND_ENTER: u32 = 0o700;
const PERMISSIONS: u32 = 0o777;

#[derive(Debug, thiserror::Error)]
#[error("cannot merge {path} into the run's changes: {why}")]
pub struct MergeError {
    pub path: OsText,
    pub why: String,
}

/// What the merge did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceivedMerge {
    /// Entries that are new, or replaced an old one. A new directory counts once.
    pub written: u64,
    pub removed: u64,
    pub modes: u64,
}

/// Bounds of one merge.
#[derive(Clone, Copy, Debug)]
struct MergeBounds {
    names: ListLimits,
    until: Instant,
}

/// Makes `sent` what `received` is, except for `skipped`: what the sandbox could not send back stays as it was sent.
pub fn merge_received(
    received: &Path,
    sent: &Path,
    skipped: &[PathBuf],
    until: Instant,
) -> Result<ReceivedMerge, MergeError> {
    if skipped.iter().any(|path| path.as_os_str().is_empty()) {
        let why = "the sandbox could not send it back".to_owned();
        return Err(MergeError { path: OsText::default(), why });
    }
    let open = |path: &Path| Dir::open(path, FinalLink::Refuse).map_err(failed(path));
    let names = ListLimits { entries: 1 << 20, name_bytes: 64 << 20 };
    let mut merge = Merge {
        received: open(received)?,
        sent: open(sent)?,
        skipped: skipped.iter().map(PathBuf::as_path).collect(),
        bounds: MergeBounds { names, until },
        merged: ReceivedMerge::default(),
    };
    merge.directory(Path::new(""))?;
    Ok(merge.merged)
}

fn failed<E: std::error::Error>(path: &Path) -> impl Fn(E) -> MergeError {
    let path = OsText::from(path);
    move |error| MergeError { path: path.clone(), why: belljar_spec::text::error_chain(&error) }
}

struct Merge<'a> {
    received: Dir,
    sent: Dir,
    skipped: HashSet<&'a Path>,
    bounds: MergeBounds,
    merged: ReceivedMerge,
}

impl Merge<'_> {
    /// A directory that both trees have. An archive bounds the depth.
    fn directory(&mut self, path: &Path) -> Result<(), MergeError> {
        let locked = self.unlock(path)?;
        let done = self.entries(path);
        if let Some(mode) = locked {
            self.sent.set_mode(path, mode).map_err(failed(path))?;
        }
        done
    }

    /// Lets the owner change a directory of the copy. The answer is the mode that it has to get back.
    fn unlock(&self, path: &Path) -> Result<Option<u32>, MergeError> {
        let mode = self.sent.stat(path).map_err(failed(path))?.mode() & 0o1777;
        if mode & WRITE_AND_ENTER == WRITE_AND_ENTER {
            return Ok(None);
        }
        self.sent.set_mode(path, mode | WRITE_AND_ENTER).map_err(failed(path))?;
        Ok(Some(mode))
    }

    fn entries(&mut self, path: &Path) -> Result<(), MergeError> {
        let (new, old) = (self.names(&self.received, path)?, self.names(&self.sent, path)?);
        for name in old.iter().filter(|name| new.binary_search(name).is_err()) {
            let path = path.join(name);
            self.check_time(&path)?;
            if !self.is_skipped(&path) {
                self.sent.remove_all(&path).map_err(failed(&path))?;
                self.merged.removed += 1;
            }
        }
        for name in &new {
            let path = path.join(name);
            self.check_time(&path)?;
            if !self.is_skipped(&path) {
                self.entry(&path)?;
            }
        }
        Ok(())
    }

    fn check_time(&self, path: &Path) -> Result<(), MergeError> {
        if Instant::now() >= self.bounds.until {
            return Err(MergeError { path: path.into(), why: "it took too long".to_owned() });
        }
        Ok(())
    }

    fn is_skipped(&self, path: &Path) -> bool {
        self.skipped.contains(path)
    }

    fn names(&self, tree: &Dir, path: &Path) -> Result<Vec<OsString>, MergeError> {
        // Of what was received, a directory may deny its owner too: it has the mode that it had inside.
        let directory = tree.unlock_dir(path).map_err(failed(path))?;
        let listed = directory.dir.list("", self.bounds.names, ListOrder::Sorted);
        directory.relock();
        let listed = listed.map_err(failed(path))?;
        if listed.end != ListingEnd::Complete {
            return Err(MergeError { path: path.into(), why: "it has too many names".to_owned() });
        }
        Ok(listed.entries.into_iter().map(|entry| entry.name).collect())
    }

    fn entry(&mut self, path: &Path) -> Result<(), MergeError> {
        let new = self.received.stat(path).map_err(failed(path))?;
        let Some(old) = self.sent.stat_if_exists(path).map_err(failed(path))? else {
            return self.take(path, &new);
        };
        match (old.kind(), new.kind()) {
            (EntryKind::Directory, EntryKind::Directory) => {
                self.directory(path)?;
                self.mode(path, &old, &new)
            }
            (EntryKind::File, EntryKind::File) if self.has_same_content(path)? => {
                self.mode(path, &old, &new)
            }
            (EntryKind::Symlink, EntryKind::Symlink) if self.has_same_target(path)? => Ok(()),
            _ => {
                self.sent.remove_all(path).map_err(failed(path))?;
                self.take(path, &new)
            }
        }
    }

    fn has_same_content(&self, path: &Path) -> Result<bool, MergeError> {
        let open = |tree: &Dir| tree.unlock_file(path).map_err(failed(path));
        let (new, old) = (open(&self.received)?, open(&self.sent)?);
        let compared = compare_content(&new.file, &old.file).map_err(failed(path))?;
        Ok(compared == ContentComparison::Same)
    }

    fn has_same_target(&self, path: &Path) -> Result<bool, MergeError> {
        let target = |tree: &Dir| tree.read_link(path).map_err(failed(path));
        Ok(target(&self.received)? == target(&self.sent)?)
    }

    fn mode(&mut self, path: &Path, old: &Metadata, new: &Metadata) -> Result<(), MergeError> {
        let (old, new) = (old.mode() & PERMISSIONS, new.mode() & PERMISSIONS);
        if old != new {
            self.sent.set_mode(path, new).map_err(failed(path))?;
            self.merged.modes += 1;
        }
        Ok(())
    }

    /// Moves an entry into the copy, with everything in it.
    fn take(&mut self, path: &Path, new: &Metadata) -> Result<(), MergeError> {
        let mode = new.mode() & PERMISSIONS;
        let is_locked = new.is_dir() && mode & WRITE_AND_ENTER != WRITE_AND_ENTER;
        if is_locked {
            // The kernel changes `..` in it, which its owner must be allowed to.
            self.received.set_mode(path, mode | WRITE_AND_ENTER).map_err(failed(path))?;
        }
        let moved = self.received.rename(path, &self.sent, path, RenameMode::NoReplace);
        moved.map_err(failed(path))?;
        if is_locked {
            self.sent.set_mode(path, mode).map_err(failed(path))?;
        }
        self.merged.written += 1;
        Ok(())
    }
}
