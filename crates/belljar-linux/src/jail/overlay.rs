//! Mounts trees through overlayfs: the tree below, on top of it a layer that only hides names,
//! and where the run may write a layer for its changes.
//!
//! A socket file of the host does not answer through overlayfs. `user.overlay.*` attributes that a run planted in a
//! tree have no effect: root's mounts ignore them, and in an ordinary user's they are only marks of a layer
//! that cannot be read from inside.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use belljar_bind::identity::Pair;
use belljar_bind::{DATA, WORK};
use belljar_spec::Attributes;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, StatVfsMountFlags, Uid, fchmod, fchown,
    fstat, fstatvfs, mkdirat, mknodat, openat, openat2, symlinkat, unlinkat,
};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, unmount,
};

use super::root::{new_tmpfs, put, remove_directory};
use crate::sys::mount_ns_child::act_on_files_as;

const BELOW: &str = ".belljar-below";
const ABOVE: &str = ".belljar-above";
const UPPER: &str = ".belljar-upper";

/// What one overlay is made of.
pub(super) struct Layers<'a> {
    pub(super) below: BorrowedFd<'a>,
    /// Names in the tree that are not there.
    pub(super) left_out: &'a [PathBuf],
    pub(super) changes: Changes<'a>,
}

/// What becomes of changes.
#[derive(Clone, Copy)]
pub(super) enum Changes<'a> {
    Refused,
    Stored {
        /// The layer's directory, with [`DATA`] and [`WORK`] in it.
        upper: BorrowedFd<'a>,
        attributes: Attributes,
        /// The ids that overlayfs uses on the layers, where they are not the caller's: the layers must map them.
        acts_as: Option<Pair>,
    },
}

/// All layers have to be mounted somewhere while overlayfs takes hold of them; they are taken off again before
/// anything else can see them.
pub(super) fn mount(root: BorrowedFd<'_>, layers: &Layers<'_>) -> Result<OwnedFd, Errno> {
    let above = match (layers.changes, layers.left_out) {
        (Changes::Stored { .. }, []) => None,
        // Read-only takes two layers at least.
        _ => Some(new_tmpfs(&[("size", "1m"), ("mode", "0755")])?),
    };
    let mut mounted = vec![(BELOW, mount_layer(root, BELOW, layers.below)?)];
    if let Some(above) = &above {
        mounted.push((ABOVE, mount_layer(root, ABOVE, above.as_fd())?));
        for name in layers.left_out {
            leave_out(above, layers.below, name)?;
        }
        look_like(above.as_fd(), layers.below)?;
    }
    if let Changes::Stored { upper, .. } = layers.changes {
        mounted.push((UPPER, mount_layer(root, UPPER, upper)?));
    }
    let made = make(above.as_ref(), layers);
    // Taken off through the descriptors' paths: the old root is still what paths start from.
    for (name, at) in mounted {
        unmount(at, UnmountFlags::DETACH)?;
        remove_directory(root, Path::new(name))?;
    }
    made
}

/// Mounts a layer on a separate directory and returns its path.
pub(super) fn mount_layer(
    root: BorrowedFd<'_>,
    name: &str,
    layer: BorrowedFd<'_>,
) -> Result<String, Errno> {
    mkdirat(root, name, Mode::from_raw_mode(0o700))?;
    let at = openat(root, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    put(layer, at.as_fd())?;
    Ok(through_proc(layer))
}

fn through_proc(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd))
}

/// A directory that is in several layers shows the owner and mode of the topmost.
pub(super) fn look_like(above: BorrowedFd<'_>, below: BorrowedFd<'_>) -> Result<(), Errno> {
    let stat = fstat(below)?;
    // The mount's descriptor is only a path; its root has to be opened to be changed.
    let above =
        &openat(above, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // An owner that is not mapped here cannot be set; the mode still decides who may enter.
    match fchown(above, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid))) {
        Ok(()) | Err(Errno::INVAL | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    fchmod(above, Mode::from_raw_mode(stat.st_mode & 0o1777))
}

/// A device 0:0 means "deleted" to overlayfs, and needs no privilege to make. It has to be where the name is, in
/// directories like the tree's.
fn leave_out(above: &OwnedFd, below: BorrowedFd<'_>, name: &Path) -> Result<(), Errno> {
    let place = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = openat(above, ".", place, Mode::empty())?;
    let mut components = name.components().peekable();
    let mut walked = PathBuf::new();
    while let Some(component) = components.next() {
        let Component::Normal(part) = component else { return Err(Errno::INVAL) };
        if components.peek().is_none() {
            return match mknodat(&at, part, FileType::CharacterDevice, Mode::empty(), 0) {
                Err(Errno::EXIST) => Ok(()), // it, or something in it, was named before
                made => made,
            };
        }
        walked.push(part);
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let like = match openat2(below, &walked, place, Mode::empty(), beneath) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()), // so nothing is there
            like => like?,
        };
        match mkdirat(&at, part, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        at = match openat(&at, part, place, Mode::empty()) {
            Err(Errno::NOTDIR) => return Ok(()), // the whole directory is left out
            at => at?,
        };
        look_like(at.as_fd(), like.as_fd())?;
    }
    Ok(())
}

/// Bytes of one value that the kernel takes of `fsconfig`.
const MAX_VALUE: usize = 255;
/// What a directory can be called in a list of layers, in one byte each: first what can be printed.
const SEPARATORS: &[u8] = b":,\\/.=\"'#;";

/// A read-only overlay of directories of this mount namespace, topmost first. [`Errno::TOOBIG`]: this kernel cannot
/// take so many.
///
/// All of them have to fit into one short value before Linux 6.8. So they get names of one byte in `names`, an empty
/// directory, from which the list starts.
pub(super) fn stack_layers(
    names: BorrowedFd<'_>,
    layers: &[BorrowedFd<'_>],
) -> Result<OwnedFd, Errno> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    // Marks of layers are those that an ordinary user can set: root's sandbox mounts without the rights to others.
    fsconfig_set_flag(&context, "userxattr")?;
    for (name, value) in [("index", "off"), ("metacopy", "off"), ("xino", "off")] {
        fsconfig_set_string(&context, name, value)?;
    }
    match short_names(layers.len()) {
        Some(short) => {
            let list = short.iter().copied().map(|name| vec![name]).collect::<Vec<_>>().join(&b':');
            for (name, layer) in short.iter().zip(layers) {
                let name = OsStr::from_bytes(std::slice::from_ref(name));
                // Those of an earlier overlay may be there.
                match unlinkat(names, name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(error) => return Err(error),
                }
                symlinkat(through_proc(*layer), names, name)?;
            }
            rustix::process::fchdir(names)?;
            fsconfig_set_string(&context, "lowerdir", OsStr::from_bytes(&list))?;
        }
        None => {
            for layer in layers {
                let added = fsconfig_set_string(&context, "lowerdir+", through_proc(*layer));
                added.map_err(|error| if error == Errno::INVAL { Errno::TOOBIG } else { error })?;
            }
        }
    }
    fsconfig_create(&context)?;
    let flags = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

/// So many names of one byte, if a list of them is short enough.
fn short_names(count: usize) -> Option<Vec<u8>> {
    let usable = (b'0'..=b'~').chain(0xa1..=0xff).filter(|byte| !SEPARATORS.contains(byte));
    let names: Vec<u8> = usable.take(count).collect();
    (names.len() == count && 2 * count - 1 <= MAX_VALUE).then_some(names)
}

fn make(above: Option<&OwnedFd>, layers: &Layers<'_>) -> Result<OwnedFd, Errno> {
    let mut lower: Vec<String> = above.iter().map(|above| through_proc(above.as_fd())).collect();
    lower.push(through_proc(layers.below));
    let lower = lower.join(":");
    let Changes::Stored { upper, attributes, acts_as } = layers.changes else {
        let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&context, "lowerdir", lower.as_str())?;
        fsconfig_create(&context)?;
        let flags = MountAttrFlags::MOUNT_ATTR_RDONLY
            | MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV;
        return fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags);
    };
    let part = |name| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(upper, name, flags, Mode::empty())
    };
    let (data, work) = (part(DATA)?, part(WORK)?);
    let mut options = vec![
        ("lowerdir", lower),
        ("upperdir", through_proc(data.as_fd())),
        ("workdir", through_proc(work.as_fd())),
        // What the host's administrator made the default must not decide what a layer's files mean.
        ("index", "off".to_owned()),
        ("metacopy", "off".to_owned()),
        ("xino", "off".to_owned()),
    ];
    if attributes == Attributes::Trusted {
        options.push(("redirect_dir", "on".to_owned()));
    }
    let Some(Pair { uid, gid }) = acts_as else { return keep_changes(&options, attributes) };
    act_on_files_as(uid, gid)?;
    let made = keep_changes(&options, attributes);
    act_on_files_as(0, 0)?;
    made
}

fn keep_changes(options: &[(&str, String)], attributes: Attributes) -> Result<OwnedFd, Errno> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    if attributes == Attributes::User {
        fsconfig_set_flag(&context, "userxattr")?;
    }
    for (name, value) in options {
        fsconfig_set_string(&context, *name, value.as_str())?;
    }
    fsconfig_create(&context)?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let made = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
    // overlayfs silently becomes read-only where it cannot use the layer.
    if fstatvfs(&made)?.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(Errno::ROFS);
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_of_layers_are_short_and_different_and_split_no_list() {
        for count in [1, 2, 41, 121, 128] {
            let names = short_names(count).unwrap_or_default();
            assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), count);
            assert!(names.iter().all(|name| !SEPARATORS.contains(name) && *name > b' '));
        }
        assert_eq!(short_names(129), None, "the list would be cut");
    }
}
