//! Makes the sandbox's `/dev`: a few device nodes of the host, terminals of its own, and shared memory.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use belljar_bind::Depth;
use belljar_spec::Access;
use rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};

use super::place::TargetKind;
use super::{Root, RootError, RootOrigin, clone_tree};
use crate::jail::mounter::attributes;
use crate::sys::mount::{MountAttr, set_attributes, set_attributes_of_clone};

/// Names only.
const DEV_SIZE: u64 = 64 << 10;
/// Terminals of one run.
const MAX_TERMINALS: &str = "256";

impl Root {
    pub(super) fn add_dev(&self, nodes: &[String], shm_size: u64) -> Result<(), RootError> {
        let dev = Path::new("/dev");
        if self.origin == RootOrigin::Image {
            // Whatever the image has there is covered.
            self.add_tmpfs(dev, DEV_SIZE, 0o755)?;
        }
        for node in nodes {
            let target = dev.join(node);
            let at = self.target(&target, TargetKind::File)?;
            self.put(self.device_node(node)?.as_fd(), &at, &target)?;
        }
        let failed = |error| RootError::Mount("/dev/pts".into(), error);
        let at = self.target(&dev.join("pts"), TargetKind::Directory)?;
        let context = fsopen("devpts", FsOpenFlags::FSOPEN_CLOEXEC).map_err(failed)?;
        fsconfig_set_flag(&context, "newinstance").map_err(failed)?;
        fsconfig_set_string(&context, "ptmxmode", "0666").map_err(failed)?;
        fsconfig_set_string(&context, "mode", "0620").map_err(failed)?;
        // All terminals of the system but those of the host are counted together.
        fsconfig_set_string(&context, "max", MAX_TERMINALS).map_err(failed)?;
        fsconfig_create(&context).map_err(failed)?;
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let pts = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags).map_err(failed)?;
        self.put(pts.as_fd(), &at, &dev.join("pts"))?;
        self.add_tmpfs(&dev.join("shm"), shm_size, 0o1777)?;
        for (name, to) in [
            ("ptmx", "pts/ptmx"),
            ("fd", "/proc/self/fd"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
        ] {
            self.add_symlink(&dev.join(name), Path::new(to))?;
        }
        if self.origin == RootOrigin::Image {
            let failed = |error| RootError::Mount(dev.to_owned(), error);
            let mounted = self.open_existing(dev)?;
            set_attributes(mounted.as_fd(), attributes(Access::ReadOnly), Depth::ThisMount)
                .map_err(failed)?;
        }
        Ok(())
    }

    /// A device of the host, known by its number and not by its name.
    pub(super) fn device_node(&self, name: &str) -> Result<OwnedFd, RootError> {
        let path = Path::new("/dev").join(name);
        let failed = |error| RootError::Mount(path.clone(), error);
        let opened =
            openat(CWD, &path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
                .map_err(failed)?;
        let stat = fstat(&opened).map_err(failed)?;
        let is_device = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_char_device();
        if !is_device || Some(stat.st_rdev) != device_number(name) {
            return Err(RootError::Changed(path));
        }
        let copy = clone_tree(&opened, Depth::ThisMount).map_err(failed)?;
        set_attributes_of_clone(
            copy.as_fd(),
            MountAttr::NO_SUID | MountAttr::NO_EXEC,
            Depth::ThisMount,
        )
        .map_err(failed)?;
        Ok(copy)
    }
}

fn device_number(name: &str) -> Option<u64> {
    let (major, minor) = match name {
        "null" => (1, 3),
        "zero" => (1, 5),
        "full" => (1, 7),
        "random" => (1, 8),
        "urandom" => (1, 9),
        "tty" => (5, 0),
        _ => return None,
    };
    Some(rustix::fs::makedev(major, minor))
}
