//! Looks up from outside which file a run has at a path. No link is followed, and nothing is read.

use std::path::Path;

use belljar_spec::{LayeredTree, RunId};
use belljar_tree::{Access, Dir, FinalLink, Metadata, Timestamp};

use super::open::OpenTree;

/// Tells a file that was written again from one that was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileVersion {
    modified: Timestamp,
    size: u64,
}

impl FileVersion {
    fn of(found: &Metadata) -> Option<Self> {
        found.is_file().then(|| Self { modified: found.modified(), size: found.size() })
    }
}

/// The plain file in a tree of the host that the run writes itself.
pub fn find_file(tree: &Path, path: &Path) -> Option<FileVersion> {
    let root = Dir::open_for(tree, FinalLink::Follow, Access::Lookup).ok()?;
    FileVersion::of(&root.stat(path).ok()?)
}

/// The plain file in a layered tree: what the run sees there.
pub fn find_file_in_layers(
    directory: &Path,
    run: &RunId,
    note: &LayeredTree,
    path: &Path,
) -> Option<FileVersion> {
    let tree = OpenTree::open(directory, run, note.clone()).ok()?;
    FileVersion::of(&tree.look_after(path).ok().flatten()?)
}
