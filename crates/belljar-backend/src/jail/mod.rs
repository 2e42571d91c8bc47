//! The built-in sandbox as a backend: facts about this host, the plan, the posture. The work is done
//! in `belljar-linux`.

mod facts;
mod plan;
mod posture;
mod rootfs;

use belljar_linux::jail;
use belljar_spec::{BackendName, HostPaths, Plan, RunSpec};

use crate::backend::{
    Backend, BindError, Bound, BoundInner, BoxFuture, Capabilities, CommandStreams, DestroyError,
    Found, InitChannel, ListError, PlanError, SandboxId, StartError, Started, StartedInner,
    Unavailable, Wrapping,
};

#[derive(Debug)]
pub struct Jail;

impl Backend for Jail {
    fn name(&self) -> BackendName {
        BackendName::Jail
    }

    fn probe(&self) -> BoxFuture<'_, Result<Capabilities, Unavailable>> {
        Box::pin(std::future::ready(facts::capabilities()))
    }

    fn plan(&self, spec: &RunSpec, capabilities: &Capabilities) -> Result<Plan, PlanError> {
        plan::plan(spec, capabilities)
    }

    fn bind<'a>(
        &'a self,
        plan: &'a Plan,
        place: &'a HostPaths,
    ) -> BoxFuture<'a, Result<Bound, BindError>> {
        Box::pin(std::future::ready(bind(plan, place)))
    }

    fn start(&self, bound: Bound) -> BoxFuture<'_, Result<Started, StartError>> {
        Box::pin(std::future::ready(start(bound)))
    }

    fn destroy<'a>(&'a self, sandbox: &'a SandboxId) -> BoxFuture<'a, Result<(), DestroyError>> {
        // The kernel ends a jail with its launcher; only its control groups can be left.
        Box::pin(std::future::ready(destroy(sandbox)))
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Found>, ListError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}

fn bind(plan: &Plan, place: &HostPaths) -> Result<Bound, BindError> {
    let bound = jail::bind(plan, place).map_err(|error| BindError(Box::new(error)))?;
    Ok(Bound {
        expectation: bound.expectation.clone(),
        posture: bound.posture.clone(),
        writable_trees: bound.writable_trees.clone(),
        surveyed: bound.surveyed.clone(),
        layered: bound.layered.clone(),
        warnings: bound.warnings.clone(),
        inner: BoundInner::Jail(Box::new(bound)),
    })
}

fn start(bound: Bound) -> Result<Started, StartError> {
    let BoundInner::Jail(bound) = bound.inner else {
        return Err(StartError("bound by another backend".into()));
    };
    let mut sandbox = jail::start(*bound).map_err(|error| StartError(Box::new(error)))?;
    Ok(Started {
        channel: sandbox.channel.take().map(|fd| InitChannel {
            fd,
            wrapping: Wrapping::None,
            lease: None,
        }),
        streams: CommandStreams::Pipes,
        stdin: sandbox.stdin.take(),
        stdout: sandbox.stdout.take(),
        stderr: sandbox.stderr.take(),
        listeners: std::mem::take(&mut sandbox.listeners),
        init_pid: Some(sandbox.init.pid.as_raw_nonzero().get()),
        command_uid: Some(sandbox.command_uid()),
        inner: StartedInner::Jail(Box::new(sandbox)),
    })
}

fn destroy(sandbox: &SandboxId) -> Result<(), DestroyError> {
    let available = jail::cgroup::detect();
    for group in jail::cgroup::leftovers(&available, &sandbox.run) {
        jail::cgroup::remove_directory(&group).map_err(|error| DestroyError(Box::new(error)))?;
    }
    Ok(())
}
