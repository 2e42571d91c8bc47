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

use crate::backend::{Backend, Bound, BoundSandbox, Capabilities, Pod};
use crate::error::{BindError, DestroyError, PlanError, StartError, Unavailable};
use crate::running::{CommandStreams, RunningSandbox, Started, UnsupervisedCommand};
use crate::shell;

#[derive(Debug)]
pub struct Host;

impl Backend for Host {
    fn name(&self) -> BackendName {
        BackendName::Host
    }

    fn probe(&self) -> Result<Capabilities, Unavailable> {
        Ok(Capabilities {
            version: "none".to_owned(),
            limits: Vec::new(),
            cgroup: CgroupUse::None,
            may_choose_uids: false,
            landlock: 0,
            max_files: 0,
            engine: None,
            image: None,
        })
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
                env: crate::planning::environment(spec),
                workdir,
                stdin: spec.stdin,
                terminal: spec.terminal,
            },
            shell: None,
            image: None,
            oci_runtime: None,
            listen: Vec::new(),
            posture: posture(),
        })
    }

    fn shell(
        &self,
        plan: &Plan,
        spec: &RunSpec,
        _: Option<&HostPaths>,
    ) -> Result<Option<String>, PlanError> {
        shell::find(plan, spec, &mut shell::without_mounts)
    }

    fn bind(&self, plan: &Plan, paths: &HostPaths) -> Result<Bound, BindError> {
        let nothing = Expectation {
            user: User::default(),
            uid_map: None,
            gid_map: None,
            kernel: Default::default(),
            groups: Vec::new(),
            mounts: Vec::new(),
            tolerated: Vec::new(),
            private_mounts: false,
            apart_from: Default::default(),
            sizes: Vec::new(),
            dies_with_launcher: false,
            init: None,
            hostname: None,
            seccomp_filters: 0,
            landlock: 0,
            rlimits: Default::default(),
            environment: Vec::new(),
            writable: Vec::new(),
        };
        // The home inside does not exist outside; the run's own directory does.
        let mut plan = plan.clone();
        plan.command.env.insert("HOME".to_owned(), paths.home.as_path().into());
        Ok(Bound {
            expectation: nothing,
            posture: plan.posture.clone(),
            writable_trees: Vec::new(),
            surveyed: Vec::new(),
            layered: Vec::new(),
            warnings: Vec::new(),
            sandbox: BoundSandbox::new(plan),
        })
    }

    fn open(&self, _: &Bound) -> Result<Box<dyn Pod>, StartError> {
        Ok(Box::new(NoPod))
    }
}

/// There is nothing to share: the command has the host's network and the caller's ids.
#[derive(Debug)]
struct NoPod;

impl Pod for NoPod {
    fn start(&mut self, sandbox: BoundSandbox) -> Result<Started, StartError> {
        let plan: Plan = sandbox.into_inner()?;
        Ok(spawn(&plan.command))
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
struct HostCommand {
    child: Option<std::process::Child>,
    failure: Option<ExecFailure>,
}

impl HostCommand {
    fn group(&self) -> Option<Pid> {
        self.child.as_ref().and_then(|child| Pid::from_raw(child.id() as i32))
    }
}

impl RunningSandbox for HostCommand {
    fn kill(&mut self) {
        if let Some(group) = self.group() {
            let _ = kill_process_group(group, Signal::KILL); // gone already is as good
        }
    }

    /// Waits for the command's end; its status is kept for `try_wait`.
    fn reap(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.wait(); // an error means that there is nothing to wait for
        }
    }

    fn destroy(&mut self) -> Result<(), DestroyError> {
        self.kill();
        self.reap();
        Ok(())
    }

    fn set_up_failure(&self) -> StartError {
        StartError::new("there is no PID 1 on the host backend")
    }

    fn unsupervised_command(&mut self) -> Option<&mut dyn UnsupervisedCommand> {
        Some(self)
    }
}

impl UnsupervisedCommand for HostCommand {
    fn signal(&self, signal: i32) {
        if let (Some(group), Some(signal)) = (self.group(), Signal::from_named_raw(signal)) {
            let _ = kill_process_group(group, signal);
        }
    }

    fn exec_failure(&self) -> Option<&ExecFailure> {
        self.failure.as_ref()
    }

    fn try_wait(&mut self) -> Option<ExitStatus> {
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
        sent: Vec::new(),
        listeners: Vec::new(),
        init_pid: None,
        command_uid: None,
        sandbox: Box::new(HostCommand { child, failure }),
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
        std::io::ErrorKind::NotFound => ExecFailure::NotFound { cause: None },
        std::io::ErrorKind::PermissionDenied => {
            ExecFailure::NotExecutable { why: "permission denied".to_owned() }
        }
        _ => ExecFailure::Other { why: error.to_string() },
    }
}
