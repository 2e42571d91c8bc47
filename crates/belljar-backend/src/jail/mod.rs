//! The built-in sandbox as a backend: facts about this host, the plan, the posture. The work is done
//! in `belljar-linux`.

mod facts;
mod image;
mod plan;
mod posture;
mod rootfs;

use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use belljar_image::HeldImage;
use belljar_linux::jail;
pub use belljar_linux::jail::{Obstacle, obstacles};
use belljar_spec::{BackendName, HostPaths, ImageLayers, MountKind, Plan, RunSpec, Usage};

use crate::backend::{
    Backend, Bound, BoundSandbox, Capabilities, ImageFacts, Images, Pod, SandboxId,
};
use crate::error::{
    BindError, DestroyError, ImageError, LeftBehind, PlanError, StartError, Unavailable,
};
use crate::own_images;
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

    fn image(&self, spec: &RunSpec, images: &Images<'_>) -> Result<Option<ImageFacts>, ImageError> {
        image::find(spec, images)
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
        match plan.image {
            Some(_) => Ok(plan.shell.clone()), // the plan was made from what the image has
            None => shell::find(plan, spec, &mut |_| Existence::Missing),
        }
    }

    fn bind(&self, plan: &Plan, paths: &HostPaths) -> Result<Bound, BindError> {
        let failed = |error: Box<dyn std::error::Error + Send + Sync>| BindError(error);
        let held = held_image(plan, paths).map_err(|error| failed(Box::new(error)))?;
        let bound = match &held {
            None => jail::bind(plan, paths),
            Some(held) => {
                let paths = HostPaths { image: Some(layers_of(held)), ..paths.clone() };
                jail::bind(plan, &paths)
            }
        };
        let bound = bound.map_err(|error| failed(Box::new(error)))?;
        Ok(Bound {
            expectation: bound.expectation.clone(),
            posture: bound.host.posture.clone(),
            writable_trees: bound.host.writable_trees.clone(),
            surveyed: bound.host.surveyed.clone(),
            layered: bound.host.layered.clone(),
            warnings: bound.host.warnings.clone(),
            sandbox: BoundSandbox::new(BoundJail { bound, held }),
        })
    }

    fn open(&self, _: &Bound) -> Result<Box<dyn Pod>, StartError> {
        Ok(Box::new(JailPod))
    }
}

/// What was bound, and the image that must stay until the run has ended.
#[derive(Debug)]
struct BoundJail {
    bound: jail::Bound,
    held: Option<HeldImage>,
}

/// The very image that the plan was made from, whatever its name means by now.
fn held_image(plan: &Plan, paths: &HostPaths) -> Result<Option<HeldImage>, ImageError> {
    let manifest = plan.mounts.iter().find_map(|mount| match &mount.what {
        MountKind::RootImage { manifest, .. } => Some(manifest),
        _ => None,
    });
    let Some(manifest) = manifest else { return Ok(None) };
    let store = own_images::open(&paths.images)?;
    own_images::hold(&store, &own_images::parse_name(manifest)?).map(Some)
}

fn layers_of(held: &HeldImage) -> ImageLayers {
    let relative = |path: &PathBuf| path.strip_prefix(&held.base).unwrap_or(path).to_owned();
    let layers = held.layers.iter().map(|layer| relative(&layer.path)).collect();
    ImageLayers { base: held.base.clone(), layers }
}

/// The user and network namespaces are made with the run's first sandbox, in one go.
#[derive(Debug)]
struct JailPod;

impl Pod for JailPod {
    fn start(&mut self, sandbox: BoundSandbox) -> Result<Started, StartError> {
        let BoundJail { mut bound, held } = sandbox.into_inner()?;
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
            sandbox: Box::new(RunningJail { sandbox, _held: held }),
        })
    }
}

fn start_error(left: LeftBehind, error: jail::StartError) -> StartError {
    let is_of_the_run = matches!(error, jail::StartError::OfTheRun(_));
    let error = StartError::leaving(left, error);
    if is_of_the_run { error.of_the_run() } else { error }
}

#[derive(Debug)]
struct RunningJail {
    sandbox: jail::Sandbox,
    _held: Option<HeldImage>,
}

impl RunningSandbox for RunningJail {
    fn kill(&mut self) {
        self.sandbox.kill();
    }

    fn reap(&mut self) {
        self.sandbox.reap();
    }

    fn destroy(&mut self) -> Result<(), DestroyError> {
        self.sandbox.destroy().map_err(|error| DestroyError(Box::new(error)))
    }

    fn sample(&mut self) {
        self.sandbox.sample();
    }

    fn make_limits(&mut self) -> Result<(), StartError> {
        self.sandbox.make_limits().map_err(StartError::new)
    }

    fn join_limits(&mut self) -> Result<(), StartError> {
        self.sandbox.join_limits().map_err(StartError::new)
    }

    fn set_up_failure(&self) -> StartError {
        start_error(LeftBehind::Nothing, self.sandbox.set_up_failure())
    }

    fn end(&self) -> Option<BorrowedFd<'_>> {
        Some(self.sandbox.end())
    }

    fn is_quiet(&self) -> bool {
        self.sandbox.is_quiet()
    }

    fn oom_kills(&self) -> u64 {
        self.sandbox.oom_kills()
    }

    fn usage(&self, usage: &mut Usage) {
        self.sandbox.usage(usage);
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
