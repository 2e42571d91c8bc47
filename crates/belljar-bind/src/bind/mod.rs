//! Opens everything a plan names, once, and pins it: descriptors, devices, inodes, submounts, uids.
//!
//! After this no path of the operator's is looked up again, except that an ordinary user's sandbox
//! re-opens paths in its mount namespace, which is checked against what is pinned here.

mod hidden;
mod image_root;
mod layered;
mod seed;
mod sent;
mod sources;
mod tree;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use belljar_spec::{
    Access, Clause, Enforcement, HostIds, HostPaths, HostUid, LayeredTree, MountKind, OsText, Plan,
    Posture, SentTree, User,
};
use belljar_sys::mountinfo::MountTable;
use rustix::io::Errno;

pub use self::image_root::{ImageRoot, PinnedLayer};
pub use self::layered::{AnnouncedCopy, copies_ahead};
pub use self::seed::NOTE;

use self::sent::SENT_MODE;
use self::sources::{open_sources, owner_of, read_small};
use self::tree::Shape;
use crate::copy_tree::CopyError;
use crate::expand::{with_bundle_places, with_link_targets, with_root_entries};
use crate::file_clock::Arrival;
use crate::identity::{HostIdentity, IdentityError, Pair};
use crate::mounter::{Mounts, RootMounter, Writer};
use crate::resolve::{ResolveError, Resolved};
use crate::sensitive::SourceRefused;
use crate::shared_prefix::with_parts;
use crate::snapshot::SnapshotError;

/// In a layer's directory: what the run changed, and what overlayfs needs beside it.
pub const DATA: &str = "data";
pub const WORK: &str = "work";

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// A source that a flag or a key of the manifest names.
    #[error("{flag}: {error}")]
    Source { flag: &'static str, error: Box<BindError> },
    #[error(
        "{} does not exist, and belljar does not create it; create it first: mkdir -p {}",
        .path.display(), .path.display()
    )]
    MissingSource { path: PathBuf },
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error("{reason}; use another directory, or, to mount it all the same, --allow-source {}", .path.display())]
    Sensitive { path: PathBuf, reason: SourceRefused },
    #[error(transparent)]
    Never(SourceRefused),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("cannot clone the mount of {}", .path.display())]
    Clone {
        path: PathBuf,
        #[source]
        error: Errno,
    },
    #[error(
        "the file system of {} cannot show its files under another owner, and they belong to root; \
         give the tree to an ordinary user, or start belljar as one",
        .path.display()
    )]
    NotMappable { path: PathBuf },
    #[error("cannot read {}", .path.display())]
    Read {
        path: PathBuf,
        #[source]
        error: std::io::Error,
    },
    #[error("the image of this run is not held, so its layers cannot be used")]
    NoImage,
    #[error(
        "the file system of {} cannot show an image's files under other owners; set BELLJAR_HOME to a directory on \
         ext4, xfs, btrfs or tmpfs, or start belljar as an ordinary user",
        .path.display()
    )]
    ImageNotMappable { path: PathBuf },
    #[error(
        "the file system of {} cannot show its files under another owner, which a run from an image needs; use a tree on \
         ext4, xfs, btrfs or tmpfs, or start belljar as an ordinary user",
        .path.display()
    )]
    NotMappableWithImage { path: PathBuf },
    #[error("{} is a file, and only a directory can be an overlay; mount it ro or rw", .path.display())]
    LayeredFile { path: PathBuf },
    #[error(
        "{} has another file system mounted in it, at {}, and only root can have an overlay over both; \
         mount it ro, or name a directory without one",
        .path.display(), .point.display()
    )]
    LayeredSubmount { path: PathBuf, point: PathBuf },
    #[error(
        "{} has another file system mounted in it, at {}, and would have to be sent to another machine; \
         name a directory without one",
        .path.display(), .point.display()
    )]
    SentSubmount { path: PathBuf, point: PathBuf },
    #[error(
        "{} is a file, and only a directory can be sent to another machine; name the directory it is in",
        .path.display()
    )]
    SentFile { path: PathBuf },
    #[error("cannot make {}, the directory for an overlay's changes", .path.display())]
    Upper {
        path: PathBuf,
        #[source]
        error: Errno,
    },
    #[error(
        "cannot make an overlay over {}; the file system of {}, which stores its changes, must support overlayfs",
        .path.display(), .upper.display()
    )]
    Overlay {
        path: PathBuf,
        upper: PathBuf,
        #[source]
        error: Errno,
    },
    #[error(
        "{} must not change, but has {links} hard links, and the run could change it through another one; \
         break the links (cp -p FILE FILE.new && mv FILE.new FILE), or use an overlay workspace",
        .path.display()
    )]
    LinkedControl { path: PathBuf, links: u64 },
    #[error(
        "{} contains too many protected files to check all of them; use an overlay workspace",
        .path.display()
    )]
    TooManyCovered { path: PathBuf },
    #[error(transparent)]
    CopyTree(#[from] CopyError),
    #[error(
        "{} is a link, and a link in a tree that is mounted rw cannot be hidden; \
         mount the tree as overlay or ro, or hide the link's target",
        .path.display()
    )]
    HiddenLink { path: PathBuf },
    #[error("{} is hidden and {} is mounted; remove one of the two", .hidden.display(), .path.display())]
    HiddenSource { path: PathBuf, hidden: PathBuf },
    #[error("cannot restore the checkpoint")]
    Seed(#[source] SnapshotError),
    #[error(
        "the checkpoint stores the changes to {} in a format that this backend does not use, so it cannot \
         be resumed here; use the backend and the user of the first run",
        .path.display()
    )]
    SeedBacking { path: PathBuf },
    #[error(
        "the checkpoint has a copy of {}, made when {} was not hidden; start a new run",
        .path.display(), .hidden.display()
    )]
    SeedHidden { path: PathBuf, hidden: PathBuf },
}

impl BindError {
    /// Whether it is about what the run asks for, so that every backend would refuse it.
    pub fn is_of_the_run(&self) -> bool {
        if let Self::Source { error, .. } = self {
            return error.is_of_the_run();
        }
        matches!(
            self,
            Self::Resolve(_)
                | Self::MissingSource { .. }
                | Self::Sensitive { .. }
                | Self::Never(_)
                | Self::LayeredFile { .. }
                | Self::LinkedControl { .. }
                | Self::HiddenLink { .. }
                | Self::HiddenSource { .. }
        )
    }
}

/// Everything the sandbox is made of.
#[derive(Debug)]
pub struct Bound {
    pub plan: Plan,
    pub identity: HostIdentity,
    pub mounts: Vec<BoundMount>,
    pub run: String,
    /// The run's directory, in the home.
    pub directory: PathBuf,
    /// The plan's, with what binding found out.
    pub posture: Posture,
    /// Canonical paths of the trees that this run can write.
    pub writable_trees: Vec<PathBuf>,
    /// What was found in those that are directories.
    pub surveyed: Vec<SurveyedTree>,
    /// Trees that it can change while the real ones stay as they are.
    pub layered: Vec<LayeredTree>,
    /// Trees that are not mounted, and have to be sent over the channel.
    pub sent: Vec<SentTree>,
    /// What the operator should know before the run starts.
    pub warnings: Vec<String>,
}

#[derive(Debug)]
pub struct BoundMount {
    pub target: PathBuf,
    pub kind: BoundKind,
}

#[derive(Debug)]
pub enum BoundKind {
    Tree(Box<BoundTree>),
    /// The root itself.
    Image(Box<ImageRoot>),
    Tmpfs {
        size: u64,
        mode: u32,
    },
    File {
        content: Vec<u8>,
    },
    Symlink {
        to: PathBuf,
    },
    Proc {
        read_only: Vec<String>,
        masked: Vec<String>,
    },
    Dev {
        nodes: Vec<String>,
        shm_size: u64,
    },
}

#[derive(Debug)]
pub struct BoundTree {
    pub layer: Layer,
    pub is_directory: bool,
    pub access: Access,
    pub via: Via,
    /// Mounts of the host below the source, each pinned too. Only used separately from the tree itself
    /// where each needs a separate overlay.
    pub submounts: Vec<(PathBuf, Layer)>,
    /// Relative paths that stay read-only in a writable tree.
    pub shielded: Vec<PathBuf>,
    /// Relative paths of sockets that are covered.
    pub sockets: Vec<PathBuf>,
    /// Relative paths of what is not to be seen. Covered where they cannot be left out.
    pub hidden: Vec<PathBuf>,
    /// Relative places that the command must be able to write to, or something went wrong.
    pub must_write: Vec<PathBuf>,
}

impl BoundMount {
    /// Places of a tree that the command has to be able to write to.
    pub fn must_write(&self) -> Vec<OsText> {
        match &self.kind {
            BoundKind::Tree(tree) => {
                // Joined to nothing, a path would get a slash at its end.
                let at = |place: &PathBuf| match place.as_os_str().is_empty() {
                    true => self.target.clone(),
                    false => self.target.join(place),
                };
                tree.must_write.iter().map(|place| OsText::from(at(place))).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl BoundTree {
    /// Every directory between a tree's root and what is shielded or hidden in it has to be a mount point: else it
    /// could be renamed, and another put in its place, or what is hidden found by the new name in the next run.
    pub fn mount_points(&self) -> Vec<(PathBuf, Access)> {
        let above = |path: &'_ PathBuf| -> Vec<PathBuf> {
            let above = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
            above.map(Path::to_owned).collect()
        };
        let shielded: BTreeSet<&Path> = self.shielded.iter().map(PathBuf::as_path).collect();
        let hidden = self.hidden.iter().filter(|_| self.access == Access::Writable).flat_map(above);
        // What is read-only as a whole cannot be renamed in either.
        let hidden = hidden.filter(|path| !path.ancestors().any(|above| shielded.contains(above)));
        let writable = self.shielded.iter().flat_map(above).chain(hidden);
        let mut points: BTreeMap<PathBuf, Access> =
            writable.map(|path| (path, Access::Writable)).collect();
        points.extend(self.shielded.iter().map(|path| (path.clone(), Access::ReadOnly)));
        points.into_iter().collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    Bind,
    /// Read-only through overlayfs: a socket file does not answer there, and credentials can be left
    /// out.
    Overlay,
    /// The same, with a layer on top that holds the run's changes.
    Layered,
}

/// One mounted file system.
#[derive(Debug)]
pub struct Layer {
    pub pinned: Pinned,
    /// Names in it that are left out.
    pub left_out: Vec<PathBuf>,
    /// Only where the run's changes to it are stored.
    pub upper: Option<Upper>,
}

/// A file or directory of the host, with its identity.
#[derive(Debug)]
pub struct Pinned {
    pub path: PathBuf,
    pub device: u64,
    pub inode: u64,
    /// Root clones the tree here; an ordinary user's sandbox re-opens the path and compares.
    pub cloned: Option<OwnedFd>,
}

/// What holds the changes to a layer.
#[derive(Debug)]
pub struct Upper {
    pub number: u32,
    /// A directory with one for the changes and one for overlayfs in it.
    pub directory: Pinned,
    /// Root's launcher makes the whole overlay: a sandbox has not the right to.
    pub mounted: Option<OwnedFd>,
}

/// Binds a plan. `mounts`: by root where this process is root and can clone mounts.
pub fn bind(plan: &Plan, place: &HostPaths, mounts: Mounts) -> Result<Bound, BindError> {
    let arrived = Arrival::now();
    let table = MountTable::read()
        .map_err(|error| BindError::Read { path: "/proc/self/mountinfo".into(), error })?;
    let plan = &with_parts(plan, &place.homes);
    let plan = &with_bundle_places(&with_link_targets(&with_root_entries(plan)?));
    let opened = open_sources(plan, place)?;
    let identity = match plan.identity.host {
        HostUid::PerRun => HostIdentity::choose()?,
        HostUid::BlockPerRun => HostIdentity::choose_block(plan.identity.inside)?,
        HostUid::Caller => HostIdentity::caller(),
        HostUid::AsInside => HostIdentity::owner(plan.identity.inside.into()),
    };
    let mut binder = Binder {
        plan,
        place,
        table: &table,
        mounts,
        posture: plan.posture.clone(),
        writable: Vec::new(),
        surveyed: Vec::new(),
        hidden: hidden::resolve_all(plan, place)?,
        arrived,
        layered: Vec::new(),
        sent: Vec::new(),
        seeds_used: Cell::new(0),
        warnings: Vec::new(),
    };
    let (identity, mounts) = match binder.bind_mounts(&opened, &identity) {
        // A run from an image has all ids of a block, and they cannot become one.
        Err(BindError::Clone { path, error: Errno::INVAL | Errno::OPNOTSUPP | Errno::PERM })
            if identity.block.is_some() =>
        {
            return Err(BindError::NotMappableWithImage { path });
        }
        // One tree that cannot be shown under another owner decides for the whole run.
        Err(BindError::Clone { path, error: Errno::INVAL | Errno::OPNOTSUPP | Errno::PERM })
            if identity.init.is_some() =>
        {
            let owner = owner_of(&opened, &path).filter(|owner| owner.uid != 0);
            let identity =
                HostIdentity::owner(owner.ok_or(BindError::NotMappable { path: path.clone() })?);
            binder.posture.set(
                Clause::IdUnique,
                Enforcement::weaker(format!(
                    "the file system of {} cannot show other owners; the run has its owner's uid",
                    path.display()
                )),
            );
            let mounts = binder.bind_mounts(&opened, &identity)?;
            (identity, mounts)
        }
        bound => (identity, bound?),
    };
    let Binder { posture, mut writable, surveyed, layered, sent, warnings, .. } = binder;
    writable.sort();
    writable.dedup();
    let (run, directory) = (place.run.clone(), place.directory.clone());
    Ok(Bound {
        plan: plan.clone(),
        identity,
        mounts,
        run,
        directory,
        posture,
        writable_trees: writable,
        surveyed,
        layered,
        sent,
        warnings,
    })
}

/// The jail maps the plan's ids to the host's; an engine's container uses the host's ids.
pub fn user_inside(plan: &Plan, identity: &HostIdentity) -> User {
    match plan.backend.features().ids {
        HostIds::Mapped => plan.identity.inside,
        HostIds::Same => {
            let Pair { uid, gid } = identity.command;
            User { uid, gid }
        }
    }
}

/// A writable tree as it was before the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurveyedTree {
    pub path: PathBuf,
    /// Control files that were there, by their paths in the tree.
    pub control: Vec<PathBuf>,
    /// It was too large to check all of it.
    pub cut: bool,
}

/// Root's part of the work, where this process does it.
type Root = Option<Box<dyn RootMounter>>;

struct Binder<'a> {
    plan: &'a Plan,
    place: &'a HostPaths,
    table: &'a MountTable,
    mounts: Mounts,
    posture: Posture,
    writable: Vec<PathBuf>,
    surveyed: Vec<SurveyedTree>,
    /// Without links, as trees are.
    hidden: Vec<PathBuf>,
    arrived: Arrival,
    layered: Vec<LayeredTree>,
    sent: Vec<SentTree>,
    /// Layered trees that were given what they begin with.
    seeds_used: Cell<usize>,
    warnings: Vec<String>,
}

impl Binder<'_> {
    fn bind_mounts(
        &mut self,
        opened: &[Option<Resolved>],
        identity: &HostIdentity,
    ) -> Result<Vec<BoundMount>, BindError> {
        self.writable.clear();
        self.surveyed.clear();
        self.layered.clear();
        self.sent.clear();
        self.seeds_used.set(0);
        self.warnings.clear();
        let runtime = self.plan.oci_runtime.as_deref();
        let writer = if runtime.is_some_and(belljar_spec::is_gvisor) {
            Writer::RootFirst
        } else {
            Writer::Run
        };
        let mut root = match self.mounts {
            Mounts::ByRoot(mounter) => Some(mounter(identity.command, writer)),
            Mounts::ByPath => None,
        };
        let mut bound = Vec::with_capacity(opened.len());
        for (planned, source) in self.plan.mounts.iter().zip(opened) {
            let target = planned.target.as_path().to_owned();
            let kind = match &planned.what {
                MountKind::Bind { access, tree, .. } => match source {
                    Some(source) if *access == Access::Layered => {
                        let tree = self.bind_layered(source, &target, *tree, &mut root)?;
                        BoundKind::Tree(Box::new(tree))
                    }
                    Some(source) => match self.bind_tree(source, *access, *tree, &mut root)? {
                        Shape::Tree(tree) => BoundKind::Tree(tree),
                        Shape::Link(to) => BoundKind::Symlink { to },
                    },
                    None => continue,
                },
                MountKind::Copy { source } => match read_small(source.as_path())? {
                    Some(content) => BoundKind::File { content },
                    None => continue,
                },
                MountKind::RootImage { layers, .. } => {
                    BoundKind::Image(Box::new(self.bind_image(layers, identity, &mut root)?))
                }
                MountKind::RootDirectory { .. } => continue, // its entries took its place
                MountKind::Tmpfs { size, mode } => BoundKind::Tmpfs { size: *size, mode: *mode },
                MountKind::Sent { access, size, .. } => match source {
                    Some(source) => {
                        self.prepare_sent(source, &target, *access, *size)?;
                        BoundKind::Tmpfs { size: *size, mode: SENT_MODE }
                    }
                    None => continue,
                },
                MountKind::File { content } => {
                    BoundKind::File { content: content.clone().into_bytes() }
                }
                MountKind::Accounts { file } => {
                    let user = user_inside(self.plan, identity);
                    let content = file.content(user, self.plan.shell_or_plain());
                    BoundKind::File { content: content.into_bytes() }
                }
                MountKind::Symlink { to } => BoundKind::Symlink { to: to.as_path().to_owned() },
                MountKind::Proc { read_only, masked } => {
                    // Kernels differ in what they have; the same kernel serves inside.
                    let there = |paths: &[String]| {
                        paths.iter().filter(|path| Path::new(path).exists()).cloned().collect()
                    };
                    BoundKind::Proc { read_only: there(read_only), masked: there(masked) }
                }
                MountKind::Dev { nodes, shm_size } => {
                    BoundKind::Dev { nodes: nodes.clone(), shm_size: *shm_size }
                }
            };
            bound.push(BoundMount { target, kind });
        }
        if let Some(root) = &mut root {
            root.mount_overlays(layered::cloned_layers(&mut bound))?;
        }
        Ok(bound)
    }
}
