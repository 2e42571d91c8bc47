//! No isolation at all: the command runs as the caller, on the host. Has to be asked for by name, and
//! every clause it does not hold has to be waived.

use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

use belljar_spec::{
    BackendName, CgroupUse, Clause, CommandPlan, Enforcement, ExecFailure, ExitStatus, Expectation,
    HostPaths, HostUid, Identity, PLAN_VERSION, Plan, Posture, RunSpec, Stdin, Terminal, User,
};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::backend::{
    Backend, BindError, Bound, BoundInner, BoxFuture, Capabilities, CommandStreams, DestroyError,
    Found, ListError, PlanError, SandboxId, StartError, Started, StartedInner, Unavailable,
};

#[derive(Debug)]
pub struct Host;

impl Backend for Host {
    fn name(&self) -> BackendName {
        BackendName::Host
    }

    fn probe(&self) -> BoxFuture<'_, Result<Capabilities, Unavailable>> {
        Box::pin(std::future::ready(Ok(Capabilities {
            version: "none".to_owned(),
            limits: Vec::new(),
            cgroup: CgroupUse::None,
            may_choose_uids: false,
            landlock: 0,
            most_files: 0,
            engine: None,
            image: None,
        })))
    }

    fn plan(&self, spec: &RunSpec, _: &Capabilities) -> Result<Plan, PlanError> {
        if spec.terminal == Terminal::Pty {
            return Err(PlanError::Unsupported {
                backend: BackendName::Host,
                what: "a terminal of its own".to_owned(),
                why: "nothing stands between the command and yours".to_owned(),
            });
        }
        crate::planning::refuse_runtime(spec, BackendName::Host)?;
        refuse_network(spec)?;
        let inside = spec.user;
        let workdir = match &spec.workspace {
            Some(workspace) if spec.workdir == workspace.target => workspace.source.clone(),
            _ => spec.workdir.clone(),
        };
        Ok(Plan {
            v: PLAN_VERSION,
            backend: BackendName::Host,
            hostname: String::new(),
            pod: Vec::new(),
            sandbox: Vec::new(),
            identity: Identity { inside, host: HostUid::Caller },
            mounts: Vec::new(),
            allow_source: Vec::new(),
            hidden: Vec::new(),
            allow_control: Vec::new(),
            shielded: Vec::new(),
            limits: spec.limits.clone(),
            cgroup: CgroupUse::None,
            rlimits: Vec::new(),
            filter: "none".to_owned(),
            command: CommandPlan {
                argv: spec.command.clone(),
                env: spec.env.clone(),
                workdir,
                stdin: spec.stdin,
                terminal: spec.terminal,
            },
            image: None,
            oci_runtime: None,
            listen: Vec::new(),
            posture: posture(),
        })
    }

    fn bind<'a>(
        &'a self,
        plan: &'a Plan,
        place: &'a HostPaths,
    ) -> BoxFuture<'a, Result<Bound, BindError>> {
        let nothing = Expectation {
            user: User::default(),
            uid_map: None,
            gid_map: None,
            kernel: Default::default(),
            groups: Vec::new(),
            mounts: Vec::new(),
            tolerated: Vec::new(),
            apart_from: Default::default(),
            sizes: Vec::new(),
            dies_with_launcher: false,
            seccomp_filters: 0,
            landlock: 0,
            rlimits: Default::default(),
            environment: Vec::new(),
            writable: Vec::new(),
        };
        // The home inside does not exist outside; the run's own directory does.
        let mut plan = plan.clone();
        plan.command.env.insert("HOME".to_owned(), place.home.as_path().into());
        Box::pin(std::future::ready(Ok(Bound {
            expectation: nothing,
            posture: plan.posture.clone(),
            writable_trees: Vec::new(),
            surveyed: Vec::new(),
            layered: Vec::new(),
            warnings: Vec::new(),
            inner: BoundInner::Host(Box::new(plan)),
        })))
    }

    fn start(&self, bound: Bound) -> BoxFuture<'_, Result<Started, StartError>> {
        Box::pin(std::future::ready(match bound.inner {
            BoundInner::Host(plan) => Ok(spawn(&plan.command)),
            _ => Err(StartError("bound by another backend".into())),
        }))
    }

    fn destroy<'a>(&'a self, _: &'a SandboxId) -> BoxFuture<'a, Result<(), DestroyError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Found>, ListError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}

fn posture() -> Posture {
    let mut posture = Posture::nothing_held("the command runs on the host, without isolation");
    posture.set(Clause::LimitOutput, Enforcement::enforced("counted by the launcher"));
    posture.set(
        Clause::LimitTime,
        Enforcement::weaker("the command's process group is killed; what left it lives on"),
    );
    posture.set(
        Clause::LifeBound,
        Enforcement::weaker("the command's process group is killed; what left it lives on"),
    );
    posture
}

/// The command, as a child of the launcher.
#[derive(Debug)]
pub struct Child {
    child: Option<std::process::Child>,
    failure: Option<ExecFailure>,
}

impl Child {
    pub fn kill(&mut self) {
        let group = self.child.as_ref().and_then(|child| Pid::from_raw(child.id() as i32));
        if let Some(group) = group {
            let _ = kill_process_group(group, Signal::KILL); // gone already is as good
        }
    }

    /// Waits for the command's end; what it told is kept for [`Child::try_wait`].
    pub fn reap(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.wait(); // an error means that there is nothing to wait for
        }
    }

    pub fn signal(&self, signal: i32) {
        let group = self.child.as_ref().and_then(|child| Pid::from_raw(child.id() as i32));
        if let (Some(group), Some(signal)) = (group, Signal::from_named_raw(signal)) {
            let _ = kill_process_group(group, signal);
        }
    }

    pub fn exec_failure(&self) -> Option<&ExecFailure> {
        self.failure.as_ref()
    }

    /// How it ended, if it did.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        match (status.code(), status.signal()) {
            (Some(code), _) => Some(ExitStatus::Code(code as u8)),
            (None, Some(signal)) => Some(ExitStatus::Signal(signal as u8)),
            (None, None) => None,
        }
    }
}

fn spawn(plan: &CommandPlan) -> Started {
    let mut command =
        Command::new(plan.argv.first().map(|name| name.as_os_str()).unwrap_or_default());
    command
        .args(plan.argv.iter().skip(1).map(|arg| arg.as_os_str()))
        .env_clear()
        .envs(plan.env.iter().map(|(name, value)| (name, value.as_os_str())))
        .current_dir(plan.workdir.as_path())
        .stdin(if plan.stdin == Stdin::Passed { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let (child, failure) = match command.spawn() {
        Ok(child) => (Some(child), None),
        Err(error) => (None, Some(failure_of(&error))),
    };
    let mut child = child;
    let taken =
        child.as_mut().map(|child| (child.stdin.take(), child.stdout.take(), child.stderr.take()));
    let (stdin, stdout, stderr) = taken.unwrap_or((None, None, None));
    Started {
        channel: None,
        streams: CommandStreams::Pipes,
        stdin: stdin.map(OwnedFd::from),
        stdout: stdout.map(OwnedFd::from),
        stderr: stderr.map(OwnedFd::from),
        listeners: Vec::new(),
        init_pid: None,
        command_uid: None,
        inner: StartedInner::Host(Child { child, failure }),
    }
}

/// A command on the host has the whole network, whatever the list says: that is in the posture. What only a
/// proxy or a boundary could do is refused.
fn refuse_network(spec: &RunSpec) -> Result<(), PlanError> {
    let egress = &spec.egress;
    let (what, why) = if !egress.secrets.is_empty() {
        ("a secret", "without a boundary nothing keeps its value from the command")
    } else if !egress.routes.is_empty() {
        ("a route", "its port would be one of this machine's, open to everybody on it")
    } else if !egress.publish.is_empty() {
        ("publishing a port", "the command's ports are this machine's own already")
    } else if egress.reach == belljar_spec::egress::Reach::Learn {
        ("learning", "nothing stands between the command and the network that could see it")
    } else {
        return Ok(());
    };
    let (what, why) = (what.to_owned(), why.to_owned());
    Err(PlanError::Unsupported { backend: BackendName::Host, what, why })
}

fn failure_of(error: &std::io::Error) -> ExecFailure {
    match error.kind() {
        std::io::ErrorKind::NotFound => ExecFailure::NotFound,
        std::io::ErrorKind::PermissionDenied => {
            ExecFailure::NotExecutable { why: "permission denied".to_owned() }
        }
        _ => ExecFailure::Other { why: error.to_string() },
    }
}
