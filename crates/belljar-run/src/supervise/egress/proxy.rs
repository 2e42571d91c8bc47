//! The supervisor's side of the proxy: its process, and the socket between them.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use belljar_egress::control::{ControlError, FromProxy, Setup, ToProxy, Trust, receive, send};
use belljar_spec::egress::{EgressEvent, SecretValue};
use belljar_spec::network_list::NetworkList;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};

use super::process::{ARGUMENT, OWN_AUTHORITIES};
use crate::supervise::readiness::wait_until;

/// From its start to its first message; on a machine under heavy load too.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Before the next source has its turn.
const MAX_EVENTS: usize = 64;
/// Of what it wrote to standard error before it died.
const MAX_STDERR: usize = 2000;

#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    #[error("cannot start the proxy")]
    Start(#[source] std::io::Error),
    #[error("cannot send the proxy its settings")]
    SendSettings(#[source] ControlError),
    #[error("the proxy rejected its settings: {0}")]
    Settings(String),
    #[error("the proxy ended before it was ready{0}")]
    Ended(String),
    #[error("the proxy was not ready within {0} seconds")]
    Silent(u64),
    #[error("cannot write the run's list of certificate authorities")]
    Trust(#[source] std::io::Error),
}

/// What the proxy reported.
#[derive(Debug, Default)]
pub(super) struct ProxyEvents {
    pub(super) events: Vec<EgressEvent>,
    /// Why it is gone, if it is.
    pub(super) gone: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Proxy {
    child: Child,
    control: OwnedFd,
    /// Its standard error. A write to it never blocks: what does not fit is lost.
    stderr: OwnedFd,
    /// Not yet taken by the socket. No more than there are connections.
    pending: VecDeque<Pending>,
    early: Vec<EgressEvent>,
    readiness: Readiness,
}

#[derive(Debug)]
struct Pending {
    what: ToProxy,
    socket: Option<OwnedFd>,
    /// That of a connection.
    stream: Option<u32>,
}

/// Why the proxy did not do what it was asked to. It has to be ended, since nobody knows what it still allows.
#[derive(Debug)]
pub(super) struct NotApplied(pub(super) String);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestProgress {
    Unsent,
    Sent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readiness {
    Awaited,
    Reported,
}

impl Proxy {
    /// Starts it and sends its settings; it gets ready meanwhile.
    pub(crate) fn start(setup: Setup) -> Result<Self, EgressError> {
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("belljar")
            .arg(ARGUMENT)
            .env_clear()
            .envs(OWN_AUTHORITIES.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
            .stdout(Stdio::null());
        if let Some((setting, file)) = crate::debug_log::for_proxy() {
            command.env(belljar_spec::env::LOG, setting).stdout(file);
        }
        Self::start_as(command, setup)
    }

    pub(super) fn start_as(mut command: Command, setup: Setup) -> Result<Self, EgressError> {
        let failed = |error: Errno| EgressError::Start(error.into());
        let (control, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(failed)?;
        let (stderr, theirs_stderr) =
            pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(failed)?;
        command.stdin(theirs).stderr(theirs_stderr).process_group(0); // ^C at the caller's terminal is not meant for it
        let child = command.spawn().map_err(EgressError::Start)?;
        drop(command); // and with it the other ends
        Self::with(child, control, stderr, setup)
    }

    pub(super) fn with(
        child: Child,
        control: OwnedFd,
        stderr: OwnedFd,
        setup: Setup,
    ) -> Result<Self, EgressError> {
        let failed = |error: Errno| EgressError::Start(error.into());
        let (pending, early, readiness) = (VecDeque::new(), Vec::new(), Readiness::Awaited);
        let proxy = Self { child, control, stderr, pending, early, readiness };
        // From here on an error ends it, when it is dropped.
        rustix::io::ioctl_fionbio(&proxy.control, true).map_err(failed)?;
        send(proxy.control.as_fd(), &ToProxy::Setup(Box::new(setup)), None)
            .map_err(EgressError::SendSettings)?;
        Ok(proxy)
    }

    /// Waits until it is ready. The result is the public part of its authority, if it made one.
    pub(crate) fn wait_until_ready(&mut self) -> Result<Option<Trust>, EgressError> {
        let until = Instant::now() + READY_TIMEOUT;
        loop {
            match receive::<FromProxy>(&self.control) {
                Ok(Some((FromProxy::Ready { trust }, _))) => {
                    self.readiness = Readiness::Reported;
                    return Ok(trust);
                }
                Ok(Some((FromProxy::Failed { why }, _))) => return Err(EgressError::Settings(why)),
                Ok(Some((FromProxy::Event(event), _))) => self.early.push(event),
                Err(ControlError::Io(Errno::AGAIN)) => {}
                Ok(
                    None | Some((FromProxy::Narrowed { .. } | FromProxy::ListChanged { .. }, _)),
                )
                | Err(_) => {
                    return Err(EgressError::Ended(self.exit_text()));
                }
            }
            if Instant::now() >= until {
                return Err(EgressError::Silent(READY_TIMEOUT.as_secs()));
            }
            let mut fds = [PollFd::new(&self.control, PollFlags::IN)];
            let _ = wait_until(&mut fds, Some(until)); // an error comes back from the read
        }
    }

    /// Reports the end of the set-up, and waits until the proxy has closed the set-up's access. Connections that it has
    /// not taken yet belong to the set-up, and are closed. The result is how many connections it closed.
    pub(super) fn narrow(&mut self, within: Duration) -> Result<u64, NotApplied> {
        self.pending.retain(|pending| pending.stream.is_none());
        let what = "close the set-up's access";
        self.ask(&ToProxy::Narrow, what, within, |answer| match answer {
            FromProxy::Narrowed { closed } => Some(*closed),
            _ => None,
        })
    }

    /// Gives it another list, and waits until that is in force. The result is how much it closed.
    pub(super) fn change_list(
        &mut self,
        list: NetworkList,
        within: Duration,
    ) -> Result<u64, NotApplied> {
        let request = ToProxy::ChangeList(Box::new(list));
        self.ask(&request, "apply the new list", within, |answer| match answer {
            FromProxy::ListChanged { closed } => Some(*closed),
            _ => None,
        })
    }

    fn ask(
        &mut self,
        request: &ToProxy,
        what: &str,
        within: Duration,
        read: impl Fn(&FromProxy) -> Option<u64>,
    ) -> Result<u64, NotApplied> {
        let until = Instant::now() + within;
        let mut progress = RequestProgress::Unsent;
        loop {
            self.flush();
            if progress == RequestProgress::Unsent && self.pending.is_empty() {
                match send(self.control.as_fd(), request, None) {
                    Ok(()) => progress = RequestProgress::Sent,
                    Err(ControlError::Io(Errno::AGAIN)) => {}
                    // One that is gone is found by the next read.
                    Err(_) => progress = RequestProgress::Sent,
                }
            }
            match receive::<FromProxy>(&self.control) {
                Ok(Some((FromProxy::Event(event), _))) => {
                    self.early.push(event);
                    continue;
                }
                Ok(Some((FromProxy::Ready { .. }, _))) if self.is_awaited() => {
                    self.readiness = Readiness::Reported;
                    continue;
                }
                Ok(Some((answer, _))) => {
                    let answer = read(&answer).filter(|_| progress == RequestProgress::Sent);
                    let unexpected = || NotApplied("it sent an unexpected message".to_owned());
                    return answer.ok_or_else(unexpected);
                }
                Err(ControlError::Io(Errno::AGAIN)) => {}
                Ok(None) | Err(_) => {
                    let text = self.exit_text();
                    return Err(NotApplied(text.trim_start_matches(": ").to_owned()));
                }
            }
            if Instant::now() >= until {
                let why = format!("it did not {what} within {} s", within.as_secs());
                return Err(NotApplied(why));
            }
            let events = match progress {
                RequestProgress::Unsent => PollFlags::IN | PollFlags::OUT,
                RequestProgress::Sent => PollFlags::IN,
            };
            let mut fds = [PollFd::new(&self.control, events)];
            let _ = wait_until(&mut fds, Some(until)); // an error comes back from the read
        }
    }

    /// Events that arrived while something else was waited for.
    pub(super) fn take_early(&mut self) -> Vec<EgressEvent> {
        std::mem::take(&mut self.early)
    }

    #[cfg(test)]
    pub(super) fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// It has not reported yet that it is ready.
    pub(crate) fn is_awaited(&self) -> bool {
        self.readiness == Readiness::Awaited
    }

    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        let has_pending = !self.pending.is_empty();
        let events = if has_pending { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        PollFd::new(&self.control, events)
    }

    /// Sends it a new value for one of its secrets, in turn.
    pub(super) fn replace_secret(&mut self, value: SecretValue) {
        let what = ToProxy::Secret(value);
        self.pending.push_back(Pending { what, socket: None, stream: None });
        self.flush();
    }

    /// Passes it a socket, as soon as it takes one.
    pub(super) fn hand_over(&mut self, what: ToProxy, socket: OwnedFd) {
        self.pending.push_back(Pending { what, socket: Some(socket), stream: None });
        self.flush();
    }

    pub(super) fn hand_over_connection(&mut self, stream: u32, port: u16, socket: OwnedFd) {
        let what = ToProxy::Connection { port };
        self.pending.push_back(Pending { what, socket: Some(socket), stream: Some(stream) });
        self.flush();
    }

    /// How many sockets it has not taken yet.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Drops connections that ended before it took them.
    pub(super) fn retain_pending(&mut self, is_there: impl Fn(u32) -> bool) {
        self.pending.retain(|pending| pending.stream.is_none_or(&is_there));
    }

    fn flush(&mut self) {
        while let Some(Pending { what, socket, .. }) = self.pending.front() {
            match send(self.control.as_fd(), what, socket.as_ref().map(AsFd::as_fd)) {
                Err(ControlError::Io(Errno::AGAIN)) => return,
                // One that is gone is found by the next read; what it was to have is closed.
                Ok(()) | Err(_) => drop(self.pending.pop_front()),
            }
        }
    }

    pub(super) fn take_events(&mut self) -> ProxyEvents {
        self.flush();
        let mut taken = ProxyEvents { events: self.take_early(), gone: None };
        for _ in 0..MAX_EVENTS {
            match receive::<FromProxy>(&self.control) {
                Ok(Some((FromProxy::Event(event), _))) => taken.events.push(event),
                Err(ControlError::Io(Errno::AGAIN)) => break,
                Ok(Some(_)) => {
                    taken.gone = Some("it sent an unexpected message".to_owned());
                    break;
                }
                Err(ControlError::BadPacket(why)) => {
                    taken.gone = Some(why);
                    break;
                }
                Ok(None) | Err(_) => {
                    taken.gone = Some(self.exit_text().trim_start_matches(": ").to_owned());
                    break;
                }
            }
        }
        taken
    }

    /// The run is over: it closes its connections, reports the rest, and exits.
    pub(super) fn shut_down(&mut self) {
        self.pending.clear();
        let _ = shutdown(&self.control, Shutdown::Write); // one that is gone needs no message
    }

    /// What it still reports after it was shut down.
    pub(super) fn last_events(&mut self, within: Duration) -> Vec<EgressEvent> {
        let until = Instant::now() + within;
        let mut all = Vec::new();
        loop {
            let ProxyEvents { events, gone } = self.take_events();
            all.extend(events);
            if gone.is_some() || Instant::now() >= until {
                return all;
            }
            let mut fds = [PollFd::new(&self.control, PollFlags::IN)];
            if wait_until(&mut fds, Some(until)).is_err() {
                return all;
            }
        }
    }

    /// What it wrote to its standard error, and how it ended.
    fn exit_text(&mut self) -> String {
        let _ = self.child.kill(); // its socket is closed, so it is of no more use
        let mut text = String::new();
        if let Ok(status) = self.child.wait() {
            text.push_str(&format!(": {status}"));
        }
        let mut buffer = [0; MAX_STDERR];
        let length = rustix::io::read(&self.stderr, &mut buffer).unwrap_or(0); // it may have written nothing
        let written = belljar_spec::text::escape(buffer[..length].trim_ascii());
        if !written.is_empty() {
            text.push_str(&format!(": {written}"));
        }
        text
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // A child of this process, reaped here or nowhere: the number is not reused.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
