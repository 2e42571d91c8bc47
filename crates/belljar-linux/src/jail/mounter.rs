//! Clones trees with their final owner and attributes, and mounts overlays: what root does while a plan is bound.

use std::os::fd::{AsFd, OwnedFd};

use belljar_bind::identity::Pair;
use belljar_bind::resolve::Resolved;
use belljar_bind::{
    BindError, Depth, Layer, Pinned, RootMounter, ShownOwners, TreeClone, Upper, Writer,
};
use belljar_spec::{Access, Attributes};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};

use super::idmap::IdMaps;
use super::overlay::{self, Changes, Layers};
use super::root::Root;
use crate::sys::mount::{MountAttr, make_private, set_attributes_of_clone, set_id_map};
use crate::sys::mount_ns_child::{in_new_mount_namespace, look_at_files_as};

/// For the run with these ids on the host.
pub(super) fn for_run(run: Pair, writer: Writer) -> Box<dyn RootMounter> {
    Box::new(Mounter { maps: IdMaps::new(run, writer), run, writer })
}

#[derive(Debug)]
struct Mounter {
    maps: IdMaps,
    run: Pair,
    writer: Writer,
}

impl RootMounter for Mounter {
    fn clone_tree(&mut self, source: &Resolved, clone: TreeClone) -> Result<OwnedFd, BindError> {
        let TreeClone { access, depth, owners } = clone;
        let failed = |error| BindError::Clone { path: source.path.clone(), error };
        let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        if depth == Depth::WithSubmounts {
            flags |= OpenTreeFlags::AT_RECURSIVE;
        }
        let cloned = open_tree(&source.fd, "", flags).map_err(failed)?;
        set_attributes_of_clone(cloned.as_fd(), attributes(access), depth).map_err(failed)?;
        let unread = |error| BindError::Read { path: source.path.clone(), error };
        let map = match owners {
            ShownOwners::OnDisk => None,
            ShownOwners::RunFor(owner) if owner == self.run => None,
            ShownOwners::RunFor(owner) => Some(self.maps.showing(owner).map_err(unread)?),
            ShownOwners::Block(first) => Some(self.maps.block(first).map_err(unread)?),
        };
        if let Some(map) = map {
            // A submount may be of a type that cannot be mapped: it then shows the owners on disk.
            set_id_map(cloned.as_fd(), map.as_fd(), Depth::ThisMount).map_err(failed)?;
        }
        Ok(cloned)
    }

    /// Layers have to be mounted for that, in a separate mount namespace so that no other process sees them.
    fn mount_overlays(&mut self, mut layers: Vec<&mut Layer>) -> Result<(), BindError> {
        let Some(first) = layers.first() else { return Ok(()) };
        let overlay_failed = |layer: &Layer, error| BindError::Overlay {
            path: layer.pinned.path.clone(),
            upper: layer
                .upper
                .as_ref()
                .map(|upper| upper.directory.path.clone())
                .unwrap_or_default(),
            error,
        };
        // gVisor's process is root and gives what it made away, which only root may.
        let acts_as = match self.writer {
            Writer::Run => Some(self.run),
            Writer::RootFirst => None,
        };
        let made = in_new_mount_namespace(|| mount_all(&layers, acts_as));
        let (made, _) = made.map_err(|error| overlay_failed(first, error))?;
        for (layer, made) in layers.iter_mut().zip(made) {
            let made = made.map_err(|error| overlay_failed(layer, error))?;
            if let Some(upper) = &mut layer.upper {
                upper.mounted = Some(made);
            }
        }
        Ok(())
    }

    fn look_as(&mut self, user: Pair, look: &mut dyn FnMut()) -> Result<(), Errno> {
        look_at_files_as(user.uid, user.gid, look)
    }
}

pub(super) fn attributes(access: Access) -> MountAttr {
    let always = MountAttr::NO_SUID | MountAttr::NO_DEV;
    match access {
        Access::ReadOnly => always | MountAttr::READ_ONLY,
        Access::Writable | Access::Layered => always,
    }
}

fn mount_all(layers: &[&mut Layer], acts_as: Option<Pair>) -> Vec<Result<OwnedFd, Errno>> {
    let root = make_private(c"/").and_then(|()| Root::new().map_err(|_| Errno::IO));
    let mount = |layer: &Layer| {
        let root = root.as_ref().map_err(|error| *error)?;
        let parts = (&layer.pinned.cloned, &layer.upper);
        let (Some(below), Some(Upper { directory: Pinned { cloned: Some(upper), .. }, .. })) =
            parts
        else {
            return Err(Errno::INVAL);
        };
        let changes =
            Changes::Stored { upper: upper.as_fd(), attributes: Attributes::Trusted, acts_as };
        let layers = Layers { below: below.as_fd(), left_out: &layer.left_out, changes };
        overlay::mount(root.fd.as_fd(), &layers)
    };
    layers.iter().map(|layer| mount(layer)).collect()
}
