//! Checks from outside whether a run has a file at a path. No link is followed, and nothing is read.

use std::path::Path;

use belljar_spec::{LayeredTree, RunId};
use belljar_tree::{Access, Dir, FinalLink, Metadata};

use super::open::OpenTree;

/// In a tree of the host that the run writes itself.
pub fn is_file_in(tree: &Path, path: &Path) -> bool {
    let root = Dir::open_for(tree, FinalLink::Follow, Access::Lookup);
    root.is_ok_and(|root| root.stat(path).is_ok_and(|found| found.is_file()))
}

/// In a layered tree: what the run sees there.
pub fn is_file_in_layers(directory: &Path, run: &RunId, note: &LayeredTree, path: &Path) -> bool {
    OpenTree::open(directory, run, note.clone())
        .ok()
        .and_then(|tree| tree.look_after(path).ok().flatten())
        .is_some_and(|found: Metadata| found.is_file())
}
