//! Completes directories that a run renamed, before the real tree changes.
//!
//! The layer holds a renamed directory as an attribute: "the rest is what the real tree has at the old name". Applying
//! the rename removes that. So what shines through is copied into the layer first, which changes nothing of what
//! the run's tree looks like, wherever it is cut short.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use belljar_spec::{Attributes, Backing, OsText};
use belljar_tree::{ContentBounds, Dir, EntryKind, copy_content};
use rustix::fs::{Gid, Mode, Uid, XattrFlags, fchmod, fchown, fremovexattr, fsetxattr};
use rustix::io::Errno;

use super::bounds::{Listing, OutOfReach, Room};
use super::change::ContentPlace;
use super::open::OpenTree;
use super::overlay_view::{Entries, Node, Opened, OverlayEntry, Whole};

/// How often the path of a directory is held that is yet to be looked at, or was renamed.
const WAITING: usize = 2;
/// More than is looked at.
const TOO_MUCH: Errno = Errno::NOMEM;

/// A directory that shines through from another path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Renamed {
    pub(crate) path: PathBuf,
    pub(crate) from: PathBuf,
}

/// Only a mount by root knows such renames.
fn attributes(tree: &OpenTree) -> Option<Attributes> {
    match tree.note.backing {
        Backing::Overlay { attributes: Attributes::Trusted } => Some(Attributes::Trusted),
        Backing::Overlay { attributes: Attributes::User } | Backing::Copy { .. } => None,
    }
}

pub(crate) fn find(tree: &OpenTree) -> Result<Vec<Renamed>, Errno> {
    let mut found = Vec::new();
    if attributes(tree).is_none() {
        return Ok(found);
    }
    let mut room = Room::new();
    let mut pending = vec![(PathBuf::new(), Node::root(tree.note.backing))];
    while let Some((path, node)) = pending.pop() {
        room.give_back(&path, WAITING);
        let Some(upper) = tree.upper().open_dir_if_exists(&path)? else { continue };
        let opened = Opened { tree, path: &path, node: &node, upper: Some(&upper), lower: None };
        for (name, entry) in whole(opened.changed(Listing::of(&path))?)? {
            let Some(node) = entry.and_then(|entry| entry.node) else { continue };
            let path = path.join(name);
            if OutOfReach::of(&path, path.components().count()).is_some() {
                continue; // nothing of it is ever taken over
            }
            if !room.take(&path, WAITING) {
                return Err(TOO_MUCH);
            }
            match &node.lower {
                Some(from) if *from != path => {
                    if !room.take(&path, WAITING) {
                        return Err(TOO_MUCH);
                    }
                    found.push(Renamed { path: path.clone(), from: from.clone() });
                }
                _ => {}
            }
            pending.push((path, node));
        }
    }
    Ok(found)
}

/// Of a run that is over.
pub(crate) fn make_whole(tree: &OpenTree) -> Result<(), Errno> {
    let Some(attributes) = attributes(tree) else { return Ok(()) };
    // Deepest first: a directory forgets the old name only when everything below it has.
    let mut renamed = find(tree)?;
    renamed.sort_by(|one, other| other.path.cmp(&one.path));
    for Renamed { path, from } in renamed {
        let node = Node { in_upper: true, lower: Some(from) };
        fill(tree, &path, &node)?;
        let directory = tree.upper().open_dir(&path)?;
        let name = |key: &str| format!("{}{key}", attributes.prefix());
        fsetxattr(&directory, name("opaque").as_str(), b"y", XattrFlags::empty())?;
        match fremovexattr(&directory, name("redirect").as_str()) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Copies what shines through, at every depth.
fn fill(tree: &OpenTree, path: &Path, node: &Node) -> Result<(), Errno> {
    let mut pending = vec![(path.to_owned(), node.clone())];
    while let Some((path, node)) = pending.pop() {
        let upper = tree.upper().open_dir(&path)?;
        let lower = match &node.lower {
            Some(lower) => tree.lower().open_dir_if_exists(lower)?,
            None => None,
        };
        let Some(lower) = lower else { continue };
        let opened =
            Opened { tree, path: &path, node: &node, upper: Some(&upper), lower: Some(&lower) };
        for (name, entry) in whole(opened.all(Listing::of(&path))?)? {
            let Some(entry) = entry else { continue };
            let mut below = entry.node.clone();
            if let ContentPlace::InLower(_) = entry.place {
                take_in(&lower, &upper, &name, &entry)?;
                below = below.map(|node| Node { in_upper: true, ..node });
            }
            if let Some(node) = below.filter(|node| node.lower.is_some()) {
                pending.push((path.join(name), node));
            }
        }
    }
    Ok(())
}

/// A part of a directory would be taken for all of it.
fn whole((entries, whole): (Entries, Whole)) -> Result<Entries, Errno> {
    match whole {
        Whole::Yes => Ok(entries),
        Whole::No => Err(TOO_MUCH),
    }
}

fn take_in(lower: &Dir, upper: &Dir, name: &OsStr, entry: &OverlayEntry) -> Result<(), Errno> {
    let made = match entry.stat.kind() {
        EntryKind::Directory => take_in_directory(upper, name, entry),
        EntryKind::Symlink => {
            let target = lower.read_link(name)?;
            upper.symlink(target, name).map_err(Errno::from)
        }
        EntryKind::File => take_in_file(lower, upper, name, entry),
        // Nothing of the kind is ever applied.
        EntryKind::Fifo
        | EntryKind::Socket
        | EntryKind::CharacterDevice
        | EntryKind::BlockDevice
        | EntryKind::Unknown => Ok(()),
    };
    match made {
        Err(Errno::EXIST) => Ok(()),
        made => made,
    }
}

fn take_in_directory(upper: &Dir, name: &OsStr, entry: &OverlayEntry) -> Result<(), Errno> {
    upper.create_dir(name, entry.stat.mode() & 0o777)?;
    give(upper.open_dir(name)?, entry)
}

fn take_in_file(lower: &Dir, upper: &Dir, name: &OsStr, entry: &OverlayEntry) -> Result<(), Errno> {
    let from = lower.open_file(name)?;
    // Without a name until it is whole: half of it would be the run's version.
    let to = upper.create_unnamed_file(0o600)?;
    copy_content(&from, &to, ContentBounds { size: entry.stat.size(), budget: u64::MAX })?;
    give(&to, entry)?;
    Ok(upper.name_file(&to, name)?)
}

/// Owner and mode of the original; a new owner takes bits from the mode, so that comes last.
fn give(made: impl AsFd, entry: &OverlayEntry) -> Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(entry.stat.uid()), Gid::from_raw(entry.stat.gid()));
    fchown(&made, Some(uid), Some(gid))?;
    fchmod(&made, Mode::from_raw_mode(entry.stat.mode() & 0o777))
}

/// Whether a path and a directory have anything to do with each other.
pub(crate) fn touches(path: &OsText, directory: &Path) -> bool {
    path.as_path().starts_with(directory) || directory.starts_with(path.as_path())
}
