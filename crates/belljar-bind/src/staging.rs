//! Prepares trees of the host for an engine that binds them by path.
//!
//! An ordinary user can only name the paths; the mounts that the engine made are compared by device and inode. Root
//! mounts each tree first, in a directory that no other user can change (`staging` of `belljar-linux`).

use std::fmt::Debug;
use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use belljar_spec::{Access, ExpectedMount, LayeredTree, OsText, Posture, SentTree, User};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Stat, openat2, statat};
use rustix::io::Errno;

use crate::bind::{Bound, BoundKind, BoundMount, BoundTree, SurveyedTree, user_inside};
use crate::identity::HostIdentity;

/// Where root mounts trees for engines. Root's alone, and in the list of what no run is ever given.
pub const STAGING_ROOT: &str = "/run/belljar/mounts";

#[derive(Debug, thiserror::Error)]
pub enum StageError {
    #[error("cannot make {}", .0.display())]
    Make(PathBuf, #[source] io::Error),
    #[error("cannot prepare the mounts for the engine")]
    Mount(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("cannot stat {}", .0.display())]
    Look(PathBuf, #[source] Errno),
    #[error(
        "{} is a link that the host follows, and an engine cannot cover it for an ordinary user; use an \
         overlay workspace, the jail, or --allow-control {}",
        .0.display(), .1.display()
    )]
    Link(PathBuf, PathBuf),
    #[error("{} does not exist in {}, and Belljar creates nothing there", .0.display(), .1.display())]
    Missing(PathBuf, PathBuf, #[source] Errno),
}

/// One thing that the engine is to bind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub source: PathBuf,
    pub target: PathBuf,
    pub read_only: bool,
    /// The mounts below the source are to come along.
    pub with_submounts: bool,
}

/// Everything the host gives to one container.
#[derive(Debug)]
pub struct Staged {
    pub offers: Vec<Offer>,
    /// What the attestation has to find where they were bound.
    pub expected: Vec<ExpectedMount>,
    pub user: User,
    pub posture: Posture,
    pub writable_trees: Vec<PathBuf>,
    pub surveyed: Vec<SurveyedTree>,
    pub layered: Vec<LayeredTree>,
    /// What has to be sent over the channel.
    pub sent: Vec<SentTree>,
    pub warnings: Vec<String>,
    /// Places that the command must be able to write to, or something went wrong.
    pub must_write: Vec<OsText>,
    /// `None` where the sources are named as they are.
    stage: Option<Box<dyn StagingMount>>,
    identity: HostIdentity,
}

impl Staged {
    /// One more file of belljar's.
    pub fn add_file(&mut self, offer: Offer) -> Result<(), StageError> {
        self.expected.push(expect(&offer.source, &offer.target, offer.read_only)?);
        self.offers.push(offer);
        Ok(())
    }

    /// The engine has bound everything: the staging mounts are no longer needed. The uids stay reserved.
    pub fn unmount(&mut self) -> io::Result<HostIdentity> {
        if let Some(stage) = self.stage.take() {
            stage.unmount()?;
        }
        Ok(std::mem::replace(&mut self.identity, HostIdentity::caller()))
    }
}

/// Mounted staging trees; unmounted on drop.
pub trait StagingMount: Debug + Send {
    fn unmount(self: Box<Self>) -> io::Result<()>;
}

/// What was prepared for the engine to bind, and what the attestation has to find there.
#[derive(Debug, Default)]
pub struct StagedMounts {
    pub offers: Vec<Offer>,
    pub expected: Vec<ExpectedMount>,
    pub stage: Option<Box<dyn StagingMount>>,
}

/// Names the trees as they are. Files for the run are put into a directory.
pub fn stage_in_place(bound: Bound, files: &Path) -> Result<Staged, StageError> {
    refuse_to_create(&bound)?;
    let made = in_place(&bound, files)?;
    Ok(staged(bound, made))
}

/// For an engine on another machine, which mounts nothing of this one: trees are sent.
pub fn nothing(bound: Bound) -> Staged {
    Staged { must_write: Vec::new(), ..staged(bound, StagedMounts::default()) }
}

/// The trees of a bound plan, prepared by these mounts.
pub fn staged(bound: Bound, mut made: StagedMounts) -> Staged {
    let user = user_inside(&bound.plan, &bound.identity);
    // Parents first: an engine binds in the given order.
    made.offers.sort_by(|a, b| a.target.cmp(&b.target));
    let must_write = bound.mounts.iter().flat_map(BoundMount::must_write).collect();
    let Bound { identity, posture, writable_trees, surveyed, layered, sent, warnings, .. } = bound;
    let StagedMounts { offers, expected, stage } = made;
    Staged {
        offers,
        expected,
        user,
        posture,
        writable_trees,
        surveyed,
        layered,
        sent,
        warnings,
        must_write,
        stage,
        identity,
    }
}

/// An engine creates a missing mount point as root, in whatever tree it is. In a tree of the host nothing may be
/// created.
pub fn refuse_to_create(bound: &Bound) -> Result<(), StageError> {
    let trees = || {
        bound.mounts.iter().filter_map(|mount| match &mount.kind {
            BoundKind::Tree(tree) => Some((&mount.target, &tree.layer.pinned.path)),
            _ => None,
        })
    };
    for mount in &bound.mounts {
        let above = trees()
            .filter(|(target, _)| mount.target.starts_with(target) && mount.target != **target)
            .max_by_key(|(target, _)| target.components().count());
        let Some((target, source)) = above else { continue };
        let relative = mount.target.strip_prefix(target).unwrap_or(Path::new("."));
        let root = rustix::fs::open(source, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| StageError::Look(source.clone(), error))?;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat2(&root, relative, flags, Mode::empty(), beneath)
            .map_err(|error| StageError::Missing(mount.target.clone(), source.clone(), error))?;
    }
    Ok(())
}

/// What the attestation must find where this is bound.
pub fn expect(source: &Path, target: &Path, read_only: bool) -> Result<ExpectedMount, StageError> {
    let stat = look(source)?;
    Ok(ExpectedMount {
        target: OsText::from(target),
        identity: Some((stat.st_dev, stat.st_ino)),
        fstype: None,
        read_only,
        // An engine binds without these; no-new-privileges and the missing right to make nodes hold.
        devices: true,
        suid: true,
    })
}

fn look(path: &Path) -> Result<Stat, StageError> {
    statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|error| StageError::Look(path.to_owned(), error))
}

fn in_place(bound: &Bound, files: &Path) -> Result<StagedMounts, StageError> {
    let mut made = StagedMounts::default();
    // gVisor connects to no socket of the host, and takes no cover over one.
    let covers_sockets = !bound.plan.oci_runtime.as_deref().is_some_and(belljar_spec::is_gvisor);
    let covers = Covers::make(files)?;
    for (number, mount) in bound.mounts.iter().enumerate() {
        match &mount.kind {
            BoundKind::Tree(tree) => made.name_tree(mount, tree, (&covers, covers_sockets))?,
            BoundKind::File { content } => {
                let path = files.join(number.to_string());
                fs::write(&path, content).map_err(|error| StageError::Make(path.clone(), error))?;
                made.name(&path, &mount.target, Access::ReadOnly)?;
            }
            _ => {}
        }
    }
    Ok(made)
}

/// What other things are covered with: an engine binds by path.
struct Covers {
    /// A directory.
    empty: PathBuf,
    /// A file that no one can open.
    closed: PathBuf,
}

impl Covers {
    fn make(files: &Path) -> Result<Self, StageError> {
        let (empty, closed) = (files.join("empty"), files.join("closed"));
        fs::create_dir_all(&empty).map_err(|error| StageError::Make(empty.clone(), error))?;
        let made = fs::OpenOptions::new().write(true).create_new(true).mode(0o000).open(&closed);
        made.map_err(|error| StageError::Make(closed.clone(), error))?;
        Ok(Self { empty, closed })
    }
}

impl StagedMounts {
    fn name(&mut self, source: &Path, target: &Path, access: Access) -> Result<(), StageError> {
        let read_only = access == Access::ReadOnly;
        self.expected.push(expect(source, target, read_only)?);
        self.offers.push(Offer {
            source: source.to_owned(),
            target: target.to_owned(),
            read_only,
            with_submounts: !read_only,
        });
        Ok(())
    }

    fn name_tree(
        &mut self,
        mount: &BoundMount,
        tree: &BoundTree,
        (covers, covers_sockets): (&Covers, bool),
    ) -> Result<(), StageError> {
        let (source, target) = (&tree.layer.pinned.path, &mount.target);
        self.name(source, target, tree.access)?;
        // A read-only bind of an older engine leaves submounts writable, so each is bound separately.
        for (relative, layer) in &tree.submounts {
            self.name(&layer.pinned.path, &target.join(relative), tree.access)?;
        }
        for (relative, access) in tree.mount_points() {
            let there = look(&source.join(&relative))?;
            if rustix::fs::FileType::from_raw_mode(there.st_mode).is_symlink() {
                return Err(StageError::Link(source.join(&relative), relative));
            }
            self.name(&source.join(&relative), &target.join(&relative), access)?;
        }
        for socket in tree.sockets.iter().filter(|_| covers_sockets) {
            self.name(Path::new("/dev/null"), &target.join(socket), Access::Writable)?;
        }
        for name in tree.layer.left_out.iter().filter(|name| !tree.hidden.contains(name)) {
            self.cover(covers, Path::new("/dev/null"), &source.join(name), &target.join(name))?;
        }
        for name in &tree.hidden {
            self.cover(covers, &covers.closed, &source.join(name), &target.join(name))?;
        }
        Ok(())
    }

    fn cover(
        &mut self,
        covers: &Covers,
        file: &Path,
        source: &Path,
        target: &Path,
    ) -> Result<(), StageError> {
        let Ok(there) = look(source) else { return Ok(()) };
        let is_directory = rustix::fs::FileType::from_raw_mode(there.st_mode).is_dir();
        let cover = if is_directory { &covers.empty } else { file };
        self.name(cover, target, Access::ReadOnly)
    }
}
