//! The built-in sandbox as a backend: facts about this host, the plan, the posture. The work is done
//! in `belljar-linux`.

mod facts;
mod plan;
mod posture;
mod rootfs;

use std::os::fd::BorrowedFd;

use belljar_linux::jail;
pub use belljar_linux::jail::{Obstacle, obstacles};
use belljar_spec::{BackendName, HostPaths, Plan, RunSpec, Usage};

use crate::backend::{Backend, Bound, BoundSandbox, Capabilities, Pod, SandboxId};
use crate::error::{BindError, DestroyError, LeftBehind, PlanError, StartError, Unavailable};
use crate::running::{CommandStreams, InitChannel, Link, RunningSandbox, Started, Wrapping};
use crate::shell::{self, Existence};

#[derive(Debug)]
pub struct Jail;

impl Backend for Jail {
    fn name(&self) -> BackendName {
        BackendName::Jail
    }

    fn probe(&self) -> Result<Capabilities, Unavailable> {
        facts::capabilities()
    }

    fn plan(&self, spec: &RunSpec, capabilities: &Capabilities) -> Result<Plan, PlanError> {
        plan::plan(spec, capabilities)
    }

    fn shell(
        &self,
        plan: &Plan,
        spec: &RunSpec,
        _: Option<&HostPaths>,
    ) -> Result<Option<String>, PlanError> {
        shell::find(plan, spec, &mut |_| Existence::Missing)
    }

    fn bind(&self, plan: &Plan, paths: &HostPaths) -> Result<Bound, BindError> {
        let bound = jail::bind(plan, paths).map_err(|error| BindError(Box::new(error)))?;
        Ok(Bound {
            expectation: bound.expectation.clone(),
            posture: bound.host.posture.clone(),
            writable_trees: bound.host.writable_trees.clone(),
            surveyed: bound.host.surveyed.clone(),
            layered: bound.host.layered.clone(),
            warnings: bound.host.warnings.clone(),
            sandbox: BoundSandbox::new(bound),
        })
    }

    fn open(&self, _: &Bound) -> Result<Box<dyn Pod>, StartError> {
        Ok(Box::new(JailPod))
    }
}

/// The user and network namespaces are made with the run's first sandbox, in one go.
#[derive(Debug)]
struct JailPod;

impl Pod for JailPod {
    fn start(&mut self, sandbox: BoundSandbox) -> Result<Started, StartError> {
        let mut bound: jail::Bound = sandbox.into_inner()?;
        let sent = std::mem::take(&mut bound.host.sent);
        let mut sandbox = jail::start(bound).map_err(|error| {
            let left = match error {
                jail::StartError::AndCleanup { .. } => LeftBehind::Possibly,
                _ => LeftBehind::Nothing,
            };
            start_error(left, error)
        })?;
        Ok(Started {
            channel: sandbox.channel.take().map(|fd| InitChannel {
                fd,
                wrapping: Wrapping::None,
                lease: None,
                link: Link::Lasting,
            }),
            streams: CommandStreams::Pipes,
            stdin: sandbox.stdin.take(),
            stdout: sandbox.stdout.take(),
            stderr: sandbox.stderr.take(),
            sent,
            listeners: std::mem::take(&mut sandbox.listeners),
            init_pid: Some(sandbox.init.pid.as_raw_nonzero().get()),
            command_uid: Some(sandbox.command_uid()),
            sandbox: Box::new(RunningJail(sandbox)),
        })
    }
}

fn start_error(left: LeftBehind, error: jail::StartError) -> StartError {
    let is_of_the_run = matches!(error, jail::StartError::OfTheRun(_));
    let error = StartError::leaving(left, error);
    if is_of_the_run { error.of_the_run() } else { error }
}

#[derive(Debug)]
struct RunningJail(jail::Sandbox);

impl RunningSandbox for RunningJail {
    fn kill(&mut self) {
        self.0.kill();
    }

    fn reap(&mut self) {
        self.0.reap();
    }

    fn destroy(&mut self) -> Result<(), DestroyError> {
        self.0.destroy().map_err(|error| DestroyError(Box::new(error)))
    }

    fn sample(&mut self) {
        self.0.sample();
    }

    fn make_limits(&mut self) -> Result<(), StartError> {
        self.0.make_limits().map_err(StartError::new)
    }

    fn join_limits(&mut self) -> Result<(), StartError> {
        self.0.join_limits().map_err(StartError::new)
    }

    fn set_up_failure(&self) -> StartError {
        start_error(LeftBehind::Nothing, self.0.set_up_failure())
    }

    fn end(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.end())
    }

    fn is_quiet(&self) -> bool {
        self.0.is_quiet()
    }

    fn oom_kills(&self) -> u64 {
        self.0.oom_kills()
    }

    fn usage(&self, usage: &mut Usage) {
        self.0.usage(usage);
    }
}

/// The kernel ends a jail with its launcher; only its control groups can be left.
pub(crate) fn destroy(sandbox: &SandboxId) -> Result<(), DestroyError> {
    let available = jail::cgroup::detect();
    for group in jail::cgroup::leftovers(&available, &sandbox.run) {
        jail::cgroup::remove_directory(&group).map_err(|error| DestroyError(Box::new(error)))?;
    }
    Ok(())
}

/// One control group is this launcher's.
pub(crate) fn may_have_orphans() -> bool {
    jail::cgroup::may_have_orphans(1)
}

/// Control groups of runs whose home was removed.
pub(crate) fn remove_orphans() {
    jail::cgroup::remove_orphaned_groups();
}
