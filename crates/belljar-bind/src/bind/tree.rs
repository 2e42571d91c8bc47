//! Binds one tree of the host: pins it, clones it with its final owner where root does it, and covers files in it.

use std::path::{Path, PathBuf};

use belljar_spec::{Access, Clause, Enforcement, MountKind, OsText, PlannedMount, Source, Tree};
use rustix::fs::FileType;
use rustix::io::Errno;

use super::hidden::leave_out;
use super::{BindError, Binder, BoundTree, Layer, Pinned, Root, SurveyedTree, Via};
use crate::control::protected;
use crate::identity::Pair;
use crate::linked::other_names;
use crate::mounter::{Depth, ShownOwners, TreeClone};
use crate::resolve::{Resolved, file_type, resolve};
use crate::sensitive::TOOL_CREDENTIALS;

impl Binder<'_> {
    pub(super) fn bind_tree(
        &mut self,
        source: &Resolved,
        access: Access,
        tree: Tree,
        root: &mut Root,
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
        let as_root = self.mounts.are_by_root();
        if through_overlay && !as_root && !below.is_empty() {
            // Mounts of the host are locked together in an ordinary user's namespace: overlayfs
            // cannot take the tree without them, and would not show them.
            self.posture.set(
                Clause::FsSockets,
                Enforcement::weaker(format!(
                    "{} has other file systems mounted in it, which an ordinary user can only bind whole",
                    source.path.display()
                ))
                .with_fix("mount the parts separately, or run as root"),
            );
        }
        let via =
            if through_overlay && (as_root || below.is_empty()) { Via::Overlay } else { Via::Bind };
        let depth = if via == Via::Overlay { Depth::ThisMount } else { Depth::WithSubmounts };
        let mut layer = self.layer(source, access, tree, depth, root)?;
        if tree == Tree::Tool {
            layer.left_out = TOOL_CREDENTIALS.iter().map(PathBuf::from).collect();
        }
        let hidden = self.hidden_in(source, via)?;
        let mut submounts = Vec::new();
        for point in below {
            let opened = resolve(&point, &[])?;
            let relative = point.strip_prefix(&source.path).unwrap_or(Path::new("")).to_owned();
            // In a whole bind the submounts come along; they are pinned for the comparison only.
            let layer = match via {
                // A submount of a type that cannot be mapped shows the owners on disk.
                Via::Overlay | Via::Layered => match self.layer(&opened, access, tree, depth, root)
                {
                    Err(BindError::Clone {
                        error: Errno::INVAL | Errno::OPNOTSUPP | Errno::PERM,
                        ..
                    }) => self.layer(&opened, access, Tree::System, depth, root)?,
                    layer => layer?,
                },
                Via::Bind => plain(pinned(&opened)),
            };
            submounts.push((relative, layer));
        }
        if file_type(&source.stat) == FileType::Socket {
            self.posture.set(
                Clause::FsSockets,
                Enforcement::weaker(format!("{} was given by name", source.path.display())),
            );
        }
        leave_out(&hidden, via, &mut layer, &mut submounts);
        let (mut shielded, mut sockets) = (Vec::new(), Vec::new());
        if via == Via::Bind {
            // Without overlayfs a name cannot be left out; its file is covered.
            let there = layer.left_out.iter().filter(|name| source.path.join(name).exists());
            sockets.extend(there.cloned());
        }
        if access == Access::Writable && matches!(tree, Tree::User) {
            self.writable.push(source.path.clone());
            shielded = self.shielded_in(&source.path);
            if source.is_directory() {
                let protected = protected(&source.path, &self.plan.allow_control, self.place)?;
                // What is shielded was there too, and is not reported as new.
                let control = [protected.control, shielded.clone()].concat();
                shielded.extend(protected.paths);
                self.surveyed.push(SurveyedTree {
                    path: source.path.clone(),
                    control,
                    cut: protected.cut,
                });
                if protected.cut {
                    self.warnings.push(format!(
                        "{} is too large to be looked at as a whole: control files deep in it \
                         can be written; use an overlay workspace",
                        source.path.display()
                    ));
                }
            }
            // What is in a directory that is read-only as a whole needs no separate cover.
            shielded.sort();
            shielded.dedup_by(|path, above| path.starts_with(above));
            if source.is_directory() {
                shielded.extend(other_names(&source.path, &shielded, &self.writable_sources())?);
                shielded.sort();
            }
            sockets = live_sockets_below(source, root)?;
        }
        Ok(Shape::Tree(Box::new(BoundTree {
            layer,
            is_directory: source.is_directory(),
            access,
            via,
            submounts,
            shielded,
            sockets,
            hidden,
            must_write: Vec::new(),
        })))
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
        let is_target = self.plan.mounts.iter().any(|mount| mount.target.as_path() == source.path);
        (tree == Tree::System && !is_target && others.any(|other| source.path.starts_with(other)))
            .then(|| source.path.clone())
    }

    /// Pins a source and, as root, clones it with its final attributes and owner.
    pub(super) fn layer(
        &self,
        source: &Resolved,
        access: Access,
        tree: Tree,
        depth: Depth,
        root: &mut Root,
    ) -> Result<Layer, BindError> {
        let Some(root) = root else { return Ok(plain(pinned(source))) };
        let owner = Pair { uid: source.stat.st_uid, gid: source.stat.st_gid };
        let owners = match tree {
            Tree::System => ShownOwners::OnDisk,
            Tree::User | Tree::Tool | Tree::Own => ShownOwners::RunFor(owner),
        };
        let cloned = root.clone_tree(source, TreeClone { access, depth, owners })?;
        Ok(plain(Pinned { cloned: Some(cloned), ..pinned(source) }))
    }

    /// The trees of people that the run may write, without links.
    fn writable_sources(&self) -> Vec<PathBuf> {
        let written = |mount: &PlannedMount| match &mount.what {
            MountKind::Bind {
                source: Source::Path { path },
                access: Access::Writable,
                tree: Tree::User,
                ..
            } => std::fs::canonicalize(path.as_path()).ok(),
            _ => None,
        };
        self.plan.mounts.iter().filter_map(written).collect()
    }

    /// Belljar's program and the manifest: a run that could change them would decide about the
    /// next run.
    fn shielded_in(&self, tree: &Path) -> Vec<PathBuf> {
        let manifest = self.plan.shielded.iter().map(OsText::as_path);
        // The whole directory, or where that is the tree's root the file.
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

pub(super) enum Shape {
    Tree(Box<BoundTree>),
    Link(PathBuf),
}

pub(super) fn pinned(source: &Resolved) -> Pinned {
    Pinned {
        path: source.path.clone(),
        device: source.stat.st_dev,
        inode: source.stat.st_ino,
        cloned: None,
    }
}

pub(super) fn plain(pinned: Pinned) -> Layer {
    Layer { pinned, left_out: Vec::new(), upper: None }
}

/// Socket files below a tree that have a listener, as far as the kernel reports them. One that the run cannot reach
/// needs no cover, and could not be covered.
fn live_sockets_below(source: &Resolved, root: &mut Root) -> Result<Vec<PathBuf>, BindError> {
    let tree = &source.path;
    let table = belljar_sys::kernel_file::read("/proc/net/unix").unwrap_or_default();
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
    let Some(root) = root.as_mut().filter(|_| !found.is_empty()) else {
        found.retain(|socket| is_socket(&tree.join(socket)));
        return Ok(found);
    };
    // Whatever uid the run has, in this tree it has the rights of the tree's owner.
    let failed = |error: Errno| BindError::Read { path: tree.clone(), error: error.into() };
    let owner = Pair { uid: source.stat.st_uid, gid: source.stat.st_gid };
    root.look_as(owner, &mut || found.retain(|socket| is_socket(&tree.join(socket))))
        .map_err(failed)?;
    Ok(found)
}

/// Not one with a name that is gone or refers to another file by now.
fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path)
        .is_ok_and(|meta| std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type()))
}
