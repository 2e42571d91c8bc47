//! The launcher's end of the channel.

mod events;

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use belljar_backend::{CommandStreams, InitChannel, Link, Wrapping};
use belljar_spec::wire::control::TaskStreams;
use belljar_spec::wire::{
    AttestationKind, Descendants, ENTER_WORKDIR, ExecRequest, Flow, FrameKey, FrameVersion,
    InitSetup, LauncherHello, Mux, PROTOCOL_MAX, PROTOCOL_MIN, Side, Stdio, ToInit, WireError,
    Work,
};
use belljar_spec::{Attestation, Plan, RunId, Stdin, Terminal};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

pub(super) use self::events::InitEvent;
use super::SuperviseError;
use super::lease::Lease;
use super::outside::Signals;
use super::packets::Packets;
use super::readiness::wait_until;
use super::reconnect::{LinkEvent, Reconnect};

/// The run's own command.
pub(super) const MAIN_EXEC: u32 = 0;
/// The stream of its terminal.
pub(super) const TERMINAL: u32 = 1;
/// The streams of a command that has no pipes.
pub(super) const OWN: TaskStreams = TaskStreams::MAIN_EXEC;
/// Where PID 1 finds the pipes that it was started with.
const PIPES: Stdio = Stdio::Given { stdin: 4, stdout: 5, stderr: 6 };
/// From the start to the attestation; on a machine under heavy load too.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Before the loop looks at everything else again.
const READ_AT_ONCE: usize = 256 * 1024;

/// Rows and columns.
pub(super) type Size = (u16, u16);

/// Whether a channel without a link has one again.
#[derive(PartialEq, Eq)]
enum Resumption {
    Waiting,
    Done,
}

#[derive(Debug)]
pub(crate) struct Channel {
    fd: OwnedFd,
    /// Takes off what an engine puts around PID 1's bytes.
    packets: Option<Packets>,
    lease: Option<Lease>,
    /// Only where the link can break.
    reconnect: Option<Reconnect>,
    mux: Mux,
    nonce: String,
    /// Ports on which PID 1 takes connections, and how many it took so far.
    listen: Vec<u16>,
    accepted: u32,
    /// A hello that cannot be worked with.
    bad_hello: Option<SuperviseError>,
    /// The exec besides the main command that may attest as a whole: the transfer of a tree.
    attests_too: Option<u32>,
    /// Data waits for the link to take what is before it: the next turn must come when it has, although nothing is left
    /// to be sent then.
    is_held_up: bool,
    is_closed: bool,
}

impl Channel {
    /// Sends the hello and the set-up.
    pub(super) fn open(
        way: InitChannel,
        setup: InitSetup,
        run: &RunId,
    ) -> Result<Self, SuperviseError> {
        let InitChannel { fd, wrapping, lease, link } = way;
        let step = |name| move |error| SuperviseError::Step(name, error);
        rustix::io::ioctl_fionbio(&fd, true).map_err(step("read the channel without waiting"))?;
        let mut secret = [0; 48];
        getrandom::fill(&mut secret).map_err(|_| SuperviseError::Step("make a key", Errno::IO))?;
        let (key, nonce) = secret.split_at(32);
        let mut bytes = [0; 32];
        bytes.copy_from_slice(key);
        let frame_key = FrameKey::new(bytes);
        let mut mux = Mux::new(Side::Client);
        let reconnect = match (link, lease) {
            // Without a lease PID 1 would wait for ever.
            (Link::Lasting, _) | (Link::Breakable(_), None) => None,
            (Link::Breakable(opener), Some(lease)) => {
                mux.keep_unacknowledged();
                Some(Reconnect::new(opener, &frame_key, lease))
            }
        };
        let nonce = hex(nonce);
        let mut channel = Self {
            fd,
            packets: (wrapping == Wrapping::EnginePackets).then(Packets::default),
            lease: lease.map(Lease::new),
            reconnect,
            mux,
            nonce: nonce.clone(),
            listen: setup.listen.clone(),
            accepted: 0,
            bad_hello: None,
            attests_too: None,
            is_held_up: false,
            is_closed: false,
        };
        channel.send(&ToInit::Hello(LauncherHello {
            min: PROTOCOL_MIN,
            max: PROTOCOL_MAX,
            run: run.to_string(),
            nonce,
            key: hex(key),
            // None in the jail, where the kernel tells when the launcher is gone.
            lease_ms: lease.map(|lease| lease.as_millis() as u64),
        }))?;
        channel.mux.rekey(&frame_key);
        channel.mux.use_version(FrameVersion::V2);
        channel.send(&ToInit::Setup(setup))?;
        channel.flush();
        Ok(channel)
    }

    /// Names the run's own command. PID 1 makes its process now, so whatever PID 1 is to hand down is in
    /// place.
    pub(super) fn ask_for_command(
        &mut self,
        plan: &Plan,
        streams: CommandStreams,
        size: Option<Size>,
    ) -> Result<(), SuperviseError> {
        let stdio = match (plan.command.terminal, plan.command.argv.is_empty(), streams) {
            (Terminal::Pty, false, _) => {
                let (rows, columns) = size.unwrap_or((24, 80));
                Stdio::Pty { stream: TERMINAL, rows, columns }
            }
            (_, _, CommandStreams::Pipes) => PIPES,
            (_, _, CommandStreams::OverChannel) => Stdio::Streams {
                stdin: (plan.command.stdin == Stdin::Passed).then_some(OWN.stdin),
                stdout: OWN.stdout,
                stderr: OWN.stderr,
            },
        };
        let work = match plan.command.argv.as_slice() {
            [] => Work::Nothing,
            argv => Work::Program { argv: argv.to_vec() },
        };
        self.ask_for_exec(&ExecRequest {
            exec: MAIN_EXEC,
            work,
            env: plan.command.env.clone(),
            workdir: plan.command.workdir.clone(),
            stdio,
            depth: AttestationKind::Full,
            descendants: Descendants::Loose,
        })?;
        self.flush();
        Ok(())
    }

    /// Names one more command. Its streams are open on this side when this returns.
    pub(super) fn ask_for_exec(&mut self, request: &ExecRequest) -> Result<(), SuperviseError> {
        let open =
            |mux: &mut Mux, stream, flow| mux.open_for(stream, flow).map_err(SuperviseError::Wire);
        match request.stdio {
            Stdio::Given { .. } => {}
            Stdio::Streams { stdin, stdout, stderr } => {
                if let Some(stdin) = stdin {
                    open(&mut self.mux, stdin, Flow::Outgoing)?;
                }
                open(&mut self.mux, stdout, Flow::Incoming)?;
                open(&mut self.mux, stderr, Flow::Incoming)?;
            }
            Stdio::Pty { stream, .. } => open(&mut self.mux, stream, Flow::Bidirectional)?,
        }
        self.send(&ToInit::Exec(request.clone()))?;
        // After the request: PID 1 knows the stream then. One that this end writes to is not widened.
        request.stream_of_files().into_iter().for_each(|stream| self.mux.widen(stream));
        Ok(())
    }

    /// The process of a transfer attests, and nothing else until it has.
    pub(super) fn expect_attestation_of(&mut self, exec: u32) {
        self.attests_too = Some(exec);
    }

    /// PID 1 cannot be reached any more.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Waits for the hello and the attestation; anything else before them is wrong.
    pub(super) fn wait_for_attestation(
        &mut self,
        signals: &Signals,
    ) -> Result<Box<Attestation>, SuperviseError> {
        let until = Instant::now() + ANSWER_TIMEOUT;
        loop {
            if let Some(event) = self.read().map_err(SuperviseError::Wire)?.into_iter().next() {
                match event {
                    InitEvent::Attested(attestation) => return Ok(attestation),
                    InitEvent::NotPrepared { step, why, .. } if step == ENTER_WORKDIR => {
                        return Err(SuperviseError::Workdir { why });
                    }
                    InitEvent::NotPrepared { step, why, .. } => {
                        return Err(SuperviseError::LockDown { step, why });
                    }
                    InitEvent::Started { .. } | InitEvent::Exited { .. } => {
                        let mut why = "its process ended before it had attested".to_owned();
                        if let Some(text) = self.diagnostics() {
                            why = format!("{why}: {text}");
                        }
                        return Err(SuperviseError::LockDown { step: "lock down".to_owned(), why });
                    }
                    InitEvent::Gone => return Err(SuperviseError::NoAnswer(0)),
                    _ => {
                        return Err(SuperviseError::Wire(protocol_violation(
                            "an event before the attestation",
                        )));
                    }
                }
            }
            if let Some(error) = self.bad_hello.take() {
                return Err(error);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(SuperviseError::NoAnswer(ANSWER_TIMEOUT.as_secs()));
            }
            use super::libc_signal::{CHLD, WINCH};
            if signals.take().iter().any(|signal| !matches!(*signal, WINCH | CHLD)) {
                return Err(SuperviseError::Step("asked to stop before the start", Errno::INTR));
            }
            let mut fds = vec![PollFd::new(&signals.fd, PollFlags::IN)];
            fds.extend(self.poll_fd());
            let moment = self.next_keepalive().map_or(until, |moment| moment.min(until));
            wait_until(&mut fds, Some(moment))?;
            self.flush();
        }
    }

    /// What PID 1 wrote to its diagnostic stream, where it could not send a message.
    pub(super) fn diagnostics(&self) -> Option<String> {
        self.packets.as_ref().and_then(Packets::diagnostics)
    }

    /// When the lease has to be renewed, or a new link is to be tried.
    pub(super) fn next_keepalive(&self) -> Option<Instant> {
        let lease = self.lease.as_ref().map(Lease::next_keepalive);
        let link = self.reconnect.as_ref().and_then(Reconnect::next_moment);
        lease.into_iter().chain(link).min()
    }

    pub(super) fn keep_lease(&mut self, now: Instant) {
        if self.lease.as_mut().is_some_and(|lease| lease.is_due(now)) {
            self.post(&ToInit::Alive);
        }
    }

    pub(super) fn post(&mut self, message: &ToInit) {
        // Every message without a response is short enough.
        let _ = self.mux.send(message);
    }

    pub(super) fn release(&mut self, exec: u32) {
        self.post(&ToInit::Go { exec });
        self.flush();
    }

    /// The process that attested for a sandbox without a command of its own.
    pub(super) fn dismiss(&mut self) {
        self.post(&ToInit::Dismiss { exec: MAIN_EXEC });
        self.flush();
    }

    pub(super) fn signal(&mut self, exec: u32, signal: i32) {
        self.post(&ToInit::Signal { exec, signal });
    }

    pub(super) fn signal_all(&mut self, signal: i32) {
        self.post(&ToInit::SignalAll { signal });
        self.flush();
    }

    pub(super) fn resize(&mut self, exec: u32, (rows, columns): Size) {
        self.post(&ToInit::Resize { exec, rows, columns });
    }

    /// Nothing while there is no link, and the next moment is all there is to wait for.
    pub(super) fn poll_fd(&self) -> Option<PollFd<'_>> {
        if !self.is_up() {
            return self.reconnect.as_ref().and_then(Reconnect::poll_fd);
        }
        let events = if self.mux.outgoing().is_empty() && !self.is_held_up {
            PollFlags::IN
        } else {
            PollFlags::IN | PollFlags::OUT
        };
        Some(PollFd::new(&self.fd, events))
    }

    fn is_up(&self) -> bool {
        self.reconnect.as_ref().is_none_or(Reconnect::is_up)
    }

    pub(super) fn mux(&self) -> &Mux {
        &self.mux
    }

    pub(super) fn mux_mut(&mut self) -> &mut Mux {
        &mut self.mux
    }

    /// How many bytes this stream would take now.
    pub(super) fn room(&self, stream: u32) -> usize {
        self.mux.room(stream)
    }

    pub(super) fn type_in(&mut self, stream: u32, bytes: &[u8]) -> usize {
        if self.mux.room(stream) == 0 {
            self.flush(); // there may be room then
        }
        let taken = self.mux.send_data(stream, bytes);
        self.is_held_up |= taken < bytes.len() && !self.mux.outgoing().is_empty();
        taken
    }

    pub(super) fn end_typing(&mut self, stream: u32) {
        self.mux.end(stream);
    }

    /// Bytes of this stream were passed on.
    pub(super) fn consumed(&mut self, stream: u32, count: usize) {
        self.mux.consumed(stream, count);
    }

    pub(super) fn stop_reading(&mut self, stream: u32) {
        self.mux.reset(stream);
    }

    pub(super) fn flush(&mut self) {
        while !self.mux.outgoing().is_empty() && self.is_up() {
            match rustix::io::write(&self.fd, self.mux.outgoing()) {
                Ok(length) => self.mux.sent(length),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    let length = self.mux.outgoing().len();
                    self.mux.sent(length); // the read side tells that PID 1 is gone
                }
            }
        }
    }

    /// Everything that arrived. An error is final.
    pub(super) fn read(&mut self) -> Result<Vec<InitEvent>, WireError> {
        let mut events = Vec::new();
        self.is_held_up = false; // whoever still waits says so again in this turn
        if !self.is_up() && self.resume(&mut events)? == Resumption::Waiting {
            return Ok(events);
        }
        let mut taken = 0;
        while taken < READ_AT_ONCE {
            match self.read_once()? {
                Ok(0) | Err(Errno::CONNRESET) => {
                    self.link_ended(&mut events);
                    return Ok(events);
                }
                Ok(length) => taken += length,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(events),
                Err(_) if self.reconnect.is_some() => {
                    self.link_ended(&mut events);
                    return Ok(events);
                }
                Err(_) => return Ok(events),
            }
            self.take_arrivals(&mut events)?;
        }
        Ok(events)
    }

    /// How many bytes the kernel gave.
    fn read_once(&mut self) -> Result<Result<usize, Errno>, WireError> {
        let (fd, mux) = (&self.fd, &mut self.mux);
        let Some(packets) = &mut self.packets else {
            return Ok(mux.push_with(|buffer| rustix::io::read(fd, spare_capacity(buffer))));
        };
        let mut buffer = [0; 16 * 1024];
        let read = rustix::io::read(fd, &mut buffer);
        packets.unwrap(&buffer[..*read.as_ref().unwrap_or(&0)], |bytes| mux.push(bytes))?;
        Ok(read)
    }

    /// Over a link that can break, PID 1 may still be there.
    fn link_ended(&mut self, events: &mut Vec<InitEvent>) {
        let now = Instant::now();
        if !self.reconnect.as_mut().is_some_and(|link| link.broke(now)) {
            self.is_closed = true;
            events.push(InitEvent::Gone);
        }
    }

    fn resume(&mut self, events: &mut Vec<InitEvent>) -> Result<Resumption, WireError> {
        let next = self.mux.next_frame();
        let event = self.reconnect.as_mut().map(|link| link.turn(Instant::now(), next));
        match event.unwrap_or(LinkEvent::Over) {
            LinkEvent::Nothing => Ok(Resumption::Waiting),
            LinkEvent::Over => {
                self.is_closed = true;
                events.push(InitEvent::Gone);
                Ok(Resumption::Waiting)
            }
            LinkEvent::Resumed { link, resumed } => {
                self.fd = link;
                self.mux.resume(resumed.peer_next)?;
                self.mux.push(&resumed.rest);
                self.take_arrivals(events)?;
                self.flush();
                Ok(Resumption::Done)
            }
        }
    }

    fn send(&mut self, message: &ToInit) -> Result<(), SuperviseError> {
        self.mux.send(message).map_err(|_| SuperviseError::TooLong)
    }
}

pub(super) fn protocol_violation(what: &str) -> WireError {
    WireError::BadMessage(what.to_owned())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
