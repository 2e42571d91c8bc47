//! Follows one sandbox from its first word to its end.
//!
//! One loop owns the state; the channel, the command's pipes, the caller's streams, signals and clocks
//! send it something. Every byte from inside is hostile: a frame that makes no sense ends the run.

mod capture;
mod channel;
mod disk;
mod host;
mod outside;
mod sinks;
mod state;
mod terminal;

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use belljar_backend::{StartError, Started};
use belljar_spec::wire::WireError;
use belljar_spec::{
    Attestation, EXIT_DEADLINE, EXIT_NOT_STARTED, ExecFailure, Exit, ExitSource, ExitStatus,
    Expectation, Plan, RunId, StopReason, Usage,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::run::{Captured, Streams};
use channel::Channel;
pub(crate) use disk::DiskLimit;
use disk::DiskWatch;
use outside::{Signals, host_uid_of_child};
use sinks::Sinks;
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
    pub(crate) stdout: Captured,
    pub(crate) stderr: Captured,
    pub(crate) usage: Usage,
}

impl Supervised {
    /// One named reason, and whose exit code it is. Memory is judged from outside.
    pub(crate) fn judged(&self, oom_kills: u64) -> (StopReason, Exit) {
        if self.tampered.is_some() {
            return (StopReason::Tampered, Exit::of_belljar(EXIT_NOT_STARTED, ExitSource::Policy));
        }
        if let Some(failure) = &self.failure {
            return (StopReason::Error, Exit::of_belljar(failure.exit_code(), ExitSource::Sandbox));
        }
        let by_us =
            |source| Exit { source, ..self.status.map_or(killed(source), Exit::of_command) };
        match (self.stopping, self.status) {
            (Some(Stopping::Deadline), _) => {
                (StopReason::Deadline, Exit::of_belljar(EXIT_DEADLINE, ExitSource::Deadline))
            }
            (Some(Stopping::DiskFull), _) => (StopReason::Limit, killed(ExitSource::Policy)),
            (Some(Stopping::Idle), _) => (StopReason::Idle, killed(ExitSource::Deadline)),
            (_, Some(ExitStatus::Signal(9)) | None) if oom_kills > 0 => {
                (StopReason::Oom, killed(ExitSource::Oom))
            }
            (Some(Stopping::Asked { .. }), Some(ExitStatus::Signal(_)) | None) => {
                (StopReason::Stopped, by_us(ExitSource::Command))
            }
            (_, Some(ExitStatus::Code(code))) => {
                (StopReason::Exited, Exit::of_command(ExitStatus::Code(code)))
            }
            (_, Some(status)) => (StopReason::Signal, Exit::of_command(status)),
            // PID 1 went away without a word.
            (_, None) => (StopReason::Lost, killed(ExitSource::Sandbox)),
        }
    }
}

fn killed(source: ExitSource) -> Exit {
    Exit { code: None, signal: Some(9), source }
}

/// A sandbox whose PID 1 has been spoken to, and whose command has not been let go.
pub(crate) enum Opened {
    Sandbox {
        channel: Box<Channel>,
        signals: Signals,
        terminal: Option<RawTerminal>,
        streams: Streams,
    },
    /// There is no PID 1 to talk to.
    Host(Streams),
}

/// Says hello. What takes time on the host can be done meanwhile.
pub(crate) fn open(
    started: &mut Started,
    plan: &Plan,
    run: &RunId,
    streams: Streams,
) -> Result<Opened, SuperviseError> {
    let Some(channel) = started.channel.take() else { return Ok(Opened::Host(streams)) };
    let signals =
        Signals::new().map_err(|error| SuperviseError::Step("watch for signals", error))?;
    let terminal = streams.terminal.as_ref().map(RawTerminal::new);
    let channel = Box::new(Channel::open(channel, plan, run)?);
    Ok(Opened::Sandbox { channel, signals, terminal, streams })
}

impl Opened {
    /// After this the command's process locks itself down; what it inherits from PID 1 must be there.
    pub(crate) fn ask_for_command(&mut self, plan: &Plan) -> Result<(), SuperviseError> {
        match self {
            Self::Sandbox { channel, terminal, .. } => {
                channel.ask_for_command(plan, terminal.as_ref().map(RawTerminal::size))
            }
            Self::Host(_) => Ok(()),
        }
    }
}

/// Attests, lets go, carries the streams, keeps the deadline. Returns when nothing is left to carry.
pub(crate) fn supervise(
    opened: Opened,
    started: &mut Started,
    plan: &Plan,
    expectation: &Expectation,
    disk: Option<DiskLimit>,
    let_go: impl FnOnce(),
) -> Result<Supervised, SuperviseError> {
    let (mut channel, signals, terminal, streams) = match opened {
        Opened::Sandbox { channel, signals, terminal, streams } => {
            (channel, signals, terminal, streams)
        }
        Opened::Host(streams) => return host::supervise(started, plan, streams, let_go),
    };
    let attestation = channel.wait_for_attestation(&signals).map_err(|error| match error {
        SuperviseError::NoAnswer(0) => SuperviseError::SetUp(started.set_up_failure()),
        other => other,
    })?;
    started.join_limits().map_err(SuperviseError::SetUp)?;
    let mut wrong = expectation.compare(&attestation);
    if let (Some(init), Some(uid)) = (started.init_pid, started.command_uid) {
        wrong.extend(host_uid_of_child(init, uid));
    }
    let mut supervised = Supervised { attestation: Some(attestation), ..Supervised::default() };
    if !wrong.is_empty() {
        supervised.not_as_planned = wrong;
        return Ok(supervised);
    }
    let_go();
    channel.let_go()?;
    let begun = Instant::now();
    let disk = Disk::from(disk, begun);
    let state = State::new(plan, begun);
    let sinks = Sinks::new(started, streams, plan.limits.output);
    let mut run = Run { started, channel, signals, terminal, sinks, state, disk, supervised };
    run.follow()?;
    let Run { mut supervised, sinks, terminal, .. } = run;
    drop(terminal); // the caller's terminal as it was, before anything is said
    (supervised.stdout, supervised.stderr) = sinks.captured();
    supervised.usage.wall_ms = begun.elapsed().as_millis() as u64;
    Ok(supervised)
}

struct Run<'a> {
    started: &'a mut Started,
    channel: Box<Channel>,
    signals: Signals,
    terminal: Option<RawTerminal>,
    sinks: Sinks,
    state: State,
    disk: Disk,
    supervised: Supervised,
}

impl Run<'_> {
    fn follow(&mut self) -> Result<(), SuperviseError> {
        while !(self.state.is_over() && self.sinks.are_empty()) {
            self.wait()?;
            self.take_signals();
            self.take_messages();
            if self.sinks.move_bytes(Some(&mut self.channel)) {
                self.state.something_happened(Instant::now());
            }
            self.channel.flush();
            self.keep_time();
            self.keep_disk()?;
        }
        Ok(())
    }

    fn wait(&self) -> Result<(), SuperviseError> {
        let mut fds = vec![PollFd::new(&self.signals.fd, PollFlags::IN)];
        if !self.state.is_over() {
            fds.push(self.channel.poll_fd());
        }
        if let (Disk::Watched(watch), false) = (&self.disk, self.state.is_over()) {
            fds.push(PollFd::new(&watch.fd, PollFlags::IN));
        }
        self.sinks.watch(Some(&self.channel), &mut fds);
        let first_look = self.disk.first_look().filter(|_| !self.state.is_over());
        let next = [self.state.next_moment(), first_look].into_iter().flatten().min();
        wait_until(&mut fds, next)
    }

    /// The first request to end is passed on, the second one ends.
    fn take_signals(&mut self) {
        for signal in self.signals.take() {
            if signal == libc_signal::WINCH {
                if let Some(size) = self.terminal.as_ref().map(RawTerminal::size) {
                    self.channel.resize(size);
                }
                continue;
            }
            match self.state.asked_to_stop(signal, Instant::now()) {
                state::Reaction::Forward => self.channel.signal(signal),
                state::Reaction::ForwardToAll => self.channel.signal_all(signal),
                state::Reaction::Kill => self.started.kill(),
            }
        }
    }

    fn take_messages(&mut self) {
        if self.state.is_over() {
            return;
        }
        match self.channel.read() {
            Ok(news) => {
                for item in news {
                    self.take(item);
                }
            }
            Err(error) => {
                self.supervised.tampered = Some(error);
                self.end();
            }
        }
    }

    fn take(&mut self, news: channel::News) {
        match news {
            channel::News::Terminal(bytes) => {
                self.state.something_happened(Instant::now());
                self.sinks.terminal_output(&bytes);
            }
            channel::News::NotExecuted(failure) => {
                self.supervised.failure = Some(failure);
                self.end();
            }
            channel::News::Exited(status) => {
                self.supervised.status = Some(status);
                self.end();
            }
            channel::News::DeadlinePassed => {
                self.supervised.stopping = Some(Stopping::Deadline);
                self.end();
            }
            channel::News::Gone => self.end(),
        }
    }

    /// The command is over, and with it everything inside; what it wrote before is still carried.
    fn end(&mut self) {
        self.supervised.stopping = self.supervised.stopping.or(self.state.stopping());
        self.started.kill();
        self.state.end();
        self.sinks.close_input();
    }

    fn keep_time(&mut self) {
        match self.state.due(Instant::now()) {
            state::Due::Nothing => {}
            state::Due::AskToStop => self.channel.signal_all(libc_signal::TERM),
            state::Due::Kill => self.started.kill(),
        }
    }
}

impl Run<'_> {
    fn keep_disk(&mut self) -> Result<(), SuperviseError> {
        if self.state.is_over() {
            return Ok(());
        }
        if let Some((limit, begun)) = self.disk.due(Instant::now()) {
            let watch = DiskWatch::start(limit, begun);
            self.disk = Disk::Watched(
                watch.map_err(|error| SuperviseError::Step("watch the disk", error))?,
            );
        }
        if let Disk::Watched(watch) = &self.disk
            && sinks::is_readable(&watch.fd)
        {
            self.supervised.stopping = Some(Stopping::DiskFull);
            self.disk = Disk::Unlimited;
            self.started.kill();
        }
        Ok(())
    }
}

/// Until one of them is ready or the moment has come.
fn wait_until(fds: &mut [PollFd<'_>], moment: Option<Instant>) -> Result<(), SuperviseError> {
    let timeout = moment.map(|at| {
        let left = at.saturating_duration_since(Instant::now());
        rustix::time::Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        }
    });
    match poll(fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(SuperviseError::Step("wait", error)),
    }
}

/// Whether what is written to disk is being looked at.
enum Disk {
    Unlimited,
    Later { limit: DiskLimit, at: Instant, begun: i64 },
    Watched(DiskWatch),
}

impl Disk {
    fn from(limit: Option<DiskLimit>, begun: Instant) -> Self {
        match limit {
            None => Self::Unlimited,
            Some(limit) => Self::Later { limit, at: begun + disk::FIRST_LOOK, begun: disk::now() },
        }
    }

    fn first_look(&self) -> Option<Instant> {
        match self {
            Self::Later { at, .. } => Some(*at),
            Self::Unlimited | Self::Watched(_) => None,
        }
    }

    fn due(&self, now: Instant) -> Option<(DiskLimit, i64)> {
        match self {
            Self::Later { limit, at, begun } if now >= *at => Some((limit.clone(), *begun)),
            _ => None,
        }
    }
}

/// The numbers that are the same on every Linux.
pub(crate) mod libc_signal {
    pub(crate) const HUP: i32 = 1;
    pub(crate) const INT: i32 = 2;
    pub(crate) const QUIT: i32 = 3;
    pub(crate) const TERM: i32 = 15;
    pub(crate) const CHLD: i32 = 17;
    pub(crate) const WINCH: i32 = 28;
}

/// A descriptor of the caller's that is not to be closed with ours.
pub(crate) fn duplicate(fd: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), 3)
}
