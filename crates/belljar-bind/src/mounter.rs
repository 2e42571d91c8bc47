//! What root does with mounts while a plan is bound. An ordinary user has the sandbox or the engine do it, by path.

use std::fmt::Debug;
use std::os::fd::OwnedFd;

use belljar_spec::Access;
use rustix::io::Errno;

use crate::bind::{BindError, Layer};
use crate::identity::Pair;
use crate::resolve::Resolved;

/// Who mounts the trees of a sandbox.
#[derive(Clone, Copy, Debug)]
pub enum Mounts {
    /// This process, as root: each tree is cloned with its final owner and attributes.
    ByRoot(fn(Pair, Writer) -> Box<dyn RootMounter>),
    /// The sandbox or the engine, from the paths of the trees.
    ByPath,
}

impl Mounts {
    pub(crate) fn are_by_root(self) -> bool {
        match self {
            Self::ByRoot(_) => true,
            Self::ByPath => false,
        }
    }
}

/// Root's part of a bind, for a run with certain ids.
pub trait RootMounter: Debug {
    /// A clone of a source with its final attributes, in which the files of one owner are the run's.
    fn clone_tree(&mut self, source: &Resolved, clone: TreeClone) -> Result<OwnedFd, BindError>;

    /// Makes the overlays of these layers, which were cloned.
    fn mount_overlays(&mut self, layers: Vec<&mut Layer>) -> Result<(), BindError>;

    /// Looks at files with the rights of another user.
    fn look_as(&mut self, user: Pair, look: &mut dyn FnMut()) -> Result<(), Errno>;
}

/// How a tree is cloned.
#[derive(Clone, Copy, Debug)]
pub struct TreeClone {
    pub access: Access,
    pub depth: Depth,
    pub owners: ShownOwners,
}

/// Whom the files of a cloned tree belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownOwners {
    /// Their owners on disk.
    OnDisk,
    /// Files of this owner are the run's, all others nobody's.
    RunFor(Pair),
    /// The ids of the run's block that begins here: 0 on disk is the first, and so on.
    Block(u32),
}

/// Which mounts of a tree are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    ThisMount,
    WithSubmounts,
}

/// Which processes make files through a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// The run's processes.
    Run,
    /// A process of root's, which then gives them to the run's user: gVisor's.
    RootFirst,
}
