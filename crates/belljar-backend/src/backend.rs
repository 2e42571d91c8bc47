//! The trait, and what passes between a backend and the launcher.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use belljar_linux::jail::SurveyedTree;
use belljar_spec::{
    BackendName, Clause, Expectation, HostPaths, LayeredTree, Plan, Posture, RunSpec, Usage,
};

/// An answer that may take its time. The jail's are ready at once: a launch starts no runtime.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Small and object-safe. What only one engine can do stays inside that engine.
pub trait Backend: Send + Sync {
    fn name(&self) -> BackendName;

    /// Finds out by doing, not by looking for a file; bounded in time.
    fn probe(&self) -> BoxFuture<'_, Result<Capabilities, Unavailable>>;

    /// The image that this run starts from, fetched if the spec and the caller say so. Nothing where
    /// no image is needed. What a plan is made from, so before it.
    fn image<'a>(
        &'a self,
        _spec: &'a RunSpec,
        _fetch: Fetch<'a>,
    ) -> BoxFuture<'a, Result<Option<ImageFacts>, ImageError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Pure and symbolic: no I/O. Same input, same plan.
    fn plan(&self, spec: &RunSpec, capabilities: &Capabilities) -> Result<Plan, PlanError>;

    /// Opens descriptors, takes the uid lock, pins device, inode and every submount. What is attested
    /// is compared with this.
    fn bind<'a>(
        &'a self,
        plan: &'a Plan,
        place: &'a HostPaths,
    ) -> BoxFuture<'a, Result<Bound, BindError>>;

    /// The boundary is up and the channel open.
    fn start(&self, bound: Bound) -> BoxFuture<'_, Result<Started, StartError>>;

    /// Idempotent: destroying what is already gone is success.
    fn destroy<'a>(&'a self, sandbox: &'a SandboxId) -> BoxFuture<'a, Result<(), DestroyError>>;

    /// Everything of ours that exists now and could outlive its launcher.
    fn list(&self) -> BoxFuture<'_, Result<Vec<Found>, ListError>>;
}

/// What this host lets a backend do. Facts, so that a plan can be made without asking again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    pub version: String,
    /// How each clause that depends on the host would hold.
    pub limits: Vec<(Clause, Result<String, Weakness>)>,
    pub cgroup: belljar_spec::CgroupUse,
    pub may_choose_uids: bool,
    pub landlock: u32,
    /// Highest number of open files that can be asked for.
    pub most_files: u64,
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

/// What a container engine said about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineFacts {
    /// The API's version that both sides speak.
    pub api: (u32, u32),
    /// On this machine, in this mount namespace: paths mean the same on both sides.
    pub is_local: bool,
    /// Its containers have no other rights than its user.
    pub is_rootless: bool,
    pub is_podman: bool,
    pub runtimes: Vec<String>,
    /// Those of them that were told to leave control groups alone.
    pub without_groups: Vec<String>,
    /// Those that were told to let containers use sockets of the host.
    pub host_sockets: Vec<String>,
    /// As the kernel names it, such as `x86_64`.
    pub architecture: String,
    pub selinux: bool,
    /// The caller's own limit on processes of one user, if it has one.
    pub most_processes: Option<u64>,
    /// Limits are the caller's to read back.
    pub groups_readable: bool,
}

/// An image, as its engine has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFacts {
    pub name: String,
    pub id: String,
    pub digest: Option<String>,
    pub architecture: String,
    pub env: Vec<(String, String)>,
    /// Places that the image wants to be writable and to outlive the container.
    pub volumes: Vec<String>,
}

/// Whether an image may be fetched, and who watches.
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

/// Told while an image is fetched. Totals grow as layers are found.
pub trait PullProgress: Send + Sync {
    fn fetched(&self, image: &str, bytes: u64, of: u64);

    /// It is there, or it failed.
    fn done(&self) {}
}

/// Nobody watches.
#[derive(Debug)]
pub struct Unwatched;

impl PullProgress for Unwatched {
    fn fetched(&self, _: &str, _: u64, _: u64) {}
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct ImageError {
    pub why: String,
    pub fix: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weakness {
    pub why: String,
    pub fix: String,
}

/// Why a backend cannot be used here, and what would change that.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Unavailable {
    pub why: String,
    pub fix: String,
}

impl Unavailable {
    pub fn new(why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { why: why.into(), fix: fix.into() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("{what} cannot be done by the {backend} backend: {why}")]
    Unsupported { backend: BackendName, what: String, why: String },
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
    pub(crate) inner: BoundInner,
}

#[derive(Debug)]
pub(crate) enum BoundInner {
    #[cfg(target_os = "linux")]
    Jail(Box<belljar_linux::jail::Bound>),
    Host(Box<Plan>),
    Engine(Box<crate::engine::BoundContainer>),
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct BindError(pub Box<dyn std::error::Error + Send + Sync>);

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct StartError(pub Box<dyn std::error::Error + Send + Sync>);

impl StartError {
    /// Something of the run may still be there: the next command has to look.
    pub fn may_have_left_something(&self) -> bool {
        let error = self.0.downcast_ref::<crate::engine::ContainerError>();
        error.is_some_and(crate::engine::ContainerError::may_have_left_something)
    }
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct DestroyError(pub Box<dyn std::error::Error + Send + Sync>);

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ListError(pub Box<dyn std::error::Error + Send + Sync>);

/// A sandbox by the run it belongs to, and where that run is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SandboxId {
    pub run: String,
    pub directory: PathBuf,
}

/// Something of ours on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub run: String,
    pub what: String,
}

/// The way to PID 1.
#[derive(Debug)]
pub struct InitChannel {
    pub fd: OwnedFd,
    pub wrapping: Wrapping,
    /// PID 1 ends everything when it has heard nothing for so long. `None` where the kernel tells.
    pub lease: Option<Duration>,
}

/// What an engine does to the bytes that come from PID 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrapping {
    None,
    /// Packets with a head of eight bytes, which tell PID 1's two output streams apart.
    EnginePackets,
}

/// Where the run's own command has its streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandStreams {
    /// Pipes of the launcher's, which this has the other ends of.
    Pipes,
    /// Streams of the channel.
    OverChannel,
}

/// A boundary with PID 1 behind it.
#[derive(Debug)]
pub struct Started {
    /// Nothing where there is no boundary and so no PID 1.
    pub channel: Option<InitChannel>,
    pub streams: CommandStreams,
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
    /// A listening socket in the sandbox for each of the plan's ports; none where PID 1 has to listen.
    pub listeners: Vec<(u16, OwnedFd)>,
    /// PID 1's number on this host, where it has one.
    pub init_pid: Option<i32>,
    /// The uid that the command must have on this host.
    pub command_uid: Option<u32>,
    pub(crate) inner: StartedInner,
}

#[derive(Debug)]
pub(crate) enum StartedInner {
    #[cfg(target_os = "linux")]
    Jail(Box<belljar_linux::jail::Sandbox>),
    Host(crate::host::Child),
    Engine(Box<crate::engine::Container>),
}

impl Started {
    /// Ends everything inside at once.
    pub fn kill(&mut self) {
        match &mut self.inner {
            #[cfg(target_os = "linux")]
            StartedInner::Jail(sandbox) => sandbox.kill(),
            StartedInner::Host(child) => child.kill(),
            StartedInner::Engine(container) => container.kill(),
        }
    }

    /// Kills what is left, reaps it, and removes what was made for it on the host.
    pub fn destroy(&mut self) -> Result<(), DestroyError> {
        match &mut self.inner {
            #[cfg(target_os = "linux")]
            StartedInner::Jail(sandbox) => {
                sandbox.destroy().map_err(|error| DestroyError(Box::new(error)))
            }
            StartedInner::Host(child) => {
                child.kill();
                child.reap();
                Ok(())
            }
            StartedInner::Engine(container) => {
                container.destroy().map_err(|error| DestroyError(Box::new(error)))
            }
        }
    }

    /// Waits until everything inside has ended and takes stock; what was made on the host stays. After a
    /// kill, or when the channel closed.
    pub fn reap(&mut self) {
        match &mut self.inner {
            #[cfg(target_os = "linux")]
            StartedInner::Jail(sandbox) => sandbox.reap(),
            StartedInner::Host(child) => child.reap(),
            StartedInner::Engine(container) => container.reap(),
        }
    }

    /// Takes note of what only the present shows: about once a second, and at the end.
    pub fn sample(&mut self) {
        match &mut self.inner {
            #[cfg(target_os = "linux")]
            StartedInner::Jail(sandbox) => sandbox.sample(),
            StartedInner::Host(_) => {}
            StartedInner::Engine(container) => container.sample(),
        }
    }

    /// Makes what holds the limits, where the engine has not done so already.
    pub fn make_limits(&mut self) -> Result<(), StartError> {
        match &mut self.inner {
            #[cfg(target_os = "linux")]
            StartedInner::Jail(sandbox) => {
                sandbox.make_limits().map_err(|error| StartError(Box::new(error)))
            }
            StartedInner::Host(_) | StartedInner::Engine(_) => Ok(()),
        }
    }

    /// Puts everything inside under the limits; called while the command waits at the gate.
    pub fn join_limits(&mut self) -> Result<(), StartError> {
        match &mut self.inner {
            #[cfg(target_os = "linux")]
            StartedInner::Jail(sandbox) => {
                sandbox.join_limits().map_err(|error| StartError(Box::new(error)))
            }
            StartedInner::Host(_) => Ok(()),
            StartedInner::Engine(container) => {
                container.settle().map_err(|error| StartError(Box::new(error)))
            }
        }
    }

    /// Why PID 1 never said hello.
    pub fn set_up_failure(&self) -> StartError {
        match &self.inner {
            #[cfg(target_os = "linux")]
            StartedInner::Jail(sandbox) => StartError(Box::new(sandbox.set_up_failure())),
            StartedInner::Host(_) => StartError("there is no PID 1 on the host backend".into()),
            StartedInner::Engine(container) => StartError(Box::new(container.set_up_failure())),
        }
    }

    /// Readable once everything inside is gone. `None` where nothing can tell.
    pub fn end(&self) -> Option<BorrowedFd<'_>> {
        match &self.inner {
            #[cfg(target_os = "linux")]
            StartedInner::Jail(sandbox) => Some(sandbox.end()),
            StartedInner::Host(_) => None,
            StartedInner::Engine(container) => container.end(),
        }
    }

    /// Nothing runs inside but PID 1.
    pub fn is_quiet(&self) -> bool {
        match &self.inner {
            #[cfg(target_os = "linux")]
            StartedInner::Jail(sandbox) => sandbox.is_quiet(),
            StartedInner::Host(_) => false,
            StartedInner::Engine(container) => container.is_quiet(),
        }
    }

    /// Whether the kernel ended something inside for want of memory, judged from outside.
    pub fn oom_kills(&self) -> u64 {
        match &self.inner {
            #[cfg(target_os = "linux")]
            StartedInner::Jail(sandbox) => sandbox.oom_kills(),
            StartedInner::Host(_) => 0,
            StartedInner::Engine(container) => container.oom_kills(),
        }
    }

    /// So far; all of it after [`Started::reap`], and still after [`Started::destroy`].
    pub fn usage(&self, usage: &mut Usage) {
        match &self.inner {
            #[cfg(target_os = "linux")]
            StartedInner::Jail(sandbox) => sandbox.usage(usage),
            StartedInner::Host(_) => {}
            StartedInner::Engine(container) => container.usage(usage),
        }
    }

    /// The host backend's command, which has no PID 1 above it.
    pub fn host_child(&mut self) -> Option<&mut crate::host::Child> {
        match &mut self.inner {
            #[cfg(target_os = "linux")]
            StartedInner::Jail(_) => None,
            StartedInner::Host(child) => Some(child),
            StartedInner::Engine(_) => None,
        }
    }
}
