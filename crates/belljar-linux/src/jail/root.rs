//! Builds the sandbox's root directory from the bound mounts. Runs in the new mount namespace.
//!
//! Everything is done relative to the descriptor of the new root, never through a link: a name that
//! is missing is made only in the root's tmpfs, so nothing appears in a tree of the host.

use std::cell::RefCell;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use belljar_spec::{Access, Attributes, User};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2, symlinkat,
};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
    open_tree, unmount,
};
use rustix::process::{getegid, geteuid};

use belljar_bind::{BoundKind, BoundMount, BoundTree, Depth, Layer, Pinned, Via};

use super::mounter::attributes;
use super::overlay::{self, Changes, Layers};
use crate::sys::mount::{MountAttr, set_attributes};
use crate::sys::mount_ns_child::act_on_files_as;
use crate::user_limits::UserLimits;

#[derive(Debug, thiserror::Error)]
pub(crate) enum RootError {
    #[error("cannot make {}", .0.display())]
    Make(PathBuf, #[source] Errno),
    #[error("cannot mount {}", .0.display())]
    Mount(PathBuf, #[source] Errno),
    #[error("cannot write {}", .0.display())]
    Write(PathBuf, #[source] std::io::Error),
    #[error("{} has changed since the run was bound (another device or inode)", .0.display())]
    Changed(PathBuf),
    #[error("{} does not exist in the mounted tree, and Belljar creates nothing there", .0.display())]
    TargetMissing(PathBuf),
    #[error("{} is a link, and nothing is mounted through a link", .0.display())]
    TargetIsLink(PathBuf),
    #[error("cannot enter the new root: {0}")]
    Enter(&'static str, #[source] Errno),
}

/// A tmpfs holds one file for each page of its size: more would be empty ones.
const BYTES_FOR_A_NAME: u64 = 4096;
const FEWEST_NAMES: u64 = 1024;
/// Terminals of one run.
const MAX_TERMINALS: &str = "256";

/// The new root, while it is being built.
pub(crate) struct Root {
    pub(crate) fd: OwnedFd,
    /// The kernel's `user` directory of limits, from before it was covered read-only.
    counters: RefCell<Option<OwnedFd>>,
    /// The command's user, where it differs from the user that builds the root.
    command: Option<User>,
    /// File systems that were made here: names can be made in them.
    root_devices: RefCell<Vec<u64>>,
}

impl Root {
    /// An empty tmpfs, attached over the old root so that mounts can be put into it.
    pub(crate) fn new() -> Result<Self, RootError> {
        Self::at(Path::new("/"), "0755")
    }

    /// The same, at a directory of the host: what is put into it can be bound by an engine.
    pub(crate) fn at(directory: &Path, mode: &str) -> Result<Self, RootError> {
        let failed = |error| RootError::Mount(directory.to_owned(), error);
        let fd =
            new_tmpfs(&[("mode", mode), ("size", "16m"), ("nr_inodes", "8k")]).map_err(failed)?;
        move_mount(&fd, "", CWD, directory, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(failed)?;
        let device = fstat(&fd).map_err(failed)?.st_dev;
        Ok(Self {
            fd,
            counters: RefCell::new(None),
            command: None,
            root_devices: RefCell::new(vec![device]),
        })
    }

    /// Limits what the kernel counts for the user of this user namespace. After the last mount was made, each of
    /// which takes a namespace for a moment; and only where there is a `/proc`.
    pub(crate) fn limit_counters(&self, limits: &UserLimits) -> Result<(), RootError> {
        let failed = |error: Errno| RootError::Write("/proc/sys/user".into(), error.into());
        let counters = self.counters.borrow();
        let directory = counters.as_ref().ok_or_else(|| failed(Errno::NOENT))?;
        limits.write_counters(directory.as_fd()).map_err(failed)
    }

    /// What only the command may reach has to be reached, too.
    pub(crate) fn for_command(self, command: User) -> Self {
        Self { command: Some(command), ..self }
    }

    pub(crate) fn add(&self, mount: &BoundMount) -> Result<(), RootError> {
        match &mount.kind {
            BoundKind::Tree(tree) => self.add_tree(&mount.target, tree),
            BoundKind::Tmpfs { size, mode } => self.add_tmpfs(&mount.target, *size, *mode),
            BoundKind::File { content } => self.add_file(&mount.target, content),
            BoundKind::Symlink { to } => self.add_symlink(&mount.target, to),
            BoundKind::Proc { read_only, masked } => self.add_proc(read_only, masked),
            BoundKind::Dev { nodes, shm_size } => self.add_dev(nodes, *shm_size),
        }
    }

    /// Nothing more is made in the root itself.
    pub(crate) fn seal(&self) -> Result<(), RootError> {
        set_attributes(self.fd.as_fd(), attributes(Access::ReadOnly), Depth::ThisMount)
            .map_err(|error| RootError::Mount("/".into(), error))
    }

    /// Makes this the root and lets go of the old one, for good.
    pub(crate) fn enter(self) -> Result<(), RootError> {
        rustix::process::fchdir(&self.fd).map_err(|error| RootError::Enter("fchdir", error))?;
        // The old root ends up mounted on top of the new one and is taken off from there: no
        // directory is needed to put it in.
        rustix::process::pivot_root(".", ".")
            .map_err(|error| RootError::Enter("pivot_root", error))?;
        unmount(".", UnmountFlags::DETACH).map_err(|error| RootError::Enter("umount", error))?;
        rustix::process::chdir("/").map_err(|error| RootError::Enter("chdir", error))
    }

    pub(crate) fn add_tree(&self, target: &Path, tree: &BoundTree) -> Result<(), RootError> {
        let kind = if tree.is_directory { TargetKind::Directory } else { TargetKind::File };
        let at = self.target(target, kind)?;
        match tree.via {
            Via::Bind => {
                let mount =
                    self.open_pinned(&tree.layer.pinned, tree.access, Depth::WithSubmounts)?;
                put(&mount, &at).map_err(|error| RootError::Mount(target.to_owned(), error))?;
            }
            Via::Overlay => {
                self.put_overlay(&tree.layer, target, &at)?;
                for (relative, layer) in &tree.submounts {
                    let target = target.join(relative);
                    let at = self.open_existing(&target)?;
                    self.put_overlay(layer, &target, &at)?;
                }
            }
            Via::Layered => {
                self.put_layered(&tree.layer, target, &at)?;
                for (relative, layer) in &tree.submounts {
                    let target = target.join(relative);
                    let at = self.open_existing(&target)?;
                    self.put_layered(layer, &target, &at)?;
                }
            }
        }
        for (relative, access) in tree.mount_points() {
            self.cover_with_itself(&target.join(&relative), access)?;
        }
        for socket in &tree.sockets {
            self.mask_socket(&target.join(socket))?;
        }
        if tree.via == Via::Bind {
            tree.hidden.iter().try_for_each(|hidden| self.hide(&target.join(hidden)))?;
        }
        Ok(())
    }

    fn put_overlay(&self, layer: &Layer, target: &Path, at: &OwnedFd) -> Result<(), RootError> {
        let failed = |error| RootError::Mount(target.to_owned(), error);
        let below = self.open_pinned(&layer.pinned, Access::ReadOnly, Depth::ThisMount)?;
        let changes = Changes::Refused;
        let layers = Layers { below: &below, left_out: &layer.left_out, changes };
        let mount = overlay::mount(self.fd.as_fd(), &layers).map_err(failed)?;
        put(&mount, at).map_err(failed)
    }

    /// Root's launcher has made it already.
    fn put_layered(&self, layer: &Layer, target: &Path, at: &OwnedFd) -> Result<(), RootError> {
        let failed = |error| RootError::Mount(target.to_owned(), error);
        let Some(upper) = &layer.upper else { return Err(failed(Errno::INVAL)) };
        if let Some(mounted) = &upper.mounted {
            return put(mounted, at).map_err(failed);
        }
        let below = self.open_pinned(&layer.pinned, Access::ReadOnly, Depth::ThisMount)?;
        let upper = self.open_pinned(&upper.directory, Access::Layered, Depth::ThisMount)?;
        let changes =
            Changes::Stored { upper: &upper, attributes: Attributes::User, acts_as: None };
        let layers = Layers { below: &below, left_out: &layer.left_out, changes };
        let mount = overlay::mount(self.fd.as_fd(), &layers).map_err(failed)?;
        put(&mount, at).map_err(failed)
    }

    /// Root's launcher has cloned it already. An ordinary user's clone has to come from this mount
    /// namespace: the path is opened again, without links, and must be the same thing.
    fn open_pinned(
        &self,
        pinned: &Pinned,
        access: Access,
        depth: Depth,
    ) -> Result<OwnedFd, RootError> {
        let failed = |error| RootError::Mount(pinned.path.clone(), error);
        if let Some(cloned) = &pinned.cloned {
            return cloned.try_clone().map_err(|_| failed(Errno::MFILE));
        }
        let opened = openat2(
            CWD,
            &pinned.path,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
        );
        let opened = match opened {
            Err(Errno::LOOP | Errno::NOENT | Errno::NOTDIR) => {
                return Err(RootError::Changed(pinned.path.clone()));
            }
            opened => opened.map_err(failed)?,
        };
        let stat = fstat(&opened).map_err(failed)?;
        if (stat.st_dev, stat.st_ino) != (pinned.device, pinned.inode) {
            return Err(RootError::Changed(pinned.path.clone()));
        }
        let cloned = clone_tree(&opened, depth).map_err(failed)?;
        set_attributes(cloned.as_fd(), attributes(access), depth).map_err(failed)?;
        Ok(cloned)
    }

    /// Binds a directory, file or link over itself, so that it cannot be renamed away, and read-only if so
    /// asked.
    fn cover_with_itself(&self, target: &Path, access: Access) -> Result<(), RootError> {
        let failed = |error| RootError::Mount(target.to_owned(), error);
        let at = self.open_as_it_is(target)?;
        let copy = clone_tree(&at, Depth::WithSubmounts).map_err(failed)?;
        set_attributes(copy.as_fd(), attributes(access), Depth::WithSubmounts).map_err(failed)?;
        put(&copy, &at).map_err(failed)
    }

    fn add_tmpfs(&self, target: &Path, size: u64, mode: u32) -> Result<(), RootError> {
        let failed = |error| RootError::Mount(target.to_owned(), error);
        let at = self.target(target, TargetKind::Directory)?;
        // Each takes kernel memory that the size does not count.
        let inodes = (size / BYTES_FOR_A_NAME).max(FEWEST_NAMES).to_string();
        let (size, mode) = (size.to_string(), format!("{mode:o}"));
        let options = [("size", &*size), ("mode", &*mode), ("nr_inodes", &*inodes)];
        let mount = new_tmpfs(&options).map_err(failed)?;
        self.root_devices.borrow_mut().push(fstat(&mount).map_err(failed)?.st_dev);
        put(&mount, &at).map_err(failed)
    }

    pub(crate) fn add_file(&self, target: &Path, content: &[u8]) -> Result<(), RootError> {
        let (parent, name) = self.parent_of(target)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = openat(&parent, name, flags, Mode::from_raw_mode(0o644))
            .map_err(|error| RootError::Make(target.to_owned(), error))?;
        std::fs::File::from(fd)
            .write_all(content)
            .map_err(|error| RootError::Write(target.to_owned(), error))
    }

    fn add_symlink(&self, target: &Path, to: &Path) -> Result<(), RootError> {
        let (parent, name) = self.parent_of(target)?;
        symlinkat(to, &parent, name).map_err(|error| RootError::Make(target.to_owned(), error))
    }

    fn add_proc(&self, read_only: &[String], masked: &[String]) -> Result<(), RootError> {
        let failed = |error| RootError::Mount("/proc".into(), error);
        let at = self.target(Path::new("/proc"), TargetKind::Directory)?;
        let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC).map_err(failed)?;
        fsconfig_create(&context).map_err(failed)?;
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags).map_err(failed)?;
        let place = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let counters = openat(&mount, "sys/user", place, Mode::empty()).map_err(failed)?;
        *self.counters.borrow_mut() = Some(counters);
        put(&mount, &at).map_err(failed)?;
        for path in read_only {
            self.cover_with_itself(Path::new(path), Access::ReadOnly)?;
        }
        masked.iter().try_for_each(|path| self.mask(Path::new(path)))
    }

    /// Covers a file with `/dev/null`, a directory with an empty one.
    fn mask(&self, target: &Path) -> Result<(), RootError> {
        let failed = |error| RootError::Mount(target.to_owned(), error);
        let at = match self.open_existing(target) {
            Err(RootError::TargetMissing(_)) => return Ok(()),
            at => at?,
        };
        let stat = fstat(&at).map_err(failed)?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
            let empty = new_tmpfs(&[("size", "4k"), ("mode", "0555")]).map_err(failed)?;
            set_attributes(empty.as_fd(), attributes(Access::ReadOnly), Depth::ThisMount)
                .map_err(failed)?;
            return put(&empty, &at).map_err(failed);
        }
        let null = self.device_node("null")?;
        put(&null, &at).map_err(failed)
    }

    /// A directory of the command may belong to a group that is not mapped here: then the process that builds the root
    /// has no right over it, and the command has.
    fn mask_socket(&self, target: &Path) -> Result<(), RootError> {
        let failed = |error| RootError::Mount(target.to_owned(), error);
        match (self.mask(target), self.command) {
            (Err(RootError::Mount(_, Errno::ACCESS)), Some(User { uid, gid })) => {
                let (builder_uid, builder_gid) = (geteuid().as_raw(), getegid().as_raw());
                act_on_files_as(uid, gid).map_err(failed)?;
                let masked = self.mask(target);
                act_on_files_as(builder_uid, builder_gid).map_err(failed)?;
                masked
            }
            (masked, _) => masked,
        }
    }

    /// Covers a file with something that cannot be opened, a directory with an empty one.
    fn hide(&self, target: &Path) -> Result<(), RootError> {
        let failed = |error| RootError::Mount(target.to_owned(), error);
        let at = match self.open_existing(target) {
            Err(RootError::TargetMissing(_)) => return Ok(()),
            at => at?,
        };
        let stat = fstat(&at).map_err(failed)?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
            return self.mask(target);
        }
        let null = self.device_node("null")?;
        set_attributes(null.as_fd(), attributes(Access::ReadOnly), Depth::ThisMount)
            .map_err(failed)?;
        put(&null, &at).map_err(failed)
    }

    fn add_dev(&self, nodes: &[String], shm_size: u64) -> Result<(), RootError> {
        let dev = Path::new("/dev");
        for node in nodes {
            let target = dev.join(node);
            let at = self.target(&target, TargetKind::File)?;
            put(&self.device_node(node)?, &at).map_err(|error| RootError::Mount(target, error))?;
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
        put(&pts, &at).map_err(failed)?;
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
        Ok(())
    }

    /// A device of the host, known by its number and not by its name.
    fn device_node(&self, name: &str) -> Result<OwnedFd, RootError> {
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
        set_attributes(copy.as_fd(), MountAttr::NO_SUID | MountAttr::NO_EXEC, Depth::ThisMount)
            .map_err(failed)?;
        Ok(copy)
    }

    /// Opens a place for a mount. What is missing is made, but only in a file system made here.
    fn target(&self, path: &Path, kind: TargetKind) -> Result<OwnedFd, RootError> {
        match self.open_existing(path) {
            Err(RootError::TargetMissing(_)) => {}
            found => return found,
        }
        let (parent, name) = self.parent_of(path)?;
        let device =
            fstat(&parent).map_err(|error| RootError::Make(path.to_owned(), error))?.st_dev;
        let is_ours = self.root_devices.borrow().contains(&device);
        if !is_ours {
            return Err(RootError::TargetMissing(path.to_owned()));
        }
        let failed = |error| RootError::Make(path.to_owned(), error);
        match kind {
            TargetKind::Directory => {
                mkdirat(&parent, name, Mode::from_raw_mode(0o755)).map_err(failed)?;
            }
            TargetKind::File => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                openat(&parent, name, flags, Mode::from_raw_mode(0o644)).map_err(failed)?;
            }
        }
        self.open_existing(path)
    }

    fn open_existing(&self, path: &Path) -> Result<OwnedFd, RootError> {
        match self.open_as_it_is(path)? {
            link if is_link(&link) => Err(RootError::TargetIsLink(path.to_owned())),
            opened => Ok(opened),
        }
    }

    /// The same, where the last name may be a link, which then is what is opened.
    fn open_as_it_is(&self, path: &Path) -> Result<OwnedFd, RootError> {
        let relative = path.strip_prefix("/").unwrap_or(path);
        let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        let opened = openat2(
            &self.fd,
            relative,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
        );
        match opened {
            Ok(fd) => Ok(fd),
            Err(Errno::NOENT | Errno::NOTDIR) => Err(RootError::TargetMissing(path.to_owned())),
            Err(Errno::LOOP) => Err(RootError::TargetIsLink(path.to_owned())),
            Err(error) => Err(RootError::Mount(path.to_owned(), error)),
        }
    }

    /// The directory that something goes into, made where that is allowed, and its name there.
    fn parent_of<'a>(&self, path: &'a Path) -> Result<(OwnedFd, &'a std::ffi::OsStr), RootError> {
        let missing = || RootError::TargetMissing(path.to_owned());
        let name = path.file_name().ok_or_else(missing)?;
        let parent = path.parent().ok_or_else(missing)?;
        let is_root = parent.components().all(|component| component == Component::RootDir);
        let fd = if is_root {
            self.open_existing(parent)?
        } else {
            self.target(parent, TargetKind::Directory)?
        };
        Ok((fd, name))
    }
}

#[derive(Clone, Copy)]
enum TargetKind {
    Directory,
    File,
}

fn is_link(fd: &OwnedFd) -> bool {
    fstat(fd).is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_symlink())
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

pub(super) fn clone_tree(opened: &OwnedFd, depth: Depth) -> Result<OwnedFd, Errno> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    if depth == Depth::WithSubmounts {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    open_tree(opened, "", flags)
}

pub(super) fn put(mount: &OwnedFd, at: impl AsFd) -> Result<(), Errno> {
    let at: BorrowedFd<'_> = at.as_fd();
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", at, "", flags)
}

pub(super) fn new_tmpfs(options: &[(&str, &str)]) -> Result<OwnedFd, Errno> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (name, value) in options {
        fsconfig_set_string(&context, *name, *value)?;
    }
    fsconfig_create(&context)?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

/// Removes a name that was only needed during the set-up.
pub(super) fn remove_directory(root: BorrowedFd<'_>, name: &Path) -> Result<(), Errno> {
    debug_assert!(!name.as_os_str().as_bytes().is_empty());
    rustix::fs::unlinkat(root, name, AtFlags::REMOVEDIR)
}
