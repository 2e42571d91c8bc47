//! Makes the root from the layers of an image: a read-only overlay of them, with a layer of Belljar's own on top.
//!
//! The top layer is a file system in memory that has every place at which something is mounted and every file that is
//! made for the run, so that nothing is ever written into a layer. A link in the image at such a place, or above it, is
//! not followed but refused: what is mounted would end up where the image says (CVE-2019-19921). Only where a file is made
//! may the image have a link itself, as many have at `/etc/resolv.conf`: the top layer's file hides it, and nothing is
//! mounted there.

use std::ffi::OsStr;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use belljar_bind::{BoundKind, BoundMount, Depth, ImageRoot, PinnedLayer};
use belljar_spec::Access;
use rustix::fs::{
    FileType, Gid, Mode, OFlags, ResolveFlags, Uid, fchmod, fchown, fstat, mkdirat, openat,
    openat2, symlinkat,
};
use rustix::io::Errno;

use super::place::{Places, TargetKind};
use super::{Root, RootError, RootOrigin, new_tmpfs, put};
use crate::jail::overlay::{look_like, mount_layer, stack_layers};

const LAYERS: &str = ".belljar-layers";
const TOP: &str = ".belljar-top";
/// Directories of the file system in memory: a layer without a name in it, and the one on top of the image.
const EMPTY: &str = "empty";
const MADE: &str = "made";
const NAMES: &str = "names";
const PRIVATE: Mode = Mode::from_raw_mode(0o700);
const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Root {
    /// Puts the image's root over this one, which is left with the old root. All of it stays mounted there until
    /// then; overlayfs has its own hold on the layers.
    pub(super) fn cover_with_image(
        self,
        image: &ImageRoot,
        mounts: &[BoundMount],
    ) -> Result<Self, RootError> {
        let failed = |error| RootError::Mount("/".into(), error);
        let base = self.open_pinned(&image.base, Access::ReadOnly, Depth::ThisMount)?;
        mount_layer(self.fd.as_fd(), LAYERS, base.as_fd()).map_err(failed)?;
        let open = |layer: &PinnedLayer| open_layer(base.as_fd(), &image.base.path, layer);
        let layers = image.layers.iter().rev().map(open).collect::<Result<Vec<_>, _>>()?;

        let memory = new_tmpfs(&[("size", "2m"), ("mode", "0700")]).map_err(failed)?;
        mount_layer(self.fd.as_fd(), TOP, memory.as_fd()).map_err(failed)?;
        let [empty, made, names] = [EMPTY, MADE, NAMES].map(|name| new_directory(&memory, name));
        let (empty, made, names) =
            (empty.map_err(failed)?, made.map_err(failed)?, names.map_err(failed)?);
        let stacked = |top: &OwnedFd| {
            let mut lower = vec![top.as_fd()];
            lower.extend(layers.iter().map(AsFd::as_fd));
            if layers.is_empty() {
                lower.push(empty.as_fd()); // overlayfs takes two layers at least
            }
            stack_layers(names.as_fd(), &lower).map_err(|error| match error {
                Errno::TOOBIG => RootError::TooManyLayers(layers.len()),
                error => failed(error),
            })
        };
        // The image as the kernel shows it decides which places there are; then they are part of a second overlay.
        let seen = if layers.is_empty() { open_directory(&empty) } else { stacked(&empty) };
        let top = TopLayer { image: seen?, made: made.as_fd() };
        top.make_root()?;
        let mut covered: Vec<&Path> = Vec::new();
        for mount in mounts.iter().filter(|mount| !matches!(mount.kind, BoundKind::Image(_))) {
            // What is in another mount is made there, or has to be there.
            let is_inside =
                |above: &&Path| mount.target.starts_with(above) && mount.target != **above;
            if !covered.iter().any(is_inside) {
                top.make(mount)?;
            }
            if !matches!(mount.kind, BoundKind::File { .. } | BoundKind::Symlink { .. }) {
                covered.push(&mount.target);
            }
        }
        drop(top);
        let whole = stacked(&made)?;
        put(&whole, &self.fd).map_err(failed)?;
        Ok(Self {
            fd: whole,
            counters: self.counters,
            root_devices: Vec::new().into(),
            places: Places::default(),
            origin: RootOrigin::Image,
            scratch: Some(self.fd),
        })
    }
}

/// The same directory that was bound, whatever its path leads to by now.
fn open_layer(
    base: BorrowedFd<'_>,
    base_path: &Path,
    layer: &PinnedLayer,
) -> Result<OwnedFd, RootError> {
    let path = || base_path.join(&layer.path);
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let opened = match openat2(base, &layer.path, DIRECTORY, Mode::empty(), resolve) {
        Err(Errno::LOOP | Errno::NOENT | Errno::NOTDIR | Errno::XDEV) => {
            return Err(RootError::Changed(path()));
        }
        opened => opened.map_err(|error| RootError::Mount(path(), error))?,
    };
    let stat = fstat(&opened).map_err(|error| RootError::Mount(path(), error))?;
    match (stat.st_dev, stat.st_ino) == (layer.device, layer.inode) {
        true => Ok(opened),
        false => Err(RootError::Changed(path())),
    }
}

fn new_directory(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    mkdirat(parent, name, PRIVATE)?;
    openat(parent, name, DIRECTORY, Mode::empty())
}

fn open_directory(directory: &OwnedFd) -> Result<OwnedFd, RootError> {
    let opened = openat(directory, ".", DIRECTORY, Mode::empty());
    opened.map_err(|error| RootError::Mount("/".into(), error))
}

/// The layer on top of the image, while names are made in it.
struct TopLayer<'a> {
    /// The image alone.
    image: OwnedFd,
    made: BorrowedFd<'a>,
}

/// A directory in the top layer, and the image's at the same place, if it has one.
struct Level {
    made: OwnedFd,
    image: Option<OwnedFd>,
}

impl TopLayer<'_> {
    /// Everybody can enter the root, which belongs to uid 0 where the sandbox has one: as with engines.
    fn make_root(&self) -> Result<(), RootError> {
        let failed = |error| RootError::Make("/".into(), error);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let made = openat(self.made, ".", flags, Mode::empty()).map_err(failed)?;
        match fchown(&made, Some(Uid::ROOT), Some(Gid::ROOT)) {
            Ok(()) | Err(Errno::INVAL | Errno::PERM) => {}
            Err(error) => return Err(failed(error)),
        }
        fchmod(&made, Mode::from_raw_mode(0o755)).map_err(failed)
    }

    /// Makes the place of a mount, or the file or link itself.
    fn make(&self, mount: &BoundMount) -> Result<(), RootError> {
        let target = &mount.target;
        let failed = |error| RootError::Make(target.clone(), error);
        let (Some(above), Some(name)) = (target.parent(), target.file_name()) else {
            return Err(failed(Errno::INVAL));
        };
        let level = self.enter(above, target)?;
        match &mount.kind {
            BoundKind::File { content } => {
                self.check_replaced(&level, name, target)?;
                let made = std::fs::File::from(new_file(&level, name).map_err(failed)?);
                let written = (&made).write_all(content);
                written.map_err(|error| RootError::Write(target.clone(), error))
            }
            BoundKind::Symlink { to } => {
                self.check(&level, name, TargetKind::File, target)?;
                symlinkat(to, &level.made, name).map_err(failed)
            }
            BoundKind::Tree(tree) if !tree.is_directory => {
                self.check(&level, name, TargetKind::File, target)?;
                match new_file(&level, name) {
                    Ok(_) | Err(Errno::EXIST) => Ok(()),
                    Err(error) => Err(failed(error)),
                }
            }
            BoundKind::Tree(_)
            | BoundKind::Image(_)
            | BoundKind::Tmpfs { .. }
            | BoundKind::Proc { .. }
            | BoundKind::Dev { .. } => self.enter(target, target).map(drop),
        }
    }

    /// Makes a directory and those above it, each like the image's.
    fn enter(&self, path: &Path, needed_for: &Path) -> Result<Level, RootError> {
        let failed = |error| RootError::Make(path.to_owned(), error);
        let made = openat(self.made, ".", DIRECTORY, Mode::empty()).map_err(failed)?;
        let image = openat(&self.image, ".", DIRECTORY, Mode::empty()).map_err(failed)?;
        let mut level = Level { made, image: Some(image) };
        let mut at = PathBuf::from("/");
        for part in path.components() {
            let name = match part {
                Component::RootDir => continue,
                Component::Normal(name) => name,
                _ => return Err(failed(Errno::INVAL)),
            };
            at.push(name);
            let image = self.check_at(&level, name, TargetKind::Directory, &at, needed_for)?;
            match mkdirat(&level.made, name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(failed(error)),
            }
            let made = openat(&level.made, name, DIRECTORY, Mode::empty()).map_err(failed)?;
            if let Some(image) = &image {
                look_like(made.as_fd(), image.as_fd()).map_err(failed)?;
            }
            level = Level { made, image };
        }
        Ok(level)
    }

    /// A file of the top layer can stand for a file or link of the image.
    fn check_replaced(&self, level: &Level, name: &OsStr, target: &Path) -> Result<(), RootError> {
        match self.check(level, name, TargetKind::File, target) {
            Err(RootError::ImageLink { path, .. }) if path == target => Ok(()),
            checked => checked,
        }
    }

    fn check(
        &self,
        level: &Level,
        name: &OsStr,
        wanted: TargetKind,
        target: &Path,
    ) -> Result<(), RootError> {
        self.check_at(level, name, wanted, target, target).map(drop)
    }

    /// What the image has there, which is of the kind that is wanted.
    fn check_at(
        &self,
        level: &Level,
        name: &OsStr,
        wanted: TargetKind,
        at: &Path,
        needed_for: &Path,
    ) -> Result<Option<OwnedFd>, RootError> {
        let Some(image) = &level.image else { return Ok(None) };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = match openat(image, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            found => found.map_err(|error| RootError::Mount(at.to_owned(), error))?,
        };
        let stat = fstat(&found).map_err(|error| RootError::Mount(at.to_owned(), error))?;
        let (path, needed_for) = (at.to_owned(), needed_for.to_owned());
        match (FileType::from_raw_mode(stat.st_mode), wanted) {
            (FileType::Symlink, _) => Err(RootError::ImageLink { path, needed_for }),
            (FileType::Directory, TargetKind::Directory)
            | (FileType::RegularFile, TargetKind::File) => Ok(Some(found)),
            (_, TargetKind::Directory) => {
                Err(RootError::ImageKind { path, wanted: "directory", needed_for })
            }
            (_, TargetKind::File) => Err(RootError::ImageKind { path, wanted: "file", needed_for }),
        }
    }
}

fn new_file(level: &Level, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    openat(&level.made, name, flags, Mode::from_raw_mode(0o644))
}
