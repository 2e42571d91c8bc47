//! Maps the run's layers to the tree that the kernel would show: the real tree with the changes over it.
//!
//! Only attributes of the kind that the kernel itself writes in this mount are believed. Those of the other kind
//! are the run's own.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use belljar_spec::{Attributes, Backing, OsText};
use belljar_tree::{Dir, EntryKind, Metadata};
use rustix::fs::fgetxattr;
use rustix::io::Errno;

use super::bounds::{Listing, MAX_PATH};
use super::change::ContentPlace;
use super::open::OpenTree;

/// A directory of the merged tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// Whether the layer with the changes has a part in it, at the same path.
    pub(super) in_upper: bool,
    /// The directory of the real tree that shines through, if any: after a rename it is at another path.
    pub(super) lower: Option<PathBuf>,
}

impl Node {
    pub(super) fn root(backing: Backing) -> Self {
        let lower = match backing {
            Backing::Overlay { .. } => Some(PathBuf::new()),
            Backing::Copy { .. } => None,
        };
        Self { in_upper: true, lower }
    }

    /// Nothing was changed at this path or below.
    pub(super) fn is_untouched(&self, path: &Path) -> bool {
        !self.in_upper && self.lower.as_deref() == Some(path)
    }
}

/// Something in the merged tree.
#[derive(Clone, Debug)]
pub(super) struct OverlayEntry {
    pub(super) stat: Metadata,
    pub(super) place: ContentPlace,
    /// Of a directory.
    pub(super) node: Option<Node>,
}

/// Entries of a directory. `None`: the run removed what was there.
pub(super) type Entries = BTreeMap<OsString, Option<OverlayEntry>>;

/// An open directory of the merged tree.
pub(super) struct Opened<'a> {
    pub(super) tree: &'a OpenTree,
    pub(super) path: &'a Path,
    pub(super) node: &'a Node,
    pub(super) upper: Option<&'a Dir>,
    /// Of [`Node::lower`].
    pub(super) lower: Option<&'a Dir>,
}

impl Opened<'_> {
    /// The entries of the layer with the changes alone.
    pub(super) fn changed(&self, most: Listing) -> Result<(Entries, Whole), Errno> {
        let Some(upper) = self.upper else { return Ok((Entries::new(), Whole::Yes)) };
        let attributes = match self.tree.note.backing {
            Backing::Overlay { attributes } => Some(attributes),
            Backing::Copy { .. } => None,
        };
        let has_marked_files = attributes.is_some_and(|attributes| {
            attribute(upper, attributes, "opaque").is_some_and(|value| value == b"x")
        });
        let mut entries = Entries::new();
        let whole = each(upper, most, |name, stat| {
            let removed = attributes.is_some_and(|attributes| {
                is_whiteout(&stat)
                    || has_marked_files && is_marked_as_removed(upper, name, &stat, attributes)
            });
            let entry = (!removed).then(|| self.in_upper(upper, name, stat, attributes));
            entries.insert(name.to_owned(), entry);
        })?;
        Ok((entries, whole))
    }

    /// Everything that the run saw in it.
    pub(super) fn all(&self, most: Listing) -> Result<(Entries, Whole), Errno> {
        let (mut entries, mut whole) = self.changed(most)?;
        if let (Some(fd), Some(lower)) = (self.lower, &self.node.lower) {
            let through = each(fd, most, |name, stat| {
                let path = lower.join(name);
                let is_seen = !is_whiteout(&stat) && !self.tree.is_hidden(&path);
                if is_seen && !entries.contains_key(name) {
                    entries.insert(name.to_owned(), Some(in_lower(path, stat)));
                }
            })?;
            whole = whole.and(through);
        }
        entries.retain(|_, entry| entry.is_some());
        Ok((entries, whole))
    }

    fn in_upper(
        &self,
        upper: &Dir,
        name: &OsStr,
        stat: Metadata,
        attributes: Option<Attributes>,
    ) -> OverlayEntry {
        let path = self.path.join(name);
        let node = stat.is_dir().then(|| {
            let lower =
                attributes.and_then(|attributes| self.shines_through(upper, name, attributes));
            Node { in_upper: true, lower }
        });
        OverlayEntry { stat, place: ContentPlace::InUpper(OsText::from(path)), node }
    }

    /// The directory of the real tree under one of the upper layer.
    fn shines_through(&self, upper: &Dir, name: &OsStr, attributes: Attributes) -> Option<PathBuf> {
        let directory = upper.open_dir(name).ok()?;
        let value = |key| attribute(&directory, attributes, key);
        if value("opaque").is_some_and(|value| value == b"y") {
            return None;
        }
        let redirect = match attributes {
            Attributes::Trusted => value("redirect"),
            // The kernel follows none in such a mount.
            Attributes::User => None,
        };
        let lower = match redirect {
            None => self.node.lower.as_ref()?.join(name),
            Some(redirect) => redirected(self.node.lower.as_deref(), redirect)?,
        };
        let is_directory =
            !self.tree.is_hidden(&lower) && self.tree.lower().open_dir(&lower).is_ok();
        is_directory.then_some(lower)
    }
}

/// `/a/b` is counted from the layer's root; `b` lies beside what it was called when it was renamed.
fn redirected(parent: Option<&Path>, redirect: Vec<u8>) -> Option<PathBuf> {
    let redirect = PathBuf::from(OsString::from_vec(redirect));
    let mut lower = PathBuf::new();
    if !redirect.has_root() {
        lower.push(parent?);
        if redirect.components().count() != 1 {
            return None;
        }
    }
    for component in redirect.components() {
        match component {
            Component::RootDir => {}
            Component::Normal(name) => lower.push(name),
            Component::CurDir | Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(lower)
}

fn in_lower(path: PathBuf, stat: Metadata) -> OverlayEntry {
    let node = stat.is_dir().then(|| Node { in_upper: false, lower: Some(path.clone()) });
    OverlayEntry { stat, place: ContentPlace::InLower(OsText::from(path)), node }
}

/// Whether a listing is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whole {
    Yes,
    No,
}

impl Whole {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Yes, Self::Yes) => Self::Yes,
            _ => Self::No,
        }
    }
}

/// Calls `visit` for every entry that is still there when it is looked at.
pub(super) fn each(
    directory: &Dir,
    mut most: Listing,
    mut visit: impl FnMut(&OsStr, Metadata),
) -> Result<Whole, Errno> {
    for entry in directory.entries("")? {
        let name = entry?.name;
        if !most.take(name.as_bytes()) {
            return Ok(Whole::No);
        }
        if let Some(stat) = directory.stat_if_exists(&name)? {
            visit(&name, stat);
        }
    }
    Ok(Whole::Yes)
}

/// A device 0:0 stands for something that was removed. In the real tree it hides itself from the run.
pub(super) fn is_whiteout(found: &Metadata) -> bool {
    found.kind() == EntryKind::CharacterDevice && found.device_number() == 0
}

/// The other form of a whiteout, where no device can be made.
fn is_marked_as_removed(
    directory: &Dir,
    name: &OsStr,
    found: &Metadata,
    attributes: Attributes,
) -> bool {
    found.is_file()
        && found.size() == 0
        && directory
            .open_file(name)
            .is_ok_and(|file| attribute(&file, attributes, "whiteout").is_some())
}

fn attribute(of: impl std::os::fd::AsFd, attributes: Attributes, key: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; MAX_PATH];
    let name = format!("{}{key}", attributes.prefix());
    let length = fgetxattr(of, name.as_str(), &mut value[..]).ok()?;
    value.truncate(length);
    Some(value)
}

impl OpenTree {
    /// Whether the run was not shown what the real tree has at this path.
    pub(super) fn is_hidden(&self, path: &Path) -> bool {
        self.note.hidden.iter().any(|hidden| path.starts_with(hidden.as_path()))
    }

    /// What the run had at a path, looked up name by name.
    pub(super) fn look_after(&self, path: &Path) -> Result<Option<Metadata>, Errno> {
        if let Backing::Copy { .. } = self.note.backing {
            return Ok(self.upper().stat_if_exists(path)?);
        }
        let mut node = Node::root(self.note.backing);
        let mut here = PathBuf::new();
        let mut names = path.components().peekable();
        while let Some(component) = names.next() {
            let name = component.as_os_str();
            let Some(entry) = self.one(&here, &node, name)? else { return Ok(None) };
            if names.peek().is_none() {
                return Ok(Some(entry.stat));
            }
            let Some(next) = entry.node else { return Ok(None) };
            here.push(name);
            node = next;
        }
        Ok(None)
    }

    /// One entry of a merged directory.
    fn one(&self, path: &Path, node: &Node, name: &OsStr) -> Result<Option<OverlayEntry>, Errno> {
        let upper = match node.in_upper {
            true => self.upper().open_dir_if_exists(path)?,
            false => None,
        };
        if let Some(upper) = &upper {
            match upper.stat_if_exists(name)? {
                Some(stat) if is_whiteout(&stat) => return Ok(None),
                Some(stat) => {
                    let opened = Opened { tree: self, path, node, upper: Some(upper), lower: None };
                    let attributes = match self.note.backing {
                        Backing::Overlay { attributes } => Some(attributes),
                        Backing::Copy { .. } => None,
                    };
                    return Ok(Some(opened.in_upper(upper, name, stat, attributes)));
                }
                None => {}
            }
        }
        let Some(lower) = node.lower.as_ref().map(|lower| lower.join(name)) else {
            return Ok(None);
        };
        let stat = self.lower().stat_if_exists(&lower)?;
        let seen = stat.filter(|stat| !is_whiteout(stat) && !self.is_hidden(&lower));
        Ok(seen.map(|stat| in_lower(lower, stat)))
    }
}
