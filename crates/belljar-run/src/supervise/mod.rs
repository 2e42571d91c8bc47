//! Supervises a run, from the first message to PID 1 to the last one to its clients.
//!
//! One loop ([`supervisor`]) over sources of a common shape ([`event_source`]): the sandboxes ([`sandbox`]), the clients
//! of the control socket, signals, clocks, and the agent's loop. Every byte from inside is hostile: an invalid frame
//! ends the run. What cannot be recorded ends the run too.

mod baseline;
mod capture;
mod channel;
mod checkpoint_request;
mod client;
mod control;
mod control_socket;
mod denied_calls;
mod disk;
mod drive;
mod egress;
mod event_source;
mod exit_watch;
mod init_link;
mod inlet;
mod lease;
mod login_keeper;
mod loop_throttle;
mod network_request;
mod outlet;
mod outside;
mod own_task;
mod packets;
mod readiness;
mod reconnect;
mod release;
mod requests;
mod rules;
mod sandbox;
mod setup;
mod shutdown_notices;
mod stop_clock;
mod stop_reason;
mod supervisor;
mod task;
mod terminal;
mod transfer;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use belljar_backend::StartError;
use belljar_bind::file_clock::Arrival;
use belljar_spec::wire::WireError;
use belljar_spec::wire::control::{Bond, FromSupervisor, Keep, StopReport};
use belljar_spec::{AgentReport, Moment, RunId, Usage};
use rustix::io::Errno;

use crate::run::{LaunchError, Streams};
pub(crate) use baseline::Layers;
use belljar_record::RecordError;
use belljar_workspace::checkpoint::{CheckpointError, Subject};
pub(crate) use client::Connection;
pub use control_socket::connect;
pub(crate) use disk::DiskLimit;
pub(crate) use drive::{AgentLoopOptions, DriveEnd, WorkTree};
pub(crate) use egress::{AfterSetup, NetworkBridge, Ports, Proxy};
pub use egress::{EgressError, PublishError, run_proxy_if_requested};
pub(crate) use login_keeper::LoginKeeper;
pub(crate) use release::{Opened, Supervision, open};
pub(crate) use sandbox::{Promised, SandboxResult, Sandboxes};
use shutdown_notices::ShutdownNotices;
use stop_clock::StopCause;
pub(crate) use transfer::TransferError;

#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    #[error("{0}")]
    Step(&'static str, #[source] Errno),
    #[error(transparent)]
    SetUp(StartError),
    #[error("the command could not be prepared ({step}): {why}")]
    LockDown { step: String, why: String },
    #[error("{why}; it has to exist inside: change --workdir, or mount what contains it")]
    Workdir { why: String },
    #[error("PID 1 speaks another protocol: {0}")]
    Hello(String),
    #[error("the command's arguments and variables are longer than any kernel takes")]
    TooLong,
    #[error("the sandbox did not answer within {0} seconds")]
    NoAnswer(u64),
    #[error("the channel carried what PID 1 cannot have sent, before anything was started")]
    Wire(#[source] WireError),
    #[error("the tree cannot be sent into the sandbox")]
    Transfer(#[from] TransferError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Egress(#[from] EgressError),
    #[error(transparent)]
    Checkpoint(CheckpointError),
    #[error("the thread that took a checkpoint panicked")]
    CheckpointThread,
}

/// Who follows the run's main command: the caller of this process, or a client.
#[derive(Debug)]
pub(crate) enum Caller {
    Here(Streams),
    There {
        connection: Box<Connection>,
        streams: belljar_spec::wire::control::Streams,
        bond: Bond,
    },
    /// The supervisor has taken it over.
    Served,
}

impl Caller {
    /// Nothing was started; a client gets the reason.
    pub(crate) fn refuse(&mut self, error: &LaunchError) {
        if let Self::There { connection, .. } = self {
            connection.send(&FromSupervisor::LaunchRefused(Box::new(error.refusal())));
            connection.finish(Duration::from_secs(2));
        }
    }
}

/// What a run needs besides its plan.
#[derive(Debug)]
pub(crate) struct LaunchOptions {
    pub(crate) run: RunId,
    /// Before anything of it was made ready.
    pub(crate) arrived: Arrival,
    pub(crate) keep: Keep,
    /// How long a kept sandbox lives unless it is renewed.
    pub(crate) ttl: Option<Duration>,
    pub(crate) disk: Option<DiskLimit>,
    pub(crate) layers: Layers,
    /// The path of the control socket, which is open once the command was released.
    pub(crate) socket: PathBuf,
    pub(crate) live: crate::run::LivenessLock,
    pub(crate) network: NetworkBridge,
    /// The agent that runs in it.
    pub(crate) agent: Option<Box<AgentLoopOptions>>,
    /// What a checkpoint on request is taken of.
    pub(crate) checkpoint: Subject,
    pub(crate) rules: crate::exec_rules::ExecRules,
    /// Keeps the agent's login valid.
    pub(crate) login: Option<Box<LoginKeeper>>,
}

/// What the supervisor found.
#[derive(Debug, Default)]
pub(crate) struct Supervised {
    /// Not empty: nothing was released.
    pub(crate) not_as_planned: Vec<String>,
    /// What became of the main sandbox.
    pub(crate) main: SandboxResult,
    /// The last moment at which nothing of the run can have written: just before the command was released.
    pub(crate) released: Option<Moment>,
    pub(crate) stopping: Option<StopCause>,
    /// Why the agent's login could not be kept valid, where that ended the run.
    pub(crate) login_expired: Option<String>,
    /// Dropping it waits for a refresh that is under way.
    pub(crate) login: Option<Box<LoginKeeper>>,
    /// It could not be recorded or watched any more.
    pub(crate) broken: Option<SuperviseError>,
    pub(crate) kept: bool,
    pub(crate) usage: Usage,
    /// How an agent's loop ended, if it came to its end.
    pub(crate) driven: Option<DriveEnd>,
    /// The report about the agent.
    pub(crate) agent: Option<AgentReport>,
    /// Why changes to a tree that was sent are not known: it did not come back.
    pub(crate) not_returned: Option<String>,
    /// Messages to clients that wait until the end is on disk.
    notices: Option<ShutdownNotices>,
}

impl Supervised {
    /// What went wrong, where belljar itself ended the run.
    pub(crate) fn detail(&self) -> Option<String> {
        let tampered = self.main.tampered.as_ref().map(|error| error.to_string());
        let broken = || self.broken.as_ref().map(|error| belljar_spec::text::error_chain(error));
        let full = || {
            (self.stopping == Some(StopCause::DiskFull)).then(|| {
                "limits.disk: it wrote more to disk than it may, or a tree too deep to be counted"
                    .to_owned()
            })
        };
        tampered.or_else(broken).or_else(full).or_else(|| self.login_expired.clone())
    }

    /// Reports the end to all clients, now that it is recorded.
    pub(crate) fn notify_clients(self, report: StopReport) {
        if let Some(notices) = self.notices {
            notices.send(report);
        }
    }
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

/// A duplicate, so that closing it leaves the caller's descriptor open.
pub(crate) fn duplicate(fd: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), 3)
}
