//! Which paths a live run has touched so far, without reading any content: only what it saw there is to be taken
//! down, before somebody else changes it.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use belljar_spec::{Backing, LayeredTree, OsText, RunId};
use rustix::fs::FileType;
use rustix::io::Errno;

use super::baseline::Baseline;
use super::beneath;
use super::merged::{Node, Opened, each, there};
use super::open::OpenTree;

/// In one look; the rest waits for the end of the run.
const MOST: usize = 100_000;

/// One look at one tree. What fails is tried again at the next, or at the end.
pub(crate) fn capture_live(directory: &Path, run: &RunId, note: &LayeredTree, stop: &AtomicBool) {
    let Ok(tree) = OpenTree::open(directory, run, note.clone()) else { return };
    let mut paths = Vec::new();
    match note.backing {
        Backing::Overlay { .. } => drop(touched(&tree, stop, &mut paths)),
        Backing::Copy { .. } => {
            let Ok(changes) = tree.changes() else { return };
            paths.extend(changes.changes.into_iter().map(|change| change.path));
        }
    }
    if paths.is_empty() || stop.load(Ordering::Relaxed) {
        return;
    }
    if let Ok(mut baseline) = Baseline::open(directory, note.number) {
        baseline.capture_paths(&tree, paths.iter());
        let _ = baseline.write();
    }
}

fn touched(tree: &OpenTree, stop: &AtomicBool, paths: &mut Vec<OsText>) -> Result<(), Errno> {
    let mut pending = vec![(PathBuf::new(), Node::root(tree.note.backing))];
    while let Some((path, node)) = pending.pop() {
        if stop.load(Ordering::Relaxed) || paths.len() >= MOST {
            return Ok(());
        }
        let Some(upper) = there(beneath::directory(tree.upper(), &path))? else { continue };
        let opened =
            Opened { tree, path: &path, node: &node, upper: Some(upper.as_fd()), lower: None };
        for (name, entry) in opened.changed(MOST)?.0 {
            let path = path.join(name);
            paths.push(OsText::from(path.as_path()));
            let node = entry.and_then(|entry| entry.node);
            if node.as_ref().and_then(|node| node.lower.as_deref()) != Some(&path) {
                below(tree, &path, stop, paths)?; // whatever the real tree has there is covered
            }
            if let Some(node) = node {
                pending.push((path, node));
            }
        }
    }
    Ok(())
}

/// Everything that the real tree has below a path.
fn below(
    tree: &OpenTree,
    path: &Path,
    stop: &AtomicBool,
    paths: &mut Vec<OsText>,
) -> Result<(), Errno> {
    let mut pending = vec![path.to_owned()];
    while let Some(path) = pending.pop() {
        if stop.load(Ordering::Relaxed) || paths.len() >= MOST {
            return Ok(());
        }
        let Some(directory) = there(beneath::directory(tree.lower(), &path))? else { continue };
        each(directory.as_fd(), MOST, |name, stat| {
            let path = path.join(name);
            paths.push(OsText::from(path.as_path()));
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                pending.push(path);
            }
        })?;
    }
    Ok(())
}
