//! PID 1's event loop, which owns all state.

mod children;

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use belljar_spec::wire::mux::parse;
use belljar_spec::wire::{
    Arrival, ExecRequest, FIRST_CONNECT_STREAM, FrameKey, FrameVersion, FromInit, InitHello,
    InitSetup, LauncherHello, Mux, PROTOCOL_MAX, PROTOCOL_MIN, Side, ToInit, WireError,
};
use belljar_sys::signal;
use belljar_sys::{StepError, step};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Signal, WaitId, WaitIdOptions, WaitOptions, set_dumpable_behavior, wait,
    waitid,
};

use super::channel::Channel;
use super::command::{Command, CommandError, CommandReport};
use super::connections::Connections;
use super::links::{LinkEvent, Links};
use super::listeners::Listeners;
use super::pump::{Pumps, Ready};
use super::shim::Shim;
use super::{confine, lock_down};

#[derive(Debug, thiserror::Error)]
pub(super) enum InitError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("the channel failed")]
    Wire(#[from] WireError),
    #[error(
        "this belljar supports protocol versions {PROTOCOL_MIN} to {PROTOCOL_MAX}, the launcher {min} to {max}"
    )]
    Protocol { min: u32, max: u32 },
    #[error("unexpected message from the launcher: {0}")]
    OutOfTurn(&'static str),
    #[error(transparent)]
    Confine(#[from] confine::ConfineError),
}

/// Returns when the run is over, for whatever reason. The kernel then ends what is left inside.
pub(super) fn run(channel: fn() -> Result<Channel, Errno>) -> Result<(), InitError> {
    // First of all: from here on no other process can look into this one.
    step("hide from other processes", set_dumpable_behavior(DumpableBehavior::NotDumpable))?;
    let mut channel = step("find the channel", channel())?;
    let children = step("watch for children", signal::read_instead(&[libc::SIGCHLD]))?;
    let lease = channel.first_lease();
    let mut mux = Mux::new(Side::Server);
    if channel.links().is_some() {
        mux.keep_unacknowledged();
    }
    let mut watch = Watch {
        channel,
        children,
        mux,
        setup: None,
        commands: BTreeMap::new(),
        lingering: BTreeMap::new(),
        pumps: Pumps::default(),
        connections: Connections::default(),
        listeners: Listeners::default(),
        lease,
        last_received: Instant::now(),
        deadline: None,
        awaits_quiet: false,
    };
    let over = watch.serve();
    watch.flush_for(Duration::from_secs(1)); // the last messages
    end_everything();
    over
}

struct Watch {
    channel: Channel,
    children: OwnedFd,
    mux: Mux,
    setup: Option<InitSetup>,
    commands: BTreeMap<u32, Command>,
    /// Shims of commands that ended while something they had started lives on.
    lingering: BTreeMap<u32, Shim>,
    pumps: Pumps,
    connections: Connections,
    listeners: Listeners,
    lease: Option<Duration>,
    last_received: Instant,
    deadline: Option<Instant>,
    /// Everything was asked to end, and the launcher waits for the message that it did.
    awaits_quiet: bool,
}

/// Whether the loop continues.
#[derive(PartialEq, Eq)]
enum LoopState {
    Running,
    Over,
}

impl Watch {
    fn serve(&mut self) -> Result<(), InitError> {
        loop {
            self.flush()?;
            let ready = self.wait()?;
            if self.time_is_up()? {
                return Ok(());
            }
            if ready.channel && self.read_channel()? == LoopState::Over {
                return Ok(());
            }
            self.read_reports()?;
            if ready.listeners {
                self.listeners.answer();
            }
            self.check_commands()?; // after their reports
            self.pumps.move_bytes(&ready.streams, &mut self.mux);
            self.connections.move_bytes(&ready.connections, &mut self.mux);
            if ready.children || self.awaits_quiet {
                self.reap()?;
            }
            self.finish_commands()?;
            if self.calls_are_due() {
                self.report_calls()?;
            }
            self.report_quiet()?;
        }
    }

    fn wait(&self) -> Result<Ready, InitError> {
        let (input, output) = (self.channel.input(), self.channel.output());
        let writes = !self.mux.outgoing().is_empty() && self.channel.is_up();
        let both = PollFlags::IN | PollFlags::OUT;
        let channel_events = if writes && self.channel.is_one() { both } else { PollFlags::IN };
        let channel = self.channel.broken().unwrap_or_else(|| PollFd::new(&input, channel_events));
        let mut fds = vec![channel, PollFd::new(&self.children, PollFlags::IN)];
        if writes && !self.channel.is_one() {
            fds.push(PollFd::new(&output, PollFlags::OUT));
        }
        let reports: Vec<BorrowedFd<'_>> =
            self.commands.values().flat_map(Command::reports).collect();
        fds.extend(reports.iter().map(|report| PollFd::new(report, PollFlags::IN)));
        let before = fds.len();
        let streams = self.pumps.watch(&self.mux, &mut fds);
        let between = fds.len();
        let connections = self.connections.watch(&self.mux, &mut fds);
        let past_connections = fds.len();
        self.listeners.watch(&mut fds);
        let timeout = self.next_moment().map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            rustix::time::Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            }
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(StepError::new("wait", error).into()),
        }
        let happened = |at: usize| !fds[at].revents().is_empty();
        let streams = (before..).zip(streams).filter(|(at, _)| happened(*at));
        let streams = streams.map(|(_, stream)| stream).collect();
        let connections = (between..).zip(connections).filter(|(at, _)| happened(*at));
        let connections = connections.map(|(_, watched)| watched).collect();
        let listeners = (past_connections..fds.len()).any(happened);
        Ok(Ready { channel: happened(0), children: happened(1), streams, connections, listeners })
    }

    fn next_moment(&self) -> Option<Instant> {
        let lease = self.lease.map(|lease| self.last_received + lease);
        let slow = self.slow_shims().map(|(by, _)| by).min();
        let checks = self.commands.values().filter_map(Command::check_at).min();
        let connections = self.connections.next_moment();
        let listeners = self.listeners.next_moment();
        let calls = self.listeners.report_at().filter(|_| self.can_report_calls());
        let all = [lease, self.deadline, slow, checks, connections, listeners, calls];
        all.into_iter().flatten().min()
    }

    /// While the launcher has not read the last message, counts go on.
    fn can_report_calls(&self) -> bool {
        self.mux.outgoing().is_empty() && self.channel.is_up()
    }

    fn calls_are_due(&self) -> bool {
        let is_due = self.listeners.report_at().is_some_and(|at| Instant::now() >= at);
        is_due && self.can_report_calls()
    }

    fn report_calls(&mut self) -> Result<(), InitError> {
        let calls = self.listeners.take_counts();
        if !calls.is_empty() {
            self.mux.send(&FromInit::CallsDenied { calls })?;
        }
        Ok(())
    }

    /// When a shim that was ordered to end its tree must have done so.
    fn slow_shims(&self) -> impl Iterator<Item = (Instant, u32)> {
        let commands = self.commands.iter().map(|(exec, command)| (command.end_by(), *exec));
        let lingering = self.lingering.iter().map(|(exec, shim)| (shim.end_by(), *exec));
        commands.chain(lingering).filter_map(|(by, exec)| Some((by?, exec)))
    }

    fn time_is_up(&mut self) -> Result<bool, InitError> {
        let now = Instant::now();
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            self.report_calls()?;
            self.mux.send(&FromInit::DeadlinePassed)?;
            return Ok(true);
        }
        let slow: Vec<u32> =
            self.slow_shims().filter(|(by, _)| now >= *by).map(|(_, exec)| exec).collect();
        for exec in slow {
            let shim = self.commands.get_mut(&exec).and_then(Command::shim);
            if let Some(shim) = shim.or(self.lingering.get_mut(&exec)) {
                shim.kill(); // what is below it comes to us, and ends then
            }
        }
        Ok(self.lease.is_some_and(|lease| now >= self.last_received + lease))
    }

    fn read_channel(&mut self) -> Result<LoopState, InitError> {
        if !self.channel.is_up() && self.resume()? == LoopState::Over {
            return Ok(LoopState::Over);
        }
        while self.channel.is_up() {
            let input = self.channel.input();
            match self.mux.push_with(|buffer| rustix::io::read(input, spare_capacity(buffer))) {
                // The launcher is gone, or only the link to it.
                Ok(0) | Err(Errno::CONNRESET) => {
                    let may_come_back = self.channel.links().is_some_and(Links::broke);
                    return Ok(if may_come_back { LoopState::Running } else { LoopState::Over });
                }
                Ok(_) => {}
                Err(Errno::AGAIN) => return Ok(LoopState::Running),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(StepError::new("read the channel", error).into()),
            }
            let frames = self.mux.frames_received();
            if self.take_arrivals()? == LoopState::Over {
                return Ok(LoopState::Over);
            }
            // Only a frame of the launcher renews the lease, not any byte that whatever carries the link sends.
            if self.mux.frames_received() != frames {
                self.last_received = Instant::now();
            }
        }
        Ok(LoopState::Running)
    }

    /// The lease counts on until the launcher has proved itself on a new link.
    fn resume(&mut self) -> Result<LoopState, InitError> {
        let next = self.mux.next_frame();
        let Some(links) = self.channel.links() else { return Ok(LoopState::Over) };
        match step("take a new link", links.turn(next))? {
            LinkEvent::Nothing => Ok(LoopState::Running),
            LinkEvent::Over => Ok(LoopState::Over),
            LinkEvent::Resumed { link, resumed } => {
                self.channel.replace(link);
                self.mux.resume(resumed.peer_next)?;
                self.mux.push(&resumed.rest);
                self.last_received = Instant::now();
                self.take_arrivals()
            }
        }
    }

    fn take_arrivals(&mut self) -> Result<LoopState, InitError> {
        while let Some(arrival) = self.mux.next_arrival()? {
            let life = match arrival {
                Arrival::Message(message) => self.handle(parse(&message)?)?,
                other => {
                    self.take(other);
                    LoopState::Running
                }
            };
            if life == LoopState::Over {
                return Ok(life);
            }
        }
        Ok(LoopState::Running)
    }

    /// Something for a stream: a command's or a connection's.
    fn take(&mut self, arrival: Arrival) {
        match &arrival {
            Arrival::Data { stream, .. } | Arrival::End { stream } | Arrival::Reset { stream }
                if *stream >= FIRST_CONNECT_STREAM =>
            {
                self.connections.take(arrival, &mut self.mux);
            }
            _ => self.pumps.take(arrival, &mut self.mux),
        }
    }

    fn handle(&mut self, message: ToInit) -> Result<LoopState, InitError> {
        match message {
            ToInit::Hello(hello) => self.answer(&hello)?,
            ToInit::Setup(setup) => {
                lock_down::init(&setup)?;
                confine::bounding_set();
                self.deadline =
                    setup.deadline_ms.map(|ms| Instant::now() + Duration::from_millis(ms));
                if let Err(error) = self.connections.listen(&setup.listen) {
                    let (step, why) = (
                        "listen for connections".to_owned(),
                        belljar_spec::text::error_chain(&error),
                    );
                    self.mux.send(&FromInit::SetupFailed { exec: 0, step, why })?;
                }
                self.setup = Some(setup);
            }
            ToInit::Exec(request) => self.prepare(request)?,
            ToInit::Go { exec } => {
                if let Some(command) = self.commands.get_mut(&exec) {
                    if command.runs_program() {
                        self.listeners.count(exec);
                    }
                    command.let_go();
                }
            }
            ToInit::Dismiss { exec } => {
                if let Some(command) = self.commands.get_mut(&exec) {
                    command.dismiss();
                }
            }
            ToInit::KillTree { exec } => {
                if let Some(command) = self.commands.get_mut(&exec) {
                    command.kill_tree();
                } else if let Some(shim) = self.lingering.get_mut(&exec) {
                    shim.kill_tree();
                }
            }
            ToInit::Signal { exec, signal } => {
                let command = self.commands.get(&exec);
                if let (Some(command), Some(signal)) = (command, Signal::from_named_raw(signal)) {
                    command.signal(signal);
                }
            }
            ToInit::SignalAll { signal } => {
                if let Some(signal) = Signal::from_named_raw(signal) {
                    signal_everything(signal);
                    self.awaits_quiet = true;
                }
            }
            ToInit::Resize { exec, rows, columns } => {
                self.pumps.resize(exec, rows, columns);
            }
            ToInit::Kill => return Ok(LoopState::Over),
            ToInit::Alive => {}
            ToInit::Connect { stream, port } => {
                self.connections.connect(stream, port, &mut self.mux)?;
            }
        }
        Ok(LoopState::Running)
    }

    fn answer(&mut self, hello: &LauncherHello) -> Result<(), InitError> {
        let LauncherHello { min, max, .. } = *hello;
        if max < PROTOCOL_MIN || min > PROTOCOL_MAX {
            return Err(InitError::Protocol { min, max });
        }
        let key = FrameKey::from_hex(&hello.key).ok_or(InitError::OutOfTurn("a malformed key"))?;
        self.mux.rekey(&key);
        self.mux.use_version(FrameVersion::V2);
        if let Some(links) = self.channel.links() {
            links.set_key(&key);
        }
        // Without a lease a broken link would be waited for without end.
        let least = self.channel.links().and(self.lease);
        self.lease = hello.lease_ms.map(Duration::from_millis).or(least);
        let version = max.min(PROTOCOL_MAX);
        let answer = InitHello { version, run: hello.run.clone(), nonce: hello.nonce.clone() };
        Ok(self.mux.send(&FromInit::Hello(answer))?)
    }

    fn prepare(&mut self, request: ExecRequest) -> Result<(), InitError> {
        let setup =
            self.setup.as_ref().ok_or(InitError::OutOfTurn("a command before the set-up"))?;
        let exec = request.exec;
        let copied = request.stream_of_files();
        if self.commands.contains_key(&exec) || self.lingering.contains_key(&exec) {
            return self.refuse(exec, &CommandError::Taken(exec));
        }
        match Command::prepare(request, setup, &mut self.pumps, &mut self.mux) {
            Ok(command) => {
                self.commands.insert(exec, command);
                copied.into_iter().for_each(|stream| self.pumps.widen(stream, &mut self.mux));
                Ok(())
            }
            Err(error) => self.refuse(exec, &error),
        }
    }

    fn refuse(&mut self, exec: u32, error: &CommandError) -> Result<(), InitError> {
        let (step, why) =
            ("prepare the command".to_owned(), belljar_spec::text::error_chain(error));
        Ok(self.mux.send(&FromInit::SetupFailed { exec, step, why })?)
    }

    /// Reads the reports of the processes that will become commands.
    fn read_reports(&mut self) -> Result<(), InitError> {
        for (exec, command) in &mut self.commands {
            let exec = *exec;
            let reports = command.read_reports();
            // Its process handed it over before it attested.
            if let Some(listener) = command.take_listener() {
                self.listeners.add(exec, listener);
            }
            for report in reports {
                pass_on(exec, report, &mut self.mux)?;
            }
        }
        Ok(())
    }

    /// Ends processes that make no progress because a process inside stops them.
    fn check_commands(&mut self) -> Result<(), InitError> {
        let now = Instant::now();
        for (exec, command) in &mut self.commands {
            if command.check_at().is_some_and(|at| now >= at)
                && let Some(report) = command.check(now)
            {
                pass_on(*exec, report, &mut self.mux)?;
            }
        }
        Ok(())
    }

    /// Sent once, where the host may not see it otherwise.
    fn report_quiet(&mut self) -> Result<(), InitError> {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if self.awaits_quiet
            && self.commands.is_empty()
            && matches!(waitid(WaitId::All, look), Err(Errno::CHILD))
        {
            self.awaits_quiet = false;
            self.mux.send(&FromInit::Quiet)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), InitError> {
        while !self.mux.outgoing().is_empty() && self.channel.is_up() {
            match rustix::io::write(self.channel.output(), self.mux.outgoing()) {
                Ok(length) => self.mux.sent(length),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    let length = self.mux.outgoing().len();
                    self.mux.sent(length); // the launcher does not read it; the read side will see the end
                }
                Err(error) => return Err(StepError::new("write to the channel", error).into()),
            }
        }
        Ok(())
    }

    fn flush_for(&mut self, at_most: Duration) {
        let until = Instant::now() + at_most;
        while self.channel.is_up()
            && self.flush().is_ok()
            && !self.mux.outgoing().is_empty()
            && Instant::now() < until
        {
            let output = self.channel.output();
            let mut fds = [PollFd::new(&output, PollFlags::OUT)];
            let moment = rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            let _ = poll(&mut fds, Some(&moment));
        }
    }
}

/// To the launcher.
fn pass_on(exec: u32, report: CommandReport, mux: &mut Mux) -> Result<(), WireError> {
    let message = match report {
        CommandReport::Attested { message_type, text } => {
            let head = format!(r#"{{"message":"{message_type}","exec":{exec},"attestation":"#);
            return mux.send_text(&[head.as_bytes(), &text, b"}"].concat());
        }
        CommandReport::Failed { step, why } => FromInit::SetupFailed { exec, step, why },
        CommandReport::NotExecuted(failure) => FromInit::ExecFailed { exec, failure },
        CommandReport::Executed => FromInit::Started { exec },
    };
    mux.send(&message)
}

/// Signals every process but this one.
fn signal_everything(signal: Signal) {
    // An error means that there is no other process, and then all is done.
    let _ = signal::send_to_all(signal.as_raw());
}

fn end_everything() {
    signal_everything(Signal::KILL);
    while !matches!(wait(WaitOptions::empty()), Err(Errno::CHILD)) {}
}
