//! Runs one command for PID 1: its process, from the fork to its end.
//!
//! Everything that the process reports before it becomes the command goes through one pipe, a line
//! each; the pipe closes by itself then.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use belljar_spec::denied_call::TRACED_FILTER;
use belljar_spec::wire::{
    AttestationKind, Descendants, ExecRequest, Flow, InitSetup, Mux, Stdio, WireError, Work,
};
use belljar_spec::{ExecFailure, ExitStatus};
use belljar_sys::{StepError, step};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, child_subreaper, kill_process, kill_process_group};
use serde_json::Value;

use super::confine;
use super::inside::{ATTESTED, ATTESTED_BRIEF, Handed, Inside, ReportPipe, become_command};
use super::listeners::ListenerSocket;
use super::pump::Pumps;
use super::shim::{ForkedShim, Shim, ShimReport};
use super::terminal::Terminal;
use super::tree::is_stopped_below;
use crate::sys::process::{adopt_descriptor, fork};

/// How long a process may take to lock itself down and attest, and then, once it was let go, to become the command.
/// Another process inside may have the same uid, and stop it.
const STEP_TIMEOUT: Duration = Duration::from_secs(20);
/// The interval of checks on a copy in progress, and how often in a row it may be found stopped.
const COPY_CHECK: Duration = Duration::from_secs(4);
const MAX_STOPS: u32 = 5;

#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("the exec number {0} is still in use")]
    Taken(u32),
    #[error("descriptor {0} does not exist")]
    NotGiven(i32, #[source] Errno),
}

/// What the process reported before it became the command.
pub(super) enum CommandReport {
    /// As text: PID 1 only passes it on, and the launcher reads it as it reads everything from inside.
    Attested {
        message_type: &'static str,
        text: Vec<u8>,
    },
    Failed {
        step: String,
        why: String,
    },
    NotExecuted(ExecFailure),
    Executed,
}

/// What PID 1 has of a command: its process, or the one above it.
enum Process {
    Direct(Pid),
    Below(Shim),
    /// Reaped: its pid may be another process's.
    Gone,
}

/// How far a process has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    AtTheGate,
    Executed,
    /// It reported why it could not become the command.
    Failed,
    /// The launcher needs no report of it any more.
    Dismissed,
}

/// Which process of PID 1's ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChildWas {
    Command,
    Shim,
    /// From inside: what was below it is PID 1's now.
    KilledShim,
}

pub(super) struct Command {
    process: Process,
    descendants: Descendants,
    ended: Option<ExitStatus>,
    standing: Standing,
    gate: Option<OwnedFd>,
    report: Option<OwnedFd>,
    unparsed: Vec<u8>,
    listener: ListenerState,
    runs_program: bool,
    /// When the step that it is at must be done.
    step_by: Option<Instant>,
    /// Only for a copy, which is belljar's work and has no reason to be stopped.
    copy_check: Option<CopyCheck>,
}

/// Where the listener of a command's filter is.
enum ListenerState {
    /// The filter has none.
    None,
    /// The process hands it over before it attests.
    Awaited(ListenerSocket),
    Arrived(OwnedFd),
    /// The one who answers has it.
    Taken,
}

/// What is known about a copy's progress.
#[derive(Clone, Copy)]
struct CopyCheck {
    next: Instant,
    /// How often in a row it was found stopped.
    stops: u32,
}

impl Command {
    pub(super) fn prepare(
        request: ExecRequest,
        setup: &InitSetup,
        pumps: &mut Pumps,
        mux: &mut Mux,
    ) -> Result<Self, CommandError> {
        let streams = streams_of(&request.stdio);
        for (at, (stream, flow)) in streams.iter().enumerate() {
            if let Err(error) = mux.open_for(*stream, *flow) {
                give_up(&streams[..at], mux);
                return Err(error.into());
            }
        }
        let exec = request.exec;
        Self::make(request, setup, pumps).inspect_err(|_| {
            pumps.forget(exec);
            give_up(&streams, mux);
        })
    }

    fn make(
        request: ExecRequest,
        setup: &InitSetup,
        pumps: &mut Pumps,
    ) -> Result<Self, CommandError> {
        let inside = open_streams(&request, setup, pumps)?;
        let (gate_read, gate) = step("make a gate", pipe_with(PipeFlags::CLOEXEC))?;
        let (report, report_write) = step("make a report", pipe_with(PipeFlags::CLOEXEC))?;
        step("read the report without waiting", rustix::io::ioctl_fionbio(&report, true))?;
        let (listener, listener_socket) = match setup.filter == TRACED_FILTER {
            true => {
                let (ours, theirs) =
                    step("make a socket for the listener", ListenerSocket::pair())?;
                (ListenerState::Awaited(ours), Some(theirs))
            }
            false => (ListenerState::None, None),
        };
        let (readback, readback_write) = match request.depth {
            AttestationKind::Full => {
                let (read, write) = step("make a pipe", pipe_with(PipeFlags::CLOEXEC))?;
                (Some(read), Some(write))
            }
            AttestationKind::Brief => (None, None),
        };
        let forked = match request.descendants {
            Descendants::Loose => step("fork", fork())?.map(Process::Direct),
            Descendants::Tracked | Descendants::Bound => match step("fork", Shim::fork())? {
                ForkedShim::Command => None,
                ForkedShim::PidOne(shim) => Some(Process::Below(shim)),
            },
        };
        let Some(process) = forked else {
            let report = ReportPipe(report_write);
            let handed = Handed { gate: gate_read, report, readback, listener_socket };
            become_command(&request, setup, inside, handed);
        };
        if let Some(pipe) = readback_write {
            // Found out while the process locks itself down: it takes a while.
            confine::readback().send(&pipe);
        }
        Ok(Self {
            process,
            descendants: request.descendants,
            ended: None,
            standing: Standing::AtTheGate,
            gate: Some(gate),
            report: Some(report),
            unparsed: Vec::new(),
            listener,
            runs_program: matches!(request.work, Work::Program { .. }),
            step_by: Some(Instant::now() + STEP_TIMEOUT),
            copy_check: match request.work {
                Work::Pack { .. } | Work::Unpack { .. } | Work::List { .. } => {
                    Some(CopyCheck { next: Instant::now() + COPY_CHECK, stops: 0 })
                }
                Work::Program { .. } | Work::Nothing => None,
            },
        })
    }

    pub(super) fn let_go(&mut self) {
        if let Some(gate) = self.gate.take() {
            let _ = rustix::io::write(&gate, b"."); // if it is gone, its end is reported
            self.step_by = Some(Instant::now() + STEP_TIMEOUT);
        }
    }

    /// The process at the gate is not needed: with the gate gone it ends by itself.
    pub(super) fn dismiss(&mut self) {
        if self.standing == Standing::AtTheGate && self.gate.take().is_some() {
            self.standing = Standing::Dismissed;
            self.step_by = Some(Instant::now() + STEP_TIMEOUT); // to end by itself
        }
    }

    /// PID 1's child: the process, or its shim.
    pub(super) fn child(&self) -> Option<Pid> {
        match &self.process {
            Process::Direct(pid) => Some(*pid),
            Process::Below(shim) => Some(shim.pid),
            Process::Gone => None,
        }
    }

    /// Whether the process is this command's shim.
    pub(super) fn is_below(&self, pid: Pid) -> bool {
        matches!(&self.process, Process::Below(shim) if shim.pid == pid)
    }

    pub(super) fn signal(&self, signal: Signal) {
        match &self.process {
            Process::Below(shim) => shim.signal(signal),
            // The command leads its process group; if it has left that, the process itself is signalled.
            Process::Direct(pid) => {
                if kill_process_group(*pid, signal).is_err() {
                    let _ = kill_process(*pid, signal);
                }
            }
            Process::Gone => {}
        }
    }

    /// Without a shim, PID 1 cannot tell this command's orphans from others'.
    pub(super) fn kill_tree(&mut self) {
        match self.shim() {
            Some(shim) => shim.kill_tree(),
            None => self.signal(Signal::KILL),
        }
    }

    pub(super) fn shim(&mut self) -> Option<&mut Shim> {
        match &mut self.process {
            Process::Below(shim) => Some(shim),
            Process::Direct(_) | Process::Gone => None,
        }
    }

    pub(super) fn end_by(&self) -> Option<Instant> {
        match &self.process {
            Process::Below(shim) => shim.end_by(),
            Process::Direct(_) | Process::Gone => None,
        }
    }

    /// When [`Self::check`] has something to do.
    pub(super) fn check_at(&self) -> Option<Instant> {
        let copy = self.copy_check.filter(|_| self.is_copying()).map(|check| check.next);
        [self.step_by, copy].into_iter().flatten().min()
    }

    fn is_copying(&self) -> bool {
        self.standing == Standing::Executed && self.ended.is_none()
    }

    /// Ends a process that does not become the command in time, and a copy that does not progress because a process inside
    /// stops it.
    pub(super) fn check(&mut self, now: Instant) -> Option<CommandReport> {
        if self.step_by.is_some_and(|by| now >= by) {
            self.step_by = None;
            self.gate = None;
            let was = self.standing;
            if was == Standing::AtTheGate {
                self.standing = Standing::Failed;
            }
            self.kill_tree();
            let why = format!(
                "the process did not answer for {} seconds; another one in the sandbox may have stopped it",
                STEP_TIMEOUT.as_secs()
            );
            return (was == Standing::AtTheGate)
                .then(|| CommandReport::Failed { step: "start the command".to_owned(), why });
        }
        let is_copying = self.is_copying();
        if let (true, Some(child), Some(check)) = (is_copying, self.child(), &mut self.copy_check)
            && now >= check.next
        {
            check.next = now + COPY_CHECK;
            check.stops = if is_stopped_below(child) { check.stops + 1 } else { 0 };
            if check.stops >= MAX_STOPS {
                self.kill_tree();
            }
        }
        None
    }

    /// PID 1's child was reaped.
    pub(super) fn child_ended(&mut self, status: ExitStatus) -> ChildWas {
        let Process::Below(shim) = std::mem::replace(&mut self.process, Process::Gone) else {
            self.ended = Some(status);
            return ChildWas::Command;
        };
        if let (None, Some(ShimReport::Ended(status))) = (self.ended, shim.next_report()) {
            self.ended = Some(status);
        }
        self.ended.get_or_insert(ExitStatus::Signal(9));
        // Where a shim cannot adopt orphans, PID 1 has those that must end with the command.
        let lost_some = self.descendants == Descendants::Bound && child_subreaper().is_err();
        // A shim ends by itself when nothing is below it; all else was done to it.
        match status {
            ExitStatus::Code(0) if !lost_some => ChildWas::Shim,
            _ => ChildWas::KilledShim,
        }
    }

    /// Whether its end can be reported: all its reports have been read, and what was to end is gone.
    pub(super) fn is_over(&self) -> bool {
        let ending = matches!(&self.process, Process::Below(shim) if shim.is_ending());
        self.ended.is_some() && self.report.is_none() && !ending
    }

    /// The exit status to report, and the shim that stays for what still lives.
    pub(super) fn finish(self) -> (Option<ExitStatus>, Option<Shim>) {
        let status = self.ended.filter(|_| self.standing == Standing::Executed);
        match self.process {
            Process::Below(shim) => (status, Some(shim)),
            Process::Direct(_) | Process::Gone => (status, None),
        }
    }

    /// Everything that can become readable.
    pub(super) fn reports(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let shim = match &self.process {
            // Once it has reported the end there is nothing more to come.
            Process::Below(shim) if self.ended.is_none() => Some(shim.report()),
            _ => None,
        };
        let listener = match &self.listener {
            ListenerState::Awaited(socket) => Some(socket.as_fd()),
            ListenerState::None | ListenerState::Arrived(_) | ListenerState::Taken => None,
        };
        // Only while there is a report: a process that ended without handing one over leaves a socket at its end.
        let listener = listener.filter(|_| self.report.is_some());
        self.report.as_ref().map(AsFd::as_fd).into_iter().chain(shim).chain(listener)
    }

    /// Whether refused calls of this command are the command's, and not of belljar's own work.
    pub(super) fn runs_program(&self) -> bool {
        self.runs_program
    }

    /// The listener of its filter, once, when the process has handed it over.
    pub(super) fn take_listener(&mut self) -> Option<OwnedFd> {
        self.receive_listener();
        match std::mem::replace(&mut self.listener, ListenerState::Taken) {
            ListenerState::Arrived(listener) => Some(listener),
            other => {
                self.listener = other;
                None
            }
        }
    }

    fn receive_listener(&mut self) {
        if let ListenerState::Awaited(socket) = &self.listener
            && let Some(listener) = socket.receive()
        {
            self.listener = ListenerState::Arrived(listener);
        }
    }

    pub(super) fn read_reports(&mut self) -> Vec<CommandReport> {
        let mut reports = self.read_report();
        if let Process::Below(shim) = &mut self.process
            && self.ended.is_none()
        {
            match shim.next_report() {
                Some(ShimReport::Ended(status)) => {
                    self.ended = Some(status);
                    if self.descendants == Descendants::Bound {
                        shim.kill_tree(); // and only then is it over
                    }
                }
                Some(ShimReport::NotForked(error)) => reports = self.not_forked(error),
                None => {}
            }
        }
        if self.standing == Standing::Dismissed { Vec::new() } else { reports }
    }

    fn read_report(&mut self) -> Vec<CommandReport> {
        const MAX_REPORT: usize = 1024 * 1024;
        let mut reports = Vec::new();
        let mut buffer = [0; 4096];
        while let Some(report) = &self.report {
            match rustix::io::read(report, &mut buffer) {
                Ok(0) => {
                    self.report = None;
                    self.step_by = None;
                    if self.standing == Standing::AtTheGate {
                        self.standing = Standing::Executed;
                        reports.push(CommandReport::Executed);
                    }
                }
                Ok(length) if self.unparsed.len() + length <= MAX_REPORT => {
                    self.unparsed.extend_from_slice(&buffer[..length]);
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                _ => (self.report, self.step_by) = (None, None),
            }
            while let Some(end) = self.unparsed.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unparsed.drain(..=end).collect();
                let line = self.checked(read_line(&line));
                let attested = matches!(line, CommandReport::Attested { .. });
                if self.gate.is_some() {
                    self.step_by = None; // now it is the launcher's turn
                }
                if !attested && self.standing == Standing::AtTheGate {
                    self.standing = Standing::Failed;
                }
                reports.push(line);
            }
        }
        reports
    }

    /// A process that attests has handed its listener over: without one, nobody would count its calls.
    fn checked(&mut self, report: CommandReport) -> CommandReport {
        self.receive_listener();
        match (&self.listener, report) {
            (ListenerState::Awaited(_), CommandReport::Attested { .. }) => {
                self.gate = None; // it ends there
                CommandReport::Failed {
                    step: "trace refused calls".to_owned(),
                    why: "the listener for them did not arrive".to_owned(),
                }
            }
            (_, report) => report,
        }
    }

    /// The report's end then meant that there never was a process.
    fn not_forked(&mut self, error: Errno) -> Vec<CommandReport> {
        self.step_by = None;
        self.standing = Standing::Failed;
        let why = std::io::Error::from(error).to_string();
        vec![CommandReport::Failed { step: "fork".to_owned(), why }]
    }
}

fn read_line(line: &[u8]) -> CommandReport {
    for (prefix, message_type) in [(ATTESTED, "attested"), (ATTESTED_BRIEF, "attested_brief")] {
        if let Some(attestation) = line.strip_prefix(prefix) {
            return CommandReport::Attested {
                message_type,
                text: attestation.trim_ascii_end().to_vec(),
            };
        }
    }
    let unreadable = || CommandReport::Failed {
        step: "attest".to_owned(),
        why: "an unreadable report".to_owned(),
    };
    let Ok(Value::Object(mut map)) = serde_json::from_slice(line) else { return unreadable() };
    let text = |value: Option<Value>| {
        value.and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
    };
    if let Some(failure) = map.remove("not_executed") {
        return serde_json::from_value(failure)
            .map_or_else(|_| unreadable(), CommandReport::NotExecuted);
    }
    CommandReport::Failed { step: text(map.remove("step")), why: text(map.remove("why")) }
}

/// Each stream of the channel, and who writes to it, as seen from inside.
fn streams_of(stdio: &Stdio) -> Vec<(u32, Flow)> {
    match *stdio {
        Stdio::Given { .. } => Vec::new(),
        Stdio::Streams { stdin, stdout, stderr } => stdin
            .map(|stream| (stream, Flow::Incoming))
            .into_iter()
            .chain([(stdout, Flow::Outgoing), (stderr, Flow::Outgoing)])
            .collect(),
        Stdio::Pty { stream, .. } => vec![(stream, Flow::Bidirectional)],
    }
}

/// These streams failed: both ends drop them.
fn give_up(streams: &[(u32, Flow)], mux: &mut Mux) {
    for (stream, _) in streams {
        mux.reset(*stream);
        mux.end(*stream);
    }
}

/// The command's streams: pipes that the launcher made, streams of the channel, or a terminal.
fn open_streams(
    request: &ExecRequest,
    setup: &InitSetup,
    pumps: &mut Pumps,
) -> Result<Inside, CommandError> {
    match request.stdio {
        Stdio::Given { stdin, stdout, stderr } => {
            let take = |fd| adopt_descriptor(fd).map_err(|error| CommandError::NotGiven(fd, error));
            Ok(Inside { stdio: [take(stdin)?, take(stdout)?, take(stderr)?], terminal: None })
        }
        Stdio::Streams { stdin, stdout, stderr } => {
            let pipe = || step("make a pipe", pipe_with(PipeFlags::CLOEXEC));
            let (out_read, out_write) = pipe()?;
            let (err_read, err_write) = pipe()?;
            pumps.add_outlet(request.exec, stdout, out_read);
            pumps.add_outlet(request.exec, stderr, err_read);
            let input = match stdin {
                Some(stream) => {
                    let (read, write) = pipe()?;
                    pumps.add_inlet(request.exec, stream, write);
                    read
                }
                None => step("open /dev/null", open_null())?,
            };
            Ok(Inside { stdio: [input, out_write, err_write], terminal: None })
        }
        Stdio::Pty { stream, rows, columns } => {
            let Terminal { ours, theirs } =
                step("make a terminal", Terminal::open(setup.user, rows, columns))?;
            let again =
                |fd: &OwnedFd| step("copy a descriptor", rustix::io::fcntl_dupfd_cloexec(fd, 10));
            let stdio = [again(&theirs)?, again(&theirs)?, again(&theirs)?];
            pumps.add_terminal(request.exec, stream, ours);
            Ok(Inside { stdio, terminal: Some(theirs) })
        }
    }
}

fn open_null() -> Result<OwnedFd, Errno> {
    use rustix::fs::{Mode, OFlags, open};
    open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}
