//! Directories that a run renamed, made whole before the real tree changes.
//!
//! The layer holds a renamed directory by a word: "the rest is what the real tree has at the old name". Applying
//! the rename takes that away. So what shines through is copied into the layer first, which changes nothing of what
//! the run's tree looks like, wherever it is cut short.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use belljar_spec::{Attributes, Backing, OsText};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid, XattrFlags, fchmod, fchown, fremovexattr,
    fsetxattr, linkat, mkdirat, openat, readlinkat, symlinkat,
};
use rustix::io::Errno;

use super::beneath;
use super::bounds::{Listing, OutOfReach, Room};
use super::change::Lies;
use super::copy_entry::copy;
use super::open::OpenTree;
use super::overlay_view::{Entries, Entry, Node, Opened, Whole, there};

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
        let Some(upper) = there(beneath::directory(tree.upper(), &path))? else { continue };
        let opened =
            Opened { tree, path: &path, node: &node, upper: Some(upper.as_fd()), lower: None };
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
        let directory = beneath::directory(tree.upper(), &path)?;
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
        let upper = beneath::directory(tree.upper(), &path)?;
        let lower = match &node.lower {
            Some(lower) => there(beneath::directory(tree.lower(), lower))?,
            None => None,
        };
        let Some(lower) = lower else { continue };
        let opened = Opened {
            tree,
            path: &path,
            node: &node,
            upper: Some(upper.as_fd()),
            lower: Some(lower.as_fd()),
        };
        for (name, entry) in whole(opened.all(Listing::of(&path))?)? {
            let Some(entry) = entry else { continue };
            let mut below = entry.node.clone();
            if let Lies::InLower(_) = entry.lies {
                take_in(lower.as_fd(), upper.as_fd(), &name, &entry)?;
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

fn take_in(
    lower: BorrowedFd<'_>,
    upper: BorrowedFd<'_>,
    name: &OsStr,
    entry: &Entry,
) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(entry.stat.st_mode & 0o777);
    let owner = (Some(Uid::from_raw(entry.stat.st_uid)), Some(Gid::from_raw(entry.stat.st_gid)));
    let made: Result<(), Errno> = match FileType::from_raw_mode(entry.stat.st_mode) {
        FileType::Directory => mkdirat(upper, name, mode).and_then(|()| {
            let made = beneath::directory(upper, Path::new(name))?;
            fchown(&made, owner.0, owner.1)?;
            fchmod(&made, mode)
        }),
        FileType::Symlink => {
            let target = readlinkat(lower, name, Vec::new())?;
            symlinkat(target.as_c_str(), upper, name)
        }
        FileType::RegularFile => {
            let from = beneath::file_in(lower, name)?;
            // Without a name until it is whole: half of it would be the run's version.
            let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
            let to: OwnedFd = openat(upper, ".", flags, Mode::RUSR | Mode::WUSR)?;
            let to = std::fs::File::from(to);
            let size = u64::try_from(entry.stat.st_size).unwrap_or(0);
            copy(&from, &to, size)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            fchown(&to, owner.0, owner.1)?;
            fchmod(&to, mode)?;
            let open = format!("/proc/self/fd/{}", to.as_raw_fd());
            linkat(CWD, open, upper, name, AtFlags::SYMLINK_FOLLOW)
        }
        _ => Ok(()), // nothing of the kind is ever applied
    };
    match made {
        Err(Errno::EXIST) => Ok(()),
        made => made,
    }
}

/// Whether a path and a directory have anything to do with each other.
pub(crate) fn touches(path: &OsText, directory: &Path) -> bool {
    path.as_path().starts_with(directory) || directory.starts_with(path.as_path())
}
