//! The directory that the unpacker is in, with the open directories above it.
//!
//! Archives go through a tree directory by directory, so that most entries are in the one that is open
//! already: no path is resolved from the root. When a directory is left it gets its times, and its mode where
//! that had to be widened.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};

use belljar_tree::{CreateDirError, Dir, EntryKind, Metadata, OpenDirError};
use rustix::fs::{Mode, Timespec, Timestamps, fchmod, fchown, futimens};

use super::entry_path::EntryPath;
use super::error::UnpackProblem;
use super::file::{Defaults, NewEntry};
use super::lower::LowerLayers;
use super::options::{Ownership, UnpackOptions};

/// What it takes to make entries in a directory.
const USABLE: u32 = 0o700;
const SETGID: u32 = 0o2000;
/// Of directories that neither an entry nor a lower layer describes.
const DEFAULT_MODE: u32 = 0o755;
const EPOCH: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// A directory that entries are made in.
#[derive(Clone, Copy)]
pub(super) struct Parent<'a> {
    pub(super) dir: &'a Dir,
    pub(super) defaults: &'a Defaults,
    /// New entries get the directory's group.
    pub(super) sets_group: bool,
}

pub(super) struct Cursor<'a> {
    root: Level,
    levels: Vec<Level>,
    lower: LowerLayers<'a>,
    defaults: Defaults,
    options: &'a UnpackOptions,
    /// Directories that no entry has named so far.
    implicit: BTreeSet<Vec<OsString>>,
    implicit_bytes: u64,
}

struct Level {
    name: OsString,
    dir: Dir,
    /// What it must have in the end.
    times: Timestamps,
    mode: u32,
    /// With whatever it takes to use it meanwhile.
    mode_now: u32,
}

impl Level {
    /// Sets what was put off.
    fn leave(&self) -> Result<(), UnpackProblem> {
        if self.mode_now != self.mode {
            fchmod(&self.dir, Mode::from_raw_mode(self.mode))
                .map_err(UnpackProblem::system("set the mode of a directory"))?;
        }
        futimens(self.dir.as_fd(), &self.times)
            .map_err(UnpackProblem::system("set the times of a directory"))
    }
}

impl<'a> Cursor<'a> {
    /// At the root, which gets what the layers below have at theirs until an entry describes it.
    pub(super) fn new(
        target: &Dir,
        lower: LowerLayers<'a>,
        options: &'a UnpackOptions,
    ) -> Result<Self, UnpackProblem> {
        let defaults = Defaults::of(target, options.ownership)?;
        let dir = target.try_clone()?;
        let attributes = implicit_attributes(lower.directory(&[])?, &defaults);
        let mut root = Level {
            name: OsString::new(),
            dir,
            times: attributes.times.clone(),
            mode: attributes.mode,
            mode_now: attributes.mode,
        };
        describe(&mut root, &attributes, &defaults, Group::Inherited)?;
        Ok(Self {
            root,
            levels: Vec::new(),
            lower,
            defaults,
            options,
            implicit: BTreeSet::new(),
            implicit_bytes: 0,
        })
    }

    /// Of the directory that was entered last.
    pub(super) fn current(&self) -> BorrowedFd<'_> {
        self.lowest().dir.as_fd()
    }

    pub(super) fn options(&self) -> &UnpackOptions {
        self.options
    }

    pub(super) fn lower(&self) -> &LowerLayers<'a> {
        &self.lower
    }

    fn lowest(&self) -> &Level {
        self.levels.last().unwrap_or(&self.root)
    }

    fn parent(&self) -> Parent<'_> {
        let level = self.lowest();
        Parent {
            dir: &level.dir,
            defaults: &self.defaults,
            sets_group: level.mode_now & SETGID != 0,
        }
    }

    /// Goes to a directory; those on the way that are not there are made.
    pub(super) fn enter(&mut self, path: &[OsString]) -> Result<Parent<'_>, UnpackProblem> {
        self.leave_to(path)?;
        while self.levels.len() < path.len() {
            let name = &path[self.levels.len()];
            match self.lowest().dir.unlock_dir(name) {
                Ok(found) => self.push_existing(name, found.dir, &found.metadata)?,
                Err(OpenDirError::Missing { .. }) => {
                    let here = &path[..=self.levels.len()];
                    self.note_implicit(here)?;
                    let covered = self.lower.directory(here)?;
                    let attributes = implicit_attributes(covered, &self.defaults);
                    self.push_new(name, &attributes)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.parent())
    }

    /// One entry can make as many directories as its path has names, so that they count like entries.
    fn note_implicit(&mut self, path: &[OsString]) -> Result<(), UnpackProblem> {
        let limits = &self.options.limits;
        let names: usize = path.iter().map(|name| name.len() + 32).sum();
        self.implicit_bytes = self.implicit_bytes.saturating_add(names as u64);
        if self.implicit.len() as u64 >= limits.entries {
            return Err(UnpackProblem::Limit { what: "entries", most: limits.entries });
        }
        if self.implicit_bytes > limits.deferred_bytes {
            let most = limits.deferred_bytes;
            return Err(UnpackProblem::Limit { what: "bytes of paths without entries", most });
        }
        self.implicit.insert(path.to_vec());
        Ok(())
    }

    /// Directories that no entry names and that cover nothing, since the layer hides what was there.
    pub(super) fn forget_covered(
        &mut self,
        is_hidden: impl Fn(&[OsString]) -> bool,
    ) -> Result<(), UnpackProblem> {
        let hidden: Vec<Vec<OsString>> =
            self.implicit.iter().filter(|path| is_hidden(path)).cloned().collect();
        let attributes = implicit_attributes(None, &self.defaults);
        let defaults = self.defaults;
        for path in hidden {
            // A later entry may have replaced it.
            if self.enter_existing(&path)? == Existing::Directory
                && let Some(level) = self.levels.last_mut()
            {
                describe(level, &attributes, &defaults, Group::Inherited)?;
            }
        }
        Ok(())
    }

    /// Goes to a directory if this layer has it.
    pub(super) fn enter_existing(&mut self, path: &[OsString]) -> Result<Existing, UnpackProblem> {
        self.leave_to(path)?;
        while self.levels.len() < path.len() {
            let name = &path[self.levels.len()];
            match self.lowest().dir.unlock_dir(name) {
                Ok(found) => self.push_existing(name, found.dir, &found.metadata)?,
                Err(OpenDirError::Missing { .. }) => return Ok(Existing::Missing),
                Err(OpenDirError::Link { .. } | OpenDirError::NotDirectory { .. }) => {
                    return Ok(Existing::NotDirectory);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Existing::Directory)
    }

    /// Makes a directory as an entry describes it, or describes the one that is there, and enters it. Tells
    /// whether it is new.
    pub(super) fn directory(
        &mut self,
        above: &[OsString],
        name: &OsStr,
        attributes: &NewEntry,
    ) -> Result<bool, UnpackProblem> {
        self.enter(above)?;
        if !self.implicit.is_empty() {
            self.implicit.remove(&[above, &[name.to_owned()]].concat());
        }
        let found = match self.lowest().dir.unlock_dir(name) {
            Ok(found) => Some(found),
            Err(OpenDirError::Missing { .. }) => None,
            // The later entry counts.
            Err(OpenDirError::Link { .. } | OpenDirError::NotDirectory { .. }) => {
                self.lowest().dir.unlink(name)?;
                None
            }
            Err(error) => return Err(error.into()),
        };
        match found {
            None => {
                self.push_new(name, attributes)?;
                Ok(true)
            }
            Some(found) => {
                self.push_existing(name, found.dir, &found.metadata)?;
                let defaults = self.defaults;
                if let Some(level) = self.levels.last_mut() {
                    describe(level, attributes, &defaults, Group::Inherited)?;
                }
                Ok(false)
            }
        }
    }

    /// An entry for the root itself.
    pub(super) fn describe_root(&mut self, attributes: &NewEntry) -> Result<(), UnpackProblem> {
        self.leave_to(&[])?;
        let defaults = self.defaults;
        describe(&mut self.root, attributes, &defaults, Group::Inherited)
    }

    /// Gives a file or link of this layer one more name.
    pub(super) fn hard_link(
        &mut self,
        above: &[OsString],
        name: &OsStr,
        target: &EntryPath,
    ) -> Result<(), UnpackProblem> {
        self.enter(above)?;
        let refused = || {
            let target = target.to_path();
            let text = super::shown(std::os::unix::ffi::OsStrExt::as_bytes(target.as_os_str()));
            UnpackProblem::LinkTarget { target: text }
        };
        let from = target.to_path();
        let root = &self.root.dir;
        let parent = &self.lowest().dir;
        let about = root.stat(&from).map_err(|_| refused())?;
        if !matches!(about.kind(), EntryKind::File | EntryKind::Symlink) {
            return Err(refused());
        }
        match parent.stat_if_exists(name)? {
            Some(there) if there.identity() == about.identity() => return Ok(()),
            // A link to something below a directory that it is to replace has no target afterwards.
            Some(_) => parent.remove_all(name)?,
            None => {}
        }
        root.hard_link(&from, parent, name).map_err(|error| match error.is_missing() {
            true => refused(),
            false => error.into(),
        })
    }

    /// Leaves all directories, the root last. Tells how many no entry named.
    pub(super) fn finish(mut self) -> Result<u64, UnpackProblem> {
        self.leave_to(&[])?;
        self.root.leave()?;
        Ok(self.implicit.len() as u64)
    }

    /// Leaves the directories that do not lead to this path.
    fn leave_to(&mut self, path: &[OsString]) -> Result<(), UnpackProblem> {
        let same = self.levels.iter().zip(path).take_while(|(level, name)| level.name == **name);
        let common = same.count();
        while self.levels.len() > common {
            if let Some(level) = self.levels.pop() {
                level.leave()?;
            }
        }
        Ok(())
    }

    fn push_existing(
        &mut self,
        name: &OsStr,
        dir: Dir,
        about: &Metadata,
    ) -> Result<(), UnpackProblem> {
        let mode = about.mode() & 0o7777;
        if mode & USABLE != USABLE {
            fchmod(&dir, Mode::from_raw_mode(mode | USABLE))
                .map_err(UnpackProblem::system("set the mode of a directory"))?;
        }
        self.levels.push(Level {
            name: name.to_owned(),
            dir,
            times: about.times(),
            mode,
            mode_now: mode | USABLE,
        });
        Ok(())
    }

    fn push_new(&mut self, name: &OsStr, attributes: &NewEntry) -> Result<(), UnpackProblem> {
        let parent = self.lowest();
        let group = match parent.mode_now & SETGID != 0 {
            true => Group::Inherited,
            false => Group::Own,
        };
        let create_mode = attributes.mode & 0o777 | USABLE;
        match parent.dir.create_dir(name, create_mode) {
            // Nothing else works in this tree; the caller has just seen that nothing is there.
            Err(error @ CreateDirError::Exists { .. }) => return Err(error.into()),
            made => made?,
        }
        let dir = parent.dir.open_dir(name)?;
        let mut level = Level {
            name: name.to_owned(),
            dir,
            times: attributes.times.clone(),
            mode: attributes.mode,
            // As far as it is known: with the setgid bit of the parent it has one, too.
            mode_now: match (self.defaults.umask, group) {
                (Some(umask), Group::Own) => create_mode & !umask,
                _ => u32::MAX,
            },
        };
        describe(&mut level, attributes, &self.defaults, group)?;
        self.levels.push(level);
        Ok(())
    }
}

/// What there is of a directory in this layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Existing {
    Directory,
    Missing,
    NotDirectory,
}

/// Where a directory's group may come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    /// The process.
    Own,
    /// A parent with the setgid bit, or something that was there before.
    Inherited,
}

/// Sets owner and mode at once, and the times when the directory is left.
fn describe(
    level: &mut Level,
    attributes: &NewEntry,
    defaults: &Defaults,
    group: Group,
) -> Result<(), UnpackProblem> {
    if let Some((uid, gid)) = defaults.owner(attributes, group == Group::Inherited) {
        fchown(&level.dir, Some(uid), Some(gid))
            .map_err(UnpackProblem::system("set the owner of a directory"))?;
    }
    let wanted = attributes.mode | USABLE;
    if level.mode_now != wanted || group == Group::Inherited {
        fchmod(&level.dir, Mode::from_raw_mode(wanted))
            .map_err(UnpackProblem::system("set the mode of a directory"))?;
    }
    level.mode_now = wanted;
    level.mode = attributes.mode;
    level.times = attributes.times.clone();
    Ok(())
}

/// Of a directory that no entry describes. Its time is 0, so that the same layers make the same tree.
fn implicit_attributes(covered: Option<Metadata>, defaults: &Defaults) -> NewEntry {
    let times = Timestamps { last_access: EPOCH, last_modification: EPOCH };
    match covered {
        Some(covered) => NewEntry {
            mode: covered.mode() & 0o7777,
            uid: covered.uid(),
            gid: covered.gid(),
            times,
        },
        None => match defaults.ownership {
            Ownership::Archive => NewEntry { mode: DEFAULT_MODE, uid: 0, gid: 0, times },
            Ownership::Single => {
                NewEntry { mode: DEFAULT_MODE, uid: defaults.uid, gid: defaults.gid, times }
            }
        },
    }
}
