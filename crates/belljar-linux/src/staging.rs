//! Prepares trees of the host for an engine that binds them by path.
//!
//! Root mounts each in a directory that no other user can change, as the jail would: with its
//! final owner, read-only with everything below, through overlayfs where sockets must not answer. The
//! engine then binds that. An ordinary user can only name the paths; the mounts that the engine made are
//! compared by device and inode.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use belljar_spec::{Access, ExpectedMount, LayeredTree, OsText, Posture, SentTree, User};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Stat, openat2, statat};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::jail::bind::{BoundKind, BoundMount, BoundTree, user_inside};
use crate::jail::expectation::must_write;
use crate::jail::identity::HostIdentity;
use crate::jail::root::{Root, RootError, mount_points_for};
use crate::jail::{self};
use crate::mountinfo::MountTable;

/// Root's alone, and in the list of what no run is ever given.
pub const STAGING_ROOT: &str = "/run/belljar/mounts";

#[derive(Debug, thiserror::Error)]
pub enum StageError {
    #[error("cannot make {}", .0.display())]
    Make(PathBuf, #[source] io::Error),
    #[error("cannot mount what the engine is to bind")]
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
    pub surveyed: Vec<jail::SurveyedTree>,
    pub layered: Vec<LayeredTree>,
    /// What has to be sent over the channel.
    pub sent: Vec<SentTree>,
    pub warnings: Vec<String>,
    /// Places that the command must be able to write to, or something went wrong.
    pub must_write: Vec<OsText>,
    /// `None` where the sources are named as they are.
    stage: Option<StagingMount>,
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
#[derive(Debug)]
struct StagingMount(PathBuf);

impl StagingMount {
    fn unmount(self) -> io::Result<()> {
        let path = self.0.clone();
        std::mem::forget(self);
        remove_mounts(&path)
    }
}

impl Drop for StagingMount {
    fn drop(&mut self) {
        let _ = remove_mounts(&self.0); // what is left is in reconcile's list
    }
}

/// Removes what a dead launcher left of a run's staging mounts. If there is nothing, that is a success.
pub fn unstage(run: &str) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(()); // never had one, and may not look
    }
    remove_mounts(&Path::new(STAGING_ROOT).join(run))
}

fn remove_mounts(path: &Path) -> io::Result<()> {
    match unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        // Not mounted any more, or never was.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Where files for the run are put: for root into the staging mount, for others into this directory.
pub fn stage(bound: jail::Bound, run: &str, files: &Path) -> Result<Staged, StageError> {
    refuse_to_create(&bound)?;
    let user = user_inside(&bound.plan, &bound.identity);
    let as_root = rustix::process::geteuid().is_root();
    let mut made = if as_root { on_stage(&bound, run)? } else { in_place(&bound, files)? };
    // Parents first: an engine binds in the given order.
    made.offers.sort_by(|a, b| a.target.cmp(&b.target));
    let must_write = bound.mounts.iter().flat_map(must_write).collect();
    let jail::Bound {
        identity, posture, writable_trees, surveyed, layered, sent, warnings, ..
    } = bound;
    let StagedMounts { offers, expected, stage } = made;
    Ok(Staged {
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
    })
}

/// For an engine on another machine, which mounts nothing of this one: trees are sent.
pub fn nothing(bound: jail::Bound) -> Staged {
    let user = user_inside(&bound.plan, &bound.identity);
    let jail::Bound {
        identity, posture, writable_trees, surveyed, layered, sent, warnings, ..
    } = bound;
    let (offers, expected, must_write) = (Vec::new(), Vec::new(), Vec::new());
    let stage = None;
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
fn refuse_to_create(bound: &jail::Bound) -> Result<(), StageError> {
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

struct StagedMounts {
    offers: Vec<Offer>,
    expected: Vec<ExpectedMount>,
    stage: Option<StagingMount>,
}

fn on_stage(bound: &jail::Bound, run: &str) -> Result<StagedMounts, StageError> {
    let path = Path::new(STAGING_ROOT).join(run);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&path)
        .map_err(|error| StageError::Make(path.clone(), error))?;
    let stage = StagingMount(path.clone());
    let failed = |error: RootError| StageError::Mount(Box::new(error));
    let root = Root::at(&path, "0711").map_err(failed)?;
    let (mut offers, mut expected) = (Vec::new(), Vec::new());
    for (number, mount) in bound.mounts.iter().enumerate() {
        let name = number.to_string();
        let read_only = match &mount.kind {
            BoundKind::Tree(tree) => {
                root.add_tree(&Path::new("/").join(&name), tree).map_err(failed)?;
                tree.access == Access::ReadOnly
            }
            BoundKind::File { content } => {
                root.add_file(&Path::new("/").join(&name), content).map_err(failed)?;
                true
            }
            _ => continue, // the engine makes it
        };
        let source = path.join(&name);
        offers.push(Offer {
            source: source.clone(),
            target: mount.target.clone(),
            read_only,
            with_submounts: true,
        });
        expected.extend(seen_below(&source, &mount.target, read_only)?);
    }
    Ok(StagedMounts { offers, expected, stage: Some(stage) })
}

/// The tree and every mount in it, as they are now.
fn seen_below(
    source: &Path,
    target: &Path,
    read_only: bool,
) -> Result<Vec<ExpectedMount>, StageError> {
    let table = MountTable::read()
        .map_err(|error| StageError::Make(PathBuf::from("/proc/self/mountinfo"), error))?;
    let mut all = vec![expect(source, target, read_only)?];
    for point in table.below(source) {
        let relative = point.strip_prefix(source).unwrap_or(Path::new(""));
        let options = table.0.iter().rfind(|line| line.mount_point == point).map(|l| &l.options);
        let is_read_only =
            options.is_some_and(|options| options.split(',').any(|option| option == "ro"));
        let mut below = expect(&point, &target.join(relative), is_read_only)?;
        below.devices = true; // a covered socket is a device
        all.push(below);
    }
    Ok(all)
}

fn expect(source: &Path, target: &Path, read_only: bool) -> Result<ExpectedMount, StageError> {
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

fn in_place(bound: &jail::Bound, files: &Path) -> Result<StagedMounts, StageError> {
    let mut made = StagedMounts { offers: Vec::new(), expected: Vec::new(), stage: None };
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
        for (relative, access) in mount_points_for(tree) {
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
