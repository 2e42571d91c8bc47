//! Whether a file is there for the run, seen from outside: no link is followed, and nothing of it is read.

use std::os::fd::AsFd;
use std::path::Path;

use belljar_spec::{LayeredTree, RunId};
use rustix::fs::{CWD, FileType, Mode, OFlags, openat};

use super::beneath;
use super::open::OpenTree;

/// In a tree of the host that the run writes itself.
pub fn is_file_in(tree: &Path, path: &Path) -> bool {
    let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
    let Ok(root) = openat(CWD, tree, flags, Mode::empty()) else { return false };
    let found = beneath::look(root.as_fd(), path).ok().flatten();
    found.is_some_and(|stat| is_file(stat.st_mode))
}

/// In a layered tree: what the run sees there.
pub fn is_file_in_layers(directory: &Path, run: &RunId, note: &LayeredTree, path: &Path) -> bool {
    OpenTree::open(directory, run, note.clone())
        .ok()
        .and_then(|tree| tree.look_after(path).ok().flatten())
        .is_some_and(|stat| is_file(stat.st_mode))
}

fn is_file(mode: u32) -> bool {
    FileType::from_raw_mode(mode) == FileType::RegularFile
}
