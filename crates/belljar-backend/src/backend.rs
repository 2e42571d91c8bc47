//! The `Backend` trait, and the types that pass between a backend and the launcher.

use std::any::Any;
use std::path::PathBuf;

use belljar_bind::SurveyedTree;
use belljar_spec::{
    BackendFeatures, BackendName, Clause, Expectation, HostPaths, LayeredTree, Plan, Posture,
    RunSpec, User,
};
use serde::{Deserialize, Serialize};

use crate::error::{BindError, ImageError, PlanError, StartError, Unavailable};
use crate::running::Started;

/// Small, object-safe and synchronous. What only one engine can do stays inside that engine; a backend
/// that needs an async runtime drives it on a thread of its own.
pub trait Backend: Send + Sync {
    fn name(&self) -> BackendName;

    /// What it does by nature, on every host.
    fn features(&self) -> BackendFeatures {
        self.name().features()
    }

    /// Finds out by doing, not by looking for a file; bounded in time.
    fn probe(&self) -> Result<Capabilities, Unavailable>;

    /// The image that this run starts from, fetched if the spec and the caller allow it. Nothing where
    /// no image is needed. A plan is made from it, so it comes first.
    fn image(
        &self,
        _spec: &RunSpec,
        _images: &Images<'_>,
    ) -> Result<Option<ImageFacts>, ImageError> {
        Ok(None)
    }

    /// Pure and symbolic: no I/O. Same input, same plan.
    fn plan(&self, spec: &RunSpec, capabilities: &Capabilities) -> Result<Plan, PlanError>;

    /// The shell of the user inside: the operator's, if it is there, or the best one that there is. `None` where only
    /// the sandbox itself can show it. Without `paths` nothing may change on the host or the engine.
    fn shell(
        &self,
        _plan: &Plan,
        spec: &RunSpec,
        _paths: Option<&HostPaths>,
    ) -> Result<Option<String>, PlanError> {
        Ok(spec.shell.clone())
    }

    /// Opens descriptors, takes the uid lock, pins device, inode and every submount. The attestation
    /// is compared with this.
    fn bind(&self, plan: &Plan, paths: &HostPaths) -> Result<Bound, BindError>;

    /// Makes what the sandboxes of a run share: its network and its ids.
    fn open(&self, bound: &Bound) -> Result<Box<dyn Pod>, StartError>;
}

/// What the sandboxes of one run share. Dropping it without a start leaves nothing.
pub trait Pod: std::fmt::Debug {
    /// The boundary is up and the channel open.
    fn start(&mut self, sandbox: BoundSandbox) -> Result<Started, StartError>;
}

/// What this host lets a backend do. Facts, so that a plan can be made without asking again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    pub version: String,
    /// How each clause that depends on the host would hold.
    pub limits: Vec<(Clause, Result<String, Weakness>)>,
    pub cgroup: belljar_spec::CgroupUse,
    pub may_choose_uids: bool,
    pub landlock: u32,
    /// Highest number of open files that can be asked for.
    pub max_files: u64,
    /// Only of engines.
    pub engine: Option<EngineFacts>,
    pub image: Option<ImageFacts>,
}

impl Capabilities {
    /// A control group can hold the limit that this clause is about.
    pub fn holds(&self, clause: Clause) -> bool {
        self.limits.iter().any(|(known, held)| *known == clause && held.is_ok())
    }
}

/// What a container engine reports about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineFacts {
    /// The API's version that both sides speak.
    pub api: (u32, u32),
    /// On this machine, in this mount namespace: paths mean the same on both sides.
    pub is_local: bool,
    /// Its containers have no other rights than its user.
    pub is_rootless: bool,
    pub is_podman: bool,
    pub runtimes: Vec<String>,
    /// Those of them that are configured to leave control groups alone.
    pub without_groups: Vec<String>,
    /// Those that are configured to let containers use sockets of the host.
    pub host_sockets: Vec<String>,
    /// As the kernel names it, such as `x86_64`.
    pub architecture: String,
    pub selinux: bool,
    /// The caller's own limit on processes of one user, if it has one.
    pub most_processes: Option<u64>,
    /// Limits are the caller's to read back.
    pub groups_readable: bool,
}

/// An image, as its engine or Belljar's own store has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageFacts {
    pub name: String,
    pub id: String,
    pub digest: Option<String>,
    pub architecture: String,
    pub env: Vec<(String, String)>,
    /// Places that the image wants to be writable and to outlive the container.
    pub volumes: Vec<String>,
    /// Digests of the layers' content, bottom first, where Belljar has them.
    pub layers: Vec<String>,
    /// Empty where the image does not say it, like the following ones.
    pub working_dir: String,
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    /// The user that it names, where that is not root, and the backend can have it.
    pub user: Option<User>,
    /// Those of the shells that the user inside may have that it has, where Belljar can look into it.
    pub shells: Option<Vec<String>>,
}

/// Where images are, and whether one may be fetched.
#[derive(Clone, Debug)]
pub struct Images<'a> {
    /// Belljar's own store; nothing where there is none.
    pub store: Option<PathBuf>,
    pub fetch: Fetch<'a>,
}

/// Whether an image may be fetched, and what gets its progress.
#[derive(Clone, Copy)]
pub enum Fetch<'a> {
    /// Whatever the spec says: nothing is to change on the host.
    No,
    AsTheSpecSays(&'a dyn PullProgress),
}

impl std::fmt::Debug for Fetch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::No => "No",
            Self::AsTheSpecSays(_) => "AsTheSpecSays",
        })
    }
}

/// Called while an image is fetched. Totals grow as layers are found.
pub trait PullProgress: Send + Sync {
    fn fetched(&self, image: &str, bytes: u64, of: u64);

    /// It is there, or it failed.
    fn done(&self) {}
}

/// No progress is shown.
#[derive(Debug)]
pub struct Unwatched;

impl PullProgress for Unwatched {
    fn fetched(&self, _: &str, _: u64, _: u64) {}
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weakness {
    pub why: String,
    pub fix: String,
}

/// Pinned, ready to start. Dropping it without a start leaves nothing.
#[derive(Debug)]
pub struct Bound {
    pub expectation: Expectation,
    pub posture: Posture,
    pub writable_trees: Vec<PathBuf>,
    /// What was found in those that are directories, before the run.
    pub surveyed: Vec<SurveyedTree>,
    /// Trees whose changes are kept in the run's `upper/`.
    pub layered: Vec<LayeredTree>,
    /// What the operator should know before the run starts.
    pub warnings: Vec<String>,
    pub sandbox: BoundSandbox,
}

/// The part of [`Bound`] that only the backend that made it can read.
#[derive(Debug)]
pub struct BoundSandbox(Box<dyn Any + Send>);

impl BoundSandbox {
    pub fn new<T: Any + Send>(inner: T) -> Self {
        Self(Box::new(inner))
    }

    /// Fails for what another backend has bound.
    pub fn into_inner<T: Any>(self) -> Result<T, StartError> {
        let inner = self.0.downcast::<T>();
        inner.map(|inner| *inner).map_err(|_| StartError::new("bound by another backend"))
    }
}

/// A sandbox by the run it belongs to, and where that run is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SandboxId {
    pub run: String,
    pub directory: PathBuf,
}
