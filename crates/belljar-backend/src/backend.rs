//! The trait, and what passes between a backend and the launcher.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::pin::Pin;

use belljar_spec::{BackendName, Clause, Expectation, Place, Plan, Posture, RunSpec, Usage};

/// An answer that may take its time. The jail's are ready at once: a launch starts no runtime.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Small and object-safe. What only one engine can do stays inside that engine.
pub trait Backend: Send + Sync {
    fn name(&self) -> BackendName;

    /// Finds out by doing, not by looking for a file; bounded in time.
    fn probe(&self) -> BoxFuture<'_, Result<Capabilities, Unavailable>>;

    /// Pure and symbolic: no I/O. Same input, same plan.
    fn plan(&self, spec: &RunSpec, capabilities: &Capabilities) -> Result<Plan, PlanError>;

    /// Opens descriptors, takes the uid lock, pins device, inode and every submount. What is attested
    /// is compared with this.
    fn bind<'a>(
        &'a self,
        plan: &'a Plan,
        place: &'a Place,
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
    pub(crate) inner: BoundInner,
}

#[derive(Debug)]
pub(crate) enum BoundInner {
    #[cfg(target_os = "linux")]
    Jail(Box<belljar_linux::jail::Bound>),
    Host(Box<Plan>),
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct BindError(pub Box<dyn std::error::Error + Send + Sync>);

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct StartError(pub Box<dyn std::error::Error + Send + Sync>);

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct DestroyError(pub Box<dyn std::error::Error + Send + Sync>);

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ListError(pub Box<dyn std::error::Error + Send + Sync>);

/// A sandbox by the run it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SandboxId(pub String);

/// Something of ours on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub run: String,
    pub what: String,
}

/// A boundary with PID 1 behind it.
#[derive(Debug)]
pub struct Started {
    /// The channel to PID 1, or nothing where there is no boundary and so no PID 1.
    pub channel: Option<OwnedFd>,
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
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
}

impl Started {
    /// Ends everything inside at once.
    pub fn kill(&mut self) {
        match &mut self.inner {
            #[cfg(target_os = "linux")]
            StartedInner::Jail(sandbox) => sandbox.kill(),
            StartedInner::Host(child) => child.kill(),
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
        }
    }

    /// Waits until everything inside has ended and takes stock; what was made on the host stays. After a
    /// kill, or when the channel closed.
    pub fn reap(&mut self) {
        match &mut self.inner {
            #[cfg(target_os = "linux")]
            StartedInner::Jail(sandbox) => sandbox.reap(),
            StartedInner::Host(child) => child.reap(),
        }
    }

    /// Takes note of what only the present shows: about once a second, and at the end.
    pub fn sample(&mut self) {
        match &mut self.inner {
            #[cfg(target_os = "linux")]
            StartedInner::Jail(sandbox) => sandbox.sample(),
            StartedInner::Host(_) => {}
        }
    }

    /// Makes what holds the limits, where the engine has not done so already.
    pub fn make_limits(&mut self) -> Result<(), StartError> {
        match &mut self.inner {
            #[cfg(target_os = "linux")]
            StartedInner::Jail(sandbox) => {
                sandbox.make_limits().map_err(|error| StartError(Box::new(error)))
            }
            StartedInner::Host(_) => Ok(()),
        }
    }

    /// Puts everything inside under the limits; called while the command waits at the gate.
    pub fn join_limits(&self) -> Result<(), StartError> {
        match &self.inner {
            #[cfg(target_os = "linux")]
            StartedInner::Jail(sandbox) => {
                sandbox.join_limits().map_err(|error| StartError(Box::new(error)))
            }
            StartedInner::Host(_) => Ok(()),
        }
    }

    /// Why PID 1 never said hello.
    pub fn set_up_failure(&self) -> StartError {
        match &self.inner {
            #[cfg(target_os = "linux")]
            StartedInner::Jail(sandbox) => StartError(Box::new(sandbox.set_up_failure())),
            StartedInner::Host(_) => StartError("there is no PID 1 on the host backend".into()),
        }
    }

    /// Readable once everything inside is gone. `None` where nothing can tell.
    pub fn end(&self) -> Option<BorrowedFd<'_>> {
        match &self.inner {
            #[cfg(target_os = "linux")]
            StartedInner::Jail(sandbox) => Some(sandbox.end()),
            StartedInner::Host(_) => None,
        }
    }

    /// Nothing runs inside but PID 1.
    pub fn is_quiet(&self) -> bool {
        match &self.inner {
            #[cfg(target_os = "linux")]
            StartedInner::Jail(sandbox) => sandbox.is_quiet(),
            StartedInner::Host(_) => false,
        }
    }

    /// Whether the kernel ended something inside for want of memory, judged from outside.
    pub fn oom_kills(&self) -> u64 {
        match &self.inner {
            #[cfg(target_os = "linux")]
            StartedInner::Jail(sandbox) => sandbox.oom_kills(),
            StartedInner::Host(_) => 0,
        }
    }

    /// So far; all of it after [`Started::reap`], and still after [`Started::destroy`].
    pub fn usage(&self, usage: &mut Usage) {
        match &self.inner {
            #[cfg(target_os = "linux")]
            StartedInner::Jail(sandbox) => sandbox.usage(usage),
            StartedInner::Host(_) => {}
        }
    }

    /// The host backend's command, which has no PID 1 above it.
    pub fn host_child(&mut self) -> Option<&mut crate::host::Child> {
        match &mut self.inner {
            #[cfg(target_os = "linux")]
            StartedInner::Jail(_) => None,
            StartedInner::Host(child) => Some(child),
        }
    }
}
