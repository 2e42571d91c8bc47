//! The launcher's end of the channel.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use belljar_spec::wire::mux::parse;
use belljar_spec::wire::{
    Arrival, ExecRequest, FrameKey, FromInit, InitHello, InitSetup, LauncherHello, Mux,
    PROTOCOL_MAX, PROTOCOL_MIN, Side, Stdio, ToInit, WireError,
};
use belljar_spec::{
    Access, Attestation, ExecFailure, ExitStatus, MountKind, OsText, Plan, RunId, Terminal, Tree,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::SuperviseError;
use super::outside::Signals;

/// The run's own command.
const COMMAND: u32 = 0;
/// The stream of its terminal.
const TERMINAL: u32 = 1;
/// Where PID 1 finds the pipes that it was started with.
const PIPES: Stdio = Stdio::Given { stdin: 4, stdout: 5, stderr: 6 };
/// From the start to the attestation; on a machine under heavy load too.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// PID 1's own clock only matters when the launcher's does not work.
const INIT_DEADLINE_AFTER: Duration = Duration::from_secs(5);

/// Rows and columns.
pub(super) type Size = (u16, u16);

/// What PID 1 told.
pub(super) enum News {
    Terminal(Vec<u8>),
    NotExecuted(ExecFailure),
    Exited(ExitStatus),
    DeadlinePassed,
    /// The channel closed.
    Gone,
}

pub(crate) struct Channel {
    fd: OwnedFd,
    mux: Mux,
    nonce: String,
    early: Option<Result<Box<Attestation>, SuperviseError>>,
}

impl Channel {
    /// Sends the hello and the set-up.
    pub(super) fn open(fd: OwnedFd, plan: &Plan, run: &RunId) -> Result<Self, SuperviseError> {
        let step = |name| move |error| SuperviseError::Step(name, error);
        rustix::io::ioctl_fionbio(&fd, true).map_err(step("read the channel without waiting"))?;
        let mut secret = [0; 48];
        getrandom::fill(&mut secret).map_err(|_| SuperviseError::Step("make a key", Errno::IO))?;
        let (key, nonce) = secret.split_at(32);
        let nonce = hex(nonce);
        let mut channel =
            Self { fd, mux: Mux::new(Side::Launcher), nonce: nonce.clone(), early: None };
        channel.open_with(&ToInit::Hello(LauncherHello {
            min: PROTOCOL_MIN,
            max: PROTOCOL_MAX,
            run: run.to_string(),
            nonce,
            key: hex(key),
            lease_ms: None, // the kernel tells when a jail's launcher is gone
        }))?;
        let mut bytes = [0; 32];
        bytes.copy_from_slice(key);
        channel.mux.rekey(&FrameKey::new(bytes));
        channel.open_with(&ToInit::Setup(setup(plan)))?;
        channel.flush();
        Ok(channel)
    }

    /// Names the command. PID 1 makes its process now, so whatever PID 1 is to hand down is in place.
    pub(super) fn ask_for_command(
        &mut self,
        plan: &Plan,
        size: Option<Size>,
    ) -> Result<(), SuperviseError> {
        let stdio = match plan.command.terminal {
            Terminal::None => PIPES,
            Terminal::Pty => {
                let (rows, columns) = size.unwrap_or((24, 80));
                self.mux.open(TERMINAL).map_err(SuperviseError::Wire)?;
                Stdio::Pty { stream: TERMINAL, rows, columns }
            }
        };
        self.open_with(&ToInit::Exec(ExecRequest {
            exec: COMMAND,
            argv: plan.command.argv.clone(),
            env: plan.command.env.clone(),
            workdir: plan.command.workdir.clone(),
            stdio,
        }))?;
        self.flush();
        Ok(())
    }

    /// Waits for the hello and the attestation; anything else before them is wrong.
    pub(super) fn wait_for_attestation(
        &mut self,
        signals: &Signals,
    ) -> Result<Box<Attestation>, SuperviseError> {
        let until = Instant::now() + ANSWER_WITHIN;
        loop {
            for news in self.read().map_err(SuperviseError::Wire)? {
                if matches!(news, News::Gone) {
                    return Err(SuperviseError::NoAnswer(0));
                }
            }
            if let Some(answer) = self.early.take() {
                return answer;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(SuperviseError::NoAnswer(ANSWER_WITHIN.as_secs()));
            }
            if signals.take().iter().any(|signal| *signal != super::libc_signal::WINCH) {
                return Err(SuperviseError::Step("asked to stop before the start", Errno::INTR));
            }
            let timeout = rustix::time::Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            let mut fds = [self.poll_fd(), PollFd::new(&signals.fd, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(SuperviseError::Step("wait", error)),
            }
            self.flush();
        }
    }

    pub(super) fn let_go(&mut self) -> Result<(), SuperviseError> {
        self.say(&ToInit::Go { exec: COMMAND });
        self.flush();
        Ok(())
    }

    pub(super) fn signal(&mut self, signal: i32) {
        self.say(&ToInit::Signal { exec: COMMAND, signal });
    }

    pub(super) fn signal_all(&mut self, signal: i32) {
        self.say(&ToInit::SignalAll { signal });
        self.flush();
    }

    pub(super) fn resize(&mut self, (rows, columns): Size) {
        self.say(&ToInit::Resize { exec: COMMAND, rows, columns });
    }

    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        let events = if self.mux.outgoing().is_empty() {
            PollFlags::IN
        } else {
            PollFlags::IN | PollFlags::OUT
        };
        PollFd::new(&self.fd, events)
    }

    /// How much typing the terminal inside would take now.
    pub(super) fn terminal_room(&self) -> usize {
        self.mux.room(TERMINAL)
    }

    pub(super) fn type_in(&mut self, bytes: &[u8]) -> usize {
        self.mux.send_data(TERMINAL, bytes)
    }

    pub(super) fn end_typing(&mut self) {
        self.mux.end(TERMINAL);
    }

    /// Bytes of the terminal were shown.
    pub(super) fn shown(&mut self, count: usize) {
        self.mux.consumed(TERMINAL, count);
    }

    pub(super) fn flush(&mut self) {
        while !self.mux.outgoing().is_empty() {
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
    pub(super) fn read(&mut self) -> Result<Vec<News>, WireError> {
        let mut news = Vec::new();
        let mut buffer = [0; 16 * 1024];
        loop {
            match rustix::io::read(&self.fd, &mut buffer) {
                Ok(0) | Err(Errno::CONNRESET) => {
                    news.push(News::Gone);
                    return Ok(news);
                }
                Ok(length) => self.mux.push(&buffer[..length]),
                Err(Errno::INTR) => continue,
                Err(_) => return Ok(news),
            }
            while let Some(arrival) = self.mux.next_arrival()? {
                match arrival {
                    Arrival::Data { bytes, .. } => news.push(News::Terminal(bytes)),
                    Arrival::End { .. } | Arrival::Reset { .. } => {}
                    Arrival::Message(message) => self.hear(parse(&message)?, &mut news)?,
                }
            }
        }
    }

    fn hear(&mut self, message: FromInit, news: &mut Vec<News>) -> Result<(), WireError> {
        let lie = |what: &str| Err(WireError::BadMessage(what.to_owned()));
        match message {
            FromInit::Hello(InitHello { version, nonce, .. }) => {
                if !(PROTOCOL_MIN..=PROTOCOL_MAX).contains(&version) {
                    self.early = Some(Err(SuperviseError::Hello(format!("version {version}"))));
                } else if nonce != self.nonce {
                    return lie("a hello to another launch");
                }
            }
            FromInit::Attested { exec: COMMAND, attestation } => self.early = Some(Ok(attestation)),
            FromInit::SetupFailed { exec: COMMAND, step, why } => {
                self.early = Some(Err(SuperviseError::LockDown { step, why }));
            }
            FromInit::Started { exec: COMMAND } => {}
            FromInit::ExecFailed { exec: COMMAND, failure } => {
                news.push(News::NotExecuted(failure))
            }
            FromInit::Exited { exec: COMMAND, status } => news.push(News::Exited(status)),
            FromInit::DeadlinePassed => news.push(News::DeadlinePassed),
            FromInit::Attested { .. }
            | FromInit::SetupFailed { .. }
            | FromInit::Started { .. }
            | FromInit::ExecFailed { .. }
            | FromInit::Exited { .. } => return lie("news of a command that was never asked for"),
        }
        Ok(())
    }

    fn open_with(&mut self, message: &ToInit) -> Result<(), SuperviseError> {
        self.mux.send(message).map_err(|_| SuperviseError::TooLong)
    }

    fn say(&mut self, message: &ToInit) {
        // A signal or a size is always short enough.
        let _ = self.mux.send(message);
    }
}

fn setup(plan: &Plan) -> InitSetup {
    let mut writable = Vec::new();
    let mut write_check = Vec::new();
    for mount in &plan.mounts {
        match &mount.what {
            MountKind::Bind { access: Access::Writable, tree, .. } => {
                writable.push(mount.target.clone());
                // Nothing is ever made in a user's tree, not even for a moment.
                if *tree == Tree::Own {
                    write_check.push(mount.target.clone());
                }
            }
            MountKind::Tmpfs { .. } => {
                writable.push(mount.target.clone());
                write_check.push(mount.target.clone());
            }
            _ => {}
        }
    }
    writable.push(OsText::from("/dev/shm"));
    let grace = plan.limits.stop_timeout + INIT_DEADLINE_AFTER;
    InitSetup {
        user: plan.identity.inside,
        rlimits: plan.rlimits.clone(),
        filter: plan.filter.clone(),
        writable,
        write_check,
        deadline_ms: plan.limits.time.map(|limit| (limit + grace).as_millis() as u64),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
