//! Lists the paths that a live run has changed so far, without reading any content, so that what it saw there is
//! recorded before another process changes it.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use belljar_spec::{Backing, LayeredTree, OsText, RunId};
use belljar_tree::{Bounds, Visit, WalkEntry, WalkError, WalkOrder, walk};
use rustix::io::Errno;

use super::baseline::Baseline;
use super::bounds::{Listing, OutOfReach, Room};
use super::open::OpenTree;
use super::overlay_view::{Node, Opened};

/// In one look; the rest waits for the end of the run.
const MAX_COUNT: usize = 100_000;

/// What was found, within bounds.
struct Found<'a> {
    paths: Vec<OsText>,
    room: Room,
    is_full: bool,
    stop: &'a AtomicBool,
}

impl Found<'_> {
    fn is_over(&self) -> bool {
        self.is_full || self.stop.load(Ordering::Relaxed)
    }

    /// Whether to look into it, if it is a directory.
    fn add(&mut self, path: &Path) -> bool {
        // The path itself, and what waits to be looked into: its path, and that in the real tree.
        self.is_full |= self.paths.len() >= MAX_COUNT || !self.room.take(path, 3);
        if self.is_full {
            return false;
        }
        self.paths.push(OsText::from(path));
        OutOfReach::of(path, path.components().count()).is_none()
    }
}

/// One look at one tree. What fails is tried again at the next, or at the end.
pub fn capture_live(directory: &Path, run: &RunId, note: &LayeredTree, stop: &AtomicBool) {
    let Ok(tree) = OpenTree::open(directory, run, note.clone()) else { return };
    let paths: Vec<OsText> = match note.backing {
        Backing::Overlay { .. } => paths_of(&tree, stop),
        Backing::Copy { .. } => {
            let Ok(changes) = tree.changes() else { return };
            changes.changes.into_iter().map(|change| change.path).collect()
        }
    };
    if paths.is_empty() || stop.load(Ordering::Relaxed) {
        return;
    }
    if let Ok(mut baseline) = Baseline::open(directory, note.number) {
        baseline.capture_paths(&tree, paths.iter());
        let _ = baseline.write();
    }
}

/// As far as they can be found now; the rest at the next look.
pub(super) fn paths_of(tree: &OpenTree, stop: &AtomicBool) -> Vec<OsText> {
    let mut found = Found { paths: Vec::new(), room: Room::new(), is_full: false, stop };
    let _ = touched(tree, &mut found);
    found.paths
}

fn touched(tree: &OpenTree, found: &mut Found<'_>) -> Result<(), Errno> {
    let mut pending = vec![(PathBuf::new(), Node::root(tree.note.backing))];
    while let Some((path, node)) = pending.pop() {
        if found.is_over() {
            return Ok(());
        }
        let Some(upper) = tree.upper().open_dir_if_exists(&path)? else { continue };
        let opened = Opened { tree, path: &path, node: &node, upper: Some(&upper), lower: None };
        for (name, entry) in opened.changed(Listing::of(&path).at_most(MAX_COUNT))?.0 {
            if found.is_over() {
                return Ok(());
            }
            let path = path.join(name);
            let goes_on = found.add(&path);
            let node = entry.and_then(|entry| entry.node);
            if node.as_ref().and_then(|node| node.lower.as_deref()) != Some(&path) {
                below(tree, &path, found)?; // whatever the real tree has there is covered
            }
            if let Some(node) = node.filter(|_| goes_on) {
                pending.push((path, node));
            }
        }
    }
    Ok(())
}

/// Everything that the real tree has below a path.
fn below(tree: &OpenTree, path: &Path, found: &mut Found<'_>) -> Result<(), Errno> {
    let Some(directory) = tree.lower().open_dir_if_exists(path)? else { return Ok(()) };
    let mut add = |entry: &WalkEntry<'_>| {
        if found.is_over() {
            return Ok::<_, Infallible>(Visit::Stop);
        }
        Ok(match found.add(&path.join(entry.path())) {
            true => Visit::Continue,
            false => Visit::Skip,
        })
    };
    match walk(&directory, Bounds::default(), WalkOrder::AsStored, &mut add) {
        Ok(_) => Ok(()),
        Err(WalkError::Root(error)) => Err(error.errno()),
        Err(WalkError::Visitor(never)) => match never {},
    }
}
