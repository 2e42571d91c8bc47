//! Follows one sandbox from its first word to its end.
//!
//! One loop owns the state; the channel, the commands' pipes, the caller's streams, connections to the
//! run's socket, signals and clocks send it something. Every byte from inside is hostile: a frame that
//! makes no sense ends the run. What cannot be recorded ends the run too.

mod baseline;
mod capture;
mod channel;
mod checkpoint_request;
mod client;
mod control_socket;
mod disk;
mod drive;
mod egress;
mod event_loop;
mod exit_watch;
mod init_events;
mod init_link;
mod inlet;
mod lease;
mod loop_throttle;
mod outlet;
mod outside;
mod own_task;
mod packets;
mod readiness;
mod requests;
mod rules;
mod setup;
mod shutdown_notices;
mod state;
mod stop_reason;
mod task;
mod terminal;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use belljar_backend::{CommandStreams, StartError, Started};
use belljar_linux::file_clock::Arrival;
use belljar_spec::wire::WireError;
use belljar_spec::wire::control::{Bond, FromSupervisor, Keep, StopReport};
use belljar_spec::{
    AgentReport, Attestation, EventKind, ExecFailure, ExitStatus, Expectation, Plan, RunId, Usage,
};
use rustix::io::Errno;
use serde_json::json;

use crate::run::{LaunchError, Streams, timings};
use baseline::Baselines;
pub(crate) use baseline::Layers;
use belljar_record::Captured;
use belljar_record::{RecordError, Recorder};
use belljar_workspace::checkpoint::{CheckpointError, Subject};
use channel::Channel;
use checkpoint_request::Checkpoints;
use client::Clients;
pub(crate) use client::Connection;
use control_socket::ControlSocket;
pub use control_socket::connect;
use disk::Disk;
pub(crate) use disk::DiskLimit;
use drive::Driver;
pub(crate) use drive::{AgentLoopOptions, DriveEnd, WorkTree};
pub(crate) use egress::{AfterSetup, NetworkBridge, Ports, Proxy};
pub use egress::{EgressError, PublishError, egress_if_asked};
use event_loop::Run;
use init_link::Inside;
use outside::{Signals, host_uid_of_child};
use own_task::own_task;
use shutdown_notices::ShutdownNotices;
use state::{State, Stopping};
use terminal::RawTerminal;

#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    #[error("{0}")]
    Step(&'static str, #[source] Errno),
    #[error(transparent)]
    SetUp(StartError),
    #[error("the command could not be prepared ({step}): {why}")]
    LockDown { step: String, why: String },
    #[error("PID 1 speaks another protocol: {0}")]
    Hello(String),
    #[error("the command's arguments and variables are longer than any kernel takes")]
    TooLong,
    #[error("the sandbox did not answer within {0} seconds")]
    NoAnswer(u64),
    #[error("the channel carried what PID 1 cannot have sent, before anything was started")]
    Wire(#[source] WireError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Egress(#[from] EgressError),
    #[error(transparent)]
    Checkpoint(CheckpointError),
    #[error("the thread that took a checkpoint came to no end")]
    CheckpointThread,
}

/// Who is given the run's own command: this process's caller, or a connection.
#[derive(Debug)]
pub(crate) enum Caller {
    Here(Streams),
    There {
        connection: Box<Connection>,
        streams: belljar_spec::wire::control::Streams,
        bond: Bond,
    },
    /// Handed over to the run.
    Served,
}

impl Caller {
    /// Nothing was let go, and whoever asked over a connection is told why.
    pub(crate) fn refuse(&mut self, error: &LaunchError) {
        if let Self::There { connection, .. } = self {
            connection.say(&FromSupervisor::LaunchRefused(Box::new(error.refusal())));
            connection.finish(Duration::from_secs(2));
        }
    }
}

/// What a run is told apart from its plan.
#[derive(Debug)]
pub(crate) struct LaunchOptions {
    pub(crate) run: RunId,
    /// Before anything of it was made ready.
    pub(crate) arrived: Arrival,
    pub(crate) keep: Keep,
    pub(crate) disk: Option<DiskLimit>,
    pub(crate) layers: Layers,
    /// Where others find it once the command was let go.
    pub(crate) socket: PathBuf,
    pub(crate) live: crate::run::LivenessLock,
    pub(crate) crossing: NetworkBridge,
    /// The agent that it is for.
    pub(crate) drive: Option<Box<AgentLoopOptions>>,
    /// What a checkpoint on request is taken of.
    pub(crate) checkpoint: Subject,
    pub(crate) guard: crate::exec_rules::ExecRules,
}

/// What the supervisor saw.
#[derive(Debug, Default)]
pub(crate) struct Supervised {
    /// Not empty: nothing was let go.
    pub(crate) not_as_planned: Vec<String>,
    pub(crate) attestation: Option<Box<Attestation>>,
    pub(crate) status: Option<ExitStatus>,
    pub(crate) failure: Option<ExecFailure>,
    pub(crate) stopping: Option<Stopping>,
    pub(crate) tampered: Option<WireError>,
    /// It could not be recorded or watched any more.
    pub(crate) broken: Option<SuperviseError>,
    pub(crate) kept: bool,
    pub(crate) stdout: Captured,
    pub(crate) stderr: Captured,
    pub(crate) usage: Usage,
    /// How the loop of an agent ended, where it came to its own end.
    pub(crate) driven: Option<DriveEnd>,
    /// What came of an agent.
    pub(crate) agent: Option<AgentReport>,
    /// What is still to be told, once the end is on disk.
    farewells: Option<ShutdownNotices>,
}

impl Supervised {
    /// What went wrong, where belljar itself ended the run.
    pub(crate) fn detail(&self) -> Option<String> {
        let tampered = self.tampered.as_ref().map(|error| error.to_string());
        let broken = || self.broken.as_ref().map(|error| belljar_spec::text::error_chain(error));
        let full = || {
            (self.stopping == Some(Stopping::DiskFull)).then(|| {
                "limits.disk: it wrote more to disk than it may, or a tree too deep to be counted"
                    .to_owned()
            })
        };
        tampered.or_else(broken).or_else(full)
    }

    /// Tells everybody, now that the record has its end.
    pub(crate) fn dismiss(self, report: StopReport) {
        if let Some(farewells) = self.farewells {
            farewells.say(report);
        }
    }
}

/// A sandbox whose PID 1 has been spoken to, and whose command has not been let go.
#[derive(Debug)]
pub(crate) struct Opened {
    inside: Inside,
    streams: CommandStreams,
    signals: Signals,
    terminal: Option<RawTerminal>,
}

/// Says hello. What takes time on the host can be done meanwhile.
pub(crate) fn open(
    started: &mut Started,
    (plan, expectation): (&Plan, &Expectation),
    run: &RunId,
    caller: &Caller,
) -> Result<Opened, SuperviseError> {
    let signals =
        Signals::new().map_err(|error| SuperviseError::Step("watch for signals", error))?;
    let inside = match started.channel.take() {
        Some(channel) => {
            // Where the launcher has the sockets, PID 1 is not to listen.
            let has_sockets = !started.listeners.is_empty();
            let listen = if has_sockets { Vec::new() } else { plan.listen.clone() };
            let setup = setup::setup(plan, expectation, listen);
            Inside::Init(Box::new(Channel::open(channel, setup, run)?))
        }
        None => Inside::Child,
    };
    let terminal = match caller {
        Caller::Here(streams) => streams.terminal.as_ref().map(RawTerminal::new),
        Caller::There { .. } | Caller::Served => None,
    };
    Ok(Opened { inside, streams: started.streams, signals, terminal })
}

impl Opened {
    /// After this the command's process locks itself down; what it inherits from PID 1 must be there.
    pub(crate) fn ask_for_command(
        &mut self,
        plan: &Plan,
        caller: &Caller,
    ) -> Result<(), SuperviseError> {
        let size = match caller {
            Caller::Here(_) => self.terminal.as_ref().map(RawTerminal::size),
            Caller::There {
                streams: belljar_spec::wire::control::Streams::Terminal(size), ..
            } => Some((size.rows, size.columns)),
            Caller::There { .. } | Caller::Served => None,
        };
        match &mut self.inside {
            Inside::Init(channel) => channel.ask_for_command(plan, self.streams, size),
            Inside::Child => Ok(()),
        }
    }
}

/// Attests, lets go, carries the streams, keeps the deadline. Returns when nothing is left to carry.
pub(crate) fn supervise(
    mut opened: Opened,
    started: &mut Started,
    (plan, expectation): (&Plan, &Expectation),
    caller: &mut Caller,
    mut orders: LaunchOptions,
    recorder: &mut Recorder,
    let_go: &mut dyn FnMut(&mut Caller),
) -> Result<Supervised, SuperviseError> {
    let mut supervised = Supervised::default();
    timings::mark(timings::Phase::Boundary);
    if let Inside::Init(channel) = &mut opened.inside {
        let _attest = tracing::debug_span!("attest").entered();
        let attestation = match channel.wait_for_attestation(&opened.signals) {
            Err(SuperviseError::NoAnswer(0)) => return Err(set_up_failure(channel, started)),
            attestation => attestation?,
        };
        started.sandbox.join_limits().map_err(SuperviseError::SetUp)?;
        supervised.not_as_planned = expectation.compare(&attestation);
        if let (Some(init), Some(uid)) = (started.init_pid, started.command_uid) {
            supervised.not_as_planned.extend(host_uid_of_child(
                init,
                uid,
                expectation.uid_map.as_deref(),
            ));
        }
        supervised.attestation = Some(attestation);
        for difference in &supervised.not_as_planned {
            tracing::debug!(%difference, "not as planned");
        }
        if !supervised.not_as_planned.is_empty() {
            return Ok(supervised);
        }
    } else if let Some(failure) =
        started.sandbox.unsupervised_command().and_then(|child| child.exec_failure().cloned())
    {
        supervised.failure = Some(failure);
        return Ok(supervised);
    }
    recorder
        .event(EventKind::SandboxAttested, &json!({ "attestation": supervised.attestation }))?;
    let command: Vec<_> = plan.command.argv.clone();
    if !command.is_empty() {
        let argv = recorder.masked(&command);
        recorder.event(EventKind::ExecStart, &json!({ "exec": 0, "argv": argv }))?;
    }
    // Everything that can fail comes before the command is let go.
    let mut crossing = std::mem::take(&mut orders.crossing);
    if let Some(proxy) = &mut crossing.proxy
        && proxy.is_awaited()
    {
        proxy.wait_until_ready()?;
    }
    crossing.prepare(std::mem::take(&mut started.listeners), recorder)?;
    let door = ControlSocket::open(&orders.socket)
        .map_err(|error| SuperviseError::Step("open the run's socket", error))?;
    // On disk before anything of the command runs.
    recorder.barrier()?;
    match &mut opened.inside {
        Inside::Init(channel) if command.is_empty() => channel.dismiss(),
        Inside::Init(channel) => channel.let_go(channel::COMMAND),
        Inside::Child => {}
    }
    let begun = Instant::now();
    orders.live.say(belljar_spec::RunState::Running);
    let_go(caller);
    timings::mark(timings::Phase::Attestation);
    tracing::debug!("attested; the command is let go");
    let caller = std::mem::replace(caller, Caller::Served);
    let mut clients = Clients::default();
    let (task, bonded_to) = own_task(plan, started, caller, &mut clients);
    let Opened { inside, signals, terminal, .. } = opened;
    let disk = Disk::from(orders.disk.take(), begun);
    let baselines = Baselines::from(orders.layers.clone(), begun);
    let checkpoints = Checkpoints::of(orders.checkpoint.clone());
    let driver = orders.drive.take().map(|orders| Box::new(Driver::new(*orders)));
    let mut state = State::new(plan, begun);
    if driver.is_some() {
        state.never_idle(); // an agent's own clock is one of news
    }
    let mut run = Run {
        driver,
        started,
        plan,
        expectation,
        recorder,
        orders,
        inside,
        signals,
        terminal,
        tasks: task.into_iter().map(|task| (channel::COMMAND, task)).collect(),
        next_exec: 1,
        door: Some(door),
        clients,
        bonded_to,
        state,
        disk,
        baselines,
        sampled: begun,
        buffer: vec![0; outlet::CHUNK].into_boxed_slice(),
        pace: Default::default(),
        pause: None,
        lingering: Default::default(),
        command_is_over: false,
        absence: Default::default(),
        crossing,
        supervised,
        checkpoints,
    };
    run.follow();
    timings::mark(timings::Phase::Command);
    Ok(run.finish(begun))
}

/// PID 1's own words, where it had any.
fn set_up_failure(channel: &Channel, started: &Started) -> SuperviseError {
    SuperviseError::SetUp(match channel.diagnostics() {
        Some(said) => StartError::new(format!("the sandbox could not be set up: {said}")),
        None => started.sandbox.set_up_failure(),
    })
}

/// The numbers that are the same on every Linux.
pub(crate) mod libc_signal {
    pub(crate) const HUP: i32 = 1;
    pub(crate) const INT: i32 = 2;
    pub(crate) const QUIT: i32 = 3;
    pub(crate) const KILL: i32 = 9;
    pub(crate) const TERM: i32 = 15;
    pub(crate) const CHLD: i32 = 17;
    pub(crate) const WINCH: i32 = 28;
}

/// A descriptor of the caller's that is not to be closed with ours.
pub(crate) fn duplicate(fd: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), 3)
}
