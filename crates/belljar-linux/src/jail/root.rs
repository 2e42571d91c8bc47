//! Builds the sandbox's root directory from the bound mounts. Runs in the new mount namespace.
//!
//! Everything is done relative to the descriptor of the new root, never through a link: a name that
//! is missing is made only in the root's tmpfs, so nothing appears in a tree of the host.

mod dev;
mod image;
mod place;

use std::cell::RefCell;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belljar_spec::{Access, Attributes};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, fstat, openat, openat2, symlinkat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree, unmount,
};

use belljar_bind::{BoundKind, BoundMount, BoundTree, Depth, Layer, Pinned, Via};

use self::place::{Places, TargetKind, new_file};
use super::mounter::attributes;
use super::overlay::{self, Changes, Layers};
use crate::sys::mount::{set_attributes, set_attributes_of_clone};
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
    #[error(
        "{} is a link in the image, and the sandbox needs this place for {needed_for}; nothing is put at or below a \
         link, so this image cannot be used as it is", .path.display()
    )]
    ImageLink { path: PathBuf, needed_for: PathBuf },
    #[error(
        "{} is not a {wanted} in the image, and the sandbox needs one there for {needed_for}", .path.display()
    )]
    ImageKind { path: PathBuf, wanted: &'static str, needed_for: PathBuf },
    #[error(
        "this kernel cannot stack the {0} layers of the image (Linux 6.8 can); make one with fewer, such as with \
         docker export and docker import"
    )]
    TooManyLayers(usize),
    #[error("cannot enter the new root: {0}")]
    Enter(&'static str, #[source] Errno),
}

/// A tmpfs holds one file for each page of its size: more would be empty ones.
const BYTES_FOR_A_NAME: u64 = 4096;
const FEWEST_NAMES: u64 = 1024;

/// The new root, while it is being built.
pub(crate) struct Root {
    pub(crate) fd: OwnedFd,
    /// The kernel's `user` directory of limits, from before it was covered read-only.
    counters: RefCell<Option<OwnedFd>>,
    /// File systems that were made here: names can be made in them.
    root_devices: RefCell<Vec<u64>>,
    places: Places,
    origin: RootOrigin,
    /// Where layers are mounted while overlays are made of them, if the root itself cannot be written.
    scratch: Option<OwnedFd>,
}

/// What the root is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RootOrigin {
    /// A file system in memory, in which names are made for what is mounted.
    Memory,
    /// The layers of an image, in which all names are there already.
    Image,
}

impl Root {
    /// For these mounts: from the image, if one is the first of them.
    pub(crate) fn for_mounts(mounts: &[BoundMount]) -> Result<Self, RootError> {
        let root = Self::new()?;
        match mounts.first().map(|mount| &mount.kind) {
            Some(BoundKind::Image(image)) => root.cover_with_image(image, mounts),
            _ => Ok(root),
        }
    }

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
            root_devices: RefCell::new(vec![device]),
            places: Places::default(),
            origin: RootOrigin::Memory,
            scratch: None,
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

    pub(crate) fn add(&self, mount: &BoundMount) -> Result<(), RootError> {
        match &mount.kind {
            BoundKind::Tree(tree) => self.add_tree(&mount.target, tree),
            BoundKind::Tmpfs { size, mode } => self.add_tmpfs(&mount.target, *size, *mode),
            BoundKind::Image(_) => Ok(()), // it is what all others are put into
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
        let on_top = match self.origin {
            RootOrigin::Memory => 1,
            RootOrigin::Image => 2, // the file system in memory that the image was put over, then the old root
        };
        for _ in 0..on_top {
            unmount(".", UnmountFlags::DETACH)
                .map_err(|error| RootError::Enter("umount", error))?;
        }
        rustix::process::chdir("/").map_err(|error| RootError::Enter("chdir", error))
    }

    pub(crate) fn add_tree(&self, target: &Path, tree: &BoundTree) -> Result<(), RootError> {
        let kind = if tree.is_directory { TargetKind::Directory } else { TargetKind::File };
        let at = self.target(target, kind)?;
        match tree.via {
            Via::Bind => {
                let mount =
                    self.open_pinned(&tree.layer.pinned, tree.access, Depth::WithSubmounts)?;
                self.put(mount.as_fd(), &at, target)?;
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
            self.mask(&target.join(socket))?;
        }
        if tree.via == Via::Bind {
            tree.hidden.iter().try_for_each(|hidden| self.hide(&target.join(hidden)))?;
        }
        Ok(())
    }

    fn scratch(&self) -> BorrowedFd<'_> {
        self.scratch.as_ref().unwrap_or(&self.fd).as_fd()
    }

    fn put_overlay(&self, layer: &Layer, target: &Path, at: &OwnedFd) -> Result<(), RootError> {
        let failed = |error| RootError::Mount(target.to_owned(), error);
        let below = self.open_pinned(&layer.pinned, Access::ReadOnly, Depth::ThisMount)?;
        let changes = Changes::Refused;
        let layers = Layers { below: below.as_fd(), left_out: &layer.left_out, changes };
        let mount = overlay::mount(self.scratch(), &layers).map_err(failed)?;
        self.put(mount.as_fd(), at, target)
    }

    /// Root's launcher has made it already.
    fn put_layered(&self, layer: &Layer, target: &Path, at: &OwnedFd) -> Result<(), RootError> {
        let failed = |error| RootError::Mount(target.to_owned(), error);
        let Some(upper) = &layer.upper else { return Err(failed(Errno::INVAL)) };
        if let Some(mounted) = &upper.mounted {
            return self.put(mounted.as_fd(), at, target);
        }
        let below = self.open_pinned(&layer.pinned, Access::ReadOnly, Depth::ThisMount)?;
        let upper = self.open_pinned(&upper.directory, Access::Layered, Depth::ThisMount)?;
        let changes =
            Changes::Stored { upper: upper.as_fd(), attributes: Attributes::User, acts_as: None };
        let layers = Layers { below: below.as_fd(), left_out: &layer.left_out, changes };
        let mount = overlay::mount(self.scratch(), &layers).map_err(failed)?;
        self.put(mount.as_fd(), at, target)
    }

    /// Root's launcher has cloned it already. An ordinary user's clone has to come from this mount
    /// namespace: the path is opened again, without links, and must be the same thing.
    fn open_pinned<'a>(
        &self,
        pinned: &'a Pinned,
        access: Access,
        depth: Depth,
    ) -> Result<Cloned<'a>, RootError> {
        let failed = |error| RootError::Mount(pinned.path.clone(), error);
        if let Some(cloned) = &pinned.cloned {
            return Ok(Cloned::Ahead(cloned));
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
        set_attributes_of_clone(cloned.as_fd(), attributes(access), depth).map_err(failed)?;
        Ok(Cloned::Now(cloned))
    }

    fn put(&self, mount: BorrowedFd<'_>, at: &OwnedFd, target: &Path) -> Result<(), RootError> {
        self.places.covered(target);
        put(mount, at).map_err(|error| RootError::Mount(target.to_owned(), error))
    }

    /// Binds a directory, file or link over itself, so that it cannot be renamed away, and read-only if so
    /// asked.
    fn cover_with_itself(&self, target: &Path, access: Access) -> Result<(), RootError> {
        let failed = |error| RootError::Mount(target.to_owned(), error);
        let at = self.open_as_it_is(target)?;
        let copy = clone_tree(&at, Depth::WithSubmounts).map_err(failed)?;
        set_attributes_of_clone(copy.as_fd(), attributes(access), Depth::WithSubmounts)
            .map_err(failed)?;
        self.put(copy.as_fd(), &at, target)
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
        self.put(mount.as_fd(), &at, target)
    }

    pub(crate) fn add_file(&self, target: &Path, content: &[u8]) -> Result<(), RootError> {
        let (place, name) = self.place_of(target)?;
        if self.origin == RootOrigin::Image && place.is_hosts() {
            return Ok(()); // it is in the image's top layer
        }
        let fd =
            new_file(&place, name).map_err(|error| RootError::Make(target.to_owned(), error))?;
        std::fs::File::from(fd)
            .write_all(content)
            .map_err(|error| RootError::Write(target.to_owned(), error))
    }

    fn add_symlink(&self, target: &Path, to: &Path) -> Result<(), RootError> {
        let (place, name) = self.place_of(target)?;
        if self.origin == RootOrigin::Image && place.is_hosts() {
            return Ok(());
        }
        symlinkat(to, &place.fd, name).map_err(|error| RootError::Make(target.to_owned(), error))
    }

    fn add_proc(&self, read_only: &[String], masked: &[String]) -> Result<(), RootError> {
        let failed = |error| RootError::Mount("/proc".into(), error);
        let at = self.target(Path::new("/proc"), TargetKind::Directory)?;
        let mount = new_proc().map_err(failed)?;
        let place = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let counters = openat(&mount, "sys/user", place, Mode::empty()).map_err(failed)?;
        *self.counters.borrow_mut() = Some(counters);
        self.put(mount.as_fd(), &at, Path::new("/proc"))?;
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
            return self.put(empty.as_fd(), &at, target);
        }
        let null = self.device_node("null")?;
        self.put(null.as_fd(), &at, target)
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
        self.put(null.as_fd(), &at, target)
    }
}

/// A clone of a pinned tree.
enum Cloned<'a> {
    /// The launcher made it.
    Ahead(&'a OwnedFd),
    Now(OwnedFd),
}

impl AsFd for Cloned<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Ahead(fd) => fd.as_fd(),
            Self::Now(fd) => fd.as_fd(),
        }
    }
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

pub(super) fn put(mount: impl AsFd, at: impl AsFd) -> Result<(), Errno> {
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

pub(super) fn new_proc() -> Result<OwnedFd, Errno> {
    let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

/// Removes a name that was only needed during the set-up.
pub(super) fn remove_directory(root: BorrowedFd<'_>, name: &Path) -> Result<(), Errno> {
    debug_assert!(!name.as_os_str().as_bytes().is_empty());
    rustix::fs::unlinkat(root, name, AtFlags::REMOVEDIR)
}
