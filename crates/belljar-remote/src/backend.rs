//! The launcher's side: the jail's plan, with trees that are sent, carried out by the agent.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use belljar_backend::jail::Jail;
use belljar_backend::{
    Backend, BindError, Bound, BoundSandbox, Capabilities, CommandStreams, DestroyError,
    InitChannel, Link, LinkOpener, PlanError, Pod, RunningSandbox, StartError, Started,
    Unavailable, Wrapping,
};
use belljar_spec::text::error_chain;
use belljar_spec::{
    BackendFeatures, BackendName, Clause, Enforcement, HostPaths, HostUid, LinkKind, MountKind,
    Plan, PlannedMount, Rootfs, RunSpec, SentTree, Source, Tree, TreeAccess, Usage,
};

use crate::protocol::{Control, Purpose, RemoteError, Request, Response, ask_once, connect};

/// The most that a tree may be and grow to.
const MAX_SENT: u64 = 1 << 30;
const SENT_MODE: u32 = 0o1777;

/// One sandbox behind one agent.
#[derive(Debug)]
pub struct Remote {
    pub agent: SocketAddr,
    /// How long PID 1 waits for a link that broke.
    pub lease: Duration,
    control: Mutex<Option<(Control, SocketAddr)>>,
}

impl Remote {
    pub fn new(agent: SocketAddr, lease: Duration) -> Self {
        Self { agent, lease, control: Mutex::new(None) }
    }
}

impl Backend for Remote {
    /// What the agent starts is the jail; only the way there differs.
    fn name(&self) -> BackendName {
        BackendName::Jail
    }

    fn features(&self) -> BackendFeatures {
        BackendFeatures {
            trees: TreeAccess::Sent,
            link: LinkKind::Breakable,
            ..BackendName::Jail.features()
        }
    }

    fn probe(&self) -> Result<Capabilities, Unavailable> {
        let unavailable = |why: String| Unavailable::new(why, "start an agent");
        match ask_once(self.agent, Purpose::Probe) {
            Ok(Response::Facts(facts)) => Ok(*facts),
            Ok(_) => Err(unavailable(RemoteError::OutOfTurn.to_string())),
            Err(error) => Err(unavailable(error_chain(&error))),
        }
    }

    fn plan(&self, spec: &RunSpec, capabilities: &Capabilities) -> Result<Plan, PlanError> {
        if spec.intercepts() {
            return Err(PlanError::Unsupported {
                backend: self.name(),
                what: "opening TLS, for a secret or network.intercept,".to_owned(),
                why: "the agent's machine cannot be given the run's own authority".to_owned(),
            });
        }
        if spec.rootfs == Rootfs::Image {
            return Err(PlanError::Unsupported {
                backend: self.name(),
                what: "an image as the root".to_owned(),
                why: "the agent's machine has no store of images".to_owned(),
            });
        }
        let mut plan = Jail.plan(spec, capabilities)?;
        for mount in &mut plan.mounts {
            if let MountKind::Bind { source: Source::Path { path }, access, tree, .. } = &mount.what
                && matches!(tree, Tree::User | Tree::Tool)
            {
                let (source, access) = (path.clone(), *access);
                mount.what = MountKind::Sent { source, access, size: MAX_SENT };
            }
        }
        let nothing = "nothing of this machine is mounted; trees are sent, without socket files";
        plan.posture.set(Clause::FsSockets, Enforcement::enforced(nothing));
        Ok(plan)
    }

    fn bind(&self, plan: &Plan, paths: &HostPaths) -> Result<Bound, BindError> {
        let failed = |error: RemoteError| BindError(Box::new(error));
        let is_sent = |mount: &PlannedMount| matches!(mount.what, MountKind::Sent { .. });
        let mut here = plan.clone();
        here.mounts.retain(is_sent);
        here.identity.host = HostUid::Caller;
        let here =
            belljar_linux::jail::bind(&here, paths).map_err(|error| BindError(Box::new(error)))?;
        let mut there = plan.clone();
        for mount in &mut there.mounts {
            if let MountKind::Sent { size, .. } = mount.what {
                mount.what = MountKind::Tmpfs { size, mode: SENT_MODE };
            }
        }
        let mut control = Control::connect(self.agent, paths.run.clone()).map_err(failed)?;
        let request = Request::Bind { run: paths.run.clone(), plan: Box::new(there) };
        let Response::Bound { expectation, posture, mut warnings, links } =
            control.ask(&request).map_err(failed)?
        else {
            return Err(failed(RemoteError::OutOfTurn));
        };
        *self.control.lock().unwrap_or_else(PoisonError::into_inner) = Some((control, links));
        warnings.extend(here.host.warnings);
        Ok(Bound {
            expectation: *expectation,
            posture: *posture,
            writable_trees: Vec::new(),
            surveyed: Vec::new(),
            layered: here.host.layered,
            warnings,
            sandbox: BoundSandbox::new(here.host.sent),
        })
    }

    fn open(&self, _: &Bound) -> Result<Box<dyn Pod>, StartError> {
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (control, links) = control.ok_or_else(|| StartError::new("nothing was bound"))?;
        Ok(Box::new(RemotePod { links, lease: self.lease, control: Some(control) }))
    }
}

#[derive(Debug)]
struct RemotePod {
    links: SocketAddr,
    lease: Duration,
    control: Option<Control>,
}

impl Pod for RemotePod {
    fn start(&mut self, sandbox: BoundSandbox) -> Result<Started, StartError> {
        let sent: Vec<SentTree> = sandbox.into_inner()?;
        let control = self.control.take();
        let mut control = control.ok_or_else(|| StartError::new("one sandbox is all there is"))?;
        control.ask(&Request::Start).map_err(StartError::new)?;
        let mut opener = Opener(self.links);
        let fd = opener.open().map_err(StartError::new)?;
        Ok(Started {
            channel: Some(InitChannel {
                fd,
                wrapping: Wrapping::None,
                lease: Some(self.lease),
                link: Link::Breakable(Box::new(opener)),
            }),
            streams: CommandStreams::OverChannel,
            stdin: None,
            stdout: None,
            stderr: None,
            sent,
            listeners: Vec::new(),
            init_pid: None,
            command_uid: None,
            sandbox: Box::new(RemoteSandbox { control, usage: Usage::default(), oom_kills: 0 }),
        })
    }
}

#[derive(Debug)]
struct Opener(SocketAddr);

impl LinkOpener for Opener {
    fn open(&mut self) -> std::io::Result<OwnedFd> {
        connect(self.0, Purpose::Link).map(OwnedFd::from).map_err(std::io::Error::other)
    }
}

#[derive(Debug)]
struct RemoteSandbox {
    control: Control,
    /// As last measured.
    usage: Usage,
    oom_kills: u64,
}

impl RemoteSandbox {
    /// What fails shows when it is destroyed.
    fn ask_and_measure(&mut self, request: &Request) {
        if let Ok(Response::Measured { usage, oom_kills }) = self.control.ask(request) {
            (self.usage, self.oom_kills) = (*usage, oom_kills);
        }
    }
}

impl RunningSandbox for RemoteSandbox {
    fn kill(&mut self) {
        let _ = self.control.ask(&Request::Kill); // what fails shows when it is destroyed
    }

    fn reap(&mut self) {
        self.ask_and_measure(&Request::Reap);
    }

    fn destroy(&mut self) -> Result<(), DestroyError> {
        let destroyed = self.control.ask(&Request::Destroy);
        destroyed.map(drop).map_err(|error| DestroyError(Box::new(error)))
    }

    fn sample(&mut self) {
        self.ask_and_measure(&Request::Sample);
    }

    fn make_limits(&mut self) -> Result<(), StartError> {
        self.control.ask(&Request::MakeLimits).map(drop).map_err(StartError::new)
    }

    fn join_limits(&mut self) -> Result<(), StartError> {
        self.control.ask(&Request::JoinLimits).map(drop).map_err(StartError::new)
    }

    fn set_up_failure(&self) -> StartError {
        StartError::new("the sandbox ended before it had answered")
    }

    fn oom_kills(&self) -> u64 {
        self.oom_kills
    }

    fn usage(&self, usage: &mut Usage) {
        // The clock is the launcher's.
        *usage = Usage { wall_ms: usage.wall_ms, ..self.usage };
    }
}
