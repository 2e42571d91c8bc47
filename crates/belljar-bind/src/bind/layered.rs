//! Binds trees that the run can change while the real ones stay as they are.
//!
//! Root makes the overlay here, since only then the changes can belong to the tree's owner; an ordinary user's sandbox
//! makes the overlay itself. An ordinary user gives an engine a copy: an engine binds what exists at a path.

use std::path::{Path, PathBuf};

use belljar_spec::{
    Access, ApplyMoment, Attributes, Backing, Clause, HostPaths, LayeredTree, Moment, MountKind,
    OsText, Plan, Source, Tree, TreeAccess,
};
use rustix::fs::{CWD, Gid, Mode, Uid, chmodat, chownat, mkdirat};
use rustix::io::Errno;

use super::hidden::leave_out;
use super::seed::RESTORED;
use super::tree::{pinned, plain};
use super::{
    BindError, Binder, BoundKind, BoundMount, BoundTree, DATA, Layer, Root, Upper, Via, WORK,
};
use crate::copy_tree::{TreeSize, copy_tree, measure_tree};
use crate::file_clock::Arrival;
use crate::identity::{HostIdentity, Pair};
use crate::mounter::{Depth, Mounts, ShownOwners, TreeClone};
use crate::resolve::{Resolved, resolve};

/// The maximum size of a tree that is copied, where no limit is set.
const MAX_COPIED: u64 = 10 << 30;

/// A tree that will be copied, because an overlay over it cannot be mounted here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedCopy {
    pub path: PathBuf,
    pub bytes: u64,
    pub entries: u64,
}

/// What [`bind`](super::bind) will copy, so that it can be announced. A tree that cannot be read is left to it.
pub fn copies_ahead(plan: &Plan, place: &HostPaths) -> Vec<AnnouncedCopy> {
    if rustix::process::geteuid().is_root() || place.seed.is_some() {
        return Vec::new();
    }
    let is_engine = plan.backend.features().trees == TreeAccess::MountedByEngine;
    let layered = plan.mounts.iter().filter_map(|mount| match &mount.what {
        MountKind::Bind { source: Source::Path { path }, access: Access::Layered, .. } => {
            resolve(path.as_path(), &place.run_writable).ok()
        }
        MountKind::Sent { source, access: Access::Layered | Access::Writable, .. } => {
            resolve(source.as_path(), &place.run_writable).ok()
        }
        _ => None,
    });
    let copied = layered.filter(|source| is_engine || !is_callers(source));
    copied
        .filter_map(|source| {
            let limit = plan.limits.disk.unwrap_or(MAX_COPIED);
            let TreeSize { bytes, entries } = measure_tree(&source, &[], limit).ok()?;
            Some(AnnouncedCopy { path: source.path, bytes, entries })
        })
        .collect()
}

impl Binder<'_> {
    pub(super) fn bind_layered(
        &mut self,
        source: &Resolved,
        target: &Path,
        tree: Tree,
        root: &mut Root,
    ) -> Result<BoundTree, BindError> {
        if !source.is_directory() {
            return Err(BindError::LayeredFile { path: source.path.clone() });
        }
        let below = self.table.below(&source.path);
        let as_root = self.mounts.are_by_root();
        if let Some(point) = below.first().filter(|_| !as_root) {
            let (path, point) = (source.path.clone(), point.clone());
            return Err(BindError::LayeredSubmount { path, point });
        }
        let hidden = self.hidden_in(source, Via::Layered)?;
        if self.covers_by_engine() {
            return self.bind_copy(source, target, &hidden);
        }
        if !as_root && !is_callers(source) {
            let why = format!(
                "{} was copied for the overlay, since its owner or group is not yours",
                source.path.display()
            );
            let mounts = self.posture.get(Clause::FsMounts).clone().and(&why);
            self.posture.set(Clause::FsMounts, mounts);
            return self.bind_copy(source, target, &hidden);
        }
        let mut layer = self.layer_with_upper(source, tree, root)?;
        let mut submounts = Vec::new();
        for point in below {
            let opened = resolve(&point, &[])?;
            if !opened.is_directory() {
                return Err(BindError::LayeredFile { path: point });
            }
            let relative = point.strip_prefix(&source.path).unwrap_or(Path::new("")).to_owned();
            submounts.push((relative, self.layer_with_upper(&opened, tree, root)?));
        }
        leave_out(&hidden, Via::Layered, &mut layer, &mut submounts);
        let attributes = if as_root { Attributes::Trusted } else { Attributes::User };
        let since = self.arrived.passed();
        let mut must_write = Vec::new();
        let root = (PathBuf::new(), &layer);
        let others = submounts.iter().map(|(relative, layer)| (relative.clone(), layer));
        for (relative, layer) in std::iter::once(root).chain(others) {
            let target = target.join(&relative);
            self.note(layer, &target, Backing::Overlay { attributes }, since);
            if can_be_written(&layer.pinned.path) {
                must_write.push(relative);
            }
        }
        Ok(BoundTree {
            layer,
            is_directory: true,
            access: Access::Layered,
            via: Via::Layered,
            submounts,
            shielded: Vec::new(),
            sockets: Vec::new(),
            hidden,
            must_write,
        })
    }

    fn note(&mut self, layer: &Layer, target: &Path, backing: Backing, since: Moment) {
        let Some(upper) = &layer.upper else { return };
        self.layered.push(LayeredTree {
            number: upper.number,
            source: OsText::from(layer.pinned.path.as_path()),
            device: layer.pinned.device,
            inode: layer.pinned.inode,
            // Joined with an empty path it would end with a slash.
            target: target.components().collect::<PathBuf>().into(),
            backing,
            since,
            hidden: layer.left_out.iter().map(|name| OsText::from(name.as_path())).collect(),
            git_part: None, // the launcher knows it
            apply: ApplyMoment::OnRequest,
        });
    }

    fn layer_with_upper(
        &self,
        source: &Resolved,
        tree: Tree,
        root: &mut Root,
    ) -> Result<Layer, BindError> {
        let mut layer = self.layer(source, Access::ReadOnly, tree, Depth::ThisMount, root)?;
        let (number, path) = self.make_upper(source)?;
        let attributes = match self.mounts {
            Mounts::ByRoot(_) => Attributes::Trusted,
            Mounts::ByPath => Attributes::User,
        };
        if let Some(seed) = self.next_seed(Backing::Overlay { attributes })? {
            seed.restore(&path.join(DATA))?;
        }
        let directory = resolve(&path, &[])?;
        let mut upper = pinned(&directory);
        if let Some(root) = root {
            let owner = Pair { uid: source.stat.st_uid, gid: source.stat.st_gid };
            let owners = ShownOwners::RunFor(owner);
            let clone = TreeClone { access: Access::Layered, depth: Depth::ThisMount, owners };
            let cloned = root.clone_tree(&directory, clone);
            // The tree is what decides about the run's identity.
            upper.cloned = Some(cloned.map_err(|error| match error {
                BindError::Clone { error, .. } => {
                    BindError::Clone { path: source.path.clone(), error }
                }
                error => error,
            })?);
        }
        layer.upper = Some(Upper { number, directory: upper, mounted: None });
        Ok(layer)
    }

    /// A new directory for the changes to a tree, with the tree's owner and mode.
    fn make_upper(&self, source: &Resolved) -> Result<(u32, PathBuf), BindError> {
        let private = Mode::from_raw_mode(0o700);
        let make = |path: &Path, mode| {
            let failed = |error| BindError::Upper { path: path.to_owned(), error };
            mkdirat(CWD, path, mode).map_err(failed)
        };
        match make(&self.place.upper, private) {
            Err(BindError::Upper { error: Errno::EXIST, .. }) => {}
            made => made?,
        }
        // What an earlier attempt used is never used again.
        let mut number = 0;
        let path = loop {
            let path = self.place.upper.join(number.to_string());
            match make(&path, private) {
                Err(BindError::Upper { error: Errno::EXIST, .. }) => number += 1,
                made => break made.map(|()| path)?,
            }
        };
        // All of it, or overlayfs, which acts as the run and so as the tree's owner, could not get to its parts.
        give_to_owner(&path, source)?;
        for name in [DATA, WORK] {
            let part = path.join(name);
            make(&part, private)?;
            let failed = |error| BindError::Upper { path: part.clone(), error };
            give_to_owner(&part, source)?;
            if name == DATA {
                let mode = Mode::from_raw_mode(source.stat.st_mode & 0o1777);
                chmodat(CWD, &part, mode, rustix::fs::AtFlags::empty()).map_err(failed)?;
            }
        }
        Ok((number, path))
    }

    /// A copy in the run's `upper/`, the last of the layered trees; the answer is where it is.
    pub(super) fn copy_to_upper(
        &mut self,
        source: &Resolved,
        target: &Path,
        hidden: &[PathBuf],
    ) -> Result<PathBuf, BindError> {
        let (number, path) = self.make_upper(source)?;
        let data = path.join(DATA);
        let (since, copied) = match self.next_seed(Backing::Copy { copied: RESTORED })? {
            None => {
                let since = self.arrived.passed();
                let limit = self.plan.limits.disk.unwrap_or(MAX_COPIED);
                measure_tree(source, hidden, limit)?; // before the first byte of one that is too large
                copy_tree(source, &data, hidden, limit)?;
                (since, Arrival::now().passed())
            }
            // What others did to the tree since the first copy was made, they did after the run began.
            Some(seed) => {
                seed.check_hidden(hidden)?;
                seed.restore(&data)?;
                (seed.note.since, RESTORED)
            }
        };
        let directory = pinned(&resolve(&path, &[])?);
        let noted = Layer {
            pinned: pinned(source),
            left_out: hidden.to_vec(),
            upper: Some(Upper { number, directory, mounted: None }),
        };
        self.note(&noted, target, Backing::Copy { copied }, since);
        Ok(data)
    }

    fn bind_copy(
        &mut self,
        source: &Resolved,
        target: &Path,
        hidden: &[PathBuf],
    ) -> Result<BoundTree, BindError> {
        let data = self.copy_to_upper(source, target, hidden)?;
        let must_write =
            if can_be_written(&source.path) { vec![PathBuf::new()] } else { Vec::new() };
        Ok(BoundTree {
            layer: plain(pinned(&resolve(&data, &[])?)),
            is_directory: true,
            access: Access::Layered,
            via: Via::Bind,
            submounts: Vec::new(),
            shielded: Vec::new(),
            sockets: Vec::new(),
            hidden: Vec::new(),
            must_write,
        })
    }
}

/// Only root can make files for another user.
fn give_to_owner(path: &Path, source: &Resolved) -> Result<(), BindError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(source.stat.st_uid), Gid::from_raw(source.stat.st_gid));
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    chownat(CWD, path, Some(uid), Some(gid), flags)
        .map_err(|error| BindError::Upper { path: path.to_owned(), error })
}

/// In a user namespace overlayfs can change only files of users that are mapped in it: the caller.
fn is_callers(source: &Resolved) -> bool {
    let owner = Pair { uid: source.stat.st_uid, gid: source.stat.st_gid };
    owner == HostIdentity::caller().command
}

/// A directory that its owner cannot write to is not suited for a test.
fn can_be_written(path: &Path) -> bool {
    const WRITE_AND_ENTER: u32 = 0o300;
    std::fs::metadata(path).is_ok_and(|meta| {
        std::os::unix::fs::MetadataExt::mode(&meta) & WRITE_AND_ENTER == WRITE_AND_ENTER
    })
}

/// The layers of all layered trees that root cloned.
pub(super) fn cloned_layers(mounts: &mut [BoundMount]) -> Vec<&mut Layer> {
    let trees = mounts.iter_mut().filter_map(|mount| match &mut mount.kind {
        BoundKind::Tree(tree) if tree.via == Via::Layered => Some(tree),
        _ => None,
    });
    let layers = trees.flat_map(|tree| {
        std::iter::once(&mut tree.layer).chain(tree.submounts.iter_mut().map(|(_, layer)| layer))
    });
    layers.filter(|layer| layer.pinned.cloned.is_some()).collect()
}
