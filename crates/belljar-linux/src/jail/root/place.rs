//! Finds and makes the places that mounts, files and links are put at.
//!
//! Most of them are in few directories, which stay open: a path is not resolved again for each name in it.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2};
use rustix::io::Errno;

use super::{Root, RootError};

/// What a mount needs at its place.
#[derive(Clone, Copy)]
pub(super) enum TargetKind {
    Directory,
    File,
}

/// A directory that names are put into.
pub(super) struct Place {
    path: PathBuf,
    pub(super) fd: OwnedFd,
    owner: Owner,
}

impl Place {
    /// Nothing is made in it.
    pub(super) fn is_hosts(&self) -> bool {
        self.owner == Owner::Host
    }
}

/// Who can change a directory while the root is built.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// It is in a file system that was made here: names can be made in it, and nobody else can reach it.
    Us,
    Host,
}

/// The directories in file systems that were made here, as long as nothing is mounted over them.
#[derive(Default)]
pub(super) struct Places(RefCell<Vec<Rc<Place>>>);

impl Places {
    fn get(&self, path: &Path) -> Option<Rc<Place>> {
        self.0.borrow().iter().find(|place| place.path == path).cloned()
    }

    fn keep(&self, place: &Rc<Place>) {
        // A directory of the host may be replaced by another: it is found anew each time.
        if place.owner == Owner::Us {
            self.0.borrow_mut().push(place.clone());
        }
    }

    /// Something was mounted there: what was below it is covered.
    pub(super) fn covered(&self, target: &Path) {
        self.0.borrow_mut().retain(|place| !place.path.starts_with(target));
    }
}

impl Root {
    /// Opens a place for a mount. What is missing is made, but only in a file system made here.
    pub(super) fn target(&self, path: &Path, kind: TargetKind) -> Result<OwnedFd, RootError> {
        if path.file_name().is_none() {
            return self.open_existing(path);
        }
        let (place, name) = self.place_of(path)?;
        if place.owner == Owner::Host {
            return self.open_existing(path);
        }
        let failed = |error| RootError::Make(path.to_owned(), error);
        match kind {
            TargetKind::Directory => match mkdirat(&place.fd, name, Mode::from_raw_mode(0o755)) {
                Ok(()) => openat(&place.fd, name, DIRECTORY, Mode::empty()).map_err(failed),
                Err(Errno::EXIST) => self.open_existing(path),
                Err(error) => Err(failed(error)),
            },
            TargetKind::File => match new_file(&place, name) {
                Ok(made) => Ok(made),
                Err(Errno::EXIST) => self.open_existing(path),
                Err(error) => Err(failed(error)),
            },
        }
    }

    pub(super) fn open_existing(&self, path: &Path) -> Result<OwnedFd, RootError> {
        match self.open_as_it_is(path)? {
            link if is_link(&link) => Err(RootError::TargetIsLink(path.to_owned())),
            opened => Ok(opened),
        }
    }

    /// The same, where the last name may be a link, which then is what is opened.
    pub(super) fn open_as_it_is(&self, path: &Path) -> Result<OwnedFd, RootError> {
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
    pub(super) fn place_of<'a>(&self, path: &'a Path) -> Result<(Rc<Place>, &'a OsStr), RootError> {
        let missing = || RootError::TargetMissing(path.to_owned());
        let name = path.file_name().ok_or_else(missing)?;
        let parent = path.parent().ok_or_else(missing)?;
        if let Some(place) = self.places.get(parent) {
            return Ok((place, name));
        }
        let is_root = parent.components().all(|component| component == Component::RootDir);
        let fd = if is_root {
            self.open_existing(parent)?
        } else {
            self.target(parent, TargetKind::Directory)?
        };
        let failed = |error| RootError::Make(path.to_owned(), error);
        let device = fstat(&fd).map_err(failed)?.st_dev;
        let is_ours = self.root_devices.borrow().contains(&device);
        let owner = if is_ours { Owner::Us } else { Owner::Host };
        let place = Rc::new(Place { path: parent.to_owned(), fd, owner });
        self.places.keep(&place);
        Ok((place, name))
    }
}

const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A file that was not there, open for writing.
pub(super) fn new_file(place: &Place, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    openat(place.fd.as_fd(), name, flags, Mode::from_raw_mode(0o644))
}

fn is_link(fd: &OwnedFd) -> bool {
    fstat(fd).is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_symlink())
}
