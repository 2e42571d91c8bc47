//! Read-only trees through overlayfs: the tree below, and on top of it a layer that holds nothing but
//! the names to leave out.
//!
//! A socket file of the host does not answer through overlayfs. `user.overlay.*` attributes that a run
//! planted in a tree are not looked at: the mount is made without `userxattr`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    FileType, Gid, Mode, OFlags, Uid, fchmod, fchown, fstat, mkdirat, mknodat, openat,
};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, UnmountFlags, fsconfig_create, fsconfig_set_string,
    fsmount, fsopen, unmount,
};

use super::root::{new_tmpfs, put, remove_directory};

const BELOW: &str = ".belljar-below";
const ABOVE: &str = ".belljar-above";

/// Both layers have to be mounted somewhere while overlayfs takes hold of them; they are taken off
/// again before anything else can see them.
pub(super) fn read_only(
    root: BorrowedFd<'_>,
    below: &OwnedFd,
    left_out: &[PathBuf],
) -> Result<OwnedFd, Errno> {
    let above = new_tmpfs(&[("size", "64k"), ("mode", "0755")])?;
    let below_at = stage(root, BELOW, below)?;
    let above_at = stage(root, ABOVE, &above)?;
    for name in left_out {
        leave_out(&above, name)?;
    }
    look_like(&above, below)?;
    let made = mount_over(&above, below);
    // Taken off through the descriptors' paths: the old root is still what paths start from.
    for (name, at) in [(BELOW, below_at), (ABOVE, above_at)] {
        unmount(at, UnmountFlags::DETACH)?;
        remove_directory(root, Path::new(name))?;
    }
    made
}

/// Mounts a layer on a directory of its own and returns a path that leads to it.
fn stage(root: BorrowedFd<'_>, name: &str, layer: &OwnedFd) -> Result<String, Errno> {
    mkdirat(root, name, Mode::from_raw_mode(0o700))?;
    let at = openat(root, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    put(layer, at.as_fd())?;
    Ok(through_proc(layer))
}

fn through_proc(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(fd))
}

/// The tree's root shows the owner and mode of the layer on top.
fn look_like(above: &OwnedFd, below: &OwnedFd) -> Result<(), Errno> {
    let stat = fstat(below)?;
    // The mount's own descriptor is only a place; its root has to be opened to be changed.
    let above =
        &openat(above, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // An owner that is not mapped here can be given to nothing; the mode still says who may enter.
    match fchown(above, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid))) {
        Ok(()) | Err(Errno::INVAL | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    fchmod(above, Mode::from_raw_mode(stat.st_mode & 0o1777))
}

/// A device 0:0 says "deleted" to overlayfs, and needs no privilege to make.
fn leave_out(above: &OwnedFd, name: &Path) -> Result<(), Errno> {
    mknodat(above, name, FileType::CharacterDevice, Mode::empty(), 0)
}

fn mount_over(above: &OwnedFd, below: &OwnedFd) -> Result<OwnedFd, Errno> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let layers = format!("{}:{}", through_proc(above), through_proc(below));
    fsconfig_set_string(&context, "lowerdir", layers.as_str())?;
    fsconfig_create(&context)?;
    let flags = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)
}
