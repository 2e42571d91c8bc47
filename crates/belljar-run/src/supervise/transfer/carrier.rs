//! Carries the bytes of one transfer between the channel and a tree, until the process inside exits.

use std::time::{Duration, Instant};

use belljar_spec::wire::control::TaskStreams;
use belljar_spec::wire::{AttestationKind, Descendants, ExecRequest, Stdio, ToInit, Work};
use belljar_spec::{ExitStatus, OsText};
use belljar_workspace::transfer::{Receiver, Sender};
use rustix::event::{PollFd, PollFlags};

use super::super::channel::{Channel, InitEvent};
use super::super::libc_signal;
use super::super::outside::Signals;
use super::super::readiness::wait_until;
use super::{BRING_BACK_TIMEOUT, STALLED_AFTER, TransferError, TransferLink};

/// Of what the process inside writes to its standard error.
const MAX_STDERR: usize = 2048;

/// What a transfer carries.
pub(super) enum Payload {
    Send { sender: Sender, piece: Vec<u8>, at: usize },
    Receive { receiver: Box<Receiver> },
}

/// One transfer under way.
pub(super) struct Carrier {
    exec: u32,
    streams: TaskStreams,
    stderr: Vec<u8>,
    let_go: bool,
    input_ended: bool,
    within: Duration,
    until: Instant,
    stalled_at: Instant,
    interrupts: usize,
}

impl Carrier {
    pub(super) fn begin(
        exec: u32,
        work: Work,
        depth: AttestationKind,
        link: &mut TransferLink<'_>,
        within: Duration,
    ) -> Result<Self, TransferError> {
        let streams = TaskStreams::of(exec).ok_or(TransferError::Closed)?;
        let stdin = matches!(work, Work::Unpack { .. }).then_some(streams.stdin);
        let request = ExecRequest {
            exec,
            work,
            env: link.command.env.clone(),
            workdir: OsText::from("/"),
            stdio: Stdio::Streams { stdin, stdout: streams.stdout, stderr: streams.stderr },
            depth,
            descendants: Descendants::Loose,
        };
        link.channel.expect_attestation_of(exec);
        let asked = link.channel.ask_for_exec(&request);
        asked.map_err(|error| TransferError::Request(Box::new(error)))?;
        link.channel.flush();
        let now = Instant::now();
        let stderr = Vec::new();
        let (until, stalled_at) = (now + within, now + STALLED_AFTER);
        Ok(Self {
            exec,
            streams,
            stderr,
            let_go: false,
            input_ended: stdin.is_none(),
            within,
            until,
            stalled_at,
            interrupts: 0,
        })
    }

    pub(super) fn run(
        mut self,
        link: &mut TransferLink<'_>,
        payload: &mut Payload,
    ) -> Result<(), TransferError> {
        let status = loop {
            for event in link.channel.read().map_err(TransferError::Wire)? {
                if let Some(status) = self.take(event, link, payload)? {
                    return self.check(status);
                }
            }
            if let Payload::Send { sender, piece, at } = payload
                && self.let_go
            {
                self.send(link.channel, (sender, piece, at))?;
            }
            if link.channel.is_closed() {
                break None;
            }
            self.wait(link)?;
        };
        status.map_or(Err(TransferError::Closed), |status| self.check(status))
    }

    fn wait(&mut self, link: &mut TransferLink<'_>) -> Result<(), TransferError> {
        let now = Instant::now();
        if now >= self.until {
            return Err(TransferError::TooLong(self.within));
        }
        if now >= self.stalled_at {
            return Err(TransferError::Stalled);
        }
        self.take_signals(link.signals)?;
        link.channel.keep_lease(now);
        link.channel.flush();
        let mut moment = self.until.min(self.stalled_at);
        moment = link.channel.next_keepalive().map_or(moment, |keepalive| keepalive.min(moment));
        let mut fds = vec![PollFd::new(&link.signals.fd, PollFlags::IN)];
        fds.extend(link.channel.poll_fd());
        let waited = wait_until(&mut fds, Some(moment));
        waited.map_err(|error| TransferError::Wait(Box::new(error)))
    }

    /// Before the command has started, one request to stop is enough. At the end the first one may have ended the
    /// command, and only one more gives up what it did.
    fn take_signals(&mut self, signals: &Signals) -> Result<(), TransferError> {
        let ends = |signal: &i32| !matches!(*signal, libc_signal::WINCH | libc_signal::CHLD);
        self.interrupts += signals.take().iter().filter(|signal| ends(signal)).count();
        let allowed = usize::from(self.within == BRING_BACK_TIMEOUT);
        match self.interrupts > allowed {
            true => Err(TransferError::Interrupted),
            false => Ok(()),
        }
    }

    /// The answer is how the process ended.
    fn take(
        &mut self,
        event: InitEvent,
        link: &mut TransferLink<'_>,
        payload: &mut Payload,
    ) -> Result<Option<ExitStatus>, TransferError> {
        match event {
            InitEvent::Attested(attestation) if !self.let_go => {
                self.release(link, link.expectation.compare(&attestation))?;
            }
            InitEvent::AttestedBrief { exec, attestation } if exec == self.exec && !self.let_go => {
                let names: Vec<OsText> =
                    link.command.env.keys().map(|name| OsText::from(name.as_str())).collect();
                self.release(link, link.expectation.compare_brief(&attestation, &names))?;
            }
            InitEvent::NotPrepared { exec, step, why } if exec == self.exec => {
                return Err(TransferError::NotPrepared { step, why });
            }
            InitEvent::Exited { exec, status } if exec == self.exec => return Ok(Some(status)),
            InitEvent::Data { stream, bytes } => {
                self.stalled_at = Instant::now() + STALLED_AFTER;
                self.data(stream, &bytes, payload)?;
                link.channel.consumed(stream, bytes.len());
            }
            InitEvent::Reset { stream } if stream == self.streams.stdin => self.input_ended = true,
            InitEvent::Gone => return Err(TransferError::Closed),
            // Of commands that were ended for this, and of connections that nothing listens to any more.
            _ => {}
        }
        Ok(None)
    }

    fn release(
        &mut self,
        link: &mut TransferLink<'_>,
        wrong: Vec<String>,
    ) -> Result<(), TransferError> {
        if !wrong.is_empty() {
            link.channel.post(&ToInit::Dismiss { exec: self.exec });
            return Err(TransferError::NotAsPlanned(wrong.join("; ")));
        }
        self.let_go = true;
        link.channel.release(self.exec);
        Ok(())
    }

    fn data(
        &mut self,
        stream: u32,
        bytes: &[u8],
        payload: &mut Payload,
    ) -> Result<(), TransferError> {
        match payload {
            Payload::Receive { receiver } if stream == self.streams.stdout => {
                receiver.feed(bytes)?;
            }
            _ if stream == self.streams.stderr => {
                let room = MAX_STDERR.saturating_sub(self.stderr.len());
                self.stderr.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
            Payload::Receive { .. } | Payload::Send { .. } => {}
        }
        Ok(())
    }

    fn send(
        &mut self,
        channel: &mut Channel,
        (sender, piece, at): (&mut Sender, &mut Vec<u8>, &mut usize),
    ) -> Result<(), TransferError> {
        while !self.input_ended {
            if *at == piece.len() {
                piece.clear();
                *at = 0;
                sender.fill(piece)?;
                if piece.is_empty() {
                    self.input_ended = true;
                    channel.end_typing(self.streams.stdin);
                    return Ok(());
                }
            }
            let taken = channel.type_in(self.streams.stdin, &piece[*at..]);
            if taken == 0 {
                return Ok(());
            }
            *at += taken;
            self.stalled_at = Instant::now() + STALLED_AFTER;
            channel.flush();
        }
        Ok(())
    }

    fn check(&self, status: ExitStatus) -> Result<(), TransferError> {
        match (status, self.let_go) {
            (ExitStatus::Code(0), true) => Ok(()),
            _ => {
                let stderr = belljar_spec::text::escape(self.stderr.trim_ascii());
                Err(TransferError::Inside(match stderr.is_empty() {
                    true => format!("{status:?}"),
                    false => stderr,
                }))
            }
        }
    }
}
