//! Opens everything a plan names, once, and pins it: descriptors, devices, inodes, submounts, uids.
//!
//! After this no path of the operator's is looked up again, but for the re-opening that an ordinary
//! user's sandbox has to do in its own mount namespace, which is checked against what is pinned here.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use belljar_spec::egress::TRUST_BUNDLE;
use belljar_spec::{
    Access, BackendName, Clause, Enforcement, Expectation, HostUid, MountKind, OsText, Place, Plan,
    PlannedMount, Posture, Presence, Source, Tree, User,
};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};

use super::expand::{with_bundle_places, with_link_targets, with_root_entries};
use super::expectation::expectation;
use super::identity::{HostIdentity, IdentityError, Pair};
use super::idmap::{IdMaps, Writer};
use super::resolve::{ResolveError, Resolved, file_type, resolve};
use super::sensitive::{OwnPlaces, SourceRefused, TOOL_CREDENTIALS, check as check_source};
use crate::mountinfo::MountTable;
use crate::sys::mount::{Depth, MountAttr, set_attributes, set_id_map};

/// The uid that PID 1 has inside, where it has one of its own.
pub(crate) const INIT_UID: u32 = 999;

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error("{reason}; if that is meant, say --allow-source {}", .path.display())]
    Sensitive { path: PathBuf, reason: SourceRefused },
    #[error(transparent)]
    Never(SourceRefused),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("cannot take hold of {}", .path.display())]
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
    #[error("overlay mounts are not part of this version; {target} can be ro or rw")]
    Overlay { target: OsText },
}

/// Everything the sandbox is made of.
#[derive(Debug)]
pub struct Bound {
    pub(crate) plan: Plan,
    pub(crate) identity: HostIdentity,
    pub(crate) mounts: Vec<BoundMount>,
    pub(crate) run: String,
    pub expectation: Expectation,
    /// The plan's, with what binding found out.
    pub posture: Posture,
    /// Canonical paths of the trees that this run can write.
    pub writable_trees: Vec<PathBuf>,
}

#[derive(Debug)]
pub(crate) struct BoundMount {
    pub(crate) target: PathBuf,
    pub(crate) kind: BoundKind,
}

#[derive(Debug)]
pub(crate) enum BoundKind {
    Tree(BoundTree),
    Tmpfs { size: u64, mode: u32 },
    File { content: Vec<u8> },
    Symlink { to: PathBuf },
    Proc { read_only: Vec<String>, masked: Vec<String> },
    Dev { nodes: Vec<String>, shm_size: u64 },
}

#[derive(Debug)]
pub(crate) struct BoundTree {
    pub(crate) layer: Layer,
    pub(crate) is_directory: bool,
    pub(crate) access: Access,
    pub(crate) via: Via,
    /// Mounts of the host below the source, each pinned too. Only used apart from the tree itself
    /// where each needs an overlay of its own.
    pub(crate) submounts: Vec<(PathBuf, Layer)>,
    /// Relative paths that stay read-only in a writable tree.
    pub(crate) shielded: Vec<PathBuf>,
    /// Relative paths of sockets that are covered.
    pub(crate) sockets: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    Bind,
    /// Read-only through overlayfs: a socket file does not answer there, and credentials can be left
    /// out.
    Overlay,
}

/// One mounted file system, pinned.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) path: PathBuf,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// Root clones the tree here; an ordinary user's sandbox re-opens the path and compares.
    pub(crate) cloned: Option<OwnedFd>,
    /// Names in the layer's root that are left out.
    pub(crate) left_out: Vec<PathBuf>,
}

pub fn bind(plan: &Plan, place: &Place) -> Result<Bound, BindError> {
    let table = MountTable::read()
        .map_err(|error| BindError::Read { path: "/proc/self/mountinfo".into(), error })?;
    let plan = &with_bundle_places(&with_link_targets(&with_root_entries(plan)?));
    let opened = open_sources(plan, place)?;
    let identity = match plan.identity.host {
        HostUid::PerRun => HostIdentity::choose()?,
        HostUid::Caller => HostIdentity::caller(),
        HostUid::AsInside => HostIdentity::owner(plan.identity.inside.into()),
    };
    let mut binder =
        Binder { plan, place, table: &table, posture: plan.posture.clone(), writable: Vec::new() };
    let (identity, mounts) = match binder.bind_mounts(&opened, &identity) {
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
    let Binder { posture, mut writable, .. } = binder;
    writable.sort();
    writable.dedup();
    let expectation = expectation(plan, &identity, &mounts);
    let run = place.run.clone();
    Ok(Bound {
        plan: plan.clone(),
        identity,
        mounts,
        run,
        expectation,
        posture,
        writable_trees: writable,
    })
}

/// The jail maps the plan's ids to the host's; an engine's container has the host's own.
pub(crate) fn user_inside(plan: &Plan, identity: &HostIdentity) -> User {
    match plan.backend {
        BackendName::Jail | BackendName::Host => plan.identity.inside,
        BackendName::Docker | BackendName::Podman => {
            let Pair { uid, gid } = identity.command;
            User { uid, gid }
        }
    }
}

/// Every source of the plan, opened; `None` where nothing of the host is needed or it may be missing.
fn open_sources(plan: &Plan, place: &Place) -> Result<Vec<Option<Resolved>>, BindError> {
    let own = OwnPlaces::of(&place.own);
    plan.mounts.iter().map(|mount| open_source(mount, plan, place, &own)).collect()
}

fn open_source(
    mount: &PlannedMount,
    plan: &Plan,
    place: &Place,
    own: &OwnPlaces,
) -> Result<Option<Resolved>, BindError> {
    let MountKind::Bind { source, access, presence, tree } = &mount.what else { return Ok(None) };
    let path = match source {
        Source::Path { path } => path.as_path(),
        Source::RunHome => return Ok(Some(resolve(&place.home, &[])?)),
        Source::RunTrust => return Ok(Some(resolve(&place.directory.join("trust"), &[])?)),
        Source::RunTrustBundle => {
            let bundle = place.directory.join("trust").join(TRUST_BUNDLE);
            return Ok(Some(resolve(&bundle, &[])?));
        }
    };
    // A system directory may be a link, and no run can have planted it.
    let wary_of: &[PathBuf] = if *tree == Tree::System { &[] } else { &place.run_writable };
    let opened = match resolve(path, wary_of) {
        Err(ResolveError::Missing { .. }) if *presence == Presence::IfPresent => return Ok(None),
        opened => opened?,
    };
    if *tree == Tree::System {
        return Ok(Some(opened));
    }
    own.check(&opened).map_err(BindError::Never)?;
    if let Err(reason) = check_source(&opened, &place.homes, *access == Access::Writable) {
        let allowed = plan
            .allow_source
            .iter()
            .any(|allowed| allowed.as_path() == path || allowed.as_path() == opened.path);
        if !reason.can_be_allowed() {
            return Err(BindError::Never(reason));
        }
        if !allowed {
            return Err(BindError::Sensitive { path: path.to_owned(), reason });
        }
    }
    Ok(Some(opened))
}

fn owner_of(opened: &[Option<Resolved>], path: &Path) -> Option<Pair> {
    let source = opened.iter().flatten().find(|source| source.path == path)?;
    Some(Pair { uid: source.stat.st_uid, gid: source.stat.st_gid })
}

struct Binder<'a> {
    plan: &'a Plan,
    place: &'a Place,
    table: &'a MountTable,
    posture: Posture,
    writable: Vec<PathBuf>,
}

impl Binder<'_> {
    fn bind_mounts(
        &mut self,
        opened: &[Option<Resolved>],
        identity: &HostIdentity,
    ) -> Result<Vec<BoundMount>, BindError> {
        self.writable.clear();
        let runtime = self.plan.oci_runtime.as_deref();
        let writer = if runtime.is_some_and(belljar_spec::is_gvisor) {
            Writer::RootFirst
        } else {
            Writer::Run
        };
        let mut maps = IdMaps::new(identity.command, writer);
        let mut bound = Vec::with_capacity(opened.len());
        for (planned, source) in self.plan.mounts.iter().zip(opened) {
            let target = planned.target.as_path().to_owned();
            let kind = match &planned.what {
                MountKind::Bind { access, tree, .. } => match source {
                    Some(source) => match self.bind_tree(source, *access, *tree, &mut maps)? {
                        Shape::Tree(tree) => BoundKind::Tree(tree),
                        Shape::Link(to) => BoundKind::Symlink { to },
                    },
                    None => continue,
                },
                MountKind::Copy { source } => match read_small(source.as_path())? {
                    Some(content) => BoundKind::File { content },
                    None => continue,
                },
                MountKind::RootDirectory { .. } => continue, // its entries took its place
                MountKind::Tmpfs { size, mode } => BoundKind::Tmpfs { size: *size, mode: *mode },
                MountKind::File { content } => {
                    BoundKind::File { content: content.clone().into_bytes() }
                }
                MountKind::Accounts { file } => {
                    let user = user_inside(self.plan, identity);
                    BoundKind::File { content: file.content(user).into_bytes() }
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
        Ok(bound)
    }

    fn bind_tree(
        &mut self,
        source: &Resolved,
        access: Access,
        tree: Tree,
        maps: &mut IdMaps,
    ) -> Result<Shape, BindError> {
        // On most systems /bin and /lib are links into /usr, which is mounted already.
        if tree == Tree::System
            && let Some(to) = self.link_into_another(source, tree)
        {
            return Ok(Shape::Link(to));
        }
        let through_overlay = access == Access::ReadOnly
            && matches!(tree, Tree::User | Tree::Tool)
            && source.is_directory();
        let below = self.table.below(&source.path);
        let as_root = rustix::process::geteuid().is_root();
        if through_overlay && !as_root && !below.is_empty() {
            // Mounts of the host are locked together in an ordinary user's namespace: overlayfs
            // cannot take the tree without them, and would not show them.
            self.posture.set(
                Clause::FsSockets,
                Enforcement::weaker(format!(
                    "{} has other file systems mounted in it, which an ordinary user can only bind whole",
                    source.path.display()
                ))
                .with_fix("mount the parts apart, or run as root"),
            );
        }
        let via =
            if through_overlay && (as_root || below.is_empty()) { Via::Overlay } else { Via::Bind };
        let depth = if via == Via::Overlay { Depth::ThisMount } else { Depth::WithSubmounts };
        let mut layer = self.layer(source, access, tree, depth, maps)?;
        if tree == Tree::Tool {
            layer.left_out = TOOL_CREDENTIALS.iter().map(PathBuf::from).collect();
        }
        let mut submounts = Vec::new();
        for point in below {
            let opened = resolve(&point, &[])?;
            let relative = point.strip_prefix(&source.path).unwrap_or(Path::new("")).to_owned();
            // In a whole bind the submounts come along; they are pinned for the comparison only.
            let layer = match via {
                // One of a type that cannot be mapped shows its own owners.
                Via::Overlay => match self.layer(&opened, access, tree, depth, maps) {
                    Err(BindError::Clone {
                        error: Errno::INVAL | Errno::OPNOTSUPP | Errno::PERM,
                        ..
                    }) => self.layer(&opened, access, Tree::System, depth, maps)?,
                    layer => layer?,
                },
                Via::Bind => pinned(&opened),
            };
            submounts.push((relative, layer));
        }
        if file_type(&source.stat) == FileType::Socket {
            self.posture.set(
                Clause::FsSockets,
                Enforcement::weaker(format!("{} was given by name", source.path.display())),
            );
        }
        let (mut shielded, mut sockets) = (Vec::new(), Vec::new());
        if via == Via::Bind {
            // Without overlayfs a name cannot be left out; what it stands for is covered.
            let there = layer.left_out.iter().filter(|name| source.path.join(name).exists());
            sockets.extend(there.cloned());
        }
        if access == Access::Writable && matches!(tree, Tree::User) {
            self.writable.push(source.path.clone());
            shielded = self.shielded_in(&source.path);
            shielded.extend(super::privileged::files_below(&source.path));
            sockets = live_sockets_below(&source.path);
        }
        Ok(Shape::Tree(BoundTree {
            layer,
            is_directory: source.is_directory(),
            access,
            via,
            submounts,
            shielded,
            sockets,
        }))
    }

    /// A system directory that is a link to, or into, another one that the plan binds.
    fn link_into_another(&self, source: &Resolved, tree: Tree) -> Option<PathBuf> {
        let bound_as_itself = |mount: &PlannedMount| match &mount.what {
            MountKind::Bind { source: Source::Path { path }, tree: Tree::System, .. } => {
                path == &mount.target
            }
            _ => false,
        };
        let planned = self.plan.mounts.iter().filter(|mount| bound_as_itself(mount));
        let mut others = planned.map(|mount| mount.target.as_path());
        let own_target = self.plan.mounts.iter().any(|mount| mount.target.as_path() == source.path);
        (tree == Tree::System && !own_target && others.any(|other| source.path.starts_with(other)))
            .then(|| source.path.clone())
    }

    /// Pins a source and, as root, clones it with its final attributes and owner.
    fn layer(
        &self,
        source: &Resolved,
        access: Access,
        tree: Tree,
        depth: Depth,
        maps: &mut IdMaps,
    ) -> Result<Layer, BindError> {
        let mut layer = pinned(source);
        if !rustix::process::geteuid().is_root() {
            return Ok(layer);
        }
        let failed = |error| BindError::Clone { path: source.path.clone(), error };
        let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        if depth == Depth::WithSubmounts {
            flags |= OpenTreeFlags::AT_RECURSIVE;
        }
        let cloned = open_tree(&source.fd, "", flags).map_err(failed)?;
        set_attributes(cloned.as_fd(), attributes(access), depth).map_err(failed)?;
        let owner = Pair { uid: source.stat.st_uid, gid: source.stat.st_gid };
        if tree != Tree::System && owner != maps.run() {
            let map = maps
                .showing(owner)
                .map_err(|error| BindError::Read { path: source.path.clone(), error })?;
            // A submount may be of a type that cannot be mapped: it then shows its own owners.
            set_id_map(cloned.as_fd(), map.as_fd(), Depth::ThisMount).map_err(failed)?;
        }
        layer.cloned = Some(cloned);
        Ok(layer)
    }

    /// Belljar's own program and the manifest: a run that could change them would decide about the
    /// next run.
    fn shielded_in(&self, tree: &Path) -> Vec<PathBuf> {
        let manifest = self.plan.shielded.iter().map(OsText::as_path);
        // The whole directory, or where that is the tree's own root the file.
        let executable = self.place.executable.iter().filter_map(|file| match file.parent() {
            Some(directory) if directory == tree => Some(file.as_path()),
            directory => directory,
        });
        manifest
            .chain(executable)
            .filter_map(|path| path.strip_prefix(tree).ok())
            .filter(|relative| !relative.as_os_str().is_empty() && tree.join(relative).exists())
            .map(Path::to_owned)
            .collect()
    }
}

enum Shape {
    Tree(BoundTree),
    Link(PathBuf),
}

pub(crate) fn attributes(access: Access) -> MountAttr {
    let always = MountAttr::NO_SUID | MountAttr::NO_DEV;
    match access {
        Access::ReadOnly => always | MountAttr::READ_ONLY,
        Access::Writable => always,
    }
}

fn pinned(source: &Resolved) -> Layer {
    Layer {
        path: source.path.clone(),
        device: source.stat.st_dev,
        inode: source.stat.st_ino,
        cloned: None,
        left_out: Vec::new(),
    }
}

/// Files of `/etc` are small; a large one is not what it should be.
fn read_small(path: &Path) -> Result<Option<Vec<u8>>, BindError> {
    const MOST: u64 = 256 * 1024;
    let file = match rustix::fs::openat(
        CWD,
        path,
        OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK,
        Mode::empty(),
    ) {
        Ok(fd) => std::fs::File::from(fd),
        Err(Errno::NOENT | Errno::ACCESS | Errno::NOTDIR) => return Ok(None),
        Err(error) => return Err(BindError::Read { path: path.to_owned(), error: error.into() }),
    };
    let mut content = Vec::new();
    let read = std::io::Read::read_to_end(&mut std::io::Read::take(file, MOST), &mut content);
    match read {
        Ok(_) => Ok(Some(content)),
        Err(error) => Err(BindError::Read { path: path.to_owned(), error }),
    }
}

/// Socket files below a tree that somebody listens on, as far as the kernel names them.
fn live_sockets_below(tree: &Path) -> Vec<PathBuf> {
    let table = std::fs::read("/proc/net/unix").unwrap_or_default();
    let mut found: Vec<PathBuf> = table
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.iter().position(|byte| *byte == b'/').map(|at| &line[at..]))
        .map(|path| {
            PathBuf::from(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(path))
        })
        .filter_map(|path| path.strip_prefix(tree).ok().map(Path::to_owned))
        .collect();
    found.sort();
    found.dedup();
    found
}
